"""The model that a name on the command line stands for."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

CONTRACT = """
    def problem():              # lngeom lint yourmodule:problem
        return model, X         # X has one sample a row
A third item, such as {"decay": optimizer, "export": other_model}, holds further arguments of lg.lint."""
"""Object that a user may name, shown in errors."""


class Given(NamedTuple):
    """Arguments of `lint`, and where the model is written.

    Attributes:
        model: the model.
        X: its inputs.
        options: further arguments.
        uri: file of the object, relative to the current folder where it lies in it; None where it is not known.
        line: its line.
    """

    model: Any
    X: Any
    options: dict[str, Any]
    uri: str | None
    line: int


def given(found: Any, name: str) -> Given:
    """The arguments that an object stands for.

    Args:
        found: a function without required arguments that returns (model, X) or (model, X, options), or such a tuple.
        name: its name, for errors.

    Returns:
        The arguments.

    Raises:
        ValueError: if it is neither, or the function fails. The message shows a correct form.
    """
    uri, line = _source(found)
    if callable(found) and not isinstance(found, tuple):
        try:
            found = found()
        except Exception as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            raise ValueError(f"{name}() failed: {text}. Write:{CONTRACT}") from error
    if not isinstance(found, tuple) or len(found) not in {2, 3}:
        raise ValueError(f"{name} must give (model, X); got {type(found).__name__}. Write:{CONTRACT}")
    options = found[2] if len(found) == 3 else {}
    known = {"decay", "export", "training", "rules"}
    if not isinstance(options, Mapping) or set(options) - known:
        raise ValueError(f"the third item of {name} must be a dict with keys of {', '.join(sorted(known))}")
    return Given(found[0], found[1], dict(options), uri, line)


def _source(found: Any) -> tuple[str | None, int]:
    try:
        path = inspect.getsourcefile(found)
        line = inspect.getsourcelines(found)[1]
    except (TypeError, OSError):
        return None, 1
    if path is None:
        return None, 1
    here = Path.cwd().resolve()
    whole = Path(path).resolve()
    return (whole.relative_to(here).as_posix() if whole.is_relative_to(here) else whole.as_uri()), line

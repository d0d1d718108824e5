"""The model, parameters and inputs that a name on the command line stands for, of `lngeom fisher` and `plan`."""

import inspect
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lngeom._core.files import CORRUPT
from lngeom._core.memory import available_memory, format_bytes
from lngeom.claims.data import DataError, Dataset, read, reason
from lngeom.information._given import require_numbers
from lngeom.information.glm import NormalizedGLM

FISHER = """
    def problem():                  # lngeom fisher yourmodule:problem --family categorical
        return apply, params, X     # apply(params, X) gives natural parameters [N C], such as logits; X [N D]
A fourth item, such as {"mask": mask}, holds further arguments of lg.fisher. --epsilon sets an argument eps of problem.
A torch module is given as (module, X); a third item, such as {"output": "logits"}, holds arguments of lg.from_torch.
Or name apply itself, with --params FILE.npz (one array per leaf, "layer1.kernel") and --data FILE.npy."""
"""Objects that a user may name, shown in errors of `lngeom fisher`."""


class Given(NamedTuple):
    """What a user has named.

    Attributes:
        model_or_apply: the model.
        params: its parameters.
        X: inputs.
        arguments: by name.
        dataset: X with what was changed in it, where it is data of the command's.
    """

    model_or_apply: Any
    params: PyTree
    X: PyTree
    arguments: dict[str, Any]
    dataset: Dataset | None = None


def from_object(
    found: Any,
    name: str,
    *,
    params: Path | None = None,
    data: Path | None = None,
    eps: float | None = None,
    dtype: jax.typing.DTypeLike | None = None,
    contract: str = FISHER,
) -> Given:
    """Converts the object that a user has named to a model, parameters, inputs and further arguments.

    Args:
        found: a function without arguments that returns (apply, params, X) or (apply, params, X, arguments), or
            (module, X) or (module, X, arguments) of a torch module; such a tuple; or apply itself.
        name: name of the object in errors.
        params: file of parameters, for apply itself.
        data: file of inputs, for apply itself.
        eps: value of the function's argument eps.
        dtype: dtype of floating point arrays; as they are where None.
        contract: the objects that a user may name, for errors.

    Returns:
        The arguments.

    Raises:
        ValueError: if the object is none of these, or a file cannot be read. The message shows a correct form.
    """
    needed = _required(found)
    if eps is not None and not (needed == 0 and "eps" in inspect.signature(found).parameters):
        raise ValueError(f"{name} has no argument eps to set with --epsilon:{contract}")
    if needed == 2 and not isinstance(found, NormalizedGLM):
        if params is None or data is None:
            raise ValueError(f"{name} takes (params, X): give --params and --data, or name a function:{contract}")
        found = (found, _read_params(params), read_whole(data))
    elif params is not None or data is not None:
        raise ValueError(f"{name} brings its own parameters and inputs; --params and --data are for apply(params, X)")
    if needed == 0:
        found = _call(found, name, {} if eps is None else {"eps": eps})
    if isinstance(found, tuple | list) and found and _is_torch(found[0]):
        return _of_torch(found, name, dtype, contract)
    if not isinstance(found, tuple | list) or len(found) not in {3, 4} or not _is_model(found[0]):
        raise ValueError(f"{name} must give (apply, params, X); got {_in_words(found)}. Write:{contract}")
    model, own, X, arguments = (*found, {})[:4]
    _require_arguments(arguments, "fourth", name)
    require_numbers("params", jax.tree.leaves(own))
    require_numbers("X", jax.tree.leaves(X))
    return Given(model, _cast(own, dtype), _cast(X, dtype), dict(arguments))


def _is_torch(value: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _of_torch(found: Any, name: str, dtype: jax.typing.DTypeLike | None, contract: str) -> Given:
    """A torch module and its inputs, as (module, X) or (module, X, arguments of `lg.from_torch`)."""
    if len(found) not in {2, 3}:
        raise ValueError(f"{name} must give (module, X) of a torch module; got {_in_words(found)}. Write:{contract}")
    module, X, arguments = (*found, {})[:3]
    _require_arguments(arguments, "third", name)
    from lngeom.information.torch_modules import from_torch

    options: dict[str, Any] = ({} if dtype is None else {"dtype": dtype}) | arguments
    try:
        apply, params = from_torch(module, X, **options)
    except ImportError as error:
        raise ValueError(str(error)) from error
    to_array = lambda leaf: leaf.detach().numpy() if hasattr(leaf, "detach") else leaf  # noqa: E731
    return Given(apply, params, _cast(jax.tree.map(to_array, X), dtype), {})


def _require_arguments(arguments: Any, which: str, name: str) -> None:
    if not isinstance(arguments, dict) or not all(isinstance(key, str) for key in arguments):
        raise ValueError(f"the {which} item of {name} must be a dict of further arguments; got {arguments!r}")


def read_whole(path: Path) -> np.ndarray:
    """The array in a file, all of which is needed.

    Raises:
        DataError: if it cannot be read, or takes more than half of the free memory.
    """
    array, free = read(path), available_memory()
    if array.nbytes > free // 2:
        raise DataError(
            f"{path}: all of its {format_bytes(array.nbytes)} are needed, more than half of the free "
            f"{format_bytes(free)}: save fewer rows"
        )
    return array


def _is_model(value: Any) -> bool:
    return isinstance(value, NormalizedGLM) or (callable(value) and not isinstance(value, type))


def _in_words(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}: {', '.join(type(v).__name__ for v in value)}"
    return f"a {type(value).__name__}"


def _required(found: Any) -> int | None:
    """Number of required arguments of a function; None for other objects."""
    if not callable(found) or isinstance(found, type):
        return None
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return 2
    variadic = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return sum(p.default is inspect.Parameter.empty and p.kind not in variadic for p in parameters)


def _call(function: Any, name: str, options: dict[str, float]) -> Any:
    try:
        return function(**options)
    except SystemExit as error:
        raise ValueError(f"{name}() calls sys.exit({error.code!r}) and so returns nothing") from error
    except Exception as error:
        raise ValueError(f"{name}() raised {type(error).__name__}: {error}") from error


def _read_params(path: Path) -> PyTree:
    """Arrays of an archive as nested dicts, by the dots in their names."""
    if path.suffix != ".npz":
        raise DataError(f"{path}: parameters must be a .npz, one array a leaf")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    except CORRUPT as error:
        raise DataError(f"{path}: not an archive of arrays{reason(error)}") from error
    tree: dict[str, Any] = {}
    for name, value in arrays.items():
        *folders, last = name.split(".")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
            if not isinstance(node, dict):
                raise DataError(f"{path}: {name!r} is inside another array of the archive")
        if last in node:
            raise DataError(f"{path}: {name!r} holds other arrays of the archive")
        node[last] = value
    return tree


def _cast(tree: PyTree, dtype: jax.typing.DTypeLike | None) -> PyTree:
    def leaf(value: Any) -> Any:
        if not isinstance(value, np.ndarray | jax.Array):
            return value
        floating = jnp.issubdtype(value.dtype, jnp.floating) and dtype is not None
        return jnp.asarray(value, dtype) if floating else jnp.asarray(value)

    return jax.tree.map(leaf, tree)

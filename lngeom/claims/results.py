"""Results of experiments on disk, as `python -m analysis NAME` writes them, for the claims that rest on them.

A folder `EXPERIMENT/` holds the curves of every arm (`curves.npz`) and what they are compared by (`statements.json`).
"""

import hashlib
import json
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Float, Int

from lngeom.claims.comparison import TrainingStatement


class NoResults(LookupError):
    """An experiment has left no results: what rests on it stays undecided."""


class Curves(NamedTuple):
    """Curves of one arm.

    Attributes:
        steps: at each evaluation, [E].
        values: of each metric, [seed, evaluation].
    """

    steps: Int[np.ndarray, " E"]
    values: dict[str, Float[np.ndarray, "S E"]]


def read_curves(folder: Path | None, experiment: str) -> dict[str, Curves]:
    """The curves of every arm of an experiment, from `folder/EXPERIMENT/curves.npz`.

    Args:
        folder: of all results, or None for no results.
        experiment: its name.

    Returns:
        The curves of each arm.

    Raises:
        NoResults: if there is no such file.
        ValueError: if there is one and it cannot be read.
    """
    if folder is None:
        raise NoResults(f"no results given: run `python -m analysis {experiment}`, then give the folder with --results")
    path = folder / experiment / "curves.npz"
    if not path.is_file():
        raise NoResults(f"no results in {path}: run `python -m analysis {experiment}`")
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arms = dict.fromkeys(name.rsplit("/", 1)[0] for name in file.files)
            return {
                arm: Curves(
                    file[f"{arm}/steps"],
                    dict(zip(file[f"{arm}/metrics"].tolist(), np.moveaxis(file[f"{arm}/curves"], -1, 0), strict=True)),
                )
                for arm in arms
            }
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise ValueError(f"{path} is damaged, or not the results of an experiment ({error}): run it again") from error


def digest(content: bytes) -> str:
    """SHA-256 of a file's content."""
    return hashlib.sha256(content).hexdigest()


def read_statements(folder: Path, experiment: str) -> list[TrainingStatement]:
    """What the arms of an experiment are compared by, from `folder/EXPERIMENT/statements.json`.

    Args:
        folder: of all results.
        experiment: its name.

    Returns:
        The statements.

    Raises:
        ValueError: if there is no such file, or it cannot be read; if the configuration or the curves beside it are not
            those it was written with.
    """
    path = folder / experiment / "statements.json"
    redo = f"write it with `python -m analysis {experiment} --redraw`"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        statements = [TrainingStatement.from_json(s) for s in content["statements"]]
        known = {name: content["sha256"][name] for name in ("config.json", "curves.npz")}
    except FileNotFoundError:
        raise ValueError(f"{path} is missing, which says what the curves are compared by: {redo}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged, or of another version ({error}): {redo}") from error
    for name, sha in known.items():
        beside = path.with_name(name)
        if not beside.is_file() or digest(beside.read_bytes()) != sha:
            raise ValueError(f"{beside} is missing or was changed after its run: run `python -m analysis {experiment}`")
    return statements

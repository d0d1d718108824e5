"""Results of the protocol on disk, as `python -m analysis protocol` writes them, for the claims that rest on them.

A folder `protocol/EXPERIMENT/` holds what was run (`config.json`), the curves of every arm at every learning rate
(`curves.npz`), and the statements that compare them with what was found (`report.json`).
"""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Float, Int

from lngeom.claims.comparison import TrainingStatement

FOLDER = "protocol"
"""Folder of the results of the protocol, below that of all results."""


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


class Curved(NamedTuple):
    """All curves that the protocol asks for.

    Attributes:
        choosing: arm → learning rate → curves, on the seeds for the choice of a rate.
        fresh: likewise, on fresh seeds, at the chosen rates.
    """

    choosing: dict[str, dict[float, Curves]]
    fresh: dict[str, dict[float, Curves]]


class Kept(NamedTuple):
    """Results of one experiment under the protocol.

    Attributes:
        configuration: all that the curves depend on.
        statements: what is compared.
        curved: the curves.
    """

    configuration: dict[str, Any]
    statements: list[TrainingStatement]
    curved: Curved


def digest(content: bytes) -> str:
    """SHA-256 of a file's content."""
    return hashlib.sha256(content).hexdigest()


def read_protocol(results: Path | None, experiment: str) -> Kept:
    """The results of an experiment under the protocol, from `results/protocol/EXPERIMENT/`.

    Args:
        results: folder of all results, or None for no results.
        experiment: its name.

    Returns:
        Configuration, statements and curves.

    Raises:
        NoResults: if there are none.
        ValueError: if they are damaged; if the configuration or the curves are not those of the report beside them.
    """
    run = f"`python -m analysis protocol {experiment}`"
    if results is None:
        raise NoResults(f"no results given: run {run}, then give the folder with --results")
    folder = results / FOLDER / experiment
    if not (folder / "report.json").is_file():
        raise NoResults(f"no results in {folder}: run {run}")
    try:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        for name in ("config.json", "curves.npz"):
            path = folder / name
            if not path.is_file() or digest(path.read_bytes()) != report["sha256"][name]:
                raise ValueError(f"{path} is missing or was changed after its run: run {run} again")
        configuration = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        try:
            statements = [TrainingStatement.from_json(row) for row in report["statements"]]
        except ValueError as error:
            raise ValueError(f"{folder / 'report.json'}: {error}: run {run} again") from error
        curved = Curved({}, {})
        with np.load(folder / "curves.npz", allow_pickle=False) as file:
            for name in dict.fromkeys(key.rsplit("/", 1)[0] for key in file.files):
                stage, rest = name.split("/", 1)
                arm, rate = rest.rsplit("/", 1)
                values = dict(zip(file[f"{name}/metrics"].tolist(), file[f"{name}/curves"], strict=True))
                getattr(curved, stage).setdefault(arm, {})[float(rate)] = Curves(file[f"{name}/steps"], values)
    except (OSError, KeyError, TypeError, AttributeError, BadZipFile, json.JSONDecodeError) as error:
        raise ValueError(f"{folder} has no results of this version ({error!r}): run {run} again") from error
    return Kept(configuration, statements, curved)

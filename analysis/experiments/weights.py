"""The weights that runs at full size have kept: which runs they are of, and whether the data at hand are theirs."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from analysis.experiments.experiment import Experiment
from analysis.experiments.loop import Weights, read_identity, read_weights
from analysis.experiments.variants import with_variant
from analysis.store import json_bytes, write_all

NEAR = 0.01
"""How far a value computed anew may be from the one of training, as a share of it: other processors round otherwise."""


class Kept(NamedTuple):
    """Files of weights of one experiment, all of the same sizes.

    Attributes:
        settings: the sizes.
        paths: arm → file.
    """

    settings: Any
    paths: dict[str, Path]


def find(experiment: Experiment, folder: Path, which: Literal["best", "checkpoint"]) -> Kept:
    """The files of weights in a folder.

    Args:
        experiment: whose they are.
        folder: where `python -m analysis NAME --full` has left them.
        which: those at the best value ("best"), or after the last step ("checkpoint").

    Returns:
        Sizes and files.

    Raises:
        ValueError: if there are none, or they are of another experiment, of several runs, or damaged.
    """
    paths = sorted(Path(folder).glob(f"*.{which}"))
    if not paths:
        raise ValueError(
            f"{folder} has no weights (*.{which}): train with `python -m analysis {experiment.name} --full --data "
            "DIR`, or give the folder that it names at its end with --weights"
        )
    arms = with_variant(experiment, "both").arms
    found: dict[str, Path] = {}
    sizes: list[dict[str, Any]] = []
    for path in paths:
        described = read_identity(path)["configuration"]
        if described.get("experiment") != experiment.name or described.get("arm") not in arms:
            raise ValueError(
                f"{path} holds weights of {described.get('experiment')}, {described.get('arm')}; expected an arm of "
                f"{experiment.name}"
            )
        sizes.append(described["settings"])
        found[described["arm"]] = path
    if any(size != sizes[0] for size in sizes):
        raise ValueError(f"{folder} holds weights of different sizes: give each run a folder of its own")
    try:
        settings = type(experiment.full)(**sizes[0])
    except TypeError as error:
        raise ValueError(f"{folder} holds weights of another version ({error}): train again") from error
    return Kept(settings, {arm: found[arm] for arm in arms if arm in found})


def load(experiment: Experiment, kept: Kept, arm: str, data: Any) -> tuple[Any, Weights]:
    """The weights of an arm.

    Args:
        experiment: whose they are.
        kept: what `find` gave.
        arm: the arm.
        data: of the experiment, in the form of training.

    Returns:
        The task of the arm, and its weights.

    Raises:
        ValueError: if the file is damaged.
    """
    task = experiment.task(kept.settings, with_variant(experiment, "both").arms[arm], data)
    return task, read_weights(task, kept.paths[arm])


def check_same_data(
    path: Path, metric: str, now: Float[np.ndarray, " S"], then: Float[np.ndarray, " S"], folder: Path
) -> None:
    """Refuses data other than those of training: with them, the weights give another value than they gave then.

    Args:
        path: of the weights.
        metric: what was computed anew.
        now: its values, for each seed.
        then: those of training.
        folder: of the data.

    Raises:
        ValueError: if they differ by more than 1 %, or are not finite.
    """
    if not np.all(np.abs(now - then) <= NEAR * np.abs(then)):
        shown = ("; ".join(f"{v:.5g}" for v in values) for values in (now, then))
        raise ValueError(
            f"{path}: {metric} is {next(shown)} with the data in {folder}, and was {next(shown)} in training: give the "
            "folder of the training data with --data"
        )


def parser(name: str, description: str, experiment: str) -> argparse.ArgumentParser:
    """The options that commands on kept weights share: data, weights and the folder of the table.

    Args:
        name: of the command.
        description: of the command.
        experiment: whose weights it reads.

    Returns:
        A parser.
    """
    made = argparse.ArgumentParser(prog=f"python -m analysis {name}", description=description)
    made.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the data of training")
    made.add_argument(
        "--weights",
        type=Path,
        default=Path("results") / experiment / "weights",
        metavar="DIR",
        help=f"folder of the weights (results/{experiment}/weights)",
    )
    made.add_argument("--out", type=Path, default=Path("results"), help="folder of the table (results)")
    return made


def write_table(
    out: Path, name: str, columns: Sequence[str], rows: Mapping[str, Sequence[float | None]], details: Any
) -> tuple[str, list[Path]]:
    """Writes a table as `out/NAME.md`, and all its numbers as `out/NAME.json`.

    Args:
        out: the folder.
        name: of the table.
        columns: their names.
        rows: name → a number for each column; None for none.
        details: what JSON can hold.

    Returns:
        The table as Markdown, and the paths.
    """
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [
        f"| {row} | " + " | ".join("" if v is None else f"{v:g}" for v in values) + " |" for row, values in rows.items()
    ]
    text = "\n".join(lines) + "\n"
    found = json_bytes({"columns": list(columns), "rows": dict(rows), **details})
    return text, write_all(out, {f"{name}.md": text, f"{name}.json": found})

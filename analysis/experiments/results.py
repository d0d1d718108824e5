"""What an experiment gave: its curves, the statements that they decide, and the files of both."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from lngeom.claims import all_claims, judge
from lngeom.claims.comparison import TrainingStatement
from lngeom.claims.results import Curves, digest

from analysis.experiments.experiment import Experiment
from analysis.experiments.loop import Run
from analysis.store import curves_bytes, json_bytes, read_curves, write_all


@dataclass(frozen=True)
class Results:
    """What an experiment gave.

    Attributes:
        configuration: all that the results depend on.
        runs: of each arm.
        comparisons: each statement with its claim, how it is decided and what was found, as JSON can hold them.
        summary: last values of each arm and further results, as JSON can hold them.
    """

    configuration: dict[str, Any]
    runs: Mapping[str, Run]
    comparisons: list[dict[str, Any]] = field(repr=False)
    summary: dict[str, Any] = field(repr=False)


def summarize(runs: Mapping[str, Run]) -> dict[str, Any]:
    """Last values of every arm.

    Args:
        runs: of each arm.

    Returns:
        A dictionary that JSON can hold.
    """
    arms = {
        name: {
            "steps": int(run.steps[-1]),
            "diverged at step": [int(s) if s >= 0 else None for s in run.diverged_at],
            "last": {metric: _rounded(curve[:, -1]) for metric, curve in run.curves.items()},
        }
        for name, run in runs.items()
    }
    return {"arms": arms}


def measured(experiment: Experiment, runs: Mapping[str, Run]) -> list[TrainingStatement]:
    """The statements whose arms were trained and whose metric was measured: a data set may lack what one needs.

    Args:
        experiment: the experiment.
        runs: of each arm.

    Returns:
        The statements, in order.
    """
    return [
        statement
        for statement in experiment.statements
        if all(arm in runs and statement.metric in runs[arm].curves for arm in statement.arms)
    ]


def compare(experiment: Experiment, runs: Mapping[str, Run]) -> list[dict[str, Any]]:
    """Each statement of an experiment beside its runs, in which every arm has one learning rate.

    A verdict needs arms at their best rates, and is left to the protocol.

    Args:
        experiment: the experiment.
        runs: of each arm.

    Returns:
        Dictionaries that JSON can hold.
    """
    comparisons = []
    for statement in measured(experiment, runs):
        arms = (Curves(runs[arm].steps, runs[arm].curves) for arm in statement.arms)
        found = judge.judge(statement, *(judge.lowered(curves, statement) for curves in arms))
        comparisons.append(
            statement.as_json()
            | {
                "source": all_claims(id=statement.claim)[0].source,
                "rule": statement.rule,
                "median": judge.shown(float(np.median(found.low)), float(np.median(found.high))),
                "low": _rounded(found.low),
                "high": _rounded(found.high),
                "wins": found.wins,
                "losses": found.losses,
            }
        )
    return comparisons


def _rounded(values: Any) -> Any:
    """Five digits; what is not finite becomes null."""
    if np.ndim(values):
        return [_rounded(v) for v in values]
    return float(f"{values:.5g}") if np.isfinite(values) else None


def read(experiment: Experiment, out: Path) -> Results:
    """The results that `write` has left, compared anew; the states after training are not among them.

    Args:
        experiment: the experiment.
        out: folder of all results.

    Returns:
        The results.

    Raises:
        ValueError: if they are not there, or damaged.
    """
    folder = out / experiment.name
    missing = [name for name in ("config.json", "summary.json", "curves.npz") if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} has no {' and no '.join(missing)}: run the experiment first, or correct --out")
    runs = {}
    try:
        described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        old = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        seeds = tuple(range(described["seeds"]))
        check_whole(folder)
        kept, _ = read_curves(folder / "curves.npz")
        if absent := [name for name in experiment.arms if name not in kept]:
            raise ValueError(f"no curves of {', '.join(absent)}")
        for name, curves in kept.items():
            diverged = [-1 if s is None else s for s in old["arms"][name]["diverged at step"]]
            values = {metric: value.astype(np.float64) for metric, value in curves.values.items()}
            runs[name] = Run(curves.steps, values, np.array(diverged), None, seeds)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} has no results of this version ({error}): run the experiment again") from error
    further = {k: v for k, v in old.items() if k in {"further", "not measured"}}
    return Results(described, runs, compare(experiment, runs), summarize(runs) | further)


def check_whole(folder: Path) -> None:
    """Looks whether the files of some results were written together, and not changed since.

    Args:
        folder: of one experiment.

    Raises:
        ValueError: if they were not.
        OSError: if one cannot be read.
        KeyError: if the digests are of another version.
    """
    known = json.loads((folder / "statements.json").read_text(encoding="utf-8"))["sha256"]
    for name in ("config.json", "curves.npz"):
        if digest((folder / name).read_bytes()) != known[name]:
            raise ValueError(f"{name} was changed after its run")


def check_replaces_its_own(experiment: Experiment, described: Mapping[str, Any], out: Path) -> None:
    """Looks whether results that a run would replace are of the same sizes and seeds.

    Args:
        experiment: the experiment.
        described: configuration of the run.
        out: folder of all results.

    Raises:
        ValueError: if they are not; the message says what differs.
    """
    path = out / experiment.name / "config.json"
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # nothing is there, or nothing that can be read
    different = [k for k in ("arms", "settings", "seeds") if known.get(k) != described[k]]
    if different:
        raise ValueError(
            f"{path.parent} holds results of another configuration, which differs in {', '.join(different)}: name "
            "another folder with --out, or remove them"
        )


def is_done(experiment: Experiment, described: Mapping[str, Any], out: Path) -> bool:
    """Whether results of this configuration are there, whole.

    Args:
        experiment: the experiment.
        described: its configuration.
        out: folder of all results.

    Returns:
        Whether `write` has left them, and what was written together belongs together.
    """
    folder = out / experiment.name
    try:
        check_whole(folder)
        return json.loads((folder / "config.json").read_text(encoding="utf-8")) == described
    except (OSError, ValueError, KeyError):
        return False


def write(experiment: Experiment, results: Results, out: Path) -> list[Path]:
    """Writes `out/NAME/{curves.npz,statements.json,config.json,summary.json}`, each whole or not at all.

    Args:
        experiment: the experiment.
        results: what it gave.
        out: folder of all results.

    Returns:
        The paths.
    """
    curves = curves_bytes({name: Curves(run.steps, run.curves) for name, run in results.runs.items()})
    described = json_bytes(results.configuration)
    statements = {
        "experiment": experiment.name,
        "sha256": {"config.json": digest(described), "curves.npz": digest(curves)},
        "statements": results.comparisons,
    }
    files = {
        "curves.npz": curves,
        "statements.json": json_bytes(statements),
        "config.json": described,
        "summary.json": json_bytes(results.summary),
    }
    return write_all(out / experiment.name, files)

"""Trains the first steps of the stored curves again, from their seeds, and compares them to the bit.

`python -m analysis reproduce [NAME …] [--protocol]` trains every arm of the eight experiments, and the networks of
`learning_rate`, up to the second evaluation: all seeds, all curves, in minutes. `--protocol` adds the fresh seeds of
the protocol, at the chosen rates. Curves are stored in float32, those of `learning_rate` with six digits. The versions
on real data cannot be trained without the data, which the repository does not have. Other versions of JAX and other
processors may round otherwise; what differs is then said.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from lngeom.claims.results import Curves, read_protocol
from lngeom.cli.interrupts import stoppable
from rich.console import Console

from analysis.experiments.experiment import Experiment
from analysis.experiments.loop import LOSS
from analysis.experiments.protocol.__main__ import known
from analysis.experiments.protocol.trials import padded_stack
from analysis.experiments.results import read
from analysis.experiments.running import train_arm
from analysis.measurements.learning_rate.figures import rounded
from analysis.measurements.learning_rate.networks import Sizes
from analysis.measurements.learning_rate.parts import PARTS

TRAINED = ("lr_growth", "lr_equilibrium")
"""Parts of `learning_rate` whose curves are those of trainings; the others are functions of whole runs."""

EVALUATIONS = 2
"""Evaluations after the start that are trained again."""


class Checked(NamedTuple):
    """A set of stored curves beside those trained again.

    Attributes:
        name: of the experiment and the arm.
        steps: how many were trained.
        differing: curve → largest difference at an evaluation; NaN where one is missing or not finite in one of both.
    """

    name: str
    steps: int
    differing: dict[str, float]


def differences(stored: Mapping[str, Any], trained: Mapping[str, Any]) -> dict[str, float]:
    """Curves that are not equal to the bit, from their start, and by how much.

    Args:
        stored: name → values, [S E].
        trained: likewise, with fewer evaluations.

    Returns:
        Name → largest difference; NaN where a curve is on one side alone.
    """
    found = dict.fromkeys(stored.keys() ^ trained.keys(), np.nan)
    for name in stored.keys() & trained.keys():
        now = np.asarray(trained[name])
        then = np.asarray(stored[name]).astype(now.dtype)
        then = then[..., : now.shape[-1]] if now.ndim else then
        if now.shape != then.shape or not np.array_equal(now, then, equal_nan=True):
            found[name] = float(np.nanmax(np.abs(now - then))) if now.shape == then.shape else np.nan
    return found


def experiment_curves(experiment: Experiment, folder: Path) -> Iterator[Checked]:
    """The arms of an experiment at its small size.

    Args:
        experiment: the experiment.
        folder: of all results.

    Yields:
        Each arm.

    Raises:
        ValueError: if the stored curves are of other sizes, missing or damaged.
    """
    kept = read(experiment, folder)
    if kept.configuration["settings"] != json.loads(json.dumps(asdict(experiment.small))):
        raise ValueError(f"the curves of {experiment.name} in {folder} are of other sizes than its small version")
    data = experiment.data(experiment.small)
    for arm, run in kept.runs.items():
        yield _arm(experiment, experiment.small, arm, data, Curves(run.steps, run.curves), seeds=run.seeds)


def protocol_curves(experiment: Experiment, folder: Path) -> Iterator[Checked]:
    """The arms of an experiment under the protocol, at the chosen rates, on fresh seeds.

    Args:
        experiment: the experiment.
        folder: of all results.

    Yields:
        Each arm at each of its rates.
    """
    kept = read_protocol(folder, experiment.name)
    seeds = kept.configuration["plan"]["fresh"]
    small, generated = experiment.small, experiment.generated
    data = padded_stack([experiment.data(small, seed) for seed in seeds]) if generated else experiment.data(small)
    for arm, of_rate in kept.curved.fresh.items():
        for rate, curves in of_rate.items():
            settings = replace(small, rate=rate)
            yield _arm(experiment, settings, arm, data, curves, seeds=seeds, data_of_each=generated)


def _arm(experiment: Experiment, settings: Any, arm: str, data: Any, stored: Curves, **options: Any) -> Checked:
    every = experiment.length(settings, experiment.arms[arm])[1]
    run = train_arm(experiment, settings, arm, data, steps=EVALUATIONS * every, **options)
    trained = {name: run.curves[name].astype(np.float32) for name in run.curves.keys() & stored.values.keys()}
    found = differences(stored.values, trained)
    if not np.array_equal(run.steps, stored.steps[: len(run.steps)]):
        found["steps"] = np.nan
    return Checked(f"{experiment.name}: {arm}", EVALUATIONS * every, found)


def learning_rate_curves(part: str, folder: Path) -> Iterator[Checked]:
    """The networks of a part of `learning_rate`, of whose numbers six digits are stored.

    Predictions of the library, which stand beside what was measured, are left out.

    Args:
        part: of `TRAINED`.
        folder: of all results.

    Yields:
        Each network.
    """
    document = json.loads((folder / f"{part}.json").read_text(encoding="utf-8"))
    sizes = Sizes(**document["configuration"])
    fewer = replace(sizes, steps=EVALUATIONS * sizes.every)
    with jax.enable_x64(True):
        trained = rounded(PARTS[part](fewer, None, None))
    for name, curves in trained.items():
        if LOSS not in curves:
            continue  # a random walk, which is no training
        stored, now = (
            {k: np.array(v, float) for k, v in found.items() if not k.startswith("equilibrium")}
            for found in (document["data"][name], curves)
        )
        found = differences(stored, now)
        yield Checked(f"{part}: {name}", fewer.steps, found)


def main() -> None:
    """Trains, compares, and ends with status 1 where a curve differs."""
    experiments = known()
    summary, _, details = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="python -m analysis reproduce", description=summary, epilog=details)
    names = (*experiments, *TRAINED)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all by default: {', '.join(names)}")
    parser.add_argument("--protocol", action="store_true", help="add the fresh seeds of the protocol, at their rates")
    parser.add_argument("--results", type=Path, default=Path("figures"), help="folder of the stored curves (figures)")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(names)):
        parser.error(f"no curves of {', '.join(unknown)}; there are {', '.join(names)}")
    console, count, wrong = Console(), 0, 0
    for name in options.names or names:
        ways = [learning_rate_curves(name, options.results)] if name in TRAINED else []
        if name in experiments:
            ways += [experiment_curves(experiments[name], options.results)]
            ways += [protocol_curves(experiments[name], options.results)] * options.protocol
        for checked in (row for way in ways for row in way):
            said = "; ".join(f"{curve} differs by {gap:.2g}" for curve, gap in checked.differing.items())
            console.print(f"{checked.name}, {checked.steps} steps: {said or 'equal'}", highlight=False, soft_wrap=True)
            count, wrong = count + 1, wrong + bool(said)
    console.print(f"{count - wrong} of {count} arms equal to the bit, with JAX {jax.__version__}.", highlight=False)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    with stoppable("python -m analysis reproduce"):
        main()

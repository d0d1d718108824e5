r"""How a step of training moves running statistics, and whether evaluation with them is that of training.

A step moves a running statistic as $r' = (1 - w)\,r + w\,s$, where s is a statistic of the batch. Steps from two values
of r give w and s, so that no history of steps is needed. Where r = s for all of them, evaluation on the same batch is
training on it, up to a factor $\sqrt{(m-1)/m}$ where s is the variance over m − 1 of m values.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lngeom.checks._probed import UNITS
from lngeom.checks.findings import Finding
from lngeom.checks.placed import Placed

COUNT = 1_000_000
"""Number of steps in counters, where a correction for the first steps is none."""


SLACK, LEAST = 1e-4, 2e-5
"""Largest spread of w over the units of an average, and its least size."""

APART = 1e-2
"""Difference of evaluation from training, relative to the outputs, that is no rounding of running statistics."""


@dataclass(frozen=True)
class Update:
    """What a step of training on one batch does to running statistics.

    Attributes:
        batch: the inputs, in the layout of the layer's inputs.
        weights: w of each statistic.
        targets: s of each statistic.
        stored: all statistics of the layer, with r = s.
        stays: whether a step leaves these as they are.
        cumulative: whether step t moves them by 1/t, so that they are averages over all batches.
    """

    batch: np.ndarray
    weights: dict[str, float]
    targets: dict[str, np.ndarray]
    stored: dict[str, np.ndarray]
    stays: bool
    cumulative: bool = False


def update_of(placed: Placed) -> Update | None:
    """The update of the running statistics of a norm; None where it is no average, or no step moves them."""
    moves = placed.training and placed.normalizes and placed.running and placed.updated
    if not moves or placed.unit == UNITS[2]:  # too few digits to tell an average
        return None
    ramp = np.linspace(0.5, 2.0, placed.units)
    batch = placed.back(placed.far * (placed.rows(placed.probe) * ramp + ramp[::-1]), placed.probe)

    def step(stored):
        return placed.layer.step(batch, stored, dtype=placed.dtype, training=True, parameters=placed.changed)[1]

    first = step(placed.layer.statistics)  # what is done once, at the first step of all, is behind
    shifts = {k: np.abs(v).max() + placed.far for k, v in first.items() if k in placed.moving}
    other = first | {k: first[k] + shift for k, shift in shifts.items()}
    here, there = step(first), step(other)
    weights, targets = {}, {}
    for name, shift in shifts.items():
        kept = (np.asarray(there[name], np.float64) - here[name]) / shift
        w = 1 - float(np.median(kept))
        if not np.ptp(kept) <= SLACK or not abs(w) > LEAST:
            return None
        weights[name] = w
        targets[name] = (here[name] - (1 - w) * np.asarray(first[name], np.float64)) / w
    counts = {k: np.full_like(v, COUNT) for k, v in first.items() if np.issubdtype(v.dtype, np.integer)}
    stored = first | counts | targets
    after = step(stored)
    stays = all(np.max(np.abs(after[k] - v)) <= SLACK * np.max(np.abs(v)) for k, v in targets.items())
    steps = [int(v) + 1 for k, v in first.items() if k in counts and v.ndim == 0]  # the step that is measured
    cumulative = len(steps) == 1 and all(abs(w * steps[0] - 1) <= SLACK * steps[0] for w in weights.values())
    return Update(
        batch, weights, targets, stored, stays, cumulative and getattr(placed.layer.module, "momentum", 0) is None
    )


def said(placed: Placed, update: Update) -> str:
    """Weights and targets of a step in words."""
    known = list(_statistics(placed, update.batch))
    words = []
    for name, w in update.weights.items():
        value = update.targets[name].reshape(-1)
        apart = {title: float(np.max(np.abs(value - v)) / np.max(np.abs(v))) for title, v in known}
        title = min(apart, key=lambda t: apart[t])
        target = f"the {title}" if apart[title] <= 1e-2 else "no mean or variance of the batch"
        words.append(f"{name} {'1/t' if update.cumulative else f'{w:.3g}'} of the way to {target}")
    momentum = getattr(placed.layer.module, "momentum", None)
    attribute = f" (its attribute momentum is {momentum:g})" if isinstance(momentum, float) else ""
    step = "step t of training" if update.cumulative else "a step of training"
    attribute = ", an average over all batches" if update.cumulative else attribute
    return f"{step} moves {', '.join(words)}{attribute}"


def _statistics(placed: Placed, batch: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Statistics of each unit of a batch, by their names."""
    rows = placed.rows(batch).reshape(-1, placed.units)
    variance, m = rows.var(0), len(rows)
    yield "mean of the batch", rows.mean(0)
    yield "variance of the batch over m", variance
    if m > 1:
        yield "variance of the batch over m − 1", variance * m / (m - 1)
        yield "standard deviation of the batch over m − 1", np.sqrt(variance * m / (m - 1))
    yield "standard deviation of the batch", np.sqrt(variance)
    yield "mean square of the batch", np.square(rows).mean(0)
    yield "root mean square of the batch", np.sqrt(np.square(rows).mean(0))
    if placed.positions:
        own = placed.rows(batch)
        each, count = own.var(1).mean(0), own.shape[1]
        yield "mean variance of a sample over m", each
        if count > 1:
            yield "mean variance of a sample over m − 1", each * count / (count - 1)
    with np.errstate(all="ignore"):
        yield "inverse standard deviation of the batch", 1 / np.sqrt(variance)


def findings(placed: Placed, update: Update) -> Iterator[Finding]:
    """Whether evaluation differs from training where running statistics are those to which training moves them."""
    if not update.stays or placed.row != "bn" or placed.layer.fixed is not None or placed.formula is None:
        return
    outputs = [
        placed.layer.step(update.batch, update.stored, dtype=placed.dtype, training=mode, parameters=placed.changed)[
            0
        ].astype(np.float64)
        for mode in (True, False)
    ]
    sets = placed.formula.scale
    m, bias = sets.size(placed.shape), sets.mean(outputs[0])
    centred, evaluated = outputs[0] - bias, outputs[1] - bias
    size = np.max(np.abs(outputs[0]))
    if not size > 0 or not np.all(np.isfinite(outputs[0])):
        return
    factors = (1.0, math.sqrt((m - 1) / m))
    apart = min(float(np.max(np.abs(evaluated - f * centred))) / size for f in factors)
    if apart > APART or math.isnan(apart):
        words = f"{min(apart, 9.99):.0%} of the outputs" if math.isfinite(apart) else "NaN or infinity"
        yield Finding(
            "running statistics",
            f"with the statistics to which training on one batch moves them, evaluation on it differs from training by "
            f"{words}",
        )

"""Transformations of weights and inputs on a layer in its place: on probes, at ordinary size and where no ε matters."""

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace

import numpy as np

from lngeom._core.draws import probe_generator
from lngeom.checks._orbits import Data, draw
from lngeom.checks.findings import Result, Verdict
from lngeom.checks.subject import deviation
from lngeom.checks.suite import BATCH
from lngeom.methods.transformations.actions import Column
from lngeom.methods.transformations.columns import extended

DRAWS = 2
"""Members of a column's group that are tried."""

FEATURES = 8
"""Inputs of the layer before, from which probes are made."""

FLIP = "weight_sign_flip"
"""Name of the column of signs."""

Outputs = Callable[[Data, float], np.ndarray]
"""Outputs for W and X, with summed inputs times a number."""


def probe_data(shape: tuple[int, ...]) -> Data:
    """Ordinary weights and inputs whose products X Wᵀ have a shape [N *T H] and a size near 1."""
    rng = probe_generator(3)
    features = min(FEATURES, max(2, shape[-1]))
    inputs = 0.4 + rng.normal(size=(*shape[:-1], features))
    return Data(rng.normal(size=(shape[-1], features)) / math.sqrt(features), inputs)


def invariances(
    outputs: Outputs,
    data: Data,
    *,
    groups: int,
    tolerance: float,
    scales: tuple[float, float],
    damped: Callable[[], bool | None],
    saturates: bool,
) -> tuple[Result, ...]:
    """Finds the behaviour of a layer under every transformation.

    Args:
        outputs: the layer.
        data: W and X.
        groups: groups of units for the columns of groups.
        tolerance: change of outputs, relative to their size, that is a difference.
        scales: of ordinary summed inputs, and of those for which no ε matters.
        damped: whether an ε is all that tells outputs at ordinary size from those far away; None if that is not known.
        saturates: whether large inputs tell nothing about its outputs.

    Returns:
        The results.
    """
    start = {scale: outputs(data, scale) for scale in scales}

    def change(moved: Data, scale: float) -> float:
        if scale not in start:
            start[scale] = outputs(data, scale)
        return deviation(start[scale], outputs(moved, scale))

    def by_epsilon(moved: list[Data]) -> bool:
        known = damped()
        return _falls(lambda s: max(change(m, s) for m in moved), scales, tolerance) if known is None else known

    results = []
    for column, moved in moves(data, groups):
        bare = Result(column.name, column.title, column.formula, Verdict.UNKNOWN, math.inf, tolerance)
        near, far = (max(change(m, s) for m in moved) for s in scales)
        if not math.isfinite(near) and not math.isfinite(far):
            results.append(replace(bare, note="outputs are not finite, which is no evidence"))
            continue
        if near <= tolerance:
            verdict = Verdict.INVARIANT
        elif column.name == FLIP and _flips(outputs, data, scales[1], tolerance):
            verdict = Verdict.FLIPS
        elif not saturates and far <= tolerance and by_epsilon(moved):
            verdict = Verdict.UP_TO_EPS
        else:
            verdict = Verdict.NOT
        results.append(replace(bare, verdict=verdict, deviation=near))
    return (*results, _batch(outputs, data, scales[0], tolerance))


_MOVED: OrderedDict[Hashable, list[tuple[Column, list[Data]]]] = OrderedDict()
KEPT, SMALL = 8, 50_000
"""Sets of moved data that are kept, and the largest number of weights and inputs of which they are."""


def moves(data: Data, groups: int) -> list[tuple[Column, list[Data]]]:
    """Every transformation with what it makes of the data; norms of one shape share them."""
    key = groups, *((v.shape, v.tobytes()) for v in data)
    if key in _MOVED:
        return _MOVED[key]
    whole = len(data.weights) % groups == 0 and 1 < groups < len(data.weights)
    columns = [c for c in extended(groups) if not c.compares_first and (whole or "group" not in c.name)]
    large = sum(v.size for v in data) > SMALL
    found = [(c, [draw(c, data, seed).apply(data) for seed in range(1 if large else DRAWS)]) for c in columns]
    if not large:
        _MOVED[key] = found
        while len(_MOVED) > KEPT:
            _MOVED.popitem(last=False)
    return found


def _flips(outputs: Outputs, data: Data, scale: float, tolerance: float) -> bool:
    """Whether f(−a) and f(a) have a sum that does not depend on a: a bias."""
    other = Data(np.roll(data.weights, 1, 1), data.inputs[::-1] ** 2)
    pairs = [(outputs(d, scale), outputs(Data(-d.weights, d.inputs), scale)) for d in (data, other)]
    size = max(float(np.max(np.abs(v))) for pair in pairs for v in pair)
    return float(np.max(np.abs(sum(pairs[0]) - sum(pairs[1])))) <= 4 * tolerance * size


def _falls(change: Callable[[float], float], scales: tuple[float, float], tolerance: float) -> bool:
    """Whether the change of outputs falls with the square of the size of inputs, as with an ε in a root."""
    scale, far = scales
    while scale < far:
        here = change(scale)
        if here <= tolerance:
            return True
        if here <= 0.02:
            return change(4 * scale) <= max(here / 8, tolerance)
        scale *= 4
    return False


def _batch(outputs: Outputs, data: Data, scale: float, tolerance: float) -> Result:
    """Whether outputs stay when another sample is replaced."""
    worst, start = 0.0, outputs(data, scale)
    for case, others in _others(len(data.inputs)):
        inputs = data.inputs.copy()
        inputs[case] = 3 - inputs[case]
        worst = max(worst, deviation(start[others], outputs(Data(data.weights, inputs), scale)[others]))
    verdict = Verdict.INVARIANT if worst <= tolerance else Verdict.NOT if math.isfinite(worst) else Verdict.UNKNOWN
    return Result(BATCH, "Independence of the batch", r"x_m \mapsto x_m',\ m \neq n", verdict, worst, tolerance)


def _others(samples: int) -> Iterator[tuple[int, list[int]]]:
    for case in {0, samples - 1} if samples > 1 else ():
        yield case, [n for n in range(samples) if n != case]

"""A test whether a change along an orbit is rounding: small, with jumps everywhere that bisection does not resolve."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from lngeom.checks.subject import Output, deviation

LARGEST = 0.25
"""Change of the outputs above which no digits are left to show an invariance."""

STEPS = 16
"""Steps from one end of the path to the other."""


def is_rounding(path: Callable[[float], Output], resolution: float) -> bool:
    r"""Whether the change of outputs along a path is rounding.

    A real change shows in one of three ways:

    - It is large.
    - It is smooth. The measure is von Neumann's ratio of ranks (Bartels 1982), the mean square successive difference of
      the ranks of an output's values, relative to their variance. It is about 2 for rounding and near 0 for a smooth
      curve. Poles hardly change it.
    - It is smooth on a finer scale, as $\sin 1000a$ is. Then bisection resolves the jumps.

    Args:
        path: outputs, as a function of a number between 0 and 1.
        resolution: width to which an interval is bisected.

    Returns:
        Whether it is rounding.
    """
    places = np.linspace(0, 1, STEPS + 1)
    values = np.stack([path(t) for t in places]).astype(np.float64)
    if not np.all(np.isfinite(values)) or max(deviation(values[0], v) for v in values[1:]) > LARGEST:
        return False
    if _smoothness(values.reshape(len(values), -1)) < 1:
        return False
    chosen = range(0, STEPS, STEPS // 5)
    kept = [_kept(path, places[j], places[j + 1], values[j], values[j + 1], resolution) for j in chosen]
    return float(np.median(kept)) > 0.05


def _smoothness(values: Float[np.ndarray, "S K"]) -> float:
    """Median over outputs of von Neumann's ratio of the ranks; 2 for independent values, 0 for a smooth curve."""
    from scipy.stats import rankdata  # its import takes most of a second

    ranks = rankdata(values, axis=0)
    spread = np.sum(np.square(ranks - ranks.mean(0)), 0)
    moves = spread > 0
    if not np.any(moves):
        return 0.0
    return float(np.median(np.sum(np.square(np.diff(ranks, axis=0)), 0)[moves] / spread[moves]))


def _kept(
    path: Callable[[float], Output], low: float, high: float, first: Output, last: Output, resolution: float
) -> float:
    """The change that remains over an interval after bisection, each time in the half with the larger change."""
    whole = np.max(np.abs(last - first))
    if not whole > 0:
        return 0.0
    while high - low > resolution:
        middle = (low + high) / 2
        between = np.asarray(path(middle), np.float64)
        if np.sum(np.abs(between - first)) >= np.sum(np.abs(last - between)):
            high, last = middle, between
        else:
            low, first = middle, between
    return float(np.max(np.abs(last - first)) / whole)

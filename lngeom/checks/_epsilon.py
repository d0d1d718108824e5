r"""The law of $\epsilon$: outputs as a function of the data's scale, if a constant keeps a denominator from zero.

The constant damps the outputs. With the data scaled by s, every output goes from $y_0$ at s = 0 to $y_\infty$ as

$$y(s) = y_0 + (y_\infty - y_0)\,(1 + (c/s)^q)^{-d/q}.$$

The power q shows the place of $\epsilon$:

- q = 1: added to the scale, $\sigma + \epsilon$.
- q = 2: in the root, $\sqrt{\sigma^2 + \epsilon}$.
- q = 4: in a fourth root.
- $q = \infty$: a clamp, $\max(\sigma, \epsilon)$, without effect above it.

The corner c is $\epsilon^{1/q}/\sigma$. The degree of the numerator is d, which is 1 for a normalized summed input.

The law is compared with the outputs at every scale. Three other causes do not obey it. A bias before the normalization
moves the outputs off the line from $y_0$ to $y_\infty$. Saturation falls with another law. A function of each summed
input alone, such as $x/(1 + |x|)$, can obey the law but normalizes nothing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lngeom.checks.subject import Output, deviation

Path = Callable[[float], Output]
"""Outputs for the data scaled by $2^k$, as a function of k."""

SMALL = 1e-2
"""Largest change of the outputs on ordinary data at which the decay of a change alone identifies an ε."""

STEEP = (math.inf, 16.0, 12.0, 10.0, 8.0, 6.0, 5.0, 4.0)
"""Powers to try where changes vanish too soon to measure theirs."""

BIAS = "a constant added before the normalization, or to a denominator that can vanish, does not scale with the data"
ELEMENTWISE = "every output depends on its own summed input alone and tends to a limit: nothing is normalized"


@dataclass(frozen=True)
class Damping:
    r"""Outputs $y_0 + (y_\infty - y_0)(1 + (c/s)^q)^{-d/q}$ for data scaled by s.

    Attributes:
        start: $y_0$.
        limit: $y_\infty$.
        corner: c of each output; 0 where the output does not move.
        power: q; infinite for a clamp.
        degree: d.
    """

    start: Output
    limit: Output
    corner: Output
    power: float
    degree: int = 1

    def ratio(self, scale: float) -> Output:
        r"""Fraction of the way from $y_0$ to $y_\infty$, for each output."""
        with np.errstate(over="ignore"):
            x = self.corner / scale
            if math.isinf(self.power):
                return np.maximum(x, 1.0) ** -self.degree
            return np.where(
                x > 1,
                (np.maximum(x, 1.0) * (1 + np.maximum(x, 1.0) ** -self.power) ** (1 / self.power)) ** -self.degree,
                (1 + np.minimum(x, 1.0) ** self.power) ** (-self.degree / self.power),
            )

    def at(self, scale: float) -> Output:
        """Outputs for data scaled by s."""
        return self.start + (self.limit - self.start) * self.ratio(scale)


@dataclass(frozen=True)
class Law:
    r"""An $\epsilon$, and how it was recognized.

    Attributes:
        power: q, with which the change falls, $s^{-q}$.
        damping: the law of each output. None where several ε act together or other operations follow: then only the
            decay is known.
        moved: the outputs that the transformation moves.
    """

    power: float
    damping: Damping | None
    moved: np.ndarray

    @property
    def ratio(self) -> float | None:
        r"""Largest $\epsilon/\sigma^q$ for the data as they are; for a clamp $\epsilon/\sigma$."""
        if self.damping is None:
            return None
        largest = float(self.damping.corner.max())
        return largest if math.isinf(self.power) else largest**self.power

    def predicts(self, magnitudes: tuple[float, ...]) -> tuple[float, ...]:
        """Deviations along the orbit; empty where only the decay is known."""
        if self.damping is None:
            return ()
        before = self.damping.at(1.0)
        moved = (np.where(self.moved, self.damping.at(magnitude), before) for magnitude in magnitudes)
        return tuple(deviation(before, after) for after in moved)

    @property
    def place(self) -> str:
        """Where ε stands, in words."""
        if math.isinf(self.power):
            return "the scale is clamped at ε, with no change above it"
        change = f"the change falls as δ^−{self.power:g}"
        if self.damping is None:
            return f"{change}, as with an ε, but several ε act or other operations follow"
        places = {1.0: "ε is added to the scale itself, outside a root", 2.0: "ε is added to a square, inside the root"}
        return f"{change}: {places.get(self.power, f'ε is added to the scale to the power {self.power:g}')}"


def find_law(path: Path, moved: Path, double: bool, elementwise: Callable[[float], bool]) -> tuple[Law | None, str]:
    """The law of ε in how outputs, and the change of outputs, depend on the scale of the data.

    Args:
        path: outputs.
        moved: outputs of the data under a transformation that scales.
        double: whether outputs have the digits of float64; otherwise those of float32.
        elementwise: whether every output depends on its own summed input alone, for data scaled by 2^k.

    Returns:
        The law, or None if the change is not that of an ε; and why not, where that is known.
    """
    top, floor, step = (40, 2e-13, 1.0) if double else (10, 1e-4, 0.5)
    while top > 0 and math.isinf(deviation(path(top), moved(top))):
        top -= 5
    limit, end = path(top), moved(top)
    if not deviation(limit, end) <= 1e-3:
        return None, ""
    falls, corner = [], None
    for k in np.arange(top, -61, -step):
        found = deviation(path(k), moved(k))
        if not found <= 0.05:
            corner = k
            break
        if found > floor:
            falls.append(found)
    if corner is None or not math.isfinite(deviation(path(corner), moved(corner))):
        return None, ""
    power = _power(falls, step)
    if power is None:
        return None, ""
    if elementwise(corner + 4):
        return None, ELEMENTWISE
    tolerance, deep = (1e-3, 40) if double else (1e-2, 16)
    start = path(corner - deep)
    for q in (power,) if math.isfinite(power) else STEEP:
        fit = _damping(path, start, limit, q, corner, tolerance)
        after = _damping(moved, moved(corner - deep), end, q, corner, tolerance) if fit else None
        if fit and after:
            return Law(q, fit, np.abs(after.corner - fit.corner) > 1e-2 * fit.corner), ""
    if math.isinf(power):
        return None, ""
    ordinary = max(deviation(path(0), limit), deviation(path(0), moved(0)))
    damped = _damps(path, start, limit, np.arange(corner - deep, top + 1), tolerance / 1e3)
    if ordinary <= SMALL and (power > 1.5 or damped):
        return Law(power, None, np.ones(limit.shape, bool)), ""
    return None, BIAS if abs(power - 1) < 0.2 else f"the change falls as δ^−{power:g}, but not by the law of ε"


def _power(falls: list[float], step: float) -> float | None:
    """The power with which changes fall; None if it is not one, infinite where they vanish too soon to tell.

    Args:
        falls: changes, the smallest first, none over a twentieth.
        step: octaves between them.

    Returns:
        q, a whole number where it is near one.
    """
    early = [found for found in falls if found <= 0.02]  # beyond, the law itself bends
    if len(early) < 2:
        return math.inf
    slopes = np.log2(np.divide(early[1:], early[:-1])) / step
    power = float(np.median(slopes))
    if power < 0.4 or np.any(np.abs(slopes / power - 1) > 0.12):
        return None
    whole = max(1, round(power))
    return float(whole) if abs(power / whole - 1) < 0.03 else float(f"{power:.3g}")


def _damping(path: Path, start: Output, limit: Output, power: float, corner: float, tolerance: float) -> Damping | None:
    """The damping of outputs along a path; None if they do not obey it."""
    way = limit - start
    far = np.abs(way) >= 1e-2 * np.max(np.abs(way), initial=0.0)
    if not np.all(np.isfinite(way)) or not np.any(way):
        return None

    def come(k: float) -> np.ndarray:
        with np.errstate(all="ignore"):
            return ((path(k) - start) / way)[far]

    low = corner - 8
    early, earlier = come(low), come(low - 2)
    if not (np.all(early > 0) and np.all(earlier > 0) and np.all(early < 1)):
        return None
    degree = round(float(np.median(np.log2(early / earlier) / 2)))
    if degree < 1:
        return None
    with np.errstate(over="ignore"):
        if math.isinf(power):
            corners = 2.0**low * early ** (-1 / degree)
        else:
            corners = 2.0**low * (early ** (-power / degree) - 1) ** (1 / power)
    whole = np.zeros(limit.shape)
    whole[far] = corners
    fit = Damping(start, limit, whole, power, degree)
    for k in np.arange(low - 2, corner + 12, 0.5):
        if not np.all(np.abs(come(k) - fit.ratio(2.0**k)[far]) <= tolerance):
            return None
    return fit


def _damps(path: Path, start: Output, limit: Output, octaves: np.ndarray, tolerance: float) -> bool:
    """Whether the layer takes zero to zero, and outputs only grow on their way to the limit."""
    size = np.max(np.abs(limit))
    if not np.max(np.abs(start)) <= 1e-4 * size:
        return False
    values = np.stack([path(k) for k in octaves]) * np.sign(limit)
    return bool(np.all(np.diff(values, axis=0) >= -tolerance * size))

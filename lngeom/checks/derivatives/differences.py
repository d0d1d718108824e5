"""Derivatives of a function from its values alone: the reference that no rule of differentiation enters.

Along a line the function is interpolated at Chebyshev points of an interval around the point, and the polynomial is
differentiated. The error has two parts, both measured: what the last coefficients of the polynomial contribute, and
rounding of the values. Of many intervals the one of the least error is taken. Mixed derivatives follow by polarization.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Function = Callable[[Float[np.ndarray, " P"]], Float[np.ndarray, " M"]]

NODES = 12
"""Values on an interval."""

DROPPED = 2
"""Coefficients of the polynomial that are left out to measure its error."""

AT = 0.15
"""Where the point lies in the interval [-1, 1]: not in its middle, where a kink such as that of |x| does not show."""

WIDTHS = (0.5, 0.25, 0.125, *(2.0**-k for k in range(4, 17, 2)))
"""Half widths of intervals, for directions of length 1."""

ORDERS = 3

KEPT = 2**27
"""Values on lines that are kept, in bytes: other orders along a line need the same ones."""


class Value(NamedTuple):
    """A derivative and the largest error of its entries, as far as it can be measured."""

    value: Float[np.ndarray, " M"]
    error: float


@functools.cache
def _weights(kept: int) -> Float[np.ndarray, "O K"]:
    """Weights of the values at the Chebyshev points of [-1, 1] for the derivatives at `AT` of orders 0 to 3.

    Args:
        kept: coefficients that are kept, of as many as there are points.
    """
    angles = (2 * np.arange(NODES) + 1) * np.pi / (2 * NODES)
    transform = 2 / NODES * np.cos(np.outer(np.arange(NODES), angles))
    transform[0] /= 2
    transform[kept:] = 0
    found = np.zeros((ORDERS + 1, NODES))
    for n in range(NODES):
        series = np.polynomial.Chebyshev.basis(n)
        found[:, n] = [series.deriv(k)(AT) if k else series(AT) for k in range(ORDERS + 1)]
    return found @ transform


def _nodes() -> Float[np.ndarray, " K"]:
    return np.cos((2 * np.arange(NODES) + 1) * np.pi / (2 * NODES)) - AT


class _Line(NamedTuple):
    """Values at the nodes of an interval, and their size, infinite where one is not finite."""

    values: Float[np.ndarray, "K M"]
    size: float


@dataclass(frozen=True)
class Differences:
    """A function around a point.

    Attributes:
        function: x ↦ f(x), a vector.
        point: x, not empty.
        unit: relative size of the rounding of its values: 2⁻⁵² in float64.
    """

    function: Function
    point: Float[np.ndarray, " P"]
    unit: float = 2.0**-52
    _lines: dict[tuple[bytes, float], _Line] = field(default_factory=dict, repr=False)

    def along(self, direction: Float[np.ndarray, " P"], order: int) -> Value:
        r"""$D^k f(x)[u, …, u]$ for k = `order`.

        Args:
            direction: u.
            order: 1, 2 or 3.

        Returns:
            The derivative, from the interval that gives the least error; the error is infinite where there is none on
            which the function is smooth.
        """
        length = float(np.linalg.norm(direction))
        if length == 0:
            return Value(np.zeros_like(self.function(self.point)), 0.0)
        found = []
        for width in WIDTHS:
            value, cut, rounded = self._on(direction / length, width, order)
            found.append(Value(value, cut + rounded))
            if cut <= rounded:  # on a narrower interval the error by rounding alone is larger
                break
        best = min(found, key=lambda one: one.error)
        return Value(best.value * length**order, best.error * length**order)

    def second(self, first: np.ndarray, other: np.ndarray) -> Value:
        r"""$D^2 f(x)[u, v] = (D^2 f[u+v, u+v] - D^2 f[u-v, u-v]) / 4$."""
        plus, minus = (self.along(first + sign * other, 2) for sign in (1, -1))
        return Value((plus.value - minus.value) / 4, (plus.error + minus.error) / 4)

    def third(self, twice: np.ndarray, other: np.ndarray) -> Value:
        r"""$D^3 f(x)[u, u, v] = (D^3 f[(u+v)^3] - D^3 f[(u-v)^3] - 2 D^3 f[v^3]) / 6$."""
        plus, minus, own = (self.along(d, 3) for d in (twice + other, twice - other, other))
        return Value((plus.value - minus.value - 2 * own.value) / 6, (plus.error + minus.error + 2 * own.error) / 6)

    def _on(self, direction: np.ndarray, width: float, order: int) -> tuple[np.ndarray, float, float]:
        """The derivative from one interval, and its two errors: by the polynomial, and by rounding of the values."""
        values, size = self._line(direction, width)
        if not math.isfinite(size):
            return np.full(values.shape[1:], np.nan), math.inf, 0.0
        whole, shorter = (_weights(kept)[order] for kept in (NODES, NODES - DROPPED))
        cut = float(np.max(np.abs((whole - shorter) @ values), initial=0.0))
        rounded = self.unit * float(np.sum(np.abs(whole))) * size
        return whole @ values / width**order, cut / width**order, rounded / width**order

    def _line(self, direction: np.ndarray, width: float) -> _Line:
        key = (direction.tobytes(), width)
        if key not in self._lines:
            values = np.stack([self.function(self.point + width * t * direction) for t in _nodes()])
            size = float(np.max(np.abs(values), initial=0.0)) if np.all(np.isfinite(values)) else math.inf
            if len(self._lines) * values.nbytes > KEPT:
                self._lines.clear()
            self._lines[key] = _Line(values, size)
        return self._lines[key]


class Stencils(Differences):
    """The same derivatives by central differences and Richardson's extrapolation: a second reference."""

    def along(self, direction: Float[np.ndarray, " P"], order: int) -> Value:
        r"""$D^k f(x)[u, …, u]$ for k = `order`, from the corner of the tableau that changes least."""
        length = float(np.linalg.norm(direction))
        if length == 0:
            return Value(np.zeros_like(self.function(self.point)), 0.0)
        unit, best = direction / length, Value(np.full_like(self.function(self.point), np.nan), math.inf)
        for start in (2.0**-2, 2.0**-6, 2.0**-10, 2.0**-14):
            above: list[np.ndarray] = []
            for halvings in range(5):
                row = [self._stencil(unit, start / 2**halvings, order)]
                for k, former in enumerate(above):
                    row.append(row[-1] + (row[-1] - former) / (4 ** (k + 1) - 1))
                if above:
                    error = float(np.max(np.abs(row[-1] - above[-1]), initial=0.0))
                    best = Value(row[-1], error) if error < best.error else best
                above = row
        return Value(best.value * length**order, best.error * length**order)

    def _stencil(self, direction: np.ndarray, step: float, order: int) -> np.ndarray:
        f = lambda k: self.function(self.point + k * step * direction)  # noqa: E731
        if order == 1:
            return (f(1) - f(-1)) / (2 * step)
        if order == 2:
            return (f(1) - 2 * f(0) + f(-1)) / step**2
        return (f(2) - 2 * f(1) + 2 * f(-1) - f(-2)) / (2 * step**3)

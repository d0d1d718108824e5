r"""Index formulas: the second definition of every method, which is read in several ways.

A formula gives numerator and square of $n = \text{numerator} / \sqrt{\text{square}}$ for a sample and a unit of a
layer. `Readable` says what it may ask the layer for. `lngeom.symbolic.layers` reads it for all sizes and over exact
numbers, `lngeom.methods.readings` over floats and complex numbers, `lngeom.symbolic.modular` over a prime field.

The JAX formula of a method shares nothing with its index formula, so that each checks the other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Values = Callable[..., Any]
Pair = tuple[Any, Any]

H, D, N, G, M, T = ("H", "D", "N", "G", "M", "T")
"""Sizes: units, inputs, samples, groups of units, units of a group, positions of a sample."""


class Readable(Protocol):
    """A layer as formulas see it. Indices are those of a reading; that of a unit may be a pair (group, place)."""

    def W(self, i: Any, d: Any) -> Any:
        """The weight of a unit and an input."""

    def X(self, n: Any, d: Any) -> Any:
        """The input of a sample, or of a pair (sample, position)."""

    def a(self, n: Any, i: Any) -> Any:
        r"""The summed input $\sum_d W_{id} x_{nd}$."""

    def row(self, i: Any) -> Values:
        """The weights of a unit, a function of d."""
        ...

    def case(self, n: Any) -> Values:
        """The inputs of a sample, a function of d."""
        ...

    def total(self, body: Values, size: Any) -> Any:
        """The sum of a body over an index that runs from 1 to a size."""

    def mean(self, body: Values, size: Any) -> Any:
        """The mean of a body over an index that runs from 1 to a size."""

    def size(self, size: Any) -> Any:
        """A size."""

    def stored(self, name: str, i: Any) -> Any:
        """A stored parameter of a unit, or of the method where i is None."""

    def once(self, values: Values) -> Values:
        """The same values, each computed once."""
        ...

    def root(self, value: Any) -> Any:
        """The square root."""

    def largest_squared_singular_value(self) -> Any:
        """σ_max(W)²."""


@dataclass(frozen=True)
class IndexFormula:
    """The index formula of a method, and what a reading must know of it.

    Attributes:
        fraction: (layer, sample, unit, ε) to numerator and square.
        grouped: whether the index of a unit is a pair (p, q), unit q of group p.
        logits: whether the second index of an output is a position s, not a unit.
        positions: positions of a sample where its index is a pair (n, t); 1 where samples have none.
        smallest: smallest non-degenerate sizes (H, D, N), H for each group.
        groups: number of groups of concrete weights.
        least_units: fewest units a group must have where ε = 0.
        blocks: number of groups that actions on groups of units tell apart.
        outer: an increasing odd function of the ratio that is the output; "" for none.
        irrational: whether concrete numerators or squares contain roots or absolute values.
        statistics: stored parameters that are statistics of weights and inputs, by their names: (layer, unit) to value.
    """

    fraction: Callable[[Any, Any, Any, Any], Pair]
    grouped: bool = False
    logits: bool = False
    positions: int = 1
    smallest: tuple[int, int, int] = (1, 2, 1)
    groups: int = 1
    least_units: int = 1
    blocks: int = 2
    outer: Literal["", "tanh"] = ""
    irrational: bool = False
    statistics: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = ()


def centred(L: Readable, values: Values, size: Any) -> Values:
    """Deviations from the mean over an index."""
    values = L.once(values)
    average = L.mean(values, size)
    return lambda at: values(at) - average


def standardized(L: Readable, values: Values, size: Any, at: Any, eps: Any) -> Pair:
    """Deviation from the mean over an index, and mean squared deviation plus ε."""
    deviation = centred(L, values, size)
    return deviation(at), L.mean(lambda k: deviation(k) ** 2, size) + eps


def pooled(L: Readable, values: Values, size: Any, at: tuple[Any, Any], eps: Any) -> Pair:
    """The same over positions and another index."""
    values = L.once(values)
    average = L.mean(lambda u: L.mean(lambda v: values(u, v), size), T)
    square = L.mean(lambda u: L.mean(lambda v: (values(u, v) - average) ** 2, size), T)
    return values(*at) - average, square + eps


def dot(L: Readable, left: Values, right: Values, size: Any) -> Any:
    """The sum of products of two families of values."""
    return L.total(lambda k: left(k) * right(k), size)


def ratio(L: Readable, pair: Pair) -> Any:
    """Numerator over the root of the square."""
    return pair[0] / L.root(pair[1])

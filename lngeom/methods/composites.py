r"""Derivatives of outputs that are no quotient with `Slopes`: sums, products and chains of such quotients.

A `Composite` names the parts of an output and writes both derivatives in them. Each part is an index formula, read for
all sizes and over arrays, so that the claims of the topic "derivatives" prove and measure the same formulas.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float

from lngeom.methods.base import AbstractNormalizer
from lngeom.methods.formulas import D, Place, Slopes, Values

SIGMA = r"\sigma"
"""The name of a scale."""


class Parts(Protocol):
    """The parts of an output as formulas see them: names for all sizes, or numbers."""

    @property
    def unit(self) -> Any:
        """The index of the output's unit, in its group."""

    def __call__(self, name: str, *at: Any) -> Any:
        """A part, at indices where it has some."""

    def same(self, y: Any, z: Any) -> Any:
        """1 where two indices are the same, else 0."""

    def total(self, body: Values, size: str) -> Any:
        """The sum of a body over an index that runs from 1 to a size."""

    def size(self, size: str) -> Any:
        """A size."""


@dataclass(frozen=True)
class Part:
    """A part of an output.

    Attributes:
        meaning: what it is, as LaTeX; "" where the name says it.
        value: (layer, sample, unit, ε) to a number, or to values by their indices.
    """

    meaning: str
    value: Callable[[Any, Any, Any, Any], Any]


@dataclass(frozen=True)
class Composite:
    """Derivatives of an output, written in its parts. They hold for every ε ≥ 0.

    Attributes:
        by: arguments by their letters, "W" for weights, else summed inputs: (sample, unit, place) to the two indices
            of an argument that moves the output.
        runs: sizes to which the indices of a place run. A place of several is a tuple.
        parts: parts by their names, as LaTeX.
        whole: (parts) to the output.
        first: letter to first derivative, (parts, y).
        second: two letters to second derivative, (parts, y, z).
        chain: the two links, where it is one.
        solved: weights to numbers of parts that are no index formula: solutions of equations.
        meanings: what those are, as LaTeX.
    """

    by: Mapping[str, Callable[[Any, Any, Place], tuple[Any, Any]]]
    runs: tuple[str, ...]
    parts: Mapping[str, Part]
    whole: Callable[[Any], Any]
    first: Mapping[str, Callable[[Any, Place], Any]]
    second: Mapping[str, Callable[[Any, Place, Place], Any]]
    chain: "Chain | None" = None
    solved: Callable[[Float[np.ndarray, "H D"]], Mapping[str, np.ndarray]] = lambda weights: {}
    meanings: Mapping[str, str] = field(default_factory=dict)

    @property
    def by_weights(self) -> bool:
        """Whether its arguments are weights."""
        return "W" in self.by


def _missing(place: Place) -> Any:
    raise ValueError("slopes by summed inputs are expected of a quotient that has no weights and inputs")


@dataclass(frozen=True)
class Quotient:
    """A part with `Slopes`, as these see it: an `Output`.

    Attributes:
        parts: of the whole output.
        value: its values by their places.
        sigma: its scale.
        count: the number of places.
        place: its own place.
        w: weights over the scale by their places, where slopes speak of weights.
        x: inputs by their places, likewise.
        outer: no function of the ratio.
    """

    parts: Parts
    value: Values
    sigma: Any
    count: Any
    place: Place = ()
    w: Values = _missing
    x: Values = _missing
    outer: str = ""

    def n(self, y: Place) -> Any:
        """Its value at a place."""
        return self.value(y)

    def same(self, y: Place, z: Place) -> Any:
        """1 where two places are the same, else 0."""
        return self.parts.same(y, z)

    def centring(self, y: Place, z: Place) -> Any:
        """The same less 1/count."""
        return self.parts.same(y, z) - 1 / self.count

    def squared_length(self) -> Any:
        """The sum of squares of x."""
        return self.parts.total(lambda d: self.x(d) ** 2, D)

    def stored(self, name: str) -> Any:
        """A part of that name."""
        return self.parts(name)


@dataclass(frozen=True)
class Chain:
    """A method by summed inputs, of another that makes these from the weights of their units.

    Attributes:
        outer: class of the first.
        inner: class of the second.
        slopes: those of both.
        output: (parts) to the output, as a quotient.
        summed: (parts, unit) to a summed input, as a quotient.
    """

    outer: type[AbstractNormalizer]
    inner: type[AbstractNormalizer]
    slopes: tuple[Slopes, Slopes]
    output: Callable[[Parts], Quotient]
    summed: Callable[[Parts, Place], Quotient]

    def first(self, P: Parts, y: Place) -> Any:
        """∂n/∂W_qd = ∂n/∂â_q ∂â_q/∂W_qd."""
        (q, d), (outer, inner) = y, self.slopes
        return outer.first(self.output(P), q) * inner.first(self.summed(P, q), d)

    def second(self, P: Parts, y: Place, z: Place) -> Any:
        """∂²n/∂W_qd∂W_re = ∂²n/∂â_q∂â_r ∂â_q/∂W_qd ∂â_r/∂W_re + [q=r] ∂n/∂â_q ∂²â_q/∂W_qd∂W_qe."""
        (q, d), (r, e), (outer, inner) = y, z, self.slopes
        output, one, other = self.output(P), self.summed(P, q), self.summed(P, r)
        both = outer.second(output, q, r) * inner.first(one, d) * inner.first(other, e)
        return both + P.same(q, r) * outer.first(output, q) * inner.second(one, d, e)

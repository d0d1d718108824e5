r"""Index formulas: the second definition of every method, which is read in several ways.

A formula gives numerator and square of $n = \text{numerator} / \sqrt{\text{square}}$ for a sample and a unit of a
layer. `Readable` says what it may ask the layer for. `lngeom.symbolic.layers` reads it for all sizes and over exact
numbers, `lngeom.methods.readings` over floats and complex numbers, `lngeom.symbolic.modular` over a prime field.

The JAX formula of a method shares nothing with its index formula, so that each checks the other.

`Slopes` say how numerator and scale move, in n and σ, and give both derivatives of n. The claims of the topic
"derivatives" prove them from the index formula.
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


Place = Any
"""Where an argument stands among those that move an output: the indices that run, or in numbers an axis."""


class Output(Protocol):
    """An output n as slopes see it."""

    @property
    def place(self) -> Place:
        """Its own place."""

    @property
    def sigma(self) -> Any:
        """The scale σ."""

    @property
    def outer(self) -> str:
        """The function of the ratio that it is; "" for none."""
        ...

    @property
    def count(self) -> Any:
        """The number of places."""

    def n(self, y: Place) -> Any:
        """n at a place."""

    def same(self, y: Place, z: Place) -> Any:
        """1 where two places are the same, else 0."""

    def centring(self, y: Place, z: Place) -> Any:
        """The same less 1/count."""

    def w(self, y: Place) -> Any:
        """The weight of the unit at a place over σ; the weight less the mean of its row where `Slopes.centred`."""

    def x(self, y: Place) -> Any:
        """The input of the sample at a place; less the mean of the sample where `Slopes.centred`."""

    def squared_length(self) -> Any:
        """The sum of squares of x."""

    def stored(self, name: str) -> Any:
        """A stored parameter of the method."""


@dataclass(frozen=True)
class Slopes:
    r"""How numerator u and scale σ of an output $n = u/\sigma$ move with its arguments, written in n and σ.

    u is linear and σ² quadratic in the arguments. With arguments at places y and z, let $\partial_y\sigma = r v_y$ and
    $\tfrac12\partial_y\partial_z\sigma^2 = r c_{yz}$. Then

    $$\partial_y n = \frac{\partial_y u - r\,n v_y}{\sigma}, \qquad
    \partial_y\partial_z n = \frac{r}{\sigma^2}\,\bigl(n\,(3 r v_y v_z - c_{yz})
    - v_z\,\partial_y u - v_y\,\partial_z u\bigr).$$

    Of $n = \tanh u$ they are $(1 - n^2)\,\partial_y u$ and $-2n(1 - n^2)\,\partial_y u\,\partial_z u$. All hold for
    every ε ≥ 0, with σ and n those of the ε at hand.

    Attributes:
        by: the arguments: "a" for summed inputs, "W" for weights of the unit.
        runs: sizes to which the indices of a place run.
        numerator: (output, y) to ∂u/∂y.
        share: (output) to r; 0 for a constant scale.
        scale: (output, y) to v.
        square: (output, y, z) to c.
        centred: whether w and x are less their means.
    """

    by: Literal["a", "W"]
    runs: tuple[str, ...]
    numerator: Callable[[Any, Place], Any]
    share: Callable[[Any], Any] = lambda P: 0
    scale: Callable[[Any, Place], Any] = lambda P, y: 0
    square: Callable[[Any, Place, Place], Any] = lambda P, y, z: 0
    centred: bool = False

    def first(self, P: Output, y: Place) -> Any:
        """The first derivative ∂n/∂y."""
        n, u, r = P.n(P.place), self.numerator(P, y), self.share(P)
        return (1 - n**2) * u if P.outer else (u - r * n * self.scale(P, y)) / P.sigma

    def second(self, P: Output, y: Place, z: Place) -> Any:
        """The second derivative ∂²n/∂y∂z."""
        n, r = P.n(P.place), self.share(P)
        u_y, u_z, v_y, v_z = (slope(P, at) for slope in (self.numerator, self.scale) for at in (y, z))
        if P.outer:
            return -2 * n * (1 - n**2) * u_y * u_z
        return r * (n * (3 * r * v_y * v_z - self.square(P, y, z)) - u_y * v_z - u_z * v_y) / P.sigma**2


def moment_slopes(*sizes: str, centred: bool = True, mean: bool = True) -> Slopes:
    """Slopes by the summed inputs of a method whose moments run over these sizes.

    Args:
        *sizes: of the indices.
        centred: whether the mean is subtracted.
        mean: whether σ² is a mean; else a sum.

    Returns:
        The slopes.
    """

    def projected(P: Output, y: Place, z: Place) -> Any:
        return P.centring(y, z) if centred else P.same(y, z)

    return Slopes(
        by="a",
        runs=sizes,
        numerator=lambda P, y: projected(P, P.place, y),
        share=lambda P: 1 / P.count if mean else 1,
        scale=lambda P, y: P.n(y),
        square=projected,
    )


def weight_slopes(share: Callable[[Any], Any], centred: bool = False) -> Slopes:
    """Slopes by the weights of a unit whose σ² is a multiple of the squared length of its row, plus ε.

    Args:
        share: (output) to that multiple.
        centred: whether row and sample are less their means.

    Returns:
        The slopes.
    """
    return Slopes(
        by="W",
        runs=(D,),
        numerator=lambda P, y: P.x(y),
        share=share,
        scale=lambda P, y: P.w(y),
        square=lambda P, y, z: P.centring(y, z) if centred else P.same(y, z),
        centred=centred,
    )


def constant_scale(numerator: Callable[[Any, Place], Any] = lambda P, y: P.same(P.place, y)) -> Slopes:
    """Slopes by the summed inputs of a method whose numerator moves with its own alone, and whose scale does not."""
    return Slopes("a", (H,), numerator)

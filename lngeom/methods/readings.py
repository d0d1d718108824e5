"""Index formulas over arrays: floats, complex numbers, and whatever else has an arithmetic.

Every index of a formula is a named axis, and operations align axes by their names. So all samples and units are
computed at once, and a sum over an index is a sum over an axis.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from lngeom.methods.base import AbstractNormalizer, entry_of
from lngeom.methods.formulas import IndexFormula
from lngeom.methods.page import FORMULAS


class Arithmetic:
    """The arithmetic of entries: that of NumPy. A subclass may have others, whose numbers have `extra` axes at the end.

    Attributes:
        extra: number of axes of one number.
    """

    extra: ClassVar[int] = 0

    def number(self, value: Any) -> np.ndarray:
        """A plain number, as an array without axes."""
        return np.asarray(value)

    def add(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """a + b."""
        return a + b

    def multiply(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """a b."""
        return a * b

    def divide(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """a / b."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return a / b

    def root(self, a: np.ndarray) -> np.ndarray:
        """The square root."""
        return np.sqrt(a)

    def absolute(self, a: np.ndarray) -> np.ndarray:
        """The absolute value; of complex numbers the analytic function that it is next to the real axis."""
        return np.where(np.real(a) < 0, -a, a)

    def tanh(self, a: np.ndarray) -> np.ndarray:
        """The hyperbolic tangent."""
        return np.tanh(a)

    def total(self, a: np.ndarray, axis: int) -> np.ndarray:
        """The sum over an axis."""
        return a.sum(axis)

    def inner(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Inner products over the last axis of both, of all places of a with all of b."""
        return np.tensordot(a, b, (-1, -1))

    def largest_squared_singular_value(self, W: np.ndarray) -> np.ndarray:
        """σ_max(W)²."""
        return np.linalg.eigvalsh((W @ W.T).astype(float))[-1]


FLOATS = Arithmetic()
RUNS = {"n": "N", "t": "T", "s": "T", "i": "H", "p": "G", "q": "M"}
"""Axes of samples and units, and the sizes to which they run."""


class Named:
    """An array whose axes have names.

    Attributes:
        data: entries, the axes in the order of their names.
        axes: names.
        arithmetic: of the entries.
    """

    def __init__(self, data: np.ndarray, axes: Sequence[Any], arithmetic: Arithmetic):
        self.data, self.axes, self.arithmetic = data, tuple(axes), arithmetic

    def aligned(self, axes: Sequence[Any]) -> np.ndarray:
        """The entries with these axes, of length 1 where the array has none of that name."""
        kept = [self.axes.index(axis) for axis in axes if axis in self.axes]
        inner = self.data.shape[len(self.axes) :]
        shape = [self.data.shape[self.axes.index(axis)] if axis in self.axes else 1 for axis in axes]
        order = (*kept, *range(len(self.axes), self.data.ndim))
        return self.data.transpose(order).reshape((*shape, *inner))

    def _with(self, other: Any, operation: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> "Named":
        if not isinstance(other, Named):
            other = Named(self.arithmetic.number(other), (), self.arithmetic)
        axes = self.axes + tuple(axis for axis in other.axes if axis not in self.axes)
        return Named(operation(self.aligned(axes), other.aligned(axes)), axes, self.arithmetic)

    def __add__(self, other: Any) -> "Named":
        return self._with(other, self.arithmetic.add)

    def __mul__(self, other: Any) -> "Named":
        return self._with(other, self.arithmetic.multiply)

    def __truediv__(self, other: Any) -> "Named":
        return self._with(other, self.arithmetic.divide)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> "Named":
        return self * -1

    def __sub__(self, other: Any) -> "Named":
        return self + -other

    def __rsub__(self, other: Any) -> "Named":
        return -self + other

    def __pow__(self, exponent: int) -> "Named":
        return self if exponent == 1 else self * self ** (exponent - 1)

    def __abs__(self) -> "Named":
        return Named(self.arithmetic.absolute(self.data), self.axes, self.arithmetic)

    def total(self, axis: Any) -> "Named":
        """The sum over an axis."""
        rest = [name for name in self.axes if name != axis]
        return Named(self.arithmetic.total(self.data, self.axes.index(axis)), rest, self.arithmetic)


def _none(name: str, each: bool) -> np.ndarray:
    raise ValueError(f"no stored parameter {name!r} was given")


@dataclass(frozen=True)
class Arrays:
    """A layer of arrays that formulas read.

    Attributes:
        weights: W, [H D].
        inputs: X, [N D], or [N T D] where the formula runs over positions.
        formula: whose indices the axes are.
        parameters: (name, whether each unit has one) to a stored parameter.
        arithmetic: of the entries.
        fresh: numbers for the names of new axes.
    """

    weights: np.ndarray
    inputs: np.ndarray
    formula: IndexFormula
    parameters: Callable[[str, bool], np.ndarray] = _none
    arithmetic: Arithmetic = FLOATS
    fresh: Iterator[int] = field(default_factory=count)

    @property
    def axes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the axes of a sample and of a unit."""
        sample = ("n", "t") if self.formula.positions > 1 else ("n",)
        return sample, ("s",) if self.formula.logits else ("p", "q") if self.formula.grouped else ("i",)

    def constant(self, value: Any) -> Named:
        """A number."""
        return Named(self.arithmetic.number(value), (), self.arithmetic)

    def size(self, size: str) -> int:
        """A size."""
        units, groups = len(self.weights), self.formula.groups
        positions = self.inputs.shape[1] if self.formula.positions > 1 else 1
        features = self.weights.shape[1]
        sizes = {"H": units, "D": features, "N": len(self.inputs), "G": groups, "M": units // groups, "T": positions}
        return sizes[size]

    def _entry(self, data: np.ndarray, places: Sequence[Any]) -> Named:
        """The entries at these places: names of axes, or numbers of which the first is 1."""
        chosen = tuple(place - 1 if isinstance(place, int) else slice(None) for place in places)
        return Named(data[chosen], [place for place in places if not isinstance(place, int)], self.arithmetic)

    def W(self, i: Any, d: Any) -> Named:
        """The weights of a unit, or of a pair (group, place)."""
        if not isinstance(i, tuple):
            return self._entry(self.weights, (i, d))
        grouped = self.weights.reshape(self.size("G"), self.size("M"), *self.weights.shape[1:])
        return self._entry(grouped, (*i, d))

    def X(self, n: Any, d: Any) -> Named:
        """The inputs of a sample, or of a pair (sample, position)."""
        return self._entry(self.inputs, (*(n if isinstance(n, tuple) else (n,)), d))

    def a(self, n: Any, i: Any) -> Named:
        """Summed inputs."""
        weights, inputs = self.W(i, ""), self.X(n, "")
        axes = (*weights.axes[:-1], *inputs.axes[:-1])
        return Named(self.arithmetic.inner(weights.data, inputs.data), axes, self.arithmetic)

    def row(self, i: Any) -> Callable[[Any], Named]:
        """The weights of a unit, a function of the input."""
        return lambda d: self.W(i, d)

    def case(self, n: Any) -> Callable[[Any], Named]:
        """The inputs of a sample, a function of the input."""
        return lambda d: self.X(n, d)

    def total(self, body: Callable[[Any], Any], size: str) -> Any:
        """The sum of a body over an index."""
        axis = f"{size}{next(self.fresh)}"
        value = body(axis)
        return value.total(axis) if isinstance(value, Named) and axis in value.axes else value * self.size(size)

    def mean(self, body: Callable[[Any], Any], size: str) -> Any:
        """The mean of a body over an index."""
        return self.total(body, size) / self.size(size)

    def once(self, values: Callable[..., Any]) -> Callable[..., Any]:
        """The same values: a body is called once for all entries."""
        return values

    def stored(self, name: str, i: Any) -> Any:
        """A stored parameter of a unit, or one for all."""
        return Named(self.parameters(name, i is not None), () if i is None else (i,), self.arithmetic)

    def root(self, value: Any) -> Named:
        """The square root."""
        value = value if isinstance(value, Named) else self.constant(value)
        return Named(self.arithmetic.root(value.data), value.axes, self.arithmetic)

    def largest_squared_singular_value(self) -> Named:
        """σ_max(W)²."""
        return Named(self.arithmetic.largest_squared_singular_value(self.weights), (), self.arithmetic)

    def fraction(self, eps: Any = 0) -> tuple[Named, Named]:
        """Numerator and square of all samples and units."""
        sample, unit = self.axes
        n, i = (axes if axes[1:] else axes[0] for axes in (sample, unit))
        parts = self.formula.fraction(self, n, i, eps)
        numerator, square = (part if isinstance(part, Named) else self.constant(part) for part in parts)
        return numerator, square

    def outputs(self, eps: Any = 0) -> np.ndarray:
        """Outputs of all samples and units, [N *T H]."""
        numerator, square = self.fraction(eps)
        found = numerator / self.root(square)
        sample, unit = self.axes
        data = found.aligned((*sample, *unit))
        data = self.arithmetic.tanh(data) if self.formula.outer else data
        inner = data.shape[len(sample) + len(unit) :]
        rows, units = ([self.size(RUNS[axis]) for axis in axes] for axes in self.axes)
        return np.array(np.broadcast_to(data, (*rows, *units, *inner))).reshape(*rows, -1, *inner)


def formula_of(normalizer: AbstractNormalizer) -> IndexFormula:
    """The index formula of a method.

    Raises:
        ValueError: if there is none: a subclass may compute something else.
    """
    formula = entry_of(normalizer, FORMULAS)
    if formula is None:
        raise ValueError(
            f"{type(normalizer).__name__} has no index formula; give its class one with `lngeom.methods.page.indexed`"
        )
    groups = getattr(normalizer, "groups", None)
    return formula if groups is None else replace(formula, groups=groups, blocks=groups)


def square(
    normalizer: AbstractNormalizer, weights: Float[np.ndarray, "H D"], inputs: Float[np.ndarray, "N D"]
) -> Float[np.ndarray, " H"]:
    """σ² of every unit, for a method whose σ is the same for all samples."""
    layer = Arrays(weights, inputs, formula_of(normalizer), lambda name, each: np.asarray(getattr(normalizer, name)))
    return layer.fraction(normalizer.eps)[1].aligned("i")


def normalized(
    normalizer: AbstractNormalizer, weights: Float[np.ndarray, "H D"], inputs: Float[np.ndarray, "N *T D"]
) -> Float[np.ndarray, "N *T H"]:
    """Outputs of a method by its index formula, in the arithmetic of the arrays.

    Args:
        normalizer: the method. Statistics that it stores are taken anew, of these weights and inputs.
        weights: W.
        inputs: X.

    Returns:
        The outputs, or logits [N T T].

    Raises:
        ValueError: if the method has no index formula.
    """
    formula = formula_of(normalizer)
    rows = inputs if formula.positions > 1 else inputs.reshape(-1, inputs.shape[-1])
    statistics = dict(formula.statistics)

    def parameter(name: str, each: bool) -> np.ndarray:
        if name not in statistics:
            return np.asarray(getattr(normalizer, name))
        return statistics[name](Arrays(weights, rows, formula), "i").aligned("i")

    outputs = Arrays(weights, rows, formula, parameter).outputs(normalizer.eps)
    return outputs if formula.positions > 1 else outputs.reshape(*inputs.shape[:-1], -1)

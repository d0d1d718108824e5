"""First and second derivatives of the methods of the table: formulas in n and σ, by numbers and for all sizes.

The formulas stand on the methods' pages (`lngeom.methods.page.SLOPES`, and `COMPOSITES` of sums, products and chains).
Numbers hold them to automatic differentiation of the layer, proofs to the derivatives of its index formula.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lngeom.claims import Problem, Verdict, agree, proves, vanishes
from lngeom.claims.context import Read
from lngeom.claims.evidence import Evidence
from lngeom.claims.registry import Claim, register
from lngeom.methods import METHODS, AbstractNormalizer, readings
from lngeom.methods.base import summed_inputs
from lngeom.methods.composites import Composite
from lngeom.methods.formulas import Place, Slopes
from lngeom.methods.linearization import has_linearization, linearize
from lngeom.methods.page import COMPOSITES, SLOPES, Method
from lngeom.symbolic import composites, derivatives as symbolic
from lngeom.symbolic.derivatives import Order
from lngeom.symbolic.layers import METHODS as INDEXED

TOPIC = "derivatives"
SAMPLES, POSITIONS, UNITS, FEATURES = 4, 3, 6, 5
EPSILONS = (0.0, 0.3)
ARGUMENTS = {"a": "the summed inputs", "W": "the weights"}
ORDERS: tuple[Order, ...] = ("first", "second")
NONE = np.zeros(0)


@dataclass(frozen=True)
class Measured:
    """Outputs that share their arguments in numbers, as `Slopes` see them: a place is an axis, the outputs' own is 0.

    Attributes:
        normalized: n, of every output; a number where the arguments are weights.
        scale: σ, likewise.
        outer: the function of the ratio.
        count: the number K of arguments.
        stored: the stored parameters by name.
        row: w, shape [K]; empty where the arguments are summed inputs.
        case: x, likewise.
    """

    normalized: np.ndarray
    scale: np.ndarray
    outer: str
    count: int
    stored: Callable[[str], np.ndarray]
    row: np.ndarray
    case: np.ndarray
    place: ClassVar[Place] = 0

    def along(self, values: np.ndarray, y: Place) -> np.ndarray:
        """Values along an axis of three."""
        return values.reshape([-1 if axis == y else 1 for axis in range(3)])

    @property
    def sigma(self) -> np.ndarray:
        """The scale σ."""
        return self.along(self.scale, self.place)

    def n(self, y: Place) -> np.ndarray:
        """n at a place."""
        return self.along(self.normalized, y)

    def same(self, y: Place, z: Place) -> np.ndarray:
        """The identity matrix along two axes."""
        return np.eye(self.count).reshape([self.count if axis in {y, z} else 1 for axis in range(3)])

    def centring(self, y: Place, z: Place) -> np.ndarray:
        """The same less 1/K."""
        return self.same(y, z) - 1 / self.count

    def w(self, y: Place) -> np.ndarray:
        """The weights over σ."""
        return self.along(self.row / self.scale, y)

    def x(self, y: Place) -> np.ndarray:
        """The inputs."""
        return self.along(self.case, y)

    def squared_length(self) -> float:
        """‖x‖²."""
        return float(np.sum(self.case**2))

    def derivative(self, slopes: Slopes, order: Order, V: np.ndarray, U: np.ndarray) -> np.ndarray:
        """∂n[V], or ∂²n[V, U], of every output."""
        if order == "first":
            return np.ravel(np.sum(slopes.first(self, 1) * self.along(V, 1), 1))
        return np.ravel(np.sum(slopes.second(self, 1, 2) * self.along(V, 1) * self.along(U, 2), (1, 2)))


@dataclass(frozen=True)
class Numbers:
    """All outputs of a method with their parts in numbers: `Parts` whose indices are names of axes.

    Attributes:
        layer: weights and inputs.
        composite: the method's derivatives in parts.
        eps: ε.
    """

    layer: readings.Arrays
    composite: Composite
    eps: float

    @property
    def axes(self) -> tuple[Any, Any]:
        """Indices of a sample and of a unit."""
        sample, unit = (axes if axes[1:] else axes[0] for axes in self.layer.axes)
        return sample, unit

    @property
    def unit(self) -> str:
        """The axis of a unit in its group."""
        return self.layer.axes[1][-1]

    def __call__(self, name: str, *at: Any) -> readings.Named:
        """A part."""
        solved = self.composite.solved(self.layer.weights)
        if name in solved:
            return readings.Named(solved[name], at, self.layer.arithmetic)
        value = self.composite.parts[name].value(self.layer, *self.axes, self.eps)
        return value(*at) if at else value

    def same(self, y: str, z: str) -> readings.Named:
        """The identity matrix."""
        runs = readings.RUNS | {f"{place}{size}": size for place in "yz" for size in self.composite.runs}
        return readings.Named(np.eye(self.layer.size(runs[y])), (y, z), self.layer.arithmetic)

    def total(self, body: Callable[[Any], Any], size: str) -> readings.Named:
        """A sum."""
        return self.layer.total(body, size)

    def size(self, size: str) -> int:
        """A size."""
        return self.layer.size(size)

    def derivative(self, order: Order, *changes: np.ndarray) -> np.ndarray:
        """∂n[V], or ∂²n[V, U], of all outputs [N *T H] by changes of W: a sum over arguments, or over pairs of them."""
        places = [tuple(f"{letter}{size}" for size in self.composite.runs) for letter in "yz"]
        moved = [replace(self.layer, weights=change) for change in changes]
        found = self.layer.constant(0.0)
        for letters in itertools.product(self.composite.by, repeat=1 if order == "first" else 2):
            arguments = list(zip(letters, (place if place[1:] else place[0] for place in places), moved, strict=False))
            value = self._formula(*(argument[:2] for argument in arguments))
            for letter, place, layer in arguments:
                at = self.composite.by[letter](*self.axes, place)
                value = value * (layer.W if self.composite.by_weights else layer.a)(*at)
            for axis in itertools.chain(*places[: len(letters)]):
                value = value.total(axis)
            found = found + value
        sample, unit = ([self.size(readings.RUNS[axis]) for axis in axes] for axes in self.layer.axes)
        data = found.aligned([*itertools.chain(*self.layer.axes)])
        return np.broadcast_to(data, (*sample, *unit)).reshape(*sample, -1)

    def _formula(self, *arguments: tuple[str, Any]) -> Any:
        """The derivative by one argument, or by two: the order of these does not matter."""
        letters, places = zip(*arguments, strict=True)
        formulas = self.composite.first | self.composite.second  # pyright: ignore
        if "".join(letters) not in formulas:
            letters, places = letters[::-1], places[::-1]
        return formulas["".join(letters)](self, *places)


@dataclass(frozen=True)
class Point:
    """A method at weights and inputs, with two changes of the arguments of its slopes.

    Attributes:
        normalizer: the method.
        weights: W; the identity where the arguments of slopes are summed inputs, which the inputs then are.
        inputs: X.
        directions: V and U, two changes of W.
    """

    normalizer: AbstractNormalizer
    weights: Float[Array, "H D"]
    inputs: Float[Array, "N *T D"]
    directions: tuple[Array, Array]

    def by_autodiff(self, order: Order) -> Array:
        """∂n[V], or ∂²n[V, U], by automatic differentiation of the layer: [N *T H]."""
        V, U = self.directions
        layer = lambda W: self.normalizer(W, self.inputs)
        first = lambda W: jax.jvp(layer, (W,), (V,))[1]
        return first(self.weights) if order == "first" else jax.jvp(first, (self.weights,), (U,))[1]

    def by_formula(self, order: Order) -> np.ndarray:
        """The same by the formula."""
        weights, inputs, *changes = (np.asarray(v) for v in (self.weights, self.inputs, *self.directions))
        layer = readings.Arrays(weights, inputs, readings.formula_of(self.normalizer), self._stored)
        kind = type(self.normalizer)
        if kind in COMPOSITES:
            numbers = Numbers(layer, COMPOSITES[kind], self.normalizer.eps)
            return numbers.derivative(order, *changes[: ORDERS.index(order) + 1])
        return self._by_slopes(SLOPES[kind], order, layer, changes)

    def _by_slopes(
        self, slopes: Slopes, order: Order, layer: readings.Arrays, changes: Sequence[np.ndarray]
    ) -> np.ndarray:
        """The same by the formula in n and σ."""
        weights, inputs = layer.weights, layer.inputs
        axes = tuple(axis for index in layer.axes for axis in index)
        sizes = [readings.RUNS[axis] for axis in axes]
        shape = [layer.size(size) for size in sizes]
        u, square = (np.broadcast_to(part.aligned(axes), shape) for part in layer.fraction(self.normalizer.eps))
        scale = np.sqrt(square)
        n = np.tanh(u / scale) if layer.formula.outer else u / scale
        measured = functools.partial(Measured, outer=layer.formula.outer, stored=self._stored)
        if slopes.by == "W":
            rows, cases = ((v - v.mean(1, keepdims=True) if slopes.centred else v) for v in (weights, inputs))
            found = np.empty(shape)
            for k, i in np.ndindex(*shape):
                P = measured(n[k, i], scale[k, i], count=layer.size("D"), row=rows[i], case=cases[k])
                (found[k, i],) = P.derivative(slopes, order, *(change[i] for change in changes))
            return found
        changes = [np.asarray(summed_inputs(dW, inputs)) for dW in changes]
        runs = [axis for axis, size in enumerate(sizes) if size in slopes.runs]
        last = range(-len(runs), 0)
        count = math.prod(shape[axis] for axis in runs)
        sharing = lambda values: np.moveaxis(values.reshape(shape), runs, last)
        found = [
            measured(row, sigma, count=count, row=NONE, case=NONE).derivative(slopes, order, *both)
            for row, sigma, *both in zip(*(sharing(v).reshape(-1, count) for v in (n, scale, *changes)), strict=True)
        ]
        return np.moveaxis(np.reshape(found, sharing(n).shape), last, runs).reshape(inputs.shape)

    def _stored(self, name: str, each: bool = False) -> np.ndarray:
        """A stored parameter of the method."""
        return np.asarray(getattr(self.normalizer, name))


def point(problem: Problem, method: Method, eps: float) -> Point:
    """A method at random numbers, whatever the data."""
    draw = lambda name, *shape: problem.normal(f"derivatives {name}", *shape)
    of_summed = method.kind in SLOPES and SLOPES[method.kind].by == "a"
    features = UNITS if of_summed or method.square else FEATURES
    weights = jnp.eye(UNITS, dtype=problem.dtype) if of_summed else draw("weights", UNITS, features)
    inputs = draw("inputs", SAMPLES, features)
    if method.kind.needs_positions:
        inputs = draw("inputs", SAMPLES, POSITIONS, features)
    normalizer = replace(method.make(weights, inputs), eps=eps)
    return Point(normalizer, weights, inputs, (draw("V", *weights.shape), draw("U", *weights.shape)))


def derivative_check(method: Method, order: Order) -> Callable[[Problem], Iterator[Evidence]]:
    """The check of a derivative: formula and layer along random directions, with and without ε."""

    def check(problem: Problem) -> Iterator[Evidence]:
        for eps in EPSILONS:
            at = point(problem, method, eps)
            found, expected = at.by_formula(order), at.by_autodiff(order)
            what = f"ε = {eps:g}: the layer's {order} derivative"
            if np.any(found):
                yield agree(f"{what} and the formula", expected, found)
            else:
                yield vanishes(what, expected, scale=float(np.max(np.abs(at.by_autodiff("first")))))
            if order == "first" and has_linearization(at.normalizer):
                closed = linearize(at.normalizer, at.weights, at.inputs, jnp.ones(UNITS, problem.dtype))
                yield agree(f"ε = {eps:g}: that of lg.fisher and the formula", closed.push(at.directions[0]), found)

    return check


def _register() -> None:
    rows = {method.kind: method for method in reversed(METHODS.values())}  # the first row of each class
    for kind in (*SLOPES, *COMPOSITES):
        method, indexed = rows[kind], INDEXED[kind.__name__]
        for order in ORDERS:
            id = f"derivative.{method.name}.{order}"
            if kind in SLOPES:
                slopes = SLOPES[kind]
                by, form = ARGUMENTS[slopes.by], "in n and σ"
                formula = symbolic.statement(indexed, slopes, order)
                proof = functools.partial(symbolic.derivative, indexed, slopes, order)
            else:
                parts = COMPOSITES[kind]
                by, form = ARGUMENTS["W" if parts.by_weights else "a"], "in the parts of n"
                formula = composites.Pieces(indexed, parts).statement(order)
                proof = functools.partial(composites.derivative_in_parts, indexed, parts, order)
            register(
                Claim(
                    id,
                    topic=TOPIC,
                    source="beyond the paper",
                    statement=(
                        f"{method.title}: the {order} derivative by {by} is this formula {form}, for every ε ≥ 0."
                    ),
                    formula=formula,
                    assumptions=("σ > 0", *(("s > σ₂(W)",) if method.name == "sn" else ())),
                    read=Read.OWN,
                    expected=Verdict.HOLDS,
                    check=derivative_check(method, order),
                )
            )
            proves(id)(proof)


_register()

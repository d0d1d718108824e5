"""First and second derivatives of the methods of the table: formulas in n and σ, by numbers and for all sizes.

The formulas stand on the methods' pages (`lngeom.methods.page.SLOPES`). Numbers hold them to automatic differentiation
of the layer, proofs to the derivatives of its index formula. Rows without `Slopes` are no quotient of this form:
spectral norm has a singular value below, the others are sums, products or chains of normalized numbers.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

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
from lngeom.methods.formulas import Place, Slopes
from lngeom.methods.linearization import has_linearization, linearize
from lngeom.methods.page import SLOPES, Method
from lngeom.symbolic import derivatives as symbolic
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
class Point:
    """A method at weights and inputs, with two changes of the arguments of its slopes.

    Attributes:
        normalizer: the method.
        weights: W; the identity where the arguments are summed inputs, which the inputs then are.
        inputs: X.
        directions: two changes of W.
    """

    normalizer: AbstractNormalizer
    weights: Float[Array, "H D"]
    inputs: Float[Array, "N *T D"]
    directions: tuple[Array, Array]

    @property
    def slopes(self) -> Slopes:
        """How its numerator and scale move."""
        return SLOPES[type(self.normalizer)]

    @property
    def changes(self) -> list[Array]:
        """V and U, what the arguments change by: W by the directions, or the summed inputs by what those do to them."""
        return [dW if self.slopes.by == "W" else summed_inputs(dW, self.inputs) for dW in self.directions]

    def by_autodiff(self, order: Order) -> Array:
        """∂n[V], or ∂²n[V, U], by automatic differentiation of the layer: [N *T H]."""
        by_weights, (V, U) = self.slopes.by == "W", self.changes
        layer = lambda at: self.normalizer(*((at, self.inputs) if by_weights else (self.weights, at)))
        at = self.weights if by_weights else self.inputs
        first = lambda at: jax.jvp(layer, (at,), (V,))[1]
        return first(at) if order == "first" else jax.jvp(first, (at,), (U,))[1]

    def by_formula(self, order: Order) -> np.ndarray:
        """The same by the formula in n and σ."""
        weights, inputs, *changes = (np.asarray(v) for v in (self.weights, self.inputs, *self.changes))
        layer = readings.Arrays(weights, inputs, readings.formula_of(self.normalizer), self._stored)
        axes = tuple(axis for index in layer.axes for axis in index)
        sizes = [readings.RUNS[axis] for axis in axes]
        shape = [layer.size(size) for size in sizes]
        u, square = (np.broadcast_to(part.aligned(axes), shape) for part in layer.fraction(self.normalizer.eps))
        scale = np.sqrt(square)
        n = np.tanh(u / scale) if layer.formula.outer else u / scale
        measured = functools.partial(Measured, outer=layer.formula.outer, stored=self._stored)
        if self.slopes.by == "W":
            rows, cases = ((v - v.mean(1, keepdims=True) if self.slopes.centred else v) for v in (weights, inputs))
            found = np.empty(shape)
            for k, i in np.ndindex(*shape):
                P = measured(n[k, i], scale[k, i], count=layer.size("D"), row=rows[i], case=cases[k])
                (found[k, i],) = P.derivative(self.slopes, order, *(change[i] for change in changes))
            return found
        runs = [axis for axis, size in enumerate(sizes) if size in self.slopes.runs]
        last = range(-len(runs), 0)
        count = math.prod(shape[axis] for axis in runs)
        sharing = lambda values: np.moveaxis(values.reshape(shape), runs, last)
        found = [
            measured(row, sigma, count=count, row=NONE, case=NONE).derivative(self.slopes, order, *both)
            for row, sigma, *both in zip(*(sharing(v).reshape(-1, count) for v in (n, scale, *changes)), strict=True)
        ]
        return np.moveaxis(np.reshape(found, sharing(n).shape), last, runs).reshape(inputs.shape)

    def _stored(self, name: str, each: bool = False) -> np.ndarray:
        """A stored parameter of the method."""
        return np.asarray(getattr(self.normalizer, name))


def point(problem: Problem, method: Method, eps: float) -> Point:
    """A method at random numbers, whatever the data."""
    draw = lambda name, *shape: problem.normal(f"derivatives {name}", *shape)
    by_weights = SLOPES[method.kind].by == "W"
    features = FEATURES if by_weights else UNITS
    weights = draw("weights", UNITS, features) if by_weights else jnp.eye(UNITS, dtype=problem.dtype)
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
    for kind, slopes in SLOPES.items():
        method = rows[kind]
        for order in ORDERS:
            id = f"derivative.{method.name}.{order}"
            register(
                Claim(
                    id,
                    topic=TOPIC,
                    source="beyond the paper",
                    statement=(
                        f"{method.title}: the {order} derivative by {ARGUMENTS[slopes.by]} is this formula in n and σ, "
                        "for every ε ≥ 0."
                    ),
                    formula=symbolic.statement(INDEXED[kind.__name__], slopes, order),
                    assumptions=("σ > 0",),
                    read=Read.OWN,
                    expected=Verdict.HOLDS,
                    check=derivative_check(method, order),
                )
            )
            proves(id)(functools.partial(symbolic.derivative, INDEXED[kind.__name__], slopes, order))


_register()

"""The columns of the invariance table as substitutions: for all sizes, and on concrete matrices."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sympy as sp
from sympy import Expr, KroneckerDelta

from lngeom.symbolic import sums
from lngeom.symbolic.layers import Layer, Matrix, Method
from lngeom.symbolic.sums import D, Index, n as this, total

DELTA = sp.Symbol("delta", positive=True)
SHIFT = sums.field("gamma")
UNIT_SCALE = SAMPLE_SCALE = INPUT_SCALE = sums.field("delta", positive=True)
UNIT_SHIFT = SAMPLE_SHIFT = sums.field("c")


@dataclass(frozen=True)
class Action:
    r"""A transformation of weights and inputs.

    Attributes:
        name: identifier, as in `lngeom.transformations`.
        latex: the action.
        moved: the transformed layer, for all sizes.
        concretely: the transformed matrices, given a scale δ, a vector γ, and the method, whose inputs [N·T D] have T
            rows for a sample.
        scale: the factor δ in its general form, a function of sample and unit, if the action has one.
        summed: what the summed inputs become; None where it is not a function of a alone and known shifts.
        needs_positive: whether δ > 0 is part of its definition.
        grouped: whether it tells groups of units apart.
        compares_first: whether only the output of the first sample is to stay.
    """

    name: str
    latex: str
    moved: Callable[[Layer], Layer]
    concretely: Callable[[Matrix, Matrix, Any, Any, Method], tuple[Matrix, Matrix]]
    scale: Callable[[Index, Index], Expr] | None = None
    summed: Callable[[Layer, Index, Index], Expr] | None = None
    needs_positive: bool = field(default=False)
    grouped: bool = False
    compares_first: bool = False

    def factors(self, sample: Index, unit: Index) -> tuple[Expr, ...]:
        """Factors by which a numerator and the root of its square may both change, leaving their ratio alone."""
        scale = self.scale(sample, unit) if self.scale else sp.S.One
        return tuple(dict.fromkeys((sp.S.One, scale, scale**2)))


ACTIONS: dict[str, Action] = {}


def _action(name: str, *args, **kwargs) -> Action:
    if name in ACTIONS:
        raise ValueError(f"action {name} is already defined")
    ACTIONS[name] = Action(name, *args, **kwargs)
    return ACTIONS[name]


def _rows(A: Matrix, count: int, change: Callable[[list[Any]], list[Any]]) -> Matrix:
    """The matrix with its first rows changed."""
    return [*(change(list(row)) for row in A[:count]), *A[count:]]


def _first(index: Index) -> Expr:
    """The sample of (sample, position); the group of (group, unit)."""
    return index[0] if isinstance(index, tuple) else index


def _times(A: Matrix, c: Any) -> Matrix:
    return [[c * v for v in row] for row in A]


def _plus(A: Matrix, gamma: Any) -> Matrix:
    return [[v + s for v, s in zip(row, gamma, strict=True)] for row in A]


WEIGHT_MATRIX_RESCALING = _action(
    "weight_matrix_rescaling",
    r"W \mapsto \delta W",
    lambda L: Layer(lambda i, d: DELTA * L.W(i, d), L.X),
    lambda W, X, delta, gamma, method: (_times(W, delta), X),
    scale=lambda n, i: DELTA,
    summed=lambda L, n, i: DELTA * L.a(n, i),
    needs_positive=True,
)
WEIGHT_MATRIX_RECENTERING = _action(
    "weight_matrix_recentering",
    r"W \mapsto W + \mathbf{1}\gamma^\top",
    lambda L: Layer(lambda i, d: L.W(i, d) + SHIFT(d), L.X),
    lambda W, X, delta, gamma, method: (_plus(W, gamma), X),
    summed=lambda L, n, i: L.a(n, i) + total(lambda d: SHIFT(d) * L.X(n, d), D),
)
WEIGHT_VECTOR_RESCALING = _action(
    "weight_vector_rescaling",
    r"w_i \mapsto \delta_i w_i",
    lambda L: Layer(lambda i, d: UNIT_SCALE(i) * L.W(i, d), L.X),
    lambda W, X, delta, gamma, method: (_rows(W, 1, lambda w: [delta * v for v in w]), X),
    scale=lambda n, i: UNIT_SCALE(i),
    summed=lambda L, n, i: UNIT_SCALE(i) * L.a(n, i),
    needs_positive=True,
)
DATASET_RESCALING = _action(
    "dataset_rescaling",
    r"X \mapsto \delta X",
    lambda L: Layer(L.W, lambda n, d: DELTA * L.X(n, d)),
    lambda W, X, delta, gamma, method: (W, _times(X, delta)),
    scale=lambda n, i: DELTA,
    summed=lambda L, n, i: DELTA * L.a(n, i),
    needs_positive=True,
)
DATASET_RECENTERING = _action(
    "dataset_recentering",
    r"x_n \mapsto x_n + \gamma\ \forall n",
    lambda L: Layer(L.W, lambda n, d: L.X(n, d) + SHIFT(d)),
    lambda W, X, delta, gamma, method: (W, _plus(X, gamma)),
    summed=lambda L, n, i: L.a(n, i) + total(lambda d: L.W(i, d) * SHIFT(d), D),
)
SINGLE_CASE_RESCALING = _action(
    "single_case_rescaling",
    r"x_n \mapsto \delta_n x_n",
    lambda L: Layer(L.W, lambda n, d: SAMPLE_SCALE(_first(n)) * L.X(n, d)),
    lambda W, X, delta, gamma, method: (W, _rows(X, method.positions, lambda x: [delta * v for v in x])),
    scale=lambda n, i: SAMPLE_SCALE(_first(n)),
    summed=lambda L, n, i: SAMPLE_SCALE(_first(n)) * L.a(n, i),
    needs_positive=True,
)
WEIGHT_SIGN_FLIP = _action(
    "weight_sign_flip",
    r"W \mapsto -W",
    lambda L: Layer(lambda i, d: -L.W(i, d), L.X),
    lambda W, X, delta, gamma, method: (_times(W, -1), X),
    summed=lambda L, n, i: -L.a(n, i),
)
SINGLE_CASE_RECENTERING = _action(
    "single_case_recentering",
    r"x_n \mapsto x_n + \gamma_n",
    lambda L: Layer(L.W, lambda n, d: L.X(n, d) + sums.field("Gamma")(_first(n), d)),
    lambda W, X, delta, gamma, method: (
        W,
        _rows(X, method.positions, lambda x: [v + s for v, s in zip(x, gamma, strict=True)]),
    ),
)
SINGLE_CASE_CONSTANT_SHIFT = _action(
    "single_case_constant_shift",
    r"x_n \mapsto x_n + c_n \mathbf{1}",
    lambda L: Layer(L.W, lambda n, d: L.X(n, d) + SAMPLE_SHIFT(_first(n))),
    lambda W, X, delta, gamma, method: (W, _rows(X, method.positions, lambda x: [v + gamma[0] for v in x])),
)
WEIGHT_VECTOR_CONSTANT_SHIFT = _action(
    "weight_vector_constant_shift",
    r"w_i \mapsto w_i + c_i \mathbf{1}_D",
    lambda L: Layer(lambda i, d: L.W(i, d) + UNIT_SHIFT(i), L.X),
    lambda W, X, delta, gamma, method: (_rows(W, 1, lambda w: [v + gamma[0] for v in w]), X),
)
INPUT_RESCALING = _action(
    "input_rescaling",
    r"X \mapsto X\,\mathrm{diag}(s)",
    lambda L: Layer(L.W, lambda n, d: INPUT_SCALE(d) * L.X(n, d)),
    lambda W, X, delta, gamma, method: (W, [[row[0] * delta, *row[1:]] for row in X]),
    needs_positive=True,
)
GROUP_SHIFT = sums.field("gamma")
WEIGHT_GROUP_RESCALING = _action(
    "weight_group_rescaling",
    r"w_i \mapsto \delta_{G(i)} w_i",
    lambda L: Layer(lambda i, d: UNIT_SCALE(_first(i)) * L.W(i, d), L.X),
    lambda W, X, delta, gamma, method: (
        _rows(W, len(W) // method.blocks, lambda w: [delta * v for v in w]),
        X,
    ),
    scale=lambda n, i: UNIT_SCALE(_first(i)),
    needs_positive=True,
    grouped=True,
)
WEIGHT_GROUP_RECENTERING = _action(
    "weight_group_recentering",
    r"w_i \mapsto w_i + \gamma_{G(i)}",
    lambda L: Layer(lambda i, d: L.W(i, d) + GROUP_SHIFT(_first(i), d), L.X),
    lambda W, X, delta, gamma, method: (
        _rows(W, len(W) // method.blocks, lambda w: [v + s for v, s in zip(w, gamma, strict=True)]),
        X,
    ),
    grouped=True,
)
BATCH_INDEPENDENCE = _action(
    "batch_independence",
    r"x_m \mapsto x_m'\ \forall m \neq n",
    lambda L: Layer(L.W, lambda m, d: _others(L, m, d)),
    lambda W, X, delta, gamma, method: (
        W,
        [
            *X[: method.positions],
            *([delta * v + s for v, s in zip(row, gamma, strict=True)] for row in X[method.positions :]),
        ],
    ),
    compares_first=True,
)


def _others(L: Layer, m: Index, d: Index) -> Expr:
    """The input itself for sample n, anything for the others."""
    other = sums.field("Y")(m, d)
    return other + KroneckerDelta(_first(m), this) * (L.X(m, d) - other)

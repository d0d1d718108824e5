r"""Every normalization method twice: for all sizes, in indexed sums, and at concrete sizes over any exact field.

A method is the pair (numerator, square) of $n = \text{numerator} / \sqrt{\text{square}}$. The two definitions of a
method share nothing; proofs use the first, expansions and counterexamples the second. To add a method, state both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy as sp
from sympy import Expr

from lngeom.symbolic.sums import D, Field, H, Index, M, N, field, i, mean, n, p, q, total

EPSILON = sp.Symbol("epsilon", nonnegative=True)


_WEIGHTS, _INPUTS = field("W"), field("X")


@dataclass(frozen=True)
class Layer:
    """The fields a layer is a function of: weights W(i, d) and inputs X(n, d)."""

    W: Field = _WEIGHTS
    X: Field = _INPUTS

    def a(self, n: Index, i: Index) -> Expr:
        r"""Summed input $a_{ni} = \sum_d W_{id} x_{nd}$."""
        return total(lambda d: self.W(i, d) * self.X(n, d), D)

    def towards(self, V: Field, t: Expr) -> "Layer":
        """The layer with weights W + tV."""
        return Layer(lambda i, d: self.W(i, d) + t * V(i, d), self.X)


Pair = tuple[Any, Any]
Matrix = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Method:
    """A normalization method.

    Attributes:
        name: class name in `lngeom.normalizers`.
        fraction: (layer, sample, unit, ε) to numerator and square, for all sizes.
        rows: (W, X, ε) to the numerators and squares of all samples and units, for concrete entries.
        unit: index of a unit: i, or (p, q) for unit q of group p.
        smallest: smallest non-degenerate sizes (H, D, N), H for each group.
        groups: number of groups in concrete definitions.
        least_units: fewest units a group must have where ε = 0.
        sample: index of a sample: n, or (n, t) for its position t.
        positions: rows of concrete inputs for one sample.
        blocks: number of groups that actions on groups of units tell apart.
        outer: an increasing odd function of the ratio that is the output.
        irrational: whether concrete numerators or squares contain roots.
    """

    name: str
    fraction: Callable[[Layer, Index, Index, Expr], tuple[Expr, Expr]]
    rows: Callable[[Matrix, Matrix, Any], list[list[Pair]]]
    unit: Index
    smallest: tuple[int, int, int] = (1, 2, 1)
    groups: int = 1
    least_units: int = 1
    sample: Index = n
    positions: int = 1
    blocks: int = 2
    outer: Callable[[Any], Any] = lambda ratio: ratio
    irrational: bool = False

    def square(
        self, layer: Layer, sample: Index | None = None, unit: Index | None = None, eps: Expr = sp.S.Zero
    ) -> Expr:
        """σ² of Eq. 5, ε included."""
        return self.fraction(layer, sample or self.sample, unit or self.unit, eps)[1]

    def numerator(
        self, layer: Layer, sample: Index | None = None, unit: Index | None = None, eps: Expr = sp.S.Zero
    ) -> Expr:
        """The numerator a − μ of Eq. 5."""
        return self.fraction(layer, sample or self.sample, unit or self.unit, eps)[0]

    def __call__(
        self, layer: Layer, sample: Index | None = None, unit: Index | None = None, eps: Expr = sp.S.Zero
    ) -> Expr:
        """The normalized summed input n of a sample and a unit."""
        numerator, square = self.fraction(layer, sample or self.sample, unit or self.unit, eps)
        return self.outer(numerator / sp.sqrt(square))

    def exactly(self, W: Matrix, X: Matrix, eps: Any = 0) -> sp.ImmutableMatrix:
        """Normalized summed inputs [N H] of exact weights and inputs.

        Raises:
            ZeroDivisionError: if a σ is zero.
        """
        rows = self.rows(sp.Matrix(W).tolist(), sp.Matrix(X).tolist(), sp.sympify(eps))
        if any(square == 0 for row in rows for _, square in row):
            raise ZeroDivisionError(f"{self.name}: zero variance")
        return sp.ImmutableMatrix([[self.outer(num / sp.sqrt(square)) for num, square in row] for row in rows])


METHODS: dict[str, Method] = {}


def _standardized(values: Callable[[Expr], Expr], size: Expr, at: Expr, eps: Expr) -> tuple[Expr, Expr]:
    """Deviation from the mean over an index, and mean squared deviation plus ε."""
    average = mean(values, size)
    return values(at) - average, mean(lambda index: (values(index) - average) ** 2, size) + eps


def _standardized_list(values: Sequence[Any], eps: Any) -> list[Pair]:
    """The same for numbers, by another formula: mean of squares minus square of mean."""
    size = len(values)
    average = sum(values) / size
    square = sum(v * v for v in values) / size - average * average + eps
    return [(v - average, square) for v in values]


def _summed(W: Matrix, X: Matrix) -> list[list[Any]]:
    return [[sum(w * x for w, x in zip(row, case, strict=True)) for row in W] for case in X]


def _transposed(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _method(name: str, fraction, rows, unit: Index = i, **kwargs) -> Method:
    if name in METHODS:
        raise ValueError(f"method {name} is already defined")
    METHODS[name] = Method(name, fraction, rows, unit, **kwargs)
    return METHODS[name]


def _dot(u: Sequence[Any], v: Sequence[Any]) -> Any:
    return sum(a * b for a, b in zip(u, v, strict=True))


STORED_MEAN, STORED_VARIANCE = field("m"), field("v", positive=True)

IDENTITY = _method(
    "Identity",
    lambda L, n, i, eps: (L.a(n, i), sp.S.One),
    lambda W, X, eps: [[(a, 1) for a in row] for row in _summed(W, X)],
)
BATCH_NORM = _method(
    "BatchNorm",
    lambda L, n, i, eps: _standardized(lambda m: L.a(m, i), N, n, eps),
    lambda W, X, eps: _transposed([_standardized_list(a, eps) for a in _transposed(_summed(W, X))]),
    smallest=(1, 2, 3),
)
BATCH_NORM_EVALUATION = _method(
    "BatchNormEvaluation",
    lambda L, n, i, eps: (L.a(n, i) - STORED_MEAN(i), STORED_VARIANCE(i) + eps),
    lambda W, X, eps: [[(a - 1, 1 + eps) for a in row] for row in _summed(W, X)],
)
WEIGHT_NORM = _method(
    "WeightNorm",
    lambda L, n, i, eps: (L.a(n, i), total(lambda d: L.W(i, d) ** 2, D) + eps),
    lambda W, X, eps: [[(_dot(w, x), _dot(w, w) + eps) for w in W] for x in X],
)
LAYER_NORM = _method(
    "LayerNorm",
    lambda L, n, i, eps: _standardized(lambda j: L.a(n, j), H, i, eps),
    lambda W, X, eps: [_standardized_list(a, eps) for a in _summed(W, X)],
    smallest=(3, 2, 1),
    least_units=2,
)
RMS_NORM = _method(
    "RMSNorm",
    lambda L, n, i, eps: (L.a(n, i), mean(lambda j: L.a(n, j) ** 2, H) + eps),
    lambda W, X, eps: [[(a, _dot(row, row) / len(row) + eps) for a in row] for row in _summed(W, X)],
    smallest=(2, 2, 1),
)


def group_norm(groups: int) -> Method:
    """Group norm, for all sizes and, in concrete definitions, for so many groups."""

    def rows(W: Matrix, X: Matrix, eps: Any) -> list[list[Pair]]:
        size = len(W) // groups
        blocks = [slice(start, start + size) for start in range(0, len(W), size)]
        return [[pair for block in blocks for pair in _standardized_list(a[block], eps)] for a in _summed(W, X)]

    return Method(
        "GroupNorm",
        lambda L, n, i, eps: _standardized(lambda s: L.a(n, (i[0], s)), M, i[1], eps),
        rows,
        (p, q),
        smallest=(3, 2, 1),
        groups=groups,
        blocks=groups,
        least_units=2,
    )


GROUP_NORM = METHODS["GroupNorm"] = group_norm(2)
PRE_LAYER_NORM = _method(
    "PreLayerNorm",
    lambda L, n, i, eps: (
        total(lambda d: L.W(i, d) * (L.X(n, d) - mean(lambda e: L.X(n, e), D)), D),
        _standardized(lambda d: L.X(n, d), D, sp.S.One, eps)[1],
    ),
    lambda W, X, eps: [
        [(_dot(w, [u for u, _ in pairs]), pairs[0][1]) for w in W] for pairs in (_standardized_list(x, eps) for x in X)
    ],
    smallest=(1, 3, 1),
)
PRE_RMS_NORM = _method(
    "PreRMSNorm",
    lambda L, n, i, eps: (L.a(n, i), mean(lambda d: L.X(n, d) ** 2, D) + eps),
    lambda W, X, eps: [[(_dot(w, x), _dot(x, x) / len(x) + eps) for w in W] for x in X],
)
COSINE = _method(
    "CosineNorm",
    lambda L, n, i, eps: (
        L.a(n, i),
        total(lambda d: L.W(i, d) ** 2, D) * total(lambda d: L.X(n, d) ** 2, D) + eps,
    ),
    lambda W, X, eps: [[(_dot(w, x), _dot(w, w) * _dot(x, x) + eps) for w in W] for x in X],
)


def _off_mean(values: Field, row: Index) -> Callable[[Expr], Expr]:
    return lambda d: values(row, d) - mean(lambda e: values(row, e), D)


CENTERED_COSINE = _method(
    "PearsonCorrelation",
    lambda L, n, i, eps: (
        total(lambda d: _off_mean(L.W, i)(d) * _off_mean(L.X, n)(d), D),
        total(lambda d: _off_mean(L.W, i)(d) ** 2, D) * total(lambda d: _off_mean(L.X, n)(d) ** 2, D) + eps,
    ),
    lambda W, X, eps: [[_correlation(w, x, eps) for w in W] for x in X],
    smallest=(1, 3, 1),
)
WEIGHT_STANDARDIZATION = _method(
    "WeightStandardization",
    lambda L, n, i, eps: (
        total(lambda d: _off_mean(L.W, i)(d) * L.X(n, d), D),
        mean(lambda d: _off_mean(L.W, i)(d) ** 2, D) + eps,
    ),
    lambda W, X, eps: [
        [(_dot([u for u, _ in pairs], x), pairs[0][1]) for pairs in (_standardized_list(w, eps) for w in W)] for x in X
    ],
    smallest=(1, 3, 1),
)


def _correlation(w: Sequence[Any], x: Sequence[Any], eps: Any) -> Pair:
    w_pairs, x_pairs = _standardized_list(w, 0), _standardized_list(x, 0)
    numerator = _dot([u for u, _ in w_pairs], [u for u, _ in x_pairs])
    return numerator, len(w) ** 2 * w_pairs[0][1] * x_pairs[0][1] + eps

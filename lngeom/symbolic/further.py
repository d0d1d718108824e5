"""The further methods of the extended table, stated twice as in `layers`: over positions, of weights, of attention."""

from collections.abc import Callable
from typing import Any

import sympy as sp
from sympy import Expr

from lngeom.symbolic.layers import (
    GROUP_NORM,
    LAYER_NORM,
    METHODS,
    WEIGHT_STANDARDIZATION,
    Layer,
    Matrix,
    Method,
    Pair,
    _dot,
    _method,
    _standardized,
    _standardized_list,
    _summed,
    group_norm,
)
from lngeom.symbolic.sums import D, H, Index, M, N, T, field, mean, n, p, q, s, t, total

STORED_SQUARE = field("psi2", positive=True)
STORED_BIAS = field("c")
SLOPE = sp.Symbol("alpha", positive=True)
DIRECTION = field("v")


def _root(square: Any) -> Expr:
    """A root from which squares of positive factors are taken out."""
    return sp.sqrt(sp.factor(sp.sympify(square)))


def _by_sample(rows: Matrix, positions: int) -> list[list[Any]]:
    """Rows [N·T …] as N lists of T rows."""
    return [list(rows[start : start + positions]) for start in range(0, len(rows), positions)]


def _pooled(values: Callable[[Expr, Expr], Expr], size: Expr, at: tuple[Expr, Expr], eps: Expr) -> tuple[Expr, Expr]:
    """Deviation from the mean over positions and units, and mean squared deviation plus ε."""
    average = mean(lambda u: mean(lambda v: values(u, v), size), T)
    square = mean(lambda u: mean(lambda v: (values(u, v) - average) ** 2, size), T)
    return values(*at) - average, square + eps


def _pooled_rows(W: Matrix, X: Matrix, eps: Any, positions: int, groups: int) -> list[list[Pair]]:
    size = len(W) // groups
    pairs: list[list[Pair]] = []
    for sample in _by_sample(_summed(W, X), positions):
        rows: list[list[Pair]] = [[] for _ in sample]
        for start in range(0, len(W), size):
            flat = _standardized_list([a for row in sample for a in row[start : start + size]], eps)
            for place, row in enumerate(rows):
                row += flat[place * size : (place + 1) * size]
        pairs += rows
    return pairs


_method(
    "PooledLayerNorm",
    lambda L, n, i, eps: _pooled(lambda u, j: L.a((n[0], u), j), H, (n[1], i), eps),
    lambda W, X, eps: _pooled_rows(W, X, eps, 2, 1),
    smallest=(2, 2, 1),
    sample=(n, t),
    positions=2,
)
_method(
    "InstanceNorm",
    lambda L, n, i, eps: _standardized(lambda u: L.a((n[0], u), i), T, n[1], eps),
    lambda W, X, eps: _pooled_rows(W, X, eps, 3, len(W)),
    smallest=(1, 2, 1),
    sample=(n, t),
    positions=3,
)


def spatial_group_norm(groups: int) -> Method:
    """Group norm over positions too, for all sizes and, in concrete definitions, for so many groups."""
    return Method(
        "SpatialGroupNorm",
        lambda L, n, i, eps: _pooled(lambda u, k: L.a((n[0], u), (i[0], k)), M, (n[1], i[1]), eps),
        lambda W, X, eps: _pooled_rows(W, X, eps, 2, groups),
        (p, q),
        smallest=(2, 2, 1),
        groups=groups,
        blocks=groups,
        sample=(n, t),
        positions=2,
    )


METHODS["SpatialGroupNorm"] = spatial_group_norm(2)

_method(
    "BiasedLayerNorm",
    lambda L, n, i, eps: _standardized(lambda j: L.a(n, j) + STORED_BIAS(j), H, i, eps),
    lambda W, X, eps: [_standardized_list([a + k for k, a in enumerate(row)], eps) for row in _summed(W, X)],
    smallest=(3, 2, 1),
    least_units=2,
)
_method(
    "ScaleNorm",
    lambda L, n, i, eps: (L.a(n, i), total(lambda j: L.a(n, j) ** 2, H) + eps),
    lambda W, X, eps: [[(a, _dot(row, row) + eps) for a in row] for row in _summed(W, X)],
    smallest=(2, 2, 1),
)
_method(
    "PowerNormEvaluation",
    lambda L, n, i, eps: (L.a(n, i), STORED_SQUARE(i) + eps),
    lambda W, X, eps: [[(a, 1 + eps) for a in row] for row in _summed(W, X)],
)
_method(
    "DynamicTanh",
    lambda L, n, i, eps: (SLOPE * L.a(n, i), sp.S.One),
    lambda W, X, eps: [[(a, 1) for a in row] for row in _summed(W, X)],
    outer=sp.tanh,
)


def _largest_squared_singular_value(W: Matrix) -> Expr:
    """λ_max(WᵀW) of a matrix with two columns."""
    first, second = zip(*W, strict=True)
    trace = _dot(first, first) + _dot(second, second)
    determinant = _dot(first, first) * _dot(second, second) - _dot(first, second) ** 2
    return (sp.sympify(trace) + _root(trace * trace - 4 * determinant)) / 2


# σ_max² is the largest Rayleigh quotient: what scales it for every direction v scales its maximum.
_method(
    "SpectralNorm",
    lambda L, n, i, eps: (L.a(n, i), total(lambda j: total(lambda d: L.W(j, d) * DIRECTION(d), D) ** 2, H) + eps),
    lambda W, X, eps: [[(a, _largest_squared_singular_value(W) + eps) for a in row] for row in _summed(W, X)],
    smallest=(2, 2, 1),
    irrational=True,
)


def _standardized_weights(W: Matrix, eps: Any) -> list[list[Any]]:
    return [[u / _root(square) for u, square in _standardized_list(w, eps)] for w in W]


def weight_standardized_group_norm(groups: int) -> Method:
    """Weight standardization and then group norm, in concrete definitions for so many groups."""
    standardized = WEIGHT_STANDARDIZATION.fraction
    after = group_norm(groups)

    def value(L: Layer, n: Index, unit: Index, eps: Expr) -> Expr:
        numerator, square = standardized(L, n, unit, eps)
        return numerator / sp.sqrt(square)

    return Method(
        "WeightStandardizedGroupNorm",
        lambda L, n, i, eps: _standardized(lambda k: value(L, n, (i[0], k), eps), M, i[1], eps),
        lambda W, X, eps: after.rows(_standardized_weights(W, eps), X, eps),
        GROUP_NORM.unit,
        smallest=(3, 3, 1),
        groups=groups,
        blocks=groups,
        least_units=2,
        irrational=True,
    )


METHODS["WeightStandardizedGroupNorm"] = weight_standardized_group_norm(2)


def _standardized_inputs(X: Matrix, eps: Any) -> list[list[Any]]:
    columns = [[u / _root(square) for u, square in _standardized_list(x, eps)] for x in zip(*X, strict=True)]
    return [list(row) for row in zip(*columns, strict=True)]


def _standardized_input(L: Layer, n: Index, d: Expr, eps: Expr) -> Expr:
    numerator, square = _standardized(lambda m: L.X(m, d), N, n, eps)
    return numerator / sp.sqrt(square)


_method(
    "PreBatchNorm",
    lambda L, n, i, eps: (total(lambda d: L.W(i, d) * _standardized_input(L, n, d, eps), D), sp.S.One),
    lambda W, X, eps: [[(a, 1) for a in row] for row in _summed(W, _standardized_inputs(X, eps))],
    smallest=(1, 2, 3),
    irrational=True,
)
_method(
    "ResidualLayerNorm",
    lambda L, n, i, eps: (L.X(n, i) + LAYER_NORM(L, n, i, eps), sp.S.One),
    lambda W, X, eps: [
        [(x + num / _root(square), 1) for x, (num, square) in zip(case, pairs, strict=True)]
        for case, pairs in zip(X, LAYER_NORM.rows(W, X, eps), strict=True)
    ],
    smallest=(4, 4, 1),
    least_units=2,
    irrational=True,
)


# Unit i of the queries is row (i, 0) of W, unit i of the keys row (i, 1); the output at (t, s) is a logit.
def _query(L: Layer, n: Index, i: Expr) -> Expr:
    return L.a(n, (i, sp.S.Zero))


def _key(L: Layer, n: Index, i: Expr) -> Expr:
    return L.a(n, (i, sp.S.One))


def _logit(queries: Callable[[Expr], Expr], keys: Callable[[Expr], Expr], eps: Expr) -> tuple[Expr, Expr]:
    product = total(lambda j: queries(j) * keys(j), H)
    return product, (total(lambda j: queries(j) ** 2, H) + eps) * (total(lambda j: keys(j) ** 2, H) + eps)


def _centred(values: Callable[[Expr], Expr]) -> Callable[[Expr], Expr]:
    return lambda j: values(j) - mean(values, H)


def _logit_rows(centred: bool, positions: int = 2):
    def rows(W: Matrix, X: Matrix, eps: Any) -> list[list[Pair]]:
        half = len(W) // 2
        scale = half if centred else 1

        def vector(values: list[Any]) -> tuple[list[Any], Any]:
            if not centred:
                return values, _dot(values, values) + eps
            pairs = _standardized_list(values, 0)
            return [u for u, _ in pairs], scale * pairs[0][1] + eps

        pairs = []
        for sample in _by_sample(_summed(W, X), positions):
            queries, keys = ([vector(row[part]) for row in sample] for part in (slice(half), slice(half, None)))
            pairs += [[(_dot(a, b), u * v) for b, v in keys] for a, u in queries]
        return pairs

    return rows


_method(
    "QueryKeyNorm",
    lambda L, n, i, eps: _logit(lambda j: _query(L, n, j), lambda j: _key(L, (n[0], i), j), eps),
    _logit_rows(centred=False),
    s,
    smallest=(2, 2, 1),
    groups=2,
    blocks=4,
    sample=(n, t),
    positions=2,
)
_method(
    "QueryKeyLayerNorm",
    lambda L, n, i, eps: _logit(_centred(lambda j: _query(L, n, j)), _centred(lambda j: _key(L, (n[0], i), j)), eps),
    _logit_rows(centred=True),
    s,
    smallest=(3, 2, 1),
    groups=2,
    blocks=4,
    least_units=2,
    sample=(n, t),
    positions=2,
)
GROUPED: dict[str, Callable[[int], Method]] = {
    "GroupNorm": group_norm,
    "SpatialGroupNorm": spatial_group_norm,
    "WeightStandardizedGroupNorm": weight_standardized_group_norm,
}
"""Methods with groups, for any number of them."""

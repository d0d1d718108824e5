r"""Every normalization method as one formula in index notation, read for all sizes and over exact numbers.

A method is the pair (numerator, square) of $n = \text{numerator} / \sqrt{\text{square}}$, a function of a `Layer`. Over
symbols its sums run to H, D and N; over matrices they are added up. The first reading goes through normal forms, the
second through exact arithmetic and expansion.

`lngeom.normalizers` defines the same methods in JAX and shares nothing with these formulas: it keeps digits, has
derivatives and explains errors, and each definition checks the other. A test compares every method under every
transformation at exact points.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field as attribute
from typing import Any

import sympy as sp
from sympy import Expr

from lngeom.symbolic import sums
from lngeom.symbolic.sums import FREE_INDICES, D, Field, G, H, Index, M, N, T, field, i, n, p, q, s, t

EPSILON = sp.Symbol("epsilon", nonnegative=True)
SLOPE = sp.Symbol("alpha", positive=True)
STORED_MEAN, STORED_VARIANCE = field("m"), field("v", positive=True)
STORED_SQUARE, STORED_BIAS = field("psi2", positive=True), field("beta")
DIRECTION = field("v")
_WEIGHTS, _INPUTS = field("W"), field("X")

Matrix = Sequence[Sequence[Any]]
Values = Callable[..., Any]
Pair = tuple[Any, Any]


@dataclass(frozen=True)
class Layer:
    """What a method is a function of.

    Attributes:
        W: weights W(i, d).
        X: inputs X(n, d).
        sizes: numbers for H, D, N, …; empty for all sizes.
    """

    W: Field = _WEIGHTS
    X: Field = _INPUTS
    sizes: Mapping[Expr, int] = attribute(default_factory=dict)

    def total(self, body: Callable[[Any], Any], size: Expr) -> Any:
        """The sum of a body over an index that runs from 1 to a size."""
        return sum(map(body, range(1, self.sizes[size] + 1))) if self.sizes else sums.total(body, size)

    def mean(self, body: Callable[[Any], Any], size: Expr) -> Any:
        """The mean of a body over an index that runs from 1 to a size."""
        return self.total(body, size) / self.size(size)

    def size(self, size: Expr) -> Any:
        """A size: its number, or its symbol."""
        return self.sizes.get(size, size)

    def stored(self, values: Field, i: Index) -> Any:
        """A stored parameter of a unit: a symbol for all sizes, the unit's number in numbers."""
        return i if self.sizes else values(i)

    def once(self, values: Values) -> Values:
        """The same values, in numbers computed only once."""
        return functools.cache(values) if self.sizes else values

    def row(self, i: Index) -> Values:
        r"""The weights $w_i$ of a unit."""
        return lambda d: self.W(i, d)

    def case(self, n: Index) -> Values:
        r"""The inputs $x_n$ of a case."""
        return lambda d: self.X(n, d)

    @functools.cached_property
    def a(self) -> Values:
        r"""Summed inputs $a_{ni} = \sum_d W_{id} x_{nd}$, a function of n and i."""
        return self.once(lambda n, i: self.total(lambda d: self.W(i, d) * self.X(n, d), D))

    def towards(self, V: Field, t: Expr) -> "Layer":
        """The layer with weights W + tV."""
        return Layer(lambda i, d: self.W(i, d) + t * V(i, d), self.X)


@dataclass(frozen=True)
class Method:
    """A normalization method.

    Attributes:
        name: class name in `lngeom.normalizers`.
        fraction: (layer, sample, unit, ε) to numerator and square.
        unit: index of a unit: i, or (p, q) for unit q of group p.
        smallest: smallest non-degenerate sizes (H, D, N), H for each group.
        groups: number of groups of concrete weights.
        least_units: fewest units a group must have where ε = 0.
        sample: index of a sample: n, or (n, t) for its position t.
        positions: rows of concrete inputs for one sample.
        blocks: number of groups that actions on groups of units tell apart.
        outer: an increasing odd function of the ratio that is the output.
        irrational: whether concrete numerators or squares contain roots.
        own: whether it is a user's: its formula is the numerator, and the square is 1.
    """

    name: str
    fraction: Callable[[Layer, Any, Any, Any], Pair]
    unit: Index = i
    smallest: tuple[int, int, int] = (1, 2, 1)
    groups: int = 1
    least_units: int = 1
    sample: Index = n
    positions: int = 1
    blocks: int = 2
    outer: Callable[[Any], Any] = lambda ratio: ratio
    irrational: bool = False
    own: bool = False

    @property
    def indices(self) -> str:
        """Those of an output in formulas, `_{ni}` where a sample has one index and a unit has one."""
        both = (index if isinstance(index, tuple) else (index,) for index in (self.sample, self.unit))
        letters = "".join(str(part) for index in both for part in index)
        return f"_{{{letters}}}"

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

    def rows(self, W: Matrix, X: Matrix, eps: Any) -> list[list[Pair]]:
        """Numerators and squares of all samples and units, at concrete weights [H D] and inputs [N·T D]."""
        size = len(W) // self.groups
        sizes = {H: len(W), D: len(X[0]), N: len(X) // self.positions, G: self.groups, M: size, T: self.positions}
        layer = Layer(_entries(W, size), _entries(X, self.positions), sizes)
        samples, units = (_places(index, sizes) for index in (self.sample, self.unit))
        rows = [[self.fraction(layer, sample, unit, eps) for unit in units] for sample in samples]
        if not self.irrational:
            return rows
        return [[(sp.expand(numerator), sp.expand(square)) for numerator, square in row] for row in rows]

    def exactly(self, W: Matrix, X: Matrix, eps: Any = 0) -> sp.ImmutableMatrix:
        """Normalized summed inputs [N H] of exact weights and inputs.

        Raises:
            ZeroDivisionError: if a σ is zero.
        """
        rows = self.rows(sp.Matrix(W).tolist(), sp.Matrix(X).tolist(), sp.sympify(eps))
        if any(square == 0 for row in rows for _, square in row):
            raise ZeroDivisionError(f"{self.name}: zero variance")
        return sp.ImmutableMatrix([[self.outer(num / sp.sqrt(square)) for num, square in row] for row in rows])


def _entries(A: Matrix, size: int) -> Field:
    """A matrix as a field: row i, or row (p, q), the q-th of the p-th block of rows of a size."""
    return lambda row, d: A[(row[0] - 1) * size + row[1] - 1 if isinstance(row, tuple) else row - 1][d - 1]


def _places(index: Index, sizes: Mapping[Expr, int]) -> list[Any]:
    """The values of an index, or of a pair of indices."""
    if isinstance(index, tuple):
        return list(itertools.product(*(_places(part, sizes) for part in index)))
    return list(range(1, sizes[FREE_INDICES[index]] + 1))  # pyright: ignore


METHODS: dict[str, Method] = {}


def _method(name: str, fraction: Callable[[Layer, Any, Any, Any], Pair], **kwargs: Any) -> Method:
    if name in METHODS:
        raise ValueError(f"method {name} is already defined")
    METHODS[name] = Method(name, fraction, **kwargs)
    return METHODS[name]


def _centred(L: Layer, values: Values, size: Expr) -> Values:
    """Deviations from the mean over an index."""
    values = L.once(values)
    average = L.mean(values, size)
    return lambda at: values(at) - average


def _standardized(L: Layer, values: Values, size: Expr, at: Any, eps: Any) -> Pair:
    """Deviation from the mean over an index, and mean squared deviation plus ε."""
    centred = _centred(L, values, size)
    return centred(at), L.mean(lambda k: centred(k) ** 2, size) + eps


def _pooled(L: Layer, values: Values, size: Expr, at: tuple[Any, Any], eps: Any) -> Pair:
    """The same over positions and another index."""
    values = L.once(values)
    average = L.mean(lambda u: L.mean(lambda v: values(u, v), size), T)
    square = L.mean(lambda u: L.mean(lambda v: (values(u, v) - average) ** 2, size), T)
    return values(*at) - average, square + eps


def _dot(L: Layer, left: Values, right: Values, size: Expr) -> Any:
    return L.total(lambda k: left(k) * right(k), size)


def _ratio(pair: Pair) -> Any:
    return pair[0] / sp.sqrt(sp.sympify(pair[1]))


IDENTITY = _method("Identity", lambda L, n, i, eps: (L.a(n, i), 1))
BATCH_NORM = _method(
    "BatchNorm", lambda L, n, i, eps: _standardized(L, lambda m: L.a(m, i), N, n, eps), smallest=(1, 2, 3)
)
BATCH_NORM_EVALUATION = _method(
    "BatchNormEvaluation",
    lambda L, n, i, eps: (L.a(n, i) - L.stored(STORED_MEAN, i), L.stored(STORED_VARIANCE, i) + eps),
)
WEIGHT_NORM = _method("WeightNorm", lambda L, n, i, eps: (L.a(n, i), _dot(L, L.row(i), L.row(i), D) + eps))
LAYER_NORM = _method(
    "LayerNorm",
    lambda L, n, i, eps: _standardized(L, lambda j: L.a(n, j), H, i, eps),
    smallest=(3, 2, 1),
    least_units=2,
)
_method(
    "PooledLayerNorm",
    lambda L, n, i, eps: _pooled(L, lambda u, j: L.a((n[0], u), j), H, (n[1], i), eps),
    smallest=(2, 2, 1),
    sample=(n, t),
    positions=2,
)
_method(
    "BiasedLayerNorm",
    lambda L, n, i, eps: _standardized(L, lambda j: L.a(n, j) + L.stored(STORED_BIAS, j), H, i, eps),
    smallest=(3, 2, 1),
    least_units=2,
)
RMS_NORM = _method(
    "RMSNorm",
    lambda L, n, i, eps: (L.a(n, i), L.mean(lambda j: L.a(n, j) ** 2, H) + eps),
    smallest=(2, 2, 1),
)
_method("ScaleNorm", lambda L, n, i, eps: (L.a(n, i), L.total(lambda j: L.a(n, j) ** 2, H) + eps), smallest=(2, 2, 1))
GROUP_NORM = _method(
    "GroupNorm",
    lambda L, n, i, eps: _standardized(L, lambda k: L.a(n, (i[0], k)), M, i[1], eps),
    unit=(p, q),
    smallest=(3, 2, 1),
    groups=2,
    least_units=2,
)
_method(
    "SpatialGroupNorm",
    lambda L, n, i, eps: _pooled(L, lambda u, k: L.a((n[0], u), (i[0], k)), M, (n[1], i[1]), eps),
    unit=(p, q),
    smallest=(2, 2, 1),
    groups=2,
    sample=(n, t),
    positions=2,
)
_method(
    "InstanceNorm",
    lambda L, n, i, eps: _standardized(L, lambda u: L.a((n[0], u), i), T, n[1], eps),
    sample=(n, t),
    positions=3,
)


def _standardized_weights(L: Layer, n: Index, i: Index, eps: Any) -> Pair:
    centred = _centred(L, L.row(i), D)
    return _dot(L, centred, L.case(n), D), L.mean(lambda d: centred(d) ** 2, D) + eps


WEIGHT_STANDARDIZATION = _method("WeightStandardization", _standardized_weights, smallest=(1, 3, 1))
_method(
    "WeightStandardizedGroupNorm",
    lambda L, n, i, eps: _standardized(L, lambda k: _ratio(_standardized_weights(L, n, (i[0], k), eps)), M, i[1], eps),
    unit=(p, q),
    smallest=(3, 3, 1),
    groups=2,
    least_units=2,
    irrational=True,
)


def _largest_squared_singular_value(L: Layer) -> Any:
    """σ_max². For all sizes it is |Wv|² of any v: a factor of this for every v is one of its maximum.

    In numbers it is the larger root of λ² − tr(WᵀW) λ + det(WᵀW), for two inputs.
    """
    if not L.sizes:
        return L.total(lambda j: L.total(lambda d: L.W(j, d) * DIRECTION(d), D) ** 2, H)
    assert L.sizes[D] == 2
    product = lambda d, e: L.total(lambda j: L.W(j, d) * L.W(j, e), H)
    trace, determinant = product(1, 1) + product(2, 2), product(1, 1) * product(2, 2) - product(1, 2) ** 2
    return (trace + sp.sqrt(sp.sympify(trace**2 - 4 * determinant))) / 2


_method(
    "SpectralNorm",
    lambda L, n, i, eps: (L.a(n, i), _largest_squared_singular_value(L) + eps),
    smallest=(2, 2, 1),
    irrational=True,
)


def _cosine(L: Layer, w: Values, x: Values, eps: Any) -> Pair:
    return _dot(L, w, x, D), _dot(L, w, w, D) * _dot(L, x, x, D) + eps


COSINE = _method("CosineNorm", lambda L, n, i, eps: _cosine(L, L.row(i), L.case(n), eps))
CENTERED_COSINE = _method(
    "PearsonCorrelation",
    lambda L, n, i, eps: _cosine(L, _centred(L, L.row(i), D), _centred(L, L.case(n), D), eps),
    smallest=(1, 3, 1),
)


# The output at (t, s) is the logit of the query at t and the key at s. Group 1 of the units is that of the queries.
def _logit(L: Layer, n: Any, s: Any, eps: Any, centred: Callable[[Layer, Values, Expr], Values]) -> Pair:
    query = centred(L, lambda k: L.a(n, (1, k)), M)
    key = centred(L, lambda k: L.a((n[0], s), (2, k)), M)
    return _dot(L, query, key, M), (_dot(L, query, query, M) + eps) * (_dot(L, key, key, M) + eps)


_method(
    "QueryKeyNorm",
    lambda L, n, s, eps: _logit(L, n, s, eps, lambda L, values, size: values),
    unit=s,
    smallest=(2, 2, 1),
    groups=2,
    blocks=4,
    sample=(n, t),
    positions=2,
)
_method(
    "QueryKeyLayerNorm",
    lambda L, n, s, eps: _logit(L, n, s, eps * L.size(M), _centred),
    unit=s,
    smallest=(3, 2, 1),
    groups=2,
    blocks=4,
    least_units=2,
    sample=(n, t),
    positions=2,
)
_method("DynamicTanh", lambda L, n, i, eps: ((1 if L.sizes else SLOPE) * L.a(n, i), 1), outer=sp.tanh)
_method("PowerNormEvaluation", lambda L, n, i, eps: (L.a(n, i), L.stored(STORED_SQUARE, i) + eps))


def _pre_layer_norm(L: Layer, n: Index, i: Index, eps: Any) -> Pair:
    centred = _centred(L, L.case(n), D)
    return _dot(L, L.row(i), centred, D), L.mean(lambda d: centred(d) ** 2, D) + eps


PRE_LAYER_NORM = _method("PreLayerNorm", _pre_layer_norm, smallest=(1, 3, 1))
PRE_RMS_NORM = _method("PreRMSNorm", lambda L, n, i, eps: (L.a(n, i), L.mean(lambda d: L.X(n, d) ** 2, D) + eps))
_method(
    "PreBatchNorm",
    lambda L, n, i, eps: (
        L.total(lambda d: L.W(i, d) * _ratio(_standardized(L, lambda m: L.X(m, d), N, n, eps)), D),
        1,
    ),
    smallest=(1, 2, 3),
    irrational=True,
)
_method(
    "ResidualLayerNorm",
    lambda L, n, i, eps: (L.X(n, i) + _ratio(LAYER_NORM.fraction(L, n, i, eps)), 1),
    smallest=(4, 4, 1),
    least_units=2,
    irrational=True,
)

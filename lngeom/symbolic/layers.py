r"""The index formula of every method, read for all sizes and over exact numbers.

Over symbols the sums of a formula run to H, D and N; over matrices they are added up. The first reading goes through
normal forms, the second through exact arithmetic and expansion. A test compares every method under every
transformation at exact points with its JAX formula.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field as attribute
from typing import Any

import sympy as sp
from sympy import Expr

from lngeom.methods.formulas import IndexFormula
from lngeom.methods.page import FORMULAS
from lngeom.symbolic import sums
from lngeom.symbolic.sums import FREE_INDICES, D, Field, G, H, Index, M, N, T, field, i, n, p, q, s, t

EPSILON = sp.Symbol("epsilon", nonnegative=True)
SLOPE = sp.Symbol("alpha", positive=True)
STORED_MEAN, STORED_VARIANCE = field("m"), field("v", positive=True)
STORED = {
    "mean": STORED_MEAN,
    "variance": STORED_VARIANCE,
    "mean_square": field("psi2", positive=True),
    "bias": field("beta"),
    "alpha": lambda: SLOPE,
}
"""Stored parameters by their names: symbols with the index of a unit, or without."""
DIRECTION = field("v")
SIZES = {str(size): size for size in (H, D, N, G, M, T)}
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
        sizes: numbers for H, D, N, … by their names; empty for all sizes.
    """

    W: Field = _WEIGHTS
    X: Field = _INPUTS
    sizes: Mapping[str, int] = attribute(default_factory=dict)

    def total(self, body: Callable[[Any], Any], size: Any) -> Any:
        """The sum of a body over an index that runs from 1 to a size, given by its name or symbol."""
        if self.sizes:
            return sum(map(body, range(1, self.sizes[str(size)] + 1)))
        return sums.total(body, SIZES[str(size)])

    def mean(self, body: Callable[[Any], Any], size: Any) -> Any:
        """The mean of a body over an index that runs from 1 to a size."""
        return self.total(body, size) / self.size(size)

    def size(self, size: Any) -> Any:
        """A size: its number, or its symbol."""
        return self.sizes.get(str(size), SIZES[str(size)])

    def stored(self, name: str, i: Index | None) -> Any:
        """A stored parameter: a symbol for all sizes, in numbers that of the unit, and 1 where it is one for all."""
        if self.sizes:
            return 1 if i is None else i
        return STORED.get(name, field(name))(*(() if i is None else (i,)))

    def root(self, value: Any) -> Expr:
        """The square root."""
        return sp.sqrt(sp.sympify(value))

    def largest_squared_singular_value(self) -> Any:
        """σ_max². For all sizes it is |Wv|² of any v: a factor of this for every v is one of its maximum.

        In numbers it is the larger root of λ² − tr(WᵀW) λ + det(WᵀW), for two inputs.
        """
        if not self.sizes:
            return self.total(lambda j: self.total(lambda d: self.W(j, d) * DIRECTION(d), D) ** 2, H)
        assert self.sizes["D"] == 2
        product = lambda d, e: self.total(lambda j: self.W(j, d) * self.W(j, e), H)
        trace, determinant = product(1, 1) + product(2, 2), product(1, 1) * product(2, 2) - product(1, 2) ** 2
        return (trace + self.root(trace**2 - 4 * determinant)) / 2

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
class Method(IndexFormula):
    """A normalization method: an index formula with a name.

    Attributes:
        name: class name in `lngeom.normalizers`.
        own: whether it is a user's: its formula is the numerator, and the square is 1.
    """

    name: str = ""
    own: bool = False

    @property
    def unit(self) -> Index:
        """Index of a unit: i, or (p, q) for unit q of group p; of logits a position s."""
        return s if self.logits else (p, q) if self.grouped else i

    @property
    def sample(self) -> Index:
        """Index of a sample: n, or (n, t) for its position t."""
        return (n, t) if self.positions > 1 else n

    @property
    def group_size(self) -> Expr:
        """Number of units over which a group's moments run: H, or M of one of several groups."""
        return M if self.grouped else H

    def applied(self, ratio: Any) -> Expr:
        """The output at a ratio of numerator and root."""
        return sp.tanh(ratio) if self.outer else ratio

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
        return self.applied(numerator / sp.sqrt(square))

    def rows(self, W: Matrix, X: Matrix, eps: Any) -> list[list[Pair]]:
        """Numerators and squares of all samples and units, at concrete weights [H D] and inputs [N·T D]."""
        size = len(W) // self.groups
        values = len(W), len(X[0]), len(X) // self.positions, self.groups, size, self.positions
        sizes = dict(zip(SIZES, values, strict=True))
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
        return sp.ImmutableMatrix([[self.applied(num / sp.sqrt(square)) for num, square in row] for row in rows])


def _entries(A: Matrix, size: int) -> Field:
    """A matrix as a field: row i, or row (p, q), the q-th of the p-th block of rows of a size."""
    return lambda row, d: A[(row[0] - 1) * size + row[1] - 1 if isinstance(row, tuple) else row - 1][d - 1]


def _places(index: Index, sizes: Mapping[str, int]) -> list[Any]:
    """The values of an index, or of a pair of indices."""
    if isinstance(index, tuple):
        return list(itertools.product(*(_places(part, sizes) for part in index)))
    return list(range(1, sizes[str(FREE_INDICES[index])] + 1))  # pyright: ignore


def read(kind: type, formula: IndexFormula) -> Method:
    """The method of a class."""
    return Method(**vars(formula), name=kind.__name__)


METHODS = {kind.__name__: read(kind, formula) for kind, formula in FORMULAS.items()}
"""The library's methods by class name."""

IDENTITY, BATCH_NORM, BATCH_NORM_EVALUATION = (METHODS[k] for k in ("Identity", "BatchNorm", "BatchNormEvaluation"))
WEIGHT_NORM, LAYER_NORM, RMS_NORM, GROUP_NORM = (
    METHODS[k] for k in ("WeightNorm", "LayerNorm", "RMSNorm", "GroupNorm")
)
PRE_LAYER_NORM, PRE_RMS_NORM = METHODS["PreLayerNorm"], METHODS["PreRMSNorm"]

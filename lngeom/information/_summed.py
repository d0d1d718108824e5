r"""Sums of Fisher matrices of one parameter space, $F = \sum_k w_k F_k$, which are Fisher operators themselves.

The parts are operators that are given, or made one after the other of the batches of a loader. Whatever is a sum over
samples (products, matrix, diagonal, blocks, the statistics of approximations) is the sum over parts. The factor's
triangle is that of the stacked triangles of the parts (TSQR): so ranks, null spaces and solutions are as exact as those
of all data at once.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float, PyTree

from lngeom._core.decompositions import singular_values, triangular_rows
from lngeom._core.text import counted
from lngeom._core.types import is_concrete, is_tracing
from lngeom.information._krylov import OnHost
from lngeom.information._operator import FisherOperator, added
from lngeom.information._products import At, Change, as_tangent, promoted_product, unchecked
from lngeom.information._spectrum import SMALL


class Parts(Protocol):
    """Operators F_k with weights w_k, which can be gone through again and again."""

    @property
    def on_host(self) -> bool:
        """Whether they are read while computing, so that no program can contain all of them."""
        ...

    @property
    def samples(self) -> int:
        """Number of samples of all parts."""
        ...

    @property
    def rows_that_count(self) -> int:
        """Sum of the largest ranks that the parts can have."""
        ...

    def weighted(self) -> Iterator[tuple[Any, FisherOperator]]:
        """The pairs (w_k c, F_k)."""
        ...

    def scale(self) -> Any:
        """The number 1/c, known once all parts have been seen."""
        ...

    def describe(self) -> str:
        """How many they are, of how many samples."""
        ...


class GivenParts(eqx.Module):
    """Operators that were given.

    Attributes:
        operators: F_k.
        weights: w_k.
    """

    operators: tuple[FisherOperator, ...]
    weights: tuple[Any, ...]

    on_host = False

    @property
    def samples(self) -> int:
        return sum(F.samples for F in self.operators)

    @property
    def rows_that_count(self) -> int:
        return sum(F.rows_that_count for F in self.operators)

    def weighted(self) -> Iterator[tuple[Any, FisherOperator]]:
        return zip(self.weights, self.operators, strict=True)

    def scale(self) -> float:
        return 1.0

    def describe(self) -> str:
        return f"a sum of {len(self.operators)}, {counted(self.samples, 'sample')}"


class _Part(NamedTuple):
    """How a part of another problem is made."""

    of: Change
    number: int

    def __call__(self, problem: Any, _: int) -> Any:
        return self.of(problem, self.number)


class SummedFisher(FisherOperator):
    r"""$F = \sum_k w_k F_k$, a Fisher operator with all methods.

    Made by `lg.fisher` of a loader, by `F + G`, `weighted_sum` and `average`. `problem` is that of one part.
    """

    parts: Any = None  # Parts; a default, since a field of the base has one
    _change: Any = eqx.field(static=True, default=None)

    def __repr__(self) -> str:
        """What matrix it is, and of which parts."""
        return self._described(self.parts.describe())

    @property
    def in_parts(self) -> bool:
        return True

    @property
    def has_closed_form(self) -> bool:
        one_function = self.parts.on_host  # all batches have that of `problem`
        return super().has_closed_form if one_function else any(F.has_closed_form for _, F in self.parts.weighted())

    @property
    def samples(self) -> int:
        return self.parts.samples

    @property
    def rows_that_count(self) -> int:
        return self.parts.rows_that_count

    def _operators(self) -> Iterator[tuple[Any, FisherOperator]]:
        """The pairs (w_k c, F_k), of the problem that is meant."""
        for k, (weight, F) in enumerate(self.parts.weighted()):
            part = F if self._checked else unchecked(F)
            yield weight, part if self._change is None else part.changed(_Part(self._change, k))

    def _total(self, term: Callable[[int, FisherOperator], PyTree], *arguments: PyTree) -> PyTree:
        """The sum of terms over parts."""
        if self.parts.on_host and (is_tracing() or not is_concrete(arguments)):
            raise ValueError(
                "the batches of a loader are read while F computes, which no program can: call F outside jit, vmap and "
                "scan, or give it arrays"
            )
        total = None
        for k, (weight, F) in enumerate(self._operators()):
            new = jax.tree.map(lambda a, w=weight: (w * a).astype(a.dtype), term(k, F))
            total = new if total is None else _added(total, new)
        scale = self.parts.scale()
        return jax.tree.map(lambda a: (scale * a).astype(a.dtype), total)

    def summed(
        self, function: Callable, *arguments: Any, at: At | None = None, of: Change | None = None, **static: Any
    ) -> PyTree:
        def term(k: int, F: FisherOperator) -> PyTree:
            return F.summed(function, *arguments, at=at, of=None if of is None else _Part(of, k), **static)

        return self._total(term)

    def changed(self, of: Change) -> Self:
        before = self._change
        both = of if before is None else lambda problem, k: of(before(problem, k), k)
        return replace(self, problem=of(self.problem, 0), _change=both)

    # Products.

    def mv(self, vector: PyTree) -> PyTree:
        if isinstance(vector, jax.Array | np.ndarray) and self.problem.layout.kind_of(vector) != "tangent":
            return self @ jnp.asarray(vector)
        return self._total(lambda _, F: F.mv(vector), vector)

    def mm(self, vectors: Float[Array, "P K"]) -> Float[Array, "P K"]:
        return self._total(lambda _, F: F.mm(vectors), vectors)

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, lx.AbstractLinearOperator):
            return super().__matmul__(other)
        other = jnp.asarray(other)
        return self._total(lambda _, F: F @ other, other)

    def quadratic_form(self, delta: PyTree) -> Float[Array, " *K"]:
        return self._total(lambda _, F: F.quadratic_form(delta), delta)

    def _flat_map(self) -> Callable:
        return OnHost(self._promoted) if self.parts.on_host else _FlatSum(self)

    def _tree_map(self) -> Callable:
        return OnHost(self._promoted_tree) if self.parts.on_host else _TreeSum(self)

    def _promoted(self, v: Float[Array, " P"]) -> Float[Array, " P"]:
        return promoted_product(self, v)

    def _promoted_tree(self, v: PyTree) -> PyTree:
        narrow = jax.tree.map(lambda x, like: x.astype(like.dtype), v, self.in_structure())
        return jax.tree.map(lambda x, like: x.astype(like.dtype), self.mv(as_tangent(self, narrow)), v)

    # The matrix and its factor.

    def as_matrix(self, order: str | None = None, *, progress: bool = False) -> Float[Array, "P P"]:
        del progress  # a loader shows its own
        self._require_matrix()
        return self._total(lambda _, F: F.as_matrix(order))

    def block(self, i: int | str, j: int | str) -> Float[Array, "p q"]:
        return self._total(lambda _, F: F.block(i, j))

    def diagonal(self) -> Float[Array, " P"]:
        return self._total(lambda _, F: F.diagonal())

    def factor(self) -> Float[Array, "NR P"]:
        rows, bytes_held = [], 0
        for weight, F in self._operators():
            rows.append(jnp.sqrt(weight) * F.factor())
            bytes_held += rows[-1].nbytes
            self.plan.require(2 * bytes_held, "the factor", "use singular_values(), which streams it")
        return jnp.concatenate(rows) * self.parts.scale() ** 0.5

    def triangular_factor(self) -> Float[Array, "r P"]:
        """A matrix R of at most P rows with RᵀR = F: the triangle of the stacked triangles of the parts."""
        size, held = self.in_size(), None
        for weight, F in self._operators():
            rows = jnp.sqrt(weight) * F.triangular_factor()
            held = rows if held is None else jnp.concatenate([held, rows])
            if len(held) > size:
                held = triangular_rows(held)
        assert held is not None
        return held * self.parts.scale() ** 0.5

    def singular_values(self) -> Float[Array, " k"]:
        self._require_decomposition()
        return singular_values(self.triangular_factor())

    def standard_error(self, statistic: Callable | None = None) -> PyTree:
        raise ValueError("a standard error is that of one Monte Carlo estimate, and this is a sum: ask its parts")

    @property
    def _decomposition_bytes(self) -> int:
        return 4 * self.plan.dense

    @property
    def _is_small(self) -> bool:
        return self.in_size() <= SMALL and self._decomposition_bytes <= self.plan.budget

    def __reduce__(self) -> tuple:
        """What pickles: a sum of operators that do; a loader does not."""
        if not isinstance(self.parts, GivenParts) or self._change is not None:
            raise ValueError(
                "an operator whose data are read by batches does not pickle: use F.save, or pickle its data"
            )
        return weighted_sum, (self.parts.operators, self.parts.weights)


class _FlatSum(eqx.Module):
    """Products with ravelled vectors, inside of programs."""

    of: SummedFisher

    def __call__(self, v: Float[Array, " P"]) -> Float[Array, " P"]:
        return self.of._promoted(v)


class _TreeSum(eqx.Module):
    """Products with pytrees, inside of programs."""

    of: SummedFisher

    def __call__(self, v: PyTree) -> PyTree:
        return self.of._promoted_tree(v)


_added = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b))


def weighted_sum(operators: Sequence[FisherOperator], weights: Sequence[Any] | None = None) -> FisherOperator:
    r"""The sum $\sum_k w_k F_k$ of Fisher matrices of one parameter space, an operator with all methods; also F + G.

    They may be of other data, families, functions and values of the parameters, as those of elastic weight
    consolidation are.

    Args:
        operators: F_k.
        weights: w_k ≥ 0; 1 by default.

    Raises:
        ValueError: if there is none, parameters have other paths, shapes or dtypes, or a weight does not fit.

    Example:
        >>> import jax.numpy as jnp, lngeom as lg
        >>> at = lambda x: lg.fisher(lambda p, x: x @ p, jnp.ones((1, 1)), x, family=lg.families.Gaussian())
        >>> F, G = at(jnp.array([[1.0]])), at(jnp.array([[3.0]]))
        >>> (F + G).as_matrix().item(), lg.information.weighted_sum([F, G], [2, 1]).as_matrix().item()
        (10.0, 11.0)
    """
    operators = _of_one_space(operators)
    weights = tuple([1.0] * len(operators) if weights is None else weights)
    _check_weights(operators, weights)
    coarsest = max(operators, key=lambda F: F.problem.precision().eps)
    methods = {F.method for F in operators}
    return SummedFisher(
        coarsest.problem,
        None,
        coarsest._placement,
        coarsest.plan._replace(budget=min(F.plan.budget for F in operators)),
        methods.pop() if len(methods) == 1 else "sum",
        coarsest.excluded,
        parts=GivenParts(tuple(operators), weights),
    )


def average(operators: Sequence[FisherOperator], weights: Sequence[Any] | None = None) -> FisherOperator:
    r"""The mean $\sum_k w_k F_k / \sum_k w_k$ of Fisher matrices of one parameter space, with all methods.

    Args:
        operators: F_k.
        weights: w_k ≥ 0; by default the numbers of samples, so that it is the matrix of all samples together.

    Raises:
        ValueError: as `weighted_sum`, or if all weights are 0.

    Example:
        >>> import jax.numpy as jnp, lngeom as lg
        >>> at = lambda x: lg.fisher(lambda p, x: x @ p, jnp.ones((1, 1)), x, family=lg.families.Gaussian())
        >>> X = jnp.array([[1.0], [3.0], [2.0]])
        >>> mean = lg.information.average([at(X[:2]), at(X[2:])])
        >>> round(mean.as_matrix().item(), 4), round(at(X).as_matrix().item(), 4)
        (4.6667, 4.6667)
    """
    operators = _of_one_space(operators)
    weights = [F.samples for F in operators] if weights is None else list(weights)
    _check_weights(operators, tuple(weights))
    total = sum(weights)
    if is_concrete(total) and not total > 0:
        raise ValueError(f"weights of a mean must not all be 0; got {weights}")
    return weighted_sum(operators, [weight / total for weight in weights])


@added.register(FisherOperator)
def _(F: FisherOperator, other: Any) -> Any:
    return weighted_sum([F, other]) if isinstance(other, FisherOperator) else NotImplemented


def _of_one_space(operators: Sequence[FisherOperator]) -> list[FisherOperator]:
    operators = list(operators)
    strange = [type(F).__name__ for F in operators if not isinstance(F, FisherOperator)]
    if strange or not operators:
        raise ValueError(f"expected a list of FisherOperators, at least one; got {', '.join(strange) or 'none'}")
    first = operators[0]
    for F in operators[1:]:
        if (F.leaves, F.problem.layout) != (first.leaves, first.problem.layout):
            raise ValueError(
                "Fisher matrices of different parameters have no sum: paths, shapes and dtypes must be the same; got "
                f"{_space(first)} and {_space(F)}"
            )
    return operators


def _space(F: FisherOperator) -> str:
    named = zip(F.leaves, F.problem.layout.leaves, strict=True)
    words = [f"{name} {list(shape)} {dtype}" for name, (shape, dtype) in named]
    return ", ".join(words[:4]) + (f" and {len(words) - 4} more" if len(words) > 4 else "")


def _check_weights(operators: Sequence[FisherOperator], weights: tuple) -> None:
    if len(weights) != len(operators):
        raise ValueError(f"expected one weight for each of {len(operators)} operators; got {len(weights)}")
    known = [float(w) for w in weights if is_concrete(w)]
    if not all(math.isfinite(w) and w >= 0 for w in known):
        raise ValueError(f"weights must be finite and at least 0; got {known}")

"""Spectra: from the singular values of the factor A where they fit, by Lanczos iterations where P is large.

A null direction of F sits at 1e-16 of the largest singular value of A, but its eigenvalue in F is noise of 1e-8 in
float32. Where A would not fit, its triangular factor is built by QR of one chunk of rows after another (TSQR).
"""

import functools
import math
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from lngeom._core.decompositions import eigenvectors, right_singular, singular_values, triangular_rows
from lngeom._core.draws import draw_small, probe_key
from lngeom._core.memory import format_bytes
from lngeom._core.numerics import DECISIVE_GAP, Rank, RankDecision, decide_rank
from lngeom._core.sums import fold_chunks
from lngeom._core.types import is_concrete, is_tracing
from lngeom.information import _krylov
from lngeom.information._agreement import agreed
from lngeom.information._derivative import ClosedFormDerivative, Pullback, has_closed_form
from lngeom.information._problem import Problem
from lngeom.information._products import AbstractFisher, flat_map, tree_map
from lngeom.information._rows import convolved_layers, factor_rows
from lngeom.information._sharding import Placement, is_sharded, on_each_shard, sum_over_samples

SMALL = 3000
"""Rows or columns of a factor up to which its full decomposition, exact to rounding, takes seconds at most."""

RESTARTS = 100
"""Of Lanczos iterations, after which they are given up."""


@functools.partial(jax.jit, static_argnames=("at", "structured"))
def triangular(problem: Problem, at: Placement, structured: bool = True) -> Float[Array, "r P"]:
    """A matrix with the factor's Gram matrix, of at most P rows: the factor itself, or R of its streamed QR."""
    dtype, layers = problem.decomposition_dtype, convolved_layers(problem, at) if structured else None

    def local(problem: Problem) -> Float[Array, "r P"]:
        rows, size = problem.rows * problem.rows_per_sample, problem.size
        # at least P rows at a time: a decomposition of the P rows before them is added to each
        chunk = max(at.chunk, -(-size // problem.rows_per_sample))
        if problem.coupled or chunk >= problem.rows:
            complete = factor_rows(problem, layers).astype(dtype)
            return triangular_rows(complete) if rows > size else complete

        def step(carry: Float[Array, "P P"], rows: tuple) -> Float[Array, "P P"]:
            new = factor_rows(problem.with_samples(rows), layers).astype(dtype)
            return triangular_rows(jnp.concatenate([carry, new]))

        return fold_chunks(step, jnp.zeros((size, size), dtype), problem.per_sample, chunk)

    if not is_sharded(at, problem):
        return local(problem)

    def merge(problem: Problem) -> Float[Array, "r P"]:
        parts = jax.lax.all_gather(local(problem), at.axes, tiled=True)
        return triangular_rows(parts) if parts.shape[0] > parts.shape[1] else parts

    return on_each_shard(merge, problem, at)


def checked_rank(decision: RankDecision, problem: Problem) -> Rank:
    """The rank, with a warning where it is not certain."""
    if not decision.certain:
        precision = problem.precision(of_inputs=True)
        best = jnp.dtype(precision.dtype) == jnp.float64
        remedy = (
            "some directions may be badly scaled"
            if best
            else 'compute in float64 to see more, by lg.fisher(..., dtype="float64")'
        )
        if problem.scores is None and not problem.family.has_exact_root:
            remedy += f"; define metric_sqrt_product of {problem.family.name}, known to √eps only"
        warnings.warn(
            f"the rank may be {decision.fewest} to {decision.most} (taken as {decision.rank}): no gap alone separates "
            f"the singular values from the rounding errors of {precision.describe()}, in which the model computes; "
            f"{remedy}",
            RuntimeWarning,
            stacklevel=4,
        )
    return Rank(decision)


class Decomposition(NamedTuple):
    """Singular values and right singular vectors of the factor: F = Vᵀ diag(s²) V.

    Attributes:
        singular_values: the k = min(N·C, P), in descending order.
        vectors: one a row, shape [k P].
        decision: the numerical rank, and how sure it is.
        budget: bytes that a basis of the null space may take.
    """

    singular_values: Float[Array, " k"]
    vectors: Float[Array, "k P"]
    decision: RankDecision
    budget: int

    @property
    def rank(self) -> int:
        """Numerical rank of the factor, and so of F."""
        return self.decision.rank

    @property
    def null(self) -> Float[Array, "P k"]:
        """Orthonormal basis of the null space (eager).

        Raises:
            MemoryError: if it would not fit.
        """
        count, size = self.vectors.shape
        needed = 3 * size**2 * self.vectors.dtype.itemsize
        if count < size and needed > self.budget:
            raise MemoryError(
                f"a basis of the null space, {size:,} × {size - self.rank:,}, and its workspace would need "
                f"{format_bytes(needed)}, more than the budget of {format_bytes(self.budget)}: use project_horizontal "
                "or solve, which need the identifiable directions alone, or raise the budget with "
                "lg.fisher(..., memory=bytes)"
            )
        return _complement(self.vectors, self.rank)

    @property
    def kept(self) -> Bool[Array, " k"]:
        """Which singular vectors are identifiable directions."""
        return jnp.arange(len(self.singular_values)) < self.rank

    def identifiable(self, v: Float[Array, "P *K"]) -> Float[Array, "P *K"]:
        """The part of vectors along the identifiable directions."""
        coefficients = self.vectors @ v
        kept = self.kept.reshape(-1, *(1,) * (v.ndim - 1))
        return self.vectors.T @ jnp.where(kept, coefficients, 0)


@functools.partial(jax.jit, static_argnames="rank")
def _complement(vectors: Float[Array, "k P"], rank: int) -> Float[Array, "P c"]:
    """Orthonormal basis of what the first of these orthonormal rows do not span."""
    count, size = vectors.shape
    if count == size:
        return vectors[rank:].T
    rest = jnp.linalg.qr(vectors.T, mode="complete")[0][:, count:]
    return jnp.concatenate([vectors[rank:].T, rest], 1)


def triangular_factor(F: AbstractFisher) -> Float[Array, "r P"]:
    """The factor, reduced to at most P rows, once it is clear that it is that of the product."""
    return agreed(F, "factor", F.summed(triangular), lambda: F.summed(triangular, structured=False))


def decompose(F: AbstractFisher, rtol: float | None = None) -> Decomposition:
    """Singular value decomposition of the factor, with the same rank as `rank` finds.

    Values that come with their vectors have larger rounding errors. Where no decisive gap shows the rank in spite of
    them, the singular values are computed once more by themselves, as `rank` does.
    """
    rows = F.triangular_factor()
    s, vectors = right_singular(rows)
    decision = rank_of(F, s, rtol)
    if not is_concrete(s) or not (decision.certain and decision.gap >= DECISIVE_GAP):
        s = singular_values(rows)
        decision = rank_of(F, s, rtol)
    return Decomposition(s, vectors, decision, F.plan.budget)


def rank_of(F: AbstractFisher, singular_values: Float[Array, " k"], rtol: float | None = None) -> RankDecision:
    """The rank decision for a factor reduced to at most P rows."""
    traced, problem = not is_concrete(singular_values), F.problem
    if rtol is None:
        lost: Any = jnp.sqrt(F.summed(cancelled_squares)) if F.has_closed_form else 0.0
        lost = lost if traced else float(lost)
        eps = max(problem.precision(of_inputs=True).eps, float(jnp.finfo(singular_values.dtype).eps))
        size, bound = problem.size, min(problem.size, F.rows_that_count)
        found = decide_rank(singular_values, size, size, lost, eps=eps, bound=bound)
        if problem.scores is not None or problem.family.has_exact_root:
            return found
        careful = decide_rank(singular_values, size, size, lost, eps=eps**0.5, bound=bound)
        return careful._replace(most=jnp.maximum(found.most, careful.most) if traced else max(found.most, careful.most))
    rank: Any = jnp.sum(singular_values > rtol * singular_values[:1])
    padded = jnp.pad(singular_values, 1, constant_values=(np.inf, 0))
    found: Any = rank, padded[rank] / padded[rank + 1], rtol * padded[1], rank, rank
    return RankDecision(*found) if traced else RankDecision(*(value.item() for value in found))


def rows_that_count(problem: Problem) -> int:
    """Most that the rank of the rows can be: the rank of Λ at every position that counts, or the number of scores."""
    z = problem.output_shape
    positions = math.prod(z.shape[:-1])
    if problem.weights is not None:
        known = is_concrete(problem.weights) and not is_tracing()
        positions = int(jnp.sum(problem.weights > 0)) if known else positions
    rows = problem.rows * problem.rows_per_sample
    return min(positions * problem.family.metric_rank(z.shape[-1]), rows)


@functools.partial(jax.jit, static_argnames="at")
def cancelled_squares(problem: Problem, at: Placement) -> Float[Array, ""]:
    r"""Sum of squares of the factor's weight columns before Π cancels parts: $\sqrt{\Lambda/N}\, D_g\, x/\sigma$.

    Rounding errors of the factor are of the size of its root times eps. Where Π = 0, as in groups of two units,
    nothing else is left of these columns. 0 for a model without a closed form, in which nothing is known to cancel.
    """
    if not has_closed_form(problem):
        return jnp.zeros((), problem.dtype)

    def term(part: Problem) -> Array:
        derivative = Pullback(part).derivative
        assert isinstance(derivative, ClosedFormDerivative)
        if derivative.inputs.ndim != 2:  # the printed χ, in which nothing cancels
            return jnp.zeros((), problem.dtype)
        slopes = part.family.metric_diagonal(derivative.outputs) * jnp.square(derivative.at.slopes)
        each = jnp.sum(slopes, 1) * jnp.sum(jnp.square(derivative.inputs), 1)
        return jnp.sum(each if part.weights is None else part.weights * each)

    return sum_over_samples(term, problem, at) / problem.samples


def leading_eigenvalues(
    F: AbstractFisher, count: int, key: PRNGKeyArray | None = None, steps: int | None = None
) -> Float[Array, " k"]:
    """The largest eigenvalues by Lanczos iterations: `steps` of them, or as many as it takes (see the operator)."""
    size, problem = F.in_size(), F.problem
    key = probe_key() if key is None else key
    start = draw_small(jax.random.normal, key, (size,), problem.decomposition_dtype)
    if steps is None and is_concrete(problem, start):
        reach = float(jnp.finfo(problem.dtype).eps) ** 0.5
        further = jax.random.fold_in(key, 1)
        found = _krylov.leading(flat_map(F), start, count, key=further, tolerance=reach, restarts=RESTARTS)
        return jnp.asarray(found.values, start.dtype)
    matrix = _krylov.tridiagonal(flat_map(F), start, min(size, steps or 2 * count + 20))
    return eigenvectors(matrix)[0][::-1][:count]


def wide_like(problem: Problem) -> PyTree[jax.ShapeDtypeStruct]:
    """Shapes and places of the parameters, in the dtype of decompositions."""
    wide = jnp.dtype(problem.decomposition_dtype)
    return jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, wide, sharding=v.sharding), problem.params)


def leading_eigenpairs(
    F: AbstractFisher, count: int, key: PRNGKeyArray | None, tolerance: float | None, width: int | None
) -> _krylov.RitzPairs:
    """The largest eigenvalues with their vectors, on pytrees (see the operator)."""
    first, further = jax.random.split(probe_key() if key is None else key)
    reach = float(jnp.finfo(F.problem.dtype).eps) ** 0.5 if tolerance is None else tolerance
    start = _krylov.normal_like(first, wide_like(F.problem))
    return _krylov.leading(tree_map(F), start, count, key=further, tolerance=reach, width=width)

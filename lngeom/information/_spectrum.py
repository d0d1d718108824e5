"""Spectra: from the factor's singular values where they fit, by Lanczos where P is large."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse.linalg
from jaxtyping import Array, Float, PRNGKeyArray
from matfree import decomp, eig

from lngeom._numerics import ConvergenceError, RankDecision, decide_rank
from lngeom._types import is_concrete
from lngeom.information._factor import right_singular, rows_per_sample
from lngeom.information._problem import Problem
from lngeom.information._pullback import ClosedFormDerivative, Pullback, has_closed_form
from lngeom.information._sharding import Placement, sum_over_samples

SMALL = 3000
"""Rows or columns of a factor up to which its full decomposition is the quickest way."""

RESTARTS = 100
"""Of Lanczos iterations, after which they are given up."""


class Decomposition(NamedTuple):
    """All singular values and right singular vectors of the factor: F = V diag(s²) Vᵀ.

    Attributes:
        singular_values: in descending order, padded with zeros to P.
        vectors: one a row, shape [P P].
        decision: the numerical rank.
    """

    singular_values: Float[Array, " P"]
    vectors: Float[Array, "P P"]
    decision: RankDecision

    @property
    def rank(self) -> int:
        """Numerical rank of the factor, and so of F."""
        return self.decision.rank

    @property
    def range(self) -> Float[Array, "P r"]:
        """Orthonormal basis of the identifiable directions."""
        return self.vectors[: self.rank].T

    @property
    def null(self) -> Float[Array, "P k"]:
        """Orthonormal basis of the null space."""
        return self.vectors[self.rank :].T


def decompose(problem: Problem, at: Placement, rtol: float | None = None) -> Decomposition:
    """Singular value decomposition of the factor, with a decision of its rank (eager).

    Args:
        problem: with concrete arrays.
        at: where its samples are.
        rtol: singular values up to this times the largest count as null; by rounding errors where None.

    Returns:
        The decomposition.
    """
    s, vectors = right_singular(problem, at)
    return Decomposition(s, vectors, rank_of(s, problem, at, rtol))


def rank_of(
    singular_values: Float[Array, " k"], problem: Problem, at: Placement, rtol: float | None = None
) -> RankDecision:
    """The rank decision for a factor reduced to at most P rows (eager; arguments as `decompose`)."""
    values = np.asarray(singular_values)
    if rtol is None or not values.size:
        scale = float(cancelled(problem, at)) if has_closed_form(problem) else 0.0
        return decide_rank(values, problem.size, problem.size, scale)
    threshold = rtol * float(values[0])
    rank = int(np.sum(values > threshold))
    clear = rank in {0, values.size} or values[rank] == 0
    return RankDecision(rank, float("inf") if clear else float(values[rank - 1] / values[rank]), threshold)


@functools.partial(jax.jit, static_argnames="at")
def cancelled(problem: Problem, at: Placement) -> Float[Array, ""]:
    r"""Frobenius norm of the factor's weight columns before Π cancels parts: $\sqrt{\Lambda/N}\, D_g\, x/\sigma$.

    Rounding errors of the factor are of this size times eps. Where Π = 0, as in groups of two units, nothing else is
    left of these columns.

    Args:
        problem: of a normalized GLM with a closed form.
        at: where its samples are.

    Returns:
        The norm.
    """

    def term(part: Problem) -> Array:
        derivative = Pullback(part).derivative
        assert isinstance(derivative, ClosedFormDerivative)
        if derivative.inputs.ndim != 2:  # the printed χ, in which nothing cancels
            return jnp.zeros((), problem.dtype)
        slopes = part.family.metric_parts(derivative.outputs)[0] * jnp.square(derivative.at.slopes)
        each = jnp.sum(slopes, 1) * jnp.sum(jnp.square(derivative.inputs), 1)
        return jnp.sum(each if part.weights is None else part.weights * each)

    return jnp.sqrt(sum_over_samples(term, problem, at) / problem.samples)


def effective_rank(singular_values: Float[Array, " k"]) -> Float[Array, ""]:
    """Exponential of the entropy of the normalized eigenvalues: how many directions carry the information."""
    p = jnp.square(singular_values)
    p = p / jnp.sum(p)
    return jnp.exp(-jnp.sum(jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1)), 0)))


def eigenvalues(
    operator: Any, count: int, key: PRNGKeyArray | None = None, steps: int | None = None, *, decompose: bool = True
) -> Float[Array, " k"]:
    """The largest eigenvalues of a Fisher matrix (see its method).

    Args:
        operator: the matrix.
        count: how many.
        key: for the start vector.
        steps: of Lanczos without restarts; None for as many as it takes.
        decompose: whether a small factor may be decomposed.

    Returns:
        The eigenvalues, in descending order.

    Raises:
        MemoryError: if all are asked for and a decomposition would not fit.
        ConvergenceError: if the iterations do not converge.
    """
    size, problem, plan = operator.in_size(), operator.problem, operator.plan
    needed = 4 * min(plan.dense, max(plan.factor, 1))
    is_small = min(size, problem.rows * rows_per_sample(problem)) <= SMALL and needed <= plan.budget
    if steps is None and (count == size or (decompose and is_small)):
        plan.require(needed, f"all {size:,} eigenvalues", "ask for fewer")
        s = jnp.square(operator.singular_values())
        return jnp.pad(s, (0, max(0, count - s.shape[0])))[:count]
    start = jax.random.normal(jax.random.key(0) if key is None else key, (size,), problem.dtype)
    if steps is None and is_concrete(problem, start):
        return _converged_eigenvalues(operator, start, count)
    depth = min(size, steps or 2 * count + 20)
    ritz = eig.eigh_partial(decomp.tridiag_sym(depth, reortho="full", materialize=True))
    values, _ = ritz(operator.__matmul__, start)
    return jnp.sort(values)[::-1][:count]


def _converged_eigenvalues(operator: Any, start: Float[Array, " P"], count: int) -> Float[Array, " k"]:
    """By Lanczos iterations with restarts (ARPACK), to a relative residual of √eps (an isolated eigenvalue to eps).

    From one start vector they find one copy of a multiple eigenvalue: what is left beside the vectors found is looked
    at too, until its largest eigenvalue is no larger than theirs.
    """
    whole, generator = operator.as_scipy(), np.random.default_rng(0)
    eps = float(jnp.finfo(start.dtype).eps)
    find: Any = scipy.sparse.linalg.eigsh

    def largest(matrix: scipy.sparse.linalg.LinearOperator, count: int, start: np.ndarray) -> tuple:
        try:
            return find(matrix, count, which="LA", v0=start, tol=eps**0.5, maxiter=RESTARTS)
        except scipy.sparse.linalg.ArpackNoConvergence as error:
            raise ConvergenceError(
                f"{len(error.eigenvalues)} of {count} eigenvalues converged to a relative residual of {eps**0.5:.0e}: "
                "ask for fewer, or for what a fixed number of Lanczos steps finds"
            ) from error

    if not np.any(whole @ np.array(start)):
        return jnp.zeros(count, start.dtype)
    values, vectors = largest(whole, count, np.array(start))

    def left(v: np.ndarray) -> np.ndarray:
        v = v.reshape(-1)
        return whole @ v - vectors @ (values * (vectors.T @ v))

    make: Any = scipy.sparse.linalg.LinearOperator
    rest = make(whole.shape, left, dtype=whole.dtype)
    for _ in range(count):
        v = generator.normal(size=len(start)).astype(whole.dtype)
        if np.linalg.norm(rest @ v) <= 100 * eps * values.max() * np.linalg.norm(v):
            break
        missed, direction = largest(rest, 1, v)
        smallest = np.argmin(values)
        if missed[0] <= values[smallest] * (1 + eps**0.5):
            break
        values[smallest], vectors[:, smallest] = missed[0], direction[:, 0]
    return jnp.asarray(np.sort(values)[::-1], start.dtype)


class SpectralDensity(NamedTuple):
    """A density of eigenvalues as point masses: Σ weights = 1, Σ weights · f(nodes) ≈ tr f(F) / P.

    Attributes:
        nodes: eigenvalue estimates, ascending.
        weights: their masses.
    """

    nodes: Float[Array, " K"]
    weights: Float[Array, " K"]


def lanczos_density(
    product, key: PRNGKeyArray, size: int, dtype: jax.typing.DTypeLike, probes: int, steps: int
) -> SpectralDensity:
    """Stochastic Lanczos quadrature of the spectral density.

    Args:
        product: v ↦ Fv on vectors [P].
        key: for the random probe vectors.
        size: P.
        dtype: of vectors.
        probes: random vectors averaged over.
        steps: Lanczos steps of each.

    Returns:
        Nodes and weights of all probes.
    """
    tridiagonalize = decomp.tridiag_sym(steps, reortho="full", materialize=True)

    def one(key: PRNGKeyArray) -> tuple[Array, Array]:
        matrix = tridiagonalize(product, jax.random.rademacher(key, (size,), dtype)).J_small
        nodes, vectors = jnp.linalg.eigh(matrix)
        return nodes, jnp.square(vectors[0])

    nodes, weights = jax.lax.map(one, jax.random.split(key, probes))
    order = jnp.argsort(nodes.reshape(-1))
    return SpectralDensity(nodes.reshape(-1)[order], weights.reshape(-1)[order] / probes)

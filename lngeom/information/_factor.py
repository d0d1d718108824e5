r"""The factor $A = S^\top J / \sqrt N$, for which $F = A^\top A$: what spectra and ranks are computed from.

A null direction of F sits at 1e-16 of the largest singular value of A, but its eigenvalue in F is noise of 1e-8 in
float32. Where A would not fit, its triangular factor is built by QR of one chunk of rows after another (TSQR).
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.information._problem import Problem
from lngeom.information._pullback import Pullback
from lngeom.information._sharding import Placement, fold_chunks, is_sharded, on_each_shard

BATCH = 64
"""Rows or columns of a coupled problem's factor computed at a time."""


def rows_per_sample(problem: Problem) -> int:
    """Rows of the factor for each sample: its outputs, or its scores."""
    if problem.scores is not None:
        return problem.scores.shape[1]
    z = jax.eval_shape(problem.forward, problem.params)
    return z.size // z.shape[0]


def factor_rows(problem: Problem) -> Float[Array, "R P"]:
    """Rows of the factor for the samples held here, one after the other."""
    return _coupled_rows(problem) if problem.coupled else _separate_rows(problem)


def _separate_rows(problem: Problem) -> Float[Array, "R P"]:
    count = rows_per_sample(problem)
    basis = jnp.eye(count, dtype=_dtype(problem))

    def one_sample(per_sample: tuple) -> Float[Array, "r P"]:
        pullback = Pullback(problem.with_samples(jax.tree.map(lambda a: a[None], per_sample)))
        shape = jax.eval_shape(pullback.metric.sqrt_product, pullback.metric.outputs).shape

        def row(y: Float[Array, " r"]) -> Float[Array, " P"]:
            return problem.ravel(pullback.derivative.pull(pullback.metric.transposed_sqrt(y.reshape(shape))))

        return jax.vmap(row)(basis)

    return jax.vmap(one_sample)(problem.per_sample).reshape(-1, problem.size)


def _coupled_rows(problem: Problem) -> Float[Array, "R P"]:
    pullback = Pullback(problem)
    shape = jax.eval_shape(pullback.metric.sqrt_product, pullback.metric.outputs).shape
    total = problem.rows * rows_per_sample(problem)
    if total <= problem.size:

        def row(k: Array) -> Float[Array, " P"]:
            y = jnp.zeros(total, _dtype(problem)).at[k].set(1).reshape(shape)
            return problem.ravel(pullback.derivative.pull(pullback.metric.transposed_sqrt(y)))

        return jax.lax.map(row, jnp.arange(total), batch_size=min(BATCH, total))

    def column(k: Array) -> Float[Array, " R"]:
        v = problem.unravel(jnp.zeros(problem.size, problem.dtype).at[k].set(1))
        return pullback.metric.sqrt_product(pullback.derivative.push(v)).reshape(-1)

    return jax.lax.map(column, jnp.arange(problem.size), batch_size=min(BATCH, problem.size)).T


def _dtype(problem: Problem) -> jnp.dtype:
    return jax.eval_shape(problem.forward, problem.params).dtype


@functools.partial(jax.jit, static_argnames="at")
def factor(problem: Problem, at: Placement) -> Float[Array, "NR P"]:
    """The whole factor; samples on several devices leave their rows there."""
    if is_sharded(at, problem):
        return on_each_shard(factor_rows, problem, at, divided=True)
    return factor_rows(problem)


def triangular_rows(rows: Float[Array, "R P"]) -> Float[Array, "min(R,P) P"]:
    """R of rows = QR: it has the rows' singular values and row space."""
    return jnp.linalg.qr(rows, mode="r")


@functools.partial(jax.jit, static_argnames="at")
def triangular(problem: Problem, at: Placement) -> Float[Array, "r P"]:
    """A matrix with the factor's Gram matrix, of at most P rows: the factor itself, or R of its streamed QR.

    Args:
        problem: the problem.
        at: where its samples are, and how many of them make a chunk.

    Returns:
        Shape [min(N R, P) P].
    """

    def local(problem: Problem) -> Float[Array, "r P"]:
        rows, size = problem.rows * rows_per_sample(problem), problem.size
        if problem.coupled or rows <= size:
            complete = factor_rows(problem)
            return triangular_rows(complete) if rows > size else complete
        chunk = max(at.chunk, -(-size // rows_per_sample(problem)))

        def step(carry: Float[Array, "P P"], part: Problem) -> Float[Array, "P P"]:
            return triangular_rows(jnp.concatenate([carry, factor_rows(part)]))

        return fold_chunks(step, jnp.zeros((size, size), problem.dtype), problem, chunk)

    if not is_sharded(at, problem):
        return local(problem)

    def merge(problem: Problem) -> Float[Array, "r P"]:
        parts = jax.lax.all_gather(local(problem), at.axes, tiled=True)
        return triangular_rows(parts) if parts.shape[0] > parts.shape[1] else parts

    return on_each_shard(merge, problem, at)


@functools.partial(jax.jit, static_argnames="at")
def singular_values(problem: Problem, at: Placement) -> Float[Array, " k"]:
    """Singular values of the factor, in descending order; their squares are the eigenvalues of F."""
    s = jnp.linalg.svd(triangular(problem, at), compute_uv=False)
    return s[: problem.samples * rows_per_sample(problem)]  # rows of padding add zeros


@functools.partial(jax.jit, static_argnames="at")
def right_singular(problem: Problem, at: Placement) -> tuple[Float[Array, " P"], Float[Array, "P P"]]:
    """Singular values, padded with zeros to P, and all P right singular vectors as rows."""
    rows = triangular(problem, at)
    _, s, vectors = jnp.linalg.svd(rows, full_matrices=True)
    return jnp.pad(s, (0, problem.size - s.shape[0])), vectors

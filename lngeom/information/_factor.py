r"""The factor $A = S^\top J / \sqrt N$, for which $F = A^\top A$: what spectra and ranks are computed from.

A null direction of F sits at 1e-16 of the largest singular value of A, but its eigenvalue in F is noise of 1e-8 in
float32. Where A would not fit, its triangular factor is built by QR of one chunk of rows after another (TSQR).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.information._derivative import Pullback
from lngeom.information._problem import Problem
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


def decomposition_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """The dtype of decompositions: float32 at least, since LAPACK knows no 16-bit numbers."""
    return jnp.dtype(dtype) if jnp.finfo(dtype).bits >= 32 else jnp.dtype(jnp.float32)


def one_by_one(decomposition: Callable[[Array], Any]) -> Callable[[Array], Any]:
    """A decomposition which takes one matrix after the other under `vmap`.

    LAPACK called on a batch of matrices at once can wait for its own threads for ever.
    """
    return jax.custom_batching.sequential_vmap(decomposition)


@one_by_one
def triangular_rows(rows: Float[Array, "R P"]) -> Float[Array, "min(R,P) P"]:
    """R of rows = QR: it has the rows' singular values and row space."""
    return jnp.linalg.qr(rows, mode="r")


@one_by_one
def _orthogonal(columns: Float[Array, "P R"]) -> tuple[Float[Array, "P R"], Float[Array, "R R"]]:
    q, r = jnp.linalg.qr(columns)
    return q, r


@one_by_one
def _values(matrix: Float[Array, "K K"]) -> Float[Array, " K"]:
    return jnp.linalg.svd(matrix, compute_uv=False)


@one_by_one
def _values_and_vectors(matrix: Float[Array, "K K"]) -> tuple[Float[Array, " K"], Float[Array, "K K"]]:
    _, s, vectors = jnp.linalg.svd(matrix)
    return s, vectors


@functools.partial(jax.jit, static_argnames="at")
def triangular(problem: Problem, at: Placement) -> Float[Array, "r P"]:
    """A matrix with the factor's Gram matrix, of at most P rows: the factor itself, or R of its streamed QR."""
    dtype = decomposition_dtype(problem.dtype)

    def local(problem: Problem) -> Float[Array, "r P"]:
        rows, size = problem.rows * rows_per_sample(problem), problem.size
        if problem.coupled or rows <= size:
            complete = factor_rows(problem).astype(dtype)
            return triangular_rows(complete) if rows > size else complete
        chunk = max(at.chunk, -(-size // rows_per_sample(problem)))

        def step(carry: Float[Array, "P P"], rows: tuple) -> Float[Array, "P P"]:
            new = factor_rows(problem.with_samples(rows)).astype(dtype)
            return triangular_rows(jnp.concatenate([carry, new]))

        return fold_chunks(step, jnp.zeros((size, size), dtype), problem.per_sample, chunk)

    if not is_sharded(at, problem):
        return local(problem)

    def merge(problem: Problem) -> Float[Array, "r P"]:
        parts = jax.lax.all_gather(local(problem), at.axes, tiled=True)
        return triangular_rows(parts) if parts.shape[0] > parts.shape[1] else parts

    return on_each_shard(merge, problem, at)


@jax.jit
def singular_values(rows: Float[Array, "r P"]) -> Float[Array, " r"]:
    """Singular values of the factor, in descending order, given `triangular`: roots of the eigenvalues of F."""
    return _values(triangular_rows(rows.T) if rows.shape[0] < rows.shape[1] else rows)


@jax.jit
def right_singular(rows: Float[Array, "r P"]) -> tuple[Float[Array, " r"], Float[Array, "r P"]]:
    """The singular values of the factor and their right singular vectors as rows, given `triangular`.

    A factor of fewer rows than columns is first divided, Aᵀ = QR, so that nothing of the size P × P is formed.
    """
    if rows.shape[0] == rows.shape[1]:
        return _values_and_vectors(rows)
    q, r = _orthogonal(rows.T)
    s, vectors = _values_and_vectors(r.T)
    return s, vectors @ q.T

"""Decompositions of dense matrices, one matrix after the other where several are asked for."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def one_by_one(decomposition: Callable[[Array], Any]) -> Callable[[Array], Any]:
    """A decomposition which takes one matrix after the other under `vmap`.

    LAPACK called on a batch of matrices at once can wait for its own threads for ever.
    """
    return jax.custom_batching.sequential_vmap(decomposition)


triangular_rows = one_by_one(lambda rows: jnp.linalg.qr(rows, mode="r"))
"""R of rows = QR: it has the rows' singular values and row space."""

eigenvectors = one_by_one(lambda matrix: tuple(jnp.linalg.eigh(matrix)))
"""Eigenvalues of a symmetric matrix, ascending, and its eigenvectors as columns."""

_orthogonal = one_by_one(lambda columns: tuple(jnp.linalg.qr(columns)))  # Q, R
_values = one_by_one(lambda matrix: jnp.linalg.svd(matrix, compute_uv=False))  # s
_values_and_vectors = one_by_one(lambda matrix: tuple(jnp.linalg.svd(matrix)[1:]))  # s, Vᵀ


@jax.jit
def singular_values(rows: Float[Array, "r P"]) -> Float[Array, " r"]:
    """Singular values of rows, in descending order: roots of the eigenvalues of their Gram matrix."""
    return _values(triangular_rows(rows.T) if rows.shape[0] < rows.shape[1] else rows)


@jax.jit
def right_singular(rows: Float[Array, "r P"]) -> tuple[Float[Array, " r"], Float[Array, "r P"]]:
    """The singular values of rows A and their right singular vectors as rows; there are at most P rows.

    Fewer rows than columns are first divided, Aᵀ = QR, so that nothing of the size P × P is formed.
    """
    if rows.shape[0] == rows.shape[1]:
        return _values_and_vectors(rows)
    q, r = _orthogonal(rows.T)
    s, vectors = _values_and_vectors(r.T)
    return s, vectors @ q.T

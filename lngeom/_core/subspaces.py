"""Subspaces given by columns: an orthonormal basis, the part within a null space, and what one adds to another."""

import numpy as np
from jaxtyping import Float


def orthonormal(columns: Float[np.ndarray, "P m"], close: float) -> Float[np.ndarray, "P k"]:
    """Orthonormal basis of the span of columns, less what is below `close` of its largest singular value."""
    if not columns.size:
        return columns[:, :0]
    u, s, _ = np.linalg.svd(columns, full_matrices=False)
    return u[:, s > close * s[0]] if s[0] > 0 else u[:, :0]


def null_part(
    subspace: Float[np.ndarray, "P m"], null: Float[np.ndarray, "P k"], close: float
) -> Float[np.ndarray, "P j"]:
    """Orthonormal basis of the part of a subspace that is null, from the rows in which it lies.

    A direction is null whose sine with the orthonormal columns `null` is below `close`.
    """
    rows = np.flatnonzero(subspace.any(1))
    inside = orthonormal(subspace[rows], close)
    product = inside.T @ null[rows]
    cosines, vectors = np.linalg.eigh(product @ product.T)  # squared
    chosen = vectors[:, 1 - cosines < close**2]
    part = np.zeros((len(subspace), chosen.shape[1]))
    part[rows] = inside @ chosen
    return part


def outside(
    vectors: Float[np.ndarray, "P m"], explained: Float[np.ndarray, "P e"], close: float
) -> Float[np.ndarray, "P j"]:
    """Orthonormal basis of what vectors add to those explained, which are orthonormal.

    Less than a hundred times `close` counts as nothing.
    """
    if not vectors.shape[1]:
        return vectors
    rest = vectors - explained @ (explained.T @ vectors)
    u, s, _ = np.linalg.svd(rest, full_matrices=False)
    return u[:, s > 100 * close]

"""Norms of rows, as checks of several papers apply them to arrays of NumPy: read from the index formulas of methods."""

import numpy as np
from jaxtyping import Inexact

from lngeom.methods import AbstractNormalizer, LayerNorm, RMSNorm, readings

Rows = Inexact[np.ndarray, "... d"]


def layer_norm(x: Rows) -> Rows:
    """Layer norm over the last axis, with ε = 0; complex numbers are steps of a derivative."""
    return _of_rows(LayerNorm(), x)


def rms_norm(x: Rows) -> Rows:
    """RMS norm over the last axis, with ε = 0."""
    return _of_rows(RMSNorm(), x)


def _of_rows(normalizer: AbstractNormalizer, x: Rows) -> Rows:
    width = x.shape[-1]
    return readings.normalized(normalizer, np.eye(width), x.reshape(-1, width)).reshape(x.shape)

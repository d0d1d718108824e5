"""The layers in extended precision, written apart from the library: NumPy loops over the printed formulas."""

import numpy as np

WIDE = np.longdouble


def row_norm(x, gain, bias, cotangent, eps, centered=True):
    """Value and gradients (x, gain, bias) of the normalization of rows, by the textbook backward formula."""
    x, gain, bias, cotangent = (np.asarray(v, WIDE) for v in (x, gain, bias, cotangent))
    u = x - x.mean(-1, keepdims=True) if centered else x
    sigma = np.sqrt((u * u).mean(-1, keepdims=True) + WIDE(eps))
    n = u / sigma
    d = gain * cotangent
    dx = (d - n * (n * d).mean(-1, keepdims=True)) / sigma
    if centered:
        dx = dx - (d.mean(-1, keepdims=True)) / sigma
    return n * gain + bias, dx, (cotangent * n).sum(0), cotangent.sum(0)


def residual(actual, expected):
    """Largest error on the scale of the largest expected entry."""
    actual, expected = np.asarray(actual).astype(WIDE), np.asarray(expected, WIDE)
    assert actual.shape == expected.shape
    assert np.isfinite(expected).all()
    gap = np.abs(actual - expected).max()
    return float("inf") if not np.isfinite(gap) else float(gap / np.abs(expected).max())

"""Normalization of random networks in NumPy, each value with its pullback of cotangents."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

Pullback = Callable[[Float[np.ndarray, "... M"]], Float[np.ndarray, "... M"]]


def standardized(
    a: Float[np.ndarray, "... M"], axis: int = -1, *, centre: bool = True
) -> tuple[Float[np.ndarray, "... M"], Pullback]:
    r"""Values minus their mean over an axis, divided by their standard deviation; and the pullback.

    With $\hat a = (a - \mu)/\sigma$ the pullback is
    $c \mapsto (c - \mathrm{mean}(c) - \hat a\,\mathrm{mean}(c \odot \hat a))/\sigma$.

    Args:
        a: values.
        axis: negative, so that cotangents may have further axes in front.
        centre: whether the mean is subtracted; without it σ is the root mean square.

    Returns:
        Normalized values, and the pullback.

    Raises:
        ValueError: if the axis is not negative.
    """
    if axis >= 0:
        raise ValueError(f"the axis must be counted from the last one; got {axis}")
    u = a - a.mean(axis, keepdims=True) if centre else a
    sigma = np.sqrt((u**2).mean(axis, keepdims=True))
    value = u / sigma

    def pull(c: Float[np.ndarray, "... M"]) -> Float[np.ndarray, "... M"]:
        rest = c - c.mean(axis, keepdims=True) if centre else c
        return (rest - value * (c * value).mean(axis, keepdims=True)) / sigma

    return value, pull


def unchanged(a: Float[np.ndarray, "... M"]) -> tuple[Float[np.ndarray, "... M"], Pullback]:
    """No normalization."""
    return a, lambda c: c

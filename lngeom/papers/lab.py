"""What checks of several papers share: norms of rows, their pullbacks, powers, means of draws, inequalities."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Inexact
from numpy.typing import ArrayLike

from lngeom.claims import Role, agree, vanishes
from lngeom.claims.evidence import Evidence
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


def relu(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """The positive part."""
    return np.maximum(x, 0)


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


def exponent_of(x: ArrayLike, y: ArrayLike) -> float:
    """The exponent p of y ∝ xᵖ: the slope of log y against log x, by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def mean_is(description: str, draws: Float[np.ndarray, " K"], expected: float, role: Role = Role.SUPPORTS) -> Evidence:
    """Evidence that independent draws have the expected mean, which is not 0: within four standard errors."""
    error = float(draws.std(ddof=1) / len(draws) ** 0.5 / abs(expected))
    what = f"{description}, {len(draws)} draws, relative standard error {error:.1e}"
    return agree(what, draws.mean(), expected, tol=4 * error, role=role)


def at_most(description: str, values: ArrayLike, bound: ArrayLike, role: Role = Role.SUPPORTS) -> Evidence:
    """Evidence that no value is above its bound: the excess vanishes on the scale of the largest bound.

    Args:
        description: what is bounded.
        values: measured.
        bound: positive; one for all values, or one for each.
        role: what it says of the statement.

    Returns:
        The evidence. An excess far beyond rounding shows the opposite.
    """
    values, bound = np.asarray(values, float), np.asarray(bound, float)
    return _short(
        f"{description}: at most {np.max(bound):.3g}, found {np.max(values):.3g}", values - bound, bound, role
    )


def at_least(description: str, values: ArrayLike, bound: ArrayLike, role: Role = Role.SUPPORTS) -> Evidence:
    """Evidence that no value is below its positive bound; arguments and result as for `at_most`."""
    values, bound = np.asarray(values, float), np.asarray(bound, float)
    return _short(
        f"{description}: at least {np.min(bound):.3g}, found {np.min(values):.3g}", bound - values, bound, role
    )


def _short(description: str, excess: np.ndarray, bound: np.ndarray, role: Role) -> Evidence:
    """Evidence that no excess is positive; an excess that is not finite is no evidence."""
    return vanishes(description, np.where(excess <= 0, 0.0, excess), scale=float(np.max(bound)), role=role)

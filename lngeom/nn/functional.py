r"""Normalization layers as pure functions over any leading shape, $z = g \odot n + b$ (Eq. 5).

Every function returns the dtype of its input and computes statistics in at least float32. With `exact=True` there is
no $\epsilon$, and rows are first divided by a power of two. Multiplying the input by $2^k$ then changes no bit of the
output. A row of zero variance gives the bias, with gradient zero.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom._core.types import require_array
from lngeom.nn._rows import Rule, block_rows, compute_dtype, normalize_rows, standardize, statistics

DEFAULT_EPS = 1e-5


def check_eps(eps: float | None, exact: bool, default: float = DEFAULT_EPS) -> float:
    r"""The $\epsilon$ to use: `default`, or 0 in exact mode, where none was given.

    Args:
        eps: the given value, or None.
        exact: whether the mode is exact.
        default: value for None in the other mode.

    Returns:
        The value.

    Raises:
        ValueError: if it is negative, or positive in exact mode.
    """
    if eps is None:
        return 0.0 if exact else default
    if not eps >= 0:
        raise ValueError(f"eps must be at least 0, it is added to a variance; got {eps}")
    if exact and eps > 0:
        raise ValueError(f"exact=True allows no eps; got eps = {eps}: leave it out, or set exact=False")
    return float(eps)


def check_values(name: str, x: Array) -> None:
    """Raises for values that cannot be normalized.

    Args:
        name: name of the argument.
        x: its value.

    Raises:
        ValueError: if x is no array, not floating point or has no units.
    """
    require_array(name, x)
    if not jnp.issubdtype(jnp.result_type(x), jnp.floating):
        raise ValueError(
            f"{name} must be floating point; got dtype {jnp.result_type(x)}: convert with {name}.astype(jnp.float32)"
        )
    if jnp.ndim(x) < 1 or jnp.shape(x)[-1] == 0:
        raise ValueError(f"{name} must have a last axis of at least one unit; got shape {jnp.shape(x)}")


def vector(name: str, value: Array | None, like: Array, units: int, default: float) -> Array:
    """The gain or bias as a vector in the dtype of the statistics.

    Args:
        name: of the argument.
        value: of shape [H], or None.
        like: what is normalized.
        units: H.
        default: every entry, where value is None.

    Returns:
        The vector.

    Raises:
        ValueError: if the value is of another shape or not floating point.
    """
    if value is None:
        return jnp.full((units,), default, compute_dtype(like))
    if jnp.shape(value) != (units,):
        raise ValueError(f"{name} must have shape [H] = ({units},), one entry a unit; got {jnp.shape(value)}")
    if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        raise ValueError(f"{name} must be floating point; got dtype {jnp.result_type(value)}")
    return jnp.asarray(value).astype(compute_dtype(like))


def _check_width(size: int, eps: float, exact: bool, what: str) -> None:
    if size == 1 and eps == 0 and not exact:
        raise ValueError(
            f"layer norm of {what} of one unit is undefined: its variance is always zero; "
            "use at least two units, eps > 0, or exact=True, which returns the bias"
        )


@partial(jax.jit, static_argnames=("rule",), inline=True)
def _over_last_axis(rule, x, gain, bias):
    rows = x.reshape(-1, x.shape[-1])
    return normalize_rows(rule, block_rows(*rows.shape), rows, gain, bias).reshape(x.shape)


def layer_norm(
    x: Float[Array, "*batch H"],
    gain: Float[Array, " H"] | None = None,
    bias: Float[Array, " H"] | None = None,
    *,
    eps: float | None = None,
    exact: bool = False,
) -> Float[Array, "*batch H"]:
    r"""Layer normalization (Eqs. 3, 15–16), $g \odot (x - \mu)/\sqrt{\sigma^2 + \epsilon} + b$.

    Args:
        x: summed inputs, of any leading shape; statistics are taken over the last axis.
        gain: g; ones by default.
        bias: b; zeros by default.
        eps: $\epsilon$; 1e-5 by default, 0 in exact mode.
        exact: whether scaling and constant rows are handled exactly (see the module).

    Returns:
        Normalized values, of the shape and dtype of x. A row with a NaN is NaN; the others are untouched.

    Raises:
        ValueError: if x is not floating point or has no units, if shapes do not match, if eps is not allowed,
            or if there is one unit and no eps.

    Example:
        >>> import jax.numpy as jnp
        >>> print(layer_norm(jnp.array([[1.0, 2.0, 3.0, 4.0]]), exact=True).round(3))
        [[-1.342 -0.447  0.447  1.342]]
    """
    check_values("x", x)
    eps, units = check_eps(eps, exact), jnp.shape(x)[-1]
    _check_width(units, eps, exact, "a layer")
    x = jnp.asarray(x)
    gain, bias = vector("gain", gain, x, units, 1), vector("bias", bias, x, units, 0)
    return _over_last_axis(Rule(eps, True, exact), x, gain, bias)


def rms_norm(
    x: Float[Array, "*batch H"],
    gain: Float[Array, " H"] | None = None,
    bias: Float[Array, " H"] | None = None,
    *,
    eps: float | None = None,
    exact: bool = False,
) -> Float[Array, "*batch H"]:
    r"""Root mean square normalization (arXiv 1910.07467), $g \odot x/\sqrt{E[x^2] + \epsilon} + b$.

    Args:
        x: summed inputs, of any leading shape; statistics are taken over the last axis.
        gain: g; ones by default.
        bias: b; zeros by default.
        eps: $\epsilon$; 1e-5 by default, 0 in exact mode.
        exact: whether scaling and zero rows are handled exactly.

    Returns:
        Normalized values, of the shape and dtype of x.

    Raises:
        ValueError: if x is not floating point or has no units, if shapes do not match, or if eps is not
            allowed.
    """
    check_values("x", x)
    x, units = jnp.asarray(x), jnp.shape(x)[-1]
    gain, bias = vector("gain", gain, x, units, 1), vector("bias", bias, x, units, 0)
    return _over_last_axis(Rule(check_eps(eps, exact), False, exact), x, gain, bias)


@partial(jax.jit, static_argnames=("rule", "groups", "positions"), inline=True)
def _over_groups(rule, groups, positions, x, gain, bias):
    units = x.shape[-1]
    leading = x.ndim - 1 - positions
    samples = x.reshape(math.prod(x.shape[:leading]), *x.shape[leading:])
    pooled, size = math.prod(samples.shape[1:-1]), units // groups
    split = samples.reshape(samples.shape[0], pooled, groups, size)
    rows = jnp.moveaxis(split, 2, 1).reshape(samples.shape[0], groups, pooled * size)
    gain, bias = (jnp.tile(v.reshape(groups, -1), (1, pooled)) for v in (gain, bias))
    normalized = jax.vmap(partial(normalize_rows, rule, None), (1, 0, 0), 1)(rows, gain, bias)
    merged = jnp.moveaxis(normalized.reshape(samples.shape[0], groups, pooled, size), 1, 2)
    return merged.reshape(samples.shape).reshape(x.shape)


def group_norm(
    x: Float[Array, "*batch H"],
    gain: Float[Array, " H"] | None = None,
    bias: Float[Array, " H"] | None = None,
    *,
    groups: int,
    positions: int = 0,
    eps: float | None = None,
    exact: bool = False,
) -> Float[Array, "*batch H"]:
    r"""Group normalization (arXiv 1803.08494): layer norm of each of `groups` blocks of consecutive units.

    Args:
        x: summed inputs, units (channels) last.
        gain: g; ones by default.
        bias: b; zeros by default.
        groups: number of groups; divides H. With `groups=H` and `positions ≥ 1` this is instance norm.
        positions: number of axes before the last that hold positions. Statistics are pooled over them too.
        eps: $\epsilon$; 1e-5 by default, 0 in exact mode.
        exact: whether scaling and constant groups are handled exactly.

    Returns:
        Normalized values, of the shape and dtype of x.

    Raises:
        ValueError: if x is not floating point or has no units, if shapes or groups do not match, or if eps is
            not allowed.
    """
    check_values("x", x)
    x, units = jnp.asarray(x), jnp.shape(x)[-1]
    if groups < 1 or units % groups:
        raise ValueError(f"groups must divide the number of units H = {units}; got {groups}")
    if not 0 <= positions < x.ndim:
        raise ValueError(f"positions must lie between 0 and {x.ndim - 1}, the axes before the last; got {positions}")
    eps = check_eps(eps, exact)
    pooled = math.prod(x.shape[x.ndim - 1 - positions : -1])
    _check_width(pooled * units // groups, eps, exact, "a group")
    gain, bias = vector("gain", gain, x, units, 1), vector("bias", bias, x, units, 0)
    return _over_groups(Rule(eps, True, exact), groups, positions, x, gain, bias)


class RunningStatistics(NamedTuple):
    """Mean and variance of every unit, as batch norm stores them for evaluation, each of shape [H]."""

    mean: Float[Array, " H"]
    variance: Float[Array, " H"]


@partial(jax.jit, static_argnames=("rule", "unbiased"), inline=True)
def _over_batch(rule, unbiased, x, gain, bias):
    rows = x.reshape(-1, x.shape[-1])
    s = statistics(rule, 0, rows)
    y = (standardize(rows, s) * gain[None] + bias[None]).astype(x.dtype).reshape(x.shape)
    scale = 1 if s.inverse_scale is None else 1 / s.inverse_scale
    variance = jnp.where(s.rstd > 0, 1 / jnp.square(jnp.where(s.rstd > 0, s.rstd, 1)) - rule.eps, 0)
    factor = rows.shape[0] / (rows.shape[0] - 1) if unbiased else 1
    batch = RunningStatistics(((s.mean + s.correction) * scale)[0], (variance * scale * scale * factor)[0])
    return y, jax.lax.stop_gradient(batch)


def batch_norm(
    x: Float[Array, "*batch H"],
    gain: Float[Array, " H"] | None = None,
    bias: Float[Array, " H"] | None = None,
    running: RunningStatistics | None = None,
    *,
    training: bool = True,
    momentum: float = 0.9,
    unbiased: bool = False,
    eps: float | None = None,
    exact: bool = False,
) -> tuple[Float[Array, "*batch H"], RunningStatistics]:
    r"""Batch normalization (Eq. 2): statistics of each unit over all leading axes, or stored ones.

    In training, stored statistics r become $r \leftarrow m r + (1 - m) s$ with the statistics s of the batch. No
    gradient flows through them. Without stored statistics, s is returned.

    Args:
        x: summed inputs.
        gain: g; ones by default.
        bias: b; zeros by default.
        running: stored statistics; needed for evaluation.
        training: whether statistics are those of x.
        momentum: m, the weight of the stored statistics.
        unbiased: whether the *stored* variance has the divisor N − 1.
        eps: $\epsilon$; 1e-5 by default, 0 in exact mode.
        exact: whether scaling and constant units are handled exactly (in training).

    Returns:
        Normalized values, of the shape and dtype of x, and the statistics to store.

    Raises:
        ValueError: if x is not floating point or empty, if shapes do not match, if eps is not allowed, or if
            there is nothing stored for evaluation.
    """
    check_values("x", x)
    x, units = jnp.asarray(x), jnp.shape(x)[-1]
    eps = check_eps(eps, exact)
    gain, bias = vector("gain", gain, x, units, 1), vector("bias", bias, x, units, 0)
    if running is not None:
        running = RunningStatistics(
            vector("running mean", running.mean, x, units, 0),
            vector("running variance", running.variance, x, units, 1),
        )
    if not training:
        if running is None:
            raise ValueError("evaluation needs stored statistics: pass running=RunningStatistics(mean, variance)")
        shape = (1,) * (x.ndim - 1) + (units,)
        slope = (gain / jnp.sqrt(running.variance + eps)).reshape(shape)
        centered = x.astype(gain.dtype) - running.mean.reshape(shape)
        return (slope * centered + bias.reshape(shape)).astype(x.dtype), running
    samples = x.size // units
    if samples < (2 if unbiased else 1):
        raise ValueError(f"training statistics need at least {2 if unbiased else 1} sample(s); got shape {x.shape}")
    y, batch = _over_batch(Rule(eps, True, exact), unbiased, x, gain, bias)
    if running is None:
        return y, batch
    return y, jax.tree.map(lambda r, s: momentum * r + (1 - momentum) * s, running, batch)


def weight_norm(
    x: Float[Array, "*batch D"],
    weights: Float[Array, "H D"],
    gain: Float[Array, " H"] | None = None,
    bias: Float[Array, " H"] | None = None,
    *,
    eps: float = 0.0,
    exact: bool = False,
) -> Float[Array, "*batch H"]:
    r"""Weight normalization (text after Eq. 5), $z_i = g_i w_i^\top x/\sqrt{\|w_i\|^2 + \epsilon} + b_i$.

    Args:
        x: inputs.
        weights: incoming weights as rows.
        gain: g; ones by default.
        bias: b; zeros by default.
        eps: $\epsilon$, 0 by default.
        exact: whether scaling of a weight vector is handled exactly.

    Returns:
        Outputs, in the dtype of x. A zero weight vector gives the bias.

    Raises:
        ValueError: if x or weights are not floating point, if shapes do not match, or if eps is not allowed.
    """
    check_values("x", x)
    check_values("weights", weights)
    x, weights = jnp.asarray(x), jnp.asarray(weights)
    if weights.ndim != 2 or weights.shape[1] != x.shape[-1]:
        raise ValueError(
            f"weights must be [H D] with D = {x.shape[-1]}, the last axis of x {x.shape}; got {weights.shape}"
        )
    units, features = weights.shape
    eps = check_eps(eps, exact)
    gain, bias = vector("gain", gain, x, units, 1), vector("bias", bias, x, units, 0)
    directions = rms_norm(weights.astype(gain.dtype), eps=eps / features, exact=exact) / math.sqrt(features)
    shape = (1,) * (x.ndim - 1) + (units,)
    z = jnp.matmul(x.astype(gain.dtype), directions.T)
    return (z * gain.reshape(shape) + bias.reshape(shape)).astype(x.dtype)

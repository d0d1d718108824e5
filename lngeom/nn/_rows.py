r"""Normalization of rows, $y = g \odot n + b$ with $n = (x - \mu)/\sigma$, and its tangent map.

Statistics take two passes: a mean, then the mean and the mean square of the residual. So $\mu$ is an unevaluated sum
of two floats, and $x - \mu$ keeps its digits at any offset. On one CPU device large inputs are processed in blocks of
rows that stay in cache. There the first pass is omitted for a block if a few entries of every row estimate its mean to
about $\sigma$. This is checked. Derivatives have a closed form and are differentiable in both modes. The body of the
blocked tangent map is checkpointed, so that its transpose, the backward pass, is blocked too.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

BLOCK_BYTES = 2**17
"""Bytes of a block of rows in single precision. A few blocks fit the cache of a core."""

STATISTICS_BLOCKS = 4
"""Blocks whose statistics are computed together. Statistics need one block in cache, a backward pass several."""

BLOCK_FROM_BYTES = 2**20
"""Size of the input from which blocks are used."""

LANES = 64
"""Number of partial sums of a sum along a row, a multiple of the length of a vector register."""

PIVOT_SAMPLES = 16
"""Number of evenly spaced entries of a row whose mean estimates that of the row."""


class Rule(NamedTuple):
    r"""The kind of statistics.

    Attributes:
        eps: added to the variance before the square root.
        centered: whether the mean is subtracted (layer norm) or not (RMS norm).
        exact: whether rows are first scaled by a power of two and the mean kept between least and greatest
            entry.
    """

    eps: float
    centered: bool = True
    exact: bool = False


class Statistics(NamedTuple):
    r"""Statistics of $z = 2^{-k} x$, in at least float32, each broadcastable against x.

    Attributes:
        mean: rounded mean of z; None where it is not subtracted.
        correction: mean of what is left, so that $\mu = $ mean + correction; None likewise.
        rstd: $1/\sigma$, and 0 where $\sigma = 0$.
        inverse_scale: the power of two $2^{-k}$; None for 1.
    """

    mean: Float[Array, "..."] | None
    correction: Float[Array, "..."] | None
    rstd: Float[Array, "..."]
    inverse_scale: Float[Array, "..."] | None


def compute_dtype(x: Float[Array, "..."]) -> jnp.dtype:
    """The dtype in which statistics of x are taken: its own, or float32 if that is wider."""
    return jnp.dtype(x.dtype if jnp.finfo(x.dtype).bits >= 32 else jnp.float32)


def power_of_two(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The largest power of two that is at most x ≥ 0, kept where it and its inverse are normal numbers."""
    info = jnp.finfo(x.dtype)
    bits = lax.bitcast_convert_type(x, jnp.dtype(f"uint{info.bits}"))
    mantissa = jnp.array(info.nmant, bits.dtype)
    power = lax.bitcast_convert_type((bits >> mantissa) << mantissa, x.dtype)
    return jnp.clip(power, info.tiny, 1 / info.tiny)


def _scaled(x: Float[Array, "..."], statistics: Statistics) -> Float[Array, "..."]:
    """$z = 2^{-k} x$ in the dtype of the statistics."""
    x = x.astype(statistics.rstd.dtype)
    return x if statistics.inverse_scale is None else x * statistics.inverse_scale


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def statistics(rule: Rule, axis: int, x: Float[Array, "..."]) -> Statistics:
    r"""Corrected two-pass statistics of x along an axis.

    $m = E[z]$, $d = E[z - m]$, $\sigma^2 = E[(z - m)^2] - d^2 + \epsilon$; their derivatives are
    $\dot\mu = E[\dot z]$ and $\dot{(1/\sigma)} = -\sigma^{-2} E[n \dot z]$.

    Args:
        rule: which statistics.
        axis: the axis they are taken along.
        x: values.

    Returns:
        Statistics, with `axis` kept at length 1.
    """
    mean = partial(jnp.mean, axis=axis, keepdims=True)
    z = x.astype(compute_dtype(x))
    center = correction = inverse_scale = None
    if rule.exact:
        inverse_scale = 1 / power_of_two(jnp.max(jnp.abs(z), axis, keepdims=True))
        z = z * inverse_scale
    if rule.centered:
        center = mean(z)
        if rule.exact:  # then the residual of a constant row is zero, not the rounding of its mean
            center = jnp.clip(center, jnp.min(z, axis, keepdims=True), jnp.max(z, axis, keepdims=True))
        z = z - center
        correction = mean(z)
        variance = jnp.maximum(mean(jnp.square(z)) - jnp.square(correction), 0)
    else:
        variance = mean(jnp.square(z))
    return Statistics(center, correction, _reciprocal_root(variance + rule.eps), inverse_scale)


def _reciprocal_root(variance: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""$1/\sigma$, and 0 where $\sigma = 0$."""
    positive = variance > 0
    return jnp.where(positive, 1 / jnp.sqrt(jnp.where(positive, variance, 1)), 0)


def _statistics_tangent(rule, axis, x, s, dx):
    mean = partial(jnp.mean, axis=axis, keepdims=True)
    dz = _scaled(dx, s)
    dmean = mean(dz) if rule.centered else None
    drstd = -jnp.square(s.rstd) * mean(standardize(x, s) * dz)
    zeros = partial(jax.tree.map, jnp.zeros_like)
    return Statistics(dmean, zeros(s.correction), drstd, zeros(s.inverse_scale))


@statistics.defjvp
def _statistics_jvp(rule, axis, primals, tangents):
    (x,), (dx,) = primals, tangents
    s = statistics(rule, axis, x)
    return s, _statistics_tangent(rule, axis, x, s, dx)


def _is_near(correction: Float[Array, "B 1"], variance: Float[Array, "B 1"]) -> Bool[Array, "B 1"]:
    """Whether a pivot is within a standard deviation of the mean, where the difference of squares keeps its digits."""
    return (jnp.abs(correction) <= jnp.sqrt(variance)) & (variance < jnp.inf)


def _pivoted_statistics(rule: Rule, blocks: Float[Array, "K B H"], index: Int[Array, ""]) -> Statistics:
    r"""Statistics in one pass over a block, about a pivot p near the mean of each row.

    $d = E[z - p]$, $\sigma^2 = E[(z - p)^2] - d^2 + \epsilon$. The difference loses at most a bit while
    $d^2 \le \sigma^2$; a block with a row where that fails, or is not finite, takes the two passes.
    """
    _, rows, width = blocks.shape
    z = blocks[index].astype(compute_dtype(blocks))
    pivot = lax.optimization_barrier(jnp.mean(z[:, :: width // PIVOT_SAMPLES], -1, keepdims=True))
    residual = (z - pivot).reshape(rows, width // LANES, LANES)
    zero = jnp.zeros((), z.dtype)
    lanes = lax.reduce(
        (residual, jnp.square(residual)), (zero, zero), lambda a, b: (a[0] + b[0], a[1] + b[1]), (1,)
    )  # both sums in one sweep, each lane of a register its own
    correction, square = (jnp.sum(v, -1, keepdims=True) / width for v in lanes)
    variance = jnp.maximum(square - jnp.square(correction), 0)
    return lax.cond(
        jnp.all(_is_near(correction, variance)),
        lambda: Statistics(pivot, correction, _reciprocal_root(variance + rule.eps), None),
        lambda: statistics(rule, -1, blocks[index]),  # taken here, as what the branches share would be copied
    )


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def row_statistics(rule: Rule, block: int | None, x: Float[Array, "R H"]) -> Statistics:
    """Statistics of rows, of one block after another.

    Args:
        rule: which statistics.
        block: rows of a block, a divisor of R, up to `STATISTICS_BLOCKS` of which are taken together; None for all.
        x: rows.

    Returns:
        Statistics, with the last axis kept at length 1.
    """
    if block is None or rule.exact or not rule.centered or x.shape[-1] % LANES:
        return statistics(rule, -1, x)
    together = next(k for k in range(STATISTICS_BLOCKS, 0, -1) if len(x) % (k * block) == 0)
    blocks = x.reshape(-1, together * block, x.shape[-1])
    s = lax.map(partial(_pivoted_statistics, rule, blocks), jnp.arange(len(blocks)))
    return jax.tree.map(lambda v: v.reshape(-1, 1), s)


@row_statistics.defjvp
def _row_statistics_jvp(rule, block, primals, tangents):
    (x,), (dx,) = primals, tangents
    s = row_statistics(rule, block, x)
    return s, _statistics_tangent(rule, -1, x, s, dx)


def standardize(x: Float[Array, "..."], s: Statistics) -> Float[Array, "..."]:
    r"""$n = (z - \mu) / \sigma$ in the dtype of the statistics."""
    z = _scaled(x, s)
    if s.mean is not None and s.correction is not None:
        z = (z - s.mean) - s.correction
    return z * s.rstd


def _outer(column: Float[Array, "R 1"], row: Float[Array, "1 H"]) -> Float[Array, "R H"]:
    """Outer product; a matrix product on the CPU, where its transpose is then faster than a reduction."""
    if jax.default_backend() == "cpu":
        return jnp.matmul(column, row, precision=lax.Precision.HIGHEST)
    return column * row


def _tangent(rule, gain, dgain, dbias, x, s, dx):
    r"""$\dot y = g\,(\dot w - E[\dot w] - n E[n \dot w]) + n \dot g + \dot b$ with $\dot w = \dot z / \sigma$.

    Signs are those of columns: the transpose of a difference would negate whole blocks.
    """
    n, dw = standardize(x, s), s.rstd * _scaled(dx, s)
    mean = partial(jnp.mean, axis=-1, keepdims=True)
    ones = jnp.ones_like(s.rstd)
    slope = _outer(ones, dgain) + _outer(-mean(n * dw), gain)
    offset = _outer(ones, dbias)
    if rule.centered:
        offset = offset + _outer(-mean(dw), gain)
    return (gain * dw + n * slope + offset).astype(dx.dtype)


def over_blocks(function: Callable[..., Float[Array, "B H"]], block: int | None, *rows: Any) -> Float[Array, "R H"]:
    """Applies a function of rows to one block of rows after another, saving nothing between its passes.

    Args:
        function: maps pytrees of arrays [B ...] to an array [B H], row by row.
        block: rows a block, a divisor of R; None for all at once.
        *rows: pytrees of arrays [R ...].

    Returns:
        What the function would return for all rows.
    """
    if block is None:
        return function(*rows)
    blocks = jax.tree.map(lambda v: v.reshape(-1, block, *v.shape[1:]), rows)
    body = jax.checkpoint(lambda carry, block: (carry, function(*block)), prevent_cse=False)
    result = lax.scan(body, None, blocks)[1]
    return result.reshape(-1, *result.shape[2:])


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def normalize_rows(
    rule: Rule, block: int | None, x: Float[Array, "R H"], gain: Float[Array, " H"], bias: Float[Array, " H"]
) -> Float[Array, "R H"]:
    r"""$y = g \odot n + b$ for every row of x.

    Args:
        rule: which statistics.
        block: rows of a block of the tangent map and of the backward pass; None for all at once.
        x: rows.
        gain: g, in the dtype of the statistics.
        bias: b, likewise.

    Returns:
        y, in the dtype of x.
    """
    n = standardize(x, row_statistics(rule, block, x))
    return (n * gain[None] + bias[None]).astype(x.dtype)


@normalize_rows.defjvp
def _normalize_rows_jvp(rule, block, primals, tangents):
    x, gain, _ = primals
    dx, dgain, dbias = tangents
    s = row_statistics(rule, block, x)
    return normalize_rows(rule, block, *primals), over_blocks(
        partial(_tangent, rule, gain[None], dgain[None], dbias[None]), block, x, s, dx
    )


def block_rows(rows: int, width: int) -> int | None:
    """Rows of a block for an input of this size: a divisor of the rows, near `BLOCK_BYTES`.

    Args:
        rows: number of rows.
        width: length of a row.

    Returns:
        The number, or None where blocks do not pay: a small input, a row count without a fitting divisor, an
        accelerator, or several devices, over which the rows may be sharded.
    """
    if jax.default_backend() != "cpu" or jax.device_count() > 1 or 4 * rows * width < BLOCK_FROM_BYTES:
        return None
    target = max(BLOCK_BYTES // (4 * width), 1)
    for block in range(target, target // 4, -1):
        if rows % block == 0:
            return block
    return None

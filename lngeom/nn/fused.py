r"""Layer norm as one kernel for each direction, for NVIDIA GPUs from Hopper on (Pallas, Mosaic GPU).

A warpgroup holds a row in registers, and fetches the next one meanwhile: x is read once and y is written once. The
backward kernel reads x and the cotangent and writes dx, with one partial sum of dγ and dβ per block, in float32; it
fetches ahead up to a width of `AHEAD`. On other devices the function falls back to `lngeom.nn.layer_norm`, which also
has forward mode.

The tests run the kernels in interpretation and lower them for CUDA. Their speed on an H100 stands in
`analysis/BENCHMARKS.md`.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.nn._rows import Rule, block_rows, compute_dtype, normalize_rows
from lngeom.nn.functional import check_eps, check_values, vector

LANES = 128
"""Threads of a warpgroup; a row is spread over them evenly."""

WIDEST = 8192
"""Longest row that is held in registers: 64 single precision numbers a thread."""

MULTIPROCESSORS = 132
"""Of an H100 or H200 in SXM form. On others the kernels are right, with a number of blocks that fits less well."""

MOST_BLOCKS = 8
"""Blocks of a multiprocessor, at most: twice as many made the forward kernel 1 % faster."""

AHEAD = 4096
"""Longest row that the backward kernel fetches ahead; registers do not hold a longer one."""

REGISTERS = 65_536
"""Of one multiprocessor, each of 32 bits; a thread has at most 255."""


def fused_layer_norm(
    x: Float[Array, "*batch H"],
    gain: Float[Array, " H"] | None = None,
    bias: Float[Array, " H"] | None = None,
    *,
    eps: float | None = None,
    interpret: Any = False,
) -> Float[Array, "*batch H"]:
    r"""Layer normalization $g \odot (x - \mu)/\sqrt{\sigma^2 + \epsilon} + b$ (Eqs. 3, 15–16), in one kernel.

    It has reverse mode only: use `layer_norm` under `jvp`, `jacfwd` or in Fisher products.

    Args:
        x: summed inputs, of any leading shape; statistics are taken over the last axis.
        gain: g; ones by default.
        bias: b; zeros by default.
        eps: $\epsilon$; 1e-5 by default.
        interpret: parameters of Pallas' interpretation for GPUs, to run the kernels elsewhere.

    Returns:
        Normalized values, of the shape and dtype of x.

    Raises:
        ValueError: if x is not floating point or has no units, if shapes do not match, or if eps < 0.

    Example:
        >>> import jax.numpy as jnp
        >>> print(fused_layer_norm(jnp.array([[1.0, 2.0, 3.0, 4.0]])).round(3))
        [[-1.342 -0.447  0.447  1.342]]
    """
    check_values("x", x)
    x = jnp.asarray(x)
    units, eps = x.shape[-1], check_eps(eps, exact=False)
    gain, bias = vector("gain", gain, x, units, 1), vector("bias", bias, x, units, 0)
    rows = x.reshape(-1, units)
    if is_supported(rows) and (interpret or _has_kernels()):
        return jnp.reshape(_fused(eps, interpret, rows, gain, bias), x.shape)
    return normalize_rows(Rule(eps), block_rows(*rows.shape), rows, gain, bias).reshape(x.shape)


def is_supported(rows: Float[Array, "R H"]) -> bool:
    """Whether the kernels take rows of this dtype and width.

    Args:
        rows: R rows of H units.

    Returns:
        Whether they do. XLA processes other rows.
    """
    count, units = rows.shape
    return count > 0 and units % LANES == 0 and units <= WIDEST and compute_dtype(rows) == jnp.float32


def _has_kernels() -> bool:
    device = jax.devices()[0]
    return device.platform == "gpu" and float(getattr(device, "compute_capability", 0)) >= 9.0


def _kernel(body: Any, outputs: Any, blocks: int, interpret: Any) -> Any:
    from jax.experimental.pallas import mosaic_gpu

    def spread(units: int) -> Any:
        """Whatever its dtype, a thread gets the same entries of a row."""
        return mosaic_gpu.Layout.WG_STRIDED((units,), vec_size=math.gcd(units // LANES, 4))

    def load(ref: Any, *index: Any) -> Array:
        """A row or vector, in its own dtype."""
        if interpret:
            return ref[index or ...]
        view = ref.at[index] if index else ref
        whole = () if jax.__version_info__ >= (0, 11) else ((),)  # before, the index was an argument of its own
        return mosaic_gpu.load(view, *whole, layout=spread(ref.shape[-1]))

    def zeros(units: int) -> Array:
        """A row of zeros in single precision."""
        row = jnp.zeros(units, jnp.float32)
        return row if interpret else mosaic_gpu.layout_cast(row, spread(units))

    options = {"interpret": interpret} if interpret else {}
    body = partial(body, load, zeros, blocks)
    return mosaic_gpu.kernel(body, out_type=outputs, grid=(blocks,), grid_names=("block",), **options)


def _blocks(rows: int, each: int) -> int:
    """Number of blocks: `each` a multiprocessor, and each of at least one row."""
    return min(rows, each * MULTIPROCESSORS)


def _resident(units: int) -> int:
    """Blocks of the backward kernel that a multiprocessor holds: a thread keeps its part of seven rows, and 32 more."""
    return min(MOST_BLOCKS, REGISTERS // (LANES * min(255, 7 * units // LANES + 32)))


def _over_rows(rows: int, blocks: int, fetch: Any, step: Any, total: Any, ahead: bool = True) -> Any:
    """The total after `step` of each row of this block, every `blocks`-th; `ahead`, the next is fetched meanwhile."""
    first = jax.lax.axis_index("block")

    def advance(k: Any, state: Any) -> Any:
        row, (fetched, total) = first + k * blocks, state
        if ahead:
            following = fetch(jnp.minimum(row + blocks, rows - 1))
        else:
            fetched, following = fetch(row), ()
        return following, step(row, fetched, total)

    start = fetch(first) if ahead else (), total
    return jax.lax.fori_loop(0, (rows - first + blocks - 1) // blocks, advance, start)[1]


def _single(row: Array) -> Array:
    return row.astype(jnp.float32)


def _mean(row: Float[Array, " H"]) -> Float[Array, ""]:
    return jnp.sum(row) / row.shape[0]


def _forward_body(load, _, blocks, x, gain, bias, y, *residuals, eps):
    g, b = _single(load(gain)), _single(load(bias))

    def step(row, fetched, total):
        z = _single(fetched)
        mean = _mean(z)
        z = z - mean
        z = z - _mean(z)  # the rounding of the mean
        rstd = jax.lax.rsqrt(_mean(z * z) + eps)
        y[row] = (z * rstd * g + b).astype(y.dtype)
        for ref, value in zip(residuals, (mean, rstd), strict=False):
            ref[row] = value
        return total

    _over_rows(x.shape[0], blocks, lambda row: load(x, row), step, ())


def _backward_body(load, zeros, blocks, x, gain, mean, rstd, dy, dx, dgain, dbias):
    (rows, units), block, g = x.shape, jax.lax.axis_index("block"), _single(load(gain))

    def step(row, fetched, total):
        z, d = _single(fetched[0]) - mean[row], _single(fetched[1])
        s = rstd[row]
        n, a = (z - _mean(z)) * s, g * d
        dx[row] = (s * (a - _mean(a) - n * _mean(n * a))).astype(dx.dtype)
        return total[0] + n * d, total[1] + d

    fetch = lambda row: (load(x, row), load(dy, row))  # noqa: E731
    dgain[block], dbias[block] = _over_rows(rows, blocks, fetch, step, (zeros(units), zeros(units)), units <= AHEAD)


def _forward(eps, interpret, rows, gain, bias, *, residuals):
    statistic = jax.ShapeDtypeStruct((rows.shape[0],), jnp.float32)
    outputs = [jax.ShapeDtypeStruct(rows.shape, rows.dtype), *([statistic] * 2 if residuals else [])]
    blocks = _blocks(rows.shape[0], MOST_BLOCKS)
    return _kernel(partial(_forward_body, eps=eps), outputs, blocks, interpret)(rows, gain, bias)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _fused(eps, interpret, rows, gain, bias):
    return _forward(eps, interpret, rows, gain, bias, residuals=False)[0]


def _fused_forward(eps, interpret, rows, gain, bias):
    y, mean, rstd = _forward(eps, interpret, rows, gain, bias, residuals=True)
    return y, (rows, gain, mean, rstd)


def _fused_backward(eps, interpret, residuals, dy):
    rows, gain, mean, rstd = residuals
    blocks = _blocks(rows.shape[0], _resident(rows.shape[1]))
    partial_sums = jax.ShapeDtypeStruct((blocks, rows.shape[1]), jnp.float32)
    outputs = [jax.ShapeDtypeStruct(rows.shape, rows.dtype), partial_sums, partial_sums]
    dx, dgain, dbias = _kernel(_backward_body, outputs, blocks, interpret)(rows, gain, mean, rstd, dy)
    return dx, jnp.sum(dgain, 0), jnp.sum(dbias, 0)


_fused.defvjp(_fused_forward, _fused_backward)

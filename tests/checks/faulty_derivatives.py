"""Layers whose outputs are right and whose derivatives are not, and the same layers without the fault.

A source names the public report in which the fault was found; the programs are our own.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from lngeom.checks.subject import Opened, Subject

N, H = 3, 6  # of the inputs that the check draws
EPS = 1e-5


class Norm(NamedTuple):
    """Where a norm takes its statistics.

    Attributes:
        axis: of the units, or of the batch.
        centred: whether it subtracts the mean.
        fixed: whether mean and scale are stored ones.
    """

    axis: int = -1
    centred: bool = True
    fixed: bool = False

    def parts(self, a):
        """The normalized inputs and the scale."""
        if self.fixed:
            return (a - 0.5) / 1.5, jnp.full_like(a, 1.5)
        mean = a.mean(self.axis, keepdims=True) if self.centred else 0.0
        scale = jnp.sqrt(jnp.mean((a - mean) ** 2, self.axis, keepdims=True) + EPS)
        return (a - mean) / scale, scale

    def through(self, a, g):
        """The gradient in the inputs for the gradient g in the normalized inputs."""
        n, scale = self.parts(a)
        if self.fixed:
            return g / scale
        inner = g - n * jnp.mean(g * n, self.axis, keepdims=True)
        return (inner - g.mean(self.axis, keepdims=True) * self.centred) / scale

    def right(self, a, gain, c):
        """The backward pass without a fault."""
        return self.through(a, c * gain), jnp.sum(c * self.parts(a)[0], 0), jnp.sum(c, 0)


LAYER, RMS, BATCH, EVALUATION = Norm(), Norm(centred=False), Norm(axis=0), Norm(fixed=True)


def in_inputs(made):
    """A fault in the gradient of the inputs alone."""
    return lambda norm: lambda a, gain, c: (made(norm, a, gain, c), *norm.right(a, gain, c)[1:])


def in_gain(made):
    """A fault in the gradient of the gain alone."""

    def backward(norm):
        def run(a, gain, c):
            found = norm.right(a, gain, c)
            return found[0], made(norm, a, c), found[2]

        return run

    return backward


def _no_scale(norm, a, gain, c):
    g = c * gain
    return (g - g.mean(norm.axis, keepdims=True)) / norm.parts(a)[1]


def _no_mean(norm, a, gain, c):
    return Norm(norm.axis, centred=False).through(a - a.mean(norm.axis, keepdims=True), c * gain)


def _divisor(norm, a, gain, c):
    n, scale = norm.parts(a)
    g = c * gain
    return (g - g.mean(-1, keepdims=True) - n * jnp.sum(g * n, -1, keepdims=True) / (H - 1)) / scale


def _unbiased(norm, a, gain, c):
    n, scale = norm.parts(a)
    factor = jnp.sqrt((H - 1) / H)
    g = c * gain
    inner = g - g.mean(-1, keepdims=True) - n * factor**2 * jnp.mean(g * n, -1, keepdims=True)
    return inner * factor / scale


def _row_zero(norm, a, gain, c):
    return norm.through(a, c * gain).at[1].set(0.0)


def _other_row(norm, a, gain, c):
    n, scale = norm.parts(a)
    g = c * gain
    return (g - n * jnp.roll(jnp.mean(g * n, -1, keepdims=True), 1, 0)) / scale


def _no_epsilon(norm, a, gain, c):
    scale = norm.parts(a)[1]
    return norm.through(a, c * gain) * scale / jnp.sqrt(scale**2 - EPS)


def _half_kept(norm):
    def run(a, gain, c):
        n, scale = norm.parts(a)
        n = n.astype(jnp.float16).astype(a.dtype)
        g = c * gain
        inner = (g - n * jnp.mean(g * n, -1, keepdims=True) - g.mean(-1, keepdims=True)) / scale
        return inner, jnp.sum(c * n, 0), jnp.sum(c, 0)

    return run


def _bias_zero(norm):
    return lambda a, gain, c: (*norm.right(a, gain, c)[:2], jnp.zeros(H, a.dtype))


def _cut(norm):
    """Right once: what the backward pass depends on is cut off from the inputs."""
    return lambda a, gain, c: norm.right(jax.lax.stop_gradient(a), jax.lax.stop_gradient(gain), c)


def _mean_twice(norm, a, gain, c):
    """The mean of the cotangents is subtracted twice."""
    g = c * gain
    return norm.through(a, g) - g.mean(-1, keepdims=True) / norm.parts(a)[1]


def _last_block(norm, a, gain, c):
    """Of the sum over a row only the last block survives."""
    n, scale = norm.parts(a)
    g = c * gain
    return (g - g.mean(-1, keepdims=True) - n * jnp.sum((g * n)[:, H // 2 :], -1, keepdims=True) / H) / scale


def _gain_in_scale(norm, a, gain, c):
    """The term of the scale is multiplied by the gain twice."""
    n, scale = norm.parts(a)
    g = c * gain
    return (g - gain * n * jnp.mean(g * n, -1, keepdims=True)) / scale


def _scale_kept(norm):
    """Mean and 1/σ are kept in 16 bits."""

    def run(a, gain, c):
        half = lambda value: value.astype(jnp.float16).astype(a.dtype)  # noqa: E731
        inverse = half(1 / norm.parts(a)[1])
        n, g = (a - half(a.mean(-1, keepdims=True))) * inverse, c * gain
        inner = g - n * jnp.mean(g * n, -1, keepdims=True) - g.mean(-1, keepdims=True)
        return inner * inverse, jnp.sum(c * n, 0), jnp.sum(c, 0)

    return run


def _swapped(norm):
    """The gradients of gain and bias change places."""

    def run(a, gain, c):
        by_inputs, by_gain, by_bias = norm.right(a, gain, c)
        return by_inputs, by_bias, by_gain

    return run


def _narrow_sum(norm):
    """The sum of the gain's gradient is taken in 16 bits where the inputs are float32."""

    def run(a, gain, c):
        found = norm.right(a, gain, c)
        narrow = jnp.sum((c * norm.parts(a)[0]).astype(jnp.bfloat16), 0).astype(a.dtype)
        return found[0], narrow if a.dtype == jnp.float32 else found[1], found[2]

    return run


class Fault(NamedTuple):
    """A norm, its backward pass, words of the diagnosis, and the public report, where it is from one."""

    norm: Norm
    backward: Callable
    words: str
    source: str = ""


CONSTANTS = in_inputs(lambda norm, a, gain, c: c * gain / norm.parts(a)[1])
NO_GAIN = in_inputs(lambda norm, a, gain, c: norm.through(a, c))
FAULTS = {
    "constants": Fault(LAYER, CONSTANTS, "mean and variance of a row are treated as constants"),
    "constants of the batch": Fault(
        BATCH,
        CONSTANTS,
        "mean and variance of the batch are treated as constants",
        "https://github.com/facebookresearch/CrypTen/pull/143",
    ),
    "no mean": Fault(LAYER, in_inputs(_no_mean), "the derivative of the mean of a row is missing or wrong"),
    "no scale": Fault(LAYER, in_inputs(_no_scale), "the derivative of the scale of a row is missing"),
    "divisor": Fault(
        LAYER, in_inputs(_divisor), "the derivative of the scale of a row is missing or has a wrong factor"
    ),
    "unbiased": Fault(LAYER, in_inputs(_unbiased), "1/σ of a row is √(5/6) times the true one, as by another divisor"),
    "unbiased, all": Fault(
        LAYER,
        in_inputs(lambda norm, a, gain, c: norm.through(a, c * gain) * jnp.sqrt((H - 1) / H)),
        "√(5/6), as by another divisor of a variance, times the true one",
    ),
    "row zero": Fault(LAYER, in_inputs(_row_zero), "Gradient in inputs: it is zero in row 1"),
    "unit zero": Fault(
        RMS,
        in_inputs(lambda norm, a, gain, c: norm.through(a, c * gain).at[:, 2].set(0.0)),
        "Gradient in inputs: it is zero in unit 2",
    ),
    "other row": Fault(
        RMS,
        in_inputs(_other_row),
        "the derivative of the scale of a row is missing or has a wrong factor",
        "https://github.com/BobMcDear/attorch/issues/17",
    ),
    "no gain": Fault(RMS, NO_GAIN, "as if gain were 1", "https://github.com/karpathy/llm.c/pull/763"),
    "no gain, batch": Fault(BATCH, NO_GAIN, "as if gain were 1", "https://github.com/denizyuret/Knet.jl/issues/288"),
    "gain twice": Fault(
        LAYER, in_inputs(lambda norm, a, gain, c: norm.through(a, c * gain**2)), "as if gain were squared"
    ),
    "training in evaluation": Fault(
        EVALUATION,
        in_inputs(lambda norm, a, gain, c: BATCH.through(a, c * gain)),
        "Gradient in inputs",
        "https://github.com/pytorch/xla/issues/913",
    ),
    "no epsilon": Fault(LAYER, in_inputs(_no_epsilon), "along a row off by one factor, by another along the next"),
    "scale squared": Fault(
        LAYER,
        in_inputs(lambda norm, a, gain, c: norm.through(a, c * gain) / norm.parts(a)[1]),
        "along a row off by one factor, by another along the next",
    ),
    "sign": Fault(LAYER, in_inputs(lambda norm, a, gain, c: -norm.through(a, c * gain)), "minus the true one"),
    "gain zero": Fault(
        RMS,
        in_gain(lambda norm, a, c: jnp.zeros(H, a.dtype)),
        "Gradient in gain: it is zero",
        "https://github.com/unslothai/unsloth/issues/4533",
    ),
    "all zero": Fault(
        LAYER,
        lambda norm: lambda a, gain, c: (jnp.zeros_like(a), jnp.zeros(H, a.dtype), jnp.zeros(H, a.dtype)),
        "Gradient in inputs: it is zero",
        "https://github.com/huggingface/candle/pull/3613",
    ),
    "gain mean": Fault(
        LAYER, in_gain(lambda norm, a, c: jnp.mean(c * norm.parts(a)[0], 0)), "one over the number of rows (3) times"
    ),
    "gain of inputs": Fault(
        LAYER,
        in_gain(lambda norm, a, c: jnp.sum(c * a, 0)),
        "cotangents are multiplied by the inputs, not by the normalized inputs",
    ),
    "last row": Fault(LAYER, in_gain(lambda norm, a, c: c[-1] * norm.parts(a)[0][-1]), "only the last row counts"),
    "sum over units": Fault(
        LAYER,
        in_gain(lambda norm, a, c: jnp.full(H, jnp.sum(c * norm.parts(a)[0]))),
        "every entry is the sum over all units",
    ),
    "a row masked": Fault(
        LAYER, in_gain(lambda norm, a, c: jnp.sum((c * norm.parts(a)[0])[1:], 0)), "the first row is left out"
    ),
    "bias zero": Fault(LAYER, _bias_zero, "Gradient in bias: it is zero"),
    "half kept": Fault(LAYER, _half_kept, "as a tensor kept in float16 makes it"),
    "narrow sum": Fault(
        LAYER,
        _narrow_sum,
        "Right in float64, but vjp is off by",
        "https://github.com/linkedin/Liger-Kernel/pull/950",
    ),
    "scale kept": Fault(
        LAYER, _scale_kept, "as a tensor kept in float16 makes it", "https://github.com/flagos-ai/FlagGems/pull/221"
    ),
    "constants, RMS": Fault(
        RMS,
        CONSTANTS,
        "mean and variance of a row are treated as constants",
        "https://github.com/ooples/AiDotNet/pull/695",
    ),
    "mean twice": Fault(
        LAYER,
        in_inputs(_mean_twice),
        "the derivative of the mean of a row is missing or wrong",
        "https://github.com/tenstorrent/tt-metal/issues/53204",
    ),
    "last block": Fault(
        LAYER,
        in_inputs(_last_block),
        "the derivative of the scale of a row is missing or has a wrong factor",
        "https://github.com/tenstorrent/tt-metal/issues/53204",
    ),
    "gain in scale": Fault(
        RMS,
        in_inputs(_gain_in_scale),
        "the derivative of the scale of a row is multiplied by gain once too often",
        "https://github.com/NVIDIA/Megatron-LM/pull/6859",
    ),
    "swapped": Fault(
        LAYER,
        _swapped,
        "cotangents are multiplied by ones, not by the normalized inputs",
        "https://github.com/Oneflow-Inc/oneflow/pull/6149",
    ),
    "last rows dropped": Fault(
        LAYER,
        in_gain(lambda norm, a, c: jnp.sum((c * norm.parts(a)[0])[:-1], 0)),
        "the last row is left out",
        "https://github.com/BobMcDear/attorch/issues/18",
    ),
    "cut": Fault(LAYER, _cut, "a derivative depends on is cut off", "https://github.com/pytorch/pytorch/issues/175754"),
}


def subject(norm: Norm, backward: Callable) -> Subject:
    """A norm with a gain, a bias, and its own backward pass."""

    @jax.custom_vjp
    def normalized(a, gain, bias):
        return norm.parts(a)[0] * gain + bias

    normalized.defvjp(lambda a, gain, bias: (normalized(a, gain, bias), (a, gain)), lambda kept, c: backward(*kept, c))
    opened = Opened({"gain": np.ones(H), "bias": np.zeros(H)}, lambda p, a: normalized(a, p["gain"], p["bias"]))
    return Subject("norm", opened.closed(), False, units=H, opened=(opened,))

"""Norms with a fault, after public reports of faulty norms; each formula is our own.

A fault has a name, the words that the report of `check_model` must contain, or the rule of `lint`, and a builder of the
model and its inputs. Norms are modules of flax.nnx whose class has the name of the norm that they should be.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


class Fault(NamedTuple):
    """A faulty norm.

    Attributes:
        name: the fault.
        said: words of the report of `check_model` that name it.
        rule: the rule of `lint` that finds it.
        build: makes the model and its inputs.
    """

    name: str
    said: str
    rule: str
    build: Callable[[], tuple[Any, Any]]


FAULTS: list[Fault] = []
GENERATOR = np.random.default_rng(0)


def normal(*shape, scale=1.0, offset=0.0, dtype="float32"):
    return (np.random.default_rng(0).normal(size=shape) * scale + offset).astype(dtype)


def norm(formula, units=8, kind="LayerNorm", bias=True, **attributes):
    """A module that applies f(x, gain, bias), with gains and biases that are not trivial."""

    def __init__(self):
        ramp = jnp.linspace(0.5, 1.7, units, dtype=jnp.float32)
        self.scale = nnx.Param(ramp)
        self.bias = nnx.Param(ramp[::-1] - 1) if bias else None
        for key, value in attributes.items():
            setattr(self, key, value)

    def __call__(self, x):
        b = 0.0 if self.bias is None else self.bias[...].astype(x.dtype)
        return formula(x, self.scale[...].astype(x.dtype), b)

    return type(kind, (nnx.Module,), {"__init__": __init__, "__call__": __call__})()


def fault(name, said="", rule="", *, inputs=None, **options):
    """Registers a formula as a faulty norm."""

    def register(formula):
        given = normal(6, options.get("units", 8)) if inputs is None else inputs
        FAULTS.append(Fault(name, said, rule, lambda: (norm(formula, **options), given)))
        return formula

    return register


def model(name, said="", rule=""):
    """Registers a builder of a faulty model."""

    def register(build):
        FAULTS.append(Fault(name, said, rule, build))
        return build

    return register


def mean(x, axis: Any = -1):
    return x.mean(axis, keepdims=True)


def std(x, axis: Any = -1, ddof=0, eps=1e-5):
    return jnp.sqrt(x.var(axis, keepdims=True, ddof=ddof) + eps)


def rms(x, axis: Any = -1, eps=1e-6):
    return jnp.sqrt(jnp.square(x).mean(axis, keepdims=True) + eps)


TOKENS = normal(6, 5, 8)


@fault("the mean is taken over samples", "the mean over axis 0 is subtracted")
def mean_over_samples(x, w, b):
    return (x - mean(x, 0)) / std(x) * w + b


@fault("the variance is taken over samples", "standard deviation over axis 0")
def variance_over_samples(x, w, b):
    return (x - mean(x)) / std(x, 0) * w + b


@fault("statistics are pooled over the batch too", "standard deviation over axes 0, 1, and", inputs=TOKENS[:, 0])
def over_batch_and_units(x, w, b):
    return (x - mean(x, (0, 1))) / std(x, (0, 1)) * w + b


@fault("statistics over tokens in place of features", "standard deviation over axis 1,", inputs=TOKENS)
def over_tokens(x, w, b):
    return (x - mean(x, 1)) / std(x, 1) * w + b


@fault("the mean is not subtracted", "no mean is subtracted")
def without_mean(x, w, b):
    return x / rms(x) * w + b


@fault("the mean is added", "Weight matrix re-centering: not invariant")
def mean_added(x, w, b):
    return (x + mean(x)) / std(x) * w + b


@fault("division by the variance", "Weight matrix re-scaling: not invariant", "not-scale-invariant")
def by_variance(x, w, b):
    return (x - mean(x)) / (x.var(-1, keepdims=True) + 1e-5) * w + b


@fault("the square of variance and ε", "Weight matrix re-scaling: not invariant", "not-scale-invariant")
def by_square(x, w, b):
    return (x - mean(x)) / (x.var(-1, keepdims=True) + 1e-5) ** 2 * w + b


@fault("a variance with ddof = 1", "= √(1 − 1/8) times", "ddof")
def corrected(x, w, b):
    return (x - mean(x)) / std(x, ddof=1) * w + b


@fault("a sum of squares in place of their mean", "per unit of gain, outputs are 0.35355", kind="RMSNorm", bias=False)
def by_sum(x, w, b):
    return x / jnp.sqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-6) * w


@fault(
    "an RMS norm that divides by the standard deviation",
    "standard deviation over axis 1; no mean is subtracted",
    kind="RMSNorm",
    bias=False,
)
def scale_without_mean(x, w, b):
    return x / std(x) * w


@fault("centred values over the root mean square of uncentred ones", "divided by the root mean square over axis 1, and")
def uncentred_scale(x, w, b):
    return (x - mean(x)) / rms(x) * w + b


@fault("statistics of the first half of the units", "units 4 to 7 of 8 do not enter the statistics")
def first_half(x, w, b):
    return (x - mean(x[:, :4])) / std(x[:, :4]) * w + b


@fault(
    "the tail of a width that is no multiple of 32 is left out of the statistics", "units 96 to 99 of 100", units=100
)
def tail_left_out(x, w, b):
    return (x - mean(x[:, :96])) / std(x[:, :96]) * w + b


@fault("the tail of a width that is no multiple of 32 is not normalized", "96 to 99", kind="RMSNorm", units=100)
def tail_not_normalized(x, w, b):
    return jnp.concatenate([x[:, :96] / rms(x), x[:, 96:]], -1) * w + b


@fault("padded lanes enter the variance at a width that is no power of two", "run over 128 values", units=96)
def padded_variance(x, w, b):
    around = jnp.pad(x, ((0, 0), (0, 32))) - mean(x)
    return (x - mean(x)) / jnp.sqrt(jnp.square(around).sum(-1, keepdims=True) / 96 + 1e-5) * w + b


@fault("padded lanes enter mean and variance", "run over 128 values", units=96)
def padded_sums(x, w, b):
    padded = jnp.pad(x, ((0, 0), (0, 32)))
    return (x - mean(padded)) / std(padded) * w + b


@fault("a mean of squares over the next power of two", "per unit of gain", kind="RMSNorm", units=96, bias=False)
def padded_squares(x, w, b):
    return x / jnp.sqrt(jnp.square(x).sum(-1, keepdims=True) / 128 + 1e-6) * w


@fault("the first value of a row is that of the row before", "Independence of the batch", units=9)
def row_boundary(x, w, b):
    y = (x - mean(x)) / std(x) * w + b
    return y.at[1:, 0].set(y[:-1, 0])


@fault("statistics of the first row are used for all", "Independence of the batch: not invariant")
def first_row(x, w, b):
    return (x - mean(x)[:1]) / std(x)[:1] * w + b


@fault("a residual inside", "Weight matrix re-scaling: not invariant", "not-scale-invariant")
def residual(x, w, b):
    return x + (x - mean(x)) / std(x) * w + b


@fault("tanh in place of a norm", "Weight matrix re-scaling: not invariant")
def saturating(x, w, b):
    return jnp.tanh(x) * w + b


@fault("the mean absolute value in place of the standard deviation", "mean of |x|^1")
def absolute(x, w, b):
    return (x - mean(x)) / (mean(jnp.abs(x - mean(x))) + 1e-5) * w + b


@fault("the largest value in place of the standard deviation", "no norm over axes")
def largest(x, w, b):
    return (x - mean(x)) / (jnp.abs(x - mean(x)).max(-1, keepdims=True) + 1e-5) * w + b


@fault("a variance clamped at 1", "", "epsilon-large", inputs=normal(6, 8, scale=0.3))
def clamped(x, w, b):
    return (x - mean(x)) / jnp.sqrt(jnp.maximum(x.var(-1, keepdims=True), 1.0)) * w + b


@fault("a large ε", "", "epsilon-large", inputs=normal(6, 8, scale=0.02))
def large_epsilon(x, w, b):
    return (x - mean(x)) / std(x, eps=1e-3) * w + b


@fault("no ε", "not finite at zero variance", "epsilon-lost")
def no_epsilon(x, w, b):
    return (x - mean(x)) / std(x, eps=0.0) * w + b


@fault(
    "an ε that float16 cannot hold", "not finite at zero variance", "epsilon-lost", inputs=normal(6, 8, dtype="float16")
)
def small_epsilon(x, w, b):
    return (x - mean(x)) / std(x, eps=1e-12) * w + b


@fault("E[a²] − E[a]² far from zero", "from those in float64", "cancellation", inputs=normal(6, 8, offset=2000.0))
def one_pass(x, w, b):
    variance = mean(jnp.square(x)) - jnp.square(mean(x))
    return (x - mean(x)) / jnp.sqrt(jnp.maximum(variance, 0) + 1e-5) * w + b


@fault("statistics rounded to bfloat16", "", "low-precision", inputs=jnp.asarray(normal(6, 8), jnp.bfloat16))
def short_statistics(x, w, b):
    short = x.astype(jnp.bfloat16)
    return ((short - mean(short)) / std(short)).astype(x.dtype) * w + b


@fault("the gain before the statistics", "", "affine-before-statistics")
def gain_first(x, w, b):
    return (x * w - mean(x * w)) / std(x * w) + b


@fault("a bias before the statistics", "Weight matrix re-scaling: not invariant", "affine-before-statistics")
def bias_first(x, w, b):
    return (x + b - mean(x + b)) / std(x + b) * w


@fault("the gain is not applied", "", "unused-parameter")
def gain_left_out(x, w, b):
    return (x - mean(x)) / std(x) + b


@fault("the gain of a unit is zero", "", "dead-gain")
def dead(x, w, b):
    return (x - mean(x)) / std(x) * w.at[3].set(0) + b


@fault("outputs that change from call to call", "not deterministic", "")
def noisy(x, w, b):
    draw = jax.pure_callback(
        lambda v: GENERATOR.normal(size=v.shape).astype(v.dtype), jax.ShapeDtypeStruct(x.shape, x.dtype), x
    )
    return (x - mean(x)) / std(x) * w + b + 0.1 * draw


def groups_of(x, count, strided=False):
    """Normalizes groups of channels, the last axis, over positions too."""
    split = (-1, count) if strided else (count, -1)
    v = x.reshape(*x.shape[:-1], *split)
    axes = (1, 2) if strided else (1, 3)
    return ((v - mean(v, axes)) / std(v, axes)).reshape(x.shape)


@fault("groups of every second channel", "every 2th place of axis 2", kind="GroupNorm", inputs=TOKENS, num_groups=2)
def interleaved(x, w, b):
    return groups_of(x, 2, strided=True) * w + b


@fault("another number of groups", "4 neighbours of axis 2, and", kind="GroupNorm", inputs=TOKENS, num_groups=4)
def other_groups(x, w, b):
    return groups_of(x, 2) * w + b


@fault(
    "groups pooled over samples",
    "standard deviation over axes 0, 1 and 4 neighbours of axis 2",
    kind="GroupNorm",
    inputs=TOKENS,
    num_groups=2,
)
def groups_over_samples(x, w, b):
    v = x.reshape(*x.shape[:-1], 2, 4)
    return ((v - mean(v, (0, 1, 3))) / std(v, (0, 1, 3))).reshape(x.shape) * w + b


@fault("an instance norm over channels", "standard deviation over axis 2,", kind="InstanceNorm", inputs=TOKENS)
def instance_over_channels(x, w, b):
    return (x - mean(x)) / std(x) * w + b


@fault("a batch norm within samples", "standard deviation over axis 1,", kind="BatchNorm")
def batch_within_samples(x, w, b):
    return (x - mean(x)) / std(x) * w + b


@fault("a batch norm that does not pool positions", "standard deviation over axis 0,", kind="BatchNorm", inputs=TOKENS)
def batch_at_each_position(x, w, b):
    return (x - mean(x, 0)) / std(x, 0) * w + b


@fault("a batch norm with one mean for all channels", "the mean over axes 0, 1, 2", kind="BatchNorm", inputs=TOKENS)
def batch_common_mean(x, w, b):
    return (x - mean(x, (0, 1, 2))) / std(x, (0, 1)) * w + b


@fault(
    "a norm of queries over all heads", "over axes 2, 3", units=4, kind="RMSNorm", bias=False, inputs=normal(6, 5, 2, 4)
)
def pooled_heads(x, w, b):
    return x / rms(x, (2, 3)) * w


class Stat(nnx.Variable):
    """Running statistics."""


def batch_norm(*, update=0.1, power=0.5, evaluation="running", trained=False):
    """A batch norm with running statistics, in which one thing may be wrong."""

    class BatchNorm(nnx.Module):
        def __init__(self):
            ramp = jnp.linspace(0.5, 1.7, 8, dtype=jnp.float32)
            self.scale = nnx.Param(ramp if trained else jnp.ones(8, jnp.float32))
            self.mean, self.var = Stat(jnp.zeros(8, jnp.float32)), Stat(jnp.ones(8, jnp.float32))
            self.use_running_average = False

        def __call__(self, x):
            batch = mean(x, 0)[0], x.var(0)
            stored = self.mean[...], self.var[...]
            running = self.use_running_average and evaluation == "running"
            m, v = stored if running else batch
            if not self.use_running_average:
                for variable, old, new in zip((self.mean, self.var), stored, batch, strict=True):
                    variable[...] = ((1 - update) * old + update * new).astype(old.dtype)
            return (
                (x - m[None]) / (v[None] + 1e-5) ** (power if running else 0.5) * self.scale[...].astype(x.dtype)[None]
            )

    return BatchNorm(), normal(9, 8, offset=3.0, scale=2.0)


@model("running statistics that no step moves", "no step of training moves", "running-statistics")
def never_updated():
    return batch_norm(update=0.0)


@model("momentum of the other library", "", "momentum")
def other_momentum():
    return batch_norm(update=0.9)


@model("statistics of the batch in evaluation", "", "sample-leak")
def batch_in_evaluation():
    return batch_norm(evaluation="batch")


@model("trained gains with the statistics of the start", "evaluation differs from training", "running-statistics")
def initial_statistics():
    return batch_norm(trained=True)


@model("evaluation divides by the running variance", "evaluation differs from training")
def variance_in_evaluation():
    built, X = batch_norm(power=1.0)
    for _ in range(200):
        built(jnp.asarray(X))
    return built, X

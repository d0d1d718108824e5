"""Layers that are deliberately wrong, as functions of summed inputs [N H]."""

import jax.numpy as jnp
import numpy as np


def moments(a, axis=-1):
    return a.mean(axis, keepdims=True), a.var(axis, keepdims=True)


def variance_from_the_wrong_axis(a):
    return (a - a.mean(-1, keepdims=True)) / jnp.sqrt(a.var(0, keepdims=True) + 1e-5)


def missing_eps(a):
    mean, variance = moments(a)
    return (a - mean) / jnp.sqrt(variance)


def statistics_frozen(a):
    return (a - 0.3) / 1.7


def bias_before_the_norm(a):
    return layer_norm(a + jnp.linspace(-1, 1, a.shape[-1], dtype=a.dtype)[None])


def bfloat16_statistics(a):
    mean, variance = moments(a.astype(jnp.bfloat16))
    return (a - mean.astype(a.dtype)) / jnp.sqrt(variance.astype(a.dtype) + 1e-5)


def leakage_of_one_row(a):
    mean, variance = moments(a)
    return (a - mean.at[1].set(mean[0])) / jnp.sqrt(variance + 1e-5)


def dynamic_tanh(a):
    return jnp.tanh(a)


def one_pass_variance(a):
    mean = a.mean(-1, keepdims=True)
    return (a - mean) / jnp.sqrt((a * a).mean(-1, keepdims=True) - mean * mean + 1e-5)


def layer_norm(a):
    mean, variance = moments(a)
    return (a - mean) / jnp.sqrt(variance + 1e-5)


def raises(a):
    raise RuntimeError("no such device")


def raises_on_large(a):
    a = np.asarray(a)
    if np.abs(a).max() > 30:
        raise OverflowError("too large")
    return a / np.sqrt(np.square(a).mean(-1, keepdims=True))


def wrong_shape(a):
    return a.sum(-1)


def returns_a_pair(a):
    return a, a


def returns_integers(a):
    return jnp.sign(a).astype(jnp.int32)


def not_a_number(a):
    return a * jnp.nan


def writes_to_its_input(a):
    a -= a.mean(-1, keepdims=True)
    return a / np.sqrt(np.asarray(a).var(-1, keepdims=True) + 1e-5)


def never_the_same(a, _generator=np.random.default_rng(0)):
    return np.asarray(a) + _generator.normal(size=np.shape(a))


def constant(a):
    return 0 * a + 1


def needs_three(W, X, gain):
    return gain * (X @ W.T)


def float32_inside(a):
    mean, variance = moments(a.astype(jnp.float32))
    return (a - mean.astype(a.dtype)) / jnp.sqrt(variance.astype(a.dtype) + 1e-3)

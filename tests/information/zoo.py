"""Models of every kind the Fisher operator must be right for, and an obviously correct dense reference."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
from lngeom.information import BatchCoupled

from tests.cases import definition, metric_of

FAMILIES = (
    lg.families.Gaussian(0.7),
    lg.families.Bernoulli(),
    lg.families.Binomial(trials=4),
    lg.families.Poisson(),
    lg.families.Gamma(0.5),
    lg.families.InverseGaussian(0.8),
    lg.families.NegativeBinomial(2.5),
    lg.families.Categorical(),
)


class Case(NamedTuple):
    name: str
    apply: Callable[[Any, Any], jax.Array]
    params: Any
    X: Any
    family: lg.families.AbstractFamily
    coupled: bool = False
    mask: Any = None

    def fisher(self, **kwargs) -> lg.FisherOperator:
        given = {"family": self.family, "mask": self.mask, "batch_coupled": self.coupled or None} | kwargs
        return lg.fisher(self.apply, self.params, self.X, **given)


def dense_reference(case: Case) -> jax.Array:
    """The matrix of a case by its definition."""
    return definition(case.apply, metric_of(case.family))(case.params, case.X, case.mask)


def _normalize(x, gain, bias, eps=1e-6):
    mean = jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), -1, keepdims=True)
    shape = (1,) * (x.ndim - 1) + (-1,)
    return (x - mean) / jnp.sqrt(variance + eps) * gain.reshape(shape) + bias.reshape(shape)


def _rms(x):
    return x / jnp.sqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


def normal_of(key, *shape, dtype=float):
    """Drawn by JAX, unlike `tests.cases.drawn`: some ranks lie so near rounding that tests rest on these numbers.

    They are the first of many, so that one program draws all shapes.
    """
    return np.asarray(jax.random.normal(key, (4096,), dtype))[: math.prod(shape)].reshape(shape)


@cache
def normal(seed, *shape):
    """The same of a seed."""
    return jax.device_put(normal_of(jax.random.key(seed), *shape))


@cache
def layer_norm_network() -> Case:
    def apply(p, x):
        h = jnp.tanh(_normalize(x @ p["first"]["kernel"], p["norm"]["gain"], p["norm"]["bias"]))
        return h @ p["last"]["kernel"] + p["last"]["bias"][None, :]

    params = {
        "first": {"kernel": normal(0, 4, 6)},
        "norm": {"gain": 1 + 0.1 * normal(1, 6), "bias": 0.1 * normal(2, 6)},
        "last": {"kernel": 0.5 * normal(3, 6, 3), "bias": jnp.zeros(3)},
    }
    return Case("layer-norm network", apply, params, normal(4, 40, 4), lg.families.Categorical())


@cache
def plain_network() -> Case:
    def apply(p, x):
        return jax.nn.relu(x @ p[0] + p[1][None, :]) @ p[2] + p[3][None, :]

    params = (normal(0, 3, 5), 0.1 * normal(1, 5), normal(2, 5, 2), jnp.zeros(2))
    return Case("relu network", apply, params, normal(3, 30, 3), lg.families.Gaussian(0.5))


@cache
def batch_norm_network() -> Case:
    def apply(p, x):
        a = x @ p["kernel"]
        mean = jnp.mean(a, 0, keepdims=True)
        n = (a - mean) / jnp.sqrt(jnp.mean(jnp.square(a - mean), 0, keepdims=True) + 1e-5)
        return jnp.tanh(n) @ p["out"]

    params = {"kernel": normal(0, 3, 4), "out": normal(1, 4, 2)}
    return Case("batch-norm network", apply, params, normal(2, 25, 3), lg.families.Bernoulli(), coupled=True)


def two_batch_norms(p, x, mean):
    """Batch norm twice: the second statistics depend on the first."""
    for name in ("kernel", "middle"):
        a = x @ p[name]
        centred = a - mean(a)
        x = jnp.tanh(centred / jnp.sqrt(mean(jnp.square(centred)) + 1e-5))
    return x @ p["out"]


@cache
def batch_coupled_network() -> Case:
    """A function that says which means it takes, so that its samples can be divided; N = 25."""
    case = batch_norm_network()
    params = case.params | {"middle": normal(9, 4, 4)}
    return case._replace(
        name="batch-coupled network", apply=BatchCoupled(two_batch_norms), params=params, coupled=False
    )


@cache
def scalar_output() -> Case:
    def apply(p, x):
        return jnp.tanh(x["a"] @ p["w"]) + x["b"] * p["s"]

    params = {"w": normal(0, 4), "s": jnp.asarray(0.3)}
    X = {"a": normal(1, 12, 4), "b": normal(2, 12)}
    return Case("scalar output, inputs a pytree", apply, params, X, lg.families.Poisson())


@cache
def transformer_block() -> Case:
    """A pre-norm block with QK-norm on [N T] tokens, logits at every position."""
    width, heads, vocabulary = 8, 2, 5

    def apply(p, tokens):
        x = p["embedding"][tokens]
        h = _normalize(x, p["norm1"]["gain"], p["norm1"]["bias"])
        split = lambda a: a.reshape(*a.shape[:-1], heads, -1)  # noqa: E731
        q, k, v = (split(h @ p[name]) for name in ("query", "key", "value"))
        scores = jnp.einsum("nqhd,nkhd->nhqk", _rms(q), _rms(k))
        causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))[None, None]
        attention = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), -1)
        x = x + jnp.einsum("nhqk,nkhd->nqhd", attention, v).reshape(x.shape) @ p["project"]
        h = _normalize(x, p["norm2"]["gain"], p["norm2"]["bias"])
        x = x + jax.nn.gelu(h @ p["up"]) @ p["down"]
        return _rms(x) @ p["logits"]

    norm = lambda s: {"gain": 1 + 0.1 * normal(s, width), "bias": 0.1 * normal(s + 1, width)}  # noqa: E731
    square = lambda s, a=width, b=width: normal(s, a, b) / a**0.5  # noqa: E731
    params = {
        "embedding": normal(0, vocabulary, width),
        "norm1": norm(1),
        "norm2": norm(3),
        "query": square(5),
        "key": square(6),
        "value": square(7),
        "project": square(8),
        "up": square(9, width, 12),
        "down": square(10, 12, width),
        "logits": square(11, width, vocabulary),
    }
    tokens = jax.random.randint(jax.random.key(12), (9, 4), 0, vocabulary)
    mask = jnp.arange(4)[None, :] < jnp.asarray([4, 3, 4, 2, 1, 4, 4, 3, 2])[:, None]
    return Case("transformer block", apply, params, tokens, lg.families.Categorical(), mask=mask)


@jax.custom_vjp
def reverse_only(x):
    return jnp.tanh(x)


reverse_only.defvjp(lambda x: (jnp.tanh(x), jnp.tanh(x)), lambda y, ct: (ct * (1 - jnp.square(y)),))


@cache
def custom_reverse_rule() -> Case:
    case = plain_network()

    def apply(p, x):
        return reverse_only(x @ p[0] + p[1][None, :]) @ p[2] + p[3][None, :]

    return case._replace(name="custom reverse rule", apply=apply)


CASES = (layer_norm_network, plain_network, batch_norm_network, scalar_output, transformer_block)

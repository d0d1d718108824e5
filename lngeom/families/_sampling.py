"""Draws of counts and of heavy tails that have the right distribution where those of jax.random round it away.

In float32 a uniform number is a multiple of 2⁻²³. A chance below that is rounded to 0 or up, and 16-bit floats are
coarser still. So a rare outcome is drawn by two uniform numbers, and 16-bit outputs are drawn in float32.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Bool, Float, PRNGKeyArray

MANY = 2.0**16
"""Variance of a count from which it is drawn by a normal number: draws of jax.random are too wide from 10⁷ on."""

FEW = 1 / 16
"""Mean of a count up to which its outcomes are summed from the rarest."""

LARGEST = 12
"""Count of which a mean of FEW leaves nothing: P(y > 12) < 10⁻²⁴."""


def widened(sample: Callable[[Any, PRNGKeyArray, Array], Array]) -> Callable[[Any, PRNGKeyArray, Array], Array]:
    """A method `sample` that draws in float32 for 16-bit outputs, and rounds the draws to their dtype."""

    @functools.wraps(sample)
    def call(self: Any, key: PRNGKeyArray, z: Float[Array, "*B C"]) -> Array:
        if z.dtype not in (jnp.float16, jnp.bfloat16):
            return sample(self, key, z)
        y = sample(self, key, z.astype(jnp.float32))
        return y.astype(z.dtype) if jnp.issubdtype(y.dtype, jnp.floating) else y

    return call


def happens(key: PRNGKeyArray, probability: Float[Array, "*B"]) -> Bool[Array, "*B"]:
    """Whether an outcome of a probability up to ½ happens, with at least 46 bits."""
    return jax.random.bernoulli(key, probability, mode="high" if probability.dtype == jnp.float32 else "low")


def _by_tails(key: PRNGKeyArray, log_prob: Callable[[float], Float[Array, "*B"]]) -> Float[Array, "*B"]:
    """Counts of a small mean: how many tails P(Y ≥ k), k ≥ 1, exceed a uniform number, summed from the rarest."""
    first, second = jax.random.split(key)
    like = log_prob(1.0)
    fine = 2.0**-23 if like.dtype == jnp.float32 else 2.0**-52
    coarse = jax.random.uniform(first, like.shape, like.dtype)
    rest = fine * jax.random.uniform(second, like.shape, like.dtype)
    tail, y = jnp.zeros_like(like), jnp.zeros_like(like)
    for k in range(LARGEST, 0, -1):
        tail = tail + jnp.exp(log_prob(float(k)))
        y = y + (rest < tail - coarse).astype(y.dtype)
    return y


def _by_normal(key: PRNGKeyArray, mean: Float[Array, "*B"], p: Float[Array, "*B"] | float) -> Float[Array, "*B"]:
    r"""Counts of n = mean/p trials of chance p, or Poisson ones (p = 0), of a variance σ² = mean (1 − p) from MANY on.

    Cornish and Fisher's expansion in a standard normal number has an error of the order σ⁻³, less than that of float32.
    """
    x = jax.random.normal(key, mean.shape, mean.dtype)
    sigma = jnp.sqrt(jnp.maximum(mean * (1 - p), MANY))
    skew, excess = 1 - 2 * p, 1 - 6 * p * (1 - p)  # times σ, and times σ²
    cubic = excess * (x**3 - 3 * x) / 24 - jnp.square(skew) * (2 * x**3 - 5 * x) / 36
    return jnp.round(mean + sigma * x + skew * (jnp.square(x) - 1) / 6 + cubic / sigma)


def poisson(key: PRNGKeyArray, log_rate: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Poisson counts of any rate."""
    few_key, key, many_key = jax.random.split(key, 3)
    rate = jnp.exp(log_rate)
    few = _by_tails(few_key, lambda k: k * log_rate - rate - gammaln(k + 1))
    usual = jax.random.poisson(key, jnp.clip(rate, FEW, MANY)).astype(rate.dtype)
    return jnp.where(rate < FEW, few, jnp.where(rate < MANY, usual, _by_normal(many_key, rate, 0.0)))


def binomial(key: PRNGKeyArray, trials: int, z: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Numbers of successes of log-odds z up to 0.

    Of very many trials, those that another chance of about 2 MANY/n leaves are drawn first: jax.random.binomial needs
    fewer than float32 counts without a gap.
    """
    few_key, key, many_key, left_key = jax.random.split(key, 4)
    p = jax.nn.sigmoid(z)
    mean = trials * p

    def log_prob(k: float) -> Array:
        choose = gammaln(trials + 1.0) - gammaln(k + 1) - gammaln(trials - k + 1.0) if k <= trials else -jnp.inf
        return choose + k * z - trials * jax.nn.softplus(z)

    few = _by_tails(few_key, log_prob)
    count: Any = float(trials)
    if trials > 4 * MANY:
        count = _by_normal(left_key, jnp.full_like(mean, 2 * MANY), 2 * MANY / trials)
    left = trials if trials <= 4 * MANY else 2 * MANY
    usual = jax.random.binomial(key, count, jnp.clip(mean / left, FEW / left, 1), dtype=z.dtype)
    many = _by_normal(many_key, mean, p)
    return jnp.where(mean < FEW, few, jnp.where(mean * (1 - p) < MANY, usual, many))


def wald(key: PRNGKeyArray, mean: Float[Array, "*B"], dispersion: Any) -> Float[Array, "*B"]:
    r"""Inverse Gaussian draws of mean μ and dispersion φ, by Michael, Schucany and Haas.

    $(y/\mu - 1)^2 \mu/(\phi y)$ is χ² of one degree of freedom. Of the two solutions y = μt and μ/t, t ≥ 1, the larger
    is the draw with probability 1/(1 + t). Neither is a difference.
    """
    first, second = jax.random.split(key)
    half = 0.5 * mean * dispersion * jnp.square(jax.random.normal(first, mean.shape, mean.dtype))
    t = 1 + half + jnp.sqrt(half) * jnp.sqrt(half + 2)
    return mean * jnp.where(happens(second, 1 / (1 + t)), t, 1 / t)

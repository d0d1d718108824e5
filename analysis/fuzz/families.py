"""Exponential families that the library does not have: what a user defines, log-partition, base measure and draws."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from lngeom.families import AbstractFamily


class CoshPair(AbstractFamily):
    r"""Independent signs y = ±1: $\eta(z) = \log(2 \cosh z)$."""

    dispersion: ClassVar[float] = 1.0

    def log_partition(self, z):
        return jnp.logaddexp(z, -z)

    def log_base_measure(self, y):
        return jnp.zeros_like(y)

    def sample(self, key, z):
        return 2 * jax.random.bernoulli(key, jax.nn.sigmoid(2 * z)).astype(z.dtype) - 1


class ScaledGaussian(AbstractFamily):
    r"""Independent normals of precision 4 with a dispersion: $\eta(z) = z^2/8$."""

    dispersion: float = 0.6

    def log_partition(self, z):
        return jnp.square(z) / 8

    def log_base_measure(self, y):
        return -2 * jnp.square(y) / self.dispersion - 0.5 * jnp.log(jnp.pi * self.dispersion / 2)

    def sample(self, key, z):
        return z / 4 + (self.dispersion / 4) ** 0.5 * jax.random.normal(key, z.shape, z.dtype)


class CorrelatedGaussian(AbstractFamily):
    r"""Normal with covariance Σ_ij = 1 / (1 + |i − j|) and mean Σz: $\eta(z) = z^\top \Sigma z / 2$."""

    dispersion: float = 1.0
    joint: ClassVar[bool] = True

    def covariance(self, size: int, dtype) -> jax.Array:
        """Σ for this many outputs."""
        k = jnp.arange(size)
        return (1 / (1 + jnp.abs(k[:, None] - k[None, :]))).astype(dtype)

    def log_partition(self, z):
        return 0.5 * jnp.einsum("...i,ij,...j->...", z, self.covariance(z.shape[-1], z.dtype), z)

    def log_base_measure(self, y):
        covariance = self.covariance(y.shape[-1], y.dtype) * self.dispersion
        form = jnp.einsum("...i,ij,...j->...", y, jnp.linalg.inv(covariance), y)
        return -0.5 * (form + jnp.linalg.slogdet(2 * jnp.pi * covariance)[1])

    def sample(self, key, z):
        covariance = self.covariance(z.shape[-1], z.dtype)
        root = jnp.linalg.cholesky(self.dispersion * covariance)
        return z @ covariance + jax.random.normal(key, z.shape, z.dtype) @ root.T


class MeanPrecisionGaussian(AbstractFamily):
    r"""A normal of unknown mean and variance, z = (m/s², −1/2s²), statistics (y, y²); C = 2, z_2 < 0.

    $\eta(z) = -z_1^2 / 4 z_2 - \tfrac12 \log(-2 z_2)$.
    """

    dispersion: ClassVar[float] = 1.0
    joint: ClassVar[bool] = True

    def log_partition(self, z):
        return -jnp.square(z[..., 0]) / (4 * z[..., 1]) - 0.5 * jnp.log(-2 * z[..., 1])

    def log_base_measure(self, y):
        return jnp.full(y.shape[:-1], -0.5 * jnp.log(2 * jnp.pi), y.dtype)

    def sample(self, key, z):
        variance = -0.5 / z[..., 1]
        y = z[..., 0] * variance + jnp.sqrt(variance) * jax.random.normal(key, z.shape[:-1], z.dtype)
        return jnp.stack([y, jnp.square(y)], -1)


class Dirichlet(AbstractFamily):
    r"""Dirichlet with concentrations z > 0 and statistics log y.

    $\eta(z) = \sum_c \log\Gamma(z_c) - \log\Gamma(\sum_c z_c)$.
    """

    dispersion: ClassVar[float] = 1.0
    joint: ClassVar[bool] = True

    def log_partition(self, z):
        return jnp.sum(gammaln(z), -1) - gammaln(jnp.sum(z, -1))

    def log_base_measure(self, y):
        return -jnp.sum(y, -1)

    def sample(self, key, z):
        return jnp.log(jax.random.dirichlet(key, z, z.shape[:-1], z.dtype))


class Ordinal(AbstractFamily):
    r"""Ordered classes 0 … C with adjacent log-odds z and statistics 1[y ≥ c].

    $\eta(z) = \log\sum_k e^{z_1 + … + z_k}$.
    """

    dispersion: ClassVar[float] = 1.0
    joint: ClassVar[bool] = True

    def logits(self, z):
        """Log-odds of each class against class 0."""
        return jnp.concatenate([jnp.zeros_like(z[..., :1]), jnp.cumsum(z, -1)], -1)

    def log_partition(self, z):
        return jax.nn.logsumexp(self.logits(z), -1)

    def log_base_measure(self, y):
        return jnp.zeros(y.shape[:-1], y.dtype)

    def sample(self, key, z):
        label = jax.random.categorical(key, self.logits(z), -1)
        return (label[..., None] > jnp.arange(z.shape[-1])).astype(z.dtype)


class Multinomial(AbstractFamily):
    r"""Counts of n draws among C classes: $\eta(z) = n \log\sum_c e^{z_c}$.

    Attributes:
        trials: n.
    """

    trials: int = 3
    dispersion: ClassVar[float] = 1.0
    joint: ClassVar[bool] = True

    def log_partition(self, z):
        return self.trials * jax.nn.logsumexp(z, -1)

    def log_base_measure(self, y):
        return gammaln(self.trials + 1.0) - jnp.sum(gammaln(y + 1), -1)

    def sample(self, key, z):
        labels = jax.random.categorical(key, z, -1, shape=(self.trials, *z.shape[:-1]))
        return jnp.sum(jax.nn.one_hot(labels, z.shape[-1], dtype=z.dtype), 0)


class TwoHeaded(AbstractFamily):
    r"""A class from the first k outputs and normals of unit variance from the rest; statistics one-hot and y.

    $\eta(z) = \log\sum_{c < k} e^{z_c} + \tfrac12 \sum_{c \ge k} z_c^2$.

    Attributes:
        classes: k.
    """

    classes: int = 2
    dispersion: ClassVar[float] = 1.0
    joint: ClassVar[bool] = True

    def log_partition(self, z):
        return jax.nn.logsumexp(z[..., : self.classes], -1) + 0.5 * jnp.sum(jnp.square(z[..., self.classes :]), -1)

    def log_base_measure(self, y):
        rest = y[..., self.classes :]
        return -0.5 * jnp.sum(jnp.square(rest) + jnp.log(2 * jnp.pi), -1)

    def sample(self, key, z):
        first, second = jax.random.split(key)
        logits, means = z[..., : self.classes], z[..., self.classes :]
        label = jax.nn.one_hot(jax.random.categorical(first, logits, -1), self.classes, dtype=z.dtype)
        return jnp.concatenate([label, means + jax.random.normal(second, means.shape, z.dtype)], -1)


class TwoBits(AbstractFamily):
    r"""Two dependent bits a, b with statistics (a, b, ab); C = 3.

    $\eta(z) = \log(1 + e^{z_1} + e^{z_2} + e^{z_1 + z_2 + z_3})$.
    """

    dispersion: ClassVar[float] = 1.0
    joint: ClassVar[bool] = True

    def logits(self, z):
        """Log-odds of the four pairs against (0, 0)."""
        return jnp.stack([jnp.zeros_like(z[..., 0]), z[..., 0], z[..., 1], jnp.sum(z, -1)], -1)

    def log_partition(self, z):
        return jax.nn.logsumexp(self.logits(z), -1)

    def log_base_measure(self, y):
        return jnp.zeros(y.shape[:-1], y.dtype)

    def sample(self, key, z):
        pair = jax.random.categorical(key, self.logits(z), -1)
        statistics = jnp.asarray([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 1]], z.dtype)
        return statistics[pair]

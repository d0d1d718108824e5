r"""Exponential families of the generalized linear model, with natural parameter z and dispersion φ (Eqs. 10, 11).

$$\log p(y \mid z) = \frac{z y - \eta(z)}{\phi} + c(y, \phi), \qquad E[y] = \eta'(z), \qquad
\mathrm{Var}[y] = \phi\, \eta''(z).$$

η is the log-partition function. (The paper's text gives c this name by mistake.) A family defines η, c and a sampler.
Its mean, variance and Fisher metric follow from η by automatic differentiation. Where that cancels, as
1 − tanh² of a confident logit does, a family states η′, η″ or y − η′ in a form that keeps all digits. Tests compare
these with automatic derivatives, and over the whole range with 50 digits.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from lngeom._core.arguments import check_count
from lngeom._core.text import counted
from lngeom._core.types import is_concrete
from lngeom.families import _sampling
from lngeom.families._family import AbstractFamily, positive


def _whole(value: Any) -> int:
    """A number of trials, whatever type its whole number has."""
    if is_concrete(value) and np.ndim(value) == 0 and not isinstance(value, str | bool):
        number = np.asarray(value).item()
        value = int(number) if isinstance(number, float) and number.is_integer() else number
    return check_count("trials", value, 1)


class Gaussian(AbstractFamily):
    r"""Normal with variance φ: $\eta(z) = z^2/2$, so the natural parameter is the mean.

    Attributes:
        dispersion: the variance φ, or one for each output.
    """

    dispersion: float | Float[Array, " C"] = eqx.field(default=1.0, converter=positive("dispersion"))

    def log_partition(self, z):  # noqa: D102
        return 0.5 * jnp.square(z)

    def mean(self, z):  # noqa: D102
        return z

    def curvature(self, z):  # noqa: D102
        return jnp.ones_like(z)

    def bregman(self, z, other):  # noqa: D102
        return 0.5 * jnp.square(other - z)

    def log_base_measure(self, y):  # noqa: D102
        phi = self.dispersion_along(y)
        return -0.5 * (jnp.square(y) / phi + jnp.log(2 * jnp.pi * phi))

    @_sampling.widened
    def sample(self, key, z):  # noqa: D102
        return z + self.dispersion_along(z) ** 0.5 * jax.random.normal(key, z.shape, z.dtype)


def _logistic_residual(z: Array, successes: Array, failures: Array) -> Array:
    """y − n s(z) of y successes and n − y failures: each is expected by s(−z) and s(z), which keep their digits."""
    return successes * jax.nn.sigmoid(-z) - failures * jax.nn.sigmoid(z)


def _logistic_curvature(z: Array) -> Array:
    """s(z) s(−z)."""
    return jax.nn.sigmoid(z) * jax.nn.sigmoid(-z)


def _logistic_bregman(z: Array, other: Array) -> Array:
    """The divergence of one trial: of z and z' as of −z and −z', so that η is small where z is confident."""
    sign = jnp.where(z > 0, -1, 1).astype(z.dtype)
    z, other = sign * z, sign * other
    return jax.nn.softplus(other) - jax.nn.softplus(z) - (other - z) * jax.nn.sigmoid(z)


class Bernoulli(AbstractFamily):
    r"""Bernoulli with log-odds z: $\eta(z) = \log(1 + e^z)$, $\eta'' = s(z)\, s(-z)$ with the logistic function s.

    A response is 0 or 1, or a probability between them, whose `log_prob` is the mean of both (a soft label).
    """

    dispersion: ClassVar[float] = 1.0
    support: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def log_partition(self, z):  # noqa: D102
        return jax.nn.softplus(z)

    def mean(self, z):  # noqa: D102
        return jax.nn.sigmoid(z)

    def curvature(self, z):  # noqa: D102
        return _logistic_curvature(z)

    def residual(self, z, y):  # noqa: D102
        return _logistic_residual(z, y, 1 - y)

    def bregman(self, z, other):  # noqa: D102
        return _logistic_bregman(z, other)

    def log_prob(self, z, y):  # noqa: D102
        y = jnp.asarray(y).astype(z.dtype)
        return -y * jax.nn.softplus(-z) - (1 - y) * jax.nn.softplus(z)

    def log_base_measure(self, y):  # noqa: D102
        return jnp.zeros_like(y)

    @_sampling.widened
    def sample(self, key, z):
        """Draws whether the less likely result happens, which has all digits of its chance."""
        return (_sampling.happens(key, jax.nn.sigmoid(-jnp.abs(z))) ^ (z > 0)).astype(z.dtype)

    def atoms(self, outputs):  # noqa: D102
        return jnp.arange(2.0)


class Binomial(AbstractFamily):
    r"""Number of successes in n trials, log-odds z: $\eta(z) = n \log(1 + e^z)$.

    A response is a whole number 0 … n. A share of successes is refused: multiply it by n.

    Attributes:
        trials: n, at least 1.
    """

    trials: int = eqx.field(default=10, converter=_whole)
    dispersion: ClassVar[float] = 1.0
    whole: ClassVar[bool] = True

    @property
    def support(self):  # noqa: D102
        return 0.0, float(self.trials)

    def log_partition(self, z):  # noqa: D102
        return self.trials * jax.nn.softplus(z)

    def mean(self, z):  # noqa: D102
        return self.trials * jax.nn.sigmoid(z)

    def curvature(self, z):  # noqa: D102
        return self.trials * _logistic_curvature(z)

    def residual(self, z, y):  # noqa: D102
        return _logistic_residual(z, y, self.trials - y)

    def bregman(self, z, other):  # noqa: D102
        return self.trials * _logistic_bregman(z, other)

    def log_prob(self, z, y):  # noqa: D102
        y = jnp.asarray(y).astype(z.dtype)
        trials = -y * jax.nn.softplus(-z) - (self.trials - y) * jax.nn.softplus(z)
        return trials + self.log_base_measure(y)

    def log_base_measure(self, y):  # noqa: D102
        return gammaln(self.trials + 1.0) - gammaln(y + 1.0) - gammaln(self.trials - y + 1.0)

    @_sampling.widened
    def sample(self, key, z):
        """Draws the number of the less likely results."""
        rare = _sampling.binomial(key, self.trials, -jnp.abs(z))
        return jnp.where(z > 0, self.trials - rare, rare)

    def atoms(self, outputs):  # noqa: D102
        return jnp.arange(self.trials + 1.0)


class Poisson(AbstractFamily):
    r"""Poisson with log-rate z: $\eta(z) = e^z$.

    A response is a whole number from 0. Other responses of a quasi-likelihood are refused, since the density is none of
    theirs.
    """

    dispersion: ClassVar[float] = 1.0
    whole: ClassVar[bool] = True
    support: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def log_partition(self, z):  # noqa: D102
        return jnp.exp(z)

    def bregman(self, z, other):  # noqa: D102
        return jnp.exp(other) - jnp.exp(z) * (1 + other - z)

    def log_base_measure(self, y):  # noqa: D102
        return -gammaln(y + 1.0)

    @_sampling.widened
    def sample(self, key, z):  # noqa: D102
        return _sampling.poisson(key, z)


class Gamma(AbstractFamily):
    r"""Gamma with mean −1/z and shape 1/φ: $\eta(z) = -\log(-z)$, z < 0. A response is larger than 0.

    Attributes:
        dispersion: φ, the inverse of the shape, or one for each output.
    """

    dispersion: float | Float[Array, " C"] = eqx.field(default=1.0, converter=positive("dispersion"))
    upper: ClassVar[float] = 0.0
    support: ClassVar[tuple[float, float]] = (0.0, float("inf"))
    open_support: ClassVar[bool] = True

    def log_partition(self, z):  # noqa: D102
        return -jnp.log(-z)

    def mean(self, z):  # noqa: D102
        return -1 / z

    def curvature(self, z):  # noqa: D102
        return jnp.square(1 / z)

    def bregman(self, z, other):  # noqa: D102
        return (other - z) / z - jnp.log(other / z)

    def log_base_measure(self, y):  # noqa: D102
        shape = 1 / self.dispersion_along(y)
        return shape * (jnp.log(shape) + jnp.log(y)) - jnp.log(y) - gammaln(shape)

    @_sampling.widened
    def sample(self, key, z):
        """Draws; one below the smallest number of the dtype is that number, since 0 is no response."""
        shape = 1 / self.dispersion_along(z)
        y = jax.random.gamma(key, shape, z.shape, z.dtype) / (-z * shape)
        return jnp.maximum(y, jnp.finfo(z.dtype).tiny)


class InverseGaussian(AbstractFamily):
    r"""Inverse Gaussian with mean $(-2z)^{-1/2}$ and shape 1/φ: $\eta(z) = -\sqrt{-2z}$, z < 0.

    A response is larger than 0.

    Attributes:
        dispersion: φ, the inverse of the shape, or one for each output.
    """

    dispersion: float | Float[Array, " C"] = eqx.field(default=1.0, converter=positive("dispersion"))
    upper: ClassVar[float] = 0.0
    support: ClassVar[tuple[float, float]] = (0.0, float("inf"))
    open_support: ClassVar[bool] = True

    def log_partition(self, z):  # noqa: D102
        return -jnp.sqrt(-2 * z)

    def mean(self, z):  # noqa: D102
        return 1 / jnp.sqrt(-2 * z)

    def curvature(self, z):  # noqa: D102
        return 1 / (-2 * z * jnp.sqrt(-2 * z))

    def bregman(self, z, other):  # noqa: D102
        root, other_root = jnp.sqrt(-2 * z), jnp.sqrt(-2 * other)
        return 2 * jnp.square((other - z) / (root + other_root)) / root

    def log_base_measure(self, y):  # noqa: D102
        phi = self.dispersion_along(y)
        return -0.5 * (jnp.log(2 * jnp.pi * phi) + 3 * jnp.log(y)) - 0.5 / (phi * y)

    @_sampling.widened
    def sample(self, key, z):  # noqa: D102
        return _sampling.wald(key, self.mean(z), self.dispersion_along(z))


def _log_complement(z: Array) -> Array:
    """log(1 − e^z) of z < 0. XLA's log1p(x) loses two digits in float64 near x = −0.4: it is used above −0.29 alone."""
    small = z < -1.25
    return jnp.where(small, jnp.log1p(-jnp.exp(jnp.where(small, z, -2))), jnp.log(-jnp.expm1(jnp.where(small, -1, z))))


class NegativeBinomial(AbstractFamily):
    r"""Number of failures before r successes; $z = \log p < 0$ with p the chance of failure, $\eta = -r\log(1 - e^z)$.

    A response is a whole number from 0.

    Attributes:
        successes: r > 0, not necessarily whole, or one for each output.
    """

    successes: float | Float[Array, " C"] = eqx.field(default=3.0, converter=positive("successes"))
    dispersion: ClassVar[float] = 1.0
    whole: ClassVar[bool] = True
    upper: ClassVar[float] = 0.0
    support: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def _successes(self, z: Array) -> float | Array:
        return self.along("successes", z)

    def log_partition(self, z):  # noqa: D102
        return -self._successes(z) * _log_complement(z)

    def mean(self, z):  # noqa: D102
        return self._successes(z) * jnp.exp(z) / -jnp.expm1(z)

    def curvature(self, z):  # noqa: D102
        return self._successes(z) * jnp.exp(z) / jnp.square(jnp.expm1(z))

    def log_base_measure(self, y):  # noqa: D102
        r = self._successes(y)
        return gammaln(y + r) - gammaln(r) - gammaln(y + 1.0)

    @_sampling.widened
    def sample(self, key, z):  # noqa: D102
        rate_key, count_key = jax.random.split(key)
        log_odds = z - _log_complement(z)
        return _sampling.poisson(
            count_key, jax.random.loggamma(rate_key, self._successes(z), z.shape, z.dtype) + log_odds
        )


class Categorical(AbstractFamily):
    r"""One of C classes with logits z: $\eta(z) = \log\sum_c e^{z_c}$, $\Lambda = \mathrm{diag}(q) - qq^\top$.

    A response is a label in 0 … C−1 (shape [*B]); `log_prob` takes one-hot rows [*B C] too.
    """

    dispersion: ClassVar[float] = 1.0
    joint: ClassVar[bool] = True
    labels: ClassVar[bool] = True
    support: ClassVar[tuple[float, float]] = (0.0, 1.0)
    least_outputs: ClassVar[int] = 2

    def mistaken(self, z):
        """Rows of probabilities: the softmax would be applied twice."""
        near = jnp.abs(jnp.sum(z, -1) - 1) <= 8 * z.shape[-1] * jnp.finfo(z.dtype).eps
        return jnp.all((z >= 0) & (z <= 1), -1) & near

    def check_responses(self, y, outputs, counts=None):
        """Checks concrete responses; rows of probabilities must sum to 1.

        Raises:
            ValueError: if a label is not in 0 … C−1, or a row does not sum to 1.
        """
        super().check_responses(y, outputs, counts)
        if jnp.shape(y) != outputs or y is None:
            return
        wrong = np.abs(np.sum(np.asarray(y, float), -1) - 1) > 1e-2
        wrong &= True if counts is None else np.asarray(counts)
        if wrong.any():
            rows = counted(int(wrong.sum()), "row does", "rows do")
            raise ValueError(
                f"{self.name} takes labels, or rows of probabilities that sum to 1; {rows} not, "
                f"such as {np.asarray(y)[wrong][0]}: several classes at once need one Bernoulli() each"
            )

    def log_partition(self, z):  # noqa: D102
        return jax.nn.logsumexp(z, -1)

    def log_base_measure(self, y):  # noqa: D102
        return jnp.zeros(y.shape)

    def mean(self, z):  # noqa: D102
        return jax.nn.softmax(z, -1)

    def metric_diagonal(self, z):  # noqa: D102
        return jax.nn.softmax(z, -1) * _others(z)

    def residual(self, z, y):  # noqa: D102
        others = jnp.sum(y, -1, keepdims=True) - y  # of rows that sum to 1, which the responses do
        return y * _others(z) - jax.nn.softmax(z, -1) * others

    def displacement(self, z, other):  # noqa: D102
        return _relative_to_largest(z, other - z)

    def bregman(self, z, other):  # noqa: D102
        linear = jnp.sum(jax.nn.softmax(z, -1) * self.displacement(z, other), -1)
        return _excess(z, other) - _excess(z, z) - linear

    def metric_product(self, z, v):  # noqa: D102
        q, v = jax.nn.softmax(z, -1), _relative_to_largest(z, v)
        return q * (v - jnp.sum(q * v, -1, keepdims=True))

    def metric_parts(self, z):  # noqa: D102
        q = jax.nn.softmax(z, -1)
        return q, q

    def metric_rank(self, outputs):  # noqa: D102
        return outputs - 1

    def metric_sqrt_product(self, z, v):
        """Sᵀ v with S = diag(√q) − q √qᵀ, for which S Sᵀ = diag(q) − q qᵀ."""
        q, v = jax.nn.softmax(z, -1), _relative_to_largest(z, v)
        return jnp.sqrt(q) * (v - jnp.sum(q * v, -1, keepdims=True))

    def log_prob(self, z, y):
        """Log p(y | z), shape [*B], for labels [*B] or one-hot rows [*B C]."""
        log_q = _relative_to_largest(z, z) - _excess(z, z)[..., None]
        if jnp.shape(y) == z.shape:
            return jnp.sum(log_q * y, -1)
        labels = jnp.asarray(y)
        found = jnp.take_along_axis(log_q, labels[..., None].astype(jnp.int32), -1)[..., 0]
        return jnp.where(jnp.round(labels) == labels, found, jnp.nan)

    @_sampling.widened
    def sample(self, key, z):  # noqa: D102
        return jax.random.categorical(key, z, -1, mode="high" if z.dtype == jnp.float32 else "low")

    def atoms(self, outputs):  # noqa: D102
        return jnp.arange(outputs)


def _relative_to_largest(z: Float[Array, "*B C"], v: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
    """v minus its entry at the largest logit. Λv stays the same, and 1 − q keeps its digits where q rounds to 1."""
    largest = _largest(z).astype(v.dtype)
    return v - jnp.sum(largest * v, -1, keepdims=True)


def _largest(z: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
    return jax.nn.one_hot(jnp.argmax(z, -1), z.shape[-1], dtype=z.dtype)


def _others(z: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
    """1 − q: of the largest entry the sum of all others, so that it keeps its digits where q rounds to 1."""
    q, largest = jax.nn.softmax(z, -1), _largest(z)
    rest = jnp.sum(jnp.where(largest > 0, 0, q), -1, keepdims=True)
    return jnp.where(largest > 0, rest, 1 - q)


def _excess(z: Float[Array, "*B C"], at: Float[Array, "*B C"]) -> Float[Array, "*B"]:
    """log Σ exp(at) less the entry of `at` where z is largest: log(1 + Σ of the others, relative to that)."""
    others = jnp.where(_largest(z) > 0, -jnp.inf, _relative_to_largest(z, at))
    return jax.nn.softplus(jax.nn.logsumexp(others, -1))

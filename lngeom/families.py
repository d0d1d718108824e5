r"""Exponential families of the generalized linear model, with natural parameter z and dispersion φ (Eqs. 10, 11).

$$\log p(y \mid z) = \frac{z y - \eta(z)}{\phi} + c(y, \phi), \qquad E[y] = \eta'(z), \qquad
\mathrm{Var}[y] = \phi\, \eta''(z).$$

η is the log-partition function (the paper's text calls c that, by mistake). A family states η, c and how to sample;
its mean, variance and Fisher metric follow from η by automatic differentiation.
"""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, PRNGKeyArray


class AbstractFamily(eqx.Module):
    r"""An exponential family over outputs z of shape [*B C] (C independent responses, or C classes).

    Attributes:
        dispersion: φ > 0, which scales the variance.
        upper: the natural parameter must be below this (infinity where every real z is allowed).
        joint: whether the C outputs parameterize one response (categorical) and not C independent ones.
    """

    dispersion: eqx.AbstractVar[float]
    upper: ClassVar[float] = float("inf")
    joint: ClassVar[bool] = False

    @abstractmethod
    def log_partition(self, z: Float[Array, "..."]) -> Float[Array, "..."]:
        """η(z): elementwise, or over the last axis for a joint family."""

    @abstractmethod
    def log_base_measure(self, y: Array) -> Array:
        """c(y, φ), elementwise."""

    @abstractmethod
    def sample(self, key: PRNGKeyArray, z: Float[Array, "*B C"]) -> Array:
        """Draws y given z; shape [*B C], or labels [*B] for a joint family."""

    def mean(self, z: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        """E[y] = η'(z)."""
        return jax.grad(lambda z: jnp.sum(self.log_partition(z)))(z)

    def variance(self, z: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        """Var[y_i] = φ η''(z_i), the marginal variances."""
        return self.dispersion * jax.jvp(self.mean, (z,), (jnp.ones_like(z),))[1]

    def metric_product(self, z: Float[Array, "*B C"], v: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        r"""Λ(z) v, with $\Lambda = \mathrm{Cov}[y]/\phi^2 = \nabla^2 \eta / \phi$ the Fisher metric of z."""
        return jax.jvp(self.mean, (z,), (v,))[1] / self.dispersion

    def metric_sqrt_product(self, z: Float[Array, "*B C"], v: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        r"""Sᵀ v, where Λ(z) = S Sᵀ. For independent responses S = diag(√(η''/φ))."""
        return jnp.sqrt(self.metric_product(z, jnp.ones_like(z))) * v

    def metric_parts(self, z: Float[Array, "*B C"]) -> tuple[Float[Array, "*B C"], Float[Array, "*B C"]]:
        r"""Vectors λ and q with $\Lambda = \mathrm{diag}(\lambda) - q q^\top$ (q = 0 for independent responses)."""
        return self.metric_product(z, jnp.ones_like(z)), jnp.zeros_like(z)

    def metric(self, z: Float[Array, "*B C"]) -> Float[Array, "*B C C"]:
        """Λ(z) as matrices."""
        basis = jnp.broadcast_to(jnp.eye(z.shape[-1], dtype=z.dtype), (*z.shape, z.shape[-1]))
        return jax.vmap(self.metric_product, (None, -1), -1)(z, basis)

    def log_prob(self, z: Float[Array, "*B C"], y: Array) -> Float[Array, "*B C"]:
        """Log p(y | z) (Eq. 10), one value for each response."""
        return (z * y - self.log_partition(z)) / self.dispersion + self.log_base_measure(y)

    def kl(self, z: Float[Array, "*B C"], other: Float[Array, "*B C"]) -> Float[Array, " *B"]:
        r"""Kullback–Leibler divergence $D(p_z \| p_{z'})$ in nats, summed over the C responses.

        $D = [\eta(z') - \eta(z) - (z' - z)\, \eta'(z)] / \phi$, the Bregman divergence of η.
        """
        gap = self.log_partition(other) - self.log_partition(z)
        linear = (other - z) * self.mean(z)
        if self.joint:
            return (gap - jnp.sum(linear, -1)) / self.dispersion
        return jnp.sum(gap - linear, -1) / self.dispersion

    def check_domain(self, z: Float[Array, "*B C"]) -> None:
        """Checks concrete natural parameters.

        Args:
            z: natural parameters with values (not traced).

        Raises:
            ValueError: if z has NaN or infinite entries, or entries outside the domain of η.
        """
        worst = jnp.max(z)
        if not jnp.all(jnp.isfinite(z)):
            raise ValueError(
                f"natural parameters must be finite; {int(jnp.sum(~jnp.isfinite(z)))} of {z.size} are NaN or infinite"
            )
        if not worst < self.upper:
            raise ValueError(
                f"{type(self).__name__} needs natural parameters z < {self.upper:g}; got max z = {float(worst):g}: "
                "lower the bias, or start from NormalizedGLM.init, which is inside the domain"
            )

    def _check_positive(self, **values: float) -> None:
        for name, value in values.items():
            if not value > 0:
                raise ValueError(f"{name} must be positive; got {value}")


class Gaussian(AbstractFamily):
    r"""Normal with variance φ: $\eta(z) = z^2/2$, so the natural parameter is the mean.

    Attributes:
        dispersion: the variance φ.
    """

    dispersion: float = 1.0

    def __check_init__(self):
        self._check_positive(dispersion=self.dispersion)

    def log_partition(self, z):  # noqa: D102
        return 0.5 * jnp.square(z)

    def log_base_measure(self, y):  # noqa: D102
        return -0.5 * (jnp.square(y) / self.dispersion + jnp.log(2 * jnp.pi * self.dispersion))

    def sample(self, key, z):  # noqa: D102
        return z + self.dispersion**0.5 * jax.random.normal(key, z.shape, z.dtype)


class Bernoulli(AbstractFamily):
    r"""Bernoulli with log-odds z: $\eta(z) = \log(1 + e^z)$."""

    dispersion: ClassVar[float] = 1.0

    def log_partition(self, z):  # noqa: D102
        return jax.nn.softplus(z)

    def log_base_measure(self, y):  # noqa: D102
        return jnp.zeros_like(y)

    def sample(self, key, z):  # noqa: D102
        return jax.random.bernoulli(key, jax.nn.sigmoid(z)).astype(z.dtype)


class Binomial(AbstractFamily):
    r"""Number of successes in n trials, log-odds z: $\eta(z) = n \log(1 + e^z)$.

    Attributes:
        trials: n, at least 1.
    """

    trials: int = 10
    dispersion: ClassVar[float] = 1.0

    def __check_init__(self):
        self._check_positive(trials=self.trials)

    def log_partition(self, z):  # noqa: D102
        return self.trials * jax.nn.softplus(z)

    def log_base_measure(self, y):  # noqa: D102
        return gammaln(self.trials + 1.0) - gammaln(y + 1.0) - gammaln(self.trials - y + 1.0)

    def sample(self, key, z):  # noqa: D102
        return jax.random.binomial(key, float(self.trials), jax.nn.sigmoid(z), dtype=z.dtype)


class Poisson(AbstractFamily):
    r"""Poisson with log-rate z: $\eta(z) = e^z$."""

    dispersion: ClassVar[float] = 1.0

    def log_partition(self, z):  # noqa: D102
        return jnp.exp(z)

    def log_base_measure(self, y):  # noqa: D102
        return -gammaln(y + 1.0)

    def sample(self, key, z):  # noqa: D102
        return jax.random.poisson(key, jnp.exp(z)).astype(z.dtype)


class Gamma(AbstractFamily):
    r"""Gamma with mean −1/z and shape 1/φ: $\eta(z) = -\log(-z)$, z < 0.

    Attributes:
        dispersion: φ, the inverse of the shape.
    """

    dispersion: float = 1.0
    upper: ClassVar[float] = 0.0

    def __check_init__(self):
        self._check_positive(dispersion=self.dispersion)

    def log_partition(self, z):  # noqa: D102
        return -jnp.log(-z)

    def log_base_measure(self, y):  # noqa: D102
        shape = 1 / self.dispersion
        return shape * jnp.log(shape * y) - jnp.log(y) - gammaln(shape)

    def sample(self, key, z):  # noqa: D102
        shape = 1 / self.dispersion
        return jax.random.gamma(key, shape, z.shape, z.dtype) / (-z * shape)


class InverseGaussian(AbstractFamily):
    r"""Inverse Gaussian with mean $(-2z)^{-1/2}$ and shape 1/φ: $\eta(z) = -\sqrt{-2z}$, z < 0.

    Attributes:
        dispersion: φ, the inverse of the shape.
    """

    dispersion: float = 1.0
    upper: ClassVar[float] = 0.0

    def __check_init__(self):
        self._check_positive(dispersion=self.dispersion)

    def log_partition(self, z):  # noqa: D102
        return -jnp.sqrt(-2 * z)

    def log_base_measure(self, y):  # noqa: D102
        return -0.5 * jnp.log(2 * jnp.pi * self.dispersion * y**3) - 0.5 / (self.dispersion * y)

    def sample(self, key, z):  # noqa: D102
        return jax.random.wald(key, self.mean(z) * self.dispersion, dtype=z.dtype) / self.dispersion


class NegativeBinomial(AbstractFamily):
    r"""Number of failures before r successes; $z = \log p < 0$ with p the chance of failure, $\eta = -r\log(1 - e^z)$.

    Attributes:
        successes: r > 0, not necessarily whole.
    """

    successes: float = 3.0
    dispersion: ClassVar[float] = 1.0
    upper: ClassVar[float] = 0.0

    def __check_init__(self):
        self._check_positive(successes=self.successes)

    def log_partition(self, z):  # noqa: D102
        return -self.successes * jnp.log(-jnp.expm1(z))

    def log_base_measure(self, y):  # noqa: D102
        return gammaln(y + self.successes) - gammaln(self.successes) - gammaln(y + 1.0)

    def sample(self, key, z):  # noqa: D102
        rate_key, count_key = jax.random.split(key)
        odds = jnp.exp(z) / -jnp.expm1(z)
        rate = jax.random.gamma(rate_key, self.successes, z.shape, z.dtype) * odds
        return jax.random.poisson(count_key, rate).astype(z.dtype)


class Categorical(AbstractFamily):
    r"""One of C classes with logits z: $\eta(z) = \log\sum_c e^{z_c}$, $\Lambda = \mathrm{diag}(q) - qq^\top$.

    A response is a label in 0 … C−1 (shape [*B]); `log_prob` takes one-hot rows [*B C] too.
    """

    dispersion: ClassVar[float] = 1.0
    joint: ClassVar[bool] = True

    def log_partition(self, z):  # noqa: D102
        return jax.nn.logsumexp(z, -1)

    def log_base_measure(self, y):  # noqa: D102
        return jnp.zeros(y.shape)

    def mean(self, z):  # noqa: D102
        return jax.nn.softmax(z, -1)

    def variance(self, z):  # noqa: D102
        q = jax.nn.softmax(z, -1)
        return q * (1 - q)

    def metric_product(self, z, v):  # noqa: D102
        q, v = jax.nn.softmax(z, -1), _relative_to_largest(z, v)
        return q * (v - jnp.sum(q * v, -1, keepdims=True))

    def metric_parts(self, z):  # noqa: D102
        q = jax.nn.softmax(z, -1)
        return q, q

    def metric_sqrt_product(self, z, v):
        """Sᵀ v with S = diag(√q) − q √qᵀ, for which S Sᵀ = diag(q) − q qᵀ."""
        q, v = jax.nn.softmax(z, -1), _relative_to_largest(z, v)
        return jnp.sqrt(q) * (v - jnp.sum(q * v, -1, keepdims=True))

    def log_prob(self, z, y):
        """Log p(y | z), shape [*B], for labels [*B] or one-hot rows [*B C]."""
        log_q = jax.nn.log_softmax(z, -1)
        if jnp.shape(y) == z.shape:
            return jnp.sum(log_q * y, -1)
        return jnp.take_along_axis(log_q, jnp.asarray(y)[..., None], -1)[..., 0]

    def sample(self, key, z):  # noqa: D102
        return jax.random.categorical(key, z, -1)


def _relative_to_largest(z: Float[Array, "*B C"], v: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
    """v less its entry at the largest logit: Λ does not see the change, and 1 − q is not lost where q rounds to 1."""
    largest = jax.nn.one_hot(jnp.argmax(z, -1), z.shape[-1], dtype=v.dtype)
    return v - jnp.sum(largest * v, -1, keepdims=True)

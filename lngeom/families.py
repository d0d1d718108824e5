r"""Exponential families of the generalized linear model, with natural parameter z and dispersion φ (Eqs. 10, 11).

$$\log p(y \mid z) = \frac{z y - \eta(z)}{\phi} + c(y, \phi), \qquad E[y] = \eta'(z), \qquad
\mathrm{Var}[y] = \phi\, \eta''(z).$$

η is the log-partition function. (The paper's text gives c this name by mistake.) A family defines η, c and a sampler.
Its mean, variance and Fisher metric follow from η by automatic differentiation.
"""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, PRNGKeyArray


class AbstractFamily(eqx.Module):
    r"""An exponential family over outputs z of shape [*B C]: C independent responses, or one joint response.

    To define your own family, define η, c and `sample`. The rest follows from η. The response y of a joint family is
    its vector of sufficient statistics [*B C]: $\log p = (z^\top y - \eta(z))/\phi + c(y, \phi)$.

    Attributes:
        dispersion: φ > 0, which scales the variance.
        upper: upper limit of the natural parameter, exclusive (infinity where every real z is allowed).
        joint: whether the C outputs parameterize one response (categorical) instead of C independent ones.
        labels: whether a response of a joint family may be a label 0 … C−1 instead of a one-hot row.
        support: smallest and largest response of an independent family (sufficient statistic of a joint one).
    """

    dispersion: eqx.AbstractVar[float]
    upper: ClassVar[float] = float("inf")
    joint: ClassVar[bool] = False
    labels: ClassVar[bool] = False
    support: ClassVar[tuple[float, float]] = (-float("inf"), float("inf"))

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
        """Var[y_i] = φ ∂²η/∂z_i², the marginal variances."""
        if self.joint:
            return self.dispersion**2 * jnp.diagonal(self.metric(z), axis1=-2, axis2=-1)
        return self.dispersion * jax.jvp(self.mean, (z,), (jnp.ones_like(z),))[1]

    def metric_product(self, z: Float[Array, "*B C"], v: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        r"""Λ(z) v, with $\Lambda = \mathrm{Cov}[y]/\phi^2 = \nabla^2 \eta / \phi$ the Fisher metric of z."""
        return jax.jvp(self.mean, (z,), (v,))[1] / self.dispersion

    def metric_sqrt_product(self, z: Float[Array, "*B C"], v: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        r"""Sᵀ v, where Λ(z) = S Sᵀ: S = diag(√(η''/φ)) of independent responses, a Cholesky factor of a joint one."""
        if self.joint:
            return jnp.einsum("...ik,...i->...k", pivoted_cholesky(self.metric(z)), v)
        return jnp.sqrt(self.metric_product(z, jnp.ones_like(z))) * v

    def metric_parts(self, z: Float[Array, "*B C"]) -> tuple[Float[Array, "*B C"], Float[Array, "*B C"]] | None:
        r"""Vectors λ and q with $\Lambda = \mathrm{diag}(\lambda) - q q^\top$, or None where Λ has another form.

        q = 0 for independent responses; a joint family has no such parts unless it defines them.
        """
        return None if self.joint else (self.metric_product(z, jnp.ones_like(z)), jnp.zeros_like(z))

    @property
    def has_exact_root(self) -> bool:
        """Whether S has a closed form. Otherwise Λ is known up to eps, and singular values of S up to √eps."""
        return not self.joint or type(self).metric_sqrt_product is not AbstractFamily.metric_sqrt_product

    def metric_rank(self, outputs: int) -> int:
        """Largest rank of Λ for C outputs."""
        return outputs

    def check_responses(self, y: Array, outputs: tuple[int, ...], counts: Array | None = None) -> None:
        """Checks concrete responses.

        Args:
            y: responses, of the shape of the outputs, or labels.
            outputs: shape of the outputs, [*B C].
            counts: [*B], whether a response counts; None if all do.

        Raises:
            ValueError: if a response that counts is not finite or lies outside the family's support, or a label is not
                a whole number from 0 to C−1.
        """
        is_label = self.labels and y.shape == outputs[:-1]
        low, high = (0, outputs[-1] - 1) if is_label else self.support
        outside = ~((y >= low) & (y <= high) & jnp.isfinite(y)) | (is_label & (jnp.round(y) != y))
        if counts is not None:
            outside &= counts.reshape(*counts.shape, *(1,) * (y.ndim - counts.ndim))
        if bool(jnp.any(outside)):
            what = f"labels 0 … {high}" if is_label else f"finite responses from {low:g} to {high:g}"
            raise ValueError(
                f"{type(self).__name__} takes {what}; got {int(jnp.sum(outside))} others, such as "
                f"{y[outside][0].item():g}: correct y, or leave such positions out with mask="
            )

    def metric(self, z: Float[Array, "*B C"]) -> Float[Array, "*B C C"]:
        """Λ(z) as matrices."""
        basis = jnp.broadcast_to(jnp.eye(z.shape[-1], dtype=z.dtype), (*z.shape, z.shape[-1]))
        return jax.vmap(self.metric_product, (None, -1), -1)(z, basis)

    def log_prob(self, z: Float[Array, "*B C"], y: Array) -> Float[Array, "*B C"]:
        """Log p(y | z) (Eq. 10), one value per response. For a joint family c may return one value per row or entry."""
        if not self.joint:
            return (z * y - self.log_partition(z)) / self.dispersion + self.log_base_measure(y)
        base = self.log_base_measure(y)
        base = jnp.sum(base, -1) if base.shape == z.shape else base
        return (jnp.sum(z * y, -1) - self.log_partition(z)) / self.dispersion + base

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
    support: ClassVar[tuple[float, float]] = (0.0, 1.0)

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

    @property
    def support(self):  # noqa: D102
        return 0.0, float(self.trials)

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
    support: ClassVar[tuple[float, float]] = (0.0, float("inf"))

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
    support: ClassVar[tuple[float, float]] = (0.0, float("inf"))

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
    support: ClassVar[tuple[float, float]] = (0.0, float("inf"))

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
    support: ClassVar[tuple[float, float]] = (0.0, float("inf"))

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
    labels: ClassVar[bool] = True
    support: ClassVar[tuple[float, float]] = (0.0, 1.0)

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

    def metric_rank(self, outputs):  # noqa: D102
        return outputs - 1

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
    """v minus its entry at the largest logit. Λv stays the same, and 1 − q keeps its digits where q rounds to 1."""
    largest = jax.nn.one_hot(jnp.argmax(z, -1), z.shape[-1], dtype=v.dtype)
    return v - jnp.sum(largest * v, -1, keepdims=True)


def pivoted_cholesky(matrix: Float[Array, "*B C C"]) -> Float[Array, "*B C C"]:
    r"""S with S Sᵀ = Λ for positive semidefinite Λ: the outer products of Cholesky's method, largest pivots first.

    A pivot up to C eps times the largest entry of the diagonal is rounding, and counts as zero. The columns of S beyond
    the rank of Λ are therefore exactly zero. No LAPACK routine is called, since a batch of matrices would need many.

    Args:
        matrix: Λ.

    Returns:
        S; its columns are those of a Cholesky factor of Λ with permuted rows.
    """
    size = matrix.shape[-1]
    least = size * jnp.finfo(matrix.dtype).eps * jnp.max(jnp.diagonal(matrix, axis1=-2, axis2=-1), -1)

    def step(rest: Float[Array, "*B C C"], _: None) -> tuple[Float[Array, "*B C C"], Float[Array, "*B C"]]:
        diagonal = jnp.diagonal(rest, axis1=-2, axis2=-1)
        pivot = jax.nn.one_hot(jnp.argmax(diagonal, -1), size, dtype=rest.dtype)
        value = jnp.sum(pivot * diagonal, -1)
        kept = value > least
        root = jnp.sqrt(jnp.where(kept, value, 1))[..., None]
        column = jnp.einsum("...ij,...j->...i", rest, pivot) / root
        column = jnp.where(jnp.isnan(value)[..., None], jnp.nan, jnp.where(kept[..., None], column, 0))
        rest = rest - column[..., :, None] * column[..., None, :]
        return rest * (1 - pivot[..., :, None]) * (1 - pivot[..., None, :]), column

    return jnp.moveaxis(jax.lax.scan(step, matrix, None, length=size)[1], 0, -1)

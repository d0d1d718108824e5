r"""Exponential families of the generalized linear model, with natural parameter z and dispersion φ (Eqs. 10, 11).

$$\log p(y \mid z) = \frac{z y - \eta(z)}{\phi} + c(y, \phi), \qquad E[y] = \eta'(z), \qquad
\mathrm{Var}[y] = \phi\, \eta''(z).$$

η is the log-partition function. (The paper's text gives c this name by mistake.) A family defines η, c and a sampler.
Its mean, variance and Fisher metric follow from η by automatic differentiation. Where that cancels, as
1 − tanh² of a confident logit does, a family states η′, η″ or y − η′ in a form that keeps all digits. Tests compare
these with automatic derivatives, and over the whole range with 50 digits.
"""

import functools
from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from lngeom._distribution import (
    AbstractDistribution as AbstractDistribution,
    pivoted_cholesky as pivoted_cholesky,
)
from lngeom._family_checks import check as check
from lngeom._outputs import (
    HeteroscedasticGaussian as HeteroscedasticGaussian,
    Joined as Joined,
    Mixture as Mixture,
    MultivariateGaussian as MultivariateGaussian,
    Product as Product,
    described as described,
)
from lngeom._trees import Frozen


class AbstractFamily(AbstractDistribution):
    r"""An exponential family over natural parameters z [*B C]: C independent responses, or one joint response.

    A family of one's own defines η, c and `sample`; the rest follows from η. It may define `mean` (η′), `curvature`
    (η″) and `residual` (y − η′) where automatic derivatives lose digits. The rules:

    - `log_partition` and `log_base_measure` work elementwise. Those of a joint family (`joint = True`) reduce the last
      axis alone. `check` finds both mistakes. They are compiled, so they have no branches on values.
    - The response y of a joint family is its vector of sufficient statistics [*B C]:
      $\log p = (z^\top y - \eta(z))/\phi + c(y, \phi)$.
    - `upper` and `support` say where z and y may lie.
    - `metric_rank` is less than C where Λ is singular for every z, as that of a softmax is.
    - `metric_sqrt_product` in closed form makes ranks of a joint family certain; it is optional.

    Attributes:
        dispersion: φ > 0, which scales the variance: a number, or one for each of the C outputs.
        joint: whether the C outputs parameterize one response (categorical) instead of C independent ones.

    Example:
        >>> import jax, jax.numpy as jnp, lngeom as lg
        >>> class Geometric(lg.families.AbstractFamily):
        ...     "Failures before the first success; z < 0 is the logarithm of the chance of failure."
        ...     dispersion = 1.0
        ...     upper = 0.0
        ...     support = (0.0, float("inf"))
        ...     def log_partition(self, z):
        ...         return -jnp.log(-jnp.expm1(z))
        ...     def log_base_measure(self, y):
        ...         return jnp.zeros_like(y)
        ...     def sample(self, key, z):
        ...         uniform = jax.random.uniform(key, z.shape, z.dtype, 1e-7, 1)
        ...         return jnp.floor(jnp.log(uniform) / z)
        >>> print(*lg.families.check(Geometric()), sep=", ")
        shapes, mean and variance, score, metric, normalization, draws
        >>> class Shifted(Geometric):
        ...     def log_partition(self, z):
        ...         return -jnp.log(-jnp.expm1(z)) + z
        >>> lg.families.check(Shifted())
        Traceback (most recent call last):
        ...
        ValueError: Shifted: probabilities sum to 21.1... at z = -3.05, not to 1: correct log_base_measure or ...
    """

    dispersion: eqx.AbstractVar[float | Float[Array, " C"]]
    joint: ClassVar[bool] = False

    @abstractmethod
    def log_partition(self, z: Float[Array, "..."]) -> Float[Array, "..."]:
        """η(z): elementwise, or over the last axis for a joint family."""

    @abstractmethod
    def log_base_measure(self, y: Array) -> Array:
        """c(y, φ), elementwise."""

    def mean(self, z: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        """E[y] = η'(z)."""
        return _mean(Frozen(self), z)

    def curvature(self, z: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        """The second derivatives ∂²η/∂z_i²."""
        if self.joint:
            return self.dispersion_along(z) * self.metric_diagonal(z)
        return jax.jvp(self.mean, (z,), (jnp.ones_like(z),))[1]

    def residual(self, z: Float[Array, "*B C"], y: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        """The difference y − E[y]."""
        return y - self.mean(z)

    def variance(self, z: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        """Var[y_i] = φ ∂²η/∂z_i², the marginal variances."""
        return _variance(Frozen(self), z)

    def points(self):  # noqa: D102
        found = super().points()
        return found if jnp.ndim(self.dispersion) == 0 else jnp.resize(found, (4, jnp.size(self.dispersion)))

    def dispersion_along(self, z: Float[Array, "*B C"]) -> float | Float[Array, "*B C"]:
        """φ in a shape that multiplies z."""
        phi: Any = self.dispersion
        if jnp.ndim(phi) == 0:
            return phi
        if phi.shape != z.shape[-1:]:
            raise ValueError(
                f"{self.name} has a dispersion of shape {phi.shape}, one for each output; got outputs {z.shape}"
            )
        return phi.astype(z.dtype).reshape(*(1,) * (z.ndim - 1), -1)

    def metric_product(self, z: Float[Array, "*B C"], v: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        r"""Λ(z) v, with $\Lambda = \mathrm{Cov}[y]/\phi^2 = \nabla^2 \eta / \phi$ the Fisher metric of z."""
        if self.joint:
            return jax.jvp(self.mean, (z,), (v,))[1] / self.dispersion_along(z)
        return self.curvature(z) * v / self.dispersion_along(z)

    def log_prob(self, z: Float[Array, "*B C"], y: Array) -> Float[Array, "*B C"]:
        """Log p(y | z) (Eq. 10), one value per response. For a joint family c may return one value per row or entry."""
        phi = self.dispersion_along(z)
        if not self.joint:
            return (z * y - self.log_partition(z)) / phi + self.log_base_measure(y)
        base = self.log_base_measure(y)
        base = jnp.sum(base, -1) if base.shape == z.shape else base
        return (jnp.sum(z * y, -1) - self.log_partition(z)) / phi + base

    def score(self, z: Float[Array, "*B C"], y: Array) -> Float[Array, "*B C"]:
        r"""$\partial \log p(y \mid z)/\partial z = (y - E[y])/\phi$.

        Raises:
            ValueError: if the shape of y is not one of `response_shapes`.
        """
        self.check_shape(y, z.shape)
        if self.labels and y.shape != z.shape:
            y = jax.nn.one_hot(y.astype(int), z.shape[-1], dtype=z.dtype)
        return self.residual(z, y.reshape(z.shape).astype(z.dtype)) / self.dispersion_along(z)

    def kl(self, z: Float[Array, "*B C"], other: Float[Array, "*B C"]) -> Float[Array, " *B"]:
        r"""Kullback–Leibler divergence $D(p_z \| p_{z'})$ in nats, summed over the C responses.

        $D = [\eta(z') - \eta(z) - (z' - z)\, \eta'(z)] / \phi$, the Bregman divergence of η. Near z, where the
        difference cancels, it is the integral $\frac1\phi \int_0^1 (1 - t)\, \delta^2 \eta''(z + t\delta)\, dt$ of
        $\delta = z' - z$, by Gauss–Legendre quadrature.
        """
        return _kl(Frozen(self), z, other)

    def displacement(self, z: Float[Array, "*B C"], other: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        """The difference z' − z, up to directions that change nothing."""
        return other - z

    def bregman(self, z: Float[Array, "*B C"], other: Float[Array, "*B C"]) -> Float[Array, "..."]:
        """The difference η(z') − η(z) − (z' − z) η'(z), of one response each; used where z' is not near z."""
        linear = (other - z) * self.mean(z)
        gap = self.log_partition(other) - self.log_partition(z)
        return gap - (jnp.sum(linear, -1) if self.joint else linear)

    def check_domain(self, z: Float[Array, "*B C"]) -> None:
        """Checks concrete natural parameters.

        Args:
            z: natural parameters with values (not traced).

        Raises:
            ValueError: if z has NaN or infinite entries, or entries outside the domain of η.
        """
        largest, undefined = (float(v) for v in _extremes(z))
        if undefined:
            raise ValueError(f"natural parameters must be finite; {undefined:g} of {z.size} are NaN or infinite")
        if not largest < self.upper:
            raise ValueError(
                f"{self.name} needs natural parameters z < {self.upper:g}; got max z = {largest:g}: "
                "lower the bias, or start from NormalizedGLM.init, which is inside the domain"
            )

    def _check_positive(self, **values: float | Array) -> None:
        for name, value in values.items():
            if not np.all(np.asarray(value) > 0) or np.ndim(value) > 1:
                raise ValueError(f"{name} must be positive; got {value}")


# Each is one program. Inside another program it becomes a part of that one.


@functools.partial(jax.jit, inline=True)
def _mean(frozen: Frozen, z: Array) -> Array:
    return jax.grad(lambda z: jnp.sum(frozen.thaw().log_partition(z)))(z)


@functools.partial(jax.jit, inline=True)
def _variance(frozen: Frozen, z: Array) -> Array:
    family = frozen.thaw()
    return family.dispersion_along(z) * family.curvature(z)


@functools.partial(jax.jit, inline=True)
def _kl(frozen: Frozen, z: Array, other: Array) -> Array:
    family = frozen.thaw()
    delta = family.displacement(z, other)
    phi = family.dispersion_along(z)
    near = jnp.abs(delta) <= jnp.minimum(1.0, jnp.abs(family.upper - z) / 2)
    near = jnp.all(near, -1, keepdims=True) if family.joint else near
    step = jnp.where(near, delta, 0)

    def form(t: Array) -> Array:
        at = z + t * step
        curved = step * (phi * family.metric_product(at, step) if family.joint else family.curvature(at) * step)
        return (1 - t) * (jnp.sum(curved, -1) if family.joint else curved)

    nodes, weights = (jnp.asarray(v, z.dtype) for v in _QUADRATURE)
    integral = jnp.tensordot(weights, jax.lax.map(form, nodes), 1)
    divergence = jnp.where(near[..., 0] if family.joint else near, integral, family.bregman(z, other)) / phi
    return divergence if family.joint else jnp.sum(divergence, -1)


_QUADRATURE = tuple((np.polynomial.legendre.leggauss(12) + np.array([[1.0], [0.0]])) / 2)
"""Nodes and weights on 0 … 1."""


@jax.jit
def _extremes(z: Array) -> tuple[Array, Array]:
    """The largest entry, and the number of those that are not finite."""
    return jnp.max(z), jnp.sum(~jnp.isfinite(z))


def _dispersion(value: float | Float[Array, " C"]) -> float | Float[Array, " C"]:
    """φ as given, or an array of one for each output."""
    return value if np.ndim(value) == 0 else jnp.asarray(value, float)


class Gaussian(AbstractFamily):
    r"""Normal with variance φ: $\eta(z) = z^2/2$, so the natural parameter is the mean.

    Attributes:
        dispersion: the variance φ, or one for each output.
    """

    dispersion: float | Float[Array, " C"] = eqx.field(default=1.0, converter=_dispersion)

    def __check_init__(self):
        self._check_positive(dispersion=self.dispersion)

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
    r"""Bernoulli with log-odds z: $\eta(z) = \log(1 + e^z)$, $\eta'' = s(z)\, s(-z)$ with the logistic function s."""

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

    def sample(self, key, z):  # noqa: D102
        return jax.random.bernoulli(key, jax.nn.sigmoid(z)).astype(z.dtype)

    def atoms(self, outputs):  # noqa: D102
        return jnp.arange(2.0)


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

    def sample(self, key, z):  # noqa: D102
        return jax.random.binomial(key, float(self.trials), jax.nn.sigmoid(z), dtype=z.dtype)

    def atoms(self, outputs):  # noqa: D102
        return jnp.arange(self.trials + 1.0)


class Poisson(AbstractFamily):
    r"""Poisson with log-rate z: $\eta(z) = e^z$."""

    dispersion: ClassVar[float] = 1.0
    support: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def log_partition(self, z):  # noqa: D102
        return jnp.exp(z)

    def bregman(self, z, other):  # noqa: D102
        return jnp.exp(other) - jnp.exp(z) * (1 + other - z)

    def log_base_measure(self, y):  # noqa: D102
        return -gammaln(y + 1.0)

    def sample(self, key, z):  # noqa: D102
        return jax.random.poisson(key, jnp.exp(z)).astype(z.dtype)


class Gamma(AbstractFamily):
    r"""Gamma with mean −1/z and shape 1/φ: $\eta(z) = -\log(-z)$, z < 0.

    Attributes:
        dispersion: φ, the inverse of the shape, or one for each output.
    """

    dispersion: float | Float[Array, " C"] = eqx.field(default=1.0, converter=_dispersion)
    upper: ClassVar[float] = 0.0
    support: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def __check_init__(self):
        self._check_positive(dispersion=self.dispersion)

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
        return shape * jnp.log(shape * y) - jnp.log(y) - gammaln(shape)

    def sample(self, key, z):  # noqa: D102
        shape = 1 / self.dispersion_along(z)
        return jax.random.gamma(key, shape, z.shape, z.dtype) / (-z * shape)


class InverseGaussian(AbstractFamily):
    r"""Inverse Gaussian with mean $(-2z)^{-1/2}$ and shape 1/φ: $\eta(z) = -\sqrt{-2z}$, z < 0.

    Attributes:
        dispersion: φ, the inverse of the shape, or one for each output.
    """

    dispersion: float | Float[Array, " C"] = eqx.field(default=1.0, converter=_dispersion)
    upper: ClassVar[float] = 0.0
    support: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def __check_init__(self):
        self._check_positive(dispersion=self.dispersion)

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
        return -0.5 * jnp.log(2 * jnp.pi * phi * y**3) - 0.5 / (phi * y)

    def sample(self, key, z):  # noqa: D102
        phi = self.dispersion_along(z)
        return jax.random.wald(key, self.mean(z) * phi, dtype=z.dtype) / phi


def _log_complement(z: Array) -> Array:
    """log(1 − e^z) of z < 0."""
    small = z < -1.0
    return jnp.where(small, jnp.log1p(-jnp.exp(jnp.where(small, z, -1))), jnp.log(-jnp.expm1(jnp.where(small, -1, z))))


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
        return -self.successes * _log_complement(z)

    def mean(self, z):  # noqa: D102
        return self.successes * jnp.exp(z) / -jnp.expm1(z)

    def curvature(self, z):  # noqa: D102
        return self.successes * jnp.exp(z) / jnp.square(jnp.expm1(z))

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
            raise ValueError(
                f"{self.name} takes labels, or rows of probabilities that sum to 1; {int(wrong.sum())} rows do not, "
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
        return jnp.take_along_axis(log_q, jnp.asarray(y)[..., None], -1)[..., 0]

    def sample(self, key, z):  # noqa: D102
        return jax.random.categorical(key, z, -1)

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

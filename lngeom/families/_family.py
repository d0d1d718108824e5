"""What all exponential families have: mean, variance, metric, density and divergence from η and c."""

import functools
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lngeom._core.trees import Frozen
from lngeom._core.types import is_concrete
from lngeom.families._distribution import AbstractDistribution


class AbstractFamily(AbstractDistribution):
    r"""An exponential family over natural parameters z [*B C]: C independent responses, or one joint response.

    A family of one's own defines η, c and `sample`; the rest follows from η. It may define `mean` (η′), `curvature`
    (η″) and `residual` (y − η′) where automatic derivatives lose digits. The rules:

    - `log_partition` and `log_base_measure` work elementwise. Those of a joint family (`joint = True`) reduce the last
      axis alone. `check` finds both mistakes. They are compiled, so they have no branches on values.
    - The response y of a joint family is its vector of sufficient statistics [*B C]:
      $\log p = (z^\top y - \eta(z))/\phi + c(y, \phi)$.
    - `upper` and `support` say where z and y may lie, `whole` that y is a count, `open_support` that y is not the
      smallest of `support`. Responses elsewhere are refused where they are given (`check_responses`). The formulas of
      `log_prob` and `score` may be evaluated there, as a quasi-likelihood does.
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
        ...     def mean(self, z):  # the automatic derivative of expm1 cancels for z far below 0
        ...         return jnp.exp(z) / -jnp.expm1(z)
        ...     def log_base_measure(self, y):
        ...         return jnp.zeros_like(y)
        ...     def sample(self, key, z):
        ...         uniform = jax.random.uniform(key, z.shape, z.dtype, 1e-7, 1)
        ...         return jnp.floor(jnp.log(uniform) / z)
        >>> print(*lg.families.check(Geometric()), sep=", ")
        shapes, mean and variance, score, metric, normalization, draws, digits
        >>> class Shifted(Geometric):
        ...     def log_partition(self, z):
        ...         return -jnp.log(-jnp.expm1(z)) + z
        ...     def mean(self, z):
        ...         return 1 / -jnp.expm1(z)
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

    def points(self):
        found = super().points()
        return found if jnp.ndim(self.dispersion) == 0 else jnp.resize(found, (4, jnp.size(self.dispersion)))

    def dispersion_along(self, z: Float[Array, "*B C"]) -> float | Float[Array, "*B C"]:
        """φ in a shape that multiplies z."""
        return self.along("dispersion", z)

    def along(self, name: str, z: Float[Array, "*B C"]) -> float | Float[Array, "*B C"]:
        """A setting that is a number, or a vector of one for each output, in a shape and dtype that multiply z.

        Args:
            name: of the attribute.
            z: outputs, or responses of their shape.

        Raises:
            ValueError: if the vector has another length than the outputs.
        """
        value: Any = getattr(self, name)
        if isinstance(value, int | float):
            return float(value)
        value = jnp.asarray(value, z.dtype if jnp.issubdtype(z.dtype, jnp.floating) else float)
        if value.ndim and value.shape != z.shape[-1:]:
            raise ValueError(
                f"{self.name} has a {name} of shape {value.shape}, one for each output; got outputs {z.shape}"
            )
        return value.reshape(*(1,) * (z.ndim - 1), -1) if value.ndim else value

    def metric_product(self, z: Float[Array, "*B C"], v: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        r"""Λ(z) v, with $\Lambda = \mathrm{Cov}[y]/\phi^2 = \nabla^2 \eta / \phi$ the Fisher metric of z."""
        if self.joint:
            return jax.jvp(self.mean, (z,), (v,))[1] / self.dispersion_along(z)
        return self.curvature(z) * v / self.dispersion_along(z)

    def log_prob(self, z: Float[Array, "*B C"], y: Array) -> Float[Array, "*B C"]:
        """Log p(y | z) (Eq. 10), one value per response. For a joint family c may return one value per row or entry."""
        phi, y = self.dispersion_along(z), jnp.asarray(y).astype(z.dtype)
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


def positive(name: str) -> Callable[[Any], Any]:
    """The converter of a field: a positive number, or a vector of one for each output.

    Args:
        name: of the field, for the message.

    Returns:
        A function of what is given. It makes numbers of NumPy those of Python, which take the dtype of an array beside
        them. Traced values have no value yet and stay as they are, as arrays of JAX do.
    """

    def converted(value: Any) -> Any:
        if not is_concrete(value):
            return value
        try:
            numbers = np.asarray(value)
        except ValueError:  # rows of several lengths
            numbers = np.asarray(None)
        real = jnp.issubdtype(numbers.dtype, jnp.integer) or jnp.issubdtype(numbers.dtype, jnp.floating)
        if not real or numbers.ndim > 1 or not numbers.size or not np.all((numbers > 0) & np.isfinite(numbers)):
            raise ValueError(f"{name} must be positive and finite, a number or one for each output; got {value!r}")
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating):
            return value
        return jnp.array(numbers, float) if numbers.ndim else float(numbers)  # a copy, which stays as it is

    return converted


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

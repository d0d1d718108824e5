r"""The Fisher matrix of a normalized GLM, written as it is read: by definition, as printed, and from divergences.

These are the slow and literal oracles of everything faster. They judge no values: where z is not finite, as where a
variance is zero, neither is the matrix.

- *By definition*: $F = \frac1N \sum_n J_n^\top \Lambda_n J_n$ with $J_n = \partial z_n / \partial\theta$, which is
  Eq. 9 with the expectation over y in closed form. Memory grows as N H P.
- *As printed*: Eqs. 12, 13 and 14 of the paper, right or wrong.
- *From divergences*: Eqs. 8 and 9 without derivatives.

Matrices are in the order of `jax.flatten_util.ravel_pytree`, [W row by row, b, g]; `lngeom.information.orders`
holds the paper's.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from lngeom._core.types import GLMParameters, check_parameters
from lngeom.information.glm import NormalizedGLM, require_affine
from lngeom.information.orders import from_paper_order
from lngeom.methods import AbstractStatisticsNormalizer, Identity
from lngeom.methods.base import computes, keeps, summed_inputs


def jacobian(model: NormalizedGLM, params: GLMParameters, inputs: Float[Array, "N D"]) -> Float[Array, "N H P"]:
    """Jacobian ∂z/∂θ of the natural parameters; columns in the order of `ravel_pytree`."""
    flat, unravel = ravel_pytree(params)
    return jax.jacfwd(lambda theta: model.natural_parameters(unravel(theta), inputs))(flat)


@eqx.filter_jit
def factor(model: NormalizedGLM, params: GLMParameters, inputs: Float[Array, "N D"]) -> Float[Array, "NH P"]:
    r"""Rows of $\sqrt{\Lambda/N}\, J$, so that factorᵀ·factor is the Fisher matrix."""
    J = jacobian(model, params, inputs)
    z = model.natural_parameters(params, inputs)
    rows = jax.vmap(model.family.metric_sqrt_product, (None, 2), 2)(z, J)
    return rows.reshape(-1, J.shape[-1]) / len(inputs) ** 0.5


@eqx.filter_jit
def by_definition(model: NormalizedGLM, params: GLMParameters, inputs: Float[Array, "N D"]) -> Float[Array, "P P"]:
    r"""$F = \frac1N \sum_n J_n^\top \Lambda_n J_n$."""
    J = jacobian(model, params, inputs)
    z = model.natural_parameters(params, inputs)
    metric_J = jax.vmap(model.family.metric_product, (None, 2), 2)(z, J)
    return jnp.einsum("nhp,nhq->pq", J, metric_J) / len(inputs)


def standard_glm(
    model: NormalizedGLM, params: GLMParameters, inputs: Float[Array, "N D"]
) -> Float[Array, "H(D+1) H(D+1)"]:
    r"""Eq. 12, for a GLM without normalization or gain: $E[\mathrm{Cov}[y|x]/\phi^2 \otimes [x; 1][x; 1]^\top]$.

    Args:
        model: its normalizer must be the identity.
        params: parameters; the gain must be 1.
        inputs: X, one sample a row.

    Raises:
        ValueError: if the model normalizes or has a gain other than 1.
    """
    require_affine(model, "Eq. 12")
    if not computes(model.normalizer, Identity) or not bool(jnp.all(params.gain == 1)):
        raise ValueError("Eq. 12 is about the standard GLM: use normalizers.Identity() and a gain of ones")
    return _standard_glm(model, params, inputs)


@eqx.filter_jit
def _standard_glm(model: NormalizedGLM, params: GLMParameters, inputs: Float[Array, "N D"]) -> Array:
    covariance = model.family.metric(model.natural_parameters(params, inputs))
    extended = jnp.concatenate([inputs, jnp.ones_like(inputs[:, :1])], 1)
    outer = extended[:, :, None] * extended[:, None, :]
    return jnp.mean(jax.vmap(jnp.kron)(covariance, outer), 0)


def chi(
    normalizer: AbstractStatisticsNormalizer, weights: Float[Array, "H D"], inputs: Float[Array, "N D"]
) -> Float[Array, "N H D"]:
    r"""Eq. 14: $\chi_i = x - \partial\mu_i/\partial w_i - \frac{a_i - \mu_i}{\sigma_i}\,\partial\sigma_i/\partial w_i$.

    The derivatives are those of unit i's own statistics with respect to its own weights, by automatic differentiation.
    """
    mean, scale = normalizer.statistics(weights, inputs)
    mean_slope, scale_slope = jax.jacfwd(normalizer.statistics)(weights, inputs)

    def own(slope: Float[Array, "N|1 H|1 H D"]) -> Float[Array, "N|1 H D"]:
        return slope[:, 0] if slope.shape[1] == 1 else jnp.einsum("niid->nid", slope)

    n = (summed_inputs(weights, inputs) - mean) / scale
    return inputs[:, None, :] - own(mean_slope) - n[:, :, None] * own(scale_slope)


def require_printed_form(model: NormalizedGLM) -> AbstractStatisticsNormalizer:
    """The normalizer of a model that Eq. 13 is about: n = (a − μ)/σ and z = g ⊙ n + b; else raises a ValueError."""
    require_affine(model, "Eq. 13")
    normalizer = model.normalizer
    if not isinstance(normalizer, AbstractStatisticsNormalizer) or not keeps(
        normalizer, AbstractStatisticsNormalizer, "__call__"
    ):
        raise ValueError(f"Eq. 13 is about methods of the form of Eq. 5; {type(normalizer).__name__} is not one")
    return normalizer


@eqx.filter_jit
def as_printed(model: NormalizedGLM, params: GLMParameters, inputs: Float[Array, "N D"]) -> Float[Array, "P P"]:
    r"""Eq. 13 as printed: $\bar F_{ij} = E[\mathrm{Cov}[y_i, y_j | x] / \phi^2\; f_i f_j^\top]$.

    Here $f_i = [\frac{g_i}{\sigma_i}\chi_i;\ 1;\ \frac{a_i - \mu_i}{\sigma_i}]$. It is the Fisher matrix where μ and σ
    of one unit do not depend on the weights of another (batch and weight norm), and not for layer norm.

    The matrix is in the order of `ravel_pytree`.

    Args:
        model: a normalized GLM whose normalizer has the form of Eq. 5.
        params: parameters.
        inputs: X, one sample a row.

    Raises:
        ValueError: if the normalizer is not of the form of Eq. 5, or shapes do not agree.
    """
    normalizer = require_printed_form(model)
    check_parameters(params, inputs)
    samples, units = len(inputs), params.units
    _, scale = normalizer.statistics(params.weights, inputs)
    n = model.normalized(params, inputs)
    covariance = model.family.metric(model.natural_parameters(params, inputs))
    slope = jnp.broadcast_to(params.gain[None, :] / scale, n.shape)
    chi_part = slope[:, :, None] * chi(normalizer, params.weights, inputs)
    features = jnp.concatenate([chi_part, jnp.ones_like(n)[:, :, None], n[:, :, None]], 2)
    blocks = jnp.einsum("nij,nip,njq->ipjq", covariance, features, features, optimize="optimal") / samples
    return from_paper_order(blocks.reshape(params.size, params.size), units, params.inputs)


def form_from_divergences(
    model: NormalizedGLM,
    params: GLMParameters,
    inputs: Float[Array, "N D"],
    direction: Float[Array, " P"],
    step: float = 2e-3,
) -> Float[Array, ""]:
    r"""$\delta^\top F \delta$ from divergences alone: $2\, E_x D_{KL}[\theta \| \theta + h\delta] / h^2$ as h → 0.

    The symmetric second difference in h is extrapolated once (Richardson), so its error is of order h⁴: about 1e-8 in
    float64 with the default step and a direction about as long as θ.

    Args:
        model: a normalized GLM.
        params: θ.
        inputs: X, one sample a row.
        direction: δ, in the order of `ravel_pytree`.
        step: h.
    """
    theta, unravel = ravel_pytree(params)

    def second_difference(h: float) -> Array:
        forward, backward = (model.kl(params, unravel(theta + s * h * direction), inputs) for s in (1, -1))
        return (forward + backward) / h**2

    return (4 * second_difference(step / 2) - second_difference(step)) / 3

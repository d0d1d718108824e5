r"""The Fisher matrix from its definition by automatic differentiation: the oracle of everything faster.

$F = \frac1N \sum_n J_n^\top \Lambda_n J_n$ with $J_n = \partial z_n / \partial\theta$ and Λ the family's metric,
which is Eq. 9 with the expectation over y done in closed form. Memory grows as N H P.
"""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from lngeom._types import GLMParameters
from lngeom.glm import NormalizedGLM
from lngeom.normalizers import AbstractStatisticsNormalizer


def jacobian(model: NormalizedGLM, params: GLMParameters, inputs: Float[Array, "N D"]) -> Float[Array, "N H P"]:
    """Jacobian ∂z/∂θ of the natural parameters; columns in the order of `ravel_pytree`."""
    flat, unravel = ravel_pytree(params)
    return jax.jacfwd(lambda theta: model.natural_parameters(unravel(theta), inputs))(flat)


def factor(model: NormalizedGLM, params: GLMParameters, inputs: Float[Array, "N D"]) -> Float[Array, "NH P"]:
    r"""Rows of $\sqrt{\Lambda/N}\, J$, so that factorᵀ·factor is the Fisher matrix."""
    J = jacobian(model, params, inputs)
    z = model.natural_parameters(params, inputs)
    rows = jax.vmap(model.family.metric_sqrt_product, (None, 2), 2)(z, J)
    return rows.reshape(-1, J.shape[-1]) / len(inputs) ** 0.5


def cancellation_scale(model: NormalizedGLM, params: GLMParameters, inputs: Float[Array, "N D"]) -> Float[Array, ""]:
    r"""Size of $\sqrt{\Lambda/N}\, D_g\, x / \sigma$: the factor's weight columns before Π cancels parts.

    Rounding errors of the factor are of this size times eps, which matters near zero variance and where Π = 0.

    Args:
        model: a normalized GLM with a normalizer of the form of Eq. 5.
        params: parameters.
        inputs: X, one sample a row.

    Returns:
        Its Frobenius norm.

    Raises:
        ValueError: if the normalizer is not of the form of Eq. 5.
    """
    if not isinstance(model.normalizer, AbstractStatisticsNormalizer):
        raise ValueError(f"{type(model.normalizer).__name__} is not of the form of Eq. 5")
    _, scale = model.normalizer.statistics(params.weights, inputs)
    variances = model.family.variance(model.natural_parameters(params, inputs)) / model.family.dispersion**2
    slopes = variances * jnp.square(params.gain[None, :] / scale)
    return jnp.sqrt(jnp.mean(jnp.sum(slopes, 1) * jnp.sum(jnp.square(inputs), 1)))


def dense(model: NormalizedGLM, params: GLMParameters, inputs: Float[Array, "N D"]) -> Float[Array, "P P"]:
    r"""$F = \frac1N \sum_n J_n^\top \Lambda_n J_n$, from the definition."""
    J = jacobian(model, params, inputs)
    z = model.natural_parameters(params, inputs)
    metric_J = jax.vmap(model.family.metric_product, (None, 2), 2)(z, J)
    return jnp.einsum("nhp,nhq->pq", J, metric_J) / len(inputs)

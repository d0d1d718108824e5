"""Eqs. 12, 13 and 14 exactly as printed in the paper, right or wrong."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom._types import GLMParameters, check_parameters
from lngeom.glm import NormalizedGLM
from lngeom.information._order import from_paper_order
from lngeom.normalizers import AbstractStatisticsNormalizer, Identity, summed_inputs


def standard_glm(
    model: NormalizedGLM, params: GLMParameters, inputs: Float[Array, "N D"]
) -> Float[Array, "H(D+1) H(D+1)"]:
    r"""Eq. 12, for a GLM without normalization or gain: $E[\mathrm{Cov}[y|x]/\phi^2 \otimes [x; 1][x; 1]^\top]$.

    Args:
        model: its normalizer must be the identity.
        params: parameters; the gain must be 1.
        inputs: X, one sample a row.

    Returns:
        The matrix for θ = [w_1, b_1, …, w_H, b_H].

    Raises:
        ValueError: if the model normalizes or has a gain other than 1.
    """
    if not isinstance(model.normalizer, Identity) or not bool(jnp.all(params.gain == 1)):
        raise ValueError("Eq. 12 is about the standard GLM: use normalizers.Identity() and a gain of ones")
    covariance = model.family.metric(model.natural_parameters(params, inputs))
    extended = jnp.concatenate([inputs, jnp.ones_like(inputs[:, :1])], 1)
    outer = extended[:, :, None] * extended[:, None, :]
    return jnp.mean(jax.vmap(jnp.kron)(covariance, outer), 0)


def chi(
    normalizer: AbstractStatisticsNormalizer, weights: Float[Array, "H D"], inputs: Float[Array, "N D"]
) -> Float[Array, "N H D"]:
    r"""Eq. 14: $\chi_i = x - \partial\mu_i/\partial w_i - \frac{a_i - \mu_i}{\sigma_i}\,\partial\sigma_i/\partial w_i$.

    The derivatives are those of unit i's own statistics with respect to its own weights, by automatic differentiation.

    Args:
        normalizer: a method of the form of Eq. 5.
        weights: W.
        inputs: X, one sample a row.

    Returns:
        χ for each sample and unit.
    """
    mean, scale = normalizer.statistics(weights, inputs)
    mean_slope, scale_slope = jax.jacfwd(normalizer.statistics)(weights, inputs)

    def own(slope: Float[Array, "N|1 H|1 H D"]) -> Float[Array, "N|1 H D"]:
        return slope[:, 0] if slope.shape[1] == 1 else jnp.einsum("niid->nid", slope)

    n = (summed_inputs(weights, inputs) - mean) / scale
    return inputs[:, None, :] - own(mean_slope) - n[:, :, None] * own(scale_slope)


def dense(model: NormalizedGLM, params: GLMParameters, inputs: Float[Array, "N D"]) -> Float[Array, "P P"]:
    r"""Eq. 13 as printed: $\bar F_{ij} = E[\mathrm{Cov}[y_i, y_j | x] / \phi^2\; f_i f_j^\top]$.

    Here $f_i = [\frac{g_i}{\sigma_i}\chi_i;\ 1;\ \frac{a_i - \mu_i}{\sigma_i}]$. It is the Fisher matrix where μ and σ
    of one unit do not depend on the weights of another (batch and weight norm), and not for layer norm.

    Args:
        model: a normalized GLM whose normalizer has the form of Eq. 5.
        params: parameters.
        inputs: X, one sample a row.

    Returns:
        The matrix, in the order of `ravel_pytree`.

    Raises:
        ValueError: if the normalizer is not of the form of Eq. 5, or shapes do not agree.
    """
    normalizer = model.normalizer
    if not isinstance(normalizer, AbstractStatisticsNormalizer):
        raise ValueError(f"Eq. 13 is about methods of the form of Eq. 5; {type(normalizer).__name__} is not one")
    check_parameters(params, inputs)
    samples, units = len(inputs), params.units
    _, scale = normalizer.statistics(params.weights, inputs)
    n = model.normalized(params, inputs)
    covariance = model.family.metric(model.natural_parameters(params, inputs))
    slope = jnp.broadcast_to(params.gain[None, :] / scale, n.shape)
    features = jnp.concatenate(
        [
            slope[:, :, None] * chi(normalizer, params.weights, inputs),
            jnp.ones_like(n)[:, :, None],
            n[:, :, None],
        ],
        2,
    )
    blocks = jnp.einsum("nij,nip,njq->ipjq", covariance, features, features, optimize="optimal") / samples
    return from_paper_order(blocks.reshape(params.size, params.size), units, params.inputs)

"""Eqs. 8 and 9 without derivatives: the metric from finite Kullback–Leibler divergences."""

import jax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from lngeom._types import GLMParameters
from lngeom.glm import NormalizedGLM


def quadratic_form(
    model: NormalizedGLM,
    params: GLMParameters,
    inputs: Float[Array, "N D"],
    direction: Float[Array, " P"],
    step: float = 2e-3,
) -> Float[Array, ""]:
    r"""$\delta^\top F \delta$ from divergences alone: $2\, E_x D_{KL}[\theta \| \theta + h\delta] / h^2$ as h → 0.

    The symmetric second difference in h is extrapolated once (Richardson), so its error is of order h⁴.

    Args:
        model: a normalized GLM.
        params: θ.
        inputs: X, one sample a row.
        direction: δ, in the order of `ravel_pytree`; its length sets what `step` means.
        step: h; the default balances truncation and rounding in float64 for a δ about as long as θ.

    Returns:
        The quadratic form, to about 1e-8 in float64.
    """
    theta, unravel = ravel_pytree(params)

    def second_difference(h: float) -> Array:
        forward, backward = (model.kl(params, unravel(theta + s * h * direction), inputs) for s in (1, -1))
        return (forward + backward) / h**2

    return (4 * second_difference(step / 2) - second_difference(step)) / 3


quadratic_forms = jax.vmap(quadratic_form, (None, None, None, 0))
"""`quadratic_form` for several directions [K P] at once."""

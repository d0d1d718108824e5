"""A loss of the weights of one unit that does not see their scale: a smooth function of what batch norm gives."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.claims import Problem
from lngeom.methods import BatchNorm


def start(problem: Problem) -> tuple[Float[Array, " D"], Float[Array, "N D"]]:
    """Random weights of one unit, and 40 random inputs of 6 features."""
    _, params, inputs = problem.small("bn", shape=(40, 6, 1))
    return params.weights[0], inputs


def outputs(w: Float[Array, " D"], inputs: Float[Array, "N D"], eps: float = 0.0) -> Float[Array, " N"]:
    """Batch norm of the unit."""
    return BatchNorm(eps=eps)(w[None, :], inputs)[:, 0]


def targets(count: int, dtype) -> Float[Array, " N"]:
    """Targets that no weights reach, of which the first half is 1 and the others −1."""
    return jnp.where(jnp.arange(count) < count // 2, 1.0, -1.0).astype(dtype)


def loss(w: Float[Array, " D"], inputs: Float[Array, "N D"], eps: float = 0.0) -> Float[Array, ""]:
    """The mean of log cosh of the deviations from the targets."""
    return jnp.mean(jnp.log(jnp.cosh(2 * (outputs(w, inputs, eps) - targets(len(inputs), inputs.dtype)))))

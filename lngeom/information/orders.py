r"""The order of the paper's parameter vector, $\theta = [w_1, b_1, g_1, \dots, w_H, b_H, g_H]$ (before Eq. 13).

Everything else is in the order of `jax.flatten_util.ravel_pytree`, [W row by row, b, g].
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


def paper_positions(units: int, inputs: int) -> Int[np.ndarray, " P"]:
    """Positions in the ravelled vector of the entries of the paper's vector, in the paper's order."""
    unit = np.arange(units)[:, None]
    weights = unit * inputs + np.arange(inputs)[None, :]
    bias = units * inputs + unit
    return np.concatenate([weights, bias, bias + units], axis=1).reshape(-1)


def _permute(value: Float[Array, "P *P"], positions: Int[np.ndarray, " P"]) -> Float[Array, "P *P"]:
    value = jnp.asarray(value)
    if value.ndim not in {1, 2} or value.shape[0] != len(positions):
        raise ValueError(
            f"expected a vector [P] or a matrix [P P] or [P K] with P = {len(positions)}; got shape {value.shape}"
        )
    return _reordered(value, positions, value.ndim == 2 and value.shape[1] == len(positions))


@functools.partial(jax.jit, static_argnames="both")
def _reordered(value: Float[Array, "P *P"], positions: Int[np.ndarray, " P"], both: bool) -> Float[Array, "P *P"]:
    """The entries at these positions of the first axis, or of both."""
    return value[positions][:, positions] if both else value[positions]


def to_paper_order(value: Float[Array, "P *P"], units: int, inputs: int) -> Float[Array, "P *P"]:
    """Reorders a ravelled vector [P], matrix [P P] or set of columns [P K] into the paper's order.

    Args:
        value: in the order of `ravel_pytree`. A square matrix is reordered on both sides.
        units: H.
        inputs: D.

    Raises:
        ValueError: if the first axis is not H(D + 2) long.

    Example:
        >>> to_paper_order(jnp.array([1, 2, 3, 4, 10, 20, 0.1, 0.2]), units=2, inputs=2).tolist()
        [1.0, 2.0, 10.0, 0.1, 3.0, 4.0, 20.0, 0.2]
    """
    return _permute(value, paper_positions(units, inputs))


def from_paper_order(value: Float[Array, "P *P"], units: int, inputs: int) -> Float[Array, "P *P"]:
    """The inverse of `to_paper_order`.

    Args:
        value: in the paper's order. A square matrix is reordered on both sides.
        units: H.
        inputs: D.

    Raises:
        ValueError: if the first axis is not H(D + 2) long.
    """
    return _permute(value, np.argsort(paper_positions(units, inputs)))

"""Shapes and the parameters of a normalized generalized linear model.

Axis names used in every annotation: ``N`` samples, ``T`` positions, ``D`` inputs, ``H`` outputs (units),
``C`` classes, ``P`` parameters, P = H(D + 2) for a normalized GLM.
"""

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
from jaxtyping import Array, Float


class GLMParameters(eqx.Module):
    r"""Parameters $\theta = (W, b, g)$ of a normalized GLM, a pytree.

    Attributes:
        weights: incoming weights $w_1, \dots, w_H$ as rows, shape [H D].
        bias: $b$, added after the normalization, shape [H].
        gain: $g$, multiplied after the normalization, shape [H].
    """

    weights: Float[Array, "H D"]
    bias: Float[Array, " H"]
    gain: Float[Array, " H"]

    @property
    def units(self) -> int:
        """Number of outputs H."""
        return self.weights.shape[0]

    @property
    def inputs(self) -> int:
        """Number of inputs D."""
        return self.weights.shape[1]

    @property
    def size(self) -> int:
        """Number of scalar parameters, P = H(D + 2)."""
        return self.units * (self.inputs + 2)


def is_concrete(*arrays: object) -> bool:
    """Whether every array has a value. Under jit these may, and results have none: `is_tracing` tells."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arrays))


def is_tracing() -> bool:
    """Whether a function is being traced now, by jit for example. Results then have no concrete values."""
    return isinstance(jax.lax.bitwise_not(True), jax.core.Tracer)


def check_parameters(params: GLMParameters, inputs: Float[Array, "N *T D"]) -> None:
    """Checks shapes and dtypes of parameters against inputs (works under tracing: shapes are static).

    Args:
        params: parameters to check.
        inputs: inputs of the model.

    Raises:
        ValueError: if a shape or dtype differs from the expected one. The message names both.
    """
    if not isinstance(params, GLMParameters):
        exchanged = ": params and inputs are exchanged" if isinstance(inputs, GLMParameters) else ""
        raise ValueError(
            "params must be GLMParameters(weights, bias, gain), as model.init makes them; got a "
            f"{type(params).__name__}{exchanged}"
        )
    shapes = {name: jnp.shape(getattr(params, name)) for name in ("weights", "bias", "gain")}
    if len(shapes["weights"]) != 2:
        raise ValueError(f"weights must be a matrix [H D]; got shape {shapes['weights']}")
    units, features = shapes["weights"]
    for name in ("bias", "gain"):
        if shapes[name] != (units,):
            raise ValueError(
                f"{name} must have shape [H] = ({units},), one entry per row of weights; got {shapes[name]}"
            )
    check_inputs(inputs, features)


def require_array(name: str, value: object) -> None:
    """Refuses lists and other objects in the place of an array.

    Raises:
        ValueError: if it has no shape and dtype.
    """
    if not (hasattr(value, "shape") and hasattr(value, "dtype")) and not isinstance(value, int | float | complex):
        remedy = f": convert it, as by jnp.asarray({name})" if isinstance(value, list | tuple) else ""
        raise ValueError(f"{name} must be an array; got a {type(value).__name__}{remedy}")


def check_inputs(inputs: Float[Array, "N *T D"], features: int | None = None) -> None:
    """Checks that inputs are a floating point array [N D] or [N T D] with at least one sample.

    Args:
        inputs: the array to check.
        features: expected D, or None for any.

    Raises:
        ValueError: if not. The message names the expected and the given shape or dtype.
    """
    require_array("inputs", inputs)
    shape = jnp.shape(inputs)
    if len(shape) not in {2, 3}:
        raise ValueError(f"inputs must be [N D] (or [N T D]), one sample per row; got shape {shape}")
    if 0 in shape:
        raise ValueError(f"inputs must not be empty; got shape {shape}")
    if features is not None and shape[-1] != features:
        raise ValueError(f"inputs must have D = {features} columns, as weights has; got shape {shape}")
    if not jnp.issubdtype(jnp.result_type(inputs), jnp.floating):
        raise ValueError(
            f"inputs must be floating point; got dtype {jnp.result_type(inputs)}: convert with inputs.astype(float)"
        )

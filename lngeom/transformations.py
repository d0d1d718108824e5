r"""Transformations of weights and data, as group actions on (W, X, g, b): the columns of Table 1.

Every column is a `Column`: it knows its name and its formula, and draws a random member of its group. A drawn
`Transformation` acts elementwise and affinely, composes with ``@`` and has an inverse.
"""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from lngeom._types import GLMParameters


class AffineAction(eqx.Module):
    r"""$Y \mapsto s \odot Y + t$ elementwise, where s and t broadcast against Y and have as many axes.

    Attributes:
        scale: s, nonzero.
        shift: t.
    """

    scale: Float[Array, "..."] | float = 1.0
    shift: Float[Array, "..."] | float = 0.0

    def __call__(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        """Applies the action."""
        return self.scale * value + self.shift

    def __matmul__(self, first: "AffineAction") -> "AffineAction":
        """The composition which applies `first` and then this one."""
        return AffineAction(self.scale * first.scale, self.scale * first.shift + self.shift)

    def inverse(self) -> "AffineAction":
        """The action which undoes this one."""
        return AffineAction(1 / self.scale, -self.shift / self.scale)


class Transformation(eqx.Module):
    """A simultaneous affine action on the weights, inputs, gain and bias.

    Attributes:
        weights: action on W [H D].
        inputs: action on X [N *T D].
        gain: action on g [H].
        bias: action on b [H].
    """

    weights: AffineAction = AffineAction()
    inputs: AffineAction = AffineAction()
    gain: AffineAction = AffineAction()
    bias: AffineAction = AffineAction()

    def __call__(
        self, params: GLMParameters, inputs: Float[Array, "N *T D"]
    ) -> tuple[GLMParameters, Float[Array, "N *T D"]]:
        """Transformed parameters and inputs."""
        moved = GLMParameters(self.weights(params.weights), self.bias(params.bias), self.gain(params.gain))
        return moved, self.inputs(inputs)

    def __matmul__(self, first: "Transformation") -> "Transformation":
        """The composition which applies `first` and then this one."""
        return Transformation(
            self.weights @ first.weights,
            self.inputs @ first.inputs,
            self.gain @ first.gain,
            self.bias @ first.bias,
        )

    def inverse(self) -> "Transformation":
        """The transformation which undoes this one."""
        return Transformation(self.weights.inverse(), self.inputs.inverse(), self.gain.inverse(), self.bias.inverse())


@dataclass(frozen=True)
class Column:
    """A column of Table 1: a named group of transformations.

    Attributes:
        name: identifier, as used in claim ids.
        title: the paper's heading.
        formula: the action, LaTeX.
        draw: draws a member, given a key, parameters and inputs (which give the shapes and the scale of the data).
    """

    name: str
    title: str
    formula: str
    draw: Callable[[PRNGKeyArray, GLMParameters, Array], Transformation]


def _positive_scale(key, shape, dtype):
    """Scales away from 1, between 0.2 and 0.6 or between 1.7 and 5, either with probability a half."""
    size = jnp.exp(jax.random.uniform(key, shape, dtype, 0.51, 1.61))
    side = jax.random.bernoulli(jax.random.fold_in(key, 1), 0.5, shape)
    return jnp.where(side, size, 1 / size)


def _weight_matrix_rescaling(key, params, inputs):
    return Transformation(weights=AffineAction(_positive_scale(key, (), params.weights.dtype)))


def _weight_matrix_recentering(key, params, inputs):
    shift = jax.random.normal(key, (1, params.inputs), params.weights.dtype)
    return Transformation(weights=AffineAction(shift=shift * jnp.std(params.weights) * 3))


def _weight_vector_rescaling(key, params, inputs):
    scale = jnp.ones((params.units, 1), params.weights.dtype)
    unit = jax.random.randint(key, (), 0, params.units)
    return Transformation(weights=AffineAction(scale.at[unit].set(_positive_scale(key, (), params.weights.dtype))))


def _dataset_rescaling(key, params, inputs):
    return Transformation(inputs=AffineAction(_positive_scale(key, (), inputs.dtype)))


def _dataset_recentering(key, params, inputs):
    shift = jax.random.normal(key, (1,) * (inputs.ndim - 1) + inputs.shape[-1:], inputs.dtype)
    return Transformation(inputs=AffineAction(shift=shift * jnp.std(inputs) * 3))


def _single_case_rescaling(key, params, inputs):
    shape = (inputs.shape[0],) + (1,) * (inputs.ndim - 1)
    case = jax.random.randint(key, (), 0, inputs.shape[0])
    scale = jnp.ones(shape, inputs.dtype).at[case].set(_positive_scale(key, (), inputs.dtype))
    return Transformation(inputs=AffineAction(scale))


def _weight_sign_flip(key, params, inputs):
    return Transformation(weights=AffineAction(-1.0))


WEIGHT_MATRIX_RESCALING = Column(
    "weight_matrix_rescaling",
    "Weight matrix re-scaling",
    r"W \mapsto \delta W,\ \delta > 0",
    _weight_matrix_rescaling,
)
WEIGHT_MATRIX_RECENTERING = Column(
    "weight_matrix_recentering",
    "Weight matrix re-centering",
    r"W \mapsto W + \mathbf{1}\gamma^\top",
    _weight_matrix_recentering,
)
WEIGHT_VECTOR_RESCALING = Column(
    "weight_vector_rescaling",
    "Weight vector re-scaling",
    r"w_i \mapsto \delta w_i,\ \delta > 0",
    _weight_vector_rescaling,
)
DATASET_RESCALING = Column(
    "dataset_rescaling", "Dataset re-scaling", r"X \mapsto \delta X,\ \delta > 0", _dataset_rescaling
)
DATASET_RECENTERING = Column(
    "dataset_recentering",
    "Dataset re-centering",
    r"x_n \mapsto x_n + \gamma\ \forall n",
    _dataset_recentering,
)
SINGLE_CASE_RESCALING = Column(
    "single_case_rescaling",
    "Single training case re-scaling",
    r"x_n \mapsto \delta x_n,\ \delta > 0",
    _single_case_rescaling,
)
WEIGHT_SIGN_FLIP = Column("weight_sign_flip", "Weight sign flip", r"W \mapsto -W", _weight_sign_flip)

TABLE1 = (
    WEIGHT_MATRIX_RESCALING,
    WEIGHT_MATRIX_RECENTERING,
    WEIGHT_VECTOR_RESCALING,
    DATASET_RESCALING,
    DATASET_RECENTERING,
    SINGLE_CASE_RESCALING,
)
"""The six columns of Table 1, in its order."""

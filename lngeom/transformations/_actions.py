"""Elementwise affine actions on weights, inputs, gain and bias, and named groups of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

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
        draw: draws a member, given a key, parameters and inputs (for the shapes and the scale of the data).
        acts_on: the arguments that it changes.
        heading: short heading for a table.
        groups: number of groups of consecutive units with transformations of their own; 1 for no groups.
        samples: smallest number of samples.
        compares_first: whether only the output of the first sample must stay the same; its input is not changed.
        positive: whether it multiplies by positive factors. An ε > 0 in a variance breaks such an invariance.
    """

    name: str
    title: str
    formula: str
    draw: Callable[[PRNGKeyArray, GLMParameters, Array], Transformation]
    acts_on: Literal["weights", "inputs"] = "weights"
    heading: str = ""
    groups: int = 1
    samples: int = 1
    compares_first: bool = False
    positive: bool = False

    def compared(self, outputs: Float[Array, "N ..."]) -> Float[Array, "..."]:
        """The part of the outputs that must stay the same."""
        return outputs[:1] if self.compares_first else outputs


def positive_scale(key, shape, dtype):
    """Scales away from 1, between 0.2 and 0.6 or between 1.7 and 5, either with probability a half."""
    size = jnp.exp(jax.random.uniform(key, shape, dtype, 0.51, 1.61))
    side = jax.random.bernoulli(jax.random.fold_in(key, 1), 0.5, shape)
    return jnp.where(side, size, 1 / size)

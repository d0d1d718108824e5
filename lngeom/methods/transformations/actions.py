"""Elementwise affine actions on weights, inputs, gain and bias, and named groups of them."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from lngeom._core.draws import draw_small
from lngeom._core.types import GLMParameters, is_concrete, is_tracing


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
    r"""A column of the invariance tables: a named group of affine maps $y \mapsto s\,y + t$ of the entries of W or X.

    The definition is the indices on which s and t depend. `member` reads them over arrays, of drawn numbers or of exact
    ones; `lngeom.symbolic.actions` reads them for all sizes.

    Attributes:
        name: identifier, as used in claim ids.
        title: the paper's heading.
        action: the map, LaTeX.
        acts_on: the arguments that it changes.
        scale: s, or the indices on which it depends: "i" for one unit, "n" for one case, "g" for groups of units, "t"
            for positions, "d" for inputs; "" for a number of its own.
        shift: t, or the indices on which it depends.
        condition: what s must satisfy, LaTeX. An ε > 0 in a variance breaks an invariance under such factors.
        heading: short heading for a table.
        groups: number of groups of consecutive units with transformations of their own; 1 for no groups.
        samples: smallest number of samples.
        compares_first: whether only the output of the first sample must stay the same. Its input is not changed, those
            of all the others are.
    """

    name: str
    title: str
    action: str
    acts_on: Literal["weights", "inputs"]
    scale: str | int = 1
    shift: str | int = 0
    condition: str = ""
    heading: str = ""
    groups: int = 1
    samples: int = 1
    compares_first: bool = False

    @property
    def formula(self) -> str:
        """The action and its condition, LaTeX."""
        return rf"{self.action},\ {self.condition}" if self.condition else self.action

    @property
    def positive(self) -> bool:
        """Whether it multiplies by positive factors."""
        return bool(self.condition)

    @property
    def grouped(self) -> bool:
        """Whether it tells groups of units apart."""
        return "g" in f"{self.scale}{self.shift}"

    def compared(self, outputs: Float[Array, "N ..."]) -> Float[Array, "..."]:
        """The part of the outputs that must stay the same."""
        return outputs[:1] if self.compares_first else outputs

    def member(
        self,
        value: Float[Array, "..."],
        scales: Callable[[tuple[int, ...]], Any],
        shifts: Callable[[tuple[int, ...]], Any],
        place: Callable[[int], Any],
    ) -> AffineAction:
        """The map with given coefficients.

        Args:
            value: W [H D] or X [N *T D]; an array of dtype object for exact numbers or symbols.
            scales: an array of factors of a shape.
            shifts: an array of summands of a shape.
            place: the unit or case that is changed, of so many.

        Returns:
            The map.
        """
        return AffineAction(
            self._coefficients(self.scale, value, 1, scales, place),
            self._coefficients(self.shift, value, 0, shifts, place),
        )

    def _coefficients(self, indices: str | int, value, unchanged: int, take, place) -> Any:
        """Coefficients with these indices, which broadcast against the value."""
        if not isinstance(indices, str):
            return indices
        if not indices:
            return take(())
        xp = np if isinstance(value, np.ndarray) else jnp
        rows, *positions, columns = value.shape
        inner = *(size if "t" in indices else 1 for size in positions), columns if "d" in indices else 1
        if "g" in indices:
            if rows % self.groups:
                raise ValueError(f"the number of units must be a multiple of groups = {self.groups}; got H = {rows}")
            return xp.repeat(take((self.groups, *inner)), rows // self.groups, 0)
        if self.compares_first:
            others = take((rows - 1, *inner))
            return xp.concatenate([xp.full_like(others[:1], unchanged), others])
        if not {"i", "n"} & set(indices):
            return take((1, *inner))
        changed = xp.arange(rows).reshape(-1, *(1 for _ in inner)) == place(rows)
        return xp.where(changed, take((1, *inner)), unchanged)

    def draw(self, key: PRNGKeyArray, params: GLMParameters, inputs: Float[Array, "N *T D"]) -> Transformation:
        """A random member, of the shapes of parameters and inputs and the scale of what it changes.

        Coefficients are NumPy's except while JAX traces: few programs are compiled for them.
        """
        given = params.weights if self.acts_on == "weights" else inputs
        xp = np if is_concrete(key, given) and not is_tracing() else jnp
        value: Any = xp.asarray(given)

        def scales(shape: tuple[int, ...]) -> Any:
            return xp.asarray(positive_scale(key, shape, value.dtype))

        def shifts(shape: tuple[int, ...]) -> Any:
            if "d" not in str(self.shift):
                return scales(shape) * xp.std(value)
            return xp.asarray(draw_small(jax.random.normal, key, shape, value.dtype)) * xp.std(value) * 3

        action = self.member(value, scales, shifts, lambda rows: xp.asarray(jax.random.randint(key, (), 0, rows)))
        return Transformation(weights=action) if self.acts_on == "weights" else Transformation(inputs=action)


def positive_scale(key, shape, dtype):
    """Scales away from 1, between 0.2 and 0.6 or between 1.7 and 5, either with probability a half."""
    return draw_small(_positive_scale, key, shape, dtype)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _positive_scale(key, shape, dtype):
    size = jnp.exp(jax.random.uniform(key, shape, dtype, 0.51, 1.61))
    side = jax.random.bernoulli(jax.random.fold_in(key, 1), 0.5, shape)
    return jnp.where(side, size, 1 / size)

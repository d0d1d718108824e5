"""A layer under examination, with its checked outputs and derivatives at random points."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from lngeom._core.draws import draw_small

Layer = Callable[[Float[Array, "H D"], Float[Array, "N *T D"]], Float[Array, "N *T H"]]
Part = Literal["weights", "inputs", "single input"]

BATCH = 8
"""Number of points whose derivatives are computed together."""


class Derivatives(NamedTuple):
    """Outputs and derivatives of a layer at some points.

    Attributes:
        outputs: at each point, [B N ...].
        points: the vectors that a generator moves, [B n m]: vec(W) (n = 1), or the samples.
        jacobian: derivative of all outputs by them, [B R n m].
    """

    outputs: Array
    points: Array
    jacobian: Array


@dataclass(frozen=True)
class Examined:
    """A layer, its shapes, and the argument that a generator moves.

    Attributes:
        layer: (W, X) -> outputs.
        shape: (H, D) of the weights.
        samples: N.
        positions: T, or None for inputs [N D].
        part: what moves.
        weights: held fixed, or None to draw them.
        data: held fixed, or None to draw them.
        dtype: of everything.
        width: D of the inputs; the columns of the weights where None.
    """

    layer: Layer
    shape: tuple[int, int]
    samples: int
    positions: int | None
    part: Part
    weights: Array | None
    data: Array | None
    dtype: np.dtype
    width: int | None = None

    @property
    def moved(self) -> tuple[int, int]:
        """Rows and columns of what a generator moves: W as [H D], a sample as [T D] (T = 1 without positions)."""
        return self.shape if self.part == "weights" else (self.positions or 1, self.shape[1])

    def draw(self, key: PRNGKeyArray) -> tuple[Array, Array]:
        """Random (W, X), standard normal; what is held fixed stays."""
        first, second = jax.random.split(key)
        middle = () if self.positions is None else (self.positions,)
        W = draw_small(jax.random.normal, first, self.shape, self.dtype) if self.weights is None else self.weights
        X = draw_small(jax.random.normal, second, (self.samples, *middle, self.width or self.shape[1]), self.dtype)
        return W, X if self.data is None else self.data

    def move(self, W: Array, X: Array, points: Array) -> Array:
        """Outputs with the moved vectors [n m] in their place."""
        if self.part == "weights":
            return self.layer(points.reshape(W.shape), X)
        if self.part == "inputs":
            return self.layer(W, points.reshape(X.shape))
        return self.layer(W, X.at[0].set(points.reshape(X.shape[1:])))

    def points(self, W: Array, X: Array) -> Array:
        """The vectors that a generator moves, [n m]."""
        if self.part == "weights":
            return W.reshape(1, -1)
        return (X if self.part == "inputs" else X[:1]).reshape(-1, self.moved[0] * self.moved[1])

    def check(self, key: PRNGKeyArray) -> None:
        """Calls the layer once.

        Args:
            key: of the point it is called at.

        Raises:
            ValueError: if the outputs are not one floating point array [N ...] of finite numbers.
        """
        W, X = self.draw(key)
        z = self.layer(W, X)
        called = f"called with weights {W.shape} and inputs {X.shape} of {self.dtype}"
        if not hasattr(z, "shape") or not hasattr(z, "dtype"):
            raise ValueError(f"a layer must return one array [N ... H]; {called} it returned {type(z).__name__}")
        if len(z.shape) < 1 or z.shape[0] != X.shape[0] or 0 in z.shape:
            raise ValueError(
                f"a layer must return outputs [N ... H], one sample per row as its inputs; {called} it returned "
                f"shape {tuple(z.shape)}: is it a function (W, X) -> outputs?"
            )
        if not jnp.issubdtype(z.dtype, jnp.floating):
            raise ValueError(
                f"a layer must return floating point numbers; {called} it returned {z.dtype}, "
                "which has no derivative: give the layer before rounding or thresholding"
            )
        bad = int(np.sum(~np.isfinite(np.asarray(z))))
        if bad:
            raise ValueError(
                f"outputs must be finite; {called} (standard normal numbers) {bad} of {z.size} are NaN or infinite: "
                "is a statistic taken over one entry, or a variance zero?"
            )

    def differentiator(self) -> Callable[[PRNGKeyArray], Derivatives]:
        """A function from keys [B] to the layer's derivatives at B random points, compiled once.

        Returns:
            The function.

        Raises:
            ValueError: if JAX cannot differentiate the layer, or values or derivatives are NaN or infinite.
        """

        def derivatives(key, jacobian):
            W, X = self.draw(key)
            points = self.points(W, X)
            flat = jacobian(lambda p: self.move(W, X, p).reshape(-1))(points)
            return Derivatives(self.move(W, X, points), points, flat)

        compiled = {
            name: jax.jit(jax.vmap(lambda key, f=f: derivatives(key, f)))
            for name, f in (("forward", jax.jacfwd), ("reverse", jax.jacrev))
        }
        mode = "forward"

        def at(keys: PRNGKeyArray) -> Derivatives:
            nonlocal mode
            try:
                found = compiled[mode](keys)
            except jax.errors.JAXTypeError as error:
                raise ValueError(
                    "the layer cannot be differentiated by JAX, which discovery needs: write it with jax.numpy and "
                    f"without branches on values ({type(error).__name__}: {str(error).splitlines()[0]})"
                ) from error
            except TypeError as error:
                if "forward-mode" not in str(error) or mode == "reverse":
                    raise
                mode = "reverse"
                found = compiled[mode](keys)
            for what, value in (("outputs", found.outputs), ("derivatives", found.jacobian)):
                if not np.all(np.isfinite(np.asarray(value))):
                    raise ValueError(
                        f"{what} of the layer are NaN or infinite at standard normal weights {self.shape} and inputs: "
                        "discovery needs a layer that is differentiable at almost every point"
                    )
            return found

        return at

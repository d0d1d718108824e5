"""A layer as the suite sees it: a function of weights and inputs, evaluated in a dtype of the suite's choice."""

import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from lngeom._numerics import agreement, tolerance

Output = Float[np.ndarray, "N *T H"]

UNITS = 6
"""Units given to a layer that takes any number; a mean over six is rounded, as one over eight is not."""


@contextmanager
def as_elsewhere() -> Iterator[None]:
    """JAX as other packages expect to find it: with float64, and its default promotion rules."""
    with (
        jax.enable_x64(True),
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
        np.errstate(all="ignore"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def deviation(before: Output, after: Output) -> float:
    """Largest difference on the scale of the larger output; infinite where one is not finite."""
    return agreement(np.asarray(before), np.asarray(after), tol=0.0).residual


def layer_tolerance(dtype: jax.typing.DTypeLike) -> float:
    """Relative tolerance for one layer in a dtype: that of `_numerics`, and at least half of the digits.

    The suite's data are numbers of a few bits which every transformation keeps exact, so that no conditioning
    of the data enters: what deviates by more is the layer's own doing.
    """
    return min(tolerance(dtype), math.sqrt(float(jnp.finfo(dtype).eps)))


@dataclass(frozen=True)
class Subject:
    """A layer under examination; `adapt` makes one.

    Attributes:
        name: what it is called in reports.
        function: takes W [H D] and X [N *T D], or summed inputs [N *T H], as NumPy arrays of one dtype.
        takes_weights: which of the two.
        source: "package.module:NAME" it can be imported from; None if it cannot.
        units: H, or None for any.
        positions: T, or None for inputs without positions.
        square: whether W must have as many rows as columns.
        groups: number of groups of units that columns of groups act on.
        outputs_are_units: whether the last axis of the outputs is that of the units.
        eps: what the layer itself says is added to its variance; None if it does not say.
        options: arguments of `adapt` other than its defaults.
        after_call: calls the layer on writable copies and returns them as it leaves them; None if it cannot
            write to its arguments.
        rebuild: makes the same layer with another number of units; None if it came with one.
    """

    name: str
    function: Callable[..., Any]
    takes_weights: bool
    source: str | None = None
    units: int | None = None
    positions: int | None = None
    square: bool = False
    groups: int = 2
    outputs_are_units: bool = True
    eps: float | None = None
    options: tuple[tuple[str, Any], ...] = ()
    after_call: Callable[..., tuple[np.ndarray, ...]] | None = None
    rebuild: "Callable[[int], Subject] | None" = None

    def with_units(self, units: int) -> "Subject":
        """The same layer for another number of units, where it can be built anew or takes any; otherwise itself."""
        if self.rebuild is not None:
            return replace(self.rebuild(units), groups=self.groups, square=self.square)
        return self if self.units else replace(self, units=units)

    def arguments(
        self,
        weights: Float[np.ndarray, "H D"],
        inputs: Float[np.ndarray, "N *T D"],
        dtype: jax.typing.DTypeLike = "float32",
    ) -> tuple[np.ndarray, ...]:
        """What the layer is called with: summed inputs are taken in float64 and rounded once, to `dtype`."""
        weights, inputs = np.asarray(weights, np.float64), np.asarray(inputs, np.float64)
        arrays = (weights, inputs) if self.takes_weights else (inputs @ weights.T,)
        with np.errstate(over="ignore"):
            return tuple(a.astype(jnp.dtype(dtype)) for a in arrays)

    def __call__(
        self,
        weights: Float[np.ndarray, "H D"],
        inputs: Float[np.ndarray, "N *T D"],
        dtype: jax.typing.DTypeLike = "float32",
    ) -> Float[np.ndarray, "N *T H"]:
        """Outputs of the layer.

        Args:
            weights: W.
            inputs: X.
            dtype: in which the layer gets them.

        Returns:
            Its outputs, as it returns them.
        """
        arguments = self.arguments(weights, inputs, dtype)
        with as_elsewhere():
            return np.asarray(self.function(*arguments))


def computes_in_float64(subject: Subject, data: tuple[np.ndarray, np.ndarray]) -> bool:
    """Whether outputs in float64 have the digits of float64.

    Inputs are moved by 2⁻³² of their size, of which float32 sees nothing, and by 2⁻¹²: the outputs, those not near
    zero, should move in proportion. Rounding on the way makes them stay, jump, or follow another slope.

    Args:
        subject: the layer.
        data: W and X.

    Returns:
        Whether they do; False where the outputs are of another dtype.
    """
    weights, inputs = data
    direction = np.random.default_rng(0).uniform(-1, 1, inputs.shape) * np.max(np.abs(inputs))
    start = subject(weights, inputs, "float64")
    if start.dtype != np.float64:
        return False
    large = np.abs(start) >= np.max(np.abs(start), initial=0.0) / 4
    slopes = [(subject(weights, inputs + h * direction, "float64") - start)[large] / h for h in (2.0**-32, 2.0**-12)]
    return bool(np.all(np.abs(slopes[0] - slopes[1]) <= 0.05 * np.max(np.abs(slopes), initial=0.0)))


def is_elementwise(subject: Subject, data: tuple[np.ndarray, np.ndarray], dtype: jax.typing.DTypeLike) -> bool:
    r"""Whether outputs depend on their own summed input alone.

    For each of three outputs all other rows of W and X are replaced, and then both are sheared, which leaves
    $w_i \cdot x_n$ as it is.

    Args:
        subject: the layer.
        data: W and X.
        dtype: in which it is run.

    Returns:
        Whether these outputs stay.
    """
    weights, inputs = data
    shear = np.eye(inputs.shape[-1]) + np.eye(inputs.shape[-1], k=1)
    start = subject(*data, dtype)
    for kept in range(min(3, len(weights), len(inputs), start.shape[-1])):
        place = (kept, *(0,) * (inputs.ndim - 2))
        rows, samples = np.roll(weights[::-1], 1, 0) * 2, np.roll(inputs[::-1], 1, tuple(range(inputs.ndim - 1))) * 2
        rows[kept], samples[place] = weights[kept], inputs[place]
        moved = subject(np.linalg.solve(shear.T, rows.T).T, samples @ shear.T, dtype)
        if deviation(start[(*place, kept)], moved[(*place, kept)]) > math.sqrt(float(jnp.finfo(dtype).eps)):
            return False
    return True


def required_arguments(function: Callable[..., Any]) -> list[str]:
    """Names of the arguments a function cannot be called without; empty where it does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    variadic = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return [p.name for p in parameters if p.default is inspect.Parameter.empty and p.kind not in variadic]


def cast(tree: Any, dtype: jax.typing.DTypeLike) -> Any:
    """The same pytree with every floating-point array in `dtype`."""

    def leaf(value):
        floating = hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating)
        return jnp.asarray(value, dtype) if floating else value

    return jax.tree.map(leaf, tree)

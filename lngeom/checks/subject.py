"""The layer under test: a function of weights and inputs, evaluated in a chosen dtype."""

import inspect
import math
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from lngeom._core.draws import probe_generator
from lngeom._core.numerics import agreement, tolerance

Output = Float[np.ndarray, "N *T H"]

UNITS = 6
"""Units for a layer that takes any number. A mean over six is rounded; one over eight is not."""


@contextmanager
def as_elsewhere() -> Iterator[None]:
    """JAX with float64 and its default promotion rules, as other packages expect."""
    with (
        jax.enable_x64(True),
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
        np.errstate(all="ignore"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def same_draws() -> Iterator[None]:
    """The global random generators of Python, NumPy and torch, which are afterwards as they were."""
    own, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002 - that of models of users
    torch = sys.modules.get("torch")
    devices = range(torch.cuda.device_count()) if torch and torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices) if torch else nullcontext():
            yield
    finally:
        random.setstate(own)
        np.random.set_state(numpys)  # noqa: NPY002


def deviation(before: Output, after: Output) -> float:
    """Largest difference on the scale of the larger output; infinite where one is not finite."""
    return agreement(np.asarray(before), np.asarray(after), tol=0.0).residual


def layer_tolerance(dtype: jax.typing.DTypeLike) -> float:
    """Relative tolerance for one layer in a dtype: that of `lngeom.numerics`, and at least half of the digits.

    The suite's data have few bits, and every transformation is exact on them. The condition of the data therefore
    plays no part, and a larger deviation comes from the layer.
    """
    return min(tolerance(dtype), math.sqrt(float(jnp.finfo(dtype).eps)))


class Opened(NamedTuple):
    """A layer whose parameters are arguments, so that it can be differentiated in them.

    Attributes:
        parameters: what the layer is trained in: arrays, or tensors by name.
        call: (parameters, *arrays) → outputs, in the dtype of the arrays, without any change of state.
        torch: whether it takes tensors; else arrays of JAX, which it can trace.
        compiled: the same call by torch.compile, as one graph; None where there is none.
    """

    parameters: PyTree
    call: Callable[..., Any]
    torch: bool = False
    compiled: Callable[..., Any] | None = None

    def closed(self) -> Callable:
        """The compiled function of the arrays alone, with the parameters in their dtype."""
        return jax.jit(lambda *arrays: self.call(cast(self.parameters, arrays[0].dtype), *arrays))


@dataclass(frozen=True)
class Subject:
    """A layer under examination; `adapt` makes one.

    Attributes:
        name: name in reports.
        function: takes W [H D] and X [N *T D], or summed inputs [N *T H], as NumPy arrays of one dtype.
        takes_weights: whether the function takes W and X.
        source: "package.module:NAME" for import; None if it cannot be imported.
        units: H, or None for any.
        positions: T, or None for inputs without positions.
        square: whether W must have as many rows as columns.
        groups: number of groups of units, for group columns.
        outputs_are_units: whether the last axis of the outputs is that of the units.
        eps: the layer's own attribute for ε; None if it has none.
        options: arguments of `adapt` other than its defaults.
        after_call: calls the layer on writable copies and returns them after the call; None if it cannot write to its
            arguments.
        rebuild: makes the same layer with another number of units; None if the number is fixed.
        opened: the layer with its parameters as arguments, for each framework that runs it; empty if it can be
            evaluated alone.
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
    opened: tuple[Opened, ...] = ()

    def with_units(self, units: int) -> "Subject":
        """The same layer for another number of units, where that is possible; otherwise the layer itself."""
        if self.rebuild is not None:
            return replace(self.rebuild(units), groups=self.groups, square=self.square)
        return self if self.units else replace(self, units=units)

    def arguments(
        self,
        weights: Float[np.ndarray, "H D"],
        inputs: Float[np.ndarray, "N *T D"],
        dtype: jax.typing.DTypeLike = "float32",
    ) -> tuple[np.ndarray, ...]:
        """Arguments of the layer. Summed inputs are computed in float64 and rounded once, to `dtype`."""
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
            dtype: dtype of the arguments.

        Returns:
            Its outputs, unchanged.
        """
        arguments = self.arguments(weights, inputs, dtype)
        with as_elsewhere():
            return np.asarray(self.function(*arguments))


def computes_in_float64(subject: Subject, data: tuple[np.ndarray, np.ndarray]) -> bool:
    """Whether outputs in float64 have the digits of float64.

    Inputs are moved by 2⁻³² of their size, which float32 cannot represent, and by 2⁻¹². Outputs that are not near zero
    should move in proportion. If a step rounds to float32, they stay, jump, or follow another slope.

    Args:
        subject: the layer.
        data: W and X.

    Returns:
        Whether they have; False where the outputs have another dtype.
    """
    weights, inputs = data
    direction = probe_generator().uniform(-1, 1, inputs.shape) * np.max(np.abs(inputs))
    start = subject(weights, inputs, "float64")
    if start.dtype != np.float64:
        return False
    large = np.abs(start) >= np.max(np.abs(start), initial=0.0) / 4
    slopes = [(subject(weights, inputs + h * direction, "float64") - start)[large] / h for h in (2.0**-32, 2.0**-12)]
    return bool(np.all(np.abs(slopes[0] - slopes[1]) <= 0.05 * np.max(np.abs(slopes), initial=0.0)))


def is_elementwise(subject: Subject, data: tuple[np.ndarray, np.ndarray], dtype: jax.typing.DTypeLike) -> bool:
    r"""Whether each output depends on its own summed input alone.

    For each of three outputs all other rows of W and X are replaced. Then both are sheared, which keeps
    $w_i \cdot x_n$.

    Args:
        subject: the layer.
        data: W and X.
        dtype: dtype of the computation.

    Returns:
        Whether these outputs stay the same.
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
    """Names of a function's required arguments; empty where it has no signature."""
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

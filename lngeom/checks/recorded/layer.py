"""A layer of a model with its weights, and what went through it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from lngeom.checks.subject import as_elsewhere

Arrays = dict[str, np.ndarray]
"""Arrays by name."""

Apply = Callable[[np.ndarray, Arrays, Arrays, bool], tuple[np.ndarray, Arrays]]
"""A layer: (inputs, parameters, statistics, training) → outputs and new statistics, in the dtype of the inputs."""

_NORM = re.compile(r"norm", re.IGNORECASE)
_SHORT = re.compile(r"(^|_)(norm|ln|bn|gn)_?(\d+|_\w+)?$")
_DECLARED = (
    ("weightnorm", "wn"),
    ("spectral", "sn"),
    ("instance", "in"),
    ("group", "gn"),
    ("batch", "bn"),
    ("rms", "rms"),
    ("layer", "ln"),
)
MIXES = re.compile(r"^_?(linear|dense|conv|einsum|embed)", re.IGNORECASE)
"""Names of classes whose layers mix units by weights."""


@dataclass(frozen=True)
class Layer:
    """A layer of a model with its weights, and what went through it.

    Attributes:
        path: its place in the model.
        kind: name of its class.
        framework: the library it belongs to.
        module: the object.
        inputs: its inputs in the first call.
        outputs: its outputs in the first call.
        calls: how many times it was called.
        order: place of its first call.
        parameters: its trainable arrays.
        statistics: its other arrays, such as running means.
        apply: the layer as a function.
        childless: whether it has no layers inside.
    """

    path: str
    kind: str
    framework: str
    module: Any
    inputs: np.ndarray
    outputs: np.ndarray
    calls: int
    order: int
    parameters: Arrays
    statistics: Arrays
    apply: Apply
    childless: bool = True

    @property
    def is_norm(self) -> bool:
        """Whether it normalizes, by the name of its class or its place."""
        if not self.childless or MIXES.match(self.kind) or self.inputs.shape != self.outputs.shape:
            return False
        if self.normalizes_weights:
            return False
        return bool(_NORM.search(self.kind) or _SHORT.search(self.path.rsplit(".", 1)[-1].rsplit("/", 1)[-1]))

    @property
    def declared(self) -> str | None:
        """Row of the invariance table that the name of its class promises; None where it names none."""
        name = self.kind.lower().replace("_", "")
        return next((row for word, row in _DECLARED if word in name), None)

    @property
    def normalizes_weights(self) -> bool:
        """Whether it normalizes the weights of a layer, by the name of its class."""
        return bool(_NORM.search(self.kind)) and self.declared in {"wn", "sn"}

    @property
    def eps(self) -> float | None:
        """Its attribute for ε."""
        for name in ("eps", "epsilon", "variance_epsilon"):
            value = getattr(self.module, name, None)
            if isinstance(value, float | int):
                return float(value)
        return None

    def run(
        self,
        inputs: np.ndarray,
        *,
        dtype: Any = None,
        training: bool = True,
        parameters: Mapping[str, np.ndarray] | None = None,
    ) -> np.ndarray:
        """Outputs for other inputs, with the layer's own weights and statistics.

        Args:
            inputs: in the layout of `self.inputs`.
            dtype: in which inputs, parameters and statistics are given; by default, that of the inputs, with
                parameters as they are.
            training: the mode, where there are two.
            parameters: values in place of its own.

        Returns:
            The outputs.
        """
        return self.step(inputs, self.statistics, dtype=dtype, training=training, parameters=parameters)[0]

    def step(
        self,
        inputs: np.ndarray,
        statistics: Arrays,
        *,
        dtype: Any = None,
        training: bool = True,
        parameters: Mapping[str, np.ndarray] | None = None,
    ) -> tuple[np.ndarray, Arrays]:
        """Outputs, and the statistics after the call.

        Args:
            inputs: as in `run`.
            statistics: before the call.
            dtype: as in `run`.
            training: as in `run`.
            parameters: as in `run`.

        Returns:
            Both.
        """
        given = {**self.parameters, **(parameters or {})}
        if dtype is not None:
            inputs = inputs.astype(jnp.dtype(dtype))
            given = {k: np.asarray(v).astype(jnp.dtype(dtype)) for k, v in given.items()}
            statistics = {k: v.astype(jnp.dtype(dtype)) if floating(v) else v for k, v in statistics.items()}
        with as_elsewhere():
            outputs, after = self.apply(inputs, given, statistics, training)
        return np.asarray(outputs), after


def is_array(value: Any) -> bool:
    """Whether a value is an array of any library."""
    return hasattr(value, "dtype") and hasattr(value, "ndim")


def floating(value: Any) -> bool:
    """Whether a value is an array of floating point numbers."""
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating)

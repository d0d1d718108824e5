"""What went through the layers of a model in one call, and layers made of it."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from lngeom._trees import leaf_path
from lngeom.checks._orbits import QUICKLY
from lngeom.checks.recorded.layer import Apply, Arrays, Layer, floating, is_array


@dataclass
class Seen:
    """What one layer was given, and gave.

    Attributes:
        inputs: its first input in each call.
        outputs: its first output in each call.
        order: place of its first call.
        ndim: axes of its input inside of the model, where samples may be mapped.
    """

    inputs: list[np.ndarray] = field(default_factory=list)
    outputs: list[np.ndarray] = field(default_factory=list)
    order: int = -1
    ndim: int = 0

    def layer(
        self, path: str, framework: str, module: Any, made: tuple[Arrays, Arrays, Apply], *, childless: bool = True
    ) -> Layer:
        """The layer that was seen.

        Args:
            path: its place in the model.
            framework: the library it belongs to.
            module: the object.
            made: its parameters, its statistics, and the layer as a function.
            childless: whether it has no layers inside.

        Returns:
            The layer.
        """
        seen = (self.inputs[0], self.outputs[0], len(self.inputs), self.order)
        return Layer(path, type(module).__name__, framework, module, *seen, *made, childless)


class Tape:
    """Records of layers, by any key."""

    def __init__(self):
        self.seen: dict[Any, Seen] = {}
        self.count = 0

    def into(self, key: Any, ndim: int) -> Seen:
        """The record of a layer, which its first call opens."""
        record = self.seen.setdefault(key, Seen())
        if record.order < 0:
            record.order, record.ndim = self.count, ndim
            self.count += 1
        return record

    def call(self, key: Any, function: Callable, args: tuple, kwargs: dict) -> Any:
        """Calls a layer of JAX and records its first input and its output, also where they are traced."""
        if not args or not is_array(args[0]):
            return function(*args, **kwargs)
        record = self.into(key, jnp.ndim(args[0]))
        outputs = function(_tap(args[0], record.inputs), *args[1:], **kwargs)
        first = outputs[0] if isinstance(outputs, tuple) else outputs
        if not is_array(first):
            return outputs
        tapped = _tap(first, record.outputs)
        return (tapped, *outputs[1:]) if isinstance(outputs, tuple) else tapped

    def layers(self, make: Callable[[Any, Seen], Layer | None]) -> list[Layer]:
        """The layers whose outputs were arrays, in the order of their first calls; `make` may leave one out."""
        ordered = sorted(self.seen.items(), key=lambda item: item[1].order)
        found = [make(key, seen) for key, seen in ordered if seen.outputs]
        return [layer for layer in found if layer is not None]


def _tap(value: Any, sink: list[np.ndarray]) -> Any:
    """The value, which is recorded when it is known; mapped axes come first."""
    if not isinstance(value, jax.core.Tracer):
        sink.append(np.asarray(value))
        return value

    def keep(array):
        sink.append(np.array(array))
        return np.asarray(array)

    return jax.pure_callback(keep, jax.ShapeDtypeStruct(value.shape, value.dtype), value, vmap_method="broadcast_all")


def _plain(value: Any) -> bool:
    """Whether a value is an array of numbers, and not of random keys."""
    return hasattr(value, "dtype") and not jnp.issubdtype(value.dtype, jax.dtypes.extended)


def of_jax(
    tree: Any, is_parameter: Callable[[str], bool], call: Callable[[Any, Any, bool], tuple[Any, Any]]
) -> tuple[Arrays, Arrays, Apply]:
    """Parameters, statistics and the function of a layer whose arrays are a pytree.

    Args:
        tree: the arrays.
        is_parameter: whether an array is trained, by its path.
        call: (tree, inputs, training) → outputs, and the tree after the call or None.

    Returns:
        The three.
    """
    leaves, structure = jax.tree.flatten_with_path(tree)
    names = [leaf_path(path) for path, _ in leaves]
    known = {name: np.asarray(value) for name, (_, value) in zip(names, leaves, strict=True) if _plain(value)}
    parameters = {k: v for k, v in known.items() if is_parameter(k) and floating(v)}

    @functools.cache
    def program(training: bool) -> Callable:
        def run(values, inputs):
            whole = [values.get(name, value) for name, (_, value) in zip(names, leaves, strict=True)]
            outputs, after = call(jax.tree.unflatten(structure, whole), inputs, training)
            if after is None:
                return outputs, {}
            found = {leaf_path(path): value for path, value in jax.tree.leaves_with_path(after)}
            return outputs, {k: v for k, v in found.items() if k in known and k not in parameters}

        return jax.jit(run, compiler_options=QUICKLY)

    def apply(inputs, given, statistics, training):
        outputs, after = program(training)({**given, **statistics}, inputs)
        return np.asarray(outputs), {**statistics, **{k: np.asarray(v) for k, v in after.items()}}

    return parameters, {k: v for k, v in known.items() if k not in parameters}, apply

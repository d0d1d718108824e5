"""The layers of a Keras 3 model in one call."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from lngeom.checks._frameworks import mode
from lngeom.checks._orbits import QUICKLY
from lngeom.checks.recorded.layer import Layer, floating, is_array
from lngeom.checks.recorded.tape import Tape
from lngeom.checks.subject import as_elsewhere


def layers(parts: tuple, args: tuple, kwargs: dict) -> list[Layer]:
    """The layers of a model."""
    import keras

    model, tape, found, depth = parts[0], Tape(), {}, []
    original = keras.Layer.__call__
    inside: set[int] = set()

    def watched(self, *given, **options):
        inside.update(depth)
        depth.append(id(self))
        try:
            outputs = original(self, *given, **options)
        finally:
            depth.pop()
        value = given[0] if given else None
        if value is not None and is_array(value) and is_array(outputs) and not isinstance(outputs, keras.KerasTensor):
            found[id(self)] = self
            record = tape.into(id(self), value.ndim)
            for array, sink in ((value, record.inputs), (outputs, record.outputs)):
                sink.append(np.asarray(keras.ops.convert_to_numpy(array)))
        return outputs

    keras.Layer.__call__ = watched
    try:
        with as_elsewhere():
            model(*args, **mode(model.call, False), **kwargs)
    finally:
        keras.Layer.__call__ = original

    def make(key, seen):
        layer = found[key]
        names = [[v.path.removeprefix(f"{layer.path}/") for v in group] for group in _variables(layer)]
        values = [[np.asarray(keras.ops.convert_to_numpy(v)) for v in group] for group in _variables(layer)]
        parameters, statistics = (
            {k: v for k, v in zip(n, group, strict=True) if floating(v)} for n, group in zip(names, values, strict=True)
        )

        @functools.cache
        def twin(dtype: str) -> Any:
            if dtype == "float64" and layer.compute_dtype != dtype:
                copied = type(layer).from_config(layer.get_config() | {"dtype": dtype})
                copied.build(seen.inputs[0].shape)
                return copied
            return layer

        @functools.cache
        def program(dtype: str, training: bool) -> Callable:
            copied = twin(dtype)
            options = mode(copied.call, training)

            def run(trained, others, inputs):
                return copied.stateless_call(trained, others, inputs, **options)

            return jax.jit(run, compiler_options=QUICKLY) if keras.backend.backend() == "jax" else run

        def apply(inputs, given, stored, training):
            filled = [
                [known.get(k, v) for k, v in zip(n, group, strict=True)]
                for n, group, known in zip(names, values, (given, stored), strict=True)
            ]
            outputs, after = program(inputs.dtype.name, training)(*filled, inputs)
            convert = lambda v: np.asarray(keras.ops.convert_to_numpy(v))  # noqa: E731
            fresh = {k: convert(v) for k, v in zip(names[1], after, strict=True) if k in stored}
            return convert(outputs), {**stored, **fresh}

        made = parameters, statistics, apply
        return seen.layer(layer.path or layer.name, "keras", layer, made, childless=key not in inside)

    return tape.layers(make)


def _variables(layer: Any) -> tuple[list, list]:
    return list(layer.trainable_variables), list(layer.non_trainable_variables)

"""The layers of a Keras 3 model in one call."""

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.core
import numpy as np

from lngeom._core.programs import QUICKLY
from lngeom.checks._frameworks import mode
from lngeom.checks.recorded.inline import Scopes
from lngeom.checks.recorded.layer import Layer, arrays_in, floating, given
from lngeom.checks.recorded.tape import Made, Tape, run_or_trace, shared
from lngeom.checks.subject import as_elsewhere


def layers(parts: tuple, args: tuple, kwargs: dict) -> list[Layer]:
    """The layers of a model, which stays as it was, save that its first call builds it."""
    model, tape, found = parts[0], Tape(), {}
    inside: set[int] = set()
    with as_elsewhere(), _as_it_was(model):
        _watched(model, args, kwargs, False, functools.partial(_recorded, tape, found, inside))
    with as_elsewhere(), _as_it_was(model):  # what the first call built is kept
        try:
            _watched(model, args, kwargs, True, functools.partial(_trained, tape))
        except Exception:  # the arguments of evaluation are kept
            tape.training.clear()
    parts_of = {id(layer): layer for layer in [model, *model._flatten_layers()]}

    def make(key, seen):
        layer = parts_of.get(key) or found[key]
        shape = next((t.arrays[0][0].shape for t in seen.calls if t.arrays and t.arrays[0]), None)
        return layer.path or layer.name, "keras", layer, key not in inside, lambda: _made(layer, shape)

    return [*tape.layers(make, parts_of), *_code(model, args, kwargs)]


def _code(model: Any, args: tuple, kwargs: dict) -> list[Layer]:
    """Norms that are lines of code; the programs of the JAX backend alone are read."""
    import keras

    if keras.backend.backend() != "jax":
        return []
    scopes = Scopes()
    values = [[v.value for v in group] for group in _variables(model)]

    def record(layer, function, given, options):
        return scopes.record(layer.path or layer.name, function, given, options)

    def call(*args, **kwargs):
        with _recording(model, record):  # a call without a state is none of `__call__`
            whole = functools.partial(model.stateless_call, *values)
            return record(model, whole, args, mode(model.call, False) | kwargs)[0]

    with as_elsewhere(), _as_it_was(model):
        return scopes.found(call, args, kwargs, "keras")


@contextmanager
def _as_it_was(model: Any) -> Iterator[None]:
    """A model whose variables and attributes are afterwards what they were."""
    import keras

    variables = [(v, np.array(keras.ops.convert_to_numpy(v))) for v in model.variables]
    try:
        with _same_attributes(model):
            yield
    finally:
        for variable, value in variables:
            variable.assign(value)


@contextmanager
def _same_attributes(model: Any) -> Iterator[None]:
    """A model whose built layers have afterwards the attributes that they had."""
    layers = [layer for layer in [model, *model._flatten_layers()] if layer.built]
    attributes = [(layer, {k: (v, _contents(v)) for k, v in vars(layer).items()}) for layer in layers]
    try:
        yield
    finally:
        for layer, before in attributes:
            for name in vars(layer).keys() - before.keys():
                object.__delattr__(layer, name)
            for name, (value, contents) in before.items():
                object.__setattr__(layer, name, value)
                if contents is not None and len(value) != len(contents):
                    value[:] = contents


def _contents(value: Any) -> list | None:
    return list(value) if isinstance(value, list) else None


def _watched(model: Any, args: tuple, kwargs: dict, training: bool, record: Callable) -> None:
    """Calls a model while the calls of its layers are recorded."""
    with _recording(model, record), as_elsewhere():
        model(*args, **(mode(model.call, training) | kwargs))


@contextmanager
def _recording(model: Any, record: Callable) -> Iterator[None]:
    """Gives the calls of all layers to `record`; a wrapper over time calls the method `call` of its layer itself."""
    import keras

    original = keras.Layer.__call__
    running: list[Any] = []

    def watched(self, *given, **options):
        running.append(self)
        try:
            return record(self, lambda *a, **k: original(self, *a, **k), given, options)
        finally:
            running.pop()

    def from_wrapper(wrapper, call):
        def watched(*given, **options):
            if running[-1] is not wrapper:  # it is called as other layers are
                return call(*given, **options)
            return record(wrapper.layer, call, given, options)

        return watched

    wrappers = [part for part in model._flatten_layers() if isinstance(part, keras.layers.TimeDistributed)]
    keras.Layer.__call__ = watched
    try:
        for wrapper in wrappers:
            object.__setattr__(wrapper.layer, "call", from_wrapper(wrapper, wrapper.layer.call))
        yield
    finally:
        keras.Layer.__call__ = original
        for wrapper in wrappers:
            object.__delattr__(wrapper.layer, "call")


def _recorded(
    tape: Tape, found: dict, inside: set[int], layer: Any, function: Callable, args: tuple, kwargs: dict
) -> Any:
    import keras

    convert = lambda v: np.asarray(keras.ops.convert_to_numpy(v))  # noqa: E731
    arrays = given(args, kwargs)[1]
    depth = getattr(tape, "depth", [])
    tape.depth = depth  # type: ignore[attr-defined]
    inside.update(depth)
    if any(isinstance(a, keras.KerasTensor) for a in arrays):
        return function(*args, **kwargs)
    found[id(layer)] = layer
    depth.append(id(layer))
    try:
        if _traced(arrays):
            return tape.call(id(layer), function, args, kwargs)
        taped, _ = tape.enter(id(layer), args, kwargs, [[convert(a)] for a in arrays])
        outputs = function(*args, **kwargs)
    finally:
        depth.pop()
    taped.outputs = [[convert(v)] for v in arrays_in(outputs)]
    return outputs


def _trained(tape: Tape, layer: Any, function: Callable, args: tuple, kwargs: dict) -> Any:
    import keras

    arrays = given(args, kwargs)[1]
    if any(isinstance(a, keras.KerasTensor) for a in arrays):
        return function(*args, **kwargs)
    if _traced(arrays):
        return tape.in_training(id(layer), function, args, kwargs)
    tape.enter_training(id(layer), args, kwargs, [[np.asarray(keras.ops.convert_to_numpy(a))] for a in arrays])
    return function(*args, **kwargs)


def _traced(arrays: tuple[Any, ...]) -> bool:
    """Whether arrays are those of a program of JAX, as inside of recurrent layers."""
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


def _made(layer: Any, shape: tuple[int, ...] | None) -> Made:
    import keras

    names = [[v.path.removeprefix(f"{layer.path}/") for v in group] for group in _variables(layer)]
    values = [[np.asarray(keras.ops.convert_to_numpy(v)) for v in group] for group in _variables(layer)]
    parameters, statistics = (
        {k: v for k, v in zip(n, group, strict=True) if floating(v)} for n, group in zip(names, values, strict=True)
    )
    config = _unnamed(layer.get_config())
    adapts = hasattr(layer, "finalize_state")  # it computes with what it made of its statistics when it was adapted
    adapted = tuple(v.tobytes() for v in values[1]) if adapts else ()
    kind = (type(layer), json.dumps(config, default=repr, sort_keys=True), shape, layer.trainable, adapted)

    @functools.cache
    def twin(dtype: str) -> Any:
        if dtype == "float64" and layer.compute_dtype != dtype:
            copied = type(layer).from_config(layer.get_config() | {"dtype": dtype})
            copied.build(shape)
            if adapts:
                copied.set_weights(layer.get_weights())
                copied.finalize_state()
            return copied
        return layer

    def program(dtype: str, arguments: Any, training: bool) -> tuple[Callable, Callable]:
        def make():
            copied = twin(dtype)

            def run(trained, others, arrays):
                args, kwargs = arguments.filled(arrays)
                options = mode(copied.call, training) | kwargs
                if "training" not in mode(copied.call, training):
                    options.pop("training", None)  # a layer may be given the mode though it has one only
                with _same_attributes(copied):
                    return copied.stateless_call(trained, others, *args, **options)

            return run, jax.jit(run, compiler_options=QUICKLY) if keras.backend.backend() == "jax" else run

        return shared((kind, dtype, arguments, training), make)

    def apply(arguments, arrays, weights, stored, training):
        filled = [
            [known.get(k, v) for k, v in zip(n, group, strict=True)]
            for n, group, known in zip(names, values, (weights, stored), strict=True)
        ]
        dtype = next((a.dtype.name for a in arrays if floating(a)), "float32")
        outputs, after = run_or_trace(*program(dtype, arguments, training), *filled, arrays)
        jax_alone = keras.backend.backend() == "jax"
        convert = lambda v: v if jax_alone else np.asarray(keras.ops.convert_to_numpy(v))  # noqa: E731
        fresh = {k: convert(v) for k, v in zip(names[1], after, strict=True) if k in stored}
        return tuple(map(convert, arrays_in(outputs))), {**stored, **fresh}

    return parameters, statistics, apply


def _unnamed(config: Any) -> Any:
    """A config without names of layers, which tell layers of one kind apart."""
    if isinstance(config, dict):
        return {k: _unnamed(v) for k, v in config.items() if k != "name"}
    return [_unnamed(v) for v in config] if isinstance(config, list | tuple) else config


def _variables(layer: Any) -> tuple[list, list]:
    return list(layer.trainable_variables), list(layer.non_trainable_variables)

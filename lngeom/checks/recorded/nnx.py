"""The layers of a flax.nnx model in one call."""

import copy

import jax.numpy as jnp

from lngeom.checks.recorded.layer import Layer
from lngeom.checks.recorded.tape import Tape, of_jax
from lngeom.checks.subject import as_elsewhere

MARK = "lngeom_path"
"""Attribute with which a copy of an nnx module knows its path, also after it was split and merged."""


def layers(parts: tuple, args: tuple, kwargs: dict) -> list[Layer]:
    """The layers of a module, which stays as it was."""
    from flax import nnx

    model, tape = copy.deepcopy(parts[0]), Tape()
    model.eval()
    inside, classes = {}, set()
    for path, part in nnx.iter_modules(model):
        if callable(part) and not isinstance(part, nnx.List | nnx.Dict):
            key = ".".join(map(str, path))
            setattr(part, MARK, key)
            inside[key] = part
            classes.add(type(part))
    originals = {cls: cls.__call__ for cls in classes}

    def watched(original):
        def call(self, *given, **options):
            key = getattr(self, MARK, None)
            if key is None:
                return original(self, *given, **options)
            return tape.call(key, lambda *a, **k: original(self, *a, **k), given, options)

        return call

    try:
        for cls, original in originals.items():
            cls.__call__ = watched(original)
        with as_elsewhere():
            model(*args, **kwargs)
    finally:
        for cls, original in originals.items():
            cls.__call__ = original

    def make(key, seen):
        part = inside[key]
        parts = {}
        for training in (False, True):
            (part.train if training else part.eval)()
            parts[training] = nnx.split(part)[0]
        dtype = getattr(part, "dtype", None)
        if dtype is not None and hasattr(part, "param_dtype"):
            part.dtype = None
            parts["wide"] = nnx.split(part)[0]
            part.dtype = dtype
        flat = dict(nnx.to_flat_state(nnx.state(part)))
        trained = {".".join(map(str, k)) for k, v in flat.items() if isinstance(v, nnx.Param)}
        tree = {".".join(map(str, k)): v[...] for k, v in flat.items()}

        def call(values, inputs, training):
            given = [(k, v, values[".".join(map(str, k))]) for k, v in flat.items()]
            filled = [(k, v.replace(value) if isinstance(v, nnx.Variable) else value) for k, v, value in given]
            state = nnx.from_flat_state(filled)
            definition = parts["wide"] if inputs.dtype == jnp.float64 and "wide" in parts else parts[training]
            copied = nnx.merge(definition, state)
            (copied.train if training else copied.eval)()
            outputs = copied(inputs)
            after = dict(nnx.to_flat_state(nnx.state(copied)))
            return outputs, {".".join(map(str, k)): v[...] for k, v in after.items()}

        children = [k for k in inside if k != key and (not key or k.startswith(f"{key}."))]
        return seen.layer(key, "nnx", part, of_jax(tree, trained.__contains__, call), childless=not children)

    return tape.layers(make)

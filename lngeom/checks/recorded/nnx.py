"""The layers of a flax.nnx model in one call."""

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from lngeom.checks.recorded.layer import Layer
from lngeom.checks.recorded.tape import Made, Tape, of_jax
from lngeom.checks.subject import as_elsewhere

MARK = "lngeom_path"
"""Attribute with which a copy of an nnx module knows its path, also after it was split and merged."""


def layers(parts: tuple, args: tuple, kwargs: dict) -> list[Layer]:
    """The layers of a module, which stays as it was."""
    tape = Tape()
    model, inside = _marked(parts[0])
    model.eval()
    _watched(model, inside, tape.call, args, kwargs)
    other, others = _marked(parts[0])
    try:
        other.train()
        _watched(other, others, tape.in_training, args, kwargs)
    except Exception:  # it needs random keys, say: the arguments of evaluation are kept
        tape.training.clear()
    for part in inside.values():
        delattr(part, MARK)

    def make(key, seen):
        children = [k for k in inside if k != key and (not key or k.startswith(f"{key}."))]
        return key, "nnx", inside[key], not children, lambda: _made(inside[key])

    return tape.layers(make, inside)


def _marked(model: Any) -> tuple[Any, dict[str, Any]]:
    """A copy of a model, and its callable modules by path, which know their paths."""
    from flax import nnx

    model, inside = copy.deepcopy(model), {}
    for path, part in nnx.iter_modules(model):
        if callable(part) and not isinstance(part, nnx.List | nnx.Dict):
            key = ".".join(map(str, path))
            setattr(part, MARK, key)
            inside[key] = part
    return model, inside


def _watched(model: Any, inside: dict[str, Any], record: Callable, args: tuple, kwargs: dict) -> None:
    """Calls a model while the calls of its modules are recorded."""
    originals = {cls: cls.__call__ for cls in {type(part) for part in inside.values()}}

    def watched(original):
        def call(self, *given, **options):
            key = getattr(self, MARK, None)
            if key is None:
                return original(self, *given, **options)
            return record(key, lambda *a, **k: original(self, *a, **k), given, options)

        return call

    try:
        for cls, original in originals.items():
            cls.__call__ = watched(original)
        with as_elsewhere():
            model(*args, **kwargs)
    finally:
        for cls, original in originals.items():
            cls.__call__ = original


def _made(part: Any) -> Made:
    from flax import nnx

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

    def call(values, args, kwargs, training):
        given = [(k, v, values[".".join(map(str, k))]) for k, v in flat.items()]
        filled = [(k, v.replace(value) if isinstance(v, nnx.Variable) else value) for k, v, value in given]
        wide = "wide" in parts and next(iter(jax.tree.leaves((args, kwargs)))).dtype == jnp.float64
        copied = nnx.merge(parts["wide" if wide else training], nnx.from_flat_state(filled))
        (copied.train if training else copied.eval)()
        outputs = copied(*args, **kwargs)
        after = dict(nnx.to_flat_state(nnx.state(copied)))
        return outputs, {".".join(map(str, k)): v[...] for k, v in after.items()}

    return of_jax(tree, trained.__contains__, call, ("nnx", *parts.values(), frozenset(trained)))

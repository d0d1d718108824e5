"""The layers of a flax.nnx model in one call."""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from lngeom.checks.recorded.inline import Scopes
from lngeom.checks.recorded.layer import Layer
from lngeom.checks.recorded.tape import Made, Tape, of_jax, sinks_of, steps_of, values_at
from lngeom.checks.subject import as_elsewhere

MARK = "lngeom_path"
"""Attribute with which a copy of an nnx module knows its path, also after it was split and merged.

It has the number of the copy too, so that a transformation of JAX keeps no program of another one.
"""

_NUMBERS = itertools.count()


def layers(parts: tuple, args: tuple, kwargs: dict) -> list[Layer]:
    """The layers of a module, which stays as it was."""
    from flax import nnx

    tape, found = Tape(), {}
    model, inside = _marked(parts[0])
    model.eval()

    def record(key, part, function, given, options):
        if key not in found:
            found[key] = sinks_of(_values(part))
        return tape.call(key, function, given, options)

    _watched(model, inside, record, args, kwargs)
    other, others = _marked(parts[0])
    try:
        other.train()
        _watched(other, others, lambda key, _, *call: tape.in_training(key, *call), args, kwargs)
    except Exception:  # it needs random keys, say: the arguments of evaluation are kept
        tape.training.clear()
    scopes = Scopes()

    relabelled, _ = _marked(model)

    def call(*args, **kwargs):  # variables of a module are used in the program in which it is made
        graph, state = nnx.split(relabelled)
        return _watched(
            nnx.merge(graph, jax.tree.map(jnp.asarray, state)),
            inside,
            lambda key, _, *call: scopes.record(key, *call),
            args,
            kwargs,
        )

    code = scopes.found(call, args, kwargs, "nnx")
    for part in inside.values():
        delattr(part, MARK)

    def make(key, seen):
        place, step = key
        children = [k for k in inside if k != place and (not place or k.startswith(f"{place}."))]
        path = place + ("" if step is None else f"[{step}]")
        part = inside[place]
        return (
            path,
            "nnx",
            part,
            not children,
            lambda: _made(part, values_at(found[place], step) if place in found else _values(part)),
        )

    tape.split(lambda place: steps_of(found[place]))
    unseen = [(place, None) for place in inside if place not in found]
    return [*tape.layers(make, unseen), *code]


def _values(part: Any) -> dict[str, Any]:
    """The arrays of a module by their paths."""
    from flax import nnx

    return {".".join(map(str, path)): variable[...] for path, variable in nnx.to_flat_state(nnx.state(part))}


def _marked(model: Any) -> tuple[Any, dict[str, Any]]:
    """A copy of a model, and its callable modules by path, which know their paths."""
    from flax import nnx

    model, inside, number = copy.deepcopy(model), {}, next(_NUMBERS)
    for path, part in nnx.iter_modules(model):
        if callable(part) and not isinstance(part, nnx.List | nnx.Dict):
            key = ".".join(map(str, path))
            setattr(part, MARK, (number, key))
            inside[key] = part
    return model, inside


def _watched(model: Any, inside: dict[str, Any], record: Callable, args: tuple, kwargs: dict) -> Any:
    """Calls a model while the calls of its modules are recorded."""
    originals = {cls: cls.__call__ for cls in {type(part) for part in inside.values()}}

    def watched(original):
        def call(self, *given, **options):
            mark = getattr(self, MARK, None)
            if mark is None:
                return original(self, *given, **options)
            return record(mark[1], self, lambda *a, **k: original(self, *a, **k), given, options)

        return call

    try:
        for cls, original in originals.items():
            cls.__call__ = watched(original)
        with as_elsewhere():
            return model(*args, **kwargs)
    finally:
        for cls, original in originals.items():
            cls.__call__ = original


def _made(part: Any, tree: dict[str, Any]) -> Made:
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

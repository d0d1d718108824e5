"""The layers of a flax.linen model in one call."""

import dataclasses
import itertools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from lngeom.checks._frameworks import MODES, mode
from lngeom.checks.recorded.inline import Scopes
from lngeom.checks.recorded.layer import Fixed, Layer
from lngeom.checks.recorded.tape import Made, Tape, of_jax, sinks_of, steps_of, values_at
from lngeom.checks.subject import as_elsewhere

RNGS = ("params", "dropout", "default")
"""Names of random keys that a pass in training mode is given."""

_NUMBERS = itertools.count()


def layers(parts: tuple, args: tuple, kwargs: dict) -> list[Layer]:
    """The layers of (module, variables), or of a bound module."""
    from flax import linen

    module, variables = _initialized(parts, args, kwargs)
    tape, found, trained = Tape(), {}, {}
    stored = [name for name in variables if name != "params"]  # a model whose attribute fixes training updates them

    def watch(record: Callable, into: dict) -> Callable:
        def intercept(function, given, options, context):
            if context.method_name != "__call__":
                return function(*given, **options)
            key = context.module.path
            if key not in into or not steps_of(into[key][1]):  # a scan is traced for shapes alone at first
                module, own = _alone(context.module)
                into[key] = module, sinks_of(own)
            return record(key, function, given, options)

        return intercept

    options = mode(type(module).__call__, False)
    with as_elsewhere(), linen.intercept_methods(watch(tape.call, found)):
        module.apply(variables, *args, **_needed(module, options), **kwargs, mutable=stored, rngs=_keys())
    options = _needed(module, mode(type(module).__call__, True))
    try:
        with as_elsewhere(), linen.intercept_methods(watch(tape.in_training, trained)):
            module.apply(variables, *args, **options, **kwargs, mutable=True, rngs=_keys())
    except Exception:  # it needs other random keys, say: norms are then told their mode
        tape.training.clear()
        trained.clear()

    def make(key, seen):
        place, step = key
        module, sinks = found[place]
        inside = any(other != place and other[: len(place)] == place for other in found)
        copies = {False: module, True: trained[place][0] if place in trained else None}
        path = "/".join(place) + ("" if step is None else f"[{step}]")
        return path, "linen", module, not inside, lambda: _made(copies, values_at(sinks, step))

    tape.split(lambda place: steps_of(found[place][1]))
    scopes = Scopes()

    def scope(function, given, options, context):
        if context.method_name != "__call__":
            return function(*given, **options)
        return scopes.record("/".join(context.module.path), function, given, options)

    def call(*args, **kwargs):
        options = _needed(module, mode(type(module).__call__, False))
        with linen.intercept_methods(scope):
            return module.apply(variables, *args, **options, **kwargs, mutable=stored, rngs=_keys())[0]

    return [*tape.layers(make, fixed=_fixed(module)), *scopes.found(call, args, kwargs, "linen")]


def _keys() -> dict[str, Any]:
    """Random keys of one pass, one of them with a name of its own: a lifted jit keeps no program of another pass."""
    return {name: jax.random.key(0) for name in (*RNGS, f"pass {next(_NUMBERS)}")}


def _alone(module: Any) -> tuple[Any, dict[str, Any]]:
    """A copy of a module outside of its model, and its variables.

    A module may hold another one whose place is beside it, as the wrappers of weight norm and spectral norm do. The
    copy has that one inside, and names of variables which begin with its name begin with that of the attribute.
    """
    from flax import linen

    held = {f.name: getattr(module, f.name) for f in dataclasses.fields(module) if f.name not in {"parent", "name"}}
    beside: dict[str, Any] = {k: v for k, v in held.items() if isinstance(v, linen.Module) and v.scope is not None}
    beside = {name: v for name, v in beside.items() if v.path[: len(module.path)] != module.path}
    copies = {name: v.clone(parent=None, name=None) for name, v in beside.items()}
    variables: dict[str, Any] = {kind: dict(values) for kind, values in module.variables.items()}
    for attribute, inner in beside.items():
        for kind, values in variables.items():
            renamed = {re.sub(f"^{re.escape(inner.name)}/", f"{attribute}/", k): v for k, v in values.items()}
            variables[kind] = renamed
        for kind, values in inner.variables.items():
            variables.setdefault(kind, {})[attribute] = values
    return module.clone(parent=None, name=None, **copies), variables


def _fixed(module: Any) -> Fixed | None:
    """The one mode of a model, where an attribute chooses it and no argument does."""
    if _needed(module, mode(type(module).__call__, True)):
        return None
    chosen = {name: getattr(module, name, None) for name in MODES}
    name = next((name for name, value in chosen.items() if isinstance(value, bool)), None)
    return None if name is None else Fixed(chosen[name] == MODES[name], f"{name}={chosen[name]}")


def _made(copies: dict[bool, Any], variables: Any) -> Made:
    def call(tree, args, kwargs, training):
        module = copies[training]
        if module is None:
            module, kwargs = _told(copies[False], kwargs)
        if next(iter(jax.tree.leaves((args, kwargs)))).dtype == jnp.float64 and getattr(module, "dtype", None):
            module = module.clone(dtype=None)
        mutable = [k for k in tree if k != "params"]
        rngs = {name: jax.random.key(0) for name in RNGS}
        if not mutable:
            return module.apply(tree, *args, rngs=rngs, **kwargs), None
        outputs, after = module.apply(tree, *args, mutable=mutable, rngs=rngs, **kwargs)
        return outputs, {**tree, **after}

    return of_jax(dict(variables), lambda name: name.startswith("params"), call, ("linen", *copies.values()))


def _told(module: Any, kwargs: dict) -> tuple[Any, dict]:
    """A module that is in evaluation mode, and its arguments, for training mode."""
    options = mode(type(module).__call__, True)
    name = next(iter(options), "")
    if name and getattr(module, name, None) is not None:
        module = module.clone(**{name: None})
    return module, {**kwargs, **options}


def _needed(module: Any, options: dict[str, bool]) -> dict[str, bool]:
    """The options that the module's constructor did not set; linen refuses both."""
    return {k: v for k, v in options.items() if getattr(module, k, None) is None}


def _initialized(parts: tuple, args: tuple, kwargs: dict) -> tuple[Any, Any]:
    module = parts[0]
    if len(parts) > 1:
        return module, parts[1]
    if module.scope is not None:
        return module.unbind()
    options = _needed(module, mode(type(module).__call__, False))
    with as_elsewhere():
        return module, module.init(jax.random.key(0), *args, **options, **kwargs)

"""The layers of a flax.linen model in one call."""

from typing import Any

import jax
import jax.numpy as jnp

from lngeom.checks._frameworks import mode
from lngeom.checks.recorded.layer import Layer
from lngeom.checks.recorded.tape import Tape, of_jax
from lngeom.checks.subject import as_elsewhere


def layers(parts: tuple, args: tuple, kwargs: dict) -> list[Layer]:
    """The layers of (module, variables), or of a bound module."""
    from flax import linen

    module, variables = _initialized(parts, args, kwargs)
    tape, found = Tape(), {}

    def intercept(function, given, options, context):
        if context.method_name != "__call__":
            return function(*given, **options)
        key = context.module.path
        found.setdefault(key, (context.module.clone(parent=None, name=None), context.module.variables))
        return tape.call(key, function, given, options)

    options = mode(type(module).__call__, False)
    with as_elsewhere(), linen.intercept_methods(intercept):
        module.apply(variables, *args, **_needed(module, options), **kwargs, mutable=False)

    def make(key, seen):
        copy, arrays = found[key]
        inside = any(other != key and other[: len(key)] == key for other in found)
        wide = copy.clone(dtype=None) if getattr(copy, "dtype", None) is not None else copy

        def call(tree, inputs, training):
            module = wide if inputs.dtype == jnp.float64 else copy
            options = mode(type(module).__call__, training)
            name = next(iter(options), "")
            if name and getattr(module, name, None) is not None:
                module = module.clone(**{name: None}) if training else module
                options = options if training else {}
            mutable = [k for k in tree if k != "params"]
            if not mutable:
                return module.apply(tree, inputs, **options), None
            outputs, after = module.apply(tree, inputs, mutable=mutable, **options)
            return outputs, {**tree, **after}

        made = of_jax(dict(arrays), lambda name: name.startswith("params"), call)
        return seen.layer("/".join(key), "linen", copy, made, childless=not inside)

    return tape.layers(make)


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

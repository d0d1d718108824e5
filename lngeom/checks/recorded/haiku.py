"""The layers of a haiku model in one call."""

from typing import Any

import jax

from lngeom.checks._frameworks import mode, with_state
from lngeom.checks.recorded.inline import Scopes
from lngeom.checks.recorded.layer import Layer
from lngeom.checks.recorded.tape import Made, Tape, of_jax
from lngeom.checks.subject import as_elsewhere


def layers(parts: tuple, args: tuple, kwargs: dict) -> list[Layer]:
    """The layers of (transformed, params) or (transformed, params, state)."""
    import haiku as hk

    transformed, params, state = _transformed(parts, args, kwargs)
    tape, found = Tape(), {}

    def intercept(function, given, options, context):
        if context.method_name != "__call__":
            return function(*given, **options)
        module = context.module
        found.setdefault(module.module_name, module)
        return tape.call(module.module_name, function, given, options)

    with as_elsewhere(), hk.intercept_methods(intercept):
        transformed.apply(params, state, jax.random.key(0), *args, **kwargs)

    scopes = Scopes()

    def scope(function, given, options, context):
        if context.method_name != "__call__":
            return function(*given, **options)
        return scopes.record(context.module.module_name, function, given, options)

    def call(*args, **kwargs):
        with hk.intercept_methods(scope):
            return transformed.apply(params, state, jax.random.key(0), *args, **kwargs)[0]

    def make(key, seen):
        inside = any(k != key and k.startswith(f"{key}/") and "/~/" not in k.removeprefix(key) for k in found)
        return key, "haiku", found[key], not inside, lambda: _made(found[key], key, params, state)

    return [*tape.layers(make), *scopes.found(call, args, kwargs, "haiku")]


def _made(module: Any, key: str, params: Any, state: Any) -> Made:
    import haiku as hk

    def call(tree, args, kwargs, training):
        # the mode is an argument of the user's function, which was given already: it is chosen at the module
        chosen = mode(type(module).__call__, training)
        named = dict(zip(list(chosen), args[1:], strict=False))
        args, kwargs = args[: len(args) - len(named)], {**kwargs, **chosen}
        run = hk.transform_with_state(lambda *a, **k: module(*a, **k))
        outputs, after = run.apply(tree["params"], tree["state"], None, *args, **kwargs)
        return outputs, {"params": tree["params"], "state": after}

    own = lambda tree: {k: v for k, v in tree.items() if k == key or k.startswith(f"{key}/")}  # noqa: E731
    return of_jax({"params": own(params), "state": own(state)}, lambda name: name.startswith("params"), call)


def _transformed(parts: tuple, args: tuple, kwargs: dict) -> tuple[Any, Any, Any]:
    run = with_state(parts[0])
    if len(parts) > 1:
        return run, parts[1], parts[2] if len(parts) > 2 else {}
    with as_elsewhere():
        params, state = run.init(jax.random.key(0), *args, **kwargs)
    return run, params, state

"""The layers of a equinox model in one call."""

import dataclasses
import inspect
from typing import Any

import jax

from lngeom._trees import leaf_path
from lngeom.checks.recorded.layer import Layer
from lngeom.checks.recorded.tape import Tape, of_jax
from lngeom.checks.subject import as_elsewhere


def layers(parts: tuple, args: tuple, kwargs: dict) -> list[Layer]:
    """The layers of a module that takes one sample, mapped over samples; or of (module, state)."""
    import equinox as eqx

    model, state = parts[0], parts[1] if len(parts) > 1 else None
    tape, inside = Tape(), {}

    class Tap(eqx.Module):
        inner: Any
        key: str = eqx.field(static=True)

        def __call__(self, *given, **options):
            return tape.call(self.key, self.inner, given, options)

        def __getattr__(self, name):
            if name in {"inner", "key"} or name.startswith("__"):
                raise AttributeError(name)
            return getattr(self.inner, name)

    def single(node: Any) -> bool:
        wrapper = isinstance(node, eqx.nn.WeightNorm | eqx.nn.SpectralNorm)
        return isinstance(node, eqx.Module) and callable(node) and (wrapper or not _callable_inside(node))

    def wrap(path, node):
        if not single(node):
            return node
        key = leaf_path(path) if path else ""
        inside[key] = node
        return Tap(node, key)

    model = eqx.nn.inference_mode(model)
    taps = jax.tree.map_with_path(wrap, model, is_leaf=single)
    names = inspect.signature(type(model).__call__).parameters
    needs = names.get("state") is not None and names["state"].default is inspect.Parameter.empty
    key = {"key": jax.random.key(0)} if "key" in names else {}
    state = eqx.nn.State(model) if needs and state is None else state
    with as_elsewhere():
        if needs:
            jax.vmap(lambda *a: taps(*a, state, **key), axis_name="batch", out_axes=(0, None))(*args)
        else:
            jax.vmap(lambda *a: taps(*a, **key), axis_name="batch")(*args)

    def make(key, seen):
        module = inside[key]
        index = lambda node: isinstance(node, eqx.nn.StateIndex)  # noqa: E731
        arrays, rest = eqx.partition(module, eqx.is_inexact_array, is_leaf=index)
        stateful = hasattr(module, "axis_name") or isinstance(module, eqx.nn.SpectralNorm)
        substate = state.substate(module) if state is not None and stateful else None
        tree = {"module": arrays} | ({} if substate is None else {"state": substate})

        def call(tree, inputs, training):
            whole = eqx.nn.inference_mode(eqx.combine(tree["module"], rest), not training)
            if "state" in tree:
                name = getattr(module, "axis_name", "batch")
                run = jax.vmap(lambda a: whole(a, tree["state"]), axis_name=name, out_axes=(0, None))
                outputs, after = run(inputs)
                return outputs, {"module": tree["module"], "state": after}
            run = whole
            for _ in range(inputs.ndim - seen.ndim):
                run = jax.vmap(run, axis_name="batch")
            return run(inputs), None

        made = of_jax(tree, lambda name: name.startswith("module"), call)
        return seen.layer(key, "equinox", module, made)

    return tape.layers(make)


def _callable_inside(module: Any) -> bool:
    """Whether a module has layers of its own."""
    import equinox as eqx

    def deeper(value: Any) -> bool:
        if isinstance(value, eqx.Module):
            return callable(value) and not type(value).__module__.startswith("equinox.nn._stateful")
        if isinstance(value, list | tuple):
            return any(map(deeper, value))
        return isinstance(value, dict) and any(map(deeper, value.values()))

    return any(deeper(getattr(module, f.name, None)) for f in dataclasses.fields(module))

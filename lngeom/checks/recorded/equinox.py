"""The layers of a equinox model in one call."""

import dataclasses
import inspect
from typing import Any

import jax
import jax.numpy as jnp

from lngeom._core.trees import leaf_path
from lngeom.checks.recorded.layer import Layer, is_plain
from lngeom.checks.recorded.tape import Made, Seen, Tape, of_jax
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
            if any(isinstance(v, eqx.nn.State) for v in (*given, *options.values())):
                return self._stateful(*given, **options)
            return tape.call(self.key, self.inner, given, options)

        def _stateful(self, *given, **options):
            """Records a call without its state, which a later call takes from the module."""
            whole = (*given, *options.values())
            found = next(v for v in whole if isinstance(v, eqx.nn.State))
            rest = [v for v in given if not isinstance(v, eqx.nn.State)]
            named = {k: v for k, v in options.items() if not isinstance(v, eqx.nn.State)}
            after = []

            def run(*arrays, **keywords):
                outputs, moved = self.inner(*arrays, found, **keywords)
                after.append(moved)
                return outputs

            return tape.call(self.key, run, tuple(rest), named), after[0]

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
    return tape.layers(
        lambda key, seen: (key, "equinox", inside[key], True, lambda: _made(inside[key], seen, state)), inside
    )


def _made(module: Any, seen: Seen, state: Any) -> Made:
    import equinox as eqx

    index = lambda node: isinstance(node, eqx.nn.StateIndex)  # noqa: E731
    arrays, rest = eqx.partition(module, eqx.is_inexact_array, is_leaf=index)
    stateful = hasattr(module, "axis_name") or isinstance(module, eqx.nn.SpectralNorm)
    substate = state.substate(module) if state is not None and stateful else None
    tree = {"module": arrays} | ({} if substate is None else {"state": substate})

    def call(tree, args, kwargs, training):
        whole = eqx.nn.inference_mode(eqx.combine(tree["module"], rest), not training)
        leaves, structure = jax.tree.flatten((args, kwargs))
        mapped = [leaf for leaf in leaves if is_plain(leaf)]

        def run(*values):
            given = iter(values)
            args, kwargs = jax.tree.unflatten(structure, [next(given) if is_plain(v) else v for v in leaves])
            return whole(*args, tree["state"], **kwargs) if "state" in tree else whole(*args, **kwargs)

        name = getattr(module, "axis_name", "batch")
        if "state" in tree:
            outputs, after = jax.vmap(run, axis_name=name, out_axes=(0, None))(*mapped)
            return outputs, {"module": tree["module"], "state": after}
        for _ in range(jnp.ndim(mapped[0]) - seen.ndim):
            run = jax.vmap(run, axis_name="batch")
        return run(*mapped), None

    shape = jax.tree.structure(rest), tuple(jax.tree.leaves(rest)), seen.ndim
    kind = ("equinox", shape) if substate is None else None
    return of_jax(tree, lambda name: name.startswith("module"), call, kind)


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

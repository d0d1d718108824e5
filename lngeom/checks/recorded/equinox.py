"""The layers of a equinox model in one call."""

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from lngeom._core.trees import leaf_path
from lngeom.checks.recorded.inline import Scopes
from lngeom.checks.recorded.layer import Layer, is_plain
from lngeom.checks.recorded.tape import Made, Seen, Tape, of_jax
from lngeom.checks.subject import as_elsewhere


def layers(parts: tuple, args: tuple, kwargs: dict) -> list[Layer]:
    """The layers of a module that takes one sample, mapped over samples; or of (module, state)."""
    import equinox as eqx

    model, state = parts[0], parts[1] if len(parts) > 1 else None
    tape, inside, places = Tape(), {}, {}
    record: list[Callable[..., Any]] = [tape.call]
    is_state = lambda v: isinstance(v, eqx.nn.State)  # noqa: E731

    class Tap(eqx.Module):
        inner: Any
        key: str = eqx.field(static=True)
        again: bool = eqx.field(static=True)  # a jit of the model keeps no program of the other pass

        def __call__(self, *given, **options):
            whole = [*enumerate(given), *options.items()]
            found = next(((place, v) for place, v in whole if is_state(v)), None)
            if found is None:
                return record[0](self.key, self.inner, given, options)
            place, state = found
            places[self.key] = place
            after = []

            def run(*arrays, **keywords):  # without its state, which a later call takes from the module
                outputs, moved = _with_state(self.inner, place, state, arrays, keywords)
                after.append(moved)
                return outputs

            rest = tuple(v for v in given if not is_state(v))
            return record[0](self.key, run, rest, {k: v for k, v in options.items() if k != place}), after[0]

        def __getattr__(self, name):
            if name in {"inner", "key", "again"} or name.startswith("__"):
                raise AttributeError(name)
            return getattr(self.inner, name)

    def single(node: Any) -> bool:
        wrapper = isinstance(node, eqx.nn.WeightNorm | eqx.nn.SpectralNorm)
        return isinstance(node, eqx.Module) and callable(node) and (wrapper or not _callable_inside(node))

    def wrap(again, path, node):
        if not single(node):
            return node
        key = leaf_path(path) if path else ""
        inside[key] = node
        return Tap(node, key, again)

    model = eqx.nn.inference_mode(model)
    taps = [jax.tree.map_with_path(functools.partial(wrap, again), model, is_leaf=single) for again in (False, True)]
    names = inspect.signature(type(model).__call__).parameters
    key = {"key": jax.random.key(0)} if "key" in names else {}
    place = _place_of_state(names, len(args), state is not None, _indices(model))
    if place is not None and state is None:
        try:
            state = eqx.nn.State(model)
        except ValueError as error:
            raise ValueError("give (model, state), as eqx.nn.make_with_state returns them") from error

    def run(taps, *given):
        own = jax.tree.map(lambda v: v, state)  # a model that sets its state makes the one it was given unusable
        outputs = taps(*given, **key) if place is None else _with_state(taps, place, own, given, key)
        return [v for v in jax.tree.leaves(outputs, is_leaf=is_state) if eqx.is_array(v)]

    with as_elsewhere():
        jax.vmap(functools.partial(run, taps[0]), axis_name="batch")(*args)
    scopes = Scopes()
    record[0] = scopes.record
    code = scopes.found(jax.vmap(functools.partial(run, taps[1]), axis_name="batch"), args, {}, "equinox")

    def make(key, seen):
        return key, "equinox", inside[key], True, lambda: _made(inside[key], seen, state, places.get(key))

    return [*tape.layers(make, inside), *code]


Place = int | str
"""Where a module takes its state: the place among its positional arguments, or the name."""


def _with_state(module: Any, place: Place, state: Any, args: tuple, kwargs: dict) -> Any:
    """A module called with its state in its place."""
    if isinstance(place, str):
        return module(*args, **kwargs, **{place: state})
    return module(*args[:place], state, *args[place:], **kwargs)


def _place_of_state(names: Mapping[str, inspect.Parameter], inputs: int, given: bool, indices: bool) -> Place | None:
    """Where a model takes its state.

    That is the argument of the type, or else the one after its inputs, where a state was given or its layers have one
    and the argument is required.
    """
    import equinox as eqx

    others = [p for name, p in list(names.items())[1:] if name != "key"]
    variadic = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    named = [p for p in others if p.annotation in {eqx.nn.State, "State", "eqx.nn.State", "equinox.nn.State"}]
    positional = [p for p in others if p.kind not in {*variadic, inspect.Parameter.KEYWORD_ONLY}]
    by_name = [p for p in others if p.kind is inspect.Parameter.KEYWORD_ONLY]
    after = positional[inputs:] or by_name or [p for p in others if p.kind is inspect.Parameter.VAR_POSITIONAL]
    found = next(iter(named or [p for p in after if p.name == "state"] or after), None)
    if found is None:
        return None
    required = found in named or found.name == "state" or found.default is inspect.Parameter.empty
    if not (given or (indices and required)):
        return None
    index = positional.index(found) if found in positional else inputs
    return found.name if found.kind is inspect.Parameter.KEYWORD_ONLY or index > inputs else index


def _indices(module: Any) -> bool:
    """Whether a module has a state."""
    import equinox as eqx

    index = lambda node: isinstance(node, eqx.nn.StateIndex)  # noqa: E731
    return any(map(index, jax.tree.leaves(module, is_leaf=index)))


def _made(module: Any, seen: Seen, state: Any, place: Place | None) -> Made:
    import equinox as eqx

    index = lambda node: isinstance(node, eqx.nn.StateIndex)  # noqa: E731
    module, substate = (module, None) if place is None else _renamed(module, state.substate(module))
    arrays, rest = eqx.partition(module, eqx.is_inexact_array, is_leaf=index)
    tree = {"module": arrays} | ({} if substate is None else {"state": substate})

    def call(tree, args, kwargs, training):
        whole = eqx.nn.inference_mode(eqx.combine(tree["module"], rest), not training)
        leaves, structure = jax.tree.flatten((args, kwargs))
        mapped = [leaf for leaf in leaves if is_plain(leaf)]

        def run(*values):
            given = iter(values)
            args, kwargs = jax.tree.unflatten(structure, [next(given) if is_plain(v) else v for v in leaves])
            return whole(*args, **kwargs) if place is None else _with_state(whole, place, tree["state"], args, kwargs)

        name = getattr(module, "axis_name", "batch")
        if "state" in tree:
            outputs, after = jax.vmap(run, axis_name=name, out_axes=(0, None))(*mapped)
            return outputs, {"module": tree["module"], "state": after}
        for _ in range(jnp.ndim(mapped[0]) - seen.ndim):
            run = jax.vmap(run, axis_name="batch")
        return run(*mapped), None

    kind = "equinox", jax.tree.structure(rest), tuple(jax.tree.leaves(rest)), seen.ndim, place
    return of_jax(tree, lambda name: name.startswith("module"), call, kind)


def _renamed(module: Any, state: Any) -> tuple[Any, Any]:
    """A module and its state with places for names of what is in it, so that modules of one kind share programs."""
    import equinox as eqx

    values, markers = state.tree_flatten()
    names = {marker: str(i) for i, marker in enumerate(markers)}

    def rename(node: Any) -> Any:
        if not isinstance(node, eqx.nn.StateIndex):
            return node
        renamed = copy.copy(node)
        object.__setattr__(renamed, "marker", names[node.marker])
        return renamed

    index = lambda node: isinstance(node, eqx.nn.StateIndex)  # noqa: E731
    module = jax.tree.map(rename, eqx.nn.delete_init_state(module), is_leaf=index)
    return module, eqx.nn.State.tree_unflatten(tuple(names.values()), values)


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

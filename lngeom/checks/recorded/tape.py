"""What went through the layers of a model in one call, and layers made of it."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from lngeom._core.programs import QUICKLY
from lngeom._core.trees import leaf_path
from lngeom.checks.recorded.layer import (
    Apply,
    Arrays,
    Call,
    Fixed,
    Given,
    Layer,
    arrays_in,
    floating,
    given,
    held,
    is_key,
    is_plain,
)
from lngeom.checks.subject import as_elsewhere

Made = tuple[Arrays, Arrays, Apply]
"""Parameters of a layer, its statistics, and the layer as a function."""


@dataclass
class _Taped:
    """A call while it is recorded; each list has the value of one array, once it is known."""

    given: Given
    arrays: list[list[np.ndarray]]
    outputs: list[list[np.ndarray]]

    def steps(self) -> set[int]:
        """How many values its arrays have: one, or those of the steps of a loop."""
        return {len(values) for values in (*self.arrays, *self.outputs)}

    def at(self, step: int | None) -> "_Taped":
        """The call in one step of a loop; all of it for None."""
        if step is None:
            return self
        return _Taped(self.given, [[v[step]] for v in self.arrays], [[v[step]] for v in self.outputs])

    def calls(self, training: "_Taped | None") -> Iterable[Call]:
        """The calls, of which a loop of JAX makes several, with what the call was given in training mode."""
        values = [*self.arrays, *self.outputs]
        for i in range(min(map(len, values), default=0)):
            arrays = tuple(v[i] for v in self.arrays)
            trained = tuple(v[i] for v in training.arrays if i < len(v)) if training else ()
            alike = [(a.shape, a.dtype) for a in trained] == [(a.shape, a.dtype) for a in arrays]
            given = training.given if training else None
            yield Call(self.given, given, arrays, tuple(v[i] for v in self.outputs), trained if alike else None)


@dataclass
class Seen:
    """What one layer was given, and gave.

    Attributes:
        calls: its calls.
        order: place of its first call.
        ndim: axes of its first input inside of the model, where samples may be mapped.
    """

    calls: list[_Taped] = field(default_factory=list)
    order: int = -1
    ndim: int = 0


class Tape:
    """Records of layers, by any key."""

    def __init__(self):
        self.seen: dict[Any, Seen] = {}
        self.count = 0
        self.training: dict[Any, list[_Taped]] = {}

    def enter(self, key: Any, args: tuple, kwargs: dict, sinks: list | None = None) -> tuple[_Taped, tuple]:
        """Opens the record of a call, and gives the arrays among its arguments."""
        record = self.seen.setdefault(key, Seen())
        arguments, arrays = given(args, kwargs)
        if record.order < 0:
            record.order, self.count = self.count, self.count + 1
            record.ndim = next((jnp.ndim(a) for a in arrays), 0)
        taped = _Taped(arguments, sinks if sinks is not None else [[] for _ in arrays], [])
        record.calls.append(taped)
        return taped, arrays

    def call(self, key: Any, function: Callable, args: tuple, kwargs: dict) -> Any:
        """Calls a layer of JAX and records its arrays, also where they are traced."""
        taped, arrays = self.enter(key, args, kwargs)
        tapped = tuple(_tap(a, sink) for a, sink in zip(arrays, taped.arrays, strict=True))
        args, kwargs = taped.given.filled(tapped)
        outputs = function(*args, **kwargs)
        taped.outputs = [[] for _ in arrays_in(outputs)]
        sinks = iter(taped.outputs)
        return held(lambda array: _tap(array, next(sinks)), outputs)

    def in_training(self, key: Any, function: Callable, args: tuple, kwargs: dict) -> Any:
        """Calls a layer of JAX in a pass in training mode, of which the arguments are kept."""
        taped, arrays = self.enter_training(key, args, kwargs)
        tapped = tuple(_tap(a, sink) for a, sink in zip(arrays, taped.arrays, strict=True))
        args, kwargs = taped.given.filled(tapped)
        return function(*args, **kwargs)

    def enter_training(self, key: Any, args: tuple, kwargs: dict, sinks: list | None = None) -> tuple[_Taped, tuple]:
        """Records the arguments of a call in training mode, and gives the arrays among them."""
        arguments, arrays = given(args, kwargs)
        taped = _Taped(arguments, sinks if sinks is not None else [[] for _ in arrays], [])
        self.training.setdefault(key, []).append(taped)
        return taped, arrays

    def split(self, steps: Callable[[Any], int]) -> None:
        """Gives each step of a loop, which has weights of its own, a record of its own, by (key, step).

        The step is None for a layer with the same weights in all calls, and for one whose calls are not those of the
        steps, as where weights are mapped.

        Args:
            steps: key → number of steps whose weights differ.
        """
        seen, training = self.seen, self.training
        self.seen, self.training = {}, {}
        for key, record in seen.items():
            count, calls = steps(key), [taped for taped in record.calls if any(taped.arrays)]
            trained = [taped for taped in training.get(key, []) if any(taped.arrays)]
            apart = count > 1 and all(taped.steps() == {count} for taped in (*calls, *trained))
            for step in range(count) if apart else [None]:
                self.seen[key, step] = Seen([taped.at(step) for taped in calls], record.order, record.ndim)
                if trained:
                    self.training[key, step] = [taped.at(step) for taped in trained]

    def layers(
        self,
        make: Callable[[Any, Seen], tuple[str, str, Any, bool, Callable[[], Made]] | None],
        unseen: Iterable[Any] = (),
        normalized: Callable[[Any], str | None] = lambda key: None,
        fixed: Fixed | None = None,
    ) -> list[Layer]:
        """The layers in the order of their first calls.

        Args:
            make: (key, what was seen) → path, library, module, whether it has no layers inside, and how its function is
                made; None to leave it out.
            unseen: keys of layers, among which some may not have been called.
            normalized: row of the weights that the library normalizes in a layer, by its key.
            fixed: the one mode of the model, where it has no other.

        Returns:
            The layers; the last ones are those that were not called. One whose function cannot be made says why.
        """
        ordered = sorted(self.seen.items(), key=lambda item: item[1].order)
        found = []
        for key, seen in [*ordered, *((key, Seen()) for key in unseen if key not in self.seen)]:
            made = make(key, seen)
            if made is None:
                continue
            path, framework, module, childless, function = made
            problem = ""
            try:
                with as_elsewhere():
                    parameters, statistics, apply = function()
            except Exception as error:
                problem = f"{type(error).__name__}: {error}".splitlines()[0]
                parameters, statistics, apply = {}, {}, _cannot
            calls = tuple(call for i, taped in enumerate(seen.calls) for call in taped.calls(self._training(key, i)))
            order = seen.order if seen.calls else self.count
            kind = getattr(module, "original_name", None)  # that of a module which torch.jit compiled
            kind = kind if isinstance(kind, str) else type(module).__name__
            found.append(
                Layer(
                    path,
                    kind,
                    framework,
                    module,
                    calls,
                    order,
                    parameters,
                    statistics,
                    apply,
                    childless,
                    problem=problem,
                    normalized=normalized(key),
                    fixed=fixed,
                )
            )
        return found

    def _training(self, key: Any, i: int) -> _Taped | None:
        seen, own = self.training.get(key, []), self.seen[key].calls[i].given
        fits = i < len(seen) and seen[i].given.structure == own.structure
        return seen[i] if fits else None


def _cannot(*_: Any) -> Any:
    raise ValueError("it cannot be called again")


def _tap(value: Any, sink: list[np.ndarray]) -> Any:
    """The value, which is recorded when it is known; mapped axes come first."""
    if not isinstance(value, jax.core.Tracer):
        sink.append(np.asarray(value))
        return value

    def keep(array):
        sink.append(np.array(array))
        return np.asarray(array)

    return jax.pure_callback(keep, jax.ShapeDtypeStruct(value.shape, value.dtype), value, vmap_method="broadcast_all")


def sinks_of(variables: Any) -> Any:
    """A list for each array of a module, with its values once they are known: one, or one for each step of a scan."""

    def sink(value: Any) -> list[Any]:
        values: list[Any] = []  # arrays, or a key
        if is_key(value):  # of dropout, say; one stands for it where it is traced
            values.append(
                jnp.broadcast_to(jax.random.key(0), value.shape) if isinstance(value, jax.core.Tracer) else value
            )
        elif isinstance(value, jax.core.Tracer):  # inside of scan, remat or jit
            jax.debug.callback(lambda v: values.append(np.array(v)), value)
        else:
            values.append(np.asarray(value))
        return values

    return jax.tree.map(sink, dict(variables))


def _is_sink(value: Any) -> bool:
    return isinstance(value, list)


def steps_of(sinks: Any) -> int:
    """How many values the arrays of a module have: those of the steps of a scan."""
    jax.effects_barrier()
    return max(map(len, jax.tree.leaves(sinks, is_leaf=_is_sink)), default=1)


def values_at(sinks: Any, step: int | None) -> Any:
    """The arrays of a module, in one step of a scan."""

    def value(sink: list[np.ndarray]) -> np.ndarray:
        if len(sink) == 1:
            return sink[0]
        if not sink or step is None:
            raise ValueError("which weights belong to which call is not known: the model maps it; check it alone")
        return sink[step]

    return jax.tree.map(value, sinks, is_leaf=_is_sink)


_PROGRAMS: OrderedDict[Hashable, Any] = OrderedDict()
KEPT = 64
"""Programs that are kept: layers of one kind share theirs."""


def run_or_trace(run: Callable, compiled: Callable, *arguments: Any) -> Any:
    """A function of JAX, compiled; inside of another program as a part of it, since that one is compiled."""
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments)):
        return compiled(*arguments)
    return run(*jax.tree.map(lambda v: jnp.asarray(v) if isinstance(v, np.ndarray) else v, arguments))


def shared(key: Hashable, make: Callable[[], Any]) -> Any:
    """What is made for a key, such as a program, once; that of a key which cannot be hashed is not kept."""
    try:
        found = _PROGRAMS.get(key)
    except TypeError:
        return make()
    if found is None:
        found = _PROGRAMS[key] = make()
        while len(_PROGRAMS) > KEPT:
            _PROGRAMS.popitem(last=False)
    return found


def of_jax(
    tree: Any,
    is_parameter: Callable[[str], bool],
    call: Callable[[Any, tuple, dict, bool], tuple[Any, Any]],
    kind: Hashable = None,
) -> Made:
    """Parameters, statistics and the function of a layer whose arrays are a pytree.

    Args:
        tree: the arrays.
        is_parameter: whether an array is trained, by its path.
        call: (tree, positional arguments, arguments by name, training) → outputs, and the tree after the call or None.
        kind: what layers of one kind have in common: with the same arrays they are the same function. None for a layer
            that shares with no other.

    Returns:
        The three.
    """
    leaves, structure = jax.tree.flatten_with_path(tree)
    names = tuple(leaf_path(path) for path, _ in leaves)
    known = {name: np.asarray(value) for name, (_, value) in zip(names, leaves, strict=True) if is_plain(value)}
    parameters = {k: v for k, v in known.items() if is_parameter(k) and floating(v)}
    own = object() if kind is None else kind

    def made(arguments: Given, training: bool) -> tuple[Callable, Callable]:
        def run(values, arrays):
            args, kwargs = arguments.filled(arrays)
            outputs, after = call(jax.tree.unflatten(structure, values), args, kwargs, training)
            found = tuple(arrays_in(outputs))
            if after is None:
                return found, {}
            moved = {leaf_path(path): value for path, value in jax.tree.leaves_with_path(after)}
            return found, {k: v for k, v in moved.items() if k in known and k not in parameters}

        return run, jax.jit(run, compiler_options=QUICKLY)

    programs: dict[tuple[int, bool], tuple[Given, tuple[Callable, Callable]]] = {}

    def program(arguments: Given, training: bool) -> tuple[Callable, Callable]:
        key = id(arguments), training
        if key not in programs:  # with the arguments, so that no others have their identity
            programs[key] = arguments, shared((own, structure, arguments, training), lambda: made(arguments, training))
        return programs[key][1]

    def apply(arguments, arrays, weights, statistics, training):
        values = {**weights, **statistics}
        whole = [values.get(name, value) for name, (_, value) in zip(names, leaves, strict=True)]
        outputs, after = run_or_trace(*program(arguments, training), whole, arrays)
        return tuple(outputs), {**statistics, **after}

    return parameters, {k: v for k, v in known.items() if k not in parameters}, apply

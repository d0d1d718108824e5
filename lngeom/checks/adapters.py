"""Adapters that make a `Subject` from a function, a normalizer, or a module of six libraries."""

import difflib
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lngeom.checks import _frameworks
from lngeom.checks.subject import UNITS, Opened, Subject, as_elsewhere, cast, required_arguments
from lngeom.methods import METHODS, AbstractNormalizer

KINDS = {"weights": 2, "summed": 1}
"""Kinds of functions and their number of arguments: "weights" is (W, X) → outputs, "summed" is a → normalized a."""

WRAPPER = """
    def layer(a):                     # a: summed inputs [N H]; or layer(W, X) with W [H D] and X [N D]
        return ...                    # your layer's outputs [N H]
and give `layer` in place of yours, or "yourmodule:layer"."""
"""A wrapper that makes any layer checkable, shown in errors."""

_UNITS = {
    *("units", "features", "num_features", "normalized_shape", "shape", "size", "dim"),
    *("hidden_size", "num_channels", "channels", "input_size", "d_model"),
}
_ALWAYS = {"groups", "num_groups", "channels"}
_CONVENTIONAL: dict[str, Any] = {
    "axis": -1,
    "create_scale": True,
    "create_offset": True,
    "decay_rate": 0.9,
    "axis_name": "batch",
    "groups": 2,
    "num_groups": 2,
}


def load(source: str, example: str = "a layer is named as PACKAGE.MODULE:NAME, such as flax.nnx:LayerNorm") -> Any:
    """Imports the object named "package.module:NAME".

    Args:
        source: the name. Modules in the current folder are found too.
        example: form of such a name, for the error.

    Returns:
        The object.

    Raises:
        ValueError: if the name has another form, or there is no such module or attribute.
    """
    module_name, colon, name = source.partition(":")
    if not (colon and module_name and name):
        raise ValueError(f"{example}; got {source!r}")
    if module_name.split(".")[0] == "keras":
        os.environ.setdefault("KERAS_BACKEND", "jax")
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"cannot import {module_name}: {error}; is it installed and spelled correctly?") from error
    finally:
        sys.path.remove(os.getcwd())
    for part in name.split("."):
        if not hasattr(found, part):
            public = [n for n in dir(found) if not n.startswith("_")]
            close = difflib.get_close_matches(part, public, 1, 0.75)
            near = [n for n in public if n.lower().startswith(part[:4].lower())]
            hint = f"; did you mean {close[0]}?" if close else f"; it has {', '.join(near[:6])}" if near else ""
            raise ValueError(f"{module_name} has no {part}{hint}")
        found = getattr(found, part)
    return found


def adapt(
    layer: Any,
    *,
    kind: str | None = None,
    training: bool = True,
    units: int | None = None,
    positions: int | None = None,
) -> Subject:
    """Makes any layer into a function of weights and inputs.

    Args:
        layer: a function (W, X) → outputs or a → normalized a (of JAX, NumPy or torch), a normalizer, a module
            (or its class) of lngeom.nn, equinox, flax, haiku, Keras 3 or torch, or "package.module:NAME".
        kind: for a function: "weights" if it takes (W, X), "summed" if it takes summed inputs. By default the number
            of required arguments decides.
        training: whether a module with two modes is in training mode.
        units: H, for a layer that requires one value but has no attribute for it. By default the layer's own, or 8.
        positions: T, for inputs [N T D]; by default there are no positions.

    Returns:
        The subject; calling it with (W, X, dtype) gives the layer's outputs as a NumPy array.

    Raises:
        ValueError: if the layer cannot be found, built or adapted. The message shows a wrapper.
    """
    if isinstance(layer, Subject):
        return layer
    if kind not in {None, *KINDS}:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}")
    options: dict[str, Any] = {"kind": kind, "training": training, "units": units, "positions": positions}
    defaults = {"training": True}
    source, layer = (layer, load(layer)) if isinstance(layer, str) else (_source(layer), layer)
    given, chosen = layer, units
    name = source or getattr(layer, "__name__", None) or type(layer).__name__
    units = units or _units(layer)
    positions = positions or (4 if getattr(layer, "needs_positions", False) else None)
    with as_elsewhere():
        try:
            if isinstance(layer, type):
                layer = _built(layer, units or UNITS)
                units = units or _units(layer)
            shape = (6, *([positions] if positions else []), units or UNITS)
            made = _adapters()[framework_of(layer)](layer, shape, training, kind)
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(f"cannot adapt {name}: {type(error).__name__}: {error}\nWrite:{WRAPPER}") from error
    free = framework_of(layer) in {"function", "normalizer"}
    rebuild = functools.partial(_rebuilt, given, source, options) if isinstance(given, type) and not chosen else None
    return Subject(
        name=name,
        function=made.function,
        takes_weights=made.takes_weights,
        source=source,
        units=units if free else units or UNITS,
        positions=positions,
        square=any(row.square for row in METHODS.values() if row.kind is type(layer)),
        outputs_are_units=getattr(layer, "outputs_are_units", True),
        eps=_eps(layer),
        options=tuple((key, value) for key, value in options.items() if value != defaults.get(key)),
        after_call=made.after_call,
        rebuild=None if free else rebuild,
        opened=made.opened,
    )


def _rebuilt(cls: type, source: str | None, options: dict[str, Any], units: int) -> Subject:
    return adapt(source or cls, **{**options, "units": units})


def _source(layer: Any) -> str | None:
    """The name "package.module:NAME" of a class or function, if importing it gives this object."""
    module, name = getattr(layer, "__module__", None), getattr(layer, "__qualname__", None)
    if not module or not name or not name.isidentifier() or module == "__main__":
        return None
    return f"{module}:{name}" if getattr(sys.modules.get(module), name, None) is layer else None


def _eps(layer: Any) -> float | None:
    for name in ("eps", "epsilon", "variance_epsilon"):
        value = getattr(layer, name, None)
        if isinstance(value, float | int):
            return float(value)
    return None


def _units(layer: Any) -> int | None:
    """H, where an instance has an attribute for it."""
    if isinstance(layer, type):
        return None
    if isinstance(layer, AbstractNormalizer):  # any number, unless it stores one value per unit
        stored = [v.shape[0] for v in jax.tree.leaves(layer) if getattr(v, "ndim", 0) == 1]
        return stored[0] if stored else None
    if hasattr(layer, "weights") and getattr(layer.weights, "ndim", 0) == 2:
        return int(layer.weights.shape[0])
    for name in ("normalized_shape", "num_features", "num_channels", "channels", "input_size", "shape", "gain"):
        value = getattr(layer, name, None)
        value = getattr(value, "shape", value)
        value = value[-1] if isinstance(value, tuple) and value else value
        if isinstance(value, int) and value > 0:
            return value
    return None


def _built(cls: type, units: int) -> Any:
    """An instance of a class, with values for required arguments of conventional names."""
    if framework_of(cls) == "haiku":
        return functools.partial(cls, **_arguments(cls, units))
    return cls(**_arguments(cls, units))


def _arguments(cls: type, units: int) -> dict[str, Any]:
    signature = cls.__init__ if "flax.nnx" in {m.__module__[:8] for m in cls.__mro__} else cls
    required = [name for name in required_arguments(signature) if name != "self"]
    known = set(inspect.signature(signature).parameters)
    arguments = {}
    for name in [*required, *sorted(_ALWAYS & known - set(required))]:
        if name == "rngs":
            from flax import nnx

            arguments[name] = nnx.Rngs(0)
        elif name == "key":
            arguments[name] = jax.random.key(0)
        elif name in _UNITS:
            arguments[name] = units
        elif name in _CONVENTIONAL:
            arguments[name] = _CONVENTIONAL[name]
        elif (name, cls.__module__.split(".")[0]) in {("inputs", "lngeom")}:
            arguments[name] = 5
        elif (name, cls.__module__.split(".")[0]) in {("outputs", "lngeom")}:
            arguments[name] = units
        else:
            raise ValueError(
                f"cannot build {cls.__name__}: its argument {name!r} has no known value; give an instance, "
                f"{cls.__name__}({name}=...), or write:{WRAPPER}"
            )
    return arguments


def framework_of(layer: Any) -> str:
    """Name of the adapter for a layer or its class, from the modules of its base classes."""
    cls = getattr(layer, "func", layer) if isinstance(layer, functools.partial) else layer
    cls = cls if isinstance(cls, type) else type(cls)
    roots = [c.__module__ for c in cls.__mro__]
    if issubclass(cls, AbstractNormalizer):
        return "normalizer"
    for prefix, framework in (
        ("lngeom.nn", "lngeom"),
        ("flax.linen", "linen"),
        ("flax.nnx", "nnx"),
        ("haiku", "haiku"),
        ("keras", "keras"),
        ("torch.nn.modules", "torch"),
        ("equinox._module", "equinox"),
    ):
        if any(r == prefix or r.startswith(prefix + ".") for r in roots):
            return framework
    return "function"


class _Adapted(NamedTuple):
    """What an adapter makes of a layer; the fields are those of `Subject`."""

    function: Callable[..., Any]
    takes_weights: bool = False
    after_call: Callable[..., tuple[np.ndarray, ...]] | None = None
    opened: tuple[Opened, ...] = ()


def _closed(opened: Opened, takes_weights: bool = False) -> _Adapted:
    return _Adapted(opened.closed(), takes_weights, None, (opened,))


def _adapters() -> dict[str, Callable[..., _Adapted]]:
    """Adapters: (layer, shape of a, training, kind) → what the subject needs."""

    def summed(make):
        def adapted(layer, shape, training, kind):
            made = make(layer, shape, training)
            return _closed(made) if isinstance(made, Opened) else _Adapted(made)

        return adapted

    def torch(layer, shape, training, kind):
        call, after, opened = _frameworks.torch(layer, shape, training)
        return _Adapted(call, False, after, (opened,))

    return {
        "function": _function,
        "normalizer": lambda layer, shape, training, kind: _closed(_opened(layer), takes_weights=True),
        "lngeom": _lngeom,
        "equinox": summed(_equinox),
        "linen": summed(_frameworks.linen),
        "nnx": summed(_frameworks.nnx),
        "haiku": summed(_frameworks.haiku),
        "keras": summed(_frameworks.keras),
        "torch": torch,
    }


def _opened(module, call=lambda module, *arrays: module(*arrays)) -> Opened:
    """An equinox module; its arrays are the parameters."""
    arrays, rest = eqx.partition(module, eqx.is_inexact_array)
    return Opened(arrays, lambda params, *inputs: call(eqx.combine(params, rest), *inputs))


def _lngeom(layer, shape, training, kind):
    if hasattr(layer, "weights"):
        swapped = lambda module, W, X: eqx.tree_at(lambda m: m.weights, module, W)(X)  # noqa: E731
        return _closed(_opened(layer, swapped), takes_weights=True)
    if hasattr(layer, "momentum"):
        from lngeom.nn.functional import RunningStatistics

        def call(module, a):
            stored = cast((jnp.zeros(shape[-1]), jnp.ones(shape[-1])), a.dtype)
            return module(a, RunningStatistics(*stored), training=training)[0]

        return _closed(_opened(layer, call))
    return _closed(_opened(layer))


def _equinox(layer, shape, training) -> Opened:
    """An equinox module, vmapped over samples (and over positions, unless it has channels)."""
    if hasattr(layer, "axis_name"):  # batch norm, whose state every call starts anew
        names = layer.axis_name
        state = eqx.nn.State(layer)
        layer = eqx.nn.inference_mode(layer, not training)
        run = lambda m, a, s: jax.vmap(m, axis_name=names, in_axes=(0, None), out_axes=(0, None))(a, s)[0]  # noqa: E731
        return _opened(layer, lambda module, a: run(module, a, cast(state, a.dtype)))
    channels = hasattr(layer, "channels")

    def call(module, a):
        if a.ndim == 3 and channels:
            return jnp.moveaxis(jax.vmap(module)(jnp.moveaxis(a, -1, 1)), 1, -1)
        for _ in range(a.ndim - 1):
            module = jax.vmap(module)
        return module(a)

    return _opened(eqx.nn.inference_mode(layer, not training), call)


def _function(layer, shape, training, kind):
    if not callable(layer):
        raise ValueError(f"cannot adapt a {type(layer).__name__}, which is not callable; write:{WRAPPER}")
    needed = KINDS[kind] if kind else len(required_arguments(layer))
    if needed not in KINDS.values():
        raise ValueError(
            f"a layer takes (W, X) or summed inputs a; {getattr(layer, '__name__', layer)} needs {needed} arguments: "
            f"give kind='weights' or kind='summed', or write:{WRAPPER}"
        )
    shapes = [shape] if needed == 1 else [(shape[-1], 5), (*shape[:-1], 5)]
    ones = [np.ones(s, np.float32) for s in shapes]

    def left(*arrays):
        copies = tuple(a.copy() for a in arrays)
        layer(*copies)
        return copies

    try:
        jax.eval_shape(layer, *ones)
    except Exception:
        if _runs(layer, *ones) or "torch" not in sys.modules or not _runs(_on_tensors(layer), *ones):
            return _Adapted(layer, needed == 2, left)
        return _Adapted(
            lambda *arrays: _on_tensors(layer)(*arrays)[0],
            needed == 2,
            lambda *arrays: _on_tensors(layer)(*arrays)[1],
            (_of_tensors(layer),),
        )
    opened = Opened({}, lambda params, *arrays: layer(*arrays))
    both = (opened, _of_tensors(layer)) if _gives_tensors(layer, *ones) else (opened,)
    return _Adapted(jax.jit(layer), needed == 2, left, both)


def _of_tensors(layer) -> Opened:
    """A function of tensors, which has no parameters."""
    program = _frameworks.compiled(layer)
    by_compiler = lambda params, *tensors: program(lambda run: run(*tensors))  # noqa: E731
    return Opened({}, lambda params, *tensors: layer(*tensors), True, by_compiler)


def _on_tensors(layer):
    """A function of tensors as a function of arrays; it also returns the tensors after the call."""

    def call(*arrays):
        tensors = [_frameworks.torch_tensor(a) for a in arrays]
        return _frameworks.from_torch(layer(*tensors)), tuple(map(_frameworks.from_torch, tensors))

    return call


def _gives_tensors(layer, *arrays) -> bool:
    """Whether a function, which JAX can trace, is also one of torch."""
    torch = sys.modules.get("torch")
    try:
        return bool(torch) and isinstance(layer(*map(_frameworks.torch_tensor, arrays)), torch.Tensor)
    except Exception:
        return False


def _runs(function, *arrays) -> bool:
    try:
        function(*(a.copy() for a in arrays))
    except Exception:
        return False
    return True

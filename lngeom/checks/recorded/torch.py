"""The layers of a torch model in one call."""

import copy
import functools
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np

from lngeom.checks._frameworks import from_torch, tensor_of
from lngeom.checks.recorded.functions import Functions, Key, one_thread
from lngeom.checks.recorded.inline import of_code
from lngeom.checks.recorded.layer import Layer, arrays_in, floating, given as arrays_given
from lngeom.checks.recorded.tape import Made, Tape

Modes = dict[bool, dict[int, bool]]
"""Whether each module is in training mode, by its identity: where the model is in evaluation mode, and in training."""

COMPILED = "_orig_mod"
"""Attribute of the module that torch.compile made a compiled one of."""


def layers(parts: tuple, args: tuple, kwargs: dict) -> list[Layer]:
    """The layers of a module, which stays as it was: a copy of it is called."""
    import torch

    model = getattr(parts[0], COMPILED, parts[0])
    copied = copy_of(model)
    inputs, named = _tensors(args, kwargs, model)
    tape, names = Tape(), {id(part): name for name, part in copied.named_modules()}
    open_calls: dict[int, list] = {}
    own = dict(model.named_parameters())
    kept = {id(v): own[_plain(k)] for k, v in copied.named_parameters() if _plain(k) in own}
    functions = Functions(tape, names, kept)

    def before(part, arguments, options):
        sinks = [[from_torch(a)] for a in arrays_given(arguments, options)[1]]
        open_calls.setdefault(id(part), []).append(tape.enter(names[id(part)], arguments, options, sinks)[0])

    def after(part, arguments, options, outputs):
        taped = open_calls[id(part)].pop()
        taped.outputs = [[from_torch(v)] for v in arrays_in(outputs)]

    hooked = [part for part in copied.modules() if not isinstance(part, torch.jit.ScriptModule)]
    at_hand = [part.training for part in copied.modules()]
    handles = [part.register_forward_hook(after, with_kwargs=True) for part in hooked]
    handles += [part.register_forward_pre_hook(before, with_kwargs=True) for part in hooked]
    copied.train()
    training = [part.training for part in copied.modules()]
    if copied.training and at_hand[0]:  # parts that were put in evaluation mode one by one run in it
        training = [mode and own for mode, own in zip(training, at_hand, strict=True)]
    copied.eval()
    evaluation = [part.training for part in copied.modules()]
    modes: Modes = {True: {}, False: {}}
    for some in (copied, model):
        for part, *both in zip(_parts(some).values(), training, evaluation, strict=True):
            modes[True][id(part)], modes[False][id(part)] = both
    with torch.no_grad(), functions.watched(copied, functions.evaluate, (inputs, named)):
        copied(*inputs, **named)
    code = of_code(functions.lines, "torch")
    for handle in handles:
        handle.remove()
    _see_training(copied, hooked, training, functions, (inputs, named))
    modules = _parts(model)

    def make(key, seen):
        if isinstance(key, Key):
            return functions.made(key)
        part = modules[key]
        if "parametrizations" in key.split("."):
            return None  # what a layer does to its weights is part of that layer
        childless = not any(name != "parametrizations" for name, _ in part.named_children())
        return key, "torch", part, childless, lambda: _of_torch(part, modes)

    found = tape.layers(make, modules, lambda key: None if isinstance(key, Key) else normalized_weights(modules[key]))
    return [*found, *code]


def _see_training(model: Any, hooked: list, modes: list[bool], functions: Functions, given: tuple[tuple, dict]) -> None:
    """Runs a model in training mode for what its layers are given there; its buffers stay."""

    def before(part, arguments, options):
        sinks = [[from_torch(a)] for a in arrays_given(arguments, options)[1]]
        functions.tape.enter_training(functions.names[id(part)], arguments, options, sinks)

    handles = [part.register_forward_pre_hook(before, with_kwargs=True) for part in hooked]
    functions.see_training(model, modes, *given)
    for handle in handles:
        handle.remove()


def refused(model: Any) -> str:
    """Why the layers of a module cannot be read; empty where they can."""
    import torch
    from torch.nn.parameter import is_lazy

    if isinstance(model, torch.jit.ScriptModule):
        return "a module of torch.jit hides the calls of its layers: give the module before torch.jit.script or trace"
    if hasattr(model, "modules"):
        for path, part in _parts(model).items():
            if any(map(is_lazy, (*part.parameters(recurse=False), *part.buffers(recurse=False)))):
                return (
                    f"{path or 'the model'} ({type(part).__name__}) has parameters without a shape: materialize them "
                    "with one forward pass, model(X), before the check"
                )
    return ""


def _parts(model: Any) -> dict[str, Any]:
    """The modules of a model by their paths, without what torch.compile wraps around them."""
    return {_plain(k): v for k, v in model.named_modules() if not hasattr(v, COMPILED)}


def _plain(path: str) -> str:
    """A path without the names that torch.compile adds."""
    return ".".join(name for name in path.split(".") if name != COMPILED)


def copy_of(model: Any) -> Any:
    """A copy of a module, with its hooks, and without what torch.compile wraps around its parts.

    What cannot be copied, such as a lock, the two have in common.
    """
    memo: dict[int, Any] = {}
    values = [v for part in model.modules() for k, v in vars(part).items() if k != "_modules"]
    for tensor in _inside(values):
        if not tensor.is_leaf:
            memo[id(tensor)] = tensor.detach().clone()
    try:
        return _deep(model, dict(memo))
    except Exception:
        for value in values:
            for inner in value.values() if isinstance(value, dict) else (value,):
                try:
                    copy.deepcopy(inner, memo | {id(part): part for part in model.modules()})
                except Exception:
                    memo[id(inner)] = inner
    try:
        return _deep(model, memo)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"copy.deepcopy fails on the model, and a copy is what is called: {text}") from error


def _deep(model: Any, memo: dict[int, Any]) -> Any:
    for part in reversed(list(model.modules())):
        if hasattr(part, COMPILED):
            memo[id(part)] = copy.deepcopy(getattr(part, COMPILED), memo)
    return copy.deepcopy(model, memo)


def _inside(value: Any) -> Iterator[Any]:
    """Tensors in dicts, lists and tuples."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _inside(inner)


def normalized_weights(part: Any) -> str | None:
    """Row of the weights that weight norm or spectral norm of torch normalizes, as hook or parametrization."""
    known = {"WeightNorm": "wn", "_WeightNorm": "wn", "SpectralNorm": "sn", "_SpectralNorm": "sn"}
    wrapped = getattr(part, "parametrizations", {})
    found = [*part._forward_pre_hooks.values(), *(p for name in wrapped for p in wrapped[name])]
    of_torch = [type(f).__name__ for f in found if type(f).__module__.startswith("torch.nn.utils")]
    return next((known[name] for name in of_torch if name in known), None)


def _of_torch(part: Any, modes: Modes) -> Made:
    import torch

    if text := refused(part):
        raise ValueError(text)
    parameters = {_plain(k): from_torch(v) for k, v in part.named_parameters()}
    statistics = {_plain(k): from_torch(v) for k, v in part.named_buffers()}

    @functools.cache
    def twin(training: bool) -> Any:
        copied = copy_of(part)
        for own, other in zip(_parts(part).values(), copied.modules(), strict=True):
            other.training = modes[training][id(own)]
        return copied

    def apply(arguments, arrays, weights, stored, training):
        free = any(isinstance(v, torch.Tensor) for v in (*arrays, *weights.values()))  # it is differentiated
        tensors = {k: tensor_of(v) for k, v in (weights | stored).items()}
        args, options = arguments.filled(tuple(map(tensor_of, arrays)))
        with one_thread(), nullcontext() if free else torch.no_grad():
            outputs = torch.func.functional_call(twin(training), tensors, args, options)
        if free:
            return tuple(arrays_in(outputs)), stored
        if training:
            own = {k: np.asarray(v) for k, v in weights.items()}
            if any(not np.array_equal(from_torch(tensors[k]), v, equal_nan=True) for k, v in own.items()):
                raise ValueError(
                    "a call in training mode sets its parameters from the data: call the model in that mode once, so "
                    "that they are set"
                )
        found = tuple(map(from_torch, arrays_in(outputs)))
        return found, {k: from_torch(tensors[k]) for k in stored}

    return parameters, statistics, apply


def _tensors(args: tuple, kwargs: dict, model: Any) -> tuple[tuple, dict]:
    import torch

    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)

    def tensor(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {k: tensor(v) for k, v in value.items()}
        if not isinstance(value, torch.Tensor):
            array = np.asarray(value)
            value = torch.tensor(array.astype(np.float64) if floating(array) else array)
        return (value.to(dtype) if value.is_floating_point() else value).detach().clone()

    return tuple(map(tensor, args)), {k: tensor(v) for k, v in kwargs.items()}

"""The layers of a torch model in one call."""

import copy
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from lngeom.checks._frameworks import from_torch, torch_tensor
from lngeom.checks.recorded.layer import Apply, Arrays, Layer, floating
from lngeom.checks.recorded.tape import Tape


def layers(parts: tuple, args: tuple, kwargs: dict) -> list[Layer]:
    """The layers of a module, which stays as it was."""
    import torch

    model = parts[0]
    inputs, named = _tensors(args, kwargs, model)
    tape, names = Tape(), {id(part): name for name, part in model.named_modules()}
    modules = dict(model.named_modules())

    def hook(part, given, options, outputs):
        value = given[0] if given else next(iter(options.values()), None)
        if isinstance(value, torch.Tensor) and isinstance(outputs, torch.Tensor):
            record = tape.into(names[id(part)], value.ndim)
            record.inputs.append(from_torch(before.pop(id(part), value)))
            record.outputs.append(from_torch(outputs))

    before: dict[int, Any] = {}

    def keep(part, given, options):
        value = given[0] if given else next(iter(options.values()), None)
        if isinstance(value, torch.Tensor):
            before[id(part)] = value.clone()

    modes = {part: part.training for part in model.modules()}
    handles = [part.register_forward_hook(hook, with_kwargs=True) for part in model.modules()]
    handles += [part.register_forward_pre_hook(keep, with_kwargs=True) for part in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            model(*inputs, **named)
    finally:
        for handle in handles:
            handle.remove()
        for part, training in modes.items():
            part.training = training

    def make(key, seen):
        part = modules[key]
        if "parametrizations" in key.split("."):
            return None  # what a layer does to its weights is part of that layer
        childless = not any(True for _ in part.children()) or _is_parametrized(part)
        return seen.layer(key, "torch", part, _of_torch(part), childless=childless)

    return tape.layers(make)


def _is_parametrized(part: Any) -> bool:
    return hasattr(part, "parametrizations")


def _of_torch(part: Any) -> tuple[Arrays, Arrays, Apply]:
    import torch

    parameters = {k: from_torch(v) for k, v in part.named_parameters()}
    statistics = {k: from_torch(v) for k, v in part.named_buffers()}

    @functools.cache
    def twin(training: bool) -> Any:
        copied = copy.deepcopy(part).train(training)
        copied._forward_hooks.clear()
        copied._forward_pre_hooks.clear()
        return copied

    def apply(inputs, given, stored, training):
        module = twin(training)
        tensors = {k: torch_tensor(np.asarray(v)) for k, v in (given | stored).items()}
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(1)  # inputs are small, and threads wait for each other where the machine is busy
            with torch.no_grad():
                outputs = torch.func.functional_call(module, tensors, (torch_tensor(inputs),))
        finally:
            torch.set_num_threads(threads)
        return from_torch(outputs), {k: from_torch(tensors[k]) for k in stored}

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
        return value.to(dtype) if value.is_floating_point() else value

    return tuple(map(tensor, args)), {k: tensor(v) for k, v in kwargs.items()}

"""A torch module read: what it holds, in which mode it runs, which of its results is meant, and what is refused."""

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import torch
from torch.nn.parameter import is_lazy

from lngeom.information.torch_modules.arrays import bits, torch_dtype

MODES = {None: None, "eval": False, "train": True}


def require_readable(module: Any) -> None:
    """Refuses what is no plain module with values on the CPU.

    Raises:
        ValueError: naming what came and what to do.
    """
    if not isinstance(module, torch.nn.Module):
        raise ValueError(f"lg.from_torch takes a torch.nn.Module; got a {type(module).__name__}")
    if isinstance(module, torch.jit.ScriptModule):
        raise ValueError("a module of torch.jit cannot run in JAX: give the module before torch.jit.script or trace")
    for path, part in module.named_modules():
        where = f"{path or 'the module'} ({type(part).__name__})"
        if hasattr(part, "_orig_mod"):
            raise ValueError(f"{where} is compiled: give the module before torch.compile")
        for name, tensor in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)):
            _require_values(f"{path}.{name}" if path else name, tensor)
        hooks = [name for name in HOOKS if getattr(part, name, None)]
        if hooks:
            raise ValueError(
                f"{where} has hooks ({', '.join(name.strip('_') for name in hooks)}), whose effect JAX would not see: "
                "remove them; of torch.nn.utils.weight_norm and spectral_norm use those of "
                "torch.nn.utils.parametrizations"
            )
        _require_no_tensor_inside(where, part)


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _require_values(name: str, tensor: Any) -> None:
    if is_lazy(tensor):
        raise ValueError(f"{name} has no shape yet: run the module once, module(X), before lg.from_torch")
    if tensor.is_meta:
        raise ValueError(f"{name} is on the device meta, without values: load the module's weights first")
    if tensor.device.type != "cpu":
        raise ValueError(f"{name} is on the device {tensor.device}: give a module on the CPU, as module.cpu() is")
    if tensor.is_quantized or tensor.layout != torch.strided:
        raise ValueError(f"{name} is quantized or sparse: give a module with dense floating point parameters")
    if isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad and tensor.is_complex():
        raise ValueError(f"{name} is complex: parameters must be real; hold real and imaginary parts apart")


def _require_no_tensor_inside(where: str, part: Any) -> None:
    for name, value in vars(part).items():
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        if name not in {"_parameters", "_buffers", "_modules"} and any(isinstance(v, torch.Tensor) for v in inside):
            raise ValueError(
                f"{where} holds tensors in its attribute {name!r}: register each as a buffer, as by register_buffer"
            )


def dtype_of(module: Any, dtype: Any) -> Any:
    """The dtype in which to compute: what was said, or the one of the floating point parameters.

    Raises:
        ValueError: if there are several, or no parameter to differentiate, or JAX lacks the dtype now.
    """
    parameters = [p for p in module.parameters() if p.is_floating_point()]
    if not any(p.requires_grad for p in parameters):
        raise ValueError(
            f"{type(module).__name__} has no floating point parameter with requires_grad; one with requires_grad=False "
            "is fixed: call requires_grad_(True) on the parts that are meant"
        )
    dtypes = {p.dtype for p in parameters}
    if dtype is None and (len(dtypes) > 1 or bits(*dtypes) < 16):
        names = ", ".join(sorted(str(d).removeprefix("torch.") for d in dtypes))
        raise ValueError(f"the parameters have dtypes {names}: say in which to compute, as in dtype='float64'")
    wanted = dtypes.pop() if dtype is None else torch_dtype(dtype)
    if bits(wanted) < 16:
        raise ValueError(f"dtype must be a floating point dtype of 16 bits or more, such as 'float64'; got {dtype!r}")
    if bits(wanted) == 64 and not jax.dtypes.canonicalize_dtype("float64") == "float64":
        raise ValueError(
            "float64 needs jax.config.update('jax_enable_x64', True), or `with jax.enable_x64(True):`, or say "
            "dtype='float32'"
        )
    return wanted


def training_of(mode: str | None) -> bool | None:
    """Whether a mode is that of training; None for the mode that a module is in.

    Raises:
        ValueError: if there is no such mode.
    """
    if mode not in MODES:
        raise ValueError(f"mode must be 'eval' or 'train'; got {mode!r}")
    return MODES[mode]


def twin_of(module: Any, dtype: Any, training: bool | None) -> Any:
    """A copy of a module, in a dtype and a mode. Tensors that are mere attributes become buffers.

    Raises:
        ValueError: if it cannot be copied.
    """
    try:
        twin = copy.deepcopy(module)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"copy.deepcopy fails on the module, and a copy is what runs: {text}") from error
    for part in twin.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor):
                delattr(part, name)
                part.register_buffer(name, value.detach(), persistent=False)
        for name, buffer in list(part.named_buffers(recurse=False)):
            setattr(part, name, _cast(buffer, dtype))
    for parameter in twin.parameters():
        parameter.data = _cast(parameter.data, dtype)
    return twin if training is None else twin.train(training)


def _cast(tensor: Any, dtype: Any) -> Any:
    if tensor.is_complex():
        return tensor.to(torch.complex128 if bits(dtype) == 64 else torch.complex64)
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def parameters_of(module: Any) -> dict[str, Any]:
    """Trainable parameters by name; one that a module has at several places, once, by its first name."""
    return {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}


def fixed_of(module: Any) -> dict[str, Any]:
    """Buffers, and parameters with `requires_grad=False`, by name."""
    frozen = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}
    return frozen | {name: b.detach() for name, b in module.named_buffers()}


def warn_of_shared_memory(module: Any) -> None:
    """Warns where several parameters are one piece of memory.

    Warns:
        UserWarning: naming them.
    """
    places: dict[tuple, list[str]] = {}
    for name, p in module.named_parameters():
        if p.numel():
            places.setdefault((p.data_ptr(), p.numel()), []).append(name)
    for names in places.values():
        if len(names) > 1:
            warnings.warn(
                f"{', '.join(names)} are one piece of memory and {len(names)} parameters. They count as that many; to "
                "tie them, assign one torch.nn.Parameter to each place",
                stacklevel=3,
            )


def selected(result: Any, output: str | int | None, name: str) -> Any:
    """The tensor that is meant, of what a module returns.

    Raises:
        ValueError: if it is not said which, or there is none of that name. The message names what there is.
    """
    if isinstance(result, torch.Tensor):
        if output not in {None, 0}:
            raise ValueError(f"{name} returns one tensor, {list(result.shape)}: output={output!r} names none of it")
        return result
    if isinstance(result, Mapping):
        found = dict(result)
    elif isinstance(result, tuple | list):
        found = dict(enumerate(result))
        found |= {key: getattr(result, key) for key in getattr(result, "_fields", ())}
    else:
        raise ValueError(f"{name} returns a {type(result).__name__}, in which lg.from_torch finds no tensor")
    if isinstance(output, int) and isinstance(result, Mapping) and -len(found) <= output < len(found):
        output = list(found)[output]
    if isinstance(output, int) and isinstance(result, tuple | list) and output < 0:
        output += len(result)
    tensors = {key: value for key, value in found.items() if isinstance(value, torch.Tensor)}
    if output is None and len(tensors) == 1 and len(found) == 1:
        return next(iter(tensors.values()))
    if output not in tensors:
        there = ", ".join(f"{key!r} {list(v.shape)}" for key, v in tensors.items())
        others = [repr(key) for key, v in found.items() if not isinstance(v, torch.Tensor) and v is not None]
        more = f" (and {', '.join(others)}, no tensors)" if others else ""
        wrong = "" if output is None else f"; output={output!r} is none of these"
        example = repr(next(iter(tensors), "logits"))
        raise ValueError(
            f"{name} returns a {type(result).__name__} of {there or 'no tensor'}{more}{wrong}: say which is meant, as "
            f"in output={example}"
        )
    return tensors[output]


def drawing(module: Any) -> list[str]:
    """Parts that draw noise in the mode they are in, by their names."""
    return [
        f"{path or 'the module'} ({type(part).__name__})"
        for path, part in module.named_modules()
        if part.training and "Drop" in type(part).__name__ and getattr(part, "p", 1)
    ]

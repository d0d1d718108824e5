"""What a module asks torch for, changed on its way: casts to fewer digits, and rows that torch keeps from training."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from lngeom.information.torch_modules.arrays import bits, each_tensor

FLOAT = {torch.Tensor.float: torch.float32, torch.Tensor.half: torch.float16, torch.Tensor.bfloat16: torch.bfloat16}
"""Methods that cast."""

EMBEDDING = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
"""Arguments of `torch.nn.functional.embedding`."""


class Smooth(TorchFunctionMode):
    """Runs a module as the differentiable function of its parameters that its outputs are.

    An embedding's `padding_idx` and `scale_grad_by_freq` change its gradient and not its output: they are left out.

    Casts to a dtype of fewer bits than the parameters' are found; they are made to the parameters' dtype where `lift`.
    So are numbers that the module makes in torch's default dtype.

    Attributes:
        dtype: of the parameters.
        lift: whether casts keep the digits.
        bring: takes a tensor of torch to JAX. Where one meets tensors there, such as `torch.arange(3)`, which a module
            makes without naming a device, it is brought.
        casts: where a module casts, and to which dtype.
    """

    def __init__(self, dtype: Any, lift: bool, bring: Callable[[Any], Any] | None = None):
        super().__init__()
        self.bring = bring
        self.dtype = dtype
        self.lift = lift
        self.casts: dict[str, None] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls a function of torch."""
        kwargs = dict(kwargs or {})
        if func is torch.nn.functional.embedding:
            kwargs = dict(zip(EMBEDDING, args, strict=False)) | kwargs
            args, _ = (kwargs.pop("input"), kwargs.pop("weight")), kwargs.pop("padding_idx", None)
            kwargs["scale_grad_by_freq"] = False
        wanted = [d for d in (*args, *kwargs.values(), FLOAT.get(func)) if isinstance(d, torch.dtype)]
        narrow = [d for d in wanted if self._is_narrow(d)]
        if narrow:
            self.casts[f"{_place()}: {narrow[0]}".replace("torch.", "")] = None
        args, kwargs = self._together(args, kwargs)
        if not self.lift:
            return func(*args, **kwargs)
        if func in FLOAT and narrow:
            return args[0].to(self.dtype)
        args = tuple(self._wide(a) for a in args)
        kwargs = {name: self._wide(a) for name, a in kwargs.items()}
        return self._widened(func, args, kwargs, func(*args, **kwargs))

    def _together(self, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The arguments with all tensors in JAX, where one is."""
        if self.bring is None:
            return args, kwargs
        where: set[bool] = set()
        each_tensor((args, kwargs), lambda t: where.add(_is_in_jax(t)))
        if len(where) < 2:
            return args, kwargs
        bring = self.bring
        return each_tensor((args, kwargs), lambda t: t if _is_in_jax(t) else bring(t))

    def _is_narrow(self, value: Any) -> bool:
        return isinstance(value, torch.dtype) and 0 < bits(value) < bits(self.dtype)

    def _wide(self, argument: Any) -> Any:
        return self.dtype if self._is_narrow(argument) else argument

    def _widened(self, func: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> Any:
        """The result in the parameters' dtype. Numbers that are made of no tensor are made again in it."""
        if not isinstance(result, torch.Tensor | tuple | list):
            return result
        made = not any(isinstance(a, torch.Tensor) for a in (*args, *kwargs.values()))
        if made and isinstance(result, torch.Tensor) and self._is_narrow(result.dtype) and "dtype" not in kwargs:
            with contextlib.suppress(TypeError):
                return func(*args, dtype=self.dtype, **kwargs)
        return each_tensor(result, lambda t: t.to(self.dtype) if self._is_narrow(t.dtype) else t)


def _is_in_jax(tensor: Any) -> bool:
    return type(tensor).__module__.split(".")[0] == "torchax"


def _place() -> str:
    """The line of the module's code that runs."""
    own = tuple(
        str(Path(sys.modules[name].__file__ or "").parent) for name in ("torch", "torchax") if name in sys.modules
    )
    frame: Any = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith((*own, __file__)):
        frame = frame.f_back
    code = frame.f_code
    return f"{code.co_qualname} ({Path(code.co_filename).name}:{frame.f_lineno})"

"""Norms that are lines of code in a forward pass of torch; what they are is said in `inline`."""

import inspect
import traceback
from typing import Any

from lngeom.checks.recorded.inline import CONSTANT, Flow, Flows, Place, first_own
from lngeom.checks.recorded.layer import arrays_in

_SUMS = {"sum", "mean", "var", "var_mean", "einsum", "matmul", "bmm", "mm", "baddbmm", "dot", "__matmul__", "nanmean"}
_ROOTS_OF_SUMS = {"std", "std_mean", "norm", "linalg_norm", "linalg_vector_norm"}
_ROOTS = {"sqrt", "rsqrt", "sqrt_", "rsqrt_"}
_POWERS = {"pow", "__pow__", "pow_", "float_power"}
_PRODUCTS = {"mul", "__mul__", "__rmul__", "__imul__", "mul_", "multiply"}
_QUOTIENTS = {"div", "__truediv__", "__itruediv__", "div_", "true_divide", "divide"}
_PLACEWISE = {
    *("add", "__add__", "__radd__", "__iadd__", "add_", "sub", "__sub__", "__rsub__", "__isub__", "sub_", "rsub"),
    *("subtract", "neg", "__neg__", "square", "abs", "__abs__", "clamp", "clamp_min", "clip", "maximum", "relu"),
    *("to", "float", "double", "half", "bfloat16", "type", "type_as", "clone", "contiguous", "detach", "reciprocal"),
    *("view", "reshape", "unsqueeze", "squeeze", "permute", "transpose", "flatten", "unflatten", "expand", "t"),
    *("expand_as", "view_as", "movedim", "chunk", "split", "unbind", "__getitem__", "where", "cat", "concat", "stack"),
    *("lerp", "addcmul", "real", "mT", "T", "__get__", "masked_fill", "repeat", "broadcast_to", "swapaxes", "dropout"),
}


class Lines:
    """Flows of the tensors of one pass.

    Args:
        inputs: of the model.
    """

    def __init__(self, inputs: Any):
        self.flows, self.found = Flows(), []
        self.known: dict[int, tuple[Flow, Any]] = {}  # with the tensors, so that no others have their identity
        for tensor in arrays_in(inputs):
            self.known[id(tensor)] = self.flows.fresh(), tensor

    def see(self, function: Any, args: tuple, kwargs: dict[str, Any], outputs: Any, owner: str | None) -> None:
        """Takes note of one call of a function of torch in the forward pass of a module; None for those of torch."""
        if not self.known:
            return
        name = getattr(function, "__name__", "")
        inputs = [self._flow(value) for value in arrays_in((args, kwargs))]
        if owner is not None and self._is_norm(name, args, inputs):
            frames = traceback.walk_stack(inspect.currentframe())
            here = first_own((f.f_code.co_filename, line, f.f_code.co_qualname) for f, line in frames)
            self.found.append(Place(owner, *here))
        flow = self._of(name, args, kwargs, inputs)
        for tensor in arrays_in(outputs):
            self.known[id(tensor)] = flow, tensor

    def _flow(self, value: Any) -> Flow:
        return self.known.get(id(value), (CONSTANT, None))[0]

    def _is_norm(self, name: str, args: tuple, inputs: list[Flow]) -> bool:
        if len(inputs) != 2 or len(args) < 2:
            return False
        a, b = inputs
        if name == "__rtruediv__":
            a, b = b, a
        turned = name in _PRODUCTS and Flows.normalizes(b, a)
        return (name in {*_PRODUCTS, *_QUOTIENTS, "__rtruediv__"} and Flows.normalizes(a, b)) or turned

    def _of(self, name: str, args: tuple, kwargs: dict[str, Any], inputs: list[Flow]) -> Flow:
        if name in _SUMS and inputs:
            return self.flows.summed(inputs)
        if name in _ROOTS_OF_SUMS and inputs:
            return self.flows.root(self.flows.summed(inputs[:1]))
        if name in _ROOTS or (name in _POWERS and self._root_power(args, kwargs)):
            return self.flows.root(inputs[0])
        if name in _PLACEWISE | _PRODUCTS | _QUOTIENTS | _POWERS | {"__rtruediv__"}:
            return self.flows.placewise(inputs)
        return self.flows.fresh(self.flows.placewise(inputs))

    @staticmethod
    def _root_power(args: tuple, kwargs: dict[str, Any]) -> bool:
        power = kwargs.get("exponent", args[1] if len(args) > 1 else None)
        return isinstance(power, float) and abs(power) == 0.5

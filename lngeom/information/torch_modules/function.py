"""A torch module as a function of parameters and inputs, in JAX and in torch."""

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import torch
from jaxtyping import Array, PyTree

from lngeom.information.torch_modules.arrays import arguments_of, each_tensor, inputs_of, jax_dtype, to_array
from lngeom.information.torch_modules.bridge import running, version
from lngeom.information.torch_modules.lifted import Smooth
from lngeom.information.torch_modules.module import fixed_of, parameters_of, selected


@dataclass(eq=False)
class Held:
    """What a function holds that is no array; one that is held is equal to itself alone.

    Attributes:
        module: the copy that runs.
        dtype: of its parameters.
        output: which of its results is meant.
        options: further keyword arguments of each call.
        lift: whether casts inside keep the digits.
        casts: where the module casts to fewer digits than its parameters have.
    """

    module: Any
    dtype: Any
    output: str | int | None
    options: Mapping[str, Any]
    lift: bool
    casts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of the module's class."""
        return type(self.module).__name__

    def run(self, tensors: Mapping[str, Any], X: PyTree, mode: Any = None) -> Any:
        """The output of the module that is meant, at these parameters and buffers, which stay."""
        args, options = arguments_of(X, self.options)
        with mode or contextlib.nullcontext():
            result = torch.func.functional_call(self.module, dict(tensors), args, options)
        return selected(result, self.output, self.name)


class TorchFunction(eqx.Module):
    """A torch module as a function of JAX: `apply(params, X)`, of what `lg.from_torch` returns.

    Attributes:
        fixed: buffers, and parameters with `requires_grad=False`, by name: no parameters of a Fisher matrix.
    """

    fixed: dict[str, Array]
    held: Held = eqx.field(static=True)

    def __call__(self, params: Mapping[str, Array], X: PyTree) -> Array:
        """The module's output.

        Args:
            params: by name, as `lg.from_torch` returns them.
            X: an array; a dict of them, by the names of the module's arguments; or a tuple, in their order. Floating
                point inputs are cast to the dtype of the parameters.

        Raises:
            ValueError: if the module cannot run on them, or torchax lacks an operation.
        """
        return _call(self, dict(params), inputs_of(X, self.held.dtype))

    @property
    def casts(self) -> tuple[str, ...]:
        """Places where the module casts to fewer digits than its parameters have; lifted unless `lift=False`."""
        return self.held.casts

    @property
    def training(self) -> bool:
        """Whether the module runs in training mode."""
        return self.held.module.training

    def __repr__(self) -> str:
        """What it runs and in which mode, the fixed arrays, and the casts."""
        mode = "training" if self.training else "evaluation"
        casts = f"; {'lifted' if self.held.lift else 'left'} casts: {', '.join(self.casts)}" if self.casts else ""
        fixed = f"; fixed: {', '.join(sorted(self.fixed))}" if self.fixed else ""
        return f"<{self.held.name} of torch in {mode} mode, {jax_dtype(self.held.dtype)}{fixed}{casts}>"


def function_of(held: Held) -> tuple[TorchFunction, dict[str, Array]]:
    """The function of JAX, and the values of the module's parameters."""
    fixed = {name: jnp.asarray(to_array(t)) for name, t in fixed_of(held.module).items()}
    params = {name: jnp.asarray(to_array(t)) for name, t in parameters_of(held.module).items()}
    return TorchFunction(fixed, held), params


@functools.partial(jax.jit, inline=True)
def _call(function: TorchFunction, params: dict[str, Array], X: PyTree) -> Array:
    held = function.held
    with running() as environment:
        tensors, inputs = environment.j2t_iso((params | function.fixed, X))
        bring = lambda t: environment.j2t_iso(environment.t2j_copy(t.detach()))  # noqa: E731
        here = Held(held.module, held.dtype, held.output, each_tensor(held.options, bring), held.lift)
        try:
            return environment.t2j_iso(here.run(tensors, inputs, Smooth(held.dtype, held.lift, bring)))
        except Exception as error:
            raise ValueError(explained(error, held.name)) from error


def explained(error: Exception, name: str) -> str:
    """Why a module could not be run in JAX."""
    text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return (
        f"{name} does not run in JAX by torchax {version()} ({text}). Its forward pass must be operations of "
        "torch that torchax has, on parameters, buffers and inputs, without a choice that depends on their values"
    )

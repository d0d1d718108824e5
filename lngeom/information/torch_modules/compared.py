"""A function of JAX held to the torch module that it was made of: outputs, and derivatives against differences."""

import functools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.extend.core import ClosedJaxpr
from jaxtyping import Array, PyTree

from lngeom._core.draws import probe_generator
from lngeom._core.programs import inner_programs
from lngeom.information.torch_modules.arrays import bits, cast, inputs_of, jax_dtype, to_array
from lngeom.information.torch_modules.bridge import version
from lngeom.information.torch_modules.function import Held, TorchFunction, function_of
from lngeom.information.torch_modules.lifted import Smooth
from lngeom.information.torch_modules.module import drawing, fixed_of, parameters_of, twin_of

STEP = 1e-6
"""Of central differences in float64, in units of a parameter's own size: errors near 1e-10, and few kinks crossed."""
DIFFERENCES = 1e-6
"""Largest error of a derivative, relative to the largest of its entries."""
LEAF = 1e-8
"""Largest difference of two gradients by one leaf, relative to the larger of both."""
NOUGHT = 1e-10
"""A gradient by a leaf smaller than this part of the whole is 0 up to rounding."""
ROUNDING = 1e5
"""Largest difference of outputs, in units of the last place of the largest output."""
SHIFT = 1e-2
"""Where derivatives are compared: off the module's own parameters, at which kinks may lie (a bias of 0 under ReLU)."""


def require_steady(held: Held, X: PyTree, said: bool) -> None:
    """Refuses a module that draws noise, and one in training mode where that matters and was not said.

    Args:
        held: the module; its buffers stay.
        X: inputs, tensors.
        said: whether the mode was said.

    Raises:
        ValueError: saying what to do.
    """
    module = held.module
    a, b = (_drawn(held, X, seed) for seed in (0, 1))
    if not np.array_equal(a, b, equal_nan=True):
        parts = f" ({_few(drawing(module))})" if drawing(module) else ""
        raise ValueError(
            f"outputs of {held.name} are random{parts}: a Fisher matrix is that of one function of parameters and "
            "inputs. Say mode='eval', or take the noise out of the forward pass"
        )
    modes = {part: part.training for part in module.modules()}
    if said or not any(modes.values()):
        return
    module.eval()
    differs = not np.array_equal(a, _drawn(held, X, 0), equal_nan=True)
    for part, training in modes.items():
        part.training = training
    if differs:
        raise ValueError(
            f"{held.name} is in training mode, in which its outputs are others than in evaluation: say mode='eval', or "
            "mode='train', where lg.fisher needs batch_coupled=True if samples interact, as in batch norm"
        )


def _drawn(held: Held, X: PyTree, seed: int) -> np.ndarray:
    torch.manual_seed(seed)
    return outputs(held, X)


def outputs(held: Held, X: PyTree, mode: Any = None) -> np.ndarray:
    """Outputs of a module in torch, which stays as it is."""
    tensors = {k: t.clone() for k, t in (parameters_of(held.module) | fixed_of(held.module)).items()}
    with torch.no_grad():
        return to_array(held.run(tensors, X, mode))


def require_same(function: TorchFunction, params: PyTree, X: PyTree) -> tuple[str, ...]:
    """Compares a function of JAX with its torch module: in float64, and in the module's own dtype.

    Args:
        function: of JAX.
        params: its parameters.
        X: inputs, tensors.

    Returns:
        Where the module casts to fewer digits than its parameters have.

    Raises:
        ValueError: if they are not the same.

    Warns:
        UserWarning: if digits are lost in casts that stay.
    """
    held = function.held
    watch = Smooth(held.dtype, lift=True)
    with jax.enable_x64(True):
        twins = _in_float64(held, cast(X, torch.float64), watch)
        try:
            require_same_derivatives(twins)
        except ValueError as error:
            if not twins.narrow:
                raise
            raise ValueError(
                f"{error}. In float64 its program still computes with fewer digits ({', '.join(twins.narrow)}): a cast "
                "that lg.from_torch cannot lift may be the cause"
            ) from error
        exact = twins.torch(twins.params)
    casts = tuple(watch.casts)
    if held.dtype != torch.float64 or casts:
        _require_same_as_stored(function, params, X, exact, casts)
    _warn_of_casts(held, casts, twins.narrow)
    return casts


def _in_float64(held: Held, X: PyTree, watch: Smooth) -> "Twins":
    outputs(held, X if held.dtype == torch.float64 else cast(X, held.dtype), watch)
    module = held.module if held.dtype == torch.float64 else twin_of(held.module, torch.float64, None)
    function, params = function_of(Held(module, torch.float64, held.output, held.options, True))
    narrow = narrow_operations(function, params, inputs_of(X, torch.float64))
    return Twins(function, X, {k: np.asarray(p) for k, p in params.items()}, narrow)


def _require_same_as_stored(
    function: TorchFunction, params: PyTree, X: PyTree, exact: np.ndarray, casts: tuple[str, ...]
) -> None:
    """Compares outputs in the module's own dtype. Torch's own rounding, against float64, says how much may differ."""
    held = function.held
    own = outputs(held, X).astype(np.float64)
    found = np.asarray(function(params, X)).astype(np.float64)
    least = min([held.dtype, *(getattr(torch, c.rsplit(": ")[-1]) for c in casts)], key=bits)
    ulp, most = torch.finfo(least).eps, np.max(np.abs(exact), initial=0)
    rounding = np.max(np.abs(own - exact), initial=0)
    if casts and held.lift and rounding > math.sqrt(ulp) * most:
        raise ValueError(
            f"{held.name} casts to fewer digits than its parameters have, and without the casts ({_few(casts)}) its "
            f"outputs are others by {rounding:.1e} of {most:.1e}, more than by rounding: say lift=False"
        )
    require_same_outputs(held.name, found, own, 10 * rounding + 100 * ulp * most)


def _warn_of_casts(held: Held, casts: tuple[str, ...], narrow: tuple[str, ...]) -> None:
    left = [] if held.lift else list(casts)
    left += [f"operations {', '.join(narrow)} of torchax"] if narrow and held.dtype == torch.float64 else []
    if left:
        warnings.warn(
            f"{held.name} loses digits of {jax_dtype(held.dtype)} in {_few(left)}: ranks are those of outputs that are "
            "rounded there",
            stacklevel=4,
        )


@dataclass
class Twins:
    """A module in float64, in JAX and in torch, at one batch.

    Attributes:
        function: in JAX.
        X: inputs, tensors.
        params: the module's own, by name.
        narrow: operations of JAX's program in fewer digits, which could not be lifted.
    """

    function: TorchFunction
    X: PyTree
    params: dict[str, np.ndarray]
    narrow: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of the module's class."""
        return self.function.held.name

    @functools.cached_property
    def sizes(self) -> dict[str, float]:
        """Root mean square of each parameter; 0.01 where that is 0."""
        return {k: float(np.sqrt(np.mean(v * v))) or SHIFT for k, v in self.params.items() if v.size}

    def drawn(self, seed: int) -> dict[str, np.ndarray]:
        """Random numbers of the parameters' shapes and sizes."""
        rng = probe_generator(seed)
        return {k: self.sizes.get(k, 0) * rng.normal(size=v.shape) for k, v in self.params.items()}

    def torch(self, params: Mapping[str, np.ndarray]) -> np.ndarray:
        """Outputs in torch."""
        held = self.function.held
        with torch.no_grad():
            return to_array(held.run(self._tensors(params), self.X, Smooth(torch.float64, True))).astype(np.float64)

    def torch_gradient(self, params: Mapping[str, np.ndarray], u: np.ndarray) -> dict[str, np.ndarray]:
        """Jᵀu of torch itself."""
        tensors = self._tensors(params)
        leaves = [tensors[k].requires_grad_() for k in self.params]
        with torch.enable_grad():
            z = self.function.held.run(tensors, self.X, Smooth(torch.float64, True))
            if not z.requires_grad:
                return {k: np.zeros_like(v) for k, v in self.params.items()}
            found = torch.autograd.grad(z, leaves, torch.tensor(u).to(z.dtype), allow_unused=True)
        pairs = zip(self.params.items(), found, strict=True)
        return {k: np.zeros_like(v) if g is None else to_array(g) for (k, v), g in pairs}

    def _tensors(self, params: Mapping[str, np.ndarray]) -> dict[str, Any]:
        fixed = {k: v.clone() for k, v in fixed_of(self.function.held.module).items()}
        return {k: torch.tensor(v) for k, v in params.items()} | fixed

    def difference(self, params: Mapping[str, np.ndarray], v: Mapping[str, np.ndarray], step: float) -> np.ndarray:
        """Jv by a central difference of the torch module."""
        a, b = ({k: p + sign * step * v[k] for k, p in params.items()} for sign in (1, -1))
        return (self.torch(a) - self.torch(b)) / (2 * step)

    def jax(self, params: Mapping[str, np.ndarray], v: Mapping[str, np.ndarray], u: np.ndarray) -> tuple:
        """Outputs, Jv and Jᵀu in JAX."""
        X = inputs_of(self.X, torch.float64)
        z, moved, pulled = _derivatives(self.function, *jax.tree.map(jnp.asarray, (dict(params), X, dict(v), u)))
        return np.asarray(z), np.asarray(moved), {k: np.asarray(g) for k, g in pulled.items()}


@jax.jit
def _derivatives(function: TorchFunction, params: PyTree, X: PyTree, v: PyTree, u: Array) -> tuple:
    run = lambda p: function(p, X).astype(jnp.float64)  # noqa: E731
    z, moved = jax.jvp(run, (params,), (v,))
    return z, moved, jax.vjp(run, params)[1](u)[0]


def require_same_derivatives(twins: Twins) -> None:
    """Compares outputs, one Jv and one Jᵀu with the torch module's outputs, differences and gradient.

    Raises:
        ValueError: if JAX's are not those of the outputs in torch.

    Warns:
        UserWarning: if torch's own gradient is not.
    """
    z = twins.torch(twins.params)
    if not np.all(np.isfinite(z)):
        raise ValueError(f"{twins.name} gives outputs that are not finite at its parameters and the first rows of X")
    u, v = probe_generator(1).normal(size=z.shape), twins.drawn(2)
    here = twins.jax(twins.params, v, u)
    require_same_outputs(twins.name, here[0], z, ROUNDING * np.finfo(np.float64).eps * np.max(np.abs(z), initial=0))
    tried = [_try(twins, v, u, 3)]
    while not tried[-1].agrees and len(tried) < 3:  # a step may cross a kink by chance
        tried.append(_try(twins, v, u, 3 + len(tried)))
    last = tried[-1]
    if not last.agrees:
        raise ValueError(_of_leaves(twins, last, u))
    inner = abs(np.vdot(u, last.moved) - sum(np.vdot(last.pulled[k], v[k]) for k in v))
    if inner > LEAF * np.linalg.norm(u) * np.linalg.norm(last.moved):
        raise ValueError(
            f"the forward and the reverse derivative of {twins.name} in JAX differ by {inner:.1e}: an operation has a "
            f"wrong rule in torchax {version()} or in the module"
        )
    _compare_gradients(twins, here[2], u, last)


@dataclass
class _Tried:
    """Derivatives at one point: parameters, Jv, Jᵀu, differences, whether these agree, and the largest error."""

    params: dict[str, np.ndarray]
    moved: np.ndarray
    pulled: dict[str, np.ndarray]
    differences: np.ndarray
    agrees: bool
    error: float


def _try(twins: Twins, v: dict[str, np.ndarray], u: np.ndarray, seed: int) -> _Tried:
    noise = twins.drawn(seed)
    params = {k: p + SHIFT * noise[k] for k, p in twins.params.items()}
    z, moved, pulled = twins.jax(params, v, u)
    differences = twins.difference(params, v, STEP)
    floor = 10 * np.finfo(np.float64).eps / STEP * np.max(np.abs(z), initial=0)
    error, most = np.max(np.abs(moved - differences), initial=0), np.max(np.abs(differences), initial=0)
    agrees = bool(error <= DIFFERENCES * most + floor)
    return _Tried(params, moved, pulled, differences, agrees, float(error / most) if most else float("inf"))


def _of_leaves(twins: Twins, tried: _Tried, u: np.ndarray) -> str:
    """Which leaves' derivatives are not those of the outputs."""
    wrong, zeros = [], {k: np.zeros_like(p) for k, p in twins.params.items()}
    for name, direction in twins.drawn(2).items():
        along = zeros | {name: direction}
        moved = twins.jax(tried.params, along, u)[1]
        differences = twins.difference(tried.params, along, STEP)
        scale = max(np.max(np.abs(differences), initial=0), NOUGHT * np.max(np.abs(tried.differences), initial=0))
        if np.max(np.abs(moved - differences), initial=0) > 1e-4 * scale:
            wrong.append(name)
    return (
        f"the derivative of {twins.name} in JAX is not that of its outputs in torch: along a random direction it is "
        f"{_percent(tried.error)} off their differences. By leaf: {_few(wrong) or 'none alone'}. Something in the "
        f"forward pass is detached, rounds, or is another operation in torchax {version()}"
    )


def _compare_gradients(twins: Twins, pulled: dict[str, np.ndarray], u: np.ndarray, tried: _Tried) -> None:
    """Compares JAX's gradient with torch's own, a leaf at a time, at the module's own parameters.

    Where they differ, differences along that leaf decide which is wrong.
    """
    differing = _differing(pulled, twins.torch_gradient(twins.params, u))
    if not differing:
        return
    away = set(_differing(tried.pulled, twins.torch_gradient(tried.params, u)))
    kinks = [name for name in differing if name not in away]
    if kinks:
        warnings.warn(
            f"outputs of {twins.name} have a kink at its parameters: torch and JAX take different sides of it by "
            f"{_few(kinks)}",
            stacklevel=4,
        )
    zeros, wrong = {k: np.zeros_like(p) for k, p in twins.params.items()}, []
    for name in (name for name in differing if name in away):
        along = zeros | {name: twins.drawn(2)[name]}
        found, expected = twins.jax(tried.params, along, u)[1], twins.difference(tried.params, along, STEP)
        if np.max(np.abs(found - expected)) > 1e-4 * np.max(np.abs(expected)):
            raise ValueError(_of_leaves(twins, tried, u))
        wrong.append(name)
    if wrong:
        warnings.warn(
            f"torch's own gradient of {twins.name} is not that of its outputs by {_few(wrong)}: a backward pass of its "
            "own is wrong, or it runs without gradient. F is that of the outputs, as differences confirm; torch's "
            "optimizers follow another gradient",
            stacklevel=4,
        )


def _differing(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> list[str]:
    size = {k: max(np.max(np.abs(a[k]), initial=0), np.max(np.abs(b[k]), initial=0)) for k in b}
    whole = max(size.values(), default=0.0)
    bound = {k: LEAF * size[k] + NOUGHT * whole for k in b}
    return [k for k in b if np.max(np.abs(a[k] - b[k]), initial=0) > bound[k]]


def require_same_outputs(name: str, found: np.ndarray, expected: np.ndarray, bound: float) -> None:
    """Compares outputs.

    Raises:
        ValueError: if they differ by more than a bound, or in shape.
    """
    if found.shape != expected.shape:
        raise ValueError(f"{name} gives {list(expected.shape)} in torch and {list(found.shape)} in JAX")
    error = np.max(np.abs(found - expected), initial=0)
    if not error <= bound:
        most = np.max(np.abs(expected), initial=0)
        raise ValueError(
            f"outputs of {name} in JAX are not torch's: they differ by {error:.1e} of {most:.1e}, and rounding "
            f"explains {bound:.1e}. An operation is another one in torchax {version()}, or the forward pass changes "
            "what it holds"
        )


def narrow_operations(function: TorchFunction, params: PyTree, X: PyTree) -> tuple[str, ...]:
    """Operations of the program whose results have fewer digits than the parameters."""
    program = jax.make_jaxpr(function)(params, X)
    most = jnp.finfo(jax_dtype(function.held.dtype)).bits

    def is_narrow(v: Any) -> bool:
        dtype = getattr(v.aval, "dtype", None)
        return dtype is not None and jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < most

    found = {str(e.primitive): None for e in _equations(program) if any(map(is_narrow, e.outvars)) and e.invars}
    return tuple(found)


def _equations(program: ClosedJaxpr | Any) -> Iterator[Any]:
    for equation in getattr(program, "jaxpr", program).eqns:
        inner = inner_programs(equation)
        for other in inner:
            yield from _equations(other)
        if not inner:
            yield equation


def _few(names: Sequence[str], most: int = 4) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + rest


def _percent(error: float) -> str:
    return "infinitely" if error == float("inf") else f"{100 * error:.3g} %"

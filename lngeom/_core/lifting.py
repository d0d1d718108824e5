"""A function computed with wider floating point numbers than it is written for: 16 bits in 32, or all in 64.

Sums over many samples are lost in 16 bits: in bfloat16 a sum of ones ends at 256. A compiled program may sum as it is
written, and so may the derivative of a model. A model that casts to float32 inside hides directions whose singular
values lie below the rounding errors of float32.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal
from jaxtyping import PyTree

from lngeom._core.programs import inner_programs


class Widening(NamedTuple):
    """Which numbers become wider.

    Attributes:
        narrow: their dtypes.
        wide: the dtypes that they get, in the same order.
    """

    narrow: tuple[Any, ...]
    wide: tuple[Any, ...]

    def concerns(self, dtype: Any) -> bool:
        """Whether numbers of a dtype become wider."""
        return dtype in self.narrow

    def dtype(self, dtype: Any) -> Any:
        """The dtype that numbers of a dtype get: their own where they do not become wider."""
        return self.wide[self.narrow.index(dtype)] if self.concerns(dtype) else dtype

    def of(self, tree: PyTree) -> PyTree:
        """Arrays in their wider dtype."""
        return jax.tree.map(
            lambda leaf: leaf.astype(self.dtype(leaf.dtype)) if self.concerns(leaf.dtype) else leaf, tree
        )


NARROW = tuple(map(jnp.dtype, (jnp.bfloat16, jnp.float16)))
TO_32 = Widening(NARROW, (jnp.dtype(jnp.float32),) * 2)
TO_64 = Widening(
    (*NARROW, jnp.dtype(jnp.float32), jnp.dtype(jnp.complex64)),
    (*(jnp.dtype("float64"),) * 3, jnp.dtype("complex128")),
)

OPAQUE = {
    *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),  # whose rules are made for their dtypes
    *("bitcast_convert_type", "pallas_call", "ffi_call", "pure_callback", "io_callback", "shard_map"),
}
"""Operations that run as they are, between conversions."""


def is_narrow(dtype: Any) -> bool:
    """Whether numbers of a dtype have 16 bits."""
    return dtype in NARROW


def has_narrow(program: Any) -> bool:
    """Whether a program computes with numbers of 16 bits."""
    jaxpr = getattr(program, "jaxpr", program)
    values = itertools.chain(jaxpr.invars, jaxpr.constvars, *(equation.outvars for equation in jaxpr.eqns))
    return any(is_narrow(getattr(v.aval, "dtype", None)) for v in values) or any(
        has_narrow(inner) for equation in jaxpr.eqns for inner in inner_programs(equation)
    )


def widened(tree: PyTree) -> PyTree:
    """Arrays of 16 bits in 32 bits."""
    return TO_32.of(tree)


def in_32_bits(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """The same function, computed in 32 bits where it computes in 16: also casts inside give 32 bits.

    Operations with a reverse rule of their own are computed as they are.

    Args:
        function: of pytrees; it returns arrays.

    Returns:
        The function, which returns 32 bits where it returned 16. It takes what it took.
    """
    return _widening(function, TO_32)


class In64Bits(eqx.Module):
    """The same function, computed in float64 wherever it computes with fewer bits.

    Attributes:
        function: apply(params, inputs).
    """

    function: Any

    def __call__(self, params: PyTree, inputs: PyTree) -> PyTree:
        """The outputs, in float64."""
        return _widening(self.function, TO_64)(params, inputs)


def kept_as_they_are(program: Any) -> list[str]:
    """Operations that compute with fewer than 64 bits and cannot be widened: those with a reverse rule, and kernels."""
    jaxpr, found = getattr(program, "jaxpr", program), []
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        narrow = any(TO_64.concerns(getattr(v.aval, "dtype", None)) for v in equation.outvars)
        if name in OPAQUE - {"custom_jvp_call", "bitcast_convert_type"}:
            called = getattr(equation.params.get("call_jaxpr"), "jaxpr", None)
            rule = getattr(getattr(called, "debug_info", None), "func_name", None) or equation.params.get("name")
            found += [f"{rule} ({name})" if rule else name] if narrow else []
        else:
            found += [op for inner in inner_programs(equation) for op in kept_as_they_are(inner)]
    return list(dict.fromkeys(found))


def _widening(function: Callable[..., PyTree], to: Widening) -> Callable[..., PyTree]:
    def run(*arguments: PyTree) -> PyTree:
        arrays, others = eqx.partition(arguments, eqx.is_array)
        of_arrays = lambda arrays: function(*eqx.combine(arrays, others))  # noqa: E731
        closed, shape = jax.make_jaxpr(of_arrays, return_shape=True)(arrays)
        return jax.tree.unflatten(jax.tree.structure(shape), _evaluate(closed, jax.tree.leaves(arrays), to))

    return run


def _evaluate(closed: Any, arguments: Sequence[Any], to: Widening) -> list:
    values = dict(zip(closed.jaxpr.invars, to.of(list(arguments)), strict=True))
    values |= dict(zip(closed.jaxpr.constvars, to.of([jnp.asarray(c) for c in closed.consts]), strict=True))

    def value(v: Any) -> Any:
        if not isinstance(v, Literal):
            return values[v]
        shape: Any = v.aval
        return to.of(jnp.asarray(v.val, shape.dtype))

    for equation in closed.jaxpr.eqns:
        operands = [value(v) for v in equation.invars]
        if (own := _with_rule(equation, operands, to)) is not None:
            results = own
        elif equation.primitive.name in OPAQUE:
            given = [v.aval for v in equation.invars]
            operands = [
                o.astype(aval.dtype) if to.concerns(getattr(aval, "dtype", None)) else o
                for o, aval in zip(operands, given, strict=True)
            ]
            results = to.of(_bind(equation, operands, equation.params))
        else:
            results = _bind(equation, operands, {name: _wide(p, to) for name, p in equation.params.items()})
        values |= dict(zip(equation.outvars, results, strict=True))
    return [value(v) for v in closed.jaxpr.outvars]


def _with_rule(equation: Any, operands: list, to: Widening) -> list | None:
    """The results of a function with a forward rule of its own, both widened; None where that cannot be read."""
    if equation.primitive.name != "custom_jvp_call":
        return None
    call, rule, constants = (equation.params.get(name) for name in ("call_jaxpr", "jvp_jaxpr_fun", "num_consts"))
    floating = all(jnp.issubdtype(jnp.result_type(o), jnp.floating) for o in operands)
    try:
        jaxpr, consts, zeros = rule.call_wrapped(*[False] * (len(operands) - constants))  # type: ignore[union-attr]
        moved = ClosedJaxpr(jaxpr, consts)
    except (AttributeError, TypeError, ValueError):
        return None
    if not floating or any(zeros):
        return None

    @jax.custom_jvp
    def run(*values: Any) -> list:
        return _evaluate(call, values, to)

    @run.defjvp
    def _(primals: tuple, tangents: tuple) -> tuple[list, list]:
        found = _evaluate(moved, [*primals[constants:], *tangents[constants:]], to)
        return found[: len(found) // 2], found[len(found) // 2 :]

    return run(*operands)


def _bind(equation: Any, operands: list, params: dict[str, Any]) -> list:
    found = equation.primitive.bind(*operands, **equation.primitive.get_bind_params(params))
    return list(found) if equation.primitive.multiple_results else [found]


def _wide(parameter: Any, to: Widening) -> Any:
    """A parameter of an operation, with wider dtypes and programs."""
    if isinstance(parameter, str):  # a name, as "f", is equal to the dtype that NumPy writes so
        return parameter
    if isinstance(parameter, tuple | list):
        return parameter if hasattr(parameter, "_fields") else type(parameter)(_wide(p, to) for p in parameter)
    if isinstance(parameter, ClosedJaxpr):
        shapes = [
            jax.ShapeDtypeStruct(a.shape, to.dtype(a.dtype), weak_type=a.weak_type)
            for a in (v.aval for v in parameter.jaxpr.invars)
        ]
        return jax.make_jaxpr(lambda *a: _evaluate(parameter, a, to))(*shapes)
    if hasattr(parameter, "eqns"):  # a program without constants
        return _wide(ClosedJaxpr(parameter, ()), to).jaxpr
    try:
        return to.dtype(parameter)
    except TypeError:  # compared with a dtype, it says no
        return parameter

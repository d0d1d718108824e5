r"""Linear maps that can be transposed although masked positions hold NaN, infinities or divisions by 0.

An output that does not count gets the cotangent 0, but $0 \cdot \mathrm{NaN} = \mathrm{NaN}$ (and 0/0 too). What it is
computed from may be anything if no other output depends on that. Whether it is so, the map itself tells: forwards, NaN
reaches every output that depends on it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import Literal
from jaxtyping import Array, PyTree

from lngeom.information._contraction import evaluate

INLINED = ("jit", "closed_call", "checkpoint", "remat2")


class RepairedMap(eqx.Module):
    """A linear map with 1 for values it multiplies by that are not finite, and for zeros it divides by.

    Attributes:
        residuals: values it was linearized at.
        active: whether anything is replaced.
        program: of (residuals, argument).
        structure: of its result.
    """

    residuals: list[Array]
    active: Array
    program: Any = eqx.field(static=True)
    structure: Any = eqx.field(static=True)

    def __init__(self, linear: Callable[[PyTree], PyTree], argument: PyTree):
        self.residuals, tree = jax.tree.flatten(linear)
        apply = lambda r, v: jax.tree.unflatten(tree, r)(v)  # noqa: E731
        self.program, shape = jax.make_jaxpr(apply, return_shape=True)(self.residuals, argument)
        self.structure = jax.tree.structure(shape)
        self.active = jnp.ones((), bool)

    def __call__(self, argument: PyTree) -> PyTree:
        """The value of the map."""
        known = [_finite(r, self.active) for r in (*self.program.consts, *self.residuals)]
        consts, residuals = known[: len(self.program.consts)], known[len(self.program.consts) :]
        leaves = jax.tree.leaves(argument)
        linear = [False] * len(residuals) + [True] * len(leaves)
        values, _ = _run(self.program.jaxpr, consts, [*residuals, *leaves], linear, self.active)
        return jax.tree.unflatten(self.structure, values)

    def only_if(self, condition: Array) -> "RepairedMap":
        """The same map, with nothing replaced unless a condition holds."""
        return eqx.tree_at(lambda m: m.active, self, condition)


def same(a: Array, b: Array) -> Array:
    """Whether two results agree to rounding and are finite."""
    return jnp.all(jnp.abs(a - b) <= 1e3 * jnp.finfo(a.dtype).eps * jnp.max(jnp.abs(b)))


def _finite(value: Any, active: Array) -> Any:
    if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        return value
    return jnp.where(active & ~jnp.isfinite(value), 1, value)


def _run(
    jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], linear: Sequence[bool], active: Array
) -> tuple[list[Any], list[bool]]:
    """Evaluates a program; returns its results, and which of them depend linearly on the map's argument."""
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))
    marked = {v for v, is_linear in zip(jaxpr.invars, linear, strict=True) if is_linear}
    read = lambda v: v.val if isinstance(v, Literal) else values[v]  # noqa: E731
    is_marked = lambda v: not isinstance(v, Literal) and v in marked  # noqa: E731
    for equation in jaxpr.eqns:
        operands, marks = [read(v) for v in equation.invars], [is_marked(v) for v in equation.invars]
        found, marks = _apply(equation, operands, marks, active)
        values.update(zip(equation.outvars, found, strict=True))
        marked |= {v for v, is_linear in zip(equation.outvars, marks, strict=True) if is_linear}
    return [read(v) for v in jaxpr.outvars], [is_marked(v) for v in jaxpr.outvars]


def _apply(equation: Any, operands: list[Any], linear: list[bool], active: Array) -> tuple[list[Any], list[bool]]:
    name, inner = equation.primitive.name, equation.params.get("jaxpr")
    if name in INLINED:
        return _run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), operands, linear, active)
    if name == "scan":
        return _scan(equation.params, operands, linear, active)
    if name == "div" and linear[0]:
        operands = [operands[0], jnp.where(active & (operands[1] == 0), 1, operands[1])]
    found = evaluate(equation, operands)
    if not any(linear):
        found = [_finite(value, active) for value in found]
    return found, [any(linear)] * len(found)


def _scan(params: dict, operands: list[Any], linear: list[bool], active: Array) -> tuple[list[Any], list[bool]]:
    body, start, count = params["jaxpr"], params["num_consts"], params["num_carry"]
    consts, carry, rows = operands[:start], operands[start : start + count], operands[start + count :]
    marks: list[bool] = []

    def step(carry: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        nonlocal marks
        found, marks = _run(body.jaxpr, body.consts, [*consts, *carry, *row], linear, active)
        return found[:count], found[count:]

    while True:  # what is linear in the carry is known when one more step adds nothing
        jax.eval_shape(lambda: jax.lax.scan(step, carry, rows, length=params["length"]))
        grown = [a or b for a, b in zip(linear[start : start + count], marks[:count], strict=True)]
        if grown == linear[start : start + count]:
            break
        linear = [*linear[:start], *grown, *linear[start + count :]]
    last, stacked = jax.lax.scan(
        step, carry, rows, length=params["length"], reverse=params["reverse"], unroll=params["unroll"]
    )
    return [*last, *stacked], [*linear[start : start + count], *marks[count:]]

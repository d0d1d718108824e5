r"""The constants ε in the denominators of a model's norms: their share there, and the model without them.

A norm divides by $\sqrt{x + \epsilon}$, or by $\sqrt x + \epsilon$. Both are read from the program that JAX traces. A
sum counts as such a denominator where one term depends on the parameters, the other is a constant of at most `LARGEST`,
and a root stands directly above or below it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jaxtyping import Array, PyTree

from lngeom._core.types import is_concrete

LARGEST = 1e-2
"""Largest constant that counts as ε; larger ones belong to the function, such as x/√(1 + x²)."""

_INLINED = {
    *("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"),
    *("custom_vjp_call_jaxpr", "remat", "remat2", "checkpoint"),
}
_VIEWS = {"broadcast_in_dim", "reshape", "squeeze", "transpose", "convert_element_type", "copy", "expand_dims"}
_ROOTS = {"sqrt", "rsqrt"}
_SMALL = 64


class Denominator(NamedTuple):
    """The denominator of a norm.

    Attributes:
        eps: ε.
        value: x of √(x + ε), or √x of √x + ε.
        power: of the scale of the weights in it: 2 inside a root, 1 outside.
    """

    eps: float
    value: Array
    power: int


class _Value(NamedTuple):
    """What the interpreter knows of a variable.

    Attributes:
        value: its value.
        depends: whether it depends on the parameters.
        before: the other term and ε, if it is a sum with a small constant.
        root: whether it is a root.
    """

    value: Any
    depends: bool = False
    before: tuple[Any, float] | None = None
    root: bool = False


def _constant(value: Any) -> float | None:
    """The small positive number that all entries of a constant are, if they are."""
    if not is_concrete(value) or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        return None
    entries = np.unique(np.asarray(value, np.float64))
    return float(entries[0]) if entries.size == 1 and 0 < entries[0] <= LARGEST else None


def _bind(equation: Any, values: Sequence[Any], **changed: Any) -> list:
    primitive = equation.primitive
    found = primitive.bind(*values, **primitive.get_bind_params(equation.params | changed))
    return list(found) if primitive.multiple_results else [found]


def _evaluate(jaxpr: Any, consts: Sequence[Any], given: list[_Value], found: list | None, keep: bool) -> list[_Value]:
    """Runs a program, with ε if it is to be kept."""
    known: dict[Any, _Value] = dict(zip(jaxpr.invars, given, strict=True))
    known |= {v: _Value(c) for v, c in zip(jaxpr.constvars, consts, strict=True)}
    for equation in jaxpr.eqns:
        operands = [_Value(v.val) if isinstance(v, Literal) else known[v] for v in equation.invars]
        results = _step(equation, operands, found, keep)
        known |= dict(zip(equation.outvars, results, strict=True))
    return [_Value(v.val) if isinstance(v, Literal) else known[v] for v in jaxpr.outvars]


def _step(equation: Any, operands: list[_Value], found: list | None, keep: bool) -> list[_Value]:
    name, values = equation.primitive.name, [o.value for o in operands]
    depends = any(o.depends for o in operands)
    if name in _INLINED:
        inner = equation.params.get("call_jaxpr", equation.params.get("jaxpr"))
        program, consts = getattr(inner, "jaxpr", inner), getattr(inner, "consts", ())
        if inner is not None and len(program.invars) == len(operands):
            return _evaluate(program, consts, operands, found, keep)
    if not depends:
        if sum(map(jnp.size, values)) <= _SMALL and not any(not is_concrete(v) for v in values):
            with jax.ensure_compile_time_eval():  # so that an ε that is computed is known while a program is traced
                return [_Value(v) for v in _bind(equation, values)]
        return [_Value(v) for v in _bind(equation, values)]
    if name == "scan":
        fixed = [o._replace(depends=True) for o in operands[equation.params["num_consts"] :]]
        body = _inside(equation.params["jaxpr"], [*operands[: equation.params["num_consts"]], *fixed], keep)
        return [_Value(v, True) for v in _bind(equation, values, jaxpr=body)]
    if name == "cond":
        branches = tuple(_inside(branch, operands[1:], keep) for branch in equation.params["branches"])
        return [_Value(v, True) for v in _bind(equation, values, branches=branches)]
    if name in _ROOTS or (name == "pow" and not operands[1].depends and _is_half(values[1])):
        return [_Value(_root(equation, operands, found, keep), True, root=True)]
    results = [_Value(v, True) for v in _bind(equation, values)]
    if name == "add":
        return [_sum(operands, results[0], found, keep)]
    if name == "select_n" and sum(o.before is not None for o in operands[1:]) == 1:  # guards against x = 0
        other, eps = next(o.before for o in operands[1:] if o.before is not None)
        cases = [values[0], *(other if o.before is not None else o.value for o in operands[1:])]
        return [results[0]._replace(before=(_bind(equation, cases)[0], eps))]
    if name in _VIEWS:
        before = operands[0].before
        if before is not None:
            before = (_bind(equation, [before[0], *values[1:]])[0], before[1])
        return [results[0]._replace(before=before, root=operands[0].root)]
    return results


def _is_half(exponent: Any) -> bool:
    return is_concrete(exponent) and bool(np.all(np.abs(np.asarray(exponent)) == 0.5))


def _root(equation: Any, operands: list[_Value], found: list | None, keep: bool):
    """√(x + ε), or √x."""
    first, *others = operands
    values = [o.value for o in operands]
    if first.before is None:
        return _bind(equation, values)[0]
    other, eps = first.before
    if found is not None:
        found.append(Denominator(eps, other, 2))
    return _bind(equation, values if keep else [other, *(o.value for o in others)])[0]


def _sum(operands: list[_Value], result: _Value, found: list | None, keep: bool) -> _Value:
    """A sum, which is x + ε under a root, √x + ε, or neither."""
    for one, other in (operands, operands[::-1]):
        eps = None if other.depends or not one.depends else _constant(other.value)
        if eps is None or jnp.shape(one.value) != jnp.shape(result.value):
            continue
        if not one.root:
            return result._replace(before=(one.value, eps))
        if found is not None:
            found.append(Denominator(eps, one.value, 1))
        return result if keep else result._replace(value=one.value)
    return result


def _inside(body: Any, operands: list[_Value], keep: bool):
    """The body of a scan or a branch, whose denominators are not recorded."""
    fixed = [None if o.depends or not is_concrete(o.value) else o.value for o in operands]

    def run(*arguments):
        given = [_Value(a if f is None else f, f is None) for a, f in zip(arguments, fixed, strict=True)]
        return [o.value for o in _evaluate(body.jaxpr, body.consts, given, None, keep)]

    return jax.make_jaxpr(run)(
        *(jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=getattr(a, "weak_type", False)) for a in body.in_avals)
    )


def _run(function: Callable[..., PyTree], params: PyTree, found: list | None, keep: bool) -> PyTree:
    closed, shape = jax.make_jaxpr(function, return_shape=True)(params)
    given = [_Value(v, True) for v in jax.tree.leaves(params)]
    results = _evaluate(closed.jaxpr, closed.consts, given, found, keep)
    return jax.tree.unflatten(jax.tree.structure(shape), [r.value for r in results])


def without_epsilon(function: Callable[[PyTree], PyTree]) -> Callable[[PyTree], PyTree]:
    """The same function of parameters, where every ε of a norm's denominator is zero.

    Args:
        function: of parameters alone. Norms inside of a `while_loop` or a Pallas kernel keep their ε.

    Returns:
        The function, which can be differentiated forwards.
    """
    return lambda params: _run(function, params, None, keep=False)


def denominators(function: Callable[[PyTree], PyTree], params: PyTree, *, keep: bool = True) -> list[Denominator]:
    """The denominators of all norms of a function, in the order of its program.

    Args:
        function: of parameters alone.
        params: the parameters.
        keep: whether the function runs with ε, or with zeros in its place.

    Returns:
        One for each ε that is read. Those inside of loops and branches are not.
    """
    found: list[Denominator] = []
    _run(function, params, found, keep)
    return found

"""The precision in which a model really computes, read off its program: a rank is no better than that."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from lngeom.information._problem import Problem
from lngeom.information._pullback import is_program

REARRANGEMENTS = {"broadcast_in_dim", "convert_element_type", "copy", "reshape", "slice", "squeeze", "transpose"}
"""Operations which round nothing themselves: not worth a name in a message."""


class Precision(NamedTuple):
    """The least precise dtype through which the parameters' effect on the outputs passes.

    Attributes:
        dtype: that dtype.
        operations: names of the operations with results less precise than the parameters, most frequent first.
    """

    dtype: jnp.dtype
    operations: tuple[str, ...]

    @property
    def eps(self) -> float:
        """Relative rounding error."""
        return float(jnp.finfo(self.dtype).eps)

    def describe(self) -> str:
        """In words, such as "float32 (in exp, div)"."""
        named = ", ".join(self.operations[:4]) + (", …" if len(self.operations) > 4 else "")
        return f"{self.dtype} (in {named})" if named else str(self.dtype)


def working_precision(problem: Problem, of_inputs: bool = False) -> Precision:
    """Reads the program of z for operations on the parameters with results of a less precise dtype.

    What is computed from the inputs or from constants alone does not matter to a derivative: it is the same in every
    one.

    Args:
        problem: the problem (shapes alone matter).
        of_inputs: look at operations on the inputs too, whose rounding changes outputs.

    Returns:
        The precision.
    """
    leaves, inputs = jax.tree.leaves(problem.params), jax.tree.leaves(problem.inputs)
    program = jax.make_jaxpr(problem.outputs)(problem.params, problem.inputs)
    found: Counter = Counter()
    _visit(program.jaxpr, [True] * len(leaves) + [of_inputs] * len(inputs), found)
    rough = {dtype for _, dtype in found} | {leaf.dtype for leaf in leaves}
    worst = max(rough, key=lambda dtype: float(jnp.finfo(dtype).eps))
    limit = float(jnp.finfo(problem.dtype).eps)
    names = Counter()
    for (name, dtype), count in found.items():
        if float(jnp.finfo(dtype).eps) > limit and name not in REARRANGEMENTS:
            names[name] += count
    return Precision(jnp.dtype(worst), tuple(name for name, _ in names.most_common()))


def _visit(jaxpr: Any, inputs: Sequence[bool], found: Counter) -> list[bool]:
    """Counts (operation, dtype) of what depends on the marked inputs; returns which results do."""
    marked = {v for v, depends in zip(jaxpr.invars, inputs, strict=True) if depends}
    depends = lambda v: not isinstance(v, Literal) and v in marked  # noqa: E731
    for equation in jaxpr.eqns:
        operands = [depends(v) for v in equation.invars]
        if not any(operands):
            continue
        results = _inner(equation, operands, found)
        if results is None:
            results = [True] * len(equation.outvars)
            for v in equation.outvars:
                if jnp.issubdtype(v.aval.dtype, jnp.floating):
                    found[equation.primitive.name, v.aval.dtype] += 1
        marked |= {v for v, result in zip(equation.outvars, results, strict=True) if result}
    return [depends(v) for v in jaxpr.outvars]


def _inner(equation: Any, operands: list[bool], found: Counter) -> list[bool] | None:
    """The same for the programs inside an operation; None where it has none."""
    values = jax.tree.leaves(list(equation.params.values()), is_leaf=is_program)
    programs = [getattr(value, "jaxpr", value) for value in values if is_program(value)]
    if not programs:
        return None
    results = [False] * len(equation.outvars)
    for program in programs:
        extra = len(operands) - len(program.invars)  # a condition's index or branch comes first
        marks = operands[extra:] if extra >= 0 else [True] * len(program.invars)
        while True:  # what a scan carries depends on the parameters once any step makes it so
            found_now: Counter = Counter()
            outputs = _visit(program, marks, found_now)
            grown = _carried(equation, marks, outputs)
            if grown == marks:
                break
            marks = grown
        found.update(found_now)
        same = len(outputs) == len(results)
        results = [a or b for a, b in zip(results, outputs, strict=True)] if same else [True] * len(results)
    return results


def _carried(equation: Any, marks: list[bool], outputs: list[bool]) -> list[bool]:
    """The marks of a scan's body after one more step."""
    if equation.primitive.name != "scan":
        return marks
    start, count = equation.params["num_consts"], equation.params["num_carry"]
    carry = [a or b for a, b in zip(marks[start : start + count], outputs[:count], strict=True)]
    return [*marks[:start], *carry, *marks[start + count :]]

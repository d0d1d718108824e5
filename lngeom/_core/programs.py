"""Reads the programs that JAX traces: what they run, how they rearrange a value, in which precision they compute."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal
from jaxtyping import PyTree

CALLS = {"jit", "pjit", "checkpoint", "remat", "remat2"}
"""Operations that only run another program."""

SUMS = ("add", "add_any")

CASTS = {"convert_element_type", "reduce_precision", "copy_p", "name", "sharding_constraint"}
"""Operations that leave every number where it is and, rounding aside, as it is."""

VIEWS: dict[str, Callable[..., np.ndarray]] = {
    "copy": lambda view: view,
    "reshape": lambda view, new_sizes, dimensions=None, **_: np.reshape(
        view if dimensions is None else np.transpose(view, dimensions), new_sizes, copy=False
    ),
    "transpose": lambda view, permutation: np.transpose(view, permutation),
    "squeeze": lambda view, dimensions: np.squeeze(view, dimensions),
    "broadcast_in_dim": lambda view, shape, broadcast_dimensions, **_: np.broadcast_to(
        np.expand_dims(view, [k for k in range(len(shape)) if k not in broadcast_dimensions]), shape
    ),
}
"""Operations that only rearrange a leaf, on views that have its strides and no memory."""

AXES = ("dimension_numbers", "permutation", "dimensions", "broadcast_dimensions", "dimension", "axes", "axis")
"""Parameters of operations that do not depend on sizes."""

ORDERING = {"rev", "sort", "concatenate", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"}
"""Operations that move entries along an axis that they name, or mix them."""

EXACT = {*VIEWS, "convert_element_type", "slice"}
"""Operations that round nothing themselves."""


QUICKLY: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
if jax.__version_info__ < (0, 11):  # 0.12 has no such option, 0.11 was not tried
    QUICKLY |= {"xla_cpu_use_fusion_emitters": False}
"""For programs that run a few times: compiling them is all their cost."""


def inner_programs(equation: Any) -> list[Any]:
    """The programs inside an operation, such as the body of a scan or the branches of a cond."""
    values = [v for p in equation.params.values() for v in (p if isinstance(p, tuple | list) else (p,))]
    return [getattr(value, "jaxpr", value) for value in values if _is_program(value)]


def _is_program(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns")


def has_reverse_rule_only(program: Any) -> bool:
    """Whether a linearized program holds a custom reverse rule, which can be transposed but not run."""
    return any(
        equation.primitive.name == "custom_lin" or any(map(has_reverse_rule_only, inner_programs(equation)))
        for equation in getattr(program, "jaxpr", program).eqns
    )


def written_out(program: ClosedJaxpr, arguments: Iterable[Any], unrolled: int = 0) -> ClosedJaxpr:
    """Inlines calls (jit, remat) into one program, traced with these arguments.

    A loop of a fixed number of steps, up to `unrolled` of them, is written out step by step.

    Operations without results, as of `jax.debug.print`, are left out, and so are barriers to the compiler.
    """
    return jax.make_jaxpr(lambda *a: _write_out(program.jaxpr, program.consts, a, unrolled))(*arguments)


def _write_out(jaxpr: Any, consts: Any, arguments: Any, unrolled: int) -> list:
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))
    for equation in jaxpr.eqns:
        if not equation.outvars:
            continue
        operands = [v.val if isinstance(v, Literal) else values[v] for v in equation.invars]
        name, inner = equation.primitive.name, equation.params.get("jaxpr")
        if name in CALLS and inner is not None:
            results = _write_out(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), operands, unrolled)
        elif name == "scan" and equation.params["length"] <= unrolled:
            results = _write_out_steps(equation.params, operands, unrolled)
        elif name == "optimization_barrier":
            results = operands
        else:
            results = bind(equation, operands)
        values.update(zip(equation.outvars, results, strict=True))
    return [v.val if isinstance(v, Literal) else values[v] for v in jaxpr.outvars]


def _write_out_steps(scan: dict[str, Any], operands: list, unrolled: int) -> list:
    """The results of a scan with these parameters, from the operations of all its steps."""
    first, last = scan["num_consts"], scan["num_consts"] + scan["num_carry"]
    shared, carry, rows = operands[:first], operands[first:last], operands[last:]
    steps, found = range(scan["length"]), {}
    for k in reversed(steps) if scan["reverse"] else steps:
        step = [jax.lax.index_in_dim(array, k, keepdims=False) for array in rows]
        inner = scan["jaxpr"]
        results = _write_out(inner.jaxpr, inner.consts, [*shared, *carry, *step], unrolled)
        carry, found[k] = results[: len(carry)], results[len(carry) :]
    stacked = [jnp.stack(parts) for parts in zip(*(found[k] for k in steps), strict=True)]
    return [*carry, *stacked]


def bind(equation: Any, operands: list) -> list:
    """The results of an equation for other operands."""
    primitive = equation.primitive
    found = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return list(found) if primitive.multiple_results else [found]


def variables(jaxpr: Any) -> list:
    """Constants, arguments and all results, in their order."""
    return [*jaxpr.constvars, *jaxpr.invars, *(v for equation in jaxpr.eqns for v in equation.outvars)]


def signature(jaxpr: Any) -> tuple:
    """What a program has at any sizes: of each operation its name, the numbers of its variables, axes, and factors."""
    numbers = {v: k for k, v in enumerate(variables(jaxpr))}

    def number(variable: Any) -> int | None:
        return None if isinstance(variable, Literal) else numbers[variable]

    def factors(equation: Any) -> tuple[float, ...]:
        """Numbers by which it multiplies or divides."""
        known = equation.invars if equation.primitive.name in {"mul", "div"} else ()
        literals = [np.asarray(v.val) for v in known if isinstance(v, Literal)]
        return tuple(float(value) for value in literals if jnp.issubdtype(value.dtype, jnp.floating))

    return tuple(
        (
            equation.primitive.name,
            tuple(map(number, equation.invars)),
            tuple(map(number, equation.outvars)),
            tuple(str(equation.params[name]) for name in AXES if name in equation.params),
            factors(equation),
        )
        for equation in jaxpr.eqns
    )


def keeps_rows(few: Any, more: Any) -> bool:
    """Whether a program's operations leave the samples in their order, those inside of loops and branches too.

    Args:
        few: the program for a number of samples.
        more: the same program for another number.
    """
    before, after = variables(few), variables(more)
    operations, others = ([e.primitive.name for e in program.eqns] for program in (few, more))
    if operations != others or [len(_sizes(v)) for v in before] != [len(_sizes(v)) for v in after]:
        return False
    axes, pairs = growing_axes(before, after), zip(few.eqns, more.eqns, strict=True)
    return all(_keeps_rows(equation, other, axes) for equation, other in pairs)


def _keeps_rows(few: Any, more: Any, axes: dict[Any, tuple[int, ...]]) -> bool:
    """Whether an operation does, where `axes` are those of its variables that grow."""
    inner, others = inner_programs(few), inner_programs(more)
    inside = len(inner) == len(others) and all(map(keeps_rows, inner, others))
    return inside and not any(
        axis in moved
        for v, moved in zip((*few.invars, *few.outvars), _moved_axes(few), strict=True)
        if not isinstance(v, Literal)
        for axis in axes[v]
    )


def _moved_axes(equation: Any) -> list[set[int]]:
    """For each operand and result of an operation, the axes whose entries it moves, mixes or picks."""
    params, name = equation.params, equation.primitive.name
    shapes = [_sizes(v) for v in (*equation.invars, *equation.outvars)]
    found: list[set[int]] = [set() for _ in shapes]
    first, out = 0, len(equation.invars)
    if name in ORDERING:
        named = {*params.get("dimensions", ()), params.get("dimension"), params.get("axis")}
        found = [named for _ in shapes]
    elif name == "dot_general":
        contracted, _ = params["dimension_numbers"]
        found[:2] = map(set, contracted)
    elif name in {"gather", "dynamic_slice"}:
        batched = getattr(params.get("dimension_numbers"), "operand_batching_dims", ())
        sizes = zip(params["slice_sizes"], shapes[first], strict=True)
        found[first] = {k for k, (part, whole) in enumerate(sizes) if part != whole} - {*batched}
    elif name.startswith("scatter"):
        numbers, size = params["dimension_numbers"], len(shapes[first])
        apart = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
        windows = zip((k for k in range(size) if k not in apart), numbers.update_window_dims, strict=True)
        whole = {k for k, window in windows if shapes[2][window] == shapes[first][k]}
        found[first] = found[out] = {*range(size)} - whole - {*numbers.operand_batching_dims}
    elif name == "dynamic_update_slice":
        found[first] = found[out] = {k for k, (a, b) in enumerate(zip(*shapes[:2], strict=True)) if a != b}
    elif name == "pad":
        found[first] = found[out] = {k for k, config in enumerate(params["padding_config"]) if any(config)}
    elif name == "conv_general_dilated":
        (lhs, *_), _, (result, *_) = params["dimension_numbers"]
        found = [{*range(len(shape))} for shape in shapes]
        if params["batch_group_count"] == 1:
            found[first].remove(lhs)
            found[out].remove(result)
    elif "window_dimensions" in params:
        kinds = zip(params["window_dimensions"], params["window_strides"], params["padding"], strict=True)
        moved = {k for k, kind in enumerate(kinds) if kind != (1, 1, (0, 0))}
        found = [moved for _ in shapes]
    elif name == "fft":
        found = [{*range(len(shape) - len(params["fft_lengths"]), len(shape))} for shape in shapes]
    return found


def _sizes(variable: Any) -> tuple[int, ...]:
    """Of an array; none of a token."""
    return getattr(variable.aval, "shape", ())


def growing_axes(few: Iterable[Any], more: Iterable[Any]) -> dict[Any, tuple[int, ...]]:
    """For each variable of a program for few samples, the axes that differ in the program for more samples."""
    return {
        v: tuple(k for k, (a, b) in enumerate(zip(_sizes(v), _sizes(w), strict=True)) if a != b)
        for v, w in zip(few, more, strict=True)
    }


def strided(leaves: Iterable[Any], shapes: Iterable[tuple[int, ...]]) -> dict[Any, tuple[int, np.ndarray]]:
    """For the variable of each leaf, its number and a view of one byte whose strides are those of its entries."""
    found = {}
    for k, (v, shape) in enumerate(zip(leaves, shapes, strict=True)):
        strides = np.cumprod([1, *shape[:0:-1]])[::-1][: len(shape)]
        found[v] = (k, np.lib.stride_tricks.as_strided(np.empty(1, np.int8), shape, strides))
    return found


def uses(jaxpr: Any) -> dict[Any, list[Any]]:
    """For each variable, the equations that take it."""
    found: dict[Any, list[Any]] = {}
    for equation in jaxpr.eqns:
        for v in equation.invars:
            if not isinstance(v, Literal):
                found.setdefault(v, []).append(equation)
    return found


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


def working_precision(
    function: Callable[[PyTree, PyTree], Any], params: PyTree, inputs: PyTree, of_inputs: bool = False
) -> Precision:
    """The precision in which outputs respond to parameters.

    Values computed from the inputs or from constants alone do not matter to a product; their rounding does to a rank,
    since it makes independent what depends on each other exactly.

    Args:
        function: of parameters and inputs.
        params: the parameters (shapes alone matter).
        inputs: the inputs, likewise.
        of_inputs: include operations on the inputs, whose rounding changes outputs.
    """
    leaves = jax.tree.leaves(params)
    program = jax.make_jaxpr(function)(params, inputs)
    found: Counter = Counter()
    _count_results(program.jaxpr, [True] * len(leaves) + [of_inputs] * len(jax.tree.leaves(inputs)), found)
    eps = lambda dtype: float(jnp.finfo(dtype).eps)  # noqa: E731
    worst = max({dtype for _, dtype in found} | {leaf.dtype for leaf in leaves}, key=eps)
    least = eps(jnp.result_type(*(leaf.dtype for leaf in leaves)))
    names = Counter()
    for (name, dtype), count in found.items():
        if eps(dtype) > least and name not in EXACT:
            names[name] += count
    return Precision(jnp.dtype(worst), tuple(name for name, _ in names.most_common()))


def depends_on(program: ClosedJaxpr, argument: int) -> bool:
    """Whether a result of a program depends on the argument of this number."""
    marks = [k == argument for k in range(len(program.jaxpr.invars))]
    return any(_count_results(program.jaxpr, marks, Counter()))


def _count_results(jaxpr: Any, inputs: Sequence[bool], found: Counter) -> list[bool]:
    """Counts (operation, dtype) of results that depend on the marked inputs; returns which outputs do."""
    marked = {v for v, depends in zip(jaxpr.invars, inputs, strict=True) if depends}
    depends = lambda v: not isinstance(v, Literal) and v in marked  # noqa: E731
    for equation in jaxpr.eqns:
        operands = [depends(v) for v in equation.invars]
        if not any(operands):
            continue
        programs = inner_programs(equation)
        if programs and all(_takes_operands(equation, program) for program in programs):
            results = _count_inner(equation, programs, operands, found)
        else:
            results = [True] * len(equation.outvars)
            found.update(
                (equation.primitive.name, v.aval.dtype)
                for v in equation.outvars
                if jnp.issubdtype(v.aval.dtype, jnp.floating)
            )
        marked |= {v for v, result in zip(equation.outvars, results, strict=True) if result}
    return [depends(v) for v in jaxpr.outvars]


def _takes_operands(equation: Any, program: Any) -> bool:
    """Whether the program inside of an operation takes its last operands, not their entries as that of a scatter."""
    given = equation.invars[len(equation.invars) - len(program.invars) :] if program.invars else []
    same = [_sizes(v) for v in given] == [_sizes(v) for v in program.invars]
    return same or equation.primitive.name in {"scan", "while"}


def _count_inner(equation: Any, programs: list[Any], operands: list[bool], found: Counter) -> list[bool]:
    """The same for the programs inside an operation."""
    results = [False] * len(equation.outvars)
    for program in programs:
        extra = len(operands) - len(program.invars)  # a condition's index or branch comes first
        marks = operands[extra:] if extra >= 0 else [True] * len(program.invars)
        while True:  # what a scan carries depends on the parameters once any step makes it so
            now: Counter = Counter()
            outputs = _count_results(program, marks, now)
            grown = _carried(equation, marks, outputs)
            if grown == marks:
                break
            marks = grown
        found.update(now)
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

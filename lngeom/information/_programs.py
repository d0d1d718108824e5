"""Reads the programs that JAX traces: where parameters enter, and in which precision a model computes.

A leaf that is multiplied as a matrix by something known of each sample is a kernel; one that is multiplied entry by
entry, or only added, is a gain or a bias. The sums in which they end are the points at which they enter. The program
of `jax.linearize` is traced at two numbers of samples, which tells the samples' axis from all others.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jaxtyping import Array

from lngeom.information._problem import Problem

SUMS = ("add", "add_any")

VIEWS: dict[str, Callable[..., np.ndarray]] = {
    "copy": lambda view: view,
    "reshape": lambda view, new_sizes, **_: np.reshape(view, new_sizes, copy=False),
    "transpose": lambda view, permutation: np.transpose(view, permutation),
    "squeeze": lambda view, dimensions: np.squeeze(view, dimensions),
    "broadcast_in_dim": lambda view, shape, broadcast_dimensions, **_: np.broadcast_to(
        np.expand_dims(view, [k for k in range(len(shape)) if k not in broadcast_dimensions]), shape
    ),
}
"""Operations that only rearrange a leaf, on views that have its strides and no memory."""

EXACT = {*VIEWS, "convert_element_type", "slice"}
"""Operations that round nothing themselves."""


def inner_programs(equation: Any) -> list[Any]:
    """The programs inside an operation, such as the body of a scan."""
    values = jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program)
    return [getattr(value, "jaxpr", value) for value in values if _is_program(value)]


def _is_program(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns")


def has_reverse_rule_only(program: Any) -> bool:
    """Whether a linearized program holds a custom reverse rule, which can be transposed but not run."""
    return any(
        equation.primitive.name == "custom_lin" or any(map(has_reverse_rule_only, inner_programs(equation)))
        for equation in getattr(program, "jaxpr", program).eqns
    )


class Irregular(Exception):
    """A parameter enters in a way that is not known here."""


class Entry(NamedTuple):
    """One place where a leaf of the parameters enters.

    Attributes:
        leaf: its number.
        point: number of the sum it ends in.
        residual: number of the residual it is multiplied by, or None.
        sample_axis: of that residual.
        kernel: whether that is a product of matrices, not entry by entry.
        transposed: whether the leaf is [H D], not [D H].
        shape: D and H (D = 1 where it is no kernel).
    """

    leaf: int
    point: int
    residual: int | None
    sample_axis: int
    kernel: bool
    transposed: bool
    shape: tuple[int, int]


class Point(NamedTuple):
    """A sum of summed inputs, at the first place where something enters it.

    Attributes:
        equation: number of the program's equation there.
        operand: which of its operands is the leaf, or None where its result is all that enters.
        sample_axis: of the sum.
        width: H.
    """

    equation: int
    operand: int | None
    sample_axis: int
    width: int


class Structure(NamedTuple):
    """Where all parameters enter a function.

    Attributes:
        entries: all of them.
        points: all of them.
        outputs: C, of the function.
        program: names of the operations, by which the same program is known again.
    """

    entries: tuple[Entry, ...]
    points: tuple[Point, ...]
    outputs: int
    program: tuple[str, ...]


class Program(NamedTuple):
    """The program of (residuals, tangent) ↦ Jv.

    Attributes:
        jaxpr: its equations.
        residuals: their values.
        outputs: z.
    """

    jaxpr: Any
    residuals: list
    outputs: Array

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the operations."""
        return tuple(equation.primitive.name for equation in self.jaxpr.eqns)

    @property
    def variables(self) -> list:
        """Inputs and all results."""
        return [*self.jaxpr.invars, *(v for equation in self.jaxpr.eqns for v in equation.outvars)]

    def after(self, structure: "Structure", points: list[Array]) -> Array:
        """Jv as a function of what enters at the points, instead of v."""
        place = {(point.equation, point.operand): value for point, value in zip(structure.points, points, strict=True)}
        values: dict[Any, Any] = dict(zip(self.jaxpr.invars, self.residuals, strict=False))
        for position, equation in enumerate(self.jaxpr.eqns):
            if (position, None) in place:
                values[equation.outvars[0]] = place[position, None]
                continue
            operands = [v.val if isinstance(v, Literal) else values.get(v) for v in equation.invars]
            operands = [place.get((position, k), v) for k, v in enumerate(operands)]
            present = [v for v in operands if v is not None]
            if len(present) == 1 < len(operands) and equation.primitive.name in SUMS:
                values[equation.outvars[0]] = present[0]  # of a sum whose other term enters at an earlier point
            elif len(present) == len(operands):
                primitive = equation.primitive
                found = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
                results = found if primitive.multiple_results else [found]
                values.update(zip(equation.outvars, results, strict=True))
        return values[self.jaxpr.outvars[0]]


def trace_program(problem: Problem) -> Program:
    """The derivative's program for the samples held here; `Irregular` unless it runs forwards to outputs [N C]."""
    z, linear = jax.linearize(problem.forward, problem.params)
    residuals, tree = jax.tree.flatten(linear)
    closed = jax.make_jaxpr(lambda r, v: jax.tree.unflatten(tree, r)(v))(residuals, problem.params)
    if z.ndim != 2 or closed.consts or has_reverse_rule_only(closed):
        raise Irregular
    return Program(closed.jaxpr, residuals, z)


def find_structure(problem: Problem) -> Structure | None:
    """Where parameters enter (from shapes alone); None where one enters otherwise than in a kernel, gain or bias."""
    if problem.coupled or problem.scores is not None:
        return None
    try:
        return _Reader(problem, *(_abstract_program(problem, rows) for rows in (2, 3))).structure()
    except Irregular:
        return None


def _abstract_program(problem: Problem, rows: int) -> Program:
    found = []
    abstract = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), problem)
    per_sample = jax.tree.map(lambda a: jax.ShapeDtypeStruct((rows, *a.shape[1:]), a.dtype), problem.per_sample)
    jax.eval_shape(lambda p: found.append(trace_program(p)), abstract.with_samples(per_sample))
    return found[0]


def growing_axes(few: Iterable[Any], more: Iterable[Any]) -> dict[Any, tuple[int, ...]]:
    """For each variable of a program for few samples, the axes that are larger in the program for more samples."""
    return {
        v: tuple(k for k, (a, b) in enumerate(zip(v.aval.shape, w.aval.shape, strict=True)) if a != b)
        for v, w in zip(few, more, strict=True)
    }


def strided(variables: Iterable[Any], shapes: Iterable[tuple[int, ...]]) -> dict[Any, tuple[int, np.ndarray]]:
    """For the variable of each leaf, its number and a view of one byte whose strides are those of its entries."""
    found = {}
    for k, (v, shape) in enumerate(zip(variables, shapes, strict=True)):
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


class _Reader:
    """Reads the equations in order, following each leaf until it enters.

    Attributes:
        axes: for each variable, the axes that grow with the number of samples.
        known: number of each residual.
        leaves: for each variable that is a rearranged leaf, its number and a view with its strides.
        uses: equations that use a variable.
    """

    def __init__(self, problem: Problem, few: Program, more: Program):
        if few.names != more.names:
            raise Irregular
        self.program, self.jaxpr = few, few.jaxpr
        self.axes = growing_axes(few.variables, more.variables)
        count = len(few.residuals)
        self.known = {v: k for k, v in enumerate(self.jaxpr.invars[:count])}
        shapes = [leaf.shape for leaf in jax.tree.leaves(problem.params)]
        self.leaves = strided(self.jaxpr.invars[count:], shapes)
        self.uses = uses(self.jaxpr)
        self.numbers: dict[Any, int] = {}
        self.points: list[Point] = []
        self.entries: list[Entry] = []

    def structure(self) -> Structure:
        """All entries; `Irregular` if a leaf enters in another way."""
        for position, equation in enumerate(self.jaxpr.eqns):
            operands = [k for k, v in enumerate(equation.invars) if not isinstance(v, Literal) and v in self.leaves]
            if len(operands) > 1:
                raise Irregular
            if operands:
                self._read(position, equation, operands[0])
        if any(isinstance(v, Literal) or v in self.leaves for v in self.jaxpr.outvars):
            raise Irregular
        return Structure(tuple(self.entries), tuple(self.points), self.program.outputs.shape[1], self.program.names)

    def _read(self, position: int, equation: Any, operand: int) -> None:
        name, out = equation.primitive.name, equation.outvars[0]
        leaf, view = self.leaves[equation.invars[operand]]
        if name in VIEWS:
            try:
                view = VIEWS[name](view, **equation.params)
            except (ValueError, TypeError) as error:
                raise Irregular from error
            if not self.axes[out]:
                self.leaves[out] = (leaf, view)
                return
        if len(self.axes[out]) != 1:
            raise Irregular
        axis = self.axes[out][0]
        if name == "dot_general":
            self._kernel(position, equation, operand)
            return
        residual = None
        if name == "mul":
            other = equation.invars[1 - operand]
            if isinstance(other, Literal) or self.axes[other] != (axis,) or other not in self.known:
                raise Irregular
            residual = self.known[other]
        elif name not in SUMS and name not in VIEWS:
            raise Irregular
        view = np.broadcast_to(view, out.aval.shape)
        one = np.moveaxis(view, axis, 0)[0]
        if view.strides[axis] != 0 or not one.flags.c_contiguous:
            raise Irregular
        point = self._point(position, out, operand if name in SUMS else None)
        self.entries.append(Entry(leaf, point, residual, axis, False, False, (1, one.size)))

    def _kernel(self, position: int, equation: Any, operand: int) -> None:
        leaf, view = self.leaves[equation.invars[operand]]
        (contracted, batch), x = equation.params["dimension_numbers"], equation.invars[1 - operand]
        mine, theirs = contracted[operand], contracted[1 - operand]
        if x not in self.known or x.aval.ndim != 2 or view.ndim != 2 or any(batch) or len(mine) != 1:
            raise Irregular
        if len(self.axes[x]) != 1 or theirs[0] == self.axes[x][0]:
            raise Irregular
        view = view if mine[0] == 0 else view.T
        if not (view.flags.c_contiguous or view.T.flags.c_contiguous):
            raise Irregular
        point, transposed = self._point(position, equation.outvars[0], None), not view.flags.c_contiguous
        self.entries.append(Entry(leaf, point, self.known[x], self.axes[x][0], True, transposed, view.shape))

    def _point(self, position: int, variable: Any, operand: int | None) -> int:
        """Number of the sum a variable ends in: the outputs have one derivative with respect to all its terms."""
        last, shape = variable, variable.aval.shape
        while len(self.uses.get(last, [])) == 1 and last not in self.jaxpr.outvars:
            (user,) = self.uses[last]
            if user.primitive.name not in SUMS or user.outvars[0].aval.shape != shape:
                break
            (last,) = user.outvars
        if last not in self.numbers:
            (axis,) = self.axes[variable]
            self.numbers[last] = len(self.points)
            self.points.append(Point(position, operand, axis, int(np.prod(shape)) // shape[axis]))
        return self.numbers[last]


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
    """The precision in which the outputs respond to the parameters.

    Values computed from the inputs or from constants alone do not matter to a product; their rounding does to a rank,
    since it makes independent what depends on each other exactly.

    Args:
        problem: the problem (shapes alone matter).
        of_inputs: include operations on the inputs, whose rounding changes outputs.
    """
    leaves, inputs = jax.tree.leaves(problem.params), jax.tree.leaves(problem.inputs)
    program = jax.make_jaxpr(problem.outputs)(problem.params, problem.inputs)
    found: Counter = Counter()
    _count_results(program.jaxpr, [True] * len(leaves) + [of_inputs] * len(inputs), found)
    eps = lambda dtype: float(jnp.finfo(dtype).eps)  # noqa: E731
    worst = max({dtype for _, dtype in found} | {leaf.dtype for leaf in leaves}, key=eps)
    names = Counter()
    for (name, dtype), count in found.items():
        if eps(dtype) > eps(problem.dtype) and name not in EXACT:
            names[name] += count
    return Precision(jnp.dtype(worst), tuple(name for name, _ in names.most_common()))


def _count_results(jaxpr: Any, inputs: Sequence[bool], found: Counter) -> list[bool]:
    """Counts (operation, dtype) of results that depend on the marked inputs; returns which outputs do."""
    marked = {v for v, depends in zip(jaxpr.invars, inputs, strict=True) if depends}
    depends = lambda v: not isinstance(v, Literal) and v in marked  # noqa: E731
    for equation in jaxpr.eqns:
        operands = [depends(v) for v in equation.invars]
        if not any(operands):
            continue
        if programs := inner_programs(equation):
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

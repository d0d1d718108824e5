r"""The layers of any JAX function: where each leaf of the parameters enters, with its inputs and the signals there.

The program of the derivative says where a leaf enters. A kernel multiplies a known input as a matrix, a table is read
at known rows, a gain is multiplied entry by entry, and a bias is added. All of a sample's positions share them. The
sums in which they end are the points at which they enter; what enters at one point is one layer. The program is traced
at two numbers of samples, which tells the samples' axis from all others.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal
from jaxtyping import Array, Float

from lngeom._programs import (
    SUMS,
    VIEWS,
    bind,
    growing_axes,
    has_reverse_rule_only,
    keeps_rows,
    signature,
    strided,
    uses,
    variables,
    written_out,
)
from lngeom.information._problem import Problem

WIDEST_TABLE = 8192
"""Rows of a table up to which its input is written as one of so many units."""


class Rearrangement(NamedTuple):
    """How a leaf becomes a matrix [D H]: its axes as they are in memory, the order of those, and the sizes.

    Attributes:
        shape: of the leaf.
        sizes: of the axes of the view.
        order: the axes of the view from the largest stride to the smallest.
        matrix: D and H.
    """

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    order: tuple[int, ...]
    matrix: tuple[int, int]

    def to_matrix(self, leaf: Array) -> Float[Array, "D H"]:
        """The leaf as a matrix."""
        found = leaf.reshape([self.sizes[k] for k in self.order])
        return found.transpose(np.argsort(self.order).tolist()).reshape(self.matrix)

    def to_leaf(self, matrix: Float[Array, "D H"]) -> Array:
        """The inverse."""
        return matrix.reshape(self.sizes).transpose(self.order).reshape(self.shape)


class Entry(NamedTuple):
    """One place where a leaf of the parameters enters.

    Attributes:
        leaf: its number.
        kind: "kernel", "table", "gain" or "bias".
        point: number of the sum it ends in.
        source: number of the variable it is multiplied by or read at, or None.
        source_rows: axes of that variable: samples, then positions; of a gain, once it has the shape of the point.
        features: axes of that variable with which a kernel is contracted.
        rows: axes of the point: samples, then the positions that share the leaf.
        place: how the leaf becomes a matrix [D H]; D = 1 for a gain and a bias.
    """

    leaf: int
    kind: str
    point: int
    source: int | None
    source_rows: tuple[int, ...]
    features: tuple[int, ...]
    rows: tuple[int, ...]
    place: Rearrangement


class Layers(NamedTuple):
    """Where parameters enter a function.

    Attributes:
        entries: all of them that are known.
        points: numbers of the variables, the sums in which entries end.
        unknown: numbers of the leaves that enter in a way that is not known; some may have entries, too.
        in_order: whether rows of all points are samples in the order of the outputs, as far as operations tell.
        program: signature, by which the same program is known again at another number of samples.
    """

    entries: tuple[Entry, ...]
    points: tuple[int, ...]
    unknown: tuple[int, ...]
    in_order: bool
    program: tuple

    def entering_once(self, leaves: int) -> "Layers":
        """The same with entries of those leaves alone that enter once; all others, of so many leaves, are unknown."""
        seen = [entry.leaf for entry in self.entries]
        unknown = tuple(k for k in range(leaves) if k in self.unknown or seen.count(k) != 1)
        return self._replace(entries=tuple(e for e in self.entries if e.leaf not in unknown), unknown=unknown)


class Irregular(ValueError):
    """The layers of a function cannot be read."""


def _linear_program(problem: Problem) -> tuple[ClosedJaxpr, list, Array]:
    """The program of (residuals, tangent) ↦ Jv with its inner programs written out, the residuals' values, and z."""
    z, linear = jax.linearize(problem.forward, problem.params)
    residuals, tree = jax.tree.flatten(linear)
    closed = jax.make_jaxpr(lambda r, v: jax.tree.unflatten(tree, r)(v))(residuals, problem.params)
    if has_reverse_rule_only(closed):
        raise Irregular(
            "the layers of a function are read from its forward derivative, and this one has a custom reverse rule "
            "alone: define it by jax.custom_jvp, or without a custom rule"
        )
    return written_out(closed, [*residuals, *jax.tree.leaves(problem.params)]), residuals, z


def find_layers(problem: Problem, limit: float = math.inf) -> Layers:
    """Where parameters enter, from shapes alone.

    Args:
        problem: whose function it is.
        limit: entries of a bias beyond which it counts as a table of positions.

    Raises:
        Irregular: if the function has a reverse rule alone, or its program depends on how many samples there are.
    """
    found, abstract = [], jax.eval_shape(lambda p: p, problem)

    def resized(leaf: jax.ShapeDtypeStruct, rows: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype, weak_type=leaf.weak_type)

    for rows in (2, 3):  # what differs tells the axis of samples
        few = jax.tree.map(lambda leaf, n=rows: resized(leaf, n), abstract.per_sample)
        jax.eval_shape(lambda p: found.append(_linear_program(p)[:2]), abstract.with_samples(few))
    (few, residuals), (more, others) = found
    if (len(residuals), signature(few.jaxpr)) != (len(others), signature(more.jaxpr)):
        raise Irregular("the function's program depends on how many samples it is given: its layers cannot be read")
    return _Reader(few.jaxpr, more.jaxpr, len(residuals), jax.tree.leaves(problem.params), limit).layers()


class _Unknown(Exception):
    """A leaf enters in a way that is not known here."""


class _Reader:
    """Follows each leaf through the equations until it enters.

    Attributes:
        numbers: of all variables.
        axes: for each variable, the axes that grow with the number of samples.
        leaves: for each variable that is a rearranged leaf, its number and a view with its strides.
        known: variables that do not depend on the tangent.
    """

    def __init__(self, few: Any, more: Any, residuals: int, leaves: list, limit: float):
        self.jaxpr, self.limit = few, limit
        self.shapes = [leaf.shape for leaf in leaves]
        self.numbers = {v: k for k, v in enumerate(variables(few))}
        self.axes = growing_axes(variables(few), variables(more))
        self.known = {*few.constvars, *few.invars[:residuals]}
        self.leaves = strided(few.invars[residuals:], self.shapes)
        self.uses = uses(few)
        self.points: list[Any] = []
        self.entries: list[Entry] = []

    def layers(self) -> Layers:
        unknown, in_order = set(), True
        for equation in self.jaxpr.eqns:
            in_order = in_order and keeps_rows(equation, self.axes)
            operands = [k for k, v in enumerate(equation.invars) if not isinstance(v, Literal) and v in self.leaves]
            if not operands:
                if all(isinstance(v, Literal) or v in self.known for v in equation.invars):
                    self.known.update(equation.outvars)
                continue
            try:
                if len(operands) > 1:
                    raise _Unknown
                self._read(equation, operands[0])
            except (_Unknown, ValueError, TypeError):
                unknown |= {self.leaves[equation.invars[k]][0] for k in operands}
        unknown |= {self.leaves[v][0] for v in self.jaxpr.outvars if not isinstance(v, Literal) and v in self.leaves}
        points = tuple(self.numbers[v] for v in self.points)
        return Layers(tuple(self.entries), points, tuple(sorted(unknown)), in_order, signature(self.jaxpr))

    def _read(self, equation: Any, operand: int) -> None:
        name, out = equation.primitive.name, equation.outvars[0]
        leaf, view = self.leaves[equation.invars[operand]]
        unchanged = name == "convert_element_type" and out.aval.dtype == equation.invars[operand].aval.dtype
        if unchanged or name in VIEWS:
            view = view if unchanged else VIEWS[name](view, **equation.params)
            if not self.axes[out]:
                self.leaves[out] = (leaf, view)
                return
            self._entrywise(leaf, view, None, out)
        elif name == "mul":
            other = equation.invars[1 - operand]
            if isinstance(other, Literal) or other not in self.known or self.axes[other] != self.axes[out]:
                raise _Unknown
            self._entrywise(leaf, np.broadcast_to(view, out.aval.shape), other, out)
        elif name in SUMS:
            self._entrywise(leaf, np.broadcast_to(view, out.aval.shape), None, out)
        elif name == "dot_general":
            self._kernel(leaf, view, equation, operand)
        elif name == "gather" and operand == 0:
            self._table(leaf, view, equation)
        else:
            raise _Unknown

    def _entrywise(self, leaf: int, view: np.ndarray, source: Any, out: Any) -> None:
        (axis,) = self.axes[out]
        others = [k for k in range(view.ndim) if k != axis]
        shared = [k for k in others if view.strides[k] == 0 and view.shape[k] > 1]
        units = [k for k in others if k not in shared]
        if view.strides[axis] != 0 and view.shape[axis] > 1:
            raise _Unknown
        if source is None and not shared and len(units) > 1 and math.prod(self.shapes[leaf]) > self.limit:
            *positions, unit = units  # a table of positions, each read once
            rows = (axis, *positions)
            place = self._place(leaf, view, [axis], positions, [unit])
            self.entries.append(Entry(leaf, "table", self._point(out), None, (), (), rows, place))
            return
        rows = (axis, *shared)
        kind = "bias" if source is None else "gain"
        place = self._place(leaf, view, [axis, *shared], [], units)
        number = None if source is None else self.numbers[source]
        self.entries.append(Entry(leaf, kind, self._point(out), number, rows, (), rows, place))

    def _kernel(self, leaf: int, view: np.ndarray, equation: Any, operand: int) -> None:
        (contracted, batch), x = equation.params["dimension_numbers"], equation.invars[1 - operand]
        mine, theirs = contracted[operand], contracted[1 - operand]
        out = equation.outvars[0]
        if isinstance(x, Literal) or x not in self.known or any(batch) or len(self.axes[x]) != 1:
            raise _Unknown
        (axis,) = self.axes[x]
        free = [k for k in range(x.aval.ndim) if k not in theirs]
        if axis not in free:
            raise _Unknown
        rest = [k for k in range(view.ndim) if k not in mine]
        before = 0 if operand == 1 else len(rest)  # where the axes of x stand in the result
        ordered = [axis, *(k for k in free if k != axis)]
        rows = tuple(before + free.index(k) for k in ordered)
        place = self._place(leaf, view, [], mine, rest)
        point, source = self._point(out), self.numbers[x]
        self.entries.append(Entry(leaf, "kernel", point, source, tuple(ordered), tuple(theirs), rows, place))

    def _table(self, leaf: int, view: np.ndarray, equation: Any) -> None:
        indices, out, numbers = equation.invars[1], equation.outvars[0], equation.params["dimension_numbers"]
        last = out.aval.ndim - 1
        plain = (
            view.ndim == 2
            and numbers.offset_dims == (last,)
            and tuple(numbers.collapsed_slice_dims) == tuple(numbers.start_index_map) == (0,)
            and equation.params["slice_sizes"] == (1, view.shape[1])
        )
        if not plain or indices not in self.known or len(self.axes[out]) != 1 or len(view) > WIDEST_TABLE:
            raise _Unknown
        (axis,) = self.axes[out]
        rows = (axis, *(k for k in range(last) if k != axis))
        place = self._place(leaf, view, [], [0], [1])
        self.entries.append(Entry(leaf, "table", self._point(out), self.numbers[indices], rows, (), rows, place))

    def _place(
        self, leaf: int, view: np.ndarray, shared: Sequence[int], first: Sequence[int], then: Sequence[int]
    ) -> Rearrangement:
        """How the leaf becomes a matrix of its axes `first` by its axes `then`."""
        view = view.transpose([*shared, *first, *then])[(0,) * len(shared)]
        strides = [s if n > 1 else 0 for s, n in zip(view.strides, view.shape, strict=True)]
        order = sorted(range(view.ndim), key=lambda k: -strides[k])
        expected, ordered = 1, [k for k in order if view.shape[k] > 1]
        for k in reversed(ordered):
            if strides[k] != expected:
                raise _Unknown
            expected *= view.shape[k]
        if expected != math.prod(self.shapes[leaf]):
            raise _Unknown
        sizes = tuple(view.shape)
        D = math.prod(sizes[: len(first)])
        return Rearrangement(self.shapes[leaf], sizes, tuple(order), (D, math.prod(sizes) // D))

    def _point(self, variable: Any) -> int:
        """Number of the sum a variable ends in: the outputs have one derivative with respect to all its terms."""
        last, shape = variable, variable.aval.shape
        while len(self.uses.get(last, [])) == 1 and last not in self.jaxpr.outvars:
            (user,) = self.uses[last]
            if user.primitive.name not in SUMS or user.outvars[0].aval.shape != shape:
                break
            (last,) = user.outvars
        if last not in self.points:
            self.points.append(last)
        return self.points.index(last)


class Evaluated(NamedTuple):
    """The layers at some samples.

    Attributes:
        outputs: z.
        sources: by entry: x [N P D] of a kernel, and of a table ([1 P D] of positions), x [N P H] of a gain, None of a
            bias.
        pull: cotangent of z ↦ by point, the derivative by what enters there.
        entries: the layers' entries.
    """

    outputs: Array
    sources: tuple[Array | None, ...]
    pull: Any
    entries: tuple[Entry, ...]

    def signals(self, cotangent: Array) -> list[Float[Array, "N P H"]]:
        """Of each entry, the derivative by what it adds, at each position that shares it."""
        found = self.pull(cotangent)
        return [_split(found[entry.point], entry.rows) for entry in self.entries]


def _split(array: Array, rows: tuple[int, ...], columns: tuple[int, ...] | None = None) -> Float[Array, "N P H"]:
    """Rows first, samples before positions, and what is left as one axis."""
    rest = [k for k in range(array.ndim) if k not in rows] if columns is None else list(columns)
    sizes = [array.shape[k] for k in rows]
    return array.transpose([*rows, *rest]).reshape(sizes[0], math.prod(sizes[1:]), -1)


def evaluate(problem: Problem, layers: Layers) -> Evaluated:
    """The layers' inputs at the samples held here, and the transposed derivative.

    Raises:
        Irregular: if the function's program at this number of samples is another.
    """
    closed, residuals, z = _linear_program(problem)
    jaxpr = closed.jaxpr
    if signature(jaxpr) != layers.program:
        raise Irregular(
            f"the function's program at {problem.rows} samples is another than at 2 and 3: its layers cannot be read"
        )
    everything = variables(jaxpr)
    points = [everything[k] for k in layers.points]
    start = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *residuals], strict=False))
    known = _run(jaxpr, start)
    tangent = {v: jnp.zeros(v.aval.shape, v.aval.dtype) for v in jaxpr.invars[len(residuals) :]}

    def after(values: list[Array]) -> Array:
        return _run(jaxpr, known | tangent, dict(zip(points, values, strict=True)))[jaxpr.outvars[0]]

    transposed = jax.linear_transpose(after, [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in points])
    values = (None if entry.source is None else known[everything[entry.source]] for entry in layers.entries)
    shapes = (points[entry.point].aval.shape for entry in layers.entries)
    sources = tuple(map(_source, layers.entries, values, shapes))
    return Evaluated(z, sources, lambda cotangent: transposed(cotangent)[0], layers.entries)


def _run(jaxpr: Any, start: dict, added: dict | None = None) -> dict:
    """Values of all variables that depend on what is given alone; something may be added to some of them."""
    values, added = dict(start), added or {}
    for equation in jaxpr.eqns:
        operands = [v.val if isinstance(v, Literal) else values.get(v) for v in equation.invars]
        if equation.outvars[0] not in values and all(v is not None for v in operands):
            values.update(zip(equation.outvars, bind(equation, operands), strict=True))
            out = equation.outvars[0]
            if out in added:
                values[out] = values[out] + added[out]
    return values


def _source(entry: Entry, value: Array | None, shape: tuple[int, ...]) -> Array | None:
    """x of an entry, from the value of the variable it is multiplied by or read at, and the shape of its point."""
    count = entry.place.matrix[0]
    if value is None:  # a bias; of a table each position reads its own row
        return None if entry.kind == "bias" else jnp.eye(count)[None]
    if entry.kind == "kernel":
        return _split(value, entry.source_rows, entry.features)
    if entry.kind == "gain":
        return _split(jnp.broadcast_to(value, shape), entry.source_rows)
    indices = value[..., 0]
    ordered = indices.transpose(entry.source_rows).reshape(indices.shape[entry.source_rows[0]], -1)
    return jax.nn.one_hot(ordered, count)  # rows beyond the table are zeros, as a gather drops them

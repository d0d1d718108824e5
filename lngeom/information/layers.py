r"""The layers of any JAX function: where each leaf of the parameters enters, with its inputs and the signals there.

The program of the derivative says where a leaf enters. A kernel multiplies a known input as a matrix or is convolved
with it, a table is read at known rows, a gain is multiplied entry by entry, and a bias is added. All of a sample's
positions share them. The sums in which they end are the points at which they enter; what enters at one point is one
layer. The program is traced at two numbers of samples, which tells the samples' axis from all others.

A convolution is a kernel too: its input at a position is the patch of entries that the window covers there
(arXiv:1602.01407).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal
from jaxtyping import Array, Float

from lngeom._core.programs import (
    CASTS,
    SUMS,
    VIEWS,
    growing_axes,
    inner_programs,
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

UNUSED = "no output depends on it"
"""The reason for a leaf that does not enter at all: its part of F is 0."""

FEW, MORE = 2, 3
"""Numbers of samples at which the program is traced: what differs tells the axis of samples."""


class Rearrangement(NamedTuple):
    """How a leaf becomes a matrix [D H], or G of them: its axes as they are in memory, the order of those, and sizes.

    Attributes:
        shape: of the leaf.
        sizes: of the axes of the view.
        order: the axes of the view from the largest stride to the smallest.
        matrix: D and H; G, D and H where the leaf is G matrices, each with inputs and outputs of its own.
        start: position of the first entry in the ravelled leaf, where a part of it is the matrix.
    """

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    order: tuple[int, ...]
    matrix: tuple[int, ...]
    start: int = 0

    @property
    def stop(self) -> int:
        """Position after the last entry."""
        return self.start + math.prod(self.sizes)

    def to_matrix(self, leaf: Array) -> Float[Array, "*G D H"]:
        """The leaf, or the part of it, as a matrix."""
        found = leaf.reshape(-1)[self.start : self.stop].reshape([self.sizes[k] for k in self.order])
        return found.transpose(np.argsort(self.order).tolist()).reshape(self.matrix)

    def to_piece(self, matrix: Float[Array, "*G D H"]) -> Float[Array, " p"]:
        """The matrix as a piece of the ravelled leaf, from `start` to `stop`."""
        return matrix.reshape(self.sizes).transpose(self.order).reshape(-1)


class Window(NamedTuple):
    """What a convolution does beside multiplying (names as of `jax.lax.conv_general_dilated`)."""

    filter_shape: tuple[int, ...]
    window_strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    dimension_numbers: Any

    def patches(self, inputs: Array) -> Array:
        """The entries that the window covers at each position, in the place of channels: channels first, then offsets.

        All numbers are those of the inputs: each is multiplied by 1 and added to zeros.
        """
        return jax.lax.conv_general_dilated_patches(inputs, **self._asdict(), precision=jax.lax.Precision.HIGHEST)


class Entry(NamedTuple):
    """One place where a leaf of the parameters enters.

    Attributes:
        leaf: its number.
        kind: "kernel", "table", "gain" or "bias".
        point: number of the sum it ends in.
        rows: axes of the point: samples, then the positions that share the leaf.
        columns: axes of the point along which the leaf's outputs lie.
        place: how the leaf becomes a matrix [D H]; D = 1 for a gain and a bias.
        source: number of the variable it is multiplied by or read at, or None.
        source_rows: axes of that variable, or of its patches: samples, then positions; of a gain, once it has the
            shape of what it is multiplied to.
        features: axes of that variable with which a kernel is contracted, after those of separate groups.
        product: number of the variable that is the product.
        window: of a convolution.
        inner: positions that share the axis of samples, [N P] as one axis; 1 where it has samples alone.
        factors: by which the leaf was multiplied before; numbers of variables as int.
        clipped: whether a table is read at its first or last row for indices before or beyond all rows.
    """

    leaf: int
    kind: str
    point: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    place: Rearrangement
    source: int | None = None
    source_rows: tuple[int, ...] = ()
    features: tuple[int, ...] = ()
    product: int | None = None
    window: Window | None = None
    inner: int = 1
    factors: tuple[float | int, ...] = ()
    clipped: bool = False

    def split(self, array: Array, rows: tuple[int, ...], columns: tuple[int, ...]) -> Float[Array, "N P *G H"]:
        """The array with samples first, then positions, then its columns as one axis or, of G groups, as two."""
        rest = [k for k in range(array.ndim) if k not in {*rows, *columns}]  # all of one entry
        sizes = [array.shape[k] for k in rows]
        groups = self.place.matrix[:-2]
        width = math.prod(array.shape[k] for k in columns) // math.prod(groups)
        shape = (sizes[0] // self.inner, self.inner * math.prod(sizes[1:]), *groups, width)
        return array.transpose([*rows, *columns, *rest]).reshape(shape)


class Layers(NamedTuple):
    """Where parameters enter a function.

    Attributes:
        entries: all of them that are known.
        points: numbers of the variables, the sums in which entries end.
        unknown: numbers of the leaves that enter in a way that is not known; some may have entries, too.
        reasons: for each of these, what is not known.
        in_order: whether rows of all points are samples in the order of the outputs, as far as operations tell.
        inputs: numbers that the inputs of all entries have for one sample.
        signals: numbers that their signals have for one sample and row.
        program: signature, by which the same program is known again at another number of samples.
        unrolled: steps up to which loops were written out.
    """

    entries: tuple[Entry, ...]
    points: tuple[int, ...]
    unknown: tuple[int, ...]
    reasons: tuple[str, ...]
    in_order: bool
    inputs: int
    signals: int
    program: tuple
    unrolled: int

    def by_piece(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """For each piece of a leaf, by leaf and start, the numbers of its entries: places where it is used."""
        found: dict[tuple[int, int], tuple[int, ...]] = {}
        for k, entry in enumerate(self.entries):
            piece = entry.leaf, entry.place.start
            found[piece] = (*found.get(piece, ()), k)
        return found

    def readable(self, problem: Problem) -> "Layers":
        """The same with entries of those leaves alone all of whose pieces are used in one way; others are unknown.

        A piece that enters at several places, always as the same matrix, has the positions of all of them.
        """
        reasons = dict(zip(self.unknown, self.reasons, strict=True))
        pieces = sorted(self.by_piece().items())
        for k, (shape, _) in enumerate(problem.layout.leaves):
            mine = [[self.entries[i] for i in members] for (leaf, _), members in pieces if leaf == k]
            ends = [0, *(uses[0].place.stop for uses in mine)]
            if not mine:
                reasons.setdefault(k, UNUSED)
            elif any(len({(use.kind, use.place, use.window) for use in uses}) > 1 for uses in mine):
                reasons.setdefault(k, f"it enters in different ways at {max(map(len, mine))} places")
            elif [uses[0].place.start for uses in mine] != ends[:-1] or ends[-1] != math.prod(shape):
                reasons.setdefault(k, "some parts of it enter, and others do not or in several ways")
        return self.without(reasons)

    def without(self, reasons: dict[int, str]) -> "Layers":
        """The same where the leaves that are named, with reasons, are unknown."""
        reasons = reasons | dict(zip(self.unknown, self.reasons, strict=True))
        unknown = tuple(sorted(reasons))
        entries = tuple(entry for entry in self.entries if entry.leaf not in reasons)
        return self._replace(entries=entries, unknown=unknown, reasons=tuple(reasons[k] for k in unknown))


class Irregular(ValueError):
    """The layers of a function cannot be read."""


def linear_program(problem: Problem, unrolled: int) -> tuple[ClosedJaxpr, list, Array]:
    """The program of (residuals, tangent) ↦ Jv with its inner programs written out, the residuals' values, and z.

    Loops of up to so many steps are written out, too.
    """
    z, linear = jax.linearize(problem.forward, problem.params)
    residuals, tree = jax.tree.flatten(linear)
    closed = jax.make_jaxpr(lambda r, v: jax.tree.unflatten(tree, r)(v))(residuals, problem.params)
    return written_out(closed, [*residuals, *jax.tree.leaves(problem.params)], unrolled), residuals, z


def find_layers(problem: Problem, limit: float = math.inf, unrolled: int = 0) -> Layers:
    """Where parameters enter, from shapes alone.

    Args:
        problem: whose function it is.
        limit: entries of a bias beyond which it counts as a table of positions.
        unrolled: steps up to which loops are written out, so that what enters in them is read.

    Raises:
        Irregular: if the function's program depends on how many samples there are.
    """
    found, abstract = [], jax.eval_shape(lambda p: p, problem)

    def resized(leaf: jax.ShapeDtypeStruct, rows: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype, weak_type=leaf.weak_type)

    for rows in (FEW, MORE):
        few = jax.tree.map(lambda leaf, n=rows: resized(leaf, n), abstract.per_sample)
        jax.eval_shape(lambda p: found.append(linear_program(p, unrolled)[:2]), abstract.with_samples(few))
    (few, residuals), (more, others) = found
    if (len(residuals), signature(few.jaxpr)) != (len(others), signature(more.jaxpr)):
        raise Irregular("the function's program depends on how many samples it is given: its layers cannot be read")
    reader = _Reader(few.jaxpr, more.jaxpr, len(residuals), jax.tree.leaves(problem.params), limit)
    return reader.layers()._replace(unrolled=unrolled)


def _rearranged(name: str, view: np.ndarray, params: dict) -> np.ndarray:
    return view if name in CASTS else VIEWS[name](view, **params)


def _sliced(view: np.ndarray, start_indices: Any, limit_indices: Any, strides: Any) -> np.ndarray:
    steps = [1] * view.ndim if strides is None else strides
    return view[tuple(map(slice, start_indices, limit_indices, steps))]


def _is_complex(variable: Any) -> bool:
    return jnp.issubdtype(variable.aval.dtype, jnp.complexfloating)


class _Unknown(Exception):
    """A leaf enters in a way that is not known here."""


class _Reader:
    """Follows each leaf through the equations until it enters.

    Attributes:
        in_order: whether operations leave the samples in their order.
        numbers: of all variables.
        axes: for each variable, the axes that grow with the number of samples.
        leaves: for each variable that is a rearranged leaf, its number and a view with its strides.
        known: variables that do not depend on the tangent.
        reasons: for each leaf that enters in a way that is not known, what that is.
        factors: for each variable that is a multiple of a rearranged leaf, the factors.
    """

    def __init__(self, few: Any, more: Any, residuals: int, leaves: list, limit: float):
        self.jaxpr, self.limit = few, limit
        self.in_order = keeps_rows(few, more)
        self.shapes = [leaf.shape for leaf in leaves]
        self.numbers = {v: k for k, v in enumerate(variables(few))}
        self.axes = growing_axes(variables(few), variables(more))
        self.known = {*few.constvars, *few.invars[:residuals]}
        self.leaves = strided(few.invars[residuals:], self.shapes)
        self.first = {k: view.__array_interface__["data"][0] for k, view in self.leaves.values()}
        self.uses = uses(few)
        self.points: list[Any] = []
        self.entries: list[Entry] = []
        self.reasons: dict[int, str] = {}
        self.factors: dict[Any, tuple[float | int, ...]] = {}

    def layers(self) -> Layers:
        in_order = self.in_order
        for equation in self.jaxpr.eqns:
            operands = [k for k, v in enumerate(equation.invars) if not isinstance(v, Literal) and v in self.leaves]
            if not operands:
                if all(isinstance(v, Literal) or v in self.known for v in equation.invars):
                    self.known.update(equation.outvars)
                continue
            name, before = equation.primitive.name, len(self.entries)
            try:
                if inner_programs(equation):
                    steps = equation.params.get("length")
                    raise _Unknown(f"it enters in {name}" + (f" of {steps} steps" if steps else ""))
                if len(operands) > 1:
                    raise _Unknown(f"it meets another leaf in {name}")
                factors = self._read(equation, operands[0])
                self.entries[before:] = [entry._replace(factors=factors) for entry in self.entries[before:]]
            except (_Unknown, ValueError, TypeError) as error:
                reason = str(error) if isinstance(error, _Unknown) and error.args else f"it enters through {name}"
                for k in operands:
                    self.reasons.setdefault(self.leaves[equation.invars[k]][0], reason)
        for v in self.jaxpr.outvars:
            if not isinstance(v, Literal) and v in self.leaves:
                self.reasons.setdefault(self.leaves[v][0], "it is an output itself")
        merged = [] if in_order else [entry for entry in self.entries if entry.inner > 1]
        for entry in merged:
            self.reasons.setdefault(
                entry.leaf, "samples and positions share an axis, in another order than the outputs"
            )
        entries = tuple(entry for entry in self.entries if entry not in merged)
        unknown = tuple(sorted(self.reasons))
        return Layers(
            entries,
            tuple(self.numbers[v] for v in self.points),
            unknown,
            tuple(self.reasons[k] for k in unknown),
            in_order,
            sum(self._positions(entry) * math.prod(entry.place.matrix[:-1]) for entry in entries),
            sum(self._positions(entry) * math.prod(entry.place.matrix) // entry.place.matrix[-2] for entry in entries),
            signature(self.jaxpr),
            0,
        )

    def _positions(self, entry: Entry) -> int:
        """Number of the positions of a sample that share the leaf."""
        shape = self.points[entry.point].aval.shape
        return math.prod(shape[k] for k in entry.rows) // FEW

    def _read(self, equation: Any, operand: int) -> tuple[float | int, ...]:
        """Adds what an equation says of a leaf; returns the factors with which the leaf is multiplied after it."""
        name, out = equation.primitive.name, equation.outvars[0]
        if _is_complex(out):
            raise _Unknown("it becomes complex")
        leaf, view = self.leaves[equation.invars[operand]]
        factors = (*self.factors.get(equation.invars[operand], ()), *self._multiples(equation, operand))
        if len(factors) > len(self.factors.get(equation.invars[operand], ())) and not self.axes[out]:
            self.leaves[out], self.factors[out] = (leaf, view), factors
            return factors
        if name in CASTS or name in VIEWS or name == "slice":
            view = _sliced(view, **equation.params) if name == "slice" else _rearranged(name, view, equation.params)
            if not self.axes[out]:
                self.leaves[out], self.factors[out] = (leaf, view), factors
                return factors
            self._entrywise(leaf, view, None, out)
        elif name == "mul":
            other = equation.invars[1 - operand]
            if isinstance(other, Literal) or other not in self.known or self.axes[other] != self.axes[out]:
                raise _Unknown
            self._entrywise(leaf, np.broadcast_to(view, out.aval.shape), other, out)
        elif name in (*SUMS, "sub"):
            self._entrywise(leaf, np.broadcast_to(view, out.aval.shape), None, out)
        elif name == "dot_general":
            self._kernel(leaf, view, equation, operand)
        elif name == "conv_general_dilated" and operand == 1:
            self._convolution(leaf, view, equation)
        elif name == "gather" and operand == 0:
            self._table(leaf, view, equation)
        else:
            raise _Unknown
        return factors

    def _multiples(self, equation: Any, operand: int) -> list[float | int]:
        """The factor by which an operation multiplies a leaf; none, or one number."""
        name, others = equation.primitive.name, [v for k, v in enumerate(equation.invars) if k != operand]
        if name == "neg" or (name == "sub" and operand == 1):
            return [-1.0]
        if name not in {"mul", "div"} or len(others) != 1 or others[0].aval.shape != ():
            return []
        if isinstance(others[0], Literal):
            return [float(others[0].val) if name == "mul" else 1 / float(others[0].val)]
        return [self.numbers[others[0]]] if name == "mul" and others[0] in self.known else []

    def _entrywise(self, leaf: int, view: np.ndarray, source: Any, out: Any) -> None:
        (axis,) = self.axes[out]
        others = [k for k in range(view.ndim) if k != axis]
        shared = [k for k in others if view.strides[k] == 0 and view.shape[k] > 1]
        units = [k for k in others if k not in shared]
        if view.strides[axis] != 0 and view.shape[axis] > 1:
            raise _Unknown
        if source is None and not shared and len(units) > 1 and math.prod(self.shapes[leaf]) > self.limit:
            *positions, unit = units  # a table of positions, each read once
            place = self._place(leaf, view, [axis], [], positions, [unit])
            self._enter(leaf, "table", out, (axis, *positions), (unit,), place)
            if self.entries[-1].inner > 1:
                raise _Unknown
            return
        rows = (axis, *shared)
        place = self._place(leaf, view, [axis, *shared], [], [], units)
        if source is None:
            self._enter(leaf, "bias", out, rows, tuple(units), place)
        else:
            self._enter(leaf, "gain", out, rows, tuple(units), place, source, rows, tuple(units))

    def _kernel(self, leaf: int, view: np.ndarray, equation: Any, operand: int) -> None:
        (contracted, batch), x = equation.params["dimension_numbers"], equation.invars[1 - operand]
        mine, theirs = contracted[operand], contracted[1 - operand]
        groups, their_groups = batch[operand], batch[1 - operand]
        if isinstance(x, Literal) or x not in self.known or len(self.axes[x]) != 1:
            raise _Unknown
        (axis,) = self.axes[x]
        free = [k for k in range(x.aval.ndim) if k not in theirs and k not in their_groups]
        if axis not in free:
            raise _Unknown
        rest = [k for k in range(view.ndim) if k not in mine and k not in groups]
        # axes of the result: of both, then of the first factor, then of the second
        x_first, rest_first = (len(rest), 0) if operand == 0 else (0, len(free))
        ordered = [axis, *(k for k in free if k != axis)]
        rows = tuple(len(groups) + x_first + free.index(k) for k in ordered)
        columns = (*range(len(groups)), *(len(groups) + rest_first + k for k in range(len(rest))))
        place = self._place(leaf, view, [], groups, mine, rest)
        features = (*their_groups, *theirs)
        self._enter(leaf, "kernel", equation.outvars[0], rows, columns, place, x, tuple(ordered), features)

    def _convolution(self, leaf: int, view: np.ndarray, equation: Any) -> None:
        params, x = equation.params, equation.invars[0]
        (batch, _, *_), (out, into, *offsets), (rows, column, *positions) = params["dimension_numbers"]
        if isinstance(x, Literal) or x not in self.known or self.axes[x] != (batch,) or params["batch_group_count"] > 1:
            raise _Unknown
        count, shape = params["feature_group_count"], view.shape
        view = view.transpose(out, into, *offsets)
        groups = [0] if count > 1 else []
        if groups:  # outputs of one group follow each other
            view = view.reshape(count, -1, *view.shape[1:], copy=False)
        first = range(len(groups) + 1, view.ndim)
        place = self._place(leaf, view, [], groups, first, [len(groups)])
        given = {name: params[name] for name in Window._fields if name in params}
        window = Window(tuple(shape[k] for k in offsets), **given)
        rows = (rows, *positions)
        self._enter(leaf, "kernel", equation.outvars[0], rows, (column,), place, x, rows, (column,), window)

    def _table(self, leaf: int, view: np.ndarray, equation: Any) -> None:
        indices, out, numbers = equation.invars[1], equation.outvars[0], equation.params["dimension_numbers"]
        last = out.aval.ndim - 1
        plain = (
            view.ndim == 2
            and numbers.offset_dims == (last,)
            and tuple(numbers.collapsed_slice_dims) == tuple(numbers.start_index_map) == (0,)
            and equation.params["slice_sizes"] == (1, view.shape[1])
        )
        if not plain or indices not in self.known or len(self.axes[out]) != 1:
            raise _Unknown
        if len(view) > WIDEST_TABLE:
            raise _Unknown(f"it is a table of more than {WIDEST_TABLE:,} rows")
        (axis,) = self.axes[out]
        rows = (axis, *(k for k in range(last) if k != axis))
        self._enter(leaf, "table", out, rows, (last,), self._place(leaf, view, [], [], [0], [1]), indices, rows)
        clipped = equation.params["mode"] == jax.lax.GatherScatterMode.CLIP
        self.entries[-1] = self.entries[-1]._replace(clipped=clipped)

    def _enter(
        self,
        leaf: int,
        kind: str,
        product: Any,
        rows: tuple[int, ...],
        columns: tuple[int, ...],
        place: Rearrangement,
        source: Any = None,
        source_rows: tuple[int, ...] = (),
        features: tuple[int, ...] = (),
        window: Window | None = None,
    ) -> None:
        """Adds an entry; its rows and columns are axes of the product, and become those of its point."""
        inner = self._inner(product)
        last, axes = self._followed(product)
        if last not in self.points:
            self.points.append(last)
        point, moved = self.points.index(last), lambda old: tuple(axes[k] for k in old if k in axes)
        number = None if source is None else self.numbers[source]
        where = (number, source_rows, features, self.numbers[product], window, inner)
        self.entries.append(Entry(leaf, kind, point, moved(rows), moved(columns), place, *where))

    def _place(
        self,
        leaf: int,
        view: np.ndarray,
        shared: Sequence[int],
        groups: Sequence[int],
        first: Sequence[int],
        then: Sequence[int],
    ) -> Rearrangement:
        """How the leaf becomes matrices of its axes `first` by its axes `then`, one for each entry of `groups`."""
        view = view.transpose([*shared, *groups, *first, *then])[(0,) * len(shared)]
        start = view.__array_interface__["data"][0] - self.first[leaf]
        strides = [s if n > 1 else 0 for s, n in zip(view.strides, view.shape, strict=True)]
        order = sorted(range(view.ndim), key=lambda k: -strides[k])
        expected, ordered = 1, [k for k in order if view.shape[k] > 1]
        for k in reversed(ordered):
            if strides[k] != expected:
                raise _Unknown("a part of it enters")
            expected *= view.shape[k]
        sizes, edge = tuple(view.shape), len(groups) + len(first)
        G, D, H = (math.prod(part) for part in (sizes[: len(groups)], sizes[len(groups) : edge], sizes[edge:]))
        return Rearrangement(self.shapes[leaf], sizes, tuple(order), (G, D, H) if G > 1 else (D, H), start)

    def _followed(self, variable: Any) -> tuple[Any, dict[int, int]]:
        """The sum a variable ends in, and where its axes are there; those of one entry may be nowhere.

        The outputs have one derivative with respect to all terms of a sum, rearranged or cast as they may be.
        """
        shape = variable.aval.shape
        start = view = strided([variable], [shape])[variable][1]
        wide = [k for k, n in enumerate(shape) if n > 1]
        last, axes = variable, {k: k for k in wide}
        while len(self.uses.get(last, [])) == 1 and last not in self.jaxpr.outvars:
            (user,) = self.uses[last]
            name, out = user.primitive.name, user.outvars[0]
            subtracted = name == "sub" and user.invars[0] is last
            if name not in (*VIEWS, *CASTS, *SUMS) and not subtracted:
                break
            try:
                view = view if name in SUMS or subtracted else _rearranged(name, view, user.params)
            except ValueError:  # no view has these entries
                break
            if math.prod(out.aval.shape) != math.prod(shape):  # it is repeated, or broadcast in a sum
                break
            if _is_complex(out):  # its derivative is, too
                break
            found = {(s, n): k for k, (s, n) in enumerate(zip(view.strides, view.shape, strict=True)) if n > 1}
            if any((start.strides[k], shape[k]) not in found for k in wide):  # axes are joined or divided
                break
            axes = {k: found[start.strides[k], shape[k]] for k in wide}
            last = out
        return last, axes

    def _inner(self, variable: Any) -> int:
        """How many positions share the axis of samples, which must come first: [N P] as one axis."""
        (axis,) = self.axes[variable]
        size = variable.aval.shape[axis]
        if size == FEW:
            return 1
        seen = [variable]
        for v in seen:
            for user in self.uses.get(v, []):
                for out in user.outvars:
                    if len(self.axes[out]) != 1 or out in seen:
                        continue
                    (k,), shape = self.axes[out], out.aval.shape
                    if shape[k] == size:
                        seen.append(out)
                    elif user.primitive.name == "reshape" and shape[k] == FEW:
                        if math.prod(shape[:k]) != math.prod(v.aval.shape[: self.axes[v][0]]):
                            raise _Unknown("positions and samples share an axis, positions first")
                        return size // FEW
        raise _Unknown("samples share an axis with positions")

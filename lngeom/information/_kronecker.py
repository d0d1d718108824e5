r"""The factor's rows as outer products: for many vectors at once, and for the matrix.

A kernel's part of a sample's rows is $x_n \otimes m_{nr}$: a layer's input, and the derivative of the outputs with
respect to the layer's summed inputs. Kept apart, the two make the Gram matrix as many times cheaper as there are
outputs, and a product with many vectors a few large matrix products.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jaxtyping import Array, Float

from lngeom.information._contraction import evaluate, over_samples
from lngeom.information._entries import SUMS, Entry, Irregular, Program, Structure, trace_program
from lngeom.information._problem import Layout, Problem
from lngeom.information._pullback import metric
from lngeom.information._structured import unpacking


class KroneckerFactor(eqx.Module):
    r"""The factor $A$ of some samples.

    Attributes:
        inputs: x of each entry: [N D] of a kernel, [N H] of a gain, None of a bias.
        signals: m of each point, [N C H].
        structure: where parameters enter.
        layout: of a tangent.
    """

    inputs: tuple[Float[Array, "N D"] | None, ...]
    signals: tuple[Float[Array, "N C H"], ...]
    structure: Structure = eqx.field(static=True)
    layout: Layout = eqx.field(static=True)

    def gram_parts(self) -> tuple[Array, ...]:
        r"""Of each pair of groups $\sum_n (x_n \otimes x'_n)(m_n^\top m'_n)$, packed for a kernel with itself."""
        groups = [self._group(group) for group in _groups(self.structure)]
        return tuple(_pair(groups[i], groups[j], i == j) for i, j in _pairs(groups))

    def _group(self, group: tuple[int, ...]) -> tuple[Array | None, Array]:
        """x and m of a kernel, or None and the rows of all that is none, side by side."""
        x, rows = self.part(group[0])
        return x, rows if x is not None else jnp.concatenate([self.part(i)[1] for i in group], 2)

    def part(self, i: int) -> tuple[Array | None, Array]:
        """x and m of an entry; of a gain None and its part of the rows."""
        entry, x = self.structure.entries[i], self.inputs[i]
        m = self.signals[entry.point]
        return (x, m) if entry.kernel or x is None else (None, m * x[:, None, :])


def _pair(a: tuple[Array | None, Array], b: tuple[Array | None, Array], same: bool) -> Array:
    """The sum over samples of two groups."""
    (x, m), (y, k) = a, b
    if x is None and y is None:
        return over_samples(m.reshape(-1, m.shape[2]), k.reshape(-1, k.shape[2]))
    g = m.swapaxes(1, 2) @ k
    if same:
        assert x is not None
        return over_samples(_packed(x[:, :, None] * x[:, None, :]), _packed(g))
    one = jnp.ones((len(g), 1), g.dtype)
    x, y = (one if v is None else v for v in (x, y))
    return over_samples((x[:, :, None] * y[:, None, :]).reshape(len(g), -1), g.reshape(len(g), -1))


class BothWays(eqx.Module):
    """An array with its transpose, written out: as part of a matrix product it would be slower.

    Attributes:
        array: the array.
        transposed: the same with its last two axes swapped.
    """

    array: Float[Array, "*N A B"]
    transposed: Float[Array, "*N B A"]

    def __init__(self, array: Float[Array, "*N A B"]):
        self.array, self.transposed = array, jax.lax.optimization_barrier(array.swapaxes(-1, -2))


class FactorForMany(eqx.Module):
    """The factor laid out for products with many vectors, which are large matrix products throughout.

    A bias is one more row of a kernel that enters at the same point, whose input is 1, and what belongs to no kernel
    has its part of the rows written out.

    Attributes:
        inputs: x of each kernel and a 1 for each of its biases, [N D+B].
        signals: m of each kernel, [N C H].
        written: rows of all other leaves, [NC Q], or None.
        kernels: each kernel, and the leaves of its biases.
        others: each other leaf, and how many columns of `written` are its own.
        structure: where parameters enter.
        layout: of a tangent.
    """

    inputs: tuple[BothWays, ...]
    signals: tuple[BothWays, ...]
    written: BothWays | None
    kernels: tuple[tuple[Entry, tuple[int, ...]], ...] = eqx.field(static=True)
    others: tuple[tuple[int, int], ...] = eqx.field(static=True)
    structure: Structure = eqx.field(static=True)
    layout: Layout = eqx.field(static=True)

    def __init__(self, factor: KroneckerFactor):
        entries = list(zip(factor.structure.entries, factor.inputs, strict=True))
        kernels = [(entry, x) for entry, x in entries if entry.kernel and x is not None]
        hosts = {entry.point: k for k, (entry, _) in reversed(list(enumerate(kernels)))}
        biases, rows = [[] for _ in kernels], []
        for i, (entry, x) in enumerate(entries):
            if not entry.kernel and x is None and entry.point in hosts:
                biases[hosts[entry.point]].append(entry.leaf)
            elif not entry.kernel:
                m = factor.part(i)[1]
                rows.append((entry.leaf, m.reshape(-1, m.shape[2])))
        ones = [((0, 0), (0, len(leaves))) for leaves in biases]
        padded = [jnp.pad(x, pad, constant_values=1) for (_, x), pad in zip(kernels, ones, strict=True)]
        self.inputs = tuple(map(BothWays, padded))
        self.signals = tuple(BothWays(factor.signals[entry.point]) for entry, _ in kernels)
        self.written = BothWays(jnp.concatenate([m for _, m in rows], 1)) if rows else None
        self.kernels = tuple((entry, tuple(leaves)) for (entry, _), leaves in zip(kernels, biases, strict=True))
        self.others = tuple((leaf, m.shape[1]) for leaf, m in rows)
        self.structure, self.layout = factor.structure, factor.layout

    @property
    def held(self) -> int:
        """Numbers that a product holds for each vector."""
        return len(self.signals[0].array) * product_work(self.structure)[1]

    def products(self, vectors: Float[Array, "P K"]) -> Float[Array, "P K"]:
        """AᵀA V for the columns of a matrix: V → what enters each point → AV → AᵀAV."""
        edges, count = _edges(self.layout), vectors.shape[1]
        leaves = [vectors[a:b] for a, b in itertools.pairwise(edges)]
        images: Any = 0  # AV, [NC K]
        if self.written is not None:
            images = self.written.array @ jnp.concatenate([leaves[leaf] for leaf, _ in self.others])
        parts = list(zip(self.kernels, self.inputs, self.signals, strict=True))
        for (entry, biases), x, m in parts:
            v = leaves[entry.leaf]
            v = v.reshape(*entry.shape[::-1], count).swapaxes(0, 1) if entry.transposed else v
            v = v.reshape(entry.shape[0], -1)
            if biases:
                v = jnp.concatenate([v, *(leaves[leaf].reshape(1, -1) for leaf in biases)])
            images += (m.array @ (x.array @ v).reshape(len(m.array), -1, count)).reshape(-1, count)
        result: list[Any] = [jnp.zeros_like(leaf) for leaf in leaves]
        if self.written is not None:
            ends = np.cumsum([width for _, width in self.others])
            found = jnp.split(self.written.transposed @ images, ends[:-1])
            for (leaf, _), part in zip(self.others, found, strict=True):
                result[leaf] += part
        for (entry, biases), x, m in parts:
            pulled = m.transposed @ images.reshape(*m.array.shape[:2], count)
            found = x.transposed @ pulled.reshape(len(pulled), -1)
            v = found[: entry.shape[0]].reshape(*entry.shape, count)
            result[entry.leaf] += (v.swapaxes(0, 1) if entry.transposed else v).reshape(-1, count)
            for leaf, part in zip(biases, found[entry.shape[0] :], strict=True):
                result[leaf] += part.reshape(-1, count)
        return jnp.concatenate(result)


def kronecker_factor(problem: Problem, structure: Structure) -> KroneckerFactor:
    """The factor of the samples held here.

    Args:
        problem: the problem.
        structure: where its parameters enter.

    Returns:
        The factor.

    Raises:
        Irregular: if the program at this number of samples is another.
    """
    program = trace_program(problem)
    if program.names != structure.program:
        raise Irregular
    z, at = program.outputs, metric(problem, program.outputs)
    sums = [program.jaxpr.eqns[point.equation].outvars[0].aval for point in structure.points]
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in sums]
    pull = jax.linear_transpose(lambda points: _after(program, structure, points), shapes)

    def rows(array: Array, axis: int) -> Float[Array, "N K"]:
        return jnp.moveaxis(array, axis, 0).reshape(len(z), -1)

    def signals(basis: Float[Array, " C"]) -> list[Float[Array, "N H"]]:
        (parts,) = pull(at.transposed_sqrt(jnp.broadcast_to(basis[None, :], z.shape)))
        return [rows(part, point.sample_axis) for part, point in zip(parts, structure.points, strict=True)]

    found = jax.vmap(signals, out_axes=1)(jnp.eye(z.shape[1], dtype=z.dtype))
    read = lambda e: None if e.residual is None else rows(program.residuals[e.residual], e.sample_axis)  # noqa: E731
    inputs = tuple(map(read, structure.entries))
    widths = [entry.shape[0 if entry.kernel else 1] for entry in structure.entries]
    fits = all(x is None or x.shape[1] == width for x, width in zip(inputs, widths, strict=True))
    fits &= all(m.shape[2] == point.width for m, point in zip(found, structure.points, strict=True))
    if not fits or {array.dtype for array in (*found, *inputs) if array is not None} != {problem.dtype}:
        raise Irregular  # of one sample some shapes are others, and mixed dtypes round where the program says
    return KroneckerFactor(inputs, tuple(found), structure, problem.layout)


def _after(program: Program, structure: Structure, points: list[Array]) -> Array:
    """Jv as a function of what enters at the points, instead of v."""
    place = {(point.equation, point.operand): value for point, value in zip(structure.points, points, strict=True)}
    values: dict[Any, Any] = dict(zip(program.jaxpr.invars, program.residuals, strict=False))
    for position, equation in enumerate(program.jaxpr.eqns):
        if (position, None) in place:
            values[equation.outvars[0]] = place[position, None]
            continue
        operands = [v.val if isinstance(v, Literal) else values.get(v) for v in equation.invars]
        operands = [place.get((position, k), v) for k, v in enumerate(operands)]
        present = [v for v in operands if v is not None]
        if len(present) == 1 < len(operands) and equation.primitive.name in SUMS:
            values[equation.outvars[0]] = present[0]  # of a sum whose other term enters at an earlier point
        elif len(present) == len(operands):
            values.update(zip(equation.outvars, evaluate(equation, operands), strict=True))
    return values[program.jaxpr.outvars[0]]


def gram(structure: Structure, layout: Layout, parts: tuple[Array, ...]) -> Float[Array, "P P"]:
    """The matrix AᵀA, in the order of `ravel_pytree`, of `gram_parts` summed over all samples."""
    groups, edges = _groups(structure), _edges(layout)
    blocks: dict[tuple[int, int], Array] = {}
    for (i, j), part in zip(_pairs(groups), parts, strict=True):
        a, b = structure.entries[groups[i][0]], structure.entries[groups[j][0]]
        (d, h), (e, k) = _shape(structure, groups[i]), _shape(structure, groups[j])
        if i == j and a.kernel:
            part = part[unpacking(d)][:, :, unpacking(h)]
        order = ((2, 0) if a.transposed else (0, 2)) + ((3, 1) if b.transposed else (1, 3))
        blocks[i, j] = part.reshape(d, e, h, k).transpose(order).reshape(d * h, e * k)
        blocks[j, i] = blocks[i, j].T if i != j else blocks[i, j]
    places: list[list[tuple[int, slice]]] = [[] for _ in layout.leaves]  # of each leaf its group, and where in it
    for i, group in enumerate(groups):
        entries = [structure.entries[k] for k in group]
        ends = np.cumsum([0, *(math.prod(entry.shape) for entry in entries)]).tolist()
        for entry, (start, stop) in zip(entries, itertools.pairwise(ends), strict=True):
            places[entry.leaf].append((i, slice(start, stop)))

    def columns(i: int, leaf: int) -> Float[Array, "Q p"]:
        found = [blocks[i, j][:, part] for j, part in places[leaf]]
        none = (len(blocks[i, i]), edges[leaf + 1] - edges[leaf])
        return functools.reduce(jnp.add, found) if found else jnp.zeros(none, layout.dtype)

    leaves = range(len(layout.leaves))
    rows = [jnp.concatenate([columns(i, leaf) for leaf in leaves], 1) for i in range(len(groups))]
    matrix = jnp.zeros((layout.size, layout.size), layout.dtype)  # filled in place: joining rows copies all once more
    for leaf in leaves:
        for i, part in places[leaf]:
            matrix = matrix.at[edges[leaf] : edges[leaf + 1]].add(rows[i][part])
    return matrix


def gram_work(structure: Structure) -> tuple[int, int]:
    """Multiplications for one sample, and numbers held for it."""
    work = held = 0
    groups = _groups(structure)
    for i, j in _pairs(groups):
        (d, h), (e, k) = _shape(structure, groups[i]), _shape(structure, groups[j])
        work += d * e * h * k // (4 if i == j else 1) + structure.outputs * h * k
        held += d * e + h * k
    return work, held


def _groups(structure: Structure) -> list[tuple[int, ...]]:
    """The entries whose parts of the matrix are computed together: each kernel, and all that is no kernel."""
    kernels = [(i,) for i, entry in enumerate(structure.entries) if entry.kernel]
    others = tuple(i for i, entry in enumerate(structure.entries) if not entry.kernel)
    return [*kernels, others] if others else kernels


def _shape(structure: Structure, group: tuple[int, ...]) -> tuple[int, int]:
    """D and H of a kernel; 1 and the columns of all that is none."""
    shapes = [structure.entries[i].shape for i in group]
    return shapes[0][0], sum(h for _, h in shapes)


def product_work(structure: Structure) -> tuple[int, int]:
    """Multiplications for one sample and vector beyond those with kernels, and numbers held for both.

    Held are what enters each point, there and back, and AV. A sample's part of the factor is about as many numbers as
    there are such multiplications, and its inputs twice.
    """
    width = sum(point.width for point in structure.points)
    return 2 * structure.outputs * width, 2 * width + structure.outputs


def _edges(layout: Layout) -> list[int]:
    return [0, *np.cumsum([math.prod(shape) for shape, _ in layout.leaves]).tolist()]


def _pairs(groups: Sequence) -> list[tuple[int, int]]:
    return [(i, j) for i in range(len(groups)) for j in range(i, len(groups))]


def _packed(square: Float[Array, "N K K"]) -> Float[Array, "N K(K+1)/2"]:
    """The upper triangles."""
    size = square.shape[1]
    rows, columns = np.triu_indices(size)
    return square.reshape(len(square), -1)[:, rows * size + columns]

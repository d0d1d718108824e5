r"""The factor's rows as outer products: for many vectors at once, and for the matrix.

A kernel's part of a sample's rows is $x_n \otimes m_{nr}$: a layer's input, and the derivative of the outputs with
respect to the layer's summed inputs. Kept apart, the two make the Gram matrix as many times cheaper as there are
outputs, and a product with many vectors a few large matrix products.
"""

import itertools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jaxtyping import Array, Float

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

    def products(self, vectors: Float[Array, "P K"]) -> Float[Array, "P K"]:
        """AᵀA V for the columns of a matrix: V → what enters each point → AV → AᵀAV.

        Large matrix products throughout: a bias is one more row of a kernel that enters at the same point, whose input
        is 1, and what belongs to no kernel has its part of the rows written out.
        """
        edges, count = _edges(self.layout), vectors.shape[1]
        leaves = [vectors[a:b] for a, b in itertools.pairwise(edges)]
        samples, outputs, _ = self.signals[0].shape
        kernels, rows = self._kernels_and_rows()
        written = jnp.concatenate([m.reshape(samples * outputs, -1) for _, m in rows], 1) if rows else None
        images: Any = 0
        if written is not None:
            v = jnp.concatenate([leaves[leaf] for leaf, _ in rows])
            images = (written @ v).reshape(samples, outputs, count)
        for entry, biases, x in kernels:
            v = leaves[entry.leaf]
            v = v.reshape(*entry.shape[::-1], count).swapaxes(0, 1) if entry.transposed else v
            v = v.reshape(entry.shape[0], -1)
            if biases:
                v = jnp.concatenate([v, *(leaves[leaf].reshape(1, -1) for leaf in biases)])
            images += self.signals[entry.point] @ (x @ v).reshape(samples, -1, count)
        result: list[Any] = [jnp.zeros_like(leaf) for leaf in leaves]
        if written is not None:
            found = written.T @ images.reshape(samples * outputs, count)
            ends = np.cumsum([m.shape[2] for _, m in rows])
            for (leaf, _), part in zip(rows, jnp.split(found, ends[:-1]), strict=True):
                result[leaf] += part
        for entry, biases, x in kernels:
            found = _transpose(x) @ (_transpose(self.signals[entry.point]) @ images).reshape(samples, -1)
            v = found[: entry.shape[0]].reshape(*entry.shape, count)
            result[entry.leaf] += (v.swapaxes(0, 1) if entry.transposed else v).reshape(-1, count)
            for leaf, part in zip(biases, found[entry.shape[0] :], strict=True):
                result[leaf] += part.reshape(-1, count)
        return jnp.concatenate(result)

    def _kernels_and_rows(self) -> tuple[list[tuple[Entry, list[int], Array]], list[tuple[int, Array]]]:
        """Each kernel with the biases it takes along and its input, and rows [N C H] of all other leaves."""
        kernels, hosts, rows = [], {}, []
        for entry, x in zip(self.structure.entries, self.inputs, strict=True):
            if entry.kernel:
                assert x is not None
                hosts.setdefault(entry.point, len(kernels))
                kernels.append((entry, [], x))
        for i, (entry, x) in enumerate(zip(self.structure.entries, self.inputs, strict=True)):
            if not entry.kernel and x is None and entry.point in hosts:
                kernels[hosts[entry.point]][1].append(entry.leaf)
            elif not entry.kernel:
                rows.append((entry.leaf, self._part(i)[1]))
        kernels = [
            (entry, biases, jnp.pad(x, ((0, 0), (0, len(biases))), constant_values=1)) for entry, biases, x in kernels
        ]
        return kernels, rows

    def gram_parts(self) -> tuple[Array, ...]:
        r"""Of each pair of entries $\sum_n (x_n \otimes x'_n)(m_n^\top m'_n)$, packed for a kernel with itself."""
        return tuple(self._pair(i, j) for i, j in _pairs(self.structure))

    def _pair(self, i: int, j: int) -> Array:
        (x, m), (y, k) = self._part(i), self._part(j)
        if x is None and y is None:
            return m.reshape(-1, m.shape[2]).T @ k.reshape(-1, k.shape[2])
        g = m.swapaxes(1, 2) @ k
        if i == j:
            assert x is not None
            return _packed(x[:, :, None] * x[:, None, :]).T @ _packed(g)
        one = jnp.ones((len(g), 1), g.dtype)
        x, y = (one if v is None else v for v in (x, y))
        return (x[:, :, None] * y[:, None, :]).reshape(len(g), -1).T @ g.reshape(len(g), -1)

    def _part(self, i: int) -> tuple[Array | None, Array]:
        entry, x = self.structure.entries[i], self.inputs[i]
        m = self.signals[entry.point]
        return (x, m) if entry.kernel or x is None else (None, m * x[:, None, :])


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
    inputs = (None if e.residual is None else rows(program.residuals[e.residual], e.sample_axis) for e in structure[0])
    return KroneckerFactor(tuple(inputs), tuple(found), structure, problem.layout)


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
            found = equation.primitive.bind(*operands, **equation.primitive.get_bind_params(equation.params))
            found = found if equation.primitive.multiple_results else [found]
            values.update(zip(equation.outvars, found, strict=True))
    return values[program.jaxpr.outvars[0]]


def gram(structure: Structure, layout: Layout, parts: tuple[Array, ...]) -> Float[Array, "P P"]:
    """The matrix AᵀA, in the order of `ravel_pytree`, of `gram_parts` summed over all samples."""
    edges = _edges(layout)
    blocks: dict[tuple[int, int], Array] = {}

    def add(i: int, j: int, block: Array) -> None:
        blocks[i, j] = blocks[i, j] + block if (i, j) in blocks else block

    for (i, j), part in zip(_pairs(structure), parts, strict=True):
        a, b = structure.entries[i], structure.entries[j]
        (d, h), (e, k) = a.shape, b.shape
        if i == j and a.kernel:
            part = part[unpacking(d)][:, :, unpacking(h)]
        order = ((2, 0) if a.transposed else (0, 2)) + ((3, 1) if b.transposed else (1, 3))
        found = part.reshape(d, e, h, k).transpose(order).reshape(d * h, e * k)
        add(a.leaf, b.leaf, found)
        if i != j:
            add(b.leaf, a.leaf, found.T)
    leaves = range(len(layout.leaves))

    def block(i: int, j: int) -> Array:
        shape = (edges[i + 1] - edges[i], edges[j + 1] - edges[j])
        return blocks[i, j] if (i, j) in blocks else jnp.zeros(shape, layout.dtype)

    return jnp.concatenate([jnp.concatenate([block(i, j) for j in leaves], 1) for i in leaves])


def _transpose(value: Float[Array, "*N A B"]) -> Float[Array, "*N B A"]:
    """Written out: as part of a matrix product it would be slower."""
    return jax.lax.optimization_barrier(value.swapaxes(-1, -2))


def gram_work(structure: Structure) -> tuple[int, int]:
    """Multiplications for one sample, and numbers held for it."""
    work = held = 0
    for i, j in _pairs(structure):
        (d, h), (e, k) = structure.entries[i].shape, structure.entries[j].shape
        work += d * e * h * k // (4 if i == j else 1) + structure.outputs * h * k
        held += d * e + h * k
    return work, held


def product_work(structure: Structure) -> tuple[int, int]:
    """Multiplications for one sample and vector beyond those with kernels, and numbers held for both.

    Of every sample, whatever the number of vectors, as many numbers are held as there are such multiplications at most.
    """
    width = sum(point.width for point in structure.points)
    return 2 * structure.outputs * width, 2 * width + structure.outputs


def _edges(layout: Layout) -> list[int]:
    return [0, *np.cumsum([math.prod(shape) for shape, _ in layout.leaves]).tolist()]


def _pairs(structure: Structure) -> list[tuple[int, int]]:
    count = len(structure.entries)
    return [(i, j) for i in range(count) for j in range(i, count)]


def _packed(square: Float[Array, "N K K"]) -> Float[Array, "N K(K+1)/2"]:
    """The upper triangles."""
    size = square.shape[1]
    rows, columns = np.triu_indices(size)
    return square.reshape(len(square), -1)[:, rows * size + columns]

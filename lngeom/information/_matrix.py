r"""The factor $A = S^\top J / \sqrt N$ and the matrix $F = A^\top A$ as arrays.

Where parameters enter by kernels, gains and biases alone, the factor's rows are outer products and are never formed.
A kernel's part of a sample's rows is $x_n \otimes m_{nr}$: a layer's input, and the derivative of the outputs with
respect to the layer's summed inputs. Kept apart, the two make the matrix as many times cheaper as there are outputs.
Else the rows are formed and multiplied in block rows. A normalized GLM has a closed form.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lngeom._core.sums import over_samples
from lngeom._core.trees import Layout
from lngeom.information import _closed_form, reference
from lngeom.information._derivative import has_closed_form
from lngeom.information._layer_values import evaluate
from lngeom.information._planner import ASSEMBLED, fitting
from lngeom.information._problem import Problem
from lngeom.information._rows import convolved_layers, factor_rows, signals_of_rows
from lngeom.information._sharding import Placement, is_sharded, on_each_shard, sum_over_samples
from lngeom.information.layers import Entry, Irregular, Layers, Rearrangement, find_layers


@functools.partial(jax.jit, static_argnames=("at", "structured"))
def factor(problem: Problem, at: Placement, structured: bool = True) -> Float[Array, "NR P"]:
    """The whole factor; samples on several devices leave their rows there."""
    rows = functools.partial(factor_rows, layers=convolved_layers(problem, at) if structured else None)
    return on_each_shard(rows, problem, at, divided=True) if is_sharded(at, problem) else rows(problem)


def separable_layers(problem: Problem) -> Layers | None:
    """Where parameters enter; None unless a sample's rows of J are outer products, one for each entry of a leaf."""
    if problem.coupled or problem.scores is not None or len(problem.output_shape.shape) != 2:
        return None
    try:
        layers = find_layers(problem)
    except Irregular:
        return None
    separable = not layers.unknown and layers.in_order and all(map(_is_separable, layers.entries))
    return layers if separable else None


def _is_separable(entry: Entry) -> bool:
    """Whether it enters a sample once, as a kernel, or as a gain or bias whose entries are in order; no table does."""
    axes = [k for k in entry.place.order if entry.place.sizes[k] > 1]
    ordered = axes == sorted(axes)
    whole = (entry.place.start, entry.place.stop) == (0, math.prod(entry.place.shape))
    alone = whole and len(entry.rows) == entry.inner == 1 and len(entry.place.matrix) == 2
    return alone and (entry.kind == "kernel" or (entry.kind in {"gain", "bias"} and ordered))


class OuterProducts(eqx.Module):
    r"""The factor $A$ of some samples.

    Attributes:
        inputs: x of each entry: [N D] of a kernel, [N H] of a gain, None of a bias.
        signals: m of each entry, [N C H].
        layers: where parameters enter.
    """

    inputs: tuple[Float[Array, "N D"] | None, ...]
    signals: tuple[Float[Array, "N C H"], ...]
    layers: Layers = eqx.field(static=True)

    def gram_parts(self) -> tuple[Array, ...]:
        r"""Of each pair of groups $\sum_n (x_n \otimes x'_n)(m_n^\top m'_n)$, packed for a kernel with itself."""
        groups = [self._group(group) for group in _groups(self.layers)]
        return tuple(_pair(groups[i], groups[j], i == j) for i, j in _pairs(groups))

    def _group(self, group: tuple[int, ...]) -> tuple[Array | None, Array]:
        """x and m of a kernel, or None and the rows of gains and biases, side by side."""
        if self.layers.entries[group[0]].kind == "kernel":
            return self.inputs[group[0]], self.signals[group[0]]
        parts = [(self.signals[i], self.inputs[i]) for i in group]
        return None, jnp.concatenate([m if x is None else m * x[:, None, :] for m, x in parts], 2)


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


def outer_products(problem: Problem, layers: Layers) -> OuterProducts:
    """The factor of the samples held here; `Irregular` if the program at this number of samples is another."""
    found = evaluate(problem, layers)
    z, m = found.outputs, signals_of_rows(problem, found, axis=2)
    pairs = list(zip(layers.entries, found.sources, m, strict=True))
    fits = all(s.shape[:2] == (len(z), 1) and s.shape[3] == e.place.matrix[1] for e, _, s in pairs)
    fits &= all(x is None or x.shape == (len(z), 1, e.place.matrix[e.kind != "kernel"]) for e, x, _ in pairs)
    if not fits or {array.dtype for _, *both in pairs for array in both if array is not None} != {problem.dtype}:
        raise Irregular("shapes are others at this number of samples, or dtypes are not those of the parameters")
    inputs = tuple(None if x is None else x[:, 0] for x in found.sources)
    return OuterProducts(inputs, tuple(array[:, 0] for array in m), layers)


def gram(layers: Layers, layout: Layout, parts: tuple[Array, ...]) -> Float[Array, "P P"]:
    """The matrix AᵀA, in the order of `ravel_pytree`, of `gram_parts` summed over all samples."""
    groups, edges = _groups(layers), layout.edges
    blocks: dict[tuple[int, int], Array] = {}
    for (i, j), part in zip(_pairs(groups), parts, strict=True):
        a, b = (_place(layers, groups[k]) for k in (i, j))
        (d, h), (e, k) = a.matrix, b.matrix
        if i == j and layers.entries[groups[i][0]].kind == "kernel":
            part = part[_closed_form.unpacking(d)][:, :, _closed_form.unpacking(h)]
        matrices = part.reshape(d, e, h, k).transpose(0, 2, 1, 3).reshape(*a.sizes, *b.sizes)
        order = (*a.order, *(len(a.order) + axis for axis in b.order))
        blocks[i, j] = matrices.transpose(order).reshape(d * h, e * k)
        blocks[j, i] = blocks[i, j].T if i != j else blocks[i, j]
    places: list[list[tuple[int, slice]]] = [[] for _ in layout.leaves]  # of each leaf its group, and where in it
    for i, group in enumerate(groups):
        entries = [layers.entries[k] for k in group]
        ends = np.cumsum([0, *(math.prod(entry.place.matrix) for entry in entries)]).tolist()
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


def gram_work(layers: Layers, outputs: int) -> tuple[int, int]:
    """Multiplications for one sample of so many outputs, and numbers held for it."""
    work = held = 0
    groups = _groups(layers)
    for i, j in _pairs(groups):
        (d, h), (e, k) = (_place(layers, groups[k]).matrix for k in (i, j))
        work += d * e * h * k // (4 if i == j else 1) + outputs * h * k
        held += d * e + h * k
    return work, held


def _groups(layers: Layers) -> list[tuple[int, ...]]:
    """The entries whose parts of the matrix are computed together: each kernel, and all that is no kernel."""
    kernels = [(i,) for i, entry in enumerate(layers.entries) if entry.kind == "kernel"]
    others = tuple(i for i, entry in enumerate(layers.entries) if entry.kind != "kernel")
    return [*kernels, others] if others else kernels


def _place(layers: Layers, group: tuple[int, ...]) -> Rearrangement:
    """Where a kernel's matrix is in its leaf; all that is no kernel is one row."""
    if len(group) == 1:
        return layers.entries[group[0]].place
    shape = (1, sum(math.prod(layers.entries[i].place.matrix) for i in group))
    return Rearrangement(shape, shape, (0, 1), shape)


def _pairs(groups: Sequence) -> list[tuple[int, int]]:
    return [(i, j) for i in range(len(groups)) for j in range(i, len(groups))]


def _packed(square: Float[Array, "N K K"]) -> Float[Array, "N K(K+1)/2"]:
    """The upper triangles."""
    size = square.shape[1]
    rows, columns = np.triu_indices(size)
    return square.reshape(len(square), -1)[:, rows * size + columns]


BLOCKS = 8
"""Block rows of a symmetric product: 8 save 7/16 of the work and each is still a large matrix product."""

COLUMNS = 64
"""Columns of a block row at least."""


def upper_gram(rows: Float[Array, "R P"]) -> tuple[Float[Array, "p q"], ...]:
    """Block rows of rowsᵀ·rows, each from its diagonal block to the right."""
    blocks = fitting(COLUMNS, rows.shape[1], BLOCKS)
    edges = [rows.shape[1] * k // blocks for k in range(blocks + 1)]
    return tuple(over_samples(rows[:, a:b], rows[:, a:]) for a, b in itertools.pairwise(edges))


def symmetric(blocks: tuple[Float[Array, "p q"], ...]) -> Float[Array, "P P"]:
    """The symmetric matrix whose upper block rows these are."""
    size = blocks[0].shape[1]
    padded = [jnp.pad(block, ((0, 0), (size - block.shape[1], 0))) for block in blocks]
    upper = jnp.triu(jnp.concatenate(padded))
    return upper + jnp.triu(upper, 1).T


def _in_closed_form(problem: Problem, at: Placement) -> Float[Array, "P P"]:
    """Sums the parts of the mean that lie on each device, and in chunks where samples do not interact."""
    function = problem.model
    if function.printed:
        return reference.as_printed(function.model, problem.params, problem.inputs)

    def term(part: Problem) -> Float[Array, "P P"]:
        return _closed_form.dense(function.model, part.params, part.inputs, weights=part.weights, samples=part.samples)

    chunk = problem.rows if problem.coupled else max(at.chunk, ASSEMBLED)
    return sum_over_samples(term, problem, at._replace(chunk=chunk))


def _is_closed(problem: Problem, at: Placement) -> bool:
    if problem.scores is not None or not has_closed_form(problem):
        return False
    z = problem.output_shape
    if not problem.model.printed and jax.eval_shape(problem.family.metric_parts, z) is None:
        return False
    return not problem.model.printed or (problem.weights is None and not is_sharded(at, problem))


class Route(NamedTuple):
    """How the matrix is summed over samples.

    Attributes:
        layers: where parameters enter, to sum by outer products; None to form the factor's rows.
        chunk: samples at a time.
        convolved: the layers by which rows are formed, where there are convolutions.
    """

    layers: Layers | None
    chunk: int
    convolved: Layers | None = None

    def term(self, part: Problem) -> tuple[Array, ...]:
        """The sum over some samples, in parts."""
        if self.layers is None:
            return upper_gram(factor_rows(part, self.convolved))
        return outer_products(part, self.layers).gram_parts()

    def finish(self, problem: Problem, parts: tuple[Array, ...]) -> Float[Array, "P P"]:
        """The matrix of summed parts."""
        if self.layers is None:
            return symmetric(parts)
        return gram(self.layers, problem.layout, parts)


OVERHEAD = 16
"""Multiplications that writing and reading a number costs."""


def choose_route(problem: Problem, at: Placement) -> Route:
    """The cheaper route, by its multiplications and the numbers it holds; the factor's rows fit `at.chunk` samples."""
    layers = separable_layers(problem)
    if layers is not None:
        work, held = gram_work(layers, problem.rows_per_sample)
        rows = problem.rows_per_sample * problem.size
        if work + OVERHEAD * held < rows * (problem.size // 2 + OVERHEAD):
            return Route(layers, fitting(rows + held, at.chunk * rows))
    return Route(None, at.chunk, convolved_layers(problem, at))


@functools.partial(jax.jit, static_argnames=("at", "structured"))
def dense(problem: Problem, at: Placement, structured: bool = True) -> Float[Array, "P P"]:
    """The matrix, in the order of `ravel_pytree`; by the factor's rows alone unless `structured`."""
    if not structured:
        return _dense(problem, at, Route(None, at.chunk))
    if _is_closed(problem, at):
        return _in_closed_form(problem, at)
    return _first_possible(lambda route: _dense(problem, at, route), problem, at)


def _dense(problem: Problem, at: Placement, route: Route) -> Float[Array, "P P"]:
    return route.finish(problem, sum_over_samples(route.term, problem, at._replace(chunk=route.chunk)))


def _first_possible(build: Callable[[Route], Array], problem: Problem, at: Placement) -> Array:
    """By the chosen route; by the other if the function's program depends on how many samples it is given."""
    try:
        return build(choose_route(problem, at))
    except Irregular:
        return build(Route(None, at.chunk))


@functools.partial(jax.jit, static_argnames="route", donate_argnums=0)
def _accumulate(parts: tuple[Array, ...] | None, part: Problem, route: Route) -> tuple[Array, ...]:
    new = route.term(part)
    return new if parts is None else jax.tree.map(jnp.add, parts, new)


def dense_with_progress(problem: Problem, at: Placement) -> Float[Array, "P P"]:
    """The matrix, chunk by chunk on the host, with a progress bar on the terminal."""
    from rich.console import Console
    from rich.progress import track

    def build(route: Route) -> Float[Array, "P P"]:
        parts, console = None, Console(stderr=True)
        starts = range(0, problem.rows, route.chunk)
        quiet = not console.is_terminal
        for k in track(starts, "Fisher matrix", console=console, transient=True, disable=quiet):
            rows = jax.tree.map(lambda a, k=k: a[k : k + route.chunk], problem.per_sample)
            parts = jax.block_until_ready(_accumulate(parts, problem.with_samples(rows), route))
        assert parts is not None
        return route.finish(problem, parts)

    return _first_possible(build, problem, at)

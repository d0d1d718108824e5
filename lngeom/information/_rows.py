r"""Rows of the factor $A = S^\top J / \sqrt N$, with $F = A^\top A$: each is a transposed derivative of the outputs.

The derivatives by the kernels of convolutions, sample by sample, take XLA 3 to 70 times as long on a CPU as a product
of patches. In a model with convolutions rows are read from the layers therefore: a kernel's part of row r of sample n
is $\sum_p x_{np} \otimes m_{npr}$ over the positions p that share it, with inputs x of the layer (patches) and
derivatives m of the outputs by what it adds.
"""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lngeom._core.trees import leaf_paths
from lngeom.information._derivative import GLMFunction, Pullback, has_closed_form, metric
from lngeom.information._layer_values import Evaluated, evaluate, joined
from lngeom.information._planner import COUPLED_VECTORS
from lngeom.information._problem import Problem
from lngeom.information._sharding import Placement
from lngeom.information.layers import Entry, Irregular, Layers, find_layers

HELD = 4
"""Numbers that the layers of some samples may hold, times those of the rows of a chunk, for which there is memory."""


@functools.partial(jax.jit, static_argnames="layers", inline=True)
def factor_rows(problem: Problem, layers: Layers | None = None) -> Float[Array, "R P"]:
    """Rows of the factor for the samples held here, one after the other; traced once for all programs with them.

    From layers where they are given, and have the same program at this number of samples.
    """
    if problem.coupled:
        return _coupled_rows(problem)
    try:
        return _separate_rows(problem) if layers is None else _rows_of_layers(problem, layers)
    except Irregular:
        return _separate_rows(problem)


def _separate_rows(problem: Problem) -> Float[Array, "R P"]:
    def one_sample(per_sample: tuple) -> Float[Array, "r P"]:
        pullback = Pullback(problem.with_samples(jax.tree.map(lambda a: a[None], per_sample)))
        basis = jnp.eye(problem.rows_per_sample, dtype=pullback.metric.outputs.dtype)
        return jax.vmap(lambda y: problem.ravel(pullback.transposed_root(y)))(basis)

    rows = problem.rows * problem.rows_per_sample
    return jax.vmap(one_sample)(problem.per_sample).reshape(rows, problem.size)


def _coupled_rows(problem: Problem) -> Float[Array, "R P"]:
    pullback, total = Pullback(problem), problem.rows * problem.rows_per_sample
    if total <= problem.size:

        def row(k: Array) -> Float[Array, " P"]:
            y = jnp.zeros(total, pullback.metric.outputs.dtype).at[k].set(1)
            return problem.ravel(pullback.transposed_root(y))

        return jax.lax.map(row, jnp.arange(total), batch_size=min(COUPLED_VECTORS, total))

    def column(k: Array) -> Float[Array, " R"]:
        return pullback.root(problem.unravel(jnp.zeros(problem.size, problem.dtype).at[k].set(1))).reshape(-1)

    return jax.lax.map(column, jnp.arange(problem.size), batch_size=min(COUPLED_VECTORS, problem.size)).T


def readable_layers(problem: Problem, at: Placement) -> Layers | None:
    """The layers of the leaves that can be read; None where rows are needed for all."""
    printed = isinstance(problem.model, GLMFunction) and problem.model.printed
    if problem.coupled or printed or at.params is not None or problem.rows // at.shards < 2:
        return None
    try:
        layers = find_layers(problem).readable(problem)
    except Irregular:
        return None
    return layers if layers.in_order and layers.entries else None


def convolved_layers(problem: Problem, at: Placement) -> Layers | None:
    """The layers of a model with convolutions, by which rows are formed; None for others, or if they do not fit."""
    layers = None if has_closed_form(problem) else readable_layers(problem, at)
    if layers is None or not any(entry.window for entry in layers.entries):
        return None
    samples, rows = min(at.chunk, problem.rows // at.shards), at.chunk * problem.rows_per_sample * problem.size
    return layers if samples * held(problem, layers) <= HELD * rows else None


def held(problem: Problem, layers: Layers) -> int:
    """Numbers held for one sample: inputs, a row of all leaves, and for each row the signals and the other leaves."""
    others = sum(math.prod(problem.layout.leaves[k][0]) for k in layers.unknown)
    return layers.inputs + problem.size + problem.rows_per_sample * (layers.signals + others)


def signals_of_rows(part: Problem, found: Evaluated, axis: int = 0) -> list[Float[Array, "R N P *G H"]]:
    """Of each entry the derivatives by what it adds, for each row of a sample along this axis."""
    at = metric(part, found.outputs)
    shape = jax.eval_shape(at.sqrt_product, found.outputs).shape

    def signals(basis: Float[Array, "*R"]) -> list[Array]:
        return found.signals(at.transposed_sqrt(jnp.broadcast_to(basis[None], shape)))

    count = part.rows_per_sample
    basis = jnp.eye(count, dtype=found.outputs.dtype).reshape(count, *shape[1:])
    return jax.vmap(signals, out_axes=axis)(basis)


def terms(
    part: Problem, found: Evaluated, layers: Layers, dtype: jnp.dtype
) -> list[tuple[Entry, Array | None, Float[Array, "R N P *G H"]]]:
    """Of each piece of a leaf an entry, and x and m at the positions of all places where it is used, in order."""
    m = signals_of_rows(part, found)
    result = []
    for _, members in sorted(layers.by_piece().items()):
        x = joined([found.sources[k] for k in members], part.rows)
        together = jnp.concatenate([m[k].astype(dtype) for k in members], 2)
        result.append((layers.entries[members[0]], None if x is None else x.astype(dtype), together))
    return result


def other_rows(part: Problem, layers: Layers) -> list[tuple[int, Float[Array, "R p"]]]:
    """Rows of the leaves that cannot be read, each with its number."""
    if not layers.unknown:
        return []
    names = leaf_paths(part.params)
    rows = factor_rows(part.restrict({names[k] for k in layers.unknown}))
    ends = np.cumsum([0, *(math.prod(part.layout.leaves[k][0]) for k in layers.unknown)]).tolist()
    return [(k, rows[:, a:b]) for k, (a, b) in zip(layers.unknown, itertools.pairwise(ends), strict=True)]


def _rows_of_layers(part: Problem, layers: Layers) -> Float[Array, "R P"]:
    leaves: list[list[Array]] = [[] for _ in part.layout.leaves]
    for entry, x, m in terms(part, evaluate(part, layers), layers, part.dtype):
        if entry.kind in {"bias", "gain"}:
            piece = jnp.sum(m if x is None else m * x[None], 2)[:, :, None]
        else:
            piece = jnp.einsum("np...d,rnp...h->rn...dh", x, m, precision=jax.lax.Precision.HIGHEST)
        pieces = jax.vmap(jax.vmap(entry.place.to_piece))(piece)
        leaves[entry.leaf].append(pieces.swapaxes(0, 1).reshape(part.rows * part.rows_per_sample, -1))
    for k, rows in other_rows(part, layers):
        leaves[k].append(rows)
    return jnp.concatenate(list(itertools.chain(*leaves)), 1)

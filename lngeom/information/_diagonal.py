r"""The diagonal of F, without the matrix and, where layers can be read, without rows of the factor.

A kernel's part of row r of sample n is $\sum_p x_{np} \otimes m_{npr}$ over the positions p that share it: inputs x of
the layer, and derivatives m of the outputs by what it adds. Its diagonal is the sum of the squares,
$\sum_{nr} (\sum_p x_{np} m_{npr})^2$; of one position $\sum_n x_n^2 \otimes \sum_r m_{nr}^2$, one matrix product. Rows
are formed of the other leaves alone.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.information._layer_values import evaluate
from lngeom.information._planner import even_chunk, fitting
from lngeom.information._problem import Problem
from lngeom.information._rows import factor_rows, held, other_rows, readable_layers, terms
from lngeom.information._sharding import Placement, sum_over_samples
from lngeom.information.layers import Entry, Irregular, Layers

Both = tuple[Float[Array, " P"], Float[Array, " P"]]


@functools.partial(jax.jit, static_argnames=("at", "structured"))
def diagonal_and_product(problem: Problem, at: Placement, vector: Float[Array, " P"], structured: bool = True) -> Both:
    """The diagonal of F, and F v from the same numbers; by the factor's rows alone unless `structured`."""
    layers = readable_layers(problem, at) if structured else None
    try:
        found = _summed(problem, at, vector, layers)
    except Irregular:  # the program at this number of samples is another
        found = _summed(problem, at, vector, None)
    return found[0].astype(problem.dtype), found[1]


def diagonal(problem: Problem, at: Placement) -> Float[Array, " P"]:
    """The diagonal of F."""
    return diagonal_and_product(problem, at, jnp.zeros(problem.size, problem.decomposition_dtype))[0]


def _summed(problem: Problem, at: Placement, vector: Float[Array, " P"], layers: Layers | None) -> Both:
    if layers is None:
        return sum_over_samples(_by_rows, problem, at, vector)
    chunk = fitting(held(problem, layers), at.chunk * problem.rows_per_sample * problem.size)
    even = at._replace(chunk=even_chunk(chunk, problem.rows // at.shards))
    return sum_over_samples(lambda part, v: _by_layers(part, v, layers), problem, even, vector)


def _by_rows(part: Problem, vector: Float[Array, " P"]) -> Both:
    rows = factor_rows(part).astype(vector.dtype)
    return jnp.sum(jnp.square(rows), 0), (rows @ vector) @ rows


def _by_layers(part: Problem, vector: Float[Array, " P"], layers: Layers) -> Both:
    """Both sums over some samples, leaf by leaf."""
    edges, found = part.layout.edges, terms(part, evaluate(part, layers), layers, vector.dtype)
    flat = [vector[a:b] for a, b in itertools.pairwise(edges)]
    images = [_image(entry, x, m, entry.place.to_matrix(flat[entry.leaf])) for entry, x, m in found]  # each [R N]
    others = [(k, rows.astype(vector.dtype)) for k, rows in other_rows(part, layers)]
    images += [(rows @ flat[k]).reshape(part.rows, -1).T for k, rows in others]
    u = functools.reduce(jnp.add, images)
    leaves: list[list[tuple[Array, Array]]] = [[] for _ in flat]
    for entry, x, m in found:
        both = _squares(entry, x, m), _adjoint(entry, x, _einsum("rn,rn...->n...", u, m))
        leaves[entry.leaf].append((entry.place.to_piece(both[0]), entry.place.to_piece(both[1])))
    for k, rows in others:
        leaves[k].append((jnp.sum(jnp.square(rows), 0), u.T.reshape(-1) @ rows))
    first, second = zip(*itertools.chain(*leaves), strict=True)
    return jnp.concatenate(first), jnp.concatenate(second)


def _einsum(formula: str, *arrays: Array) -> Array:
    return jnp.einsum(formula, *arrays, precision=jax.lax.Precision.HIGHEST)


def _squares(entry: Entry, x: Array | None, m: Float[Array, "R N P *G H"]) -> Float[Array, "*G D H"]:
    """The sum of squares of an entry's parts of all rows."""
    if entry.kind in {"bias", "gain"}:
        return jnp.sum(jnp.square(jnp.sum(m if x is None else m * x[None], 2)), (0, 1))[None]
    assert x is not None
    if entry.kind == "table":  # of the positions that read one row, each meets the sum over all of them
        together = _einsum("npd,nqd->npq", x, x)
        return _einsum("npd,nph->dh", x, jnp.sum(m * _einsum("npq,rnqh->rnph", together, m), 0))
    if x.shape[1] == 1:
        return _einsum("n...d,n...h->...dh", jnp.square(x[:, 0]), jnp.sum(jnp.square(m[:, :, 0]), 0))

    def add(total: Array, row: Float[Array, "N P *G H"]) -> tuple[Array, None]:
        return total + jnp.sum(jnp.square(_einsum("np...d,np...h->n...dh", x, row)), 0), None

    return jax.lax.scan(add, jnp.zeros(entry.place.matrix, m.dtype), m)[0]


def _image(
    entry: Entry, x: Array | None, m: Float[Array, "R N P *G H"], v: Float[Array, "*G D H"]
) -> Float[Array, "R N"]:
    """The product of an entry's parts of all rows with a matrix."""
    if entry.kind in {"bias", "gain"}:
        added = jnp.broadcast_to(v[None], m.shape[1:]) if x is None else x * v[None]
    else:
        assert x is not None
        added = _einsum("np...d,...dh->np...h", x, v)
    return jnp.sum(m * added[None], tuple(range(2, m.ndim)))


def _adjoint(entry: Entry, x: Array | None, m: Float[Array, "N P *G H"]) -> Float[Array, "*G D H"]:
    """The sum of an entry's parts of rows, for signals that are summed over rows."""
    if entry.kind in {"bias", "gain"}:
        return jnp.sum(m if x is None else m * x, (0, 1))[None]
    assert x is not None
    return _einsum("np...d,np...h->...dh", x, m)

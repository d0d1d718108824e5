r"""Structured approximations of the Fisher matrix, layer by layer.

A layer with kernel W [D H] (and bias, as one more row) has the block $\frac1N \sum_n \sum_r g_{nr} g_{nr}^\top$,
$g_{nr} = \sum_p x_{np} \otimes m_{npr}$ over the positions p that share it, with the rows r of $S^\top J$.

- KFAC (arXiv:1503.05671) puts $A \otimes B$ in its place. For sequences there are two conventions
  (arXiv:2311.00636): *expand* takes positions as samples, $A = \frac{1}{NP} \sum_{np} x x^\top$,
  $B = \frac1N \sum_{npr} m m^\top$; *reduce* takes means and sums first, $A = \frac1N \sum_n \bar x \bar x^\top$,
  $B = \frac1N \sum_{nr} (\sum_p m)(\sum_p m)^\top$.
- A convolution is a layer whose inputs are the patches that its window covers, one at each position: KFC
  (arXiv:1602.01407) is *expand*. In groups it has one Kronecker product for each.
- EKFAC (arXiv:1806.03884) keeps KFAC's eigenvectors, and takes the exact diagonal in their basis.
- Gains and biases without a kernel, as of norms, have their exact block, all of one sum together.
- A kernel that is used at several places, such as the steps of a loop, has its exact block; beyond `limit` entries it
  has one Kronecker product over the positions of all places.
"""

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from lngeom._core.arguments import check_count, check_nonnegative
from lngeom._core.trees import leaf_paths
from lngeom.information import _diagonal, _matrix
from lngeom.information._derivative import metric
from lngeom.information._layer_values import Evaluated, evaluate, joined
from lngeom.information._planner import even_chunk, samples_in_rows
from lngeom.information._problem import Problem
from lngeom.information._products import AbstractFisher, product_chunks
from lngeom.information._sharding import Placement, sum_over_samples
from lngeom.information.approximations.operator import ApproximateFisher, Part
from lngeom.information.layers import UNUSED, Layers, Rearrangement, find_layers

KINDS = ("kfac", "ekfac", "blocks", "diagonal")
CONVENTIONS = ("expand", "reduce")

EXACT = 2048
"""Parameters up to which a block is exact, where no Kronecker product is asked for."""

STEPS = 32
"""Steps of a loop up to which it is written out, so that the layers in it are read: XLA compiles each of them."""

MOST_ROWS = 512
"""Rows of the factor for each sample up to which all of them are used; beyond, draws have to be asked for."""


class Group(NamedTuple):
    """The entries of one part.

    Attributes:
        kind: "kronecker" or "block".
        members: for each leaf, or piece of one, the numbers of its entries: one for each place where it is used. Of a
            Kronecker product the kernel comes first, then a bias or none.
    """

    kind: str
    members: tuple[tuple[int, ...], ...]


def group(layers: Layers) -> tuple[Group, ...]:
    """A kernel or table with the bias of its sums is one group, and so are all gains and biases of other sums."""
    points: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for members in layers.by_piece().values():
        members = tuple(sorted(members, key=lambda k: layers.entries[k].point))
        points.setdefault(tuple(layers.entries[k].point for k in members), []).append(members)
    found = []
    for together in points.values():
        kind = {members: layers.entries[members[0]].kind for members in together}
        kernels = [m for m in together if kind[m] in {"kernel", "table"}]
        others = [m for m in together if m not in kernels]
        bias = [m for m in others if kind[m] == "bias"]
        if len(kernels) == 1 == len(bias) and _share(layers, kernels[0], bias[0]):
            found.append(Group("kronecker", (kernels[0], bias[0])))
            others.remove(bias[0])
        else:
            found += [Group("kronecker", (m,)) for m in kernels]
        if others:
            found.append(Group("block", tuple(others)))
    return tuple(found)


def _share(layers: Layers, kernel: tuple[int, ...], bias: tuple[int, ...]) -> bool:
    """Whether a bias is one more row of a kernel: wherever they are used, the same positions share both."""
    pairs = [(layers.entries[a], layers.entries[b]) for a, b in zip(kernel, bias, strict=True)]
    same = lambda a, b: (a.columns, a.inner, a.factors) == (b.columns, b.inner, b.factors)  # noqa: E731
    return all(a.kind == "kernel" and set(a.rows) == set(b.rows) and same(a, b) for a, b in pairs)


def _as_row(bias: Rearrangement, kernel: Rearrangement) -> Rearrangement:
    """A bias as one more row of the matrix, or matrices, of a kernel."""
    return bias._replace(matrix=(*kernel.matrix[:-2], 1, kernel.matrix[-1]))


class Sums(NamedTuple):
    """Sums over samples of one Kronecker group.

    Attributes:
        inputs: Σ x xᵀ.
        signals: Σ m mᵀ.
        count: rows in the first.
    """

    inputs: Float[Array, "*G D D"]
    signals: Float[Array, "*G H H"]
    count: Float[Array, ""]


def approximate(
    F: AbstractFisher,
    kind: str,
    *,
    key: PRNGKeyArray | None = None,
    samples: int | None = None,
    convention: str = "expand",
    limit: int = EXACT,
) -> ApproximateFisher:
    """Computes an approximation (arguments as `FisherOperator.approximate`).

    Raises:
        ValueError: if an argument is unknown, samples interact, or draws are needed and were not asked for.
    """
    problem = F.problem
    if kind not in KINDS:
        raise ValueError(f"the approximation must be one of {', '.join(KINDS)}; got {kind!r}")
    if convention not in CONVENTIONS:
        raise ValueError(f"convention must be 'expand' or 'reduce'; got {convention!r}")
    check_nonnegative("limit", limit)
    if problem.coupled or F.method == "printed":
        raise ValueError("an approximation by layers needs samples that do not interact, and the exact derivative")
    if kind == "diagonal":
        everything = list(range(len(problem.layout.leaves)))
        return ApproximateFisher(_diagonal_parts(F, everything), F, kind, convention)
    layers = find_layers(replace(problem, scores=None), limit, STEPS).readable(problem)
    if problem.weights is not None and not layers.in_order:
        reason = "samples that a mask may leave out are in another order there than in the outputs"
        layers = layers.without(dict.fromkeys(range(len(problem.layout.leaves)), reason))
    groups = group(layers)
    if kind == "blocks":
        members = together(layers, groups)
        return ApproximateFisher(tuple(_exact_part(F, found) for found in members), F, kind, convention)
    small = [g for g in groups if _is_shared(g) and _size(g, layers) <= limit]
    layers = layers.without({_leaf(layers, m): "it is used at several places" for g in small for m in g.members})
    groups = group(layers)
    while large := [g for g in groups if g.kind == "block" and _size(g, layers) > limit]:
        layers = layers.without({_leaf(layers, m): "it is a gain or bias without a kernel" for m in large[0].members})
        groups = group(layers)
    signs = samples is not None
    drawn = lambda part, k: _with_draws(part, key if key is None or not k else jax.random.fold_in(key, k), samples)  # noqa: E731
    at = lambda part: _even_chunks(part, layers.inputs + layers.signals + problem.size)  # noqa: E731
    sums = F.summed(_first_sums, layers, groups, convention, signs, at=at, of=drawn)
    bases = _bases(groups, sums)
    values = F.summed(_second_sums, layers, groups, bases, signs, at=at, of=drawn) if kind == "ekfac" else None
    parts = []
    for k, (found, total) in enumerate(zip(groups, sums, strict=True)):
        if found.kind == "block":
            places = tuple((_leaf(layers, m), layers.entries[m[0]].place) for m in found.members)
            parts.append(_decomposed(total, F, places))
            continue
        (a, left), (b, right) = bases[k]
        product = jnp.maximum(a, 0)[..., :, None] * jnp.maximum(b, 0)[..., None, :]
        s = product if values is None else values[k]
        kernel, *bias = (layers.entries[m[0]] for m in found.members)
        places = ((kernel.leaf, kernel.place), *((b.leaf, _as_row(b.place, kernel.place)) for b in bias))
        parts.append(Part(left, right, s, places, _name(F, places), "kronecker"))
    sizes = [leaf.size for leaf in jax.tree.leaves(problem.params)]
    apart = dict(zip(layers.unknown, layers.reasons, strict=True))
    parts += [_exact_part(F, [leaf]) for leaf in apart if 0 < sizes[leaf] <= limit]
    diagonal = [leaf for leaf in apart if not 0 < sizes[leaf] <= limit]
    parts += _diagonal_parts(F, diagonal)
    _warn_of_diagonals(F, kind, limit, {k: apart[k] for k in diagonal if sizes[k] and apart[k] != UNUSED})
    return ApproximateFisher(tuple(parts), F, kind, convention)


def _warn_of_diagonals(F: AbstractFisher, kind: str, limit: int, reasons: dict[int, str]) -> None:
    """One warning that names the leaves of which the diagonal alone is kept, each with its reason."""
    if not reasons:
        return
    paths = leaf_paths(F.problem.params)
    named = "; ".join(f"{paths[k]} {list(F.problem.layout.leaves[k][0])}: {why}" for k, why in reasons.items())
    warnings.warn(
        f"{kind!r} has no Kronecker product for {len(reasons)} of {len(paths)} leaves, and keeps the diagonal of F "
        f"alone there ({named}); their exact blocks need limit= of their number of entries, now {limit:,}",
        RuntimeWarning,
        stacklevel=5,
    )


def _leaf(layers: Layers, members: tuple[int, ...]) -> int:
    return layers.entries[members[0]].leaf


def _is_shared(found: Group) -> bool:
    """Whether its kernel is used at several places, so that a Kronecker product leaves out what is between them."""
    return found.kind == "kronecker" and len(found.members[0]) > 1


def _size(found: Group, layers: Layers) -> int:
    return sum(math.prod(layers.entries[members[0]].place.matrix) for members in found.members)


def together(layers: Layers, groups: tuple[Group, ...]) -> list[list[int]]:
    """All leaves, those with pieces in one group together."""
    found: list[set[int]] = [{leaf} for leaf in layers.unknown]
    for g in groups:
        mine = {_leaf(layers, members) for members in g.members}
        met = [other for other in found if other & mine]
        found = [other for other in found if other not in met] + [mine.union(*met)]
    return [sorted(leaves) for leaves in found]


def _name(F: AbstractFisher, places: tuple) -> str:
    paths = leaf_paths(F.problem.params)
    return " + ".join(paths[leaf] + _part_of(place) for leaf, place in places)


def _part_of(place: Rearrangement) -> str:
    """Which part of a leaf it is, in words: nothing for all of it."""
    size, whole = place.stop - place.start, math.prod(place.shape)
    if size == whole:
        return ""
    step = whole // place.shape[0]
    rows = f"{place.start // step}" if size == step else f"{place.start // step}:{place.stop // step}"
    return f"[{rows}]" if place.start % step == 0 == size % step else f".ravel()[{place.start}:{place.stop}]"


def _vector(shape: tuple[int, ...]) -> Rearrangement:
    """A leaf as one row, in its own order."""
    return Rearrangement(shape, shape, tuple(range(len(shape))), (1, int(np.prod(shape))))


def _diagonal_parts(F: AbstractFisher, leaves: list[int]) -> tuple[Part, ...]:
    """The exact diagonal of each leaf."""
    if not leaves:
        return ()
    paths = leaf_paths(F.problem.params)
    names = {paths[leaf] for leaf in leaves}
    restricted = F.problem.restrict(names)
    diagonal = restricted.unravel(F.summed(_diagonal.diagonal, of=lambda part, _: part.restrict(names)))
    parts = []
    for leaf, values in zip(sorted(leaves), jax.tree.leaves(diagonal), strict=True):
        places = ((leaf, _vector(values.shape)),)
        values = values.reshape(1, -1).astype(F.problem.decomposition_dtype)
        parts.append(Part(None, None, values, places, _name(F, places), "diagonal"))
    return tuple(parts)


def _exact_part(F: AbstractFisher, leaves: list[int]) -> Part:
    paths, leaves = leaf_paths(F.problem.params), sorted(leaves)
    names = {paths[leaf] for leaf in leaves}
    restricted = F.problem.restrict(names)
    bytes_needed = 4 * restricted.size**2 * restricted.dtype.itemsize
    F.plan.require(bytes_needed, f"the exact block of {', '.join(paths[k] for k in leaves)}", "use 'ekfac'")
    matrix = F.summed(_matrix.dense, of=lambda part, _: part.restrict(names))
    return _decomposed(matrix, F, tuple((k, _vector(F.problem.layout.leaves[k][0])) for k in leaves))


def _decomposed(matrix: Float[Array, "p p"], F: AbstractFisher, places: tuple) -> Part:
    s, vectors = jnp.linalg.eigh(matrix.astype(F.problem.decomposition_dtype))
    return Part(None, vectors, jnp.maximum(s, 0)[None], places, _name(F, places), "block")


def _with_draws(problem: Problem, key: PRNGKeyArray | None, samples: int | None) -> Problem:
    """The problem with random signs in the place of scores, [N S *T C], where draws are asked for.

    Random signs ξ have E ξξᵀ = I, so that the root S of the metric gives E (Sξ)(Sξ)ᵀ = Λ.

    Raises:
        ValueError: if they are needed and were not asked for, or key and samples do not go together.
    """
    if (key is None) != (samples is None):
        raise ValueError(f"draws need key= and samples=; got key={key}, samples={samples}")
    rows = problem.rows_per_sample
    samples = samples if samples is None else check_count("samples", samples, 1, what="a whole number of draws")
    if samples is None:
        if rows > MOST_ROWS:
            raise ValueError(
                f"each sample has {rows:,} rows of the factor, more than {MOST_ROWS}: give key= and samples= (1 to 10 "
                "are usual), so that they are summed at random signs instead"
            )
        return problem
    if problem.scores is not None:
        raise ValueError("scores that were drawn or observed already take no further draws")
    z = problem.output_shape
    assert key is not None
    signs = jax.random.rademacher(key, (z.shape[0], samples, *z.shape[1:]), z.dtype)
    return replace(problem, scores=signs)


class _Roots(NamedTuple):
    """The rows r of a chunk, as cotangents of z.

    Attributes:
        count: how many.
        cotangent: r ↦ [N *T C].
    """

    count: int
    cotangent: Callable[[Array], Array]


def _roots(part: Problem, signs: bool, outputs: Array) -> _Roots:
    assert not signs or part.scores is not None
    at = metric(replace(part, scores=None) if signs else part, outputs)
    if signs:
        scores: Any = part.scores
        count = scores.shape[1]
        return _Roots(count, lambda r: at.transposed_sqrt(jnp.take(scores, r, 1)) / count**0.5)
    shape = jax.eval_shape(at.sqrt_product, outputs).shape[1:]
    count = int(np.prod(shape))

    def cotangent(r: Array) -> Array:
        basis = jax.nn.one_hot(r, count, dtype=outputs.dtype).reshape(1, *shape)
        return at.transposed_sqrt(jnp.broadcast_to(basis, (len(outputs), *shape)))

    return _Roots(count, cotangent)


def _sum_over_rows(roots: _Roots, term: Callable[[Array], PyTree]) -> PyTree:
    shapes = jax.eval_shape(lambda: term(roots.cotangent(jnp.zeros((), jnp.int32))))
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    step = lambda total, r: (jax.tree.map(jnp.add, total, term(roots.cotangent(r))), None)  # noqa: E731
    return jax.lax.scan(step, zero, jnp.arange(roots.count))[0]


def _even_chunks(F: AbstractFisher, held: int) -> Placement:
    """Chunks that fit, with so many numbers a sample; none has one sample alone, whose program has other operations."""
    at = product_chunks(F)
    samples = F.problem.rows // (1 if at.mesh is None else at.mesh.size)
    if samples < 2:
        raise ValueError(f"layers are read from at least 2 samples (on each device); got {samples}")
    chunk = samples_in_rows(held * F.problem.decomposition_dtype.itemsize, F.plan.budget, at.chunk)
    return at._replace(chunk=even_chunk(chunk, samples))


def _counted(part: Problem, x: Float[Array, "N P *G D"]) -> Float[Array, "N P"]:
    """1 for the positions of an input that count, 0 for those that a mask leaves out."""
    shape, weights = x.shape[:2], part.weights
    if weights is None:
        return jnp.ones(shape, x.dtype)
    counts = (weights > 0).reshape(len(weights), -1)
    if counts.shape[1] != shape[1]:
        counts = jnp.broadcast_to(jnp.any(counts, 1, keepdims=True), shape)
    return counts.astype(x.dtype)


def _inputs(found: Evaluated, members: tuple, rows: int, dtype: Any) -> Float[Array, "N P *G D"]:
    """x of a Kronecker group, with a one more where there is a bias."""
    x: Any = joined([found.sources[k] for k in members[0]], rows)
    x = x.astype(dtype)
    return x if len(members) == 1 else jnp.concatenate([x, jnp.ones((*x.shape[:-1], 1), dtype)], -1)


def _signals(signals: list[Array], members: tuple, dtype: Any) -> Float[Array, "N P *G H"]:
    """m of a Kronecker group."""
    return jnp.concatenate([signals[k].astype(dtype) for k in members[0]], 1)


def _einsum(formula: str, *arrays: Array) -> Array:
    return jnp.einsum(formula, *arrays, precision=jax.lax.Precision.HIGHEST)


def _gradient(found: Evaluated, signals: list[Array], members: tuple, dtype: Any) -> Float[Array, "N p"]:
    """g of all gains and biases of a group, side by side."""

    def one(k: int) -> Float[Array, "N H"]:
        m, x = signals[k].astype(dtype), found.sources[k]
        return jnp.sum(m if x is None else m * x.astype(dtype), 1)

    return jnp.concatenate([functools.reduce(jnp.add, map(one, uses)) for uses in members], 1)


@functools.partial(jax.jit, static_argnames=("at", "layers", "groups", "convention", "signs"))
def _first_sums(
    problem: Problem, at: Placement, layers: Layers, groups: tuple[Group, ...], convention: str, signs: bool
) -> list[Any]:
    """The sums of Kronecker groups, and the matrices of the others."""
    dtype = problem.decomposition_dtype

    def term(part: Problem) -> list[Any]:
        found = evaluate(replace(part, scores=None), layers)

        def one_row(cotangent: Array) -> list[Array]:
            signals, sums = found.signals(cotangent), []
            for g in groups:
                if g.kind == "block":
                    rows = _gradient(found, signals, g.members, dtype)
                    sums.append(_einsum("np,nq->pq", rows, rows))
                    continue
                m = _signals(signals, g.members, dtype)
                m = jnp.sum(m, 1, keepdims=True) if convention == "reduce" else m
                sums.append(_einsum("np...h,np...k->...hk", m, m))
            return sums

        sums = _sum_over_rows(_roots(part, signs, found.outputs), one_row)
        result: list[Any] = []
        for g, total in zip(groups, sums, strict=True):
            if g.kind == "block":
                result.append(total)
                continue
            x = _inputs(found, g.members, part.rows, dtype)
            counts = _counted(part, x)
            along = lambda a, x=x: a.reshape(*a.shape, *(1,) * (x.ndim - 2))  # noqa: E731
            if convention == "reduce":
                all_counts = jnp.maximum(jnp.sum(counts, 1, keepdims=True), 1)
                x = jnp.sum(x * along(counts), 1, keepdims=True) / along(all_counts)
                counts = jnp.max(counts, 1, keepdims=True)
            x = x * along(counts)
            result.append(Sums(_einsum("np...d,np...e->...de", x, x), total, jnp.sum(counts)))
        return result

    return sum_over_samples(term, problem, at)


def _bases(groups: tuple[Group, ...], sums: list[Any]) -> dict[int, tuple]:
    return {
        k: (jnp.linalg.eigh(total.inputs / total.count), jnp.linalg.eigh(total.signals))
        for k, (found, total) in enumerate(zip(groups, sums, strict=True))
        if found.kind == "kronecker"
    }


@functools.partial(jax.jit, static_argnames=("at", "layers", "groups", "signs"))
def _second_sums(
    problem: Problem, at: Placement, layers: Layers, groups: tuple[Group, ...], bases: dict[int, tuple], signs: bool
) -> dict[int, Float[Array, "*G D H"]]:
    """EKFAC's diagonal: the mean squares of gradients in the basis of eigenvectors."""
    dtype = problem.decomposition_dtype

    def term(part: Problem, bases: dict[int, tuple]) -> dict[int, Array]:
        found = evaluate(replace(part, scores=None), layers)
        turned = {
            k: _einsum("np...d,...de->np...e", _inputs(found, groups[k].members, part.rows, dtype), left)
            for k, ((_, left), _) in bases.items()
        }
        alone = lambda k: turned[k].shape[1] == 1  # of one position, rows are summed before inputs are met  # noqa: E731

        def one_row(cotangent: Array) -> dict[int, Array]:
            signals = found.signals(cotangent)
            result = {}
            for k, (_, (_, right)) in bases.items():
                m = _einsum("np...h,...hk->np...k", _signals(signals, groups[k].members, dtype), right)
                rows = m if alone(k) else _einsum("np...d,np...h->n...dh", turned[k], m)
                result[k] = jnp.square(rows[:, 0]) if alone(k) else jnp.sum(jnp.square(rows), 0)
            return result

        sums = _sum_over_rows(_roots(part, signs, found.outputs), one_row)
        squares = lambda x, m: _einsum("n...d,n...h->...dh", jnp.square(x[:, 0]), m)  # noqa: E731
        return {k: squares(turned[k], total) if alone(k) else total for k, total in sums.items()}

    return sum_over_samples(term, problem, at, bases)


# What lineax dispatches on.
for _property in (lx.is_symmetric, lx.is_positive_semidefinite):
    _property.register(ApproximateFisher)(lambda operator: True)

"""Matrix-free products with the Fisher matrix, one or many vectors at a time, in bounded memory.

Where the derivative of all samples fits in memory it is computed once and kept, and so is the factor of which many
products are made; else each product computes it again, chunk by chunk.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, PyTree

from lngeom.information._entries import Irregular, Structure, find_structure
from lngeom.information._kronecker import FactorForMany, kronecker_factor, product_work
from lngeom.information._problem import Layout, Problem
from lngeom.information._pullback import Pullback
from lngeom.information._sharding import Placement, is_sharded, on_each_shard, sum_over_samples


class Stored(eqx.Module):
    """The pullback of all samples; on several devices, one part on each, stacked.

    Attributes:
        pullback: of all samples, or with one more leading axis for the devices.
        layout: of a tangent.
        at: where the samples are.
    """

    pullback: Pullback
    layout: Layout = eqx.field(static=True)
    at: Placement = eqx.field(static=True)

    def apply(self, function, *arguments: PyTree) -> PyTree:
        """Σ over devices of function(pullback, *arguments)."""
        if self.at.mesh is None:
            return function(self.pullback, *arguments)

        def local(pullback: Pullback, *arguments: PyTree) -> PyTree:
            part = jax.tree.map(lambda leaf: leaf[0], pullback)
            return jax.lax.psum(function(part, *arguments), self.at.axes)

        specs = jax.tree.map(lambda _: PartitionSpec(self.at.axes), self.pullback)
        whole = tuple(jax.tree.map(lambda _: PartitionSpec(), a) for a in arguments)
        run = jax.shard_map(
            local, mesh=self.at.mesh, in_specs=(specs, *whole), out_specs=PartitionSpec(), check_vma=False
        )
        return run(self.pullback, *arguments)


@functools.partial(jax.jit, static_argnames="at")
def store(problem: Problem, at: Placement) -> Stored:
    """Computes the derivative of all samples once, to be used by every product.

    Args:
        problem: the problem.
        at: where its samples are.

    Returns:
        The pullback of all samples.
    """
    if not is_sharded(at, problem):
        return Stored(Pullback(problem), problem.layout, at._replace(mesh=None))
    stacked = on_each_shard(
        lambda part: jax.tree.map(lambda leaf: leaf[None], Pullback(part)), problem, at, divided=True
    )
    return Stored(stacked, problem.layout, at)


Source = Stored | Problem
"""What a product is computed from: a stored derivative, or the problem, to be differentiated again."""


def _run(source: Source, at: Placement, function: Callable[..., PyTree], *arguments: PyTree) -> PyTree:
    """Σ over samples of function(pullback, *arguments)."""
    if isinstance(source, Stored):
        return source.apply(function, *arguments)
    return sum_over_samples(lambda part, *a: function(Pullback(part), *a), source, at, *arguments)


@functools.partial(jax.jit, static_argnames="at")
def product(source: Source, at: Placement, v: PyTree) -> PyTree:
    """F v for one tangent like params."""
    source.layout.check(v)
    return _run(source, at, Pullback.product, v)


@functools.partial(jax.jit, static_argnames="at")
def flat_product(source: Source, at: Placement, vector: Float[Array, " P"]) -> Float[Array, " P"]:
    """F v for one ravelled tangent."""
    return ravel_pytree(_run(source, at, Pullback.product, source.layout.unravel(vector)))[0]


@functools.cache
def _compiled(function: Callable, structure: Any, at: Placement) -> Callable[[list[Array], PyTree], PyTree]:
    return jax.jit(lambda leaves, v: function(jax.tree.unflatten(structure, leaves), at, v))


def compiled(function: Callable, source: Source, at: Placement) -> Callable[[PyTree], PyTree]:
    """The map v ↦ function(source, at, v), compiled: a list of arrays is read faster than nested modules."""
    leaves, structure = jax.tree.flatten(source)
    return functools.partial(_compiled(function, structure, at), leaves)


Method = TypeVar("Method", bound=Callable)


class _LightMethod:
    """Descriptor of a method bound as a `jax.tree_util.Partial`."""

    def __init__(self, function: Callable):
        self.function = function

    def __get__(self, instance: Any, owner: type) -> Any:
        return self.function if instance is None else jax.tree_util.Partial(self.function, instance)


def light(method: Method) -> Method:
    """Has a method bound as a `Partial`, a pytree too, which `jit` takes; to bind as equinox does takes longer."""
    return cast(Method, _LightMethod(method))


MANY = 8
"""Vectors from which on it pays to compute the factor first."""

SIDE_BY_SIDE = 2
"""Vectors that are taken one by one but in one program: what one product leaves of the cores another takes."""

WORKING = 2**27
"""Bytes of what one pass holds for all its vectors."""


@functools.partial(jax.jit, static_argnames=("at", "limit"))
def keep_factor(problem: Problem, at: Placement, limit: int) -> FactorForMany | None:
    """The outer products of all samples, to be used for many vectors again and again.

    Args:
        problem: the problem.
        at: where its samples are.
        limit: most bytes it may take, and never more than `WORKING`.

    Returns:
        The factor; None where products by it do not pay, or it does not fit.
    """
    structure = find_structure(problem)
    if structure is None or not _pays(structure) or is_sharded(at, problem) or at.chunk < problem.rows:
        return None
    try:
        factor = FactorForMany(kronecker_factor(problem, structure))
    except Irregular:
        return None
    return factor if sum(leaf.nbytes for leaf in jax.tree.leaves(factor)) <= min(limit, WORKING) else None


@functools.partial(jax.jit, static_argnames=("at", "batch", "structured"))
def products(
    problem: Problem,
    stored: Stored | None,
    factor: FactorForMany | None,
    at: Placement,
    vectors: Float[Array, "P K"],
    batch: int,
    structured: bool = True,
) -> Float[Array, "P K"]:
    """F V for many vectors: by outer products where the function's structure allows it, else `batch` at a time.

    Args:
        problem: the problem.
        stored: its stored derivative, or None.
        factor: its stored outer products, or None.
        at: where its samples are.
        vectors: V.
        batch: vectors of one pass through the model.
        structured: whether outer products may be used.

    Returns:
        The products, as columns.

    Raises:
        ValueError: if the vectors are not of the length and dtype of the parameters.
    """
    jax.eval_shape(jax.vmap(problem.layout.unravel, 1), vectors)
    if factor is not None:
        return _in_groups(factor, vectors)
    structure = find_structure(problem) if structured and vectors.shape[1] >= MANY else None
    if structure is not None and _pays(structure):
        try:
            return _products_by_factor(problem, structure, at, vectors)
        except Irregular:
            pass
    return _products_by_passes(problem if stored is None else stored, at, vectors, batch)


def _pays(structure: Structure) -> bool:
    """Whether outer products cost less than passing through all layers."""
    kernels = sum(entry.shape[0] * entry.shape[1] for entry in structure.entries if entry.kernel)
    return bool(structure.entries) and product_work(structure)[0] <= 2 * kernels


def _samples_of_a_pass(problem: Problem, structure: Structure, at: Placement) -> int:
    """Of which the outer products, and what `MANY` vectors need besides, fit."""
    work, held = (numbers * problem.dtype.itemsize for numbers in product_work(structure))
    return max(1, min(at.chunk, WORKING // (held * MANY + work)))


def _in_groups(factor: FactorForMany, vectors: Float[Array, "P K"]) -> Float[Array, "P K"]:
    """As many vectors at a time as memory allows."""
    count = vectors.shape[1]
    batch = max(MANY, min(count, WORKING // (factor.held * vectors.dtype.itemsize)))
    return jnp.concatenate([factor.products(vectors[:, k : k + batch]) for k in range(0, count, batch)], 1)


def _products_by_factor(
    problem: Problem, structure: Structure, at: Placement, vectors: Float[Array, "P K"]
) -> Float[Array, "P K"]:
    def term(part: Problem, vectors: Float[Array, "P K"]) -> Float[Array, "P K"]:
        return _in_groups(FactorForMany(kronecker_factor(part, structure)), vectors)

    chunk = _samples_of_a_pass(problem, structure, at)
    return sum_over_samples(term, problem, at._replace(chunk=chunk), vectors)


def _products_by_passes(source: Source, at: Placement, vectors: Float[Array, "P K"], batch: int) -> Float[Array, "P K"]:
    def one(row: Float[Array, " P"]) -> Float[Array, " P"]:
        return ravel_pytree(_run(source, at, Pullback.product, source.layout.unravel(row)))[0]

    def group(rows: Float[Array, "K P"]) -> Float[Array, "K P"]:
        if batch == 1 and len(rows):
            return jnp.stack([one(row) for row in rows])
        tangents = jax.vmap(source.layout.unravel)(rows)
        images = _run(source, at, Pullback.products, tangents)
        return jax.vmap(lambda image: ravel_pytree(image)[0])(images)

    rows = vectors.T
    size = max(batch, SIDE_BY_SIDE)
    full, rest = divmod(len(rows), size)
    if full <= 1 and not (full and rest):
        return group(rows).T
    head = jax.lax.map(group, rows[: full * size].reshape(full, size, -1)).reshape(full * size, -1)
    return (jnp.concatenate([head, group(rows[full * size :])]) if rest else head).T


@functools.partial(jax.jit, static_argnames="at")
def quadratic_form(source: Source, at: Placement, v: PyTree) -> Float[Array, ""]:
    """The form vᵀFv ≥ 0."""
    source.layout.check(v)
    return _run(source, at, Pullback.squared_norm, v)

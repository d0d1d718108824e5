"""Matrix-free products with the Fisher matrix, one or many vectors at a time, in bounded memory.

Where the derivative of all samples fits in memory it is computed once and kept; else each product computes it
again, chunk by chunk.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, PyTree

from lngeom.information._problem import Problem
from lngeom.information._pullback import Pullback
from lngeom.information._sharding import Placement, is_sharded, on_each_shard, sum_over_samples


class Stored(eqx.Module):
    """The pullback of all samples; on several devices, one part on each, stacked.

    Attributes:
        pullback: of all samples, or with one more leading axis for the devices.
        at: where the samples are.
    """

    pullback: Pullback
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
        return Stored(Pullback(problem), at._replace(mesh=None))
    stacked = on_each_shard(
        lambda part: jax.tree.map(lambda leaf: leaf[None], Pullback(part)), problem, at, divided=True
    )
    return Stored(stacked, at)


def _check(problem: Problem | None, v: PyTree, like: PyTree) -> None:
    if jax.tree.structure(v) != jax.tree.structure(like):
        raise ValueError(
            f"a tangent must be a pytree like the differentiated params, {jax.tree.structure(like)}; got "
            f"{jax.tree.structure(v)}: leaves left out by wrt= are None (F.in_structure() shows the form)"
        )
    for have, want in zip(jax.tree.leaves(v), jax.tree.leaves(like), strict=True):
        if jnp.shape(have) != want.shape or jnp.result_type(have) != want.dtype:
            raise ValueError(
                f"a tangent's leaf must be {want.dtype}{list(want.shape)}, like its parameter; got "
                f"{jnp.result_type(have)}{list(jnp.shape(have))}"
            )


@functools.partial(jax.jit, static_argnames="at")
def product(problem: Problem, stored: Stored | None, at: Placement, v: PyTree) -> PyTree:
    """F v for one tangent like params."""
    _check(problem, v, problem.params)
    if stored is not None:
        return stored.apply(Pullback.product, v)
    return sum_over_samples(lambda part, v: Pullback(part).product(v), problem, at, v)


@functools.partial(jax.jit, static_argnames=("at", "batch"))
def products(
    problem: Problem, stored: Stored | None, at: Placement, vectors: Float[Array, "P K"], batch: int
) -> Float[Array, "P K"]:
    """F V for many vectors, `batch` of them at a time, all by one pass through the model."""

    def many(pullback: Pullback, rows: Float[Array, "K P"]) -> Float[Array, "K P"]:
        one = lambda row: problem.ravel(pullback.product(problem.unravel(row)))  # noqa: E731
        return jax.vmap(one)(rows)

    def group(rows: Float[Array, "K P"]) -> Float[Array, "K P"]:
        if stored is not None:
            return stored.apply(many, rows)
        return sum_over_samples(lambda part, rows: many(Pullback(part), rows), problem, at, rows)

    rows = vectors.T
    full, rest = divmod(len(rows), batch)
    if full <= 1 and not (full and rest):
        return group(rows).T
    head = jax.lax.map(group, rows[: full * batch].reshape(full, batch, -1)).reshape(full * batch, -1)
    return (jnp.concatenate([head, group(rows[full * batch :])]) if rest else head).T


@functools.partial(jax.jit, static_argnames="at")
def quadratic_form(problem: Problem, stored: Stored | None, at: Placement, v: PyTree) -> Float[Array, ""]:
    """vᵀFv ≥ 0."""
    _check(problem, v, problem.params)
    if stored is not None:
        return stored.apply(Pullback.squared_norm, v)
    return sum_over_samples(lambda part, v: Pullback(part).squared_norm(v), problem, at, v)

r"""The Fisher matrix as an array: closed form for a normalized GLM, $A^\top A$ in block rows for others."""

import functools
import itertools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.information import _printed, _structured
from lngeom.information._factor import factor_rows
from lngeom.information._problem import Problem, leaf_paths
from lngeom.information._pullback import has_closed_form
from lngeom.information._sharding import Placement, is_sharded, sum_over_samples

BLOCKS = 8
"""Block rows of a symmetric product: 8 save 7/16 of the work and each is still a large matrix product."""


def _edges(size: int) -> list[int]:
    blocks = max(1, min(BLOCKS, size // 64))
    return [size * k // blocks for k in range(blocks + 1)]


def upper_gram(rows: Float[Array, "R P"]) -> tuple[Float[Array, "p q"], ...]:
    """Block rows of rowsᵀ·rows, each from its diagonal block to the right."""
    edges = _edges(rows.shape[1])
    dot = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    return tuple(dot(rows[:, a:b].T, rows[:, a:]) for a, b in itertools.pairwise(edges))


def symmetric(blocks: tuple[Float[Array, "p q"], ...]) -> Float[Array, "P P"]:
    """The symmetric matrix whose upper block rows these are."""
    size = blocks[0].shape[1]
    padded = [jnp.pad(block, ((0, 0), (size - block.shape[1], 0))) for block in blocks]
    upper = jnp.triu(jnp.concatenate(padded))
    return upper + jnp.triu(upper, 1).T


def _closed_form(problem: Problem) -> Float[Array, "P P"]:
    function = problem.model
    build = _printed.dense if function.printed else _structured.dense
    return build(function.model, problem.params, problem.inputs)


def _is_plain_glm(problem: Problem, at: Placement) -> bool:
    plain = problem.weights is None and problem.scores is None and not is_sharded(at, problem)
    return plain and has_closed_form(problem)


@functools.partial(jax.jit, static_argnames="at")
def dense(problem: Problem, at: Placement) -> Float[Array, "P P"]:
    """The matrix, in the order of `ravel_pytree`."""
    if _is_plain_glm(problem, at):
        return _closed_form(problem)
    return symmetric(sum_over_samples(lambda part: upper_gram(factor_rows(part)), problem, at))


@functools.partial(jax.jit, donate_argnums=0)
def _accumulate(blocks: tuple[Array, ...] | None, part: Problem) -> tuple[Array, ...]:
    new = upper_gram(factor_rows(part))
    return new if blocks is None else jax.tree.map(jnp.add, blocks, new)


def dense_steps(problem: Problem, chunk: int) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """The same sum, chunk by chunk on the host, so that its progress can be watched.

    Args:
        problem: with concrete arrays, on one device.
        chunk: samples at a time.

    Yields:
        The number of samples summed, and the block rows so far.
    """
    blocks = None
    for start in range(0, problem.rows, chunk):
        part = problem.with_samples(jax.tree.map(lambda a, s=start: a[s : s + chunk], problem.per_sample))
        blocks = _accumulate(blocks, part)
        yield min(start + chunk, problem.rows), blocks


@functools.partial(jax.jit, static_argnames="at")
def diagonal(problem: Problem, at: Placement) -> Float[Array, " P"]:
    """The diagonal of F: squared norms of the factor's columns, without the matrix."""
    return sum_over_samples(lambda part: jnp.sum(jnp.square(factor_rows(part)), 0), problem, at)


def dense_with_progress(problem: Problem, chunk: int) -> Float[Array, "P P"]:
    """The matrix, with a progress bar on the terminal."""
    from rich.progress import Progress

    blocks = None
    with Progress() as bar:
        task = bar.add_task("Fisher matrix", total=problem.rows)
        for done, blocks in dense_steps(problem, chunk):
            jax.block_until_ready(blocks)
            bar.update(task, completed=done)
    assert blocks is not None
    return symmetric(blocks)


def leaf_block(problem: Problem, at: Placement, i: str, j: str) -> Float[Array, "p q"]:
    """The block of two leaves, of a problem restricted to them."""
    matrix, start, where = dense(problem, at), 0, {}
    for name, leaf in zip(leaf_paths(problem.params), jax.tree.leaves(problem.params), strict=True):
        where[name] = slice(start, start + leaf.size)
        start += leaf.size
    return matrix[where[i], where[j]]

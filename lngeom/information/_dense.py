r"""The Fisher matrix as an array: closed form for a normalized GLM, else $A^\top A$ of the factor.

Where parameters enter by kernels, gains and biases alone, the factor's rows are outer products and are never formed;
else they are, and their Gram matrix is built in block rows.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lngeom.information import _kronecker, _printed, _structured
from lngeom.information._contraction import over_samples
from lngeom.information._entries import Irregular, Structure, find_structure
from lngeom.information._factor import factor_rows, rows_per_sample
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
    return tuple(over_samples(rows[:, a:b], rows[:, a:]) for a, b in itertools.pairwise(edges))


def symmetric(blocks: tuple[Float[Array, "p q"], ...]) -> Float[Array, "P P"]:
    """The symmetric matrix whose upper block rows these are."""
    size = blocks[0].shape[1]
    padded = [jnp.pad(block, ((0, 0), (size - block.shape[1], 0))) for block in blocks]
    upper = jnp.triu(jnp.concatenate(padded))
    return upper + jnp.triu(upper, 1).T


CLOSED = 2**14
"""Samples at a time of the closed form, at least: assembling the matrix after each chunk must not cost much."""


def _closed_form(problem: Problem, at: Placement) -> Float[Array, "P P"]:
    """Sums the parts of the mean that lie on each device, and in chunks where samples do not interact."""
    function = problem.model
    if function.printed:
        return _printed.dense(function.model, problem.params, problem.inputs)

    def term(part: Problem) -> Float[Array, "P P"]:
        return _structured.dense(function.model, part.params, part.inputs, weights=part.weights, samples=part.samples)

    chunk = problem.rows if problem.coupled else max(at.chunk, CLOSED)
    return sum_over_samples(term, problem, at._replace(chunk=chunk))


def _is_closed(problem: Problem, at: Placement) -> bool:
    if problem.scores is not None or not has_closed_form(problem):
        return False
    z = jax.eval_shape(problem.forward, problem.params)
    if not problem.model.printed and jax.eval_shape(problem.family.metric_parts, z) is None:
        return False
    return not problem.model.printed or (problem.weights is None and not is_sharded(at, problem))


class Route(NamedTuple):
    """How the matrix is summed over samples.

    Attributes:
        structure: where parameters enter, to sum by outer products; None to form the factor's rows.
        chunk: samples at a time.
    """

    structure: Structure | None
    chunk: int

    def term(self, part: Problem) -> tuple[Array, ...]:
        """The sum over some samples, in parts."""
        if self.structure is None:
            return upper_gram(factor_rows(part))
        return _kronecker.kronecker_factor(part, self.structure).gram_parts()

    def finish(self, problem: Problem, parts: tuple[Array, ...]) -> Float[Array, "P P"]:
        """The matrix of summed parts."""
        if self.structure is None:
            return symmetric(parts)
        return _kronecker.gram(self.structure, problem.layout, parts)


OVERHEAD = 16
"""Multiplications that writing and reading a number costs."""


def choose_route(problem: Problem, chunk: int) -> Route:
    """The cheaper route, by its multiplications and the numbers it holds.

    Args:
        problem: the problem.
        chunk: samples at a time for which the factor's rows fit.

    Returns:
        The route.
    """
    structure = find_structure(problem)
    if structure is not None:
        work, held = _kronecker.gram_work(structure)
        rows = rows_per_sample(problem) * problem.size
        if work + OVERHEAD * held < rows * (problem.size // 2 + OVERHEAD):
            return Route(structure, max(1, chunk * rows // (rows + held)))
    return Route(None, chunk)


@functools.partial(jax.jit, static_argnames=("at", "structured"))
def dense(problem: Problem, at: Placement, structured: bool = True) -> Float[Array, "P P"]:
    """The matrix, in the order of `ravel_pytree`.

    Args:
        problem: the problem.
        at: where its samples are.
        structured: whether a closed form or outer products may be used, and not only the factor's rows.

    Returns:
        The matrix.
    """
    if not structured:
        return _dense(problem, at, Route(None, at.chunk))
    if _is_closed(problem, at):
        return _closed_form(problem, at)
    return _first_possible(lambda route: _dense(problem, at, route), problem, at.chunk)


def _dense(problem: Problem, at: Placement, route: Route) -> Float[Array, "P P"]:
    return route.finish(problem, sum_over_samples(route.term, problem, at._replace(chunk=route.chunk)))


def _first_possible(build: Callable[[Route], Array], problem: Problem, chunk: int) -> Array:
    """By the chosen route; by the other if the function's program depends on how many samples it is given."""
    try:
        return build(choose_route(problem, chunk))
    except Irregular:
        return build(Route(None, chunk))


@functools.partial(jax.jit, static_argnames="route", donate_argnums=0)
def _accumulate(parts: tuple[Array, ...] | None, part: Problem, route: Route) -> tuple[Array, ...]:
    new = route.term(part)
    return new if parts is None else jax.tree.map(jnp.add, parts, new)


def dense_steps(problem: Problem, route: Route) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """The same sum, chunk by chunk on the host, so that its progress can be watched.

    Args:
        problem: with concrete arrays, on one device.
        route: how to sum.

    Yields:
        The number of samples summed, and the parts so far.
    """
    parts, chunk = None, route.chunk
    for start in range(0, problem.rows, chunk):
        part = problem.with_samples(jax.tree.map(lambda a, s=start: a[s : s + chunk], problem.per_sample))
        parts = _accumulate(parts, part, route)
        yield min(start + chunk, problem.rows), parts


@functools.partial(jax.jit, static_argnames="at")
def diagonal(problem: Problem, at: Placement) -> Float[Array, " P"]:
    """The diagonal of F: squared norms of the factor's columns, without the matrix."""
    return sum_over_samples(lambda part: jnp.sum(jnp.square(factor_rows(part)), 0), problem, at)


def dense_with_progress(problem: Problem, chunk: int) -> Float[Array, "P P"]:
    """The matrix, with a progress bar on the terminal."""
    from rich.console import Console
    from rich.progress import Progress

    def build(route: Route) -> Float[Array, "P P"]:
        parts = None
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("Fisher matrix", total=problem.rows)
            for done, parts in dense_steps(problem, route):
                jax.block_until_ready(parts)
                bar.update(task, completed=done)
        assert parts is not None
        return route.finish(problem, parts)

    return _first_possible(build, problem, chunk)


def leaf_block(matrix: Float[Array, "P P"], problem: Problem, i: str, j: str) -> Float[Array, "p q"]:
    """The block of two leaves, of the matrix of a problem restricted to them."""
    start, where = 0, {}
    for name, leaf in zip(leaf_paths(problem.params), jax.tree.leaves(problem.params), strict=True):
        where[name] = slice(start, start + leaf.size)
        start += leaf.size
    return matrix[where[i], where[j]]

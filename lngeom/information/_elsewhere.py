"""The outputs at other inputs of the same kind: whether a direction is null for these data alone.

Each leaf of the inputs is drawn anew from its own range: between two of its values where they are real numbers, from
its first integer to its last, or from its values where they are few. So zeros, repeated rows and parts that share no
input, which hide directions, do not stay.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lngeom._core.draws import probe_generator
from lngeom._core.text import counted
from lngeom.information._problem import Problem
from lngeom.information._products import AbstractFisher, product_chunks, products, quadratic_forms, unchecked
from lngeom.information._sharding import Placement

DRAWS = 20
"""Most draws of other inputs, which stop once another one sees no further direction."""

AT_A_TIME = 8
"""Directions whose forms are computed in one call: one program does for any number."""


def forms(F: AbstractFisher, columns: Float[np.ndarray, "P m"]) -> Float[np.ndarray, " m"]:
    """vᵀFv of columns; one program for all numbers of columns."""
    batch = min(AT_A_TIME, F.plan.batch)
    found = F.summed(_of_parts(quadratic_forms), _padded(F, columns), at=product_chunks, batch=batch)
    return np.asarray(found, np.float64)[: columns.shape[1]]


def gram(F: AbstractFisher, columns: Float[np.ndarray, "P m"]) -> Float[np.ndarray, "m m"]:
    """Vᵀ F V of columns that F sees: by the factor, or by products where it does not fit or gives another form."""
    by_factor = _gram_by_factor(F, columns)
    if by_factor is not None:
        return by_factor
    batch = min(AT_A_TIME, F.plan.batch)
    found = F.summed(_of_parts(products), _padded(F, columns), at=product_chunks, batch=batch)
    return columns.T @ np.asarray(found, np.float64)[:, : columns.shape[1]]


def _gram_by_factor(F: AbstractFisher, columns: Float[np.ndarray, "P m"]) -> Float[np.ndarray, "m m"] | None:
    """(A V)ᵀ A V; None where A does not fit, or does not give the form of one random direction to √eps."""
    try:
        rows = np.asarray(unchecked(F).factor())
    except MemoryError:
        return None
    images = (rows @ columns.astype(rows.dtype)).astype(np.float64)
    one = probe_generator(3).standard_normal(columns.shape[1])
    form = forms(F, (columns @ one)[:, None])[0]
    near = abs(form - np.sum((images @ one) ** 2)) <= float(jnp.finfo(rows.dtype).eps) ** 0.5 * form
    return images.T @ images if near else None


def _padded(F: AbstractFisher, columns: Float[np.ndarray, "P m"]) -> Float[np.ndarray, "P M"]:
    """The columns with further ones of zeros, up to a multiple of `AT_A_TIME`."""
    return np.pad(columns, ((0, 0), (0, -columns.shape[1] % AT_A_TIME))).astype(F.problem.dtype)


def _of_parts(function: Callable[..., Array]) -> Callable[..., np.ndarray]:
    """The same for any number of columns, by a program for `AT_A_TIME` of them."""

    def all_of(problem: Problem, at: Placement, columns: Float[np.ndarray, "P M"], batch: int) -> np.ndarray:
        some = np.split(columns, columns.shape[1] // AT_A_TIME, 1)
        return np.concatenate([np.asarray(function(problem, at, part, batch)) for part in some], -1)

    return all_of


class Elsewhere:
    """The Fisher matrix at other inputs: those of each part, where it is a sum, come from the part's own.

    Args:
        F: at the inputs given.
        largest: the largest singular value of its factor.
    """

    def __init__(self, F: AbstractFisher, largest: float):
        self.given, self.largest = F, largest

    def _at(self, draw: int) -> AbstractFisher:
        def drawn(problem: Problem, part: int) -> Problem:
            rng = probe_generator(draw, part)
            return replace(problem, inputs=jax.tree.map(lambda leaf: _drawn(leaf, rng), problem.inputs), scores=None)

        return self.given.changed(drawn)

    def seen_of(self, families: list[Float[np.ndarray, "P m"]], close: float) -> list[Float[np.ndarray, "P j"] | None]:
        """Of each family of orthonormal null directions, a basis of those that are not null at other inputs.

        So many samples see no more than so many directions: each further draw is asked about the rest, as long as it
        sees a random direction of the rest, which it does if it sees any. None where the outputs are not finite.
        """
        rng, rest = probe_generator(1), list(families)
        found = [columns[:, :0] for columns in families]
        waiting, unknown = list(range(len(families))), set[int]()
        for draw in range(DRAWS):
            waiting = [k for k in waiting if rest[k].shape[1]]
            if not waiting:
                break
            there = self._at(draw)
            with np.errstate(invalid="ignore"):
                sizes = np.sqrt(np.maximum(forms(there, np.hstack([_signed(rng, rest[k]) for k in waiting])), 0))
            if not draw:
                unknown = {k for k, size in zip(waiting, sizes, strict=True) if not np.isfinite(size)}
            waiting = [k for k, size in zip(waiting, sizes, strict=True) if 10 * close * self.largest <= size < np.inf]
            if not waiting:
                break
            grams = gram(there, np.hstack([rest[k] for k in waiting]))
            edges = np.cumsum([0, *(rest[k].shape[1] for k in waiting)])
            if not np.all(np.isfinite(grams)):
                break
            for k, (i, j) in zip(waiting, itertools.pairwise(edges), strict=True):
                values, vectors = np.linalg.eigh(grams[i:j, i:j])
                sees = np.sqrt(np.maximum(values, 0)) / self.largest >= 10 * close
                found[k] = np.hstack([found[k], rest[k] @ vectors[:, sees]])
                rest[k] = rest[k] @ vectors[:, ~sees]
        return [None if k in unknown else columns for k, columns in enumerate(found)]

    def described(self) -> str:
        """What the given inputs are like; of those of a loader or a sum, how many there are."""
        F = self.given
        return counted(F.samples, "sample") if F.in_parts else describe_rows(F.problem)


def _signed(rng: np.random.Generator, columns: Float[np.ndarray, "P m"]) -> Float[np.ndarray, "P 1"]:
    """The sum of the columns with random signs: a random direction, of length √m."""
    return columns @ rng.choice([-1.0, 1.0], (columns.shape[1], 1))


def _drawn(leaf: Any, rng: np.random.Generator) -> Any:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    values = np.asarray(leaf)
    if not values.size or values.dtype == bool:
        return jnp.asarray(rng.permutation(values.reshape(-1)).reshape(values.shape))
    if np.issubdtype(values.dtype, np.integer):
        low, high = int(values.min()), int(values.max())
        return jnp.asarray(rng.integers(low, high, values.shape, endpoint=True).astype(values.dtype))
    wide = values.astype(np.float64).reshape(-1)
    a, b = rng.choice(wide, wide.size), rng.choice(wide, wide.size)
    share = rng.random(wide.size) if not np.all(wide == np.round(wide)) else np.zeros(wide.size)
    return jnp.asarray((a + share * (b - a)).reshape(values.shape), leaf.dtype)


def describe_rows(problem: Problem) -> str:
    """How many rows the inputs have, how many of them are distinct, and parts of them that share no input."""
    rows = np.concatenate(
        [
            np.asarray(leaf, np.float64).reshape(len(leaf), -1)
            for leaf in jax.tree.leaves(problem.inputs)
            if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        ],
        1,
    )[: problem.samples]
    distinct = len(np.unique(rows, axis=0))
    parts = _parts(rows != 0)
    text = f"{distinct} distinct rows of {len(rows)}"
    return text if parts < 2 else f"{text}, in {parts} parts that share no input"


def _parts(used: np.ndarray) -> int:
    """Number of groups of rows that have no input in common that is not zero."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    n, d = used.shape
    row, column = np.nonzero(used)
    graph = csr_matrix((np.ones(len(row)), (row, n + column)), shape=(n + d, n + d))
    _, labels = connected_components(graph, directed=False)
    return len(np.unique(labels[:n]))

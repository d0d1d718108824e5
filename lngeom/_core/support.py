"""Null directions of small support: the fewest leaves in which some of them lie, and how many entries each one moves.

Among null vectors that vanish on some leaves, further leaves are left out one after the other, as long as a direction
remains that is not yet explained. No leaf of the result can be left out.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float

LARGEST = 600
"""Null directions up to which small supports are looked for; the time grows as their cube."""

SHOWN = 12
"""Supports that are looked for; what remains is counted together."""


@dataclass(frozen=True)
class Support:
    """Null directions that share the leaves they move.

    Attributes:
        leaves: path of a leaf, how many of its entries one direction moves (the median), and its size.
        columns: the directions [P k], in a basis where each has an entry that is 1 in it and 0 in the others.
    """

    leaves: tuple[tuple[str, int, int], ...]
    columns: Float[np.ndarray, "P k"] = field(repr=False, compare=False)

    @property
    def dimension(self) -> int:
        """k, what they add to the directions before them."""
        return self.columns.shape[1]

    def __str__(self) -> str:
        return ", ".join(f"{name} ({moved} of {size})" for name, moved, size in self.leaves)


def supports(
    null: Float[np.ndarray, "P k"],
    explained: Float[np.ndarray, "P e"],
    leaves: dict[str, slice],
    close: float,
) -> Iterator[Support]:
    """Divides the null directions outside those explained by the leaves in which they lie.

    Args:
        null: orthonormal columns.
        explained: orthonormal columns within their span.
        leaves: slice of each leaf in the ravelled parameters, by path.
        close: accuracy of the null space; a hundred times that counts as zero.

    Yields:
        Supports, whose dimensions add up to k − e.
    """
    zero = 100 * close
    rest = scipy.linalg.null_space(explained.T @ null) if explained.shape[1] else np.eye(null.shape[1])
    grams = {name: null[where].T @ null[where] for name, where in leaves.items()}
    for _ in range(SHOWN if null.shape[1] <= LARGEST else 0):
        if not rest.shape[1]:
            return
        share = {name: np.sum((gram @ rest) * rest) for name, gram in grams.items()}
        inside = np.eye(null.shape[1])
        for name in sorted(share, key=share.__getitem__):
            values, vectors = np.linalg.eigh(inside.T @ grams[name] @ inside)
            fewer = inside @ vectors[:, values < zero**2]
            if fewer.shape[1] and np.linalg.norm(rest.T @ fewer, 2) > math.sqrt(zero):
                inside = fewer
        columns = null @ inside
        triangular: Any = scipy.linalg.qr(columns.T, mode="r", pivoting=True)
        pivots = triangular[1][: inside.shape[1]]
        columns = columns @ np.linalg.inv(columns[pivots])
        columns[np.abs(columns) < zero * np.max(np.abs(columns), 0)] = 0
        chosen = []
        for k in np.argsort(np.count_nonzero(columns, axis=0), kind="stable"):
            direction = rest.T @ (null.T @ columns[:, k])
            size = np.linalg.norm(direction)
            if size > math.sqrt(zero) * np.linalg.norm(columns[:, k]):
                chosen.append(k)
                rest = rest @ scipy.linalg.null_space(direction[None] / size)
        if not chosen:
            break
        yield _support(columns[:, chosen], leaves)
    if rest.shape[1]:
        yield _support(null @ rest, leaves)


def _support(columns: np.ndarray, leaves: dict[str, slice]) -> Support:
    """Directions with the leaves where they are not zero, relative to their largest entries."""
    moved = np.abs(columns) > 1e-6 * np.max(np.abs(columns), 0)
    counts = {name: int(np.median(np.sum(moved[where], 0))) for name, where in leaves.items() if moved[where].any()}
    sizes = {name: where.stop - where.start for name, where in leaves.items()}
    return Support(tuple((name, max(count, 1), sizes[name]) for name, count in counts.items()), columns)

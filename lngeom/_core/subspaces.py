"""Subspaces given by columns: the part in a null space, what one adds to others, and the fewest things they move."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

ALONE = 1e-6
"""Share of a unit vector below which it does not move something."""


class Part(NamedTuple):
    """The null directions in the span of columns.

    Attributes:
        coordinates: orthonormal columns [k j] in the basis of the null space.
        coefficients: the same directions by the columns, each with norm 1 [m j].
    """

    coordinates: Float[np.ndarray, "k j"]
    coefficients: Float[np.ndarray, "m j"]

    def combined(self, z: Float[np.ndarray, "j q"]) -> "Part":
        """Combinations of the directions."""
        return Part(self.coordinates @ z, self.coefficients @ z)


class Account:
    """Which null directions are explained, in coordinates of an orthonormal basis of the null space.

    Args:
        null: orthonormal columns [P k].
        close: sine of the angle to the null space up to which a direction is null.
    """

    def __init__(self, null: Float[np.ndarray, "P k"], close: float):
        self.null, self.close = null, close
        self._explained = np.zeros((null.shape[1], null.shape[1]))
        self._count = 0

    @property
    def explained(self) -> Float[np.ndarray, "k e"]:
        """Orthonormal columns."""
        return self._explained[:, : self._count]

    @property
    def left(self) -> int:
        """Number of directions that are not explained."""
        return self.null.shape[1] - self._count

    def part(self, rows: np.ndarray, columns: Float[np.ndarray, "r m"]) -> Part:
        """The part of a span that is null.

        Args:
            rows: the entries of the parameters in which the columns lie.
            columns: on these entries; zero elsewhere.
        """
        norms = np.linalg.norm(columns, axis=0)
        used = np.flatnonzero(norms)
        unit = columns[:, used] / norms[used]
        inside, back = _basis(unit, self.close)
        product = inside.T @ self.null[rows]
        squares, vectors = np.linalg.eigh(product @ product.T)
        chosen = vectors[:, 1 - squares < self.close**2]
        coefficients = np.zeros((columns.shape[1], chosen.shape[1]))
        coefficients[used] = back @ chosen
        return Part(product.T @ chosen, coefficients)

    def take(self, coordinates: Float[np.ndarray, "k j"]) -> Float[np.ndarray, "k i"]:
        """Adds directions to those explained; returns orthonormal ones that are new.

        Less than a hundred times `close` counts as nothing.
        """
        if not coordinates.shape[1] or not self.left:
            return coordinates[:, :0]
        rest = coordinates - self.explained @ (self.explained.T @ coordinates)
        u, s, _ = np.linalg.svd(rest, full_matrices=False)
        fresh = u[:, s > 100 * self.close][:, : self.left]
        self._explained[:, self._count : self._count + fresh.shape[1]] = fresh
        self._count += fresh.shape[1]
        return fresh

    def rest(self) -> Float[np.ndarray, "k c"]:
        """Orthonormal coordinates of what is not explained."""
        complete = np.linalg.qr(self.explained, mode="complete")[0] if self._count else np.eye(self.null.shape[1])
        return complete[:, self._count :]


def _basis(unit: Float[np.ndarray, "r m"], close: float) -> tuple[np.ndarray, np.ndarray]:
    """Orthonormal basis of unit columns, and its vectors as combinations of these."""
    gram = unit.T @ unit
    if np.allclose(gram, np.eye(len(gram)), rtol=0, atol=1e-15 * max(1, len(gram))):
        return unit, np.eye(len(gram))
    if len(unit) > 2 * len(gram):
        q, r = np.linalg.qr(unit)
        u, s, right = np.linalg.svd(r)
        u = q @ u
    else:
        u, s, right = np.linalg.svd(unit, full_matrices=False)
    kept = s > close * s[0]
    return u[:, kept], right[kept].T / s[kept]


def by_unit(part: Part, units: np.ndarray, members: np.ndarray) -> Iterator[tuple[Part, list[int], list[int]]]:
    """Divides a part into directions that move as few members as can be, each in one unit.

    Args:
        part: directions, by columns.
        units: unit of each column.
        members: member of each column.

    Yields:
        Directions that move the same members, the units in which they do, and the members. What ties units to each
        other comes last, with all of its units and members.
    """
    q, _ = np.linalg.qr(part.coefficients)
    back = np.linalg.lstsq(part.coefficients, q, rcond=None)[0]
    groups: dict[tuple[int, ...], list[tuple[int, np.ndarray]]] = {}
    alone = []
    for unit in np.unique(units):
        inside = np.flatnonzero(units == unit)
        _, s, right = np.linalg.svd(q[inside], full_matrices=False)
        z = right[1 - s**2 < ALONE**2 * 100].T
        if not z.shape[1]:
            continue
        alone.append(z)
        for row, combination in _echelon(q[inside] @ z):
            moved = tuple(sorted({int(members[inside[k]]) for k in np.flatnonzero(np.abs(row) > ALONE)}))
            groups.setdefault(moved, []).append((int(unit), z @ combination))
    for moved, found in groups.items():
        yield part.combined(back @ np.stack([z for _, z in found], 1)), sorted({u for u, _ in found}), list(moved)
    count = sum(z.shape[1] for z in alone)
    if count < q.shape[1]:
        z = np.eye(q.shape[1]) if not count else np.linalg.qr(np.hstack(alone), mode="complete")[0][:, count:]
        moved = np.max(np.abs(q @ z), 1) > ALONE
        yield part.combined(back @ z), sorted(set(units[moved].tolist())), sorted(set(members[moved].tolist()))


def _echelon(columns: Float[np.ndarray, "m j"]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Vectors of a span whose supports are minimal (reduced echelon form), and the combinations that give them."""
    rows, j = columns.T.copy(), columns.shape[1]
    combinations = np.eye(j)
    for k in range(j):
        block = np.abs(rows[k:])
        column = int(np.argmax(np.max(block, 0) > 1e-3 * np.max(block)))  # the first that is not small
        pivot = k + int(np.argmax(block[:, column]))
        rows[[k, pivot]], combinations[[k, pivot]] = rows[[pivot, k]], combinations[[pivot, k]]
        scale = rows[k, column]
        rows[k], combinations[k] = rows[k] / scale, combinations[k] / scale
        factors = rows[:, column].copy()
        factors[k] = 0
        rows -= factors[:, None] * rows[k]
        combinations -= factors[:, None] * combinations[k]
    yield from zip(rows / np.max(np.abs(rows), 1, keepdims=True), combinations, strict=True)

"""Null directions: how they are gathered, described and handed out."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from lngeom._numerics import decide_rank


@dataclass(frozen=True)
class Condition:
    """A condition of the theory, checked on the model and data at hand.

    Attributes:
        name: what is required.
        holds: whether it is so here.
        detail: the numbers it was judged by.
    """

    name: str
    holds: bool
    detail: str


@dataclass(frozen=True, repr=False)
class PredictedNullspace:
    """What the theory says about the null space of a Fisher matrix.

    Unpacks as ``basis, dimension``.

    Attributes:
        basis: orthonormal columns [P K] in the order of `ravel_pytree`: the directions which are null for *every* data
            set with this span.
        dimension: predicted dimension for the data at hand; more than K where there are too few samples to see the
            rest of the parameters.
        directions: pairs (description, number of directions it adds to those before it).
        conditions: the conditions under which the dimension is exact.
    """

    basis: Float[np.ndarray, "P K"]
    dimension: int
    directions: tuple[tuple[str, int], ...]
    conditions: tuple[Condition, ...]

    def __iter__(self):
        return iter((self.basis, self.dimension))

    def __repr__(self) -> str:
        """Its dimension and directions, not its arrays."""
        parts = "; ".join(f"{count} {what}" for what, count in self.directions if count)
        exact = "exact" if self.exact else "a lower bound"
        return f"PredictedNullspace(dimension {self.dimension} of {self.basis.shape[0]:,}, {exact}: {parts})"

    @property
    def exact(self) -> bool:
        """Whether every condition holds."""
        return all(c.holds for c in self.conditions)

    def describe(self) -> str:
        """The directions and their counts, and the conditions that fail, as text."""
        lines = [f"{count:5d}  {what}" for what, count in self.directions if count]
        unseen = self.dimension - self.basis.shape[1]
        if unseen:
            lines.append(f"{unseen:5d}  not seen by so few samples")
        lines.append(f"{self.dimension:5d}  in all")
        lines += [f"condition fails: {c.name} ({c.detail})" for c in self.conditions if not c.holds]
        return "\n".join(lines)


class Collector:
    """Gathers null directions, and keeps those that are linearly independent of what is there."""

    def __init__(self, units: int, inputs: int):
        self.units, self.inputs = units, inputs
        self.basis = np.zeros((units * (inputs + 2), 0))
        self.directions: list[tuple[str, int]] = []

    def add(self, what: str, weights=None, bias=None, gain=None) -> None:
        """Adds K directions: arrays [K H D], [K H], [K H], zero where not given."""
        given = [v for v in (weights, bias, gain) if v is not None]
        count = len(given[0])
        shapes = ((self.units, self.inputs), (self.units,), (self.units,))
        parts = [
            np.zeros((count, *shape)) if v is None else np.asarray(v, float)
            for v, shape in zip((weights, bias, gain), shapes, strict=True)
        ]
        new = np.concatenate([p.reshape(count, int(np.prod(p.shape[1:]))) for p in parts], 1).T
        norms = np.linalg.norm(new, axis=0)
        new = new[:, norms > 0] / norms[norms > 0]
        for _ in range(2):
            new -= self.basis @ (self.basis.T @ new)
        left, s, _ = np.linalg.svd(new, full_matrices=False)
        fresh = left[:, s > 1e-8]
        self.basis = np.concatenate([self.basis, fresh], 1)
        self.directions.append((what, fresh.shape[1]))


def spans(matrix: Float[np.ndarray, "N D"]) -> tuple[np.ndarray, np.ndarray]:
    """Orthonormal bases of the row space [D r] and of the kernel [D D−r] of a matrix."""
    _, s, right = np.linalg.svd(matrix, full_matrices=len(matrix) < matrix.shape[1])
    rank = decide_rank(s, *matrix.shape).rank
    return right[:rank].T, right[rank:].T

"""Changes of a parametrization that a known symmetry would move along, built from the values of its leaves alone.

Scales, shifts, rescaling of units between two leaves, changes of basis of a shared axis: each is a subspace of vectors
in the order of `ravel_pytree`, with a name in terms of leaves. Whether a change is null is not known here.
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from lngeom._core.text import counted

if TYPE_CHECKING:  # models that are no transformers do without
    from lngeom.transformers.description import Stack

MIXING = 24
"""Longest shared axis for which changes of basis are tried: they span 2·length² directions."""

Candidate = tuple[str, Float[np.ndarray, "P k"]]


class Leaf(NamedTuple):
    """A differentiated leaf: its path, value, and first position in the ravelled vector."""

    name: str
    value: Float[np.ndarray, "..."]
    start: int


class _Subspaces:
    """Builds subspaces of ravelled vectors from arrays shaped like leaves."""

    def __init__(self, leaves: list[Leaf]):
        self.leaves = leaves
        self.size = sum(leaf.value.size for leaf in leaves)

    def embed(self, leaf: Leaf, columns: Float[np.ndarray, "k ..."]) -> Float[np.ndarray, "P k"]:
        """Changes of one leaf, one each along the first axis, as columns."""
        result = np.zeros((self.size, len(columns)))
        result[leaf.start : leaf.start + leaf.value.size] = columns.reshape(len(columns), leaf.value.size).T
        return result

    def scale(self, leaf: Leaf) -> Float[np.ndarray, "P 1"]:
        return self.embed(leaf, leaf.value[None])

    def shift(self, leaf: Leaf, axis: int) -> Float[np.ndarray, "P k"]:
        """Every change that is constant along an axis."""
        shape = tuple(1 if k == axis else n for k, n in enumerate(leaf.value.shape))
        patterns = np.eye(math.prod(shape)).reshape(-1, *shape)
        return self.embed(leaf, np.broadcast_to(patterns, (len(patterns), *leaf.value.shape)))

    def slices(self, leaf: Leaf, axis: int, value: Float[np.ndarray, "..."] | None = None) -> Float[np.ndarray, "P n"]:
        """The scale of each slice along an axis."""
        value = leaf.value if value is None else value
        length = value.shape[axis]
        mask = np.eye(length).reshape(length, *(length if k == axis else 1 for k in range(value.ndim)))
        return self.embed(leaf, mask * value[None])

    def mixing(self, leaf: Leaf, axis: int) -> Float[np.ndarray, "P n2"]:
        """Every linear change of basis along an axis."""
        moved = np.moveaxis(leaf.value, axis, -1)
        length = moved.shape[-1]
        generators = np.eye(length * length).reshape(-1, length, length)
        return self.embed(leaf, np.moveaxis(np.einsum("...i,kij->k...j", moved, generators), -1, axis + 1))


def candidates_of_stack(stack: "Stack", params: Any) -> Iterator[list[Candidate]]:
    """The symmetries of a described transformer, family by family.

    Args:
        stack: the description.
        params: its arrays by name.

    Yields:
        One candidate a family.

    Raises:
        ValueError: if the parameters are not those of the stack.
    """
    from lngeom.transformers.arrays import StackArrays
    from lngeom.transformers.families import FAMILIES
    from lngeom.transformers.symmetries import symmetries

    if not isinstance(params, Mapping) or set(params) != set(stack.arrays):
        raise ValueError(
            f"parameters described by a stack are a dictionary of its arrays, all differentiated: {stack.arrays[:3]} …"
        )
    stack.check(params)
    arrays = StackArrays(stack, params)
    families: dict[str, list[np.ndarray]] = {code: [] for code in FAMILIES}
    for family in symmetries(arrays):
        families[family.code].append(family.columns(arrays))
    for code, columns in families.items():
        if columns:
            yield [(FAMILIES[code], np.hstack(columns))]


def candidates(leaves: list[Leaf], null: np.ndarray, diagonal: np.ndarray) -> Iterator[Iterable[Candidate]]:
    """Candidates in groups, the simplest first; within a group, that which explains most is to be taken first.

    Args:
        leaves: all leaves, in order.
        null: orthonormal columns of the null space, in which patterns along an axis are looked for.
        diagonal: of the Fisher matrix; where it is 0 no output depends on the entry.
    """
    basis = _Subspaces(leaves)
    axes = [(leaf, axis) for leaf in leaves for axis in range(leaf.value.ndim) if leaf.value.shape[axis] > 1]
    matrices = [(leaf, axis) for leaf, axis in axes if leaf.value.ndim > 1]
    unused = [(leaf, np.flatnonzero(diagonal[leaf.start : leaf.start + leaf.value.size] == 0)) for leaf in leaves]
    yield [
        (f"entries of {leaf.name} that no output depends on", np.eye(basis.size)[:, leaf.start + entries])
        for leaf, entries in unused
        if len(entries)
    ]
    yield [(f"scale of {leaf.name}", basis.scale(leaf)) for leaf in leaves]
    yield [_fixed_pattern(basis, leaf, axis, null) for leaf, axis in matrices]
    yield [(f"shift of {leaf.name} along axis {axis}", basis.shift(leaf, axis)) for leaf, axis in axes]
    yield [
        (f"scale of each slice of {leaf.name} along axis {axis}", basis.slices(leaf, axis)) for leaf, axis in matrices
    ]
    yield from _joint(basis, axes)


def _joint(basis: _Subspaces, axes: list[tuple[Leaf, int]]) -> Iterator[Iterable[Candidate]]:
    """Symmetries that move several leaves at once; there are many candidates, which are made one at a time."""
    by_length = {}
    for leaf, axis in axes:
        by_length.setdefault(leaf.value.shape[axis], []).append((leaf, axis))

    def groups(count: int) -> Iterator[tuple[int, str, tuple[tuple[Leaf, int], ...]]]:
        for length, group in by_length.items():
            for chosen in itertools.combinations(group, count):
                if len({leaf.name for leaf, _ in chosen}) == count:
                    yield length, " and ".join(leaf.name for leaf, _ in chosen), chosen

    def rescaling(count: int) -> Iterator[Candidate]:
        return (
            (f"rescaling of {counted(n, 'unit')} between {names}", np.hstack([basis.slices(*item) for item in chosen]))
            for n, names, chosen in groups(count)
        )

    pairs = (
        (f"scale of {a.name} against {b.name}", np.hstack([basis.scale(a), basis.scale(b)]))
        for a, b in itertools.combinations(basis.leaves, 2)
    )
    yield itertools.chain(rescaling(2), pairs)
    yield rescaling(3)
    yield (
        (
            f"trades between centred slices of {names} ({counted(n, 'unit')})",
            np.hstack([basis.slices(leaf, axis, _centred(leaf, axis)) for leaf, axis in chosen]),
        )
        for n, names, chosen in groups(2)
        if {leaf.value.ndim > 1 for leaf, _ in chosen} == {True, False}
    )
    yield (
        (
            f"change of basis between axis {i} of {a.name} and axis {j} of {b.name}",
            np.hstack([basis.mixing(a, i), basis.mixing(b, j)]),
        )
        for (a, i), (b, j) in itertools.combinations(axes, 2)
        if min(a.value.ndim, b.value.ndim) > 1 and a.value.shape[i] == b.value.shape[j] <= MIXING
    )
    yield [("joint scale of several leaves", np.hstack([basis.scale(leaf) for leaf in basis.leaves]))]
    shifts = [basis.shift(leaf, axis) for leaf, axis in axes]
    if shifts and sum(s.shape[1] for s in shifts) <= basis.size:
        yield [("joint shift of several leaves", np.hstack(shifts))]


def _centred(leaf: Leaf, axis: int) -> np.ndarray:
    return leaf.value - leaf.value.mean(axis, keepdims=True) if leaf.value.ndim > 1 else leaf.value


def _fixed_pattern(basis: _Subspaces, leaf: Leaf, axis: int, null: np.ndarray) -> Candidate:
    """Vectors κ along an axis for which κ ⊗ anything is null: shifts, and what the data do not span."""
    part = null[leaf.start : leaf.start + leaf.value.size].T.reshape(-1, *leaf.value.shape)
    flat = np.moveaxis(part, axis + 1, -1).reshape(-1, leaf.value.shape[axis])
    others = leaf.value.size // leaf.value.shape[axis]
    values, vectors = np.linalg.eigh(flat.T @ flat)
    kappa = vectors[:, values > others - 0.01]
    projector = kappa @ kappa.T
    inside = projector > 1e-6 / len(projector)
    blocks = inside / np.maximum(np.sum(inside, 1, keepdims=True), 1)
    moved = np.moveaxis(leaf.value, axis, -1).shape
    patterns = np.eye(others).reshape(others, 1, *moved[:-1], 1) * kappa.T.reshape(
        1, -1, *(1 for _ in moved[:-1]), moved[-1]
    )
    if np.allclose(projector, blocks, atol=1e-3):
        groups = "" if kappa.shape[1] == 1 else f" in each of {kappa.shape[1]} groups"
        name = f"shift of {leaf.name} along axis {axis}{groups}"
    else:
        name = f"{counted(kappa.shape[1], 'fixed pattern')} along axis {axis} of {leaf.name} that the data do not span"
    return name, basis.embed(leaf, np.moveaxis(patterns.reshape(-1, *moved), -1, axis + 1))


def name_with_units(name: str, subspace: np.ndarray, part: np.ndarray) -> str:
    """The name of a rescaling of units, with their numbers where not all of them are meant."""
    found = re.match(r"rescaling of (\d+) units between ", name)
    if not found:
        return name
    count = int(found[1])
    units = [k for k in range(count) if np.any(np.abs(part[np.any(subspace[:, k::count] != 0, axis=1)]) > 1e-6)]
    if len(units) == count:
        return name
    which = f"unit{'s' if len(units) > 1 else ''} {', '.join(map(str, units))} (of {count})"
    return f"rescaling of {which} between {name[found.end() :]}"

"""Changes that are read from the values of leaves: their scales, shifts and slices, and fixed patterns."""

import itertools
import math
from collections.abc import Iterable, Iterator

import numpy as np
import scipy
from jaxtyping import Float

from lngeom._core.subspaces import Account, Part, by_unit
from lngeom._core.text import counted
from lngeom.information.candidates.candidate import (
    OFFSET,
    PAIRS,
    Candidate,
    Leaf,
    Named,
    indicators,
    listed,
    named_as,
    named_units,
    opened,
    slices,
)


def of_one_leaf(leaves: list[Leaf], null: np.ndarray, close: float) -> Iterator[Iterable[Candidate]]:
    """Entries, the scale, fixed patterns, shifts, and scales of slices, in this order."""
    axes = [(leaf, axis) for leaf in leaves for axis in range(leaf.value.ndim) if leaf.value.shape[axis] > 1]
    matrices = [(leaf, axis) for leaf, axis in axes if leaf.value.ndim > 1]

    def alone(leaf: Leaf, columns: np.ndarray, name: str, unread: str = "") -> Candidate:
        return Candidate(leaf.entries, columns, named_as(name, [leaf.name]), unread)

    inside = 1 - np.sum(np.square(null), 1) < close**2  # entries that are null directions themselves
    unused = ((leaf, np.flatnonzero(inside[leaf.entries])) for leaf in leaves)
    yield [
        alone(
            leaf,
            np.eye(leaf.value.size)[:, entries],
            f"entries of {leaf.name} that no output depends on",
            _unread(leaf),
        )
        for leaf, entries in unused
        if len(entries)
    ]
    yield [alone(leaf, leaf.value.reshape(-1, 1), f"scale of {leaf.name}") for leaf in leaves]
    yield [c for leaf, axis in axes for c in _fixed_pattern(leaf, (axis,), null)]
    yield [alone(leaf, _shift(leaf, axis), f"shift of {leaf.name} along axis {axis}") for leaf, axis in axes]
    yield [
        alone(leaf, slices(leaf.value, [axis]), f"scale of each slice of {leaf.name} along axis {axis}")
        for leaf, axis in matrices
    ]
    yield [
        c
        for leaf, axis in matrices
        if leaf.value.ndim > 2 and leaf.value.size // leaf.value.shape[axis] <= OFFSET
        for c in _fixed_pattern(leaf, tuple(k for k in range(leaf.value.ndim) if k != axis), null)
    ]


def scales(leaves: list[Leaf]) -> Candidate:
    """Scales of all leaves, in any ratios."""
    rows = np.concatenate([leaf.entries for leaf in leaves])
    columns = np.zeros((len(rows), len(leaves)))
    at = 0
    for k, leaf in enumerate(leaves):
        columns[at : at + leaf.value.size, k] = leaf.value.reshape(-1)
        at += leaf.value.size

    def named(part: Part) -> Iterator[Named]:
        for found, _, members in by_unit(part, np.zeros(len(leaves), int), np.arange(len(leaves))):
            names = [leaves[k].name for k in members]
            name = f"scale of {' against '.join(names)}" if len(names) < 3 else f"joint scale of {listed(names)}"
            yield name, found, tuple(names)

    return Candidate(rows, columns, named)


def of_two_leaves(leaves: list[Leaf], account: Account) -> Iterator[Candidate]:
    """Units of one number in two leaves that have directions without a name: slices and joints cut a program's axes."""
    for (a, i), (b, j) in _pairs_of_axes(leaves, account):
        n = a.value.shape[i]
        blocks = slices(a.value, [i]), slices(b.value, [j])
        rows = np.concatenate([a.entries, b.entries])
        units, members = np.tile(np.arange(n), 2), np.repeat([0, 1], n)
        yield Candidate(rows, scipy.linalg.block_diag(*blocks), named_units([a, b], units, members, n))


def of_complex_units(leaves: list[Leaf], account: Account) -> Iterator[Candidate]:
    """Units whose slices are pairs, as real and imaginary parts: linear maps of these."""
    for (a, i), (b, j) in _pairs_of_axes(leaves, account):
        n = a.value.shape[i]
        pairs = [[k for k, m in enumerate(leaf.value.shape) if m == 2 and k != unit] for leaf, unit in ((a, i), (b, j))]
        for k, m in itertools.product(*pairs):
            blocks = _mixed_pairs(a.value, k, i), _mixed_pairs(b.value, m, j)
            rows = np.concatenate([a.entries, b.entries])
            units, members = np.tile(np.arange(n), 8), np.repeat([0, 1], 4 * n)
            what = "change of basis of the two components of"
            yield Candidate(rows, scipy.linalg.block_diag(*blocks), named_units([a, b], units, members, n, what))


def _pairs_of_axes(leaves: list[Leaf], account: Account) -> list[tuple[tuple[Leaf, int], tuple[Leaf, int]]]:
    """Axes of one size in two leaves that have directions without a name."""
    open_ = [leaves[k] for k in opened(leaves, account)]
    axes = [(leaf, axis) for leaf in open_ for axis in range(leaf.value.ndim) if leaf.value.shape[axis] > 1]
    pairs = [
        (a, b)
        for a, b in itertools.combinations(axes, 2)
        if a[0] is not b[0] and a[0].value.shape[a[1]] == b[0].value.shape[b[1]]
    ]
    return pairs[:PAIRS]


def _mixed_pairs(value: np.ndarray, axis: int, unit: int) -> Float[np.ndarray, "p 4n"]:
    """Each 2 × 2 matrix along an axis of size 2, in each unit."""
    found = []
    for source, target in itertools.product(range(2), repeat=2):
        changed = np.zeros_like(value)
        np.moveaxis(changed, axis, 0)[target] = np.moveaxis(value, axis, 0)[source]
        found.append(slices(changed, [unit]))
    return np.hstack(found)


def _shift(leaf: Leaf, axis: int) -> Float[np.ndarray, "p m"]:
    """Every change that is constant along an axis."""
    return indicators(leaf.value.shape, [k for k in range(leaf.value.ndim) if k != axis])


def _fixed_pattern(leaf: Leaf, axes: tuple[int, ...], null: np.ndarray) -> list[Candidate]:
    """Vectors κ along some axes for which κ ⊗ anything is null: shifts, and what meets a space that is not filled."""
    shape = leaf.value.shape
    rest = [k for k in range(len(shape)) if k not in axes]
    length = math.prod(shape[k] for k in axes)
    others = leaf.value.size // length
    part = null[leaf.start : leaf.start + leaf.value.size].reshape(*shape, -1)
    flat = part.transpose(*axes, *rest, len(shape)).reshape(length, -1)
    values, vectors = np.linalg.eigh(flat @ flat.T)
    kappa = vectors[:, values > others - 0.01]
    if not kappa.shape[1]:
        return []
    projector = kappa @ kappa.T
    inside = projector > 1e-6 / len(projector)
    blocks = inside / np.maximum(np.sum(inside, 1, keepdims=True), 1)
    wide = [n if k in axes else 1 for k, n in enumerate(shape)]
    columns = [indicators(shape, rest, np.broadcast_to(v.reshape(wide), shape)) for v in kappa.T]
    unread = ""
    where = f"axis {axes[0]}" if len(axes) == 1 else f"axes {', '.join(map(str, axes))}"
    if kappa.shape[1] == length:
        name, unread = f"any change of {leaf.name}", _unread(leaf)
    elif len(axes) == 1 and np.allclose(projector, blocks, atol=1e-3):
        groups = "" if kappa.shape[1] == 1 else f" in each of {kappa.shape[1]} groups"
        name = f"shift of {leaf.name} along {where}{groups}"
    elif others == 1:  # any null direction of a vector would be such a pattern
        return []
    else:
        name = f"{counted(kappa.shape[1], 'fixed pattern')} along {where} of {leaf.name}"
    return [Candidate(leaf.entries, np.hstack(columns), named_as(name, [leaf.name]), unread)]


def _unread(leaf: Leaf) -> str:
    return f"changes of {leaf.name} that no output depends on"

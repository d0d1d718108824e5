"""Changes of several leaves that are read from the spaces of the program, see `lngeom.information.spaces`."""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
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
from lngeom.information.spaces import Gain, Member, Spaces, slots

COLUMNS = 3000
"""Most directions of a candidate: the time for it grows as their cube."""

NUMBERS = 2**27
"""Most numbers in a candidate's directions."""

EFFORT = 2**31
"""Most products of numbers, about, in decompositions of candidates for parts of axes."""

PARTED = 600
"""Most rotations that are tried where each leaf of a space turns by itself."""

SHARED = 6
"""Leaves beyond which a space is looked at as one that turns before it is looked at as one of any basis."""


class _Columns:
    """Directions block by block, each on the entries of one leaf, with marks for each."""

    def __init__(self, leaves: list[Leaf]):
        self.leaves = leaves
        self.blocks: list[tuple[int, np.ndarray]] = []
        self.marks: list[Any] = []

    def add(self, leaf: int, columns: Float[np.ndarray, "p m"], marks: Iterable[Any]) -> None:
        self.blocks.append((leaf, columns))
        self.marks += list(marks)

    @property
    def count(self) -> int:
        return len(self.marks)

    def assembled(self) -> tuple[np.ndarray, np.ndarray]:
        """Entries, and the directions on them."""
        used = sorted({k for k, _ in self.blocks})
        rows = np.concatenate([self.leaves[k].entries for k in used])
        edges = itertools.accumulate((self.leaves[k].value.size for k in used), initial=0)
        starts = dict(zip(used, edges, strict=False))
        found = np.zeros((len(rows), self.count))
        at = 0
        for k, columns in self.blocks:
            found[starts[k] : starts[k] + len(columns), at : at + columns.shape[1]] = columns
            at += columns.shape[1]
        return rows, found

    @property
    def fits(self) -> bool:
        rows = sum(self.leaves[k].value.size for k in {k for k, _ in self.blocks})
        return 0 < self.count <= COLUMNS and rows * self.count <= NUMBERS


class OfProgram:
    """Candidates of several leaves, from the spaces of the program."""

    def __init__(self, leaves: list[Leaf], spaces: Spaces):
        self.leaves, self.spaces = leaves, spaces
        self.values = [
            leaf.value.reshape([spaces.sizes[a] for a in labels])
            for leaf, labels in zip(leaves, spaces.labels, strict=True)
        ]

    def _batch(self, leaves: Iterable[int], atom: int) -> list[int]:
        """Atoms that all of some leaves have beside one in the same variables: each index has a space of its own."""

        def beside(leaf: int) -> set[int]:
            uses = {m.reads for m in self.spaces.members if (m.leaf, m.atom) == (leaf, atom)}
            others = {m.atom for m in self.spaces.members if m.leaf == leaf and m.reads not in uses} if uses else set()
            return set(self.spaces.labels[leaf]) - others

        common = set.intersection(*map(beside, leaves)) - {atom}
        return sorted(a for a in common if all(len(slots(self.spaces.labels[k], a)) == 1 for k in leaves))

    def _size(self, atoms: Iterable[int]) -> int:
        return math.prod(self.spaces.sizes[a] for a in atoms)

    def rescalings(self) -> Iterator[Candidate]:
        """Units of a chain: slices of everything that writes, reads or multiplies there, each by a number."""
        chains: dict[tuple[int, int], set[tuple[int, int]]] = defaultdict(set)
        for member in self.spaces.members:
            chains[member.atom, self.spaces.chains[member.cut]].add((member.leaf, member.slot))
        for gain in self.spaces.gains:
            slot = slots(self.spaces.labels[gain.leaf], gain.atom)[0]
            for cut in (gain.before, gain.after):
                chains[gain.atom, self.spaces.chains[cut]].add((gain.leaf, slot))
        for atom, batch, members in self._finest(chains):
            units = self._size([atom, *batch])
            columns = _Columns(self.leaves)
            for leaf, slot in sorted(members):
                # the unit's number counts the atom within each index of the batch
                axes = [*(slots(self.spaces.labels[leaf], a)[0] for a in batch), slot]
                columns.add(leaf, slices(self.values[leaf], axes), ((unit, leaf) for unit in range(units)))
            if columns.fits:
                unit_of, leaf_of = np.array(columns.marks).T
                yield Candidate(*columns.assembled(), named_units(self.leaves, unit_of, leaf_of, units))

    def _finest(
        self, chains: Mapping[tuple[int, int], set[tuple[int, int]]]
    ) -> list[tuple[int, list[int], set[tuple[int, int]]]]:
        """Chains with their atom, batch and members; without those whose leaves all have units that are finer."""
        found: dict[Any, tuple[int, list[int], set[tuple[int, int]]]] = {}
        for (atom, _), members in sorted(chains.items()):
            leaves = {leaf for leaf, _ in members}
            batch = self._batch(leaves, atom)
            found.setdefault((frozenset([atom, *batch]), frozenset(leaves)), (atom, batch, members))

        def finer(leaf: int, atom: int, batch: list[int]) -> bool:
            return any({atom, *batch} < atoms and leaf in leaves for atoms, leaves in found)

        return [item for item in found.values() if not all(finer(leaf, item[0], item[1]) for leaf, _ in item[2])]

    def trades(self) -> Iterator[Candidate]:
        """Slices of what writes before a gain, less their mean, each by a number, against the gain's entries.

        Behind a norm that takes the mean out, they are null where the changes leave mean and variance as they are.
        """
        for gain in self.spaces.gains:
            if self.spaces.labels[gain.leaf] != (gain.atom,):
                continue
            units = self.spaces.sizes[gain.atom]
            written = {(m.leaf, m.slot) for m in self.spaces.members if m.cut == gain.before and not m.reads}
            columns = _Columns(self.leaves)
            for leaf, slot in sorted(written):
                value = self.values[leaf]
                if value.ndim > 1:
                    columns.add(leaf, slices(value - value.mean(slot, keepdims=True), [slot]), [leaf] * units)
            writers = sorted(set(columns.marks))
            columns.add(gain.leaf, slices(self.values[gain.leaf], [0]), [gain.leaf] * units)
            if writers and columns.fits:
                names = [self.leaves[k].name for k in writers]
                name = f"trades between centred slices of {listed(names)} and {self.leaves[gain.leaf].name}"
                moved = [*names, self.leaves[gain.leaf].name]
                yield Candidate(*columns.assembled(), named_as(f"{name} ({counted(units, 'unit')})", moved))

    def offsets(self) -> Iterator[Candidate]:
        """What adds constants to spaces: biases, tables, and rows of kernels along what a norm's gain leaves fixed."""
        columns = _Columns(self.leaves)  # those first are divided first: rows of kernels, then what is used first
        gains = {(g.atom, g.after): g for g in self.spaces.gains}
        for member in self.spaces.members:
            labels, leaf = self.spaces.labels[member.leaf], member.leaf
            rest = [k for k in range(len(labels)) if k != member.slot]
            if not member.reads or self._size(labels[k] for k in rest) > OFFSET:
                continue
            gain = gains.get((member.atom, member.cut))
            along = np.ones(self.spaces.sizes[member.atom])
            if gain is not None and self.values[gain.leaf].ndim == 1 and np.all(self.values[gain.leaf]):
                along = self.values[gain.leaf] ** -gain.power
            pattern = np.expand_dims(along, rest)
            block = indicators(self.values[leaf].shape, rest, np.broadcast_to(pattern, self.values[leaf].shape))
            columns.add(leaf, block, [leaf] * block.shape[1])
        seen = set()
        for member in sorted(self.spaces.members, key=lambda m: self.spaces.first.index(m.leaf)):
            leaf = member.leaf
            if member.enters == "kernel" or leaf in seen:
                continue
            seen.add(leaf)
            shape = self.values[leaf].shape
            whole = member.enters == "offset" and self.leaves[leaf].value.size <= OFFSET
            place = slots(self.spaces.labels[leaf], member.atom)
            block = np.eye(self.leaves[leaf].value.size) if whole else indicators(shape, place)
            columns.add(leaf, block, [leaf] * block.shape[1])
        if not columns.fits:
            return
        leaves = np.array(columns.marks)

        def named(part: Part) -> Iterator[Named]:
            for found, _, moved in by_unit(part, np.zeros(len(leaves), int), leaves):
                names = [self.leaves[k].name for k in moved]
                what = "offsets" if len(names) == 1 else "offsets that cancel"
                yield f"{what}: {listed(names)}", found, tuple(names)

        yield Candidate(*columns.assembled(), named)

    def patterns(self, null: Float[np.ndarray, "P k"]) -> Iterator[Candidate]:
        """Changes κ ⊗ u of a kernel that its bias takes up: κ has one value on all that the kernel reads."""
        for member in self.spaces.members:
            if not member.reads or member.enters != "kernel":
                continue
            kernel, slot = member.leaf, member.slot
            rest = [k for k in range(self.values[kernel].ndim) if k != slot]
            written = {(m.atom, m.cut) for m in self.spaces.members if m.leaf == kernel and not m.reads}
            labels = tuple(self.spaces.labels[kernel][k] for k in rest)
            biases = {
                m.leaf
                for m in self.spaces.members
                if m.enters == "offset" and self.spaces.labels[m.leaf] == labels and (m.atom, m.cut) in written
            }
            for bias in sorted(biases) if self._size(labels) <= OFFSET else ():
                yield from self._taken_up(null, kernel, slot, rest, bias)

    def _taken_up(
        self, null: Float[np.ndarray, "P k"], kernel: int, slot: int, rest: list[int], bias: int
    ) -> Iterator[Candidate]:
        shape, entries = self.values[kernel].shape, [self.leaves[k].entries for k in (kernel, bias)]
        n, others = shape[slot], self.leaves[bias].value.size
        part = np.moveaxis(null[entries[0]].reshape(*shape, -1), slot, 0).reshape(n, -1)
        flat = np.concatenate([part, null[entries[1]].reshape(1, -1)])
        values, vectors = np.linalg.eigh(flat @ flat.T)
        for kappa in vectors[:, values > others - 0.01].T:
            pattern = np.broadcast_to(np.expand_dims(kappa[:n], rest), shape)
            columns = np.concatenate([indicators(shape, rest, pattern), kappa[n] * np.eye(others)])
            names = sorted(self.leaves[k].name for k in (kernel, bias))
            yield Candidate(np.concatenate(entries), columns, named_as(f"offsets that cancel: {listed(names)}", names))

    def _cuts(self) -> dict[int, dict[int, list[Member]]]:
        """Members of each cut, by atom."""
        found: dict[int, dict[int, list[Member]]] = defaultdict(lambda: defaultdict(list))
        for member in self.spaces.members:
            found[member.atom][member.cut].append(member)
        return found

    def rotations(self, shared: bool) -> Iterator[Candidate]:
        """Rotations of a space: writers turn, readers turn, and behind a gain both in its scale.

        Those that many leaves share, as the stream of a transformer, or the others.
        """
        gained = {gain.atom for gain in self.spaces.gains}
        for atom, cuts in sorted(self._cuts().items()):
            n = self.spaces.sizes[atom]
            count, size = n * (n - 1) // 2, sum(leaf.value.size for leaf in self.leaves)
            members = [m for ms in cuts.values() for m in ms]
            if shared != (atom in gained or len({m.leaf for m in members}) > SHARED):
                continue
            if not 0 < count <= COLUMNS or count * size > NUMBERS:
                continue
            scales = self._scales_of(atom, cuts)
            if scales is None:
                continue
            turn = _rotations(n)
            columns = np.zeros((count, size))
            for member in members:
                d = scales[member.cut]
                generators = turn * d[None, None, :] / d[None, :, None]
                leaf = self.leaves[member.leaf]
                columns[:, leaf.start : leaf.start + leaf.value.size] += self._turned(member, generators)
            names = sorted({self.leaves[m.leaf].name for m in members})
            rows = np.flatnonzero(columns.any(0))
            name = f"rotations of the {n} coordinates that {listed(names)} share"
            yield Candidate(rows, columns[:, rows].T, named_as(name, names))

    def parted_rotations(self, account: Account) -> Iterator[Candidate]:
        """Rotations of a space in which each leaf turns by itself: those that leave alone what some of them write."""
        open_ = opened(self.leaves, account)
        for atom, cuts in sorted(self._cuts().items()):
            n, scales = self.spaces.sizes[atom], self._scales_of(atom, cuts, parted=True)
            members = [m for ms in cuts.values() for m in ms if m.leaf in open_]
            if scales is None or n < 2 or len(members) < 2 or n * (n - 1) // 2 * len(members) > PARTED:
                continue
            turn = _rotations(n)
            columns = _Columns(self.leaves)
            for member in members:
                d = scales[member.cut]
                turned = self._turned(member, turn * d[None, None, :] / d[None, :, None])
                columns.add(member.leaf, turned.T, [member.leaf] * len(turn))
            if columns.fits:
                leaf_of = np.array(columns.marks)
                yield Candidate(*columns.assembled(), self._sharing(leaf_of, f"rotations of the {n} coordinates that"))

    def _sharing(self, leaf_of: np.ndarray, what: str) -> Callable[[Part], Iterator[Named]]:
        def named(part: Part) -> Iterator[Named]:
            for found, _, moved in by_unit(part, np.zeros(len(leaf_of), int), leaf_of):
                names = sorted(self.leaves[k].name for k in moved)
                yield f"{what} {listed(names)} share", found, tuple(names)

        return named

    def joints(self, account: Account) -> Iterator[Candidate]:
        """Changes of basis of a cut against a part of a longer axis, as where variables are joined or divided."""
        tried, effort, open_ = 0, 0, opened(self.leaves, account)
        for atom, cuts in sorted(self._cuts().items()):
            n = self.spaces.sizes[atom]
            generators = np.eye(n * n).reshape(n * n, n, n)
            for members in cuts.values():
                if n < 2 or n * n > OFFSET or not {m.leaf for m in members} <= set(open_):
                    continue
                own = {m.leaf for m in members}
                for leaf in (k for k in open_ if k not in own):
                    for slot, start, reads in _stretches(self.leaves[leaf].value.shape, n):
                        rows = sum(self.leaves[k].value.size for k in {leaf, *own})
                        tried, effort = tried + 1, effort + rows * n**4
                        if tried > PAIRS or effort > EFFORT:
                            return
                        yield from self._joint(members, generators, leaf, slot, start, reads)

    def _joint(
        self,
        members: list[Member],
        generators: Float[np.ndarray, "c n n"],
        leaf: int,
        slot: int,
        start: int,
        reads: bool,
    ) -> Iterator[Candidate]:
        count, n = generators.shape[:2]
        changed = {k: np.zeros((count, self.leaves[k].value.size)) for k in sorted({leaf, *(m.leaf for m in members)})}
        for member in members:
            changed[member.leaf] += self._turned(member, generators)
        value = self.leaves[leaf].value
        part = np.moveaxis(np.moveaxis(value, slot, 0)[start : start + n], 0, slot)
        whole = changed[leaf].reshape(count, *value.shape)
        turned = _turned(part, slot, reads, generators).reshape(count, *part.shape)
        np.moveaxis(whole, slot + 1, 0)[start : start + n] += np.moveaxis(turned, slot + 1, 0)
        rows = np.concatenate([self.leaves[k].entries for k in changed])
        columns = np.concatenate(list(changed.values()), 1).T
        if columns.size <= NUMBERS:
            name, names = self.leaves[leaf].name, sorted({self.leaves[m.leaf].name for m in members})
            place = f"{start} to {start + n - 1} along axis {slot}"
            what = f"change of basis of {counted(n, 'unit')} between {name} ({place}) and {listed(names)}"
            yield Candidate(rows, columns, named_as(what, [name, *names]))

    def _scales_of(self, atom: int, cuts: Mapping[int, Any], parted: bool = False) -> dict[int, np.ndarray] | None:
        """The product of the gains between a first cut and each other one; None if a gain has a zero.

        Where something else than gains is between two cuts: None too, or if `parted` one more cut is a first one.
        """
        gains: dict[int, list[tuple[int, Gain]]] = defaultdict(list)
        for gain in self.spaces.gains:
            if gain.atom == atom:
                gains[gain.before].append((1, gain))
                gains[gain.after].append((-1, gain))
        found: dict[int, np.ndarray] = {}
        behind = {gain.after for gain in self.spaces.gains if gain.atom == atom}
        for first in sorted(cuts, key=lambda cut: (cut in behind, cut)):  # rotations are those before the gains
            if first in found:
                continue
            if found and not parted:
                return None
            found[first] = np.ones(self.spaces.sizes[atom])
            waiting = [first]
            while waiting:
                cut = waiting.pop()
                for sense, gain in gains[cut]:
                    other = gain.after if sense == 1 else gain.before
                    value = self.values[gain.leaf]
                    if other in found or value.ndim != 1:
                        continue
                    if not np.all(value):
                        return None
                    found[other] = found[cut] * value ** (sense * gain.power)
                    waiting.append(other)
        return found

    def _turned(self, member: Member, generators: Float[np.ndarray, "c n n"]) -> Float[np.ndarray, "c p"]:
        """Changes of a leaf: v ↦ vX along an axis of a writer, v ↦ −Xv along that of a reader."""
        return _turned(self.values[member.leaf], member.slot, member.reads, generators)

    def bases(self) -> Iterator[Candidate]:
        """Changes of basis of a cut, and of two that are contracted with each other: q X and k Y with X Yᵀ = 1.

        And of all cuts of a chain by one matrix: units whose function stays linear, as ReLU of what is positive.
        """
        forms = self.spaces.forms
        paired = {(atom, cut) for atom, *cuts in forms for cut in cuts}
        for atom, cuts in sorted(self._cuts().items()):
            for cut in sorted(cuts):
                if (atom, cut) not in paired:
                    yield from self._bases(atom, [(cuts[cut], 1)])
            for chain in sorted({self.spaces.chains[cut] for cut in cuts}):
                chained = [cut for cut in cuts if self.spaces.chains[cut] == chain]
                if len(chained) > 1 and not any((atom, cut) in paired for cut in chained):
                    together = [m for cut in chained for m in cuts[cut]]
                    yield from self._bases(atom, [(together, 1)], " where the function between is linear")
            for a, b in (pair for other, *pair in forms if other == atom):
                yield from self._bases(atom, [(cuts.get(a, []), 1), (cuts.get(b, []), -1)])

    def _bases(self, atom: int, sides: list[tuple[list[Member], int]], where: str = "") -> Iterator[Candidate]:
        """Every matrix X in each group of the first side, and −Xᵀ of the second."""
        members = [m for side, _ in sides for m in side]
        if len({m.leaf for m in members}) < 2 and len({m.reads for m in members}) < 2:
            return
        batch = self._batch({m.leaf for m in members}, atom)
        n, copies, size = self.spaces.sizes[atom], self._size(batch), sum(leaf.value.size for leaf in self.leaves)
        count = copies * n * n
        if n < 2 or count > COLUMNS or count * size > NUMBERS:
            return
        generators = np.eye(n * n).reshape(n * n, n, n)
        columns = np.zeros((copies, n * n, size))
        for side, sign in sides:
            for member in side:
                leaf, labels = self.leaves[member.leaf], self.spaces.labels[member.leaf]
                turned = self._turned(member, generators if sign > 0 else -generators.transpose(0, 2, 1))
                which = indicators(self.values[member.leaf].shape, [slots(labels, a)[0] for a in batch])
                columns[:, :, leaf.start : leaf.start + leaf.value.size] += which.T[:, None] * turned[None]
        together = columns.reshape(-1, size)
        rows = np.flatnonzero(together.any(0))
        names = sorted({self.leaves[m.leaf].name for m in members})
        groups = f" in each of {copies} groups" if copies > 1 else ""
        name = f"change of basis of {counted(n, 'unit')}{groups} between {listed(names)}{where}"
        yield Candidate(rows, together[:, rows].T, named_as(name, names))

    def residuals(self) -> Iterator[Candidate]:
        """Kernels beside a residual path, x + x W, against what writes x: each changes by matrices of its own."""
        for atom, cuts in sorted(self._cuts().items()):
            for members in cuts.values():
                beside = {m.leaf for m in members if m.reads} & {m.leaf for m in members if not m.reads}
                n = self.spaces.sizes[atom]
                writers = [m for m in members if not m.reads and m.leaf not in beside]
                if not beside or any(self.leaves[k].value.size > OFFSET for k in beside) or n * n > OFFSET:
                    continue
                columns = _Columns(self.leaves)
                for leaf in sorted(beside):
                    columns.add(leaf, np.eye(self.leaves[leaf].value.size), [leaf] * self.leaves[leaf].value.size)
                for member in writers:
                    turned = self._turned(member, np.eye(n * n).reshape(n * n, n, n)).T
                    columns.add(member.leaf, turned, [member.leaf] * n * n)
                if columns.fits:
                    yield Candidate(*columns.assembled(), self._beside(np.array(columns.marks), n))

    def _beside(self, leaf_of: np.ndarray, n: int) -> Callable[[Part], Iterator[Named]]:
        def named(part: Part) -> Iterator[Named]:
            for found, _, moved in by_unit(part, np.zeros(len(leaf_of), int), leaf_of):
                names = [self.leaves[k].name for k in moved]
                if len(names) > 1:
                    yield f"change of basis of {counted(n, 'unit')} between {listed(names)}", found, tuple(names)

        return named


def _rotations(n: int) -> Float[np.ndarray, "c n n"]:
    """A basis of the antisymmetric matrices."""
    i, j = np.triu_indices(n, 1)
    found = np.zeros((len(i), n, n))
    found[np.arange(len(i)), i, j], found[np.arange(len(i)), j, i] = 1, -1
    return found


def _stretches(shape: Sequence[int], n: int) -> Iterator[tuple[int, int, bool]]:
    """Parts of n entries of longer axes: the axis, the first entry, and whether the leaf reads there or writes."""
    for slot, size in enumerate(shape):
        starts = range(0, size, n) if size % n == 0 else range(size - n + 1)
        if size > n:
            yield from ((slot, start, reads) for start in starts for reads in (True, False))


def _turned(
    value: np.ndarray, slot: int, reads: bool, generators: Float[np.ndarray, "c n n"]
) -> Float[np.ndarray, "c p"]:
    moved = np.moveaxis(value, slot, -1)
    changes = -np.einsum("...j,cij->c...i", moved, generators) if reads else moved @ _wide(generators, moved.ndim)
    return np.moveaxis(changes, -1, slot + 1).reshape(len(generators), -1)


def _wide(generators: np.ndarray, ndim: int) -> np.ndarray:
    """Matrices that multiply an array of some axes along the last one, all at once."""
    return generators.reshape(len(generators), *(1,) * (ndim - 2), *generators.shape[1:]) if ndim > 1 else generators

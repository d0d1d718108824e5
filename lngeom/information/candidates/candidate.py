"""What a candidate is: changes of some leaves, which are named where they are null."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from lngeom._core.subspaces import ALONE, Account, Part, by_unit
from lngeom._core.text import counted

OFFSET = 600
"""Entries up to which every entry of an added leaf is an offset of its own; of a larger one, those of its last axis."""

PAIRS = 400
"""Most pairs of axes that are tried where the program names nothing."""

Named = tuple[str, Part, tuple[str, ...]]
"""Null directions with their name and the leaves that they move."""


class Leaf(NamedTuple):
    """A differentiated leaf: its path, value, and first position in the ravelled vector."""

    name: str
    value: Float[np.ndarray, "..."]
    start: int

    @property
    def entries(self) -> np.ndarray:
        """Positions of its entries in the ravelled vector."""
        return np.arange(self.start, self.start + self.value.size)


class Candidate(NamedTuple):
    """Directions with a name.

    Attributes:
        rows: entries of the ravelled vector in which they lie.
        columns: the directions on these entries.
        named: what divides their null part, and names it.
        unread: name of those that move no output, where `named` says that none of them does; else empty.
    """

    rows: np.ndarray
    columns: Float[np.ndarray, "r m"]
    named: Callable[[Part], Iterator[Named]]
    unread: str = ""


def named_as(name: str, leaves: Sequence[str]) -> Callable[[Part], Iterator[Named]]:
    """One name for all directions."""
    return lambda part: iter([(name, part, tuple(leaves))])


def opened(leaves: list[Leaf], account: Account) -> list[int]:
    """Numbers of leaves that have directions without a name."""
    if not account.left:
        return []
    rest = np.sum(np.square(account.null), 1) - np.sum(np.square(account.null @ account.explained), 1)
    return [k for k, leaf in enumerate(leaves) if np.max(rest[leaf.entries], initial=0) > ALONE**2]


def named_units(
    leaves: Sequence[Leaf], units: np.ndarray, members: np.ndarray, count: int, what: str = "rescaling of"
) -> Callable[[Part], Iterator[Named]]:
    """Names of changes of units, where the unit and the number of the leaf are known of each column."""

    def named(part: Part) -> Iterator[Named]:
        for found, moved, chosen in by_unit(part, units, members):
            if all(leaves[k].value.size == count for k in chosen):
                continue  # any change of vectors scales their entries
            names = [leaves[k].name for k in chosen]
            which = counted(count, "unit")
            if len(moved) < count:
                which = f"unit{'s' if len(moved) > 1 else ''} {numbers(moved)} (of {count})"
            where = f"between {' and '.join(names)}" if len(names) > 1 else f"of {names[0]}"
            yield f"{what} {which} {where}", found, tuple(names)

    return named


def indicators(
    shape: Sequence[int], axes: Sequence[int], pattern: np.ndarray | None = None
) -> Float[np.ndarray, "p m"]:
    """Indicators of each index of some axes, the last axis fastest, times a pattern on all entries."""
    sizes = [shape[k] for k in axes]
    count = math.prod(sizes)
    ascending = sorted(range(len(axes)), key=lambda k: axes[k])
    found = np.eye(count).reshape(*sizes, count).transpose(*ascending, len(axes))
    found = found.reshape(*(n if k in axes else 1 for k, n in enumerate(shape)), count)
    pattern = np.ones(shape) if pattern is None else pattern
    return (pattern[..., None] * found).reshape(math.prod(shape), count)


def slices(value: np.ndarray, axes: Sequence[int]) -> Float[np.ndarray, "p n"]:
    """The scale of each slice along some axes."""
    return indicators(value.shape, axes, value)


def listed(names: Sequence[str]) -> str:
    """Up to four names, or how many there are."""
    return " and ".join(names) if len(names) <= 4 else f"{counted(len(names), 'leaf', 'leaves')}"


def numbers(units: Sequence[int]) -> str:
    """Up to twelve numbers."""
    return ", ".join(map(str, units)) if len(units) <= 12 else f"{', '.join(map(str, units[:12]))}, …"

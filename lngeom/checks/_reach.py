"""Where outputs of a norm move with one value of its inputs, at the full size of these."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lngeom._core.draws import probe_generator
from lngeom.checks._formula import Sets


class Reach(NamedTuple):
    """Where outputs move with one value of the inputs.

    Attributes:
        shape: of the inputs.
        first: places along each axis, for the value that is first along every axis.
        last: the same for the last value.
    """

    shape: tuple[int, ...]
    first: tuple[tuple[int, ...], ...]
    last: tuple[tuple[int, ...], ...]

    def sets(self, units: Sequence[int]) -> Sets | None:
        """The division of the values that explains the two, parts of units first; None if none does."""
        whole, parts = [], []
        for axis, (size, first, last) in enumerate(zip(*self, strict=True)):
            count = len(first)
            if count == size > 1:
                whole.append(axis)
            if count in {0, 1, size}:
                continue
            number = size // count
            if size % count == 0 and (first, last) == (tuple(range(count)), tuple(range(size - count, size))):
                parts.append((axis, number, False))
            elif size % count == 0 and (first, last) == (
                tuple(range(0, size, number)),
                tuple(range(number - 1, size, number)),
            ):
                parts.append((axis, number, True))
            else:
                return None
        own = [p for p in parts if p[0] in units][:1]
        sets = Sets(tuple(whole), *own[0]) if own else Sets(tuple(whole))
        return sets._replace(tiles=tuple(p for p in parts if p not in own)) if whole or parts else None

    def follows(self, sets: Sets, probed: Sequence[int]) -> bool:
        """Whether the division of values of smaller inputs is that at this shape, along axes that are longer here."""
        if 0 in sets.divided:
            return True
        longer = [a for a in range(1, len(self.shape)) if self.shape[a] != probed[a]]
        if any(a in longer for a in sets.divided):  # sizes of its parts are not known from fewer places
            return False
        for place, moved in ((0, self.first), (-1, self.last)):
            one = np.zeros(self.shape)
            one[(place,) * one.ndim] = 1
            shared = sets.mean(one) > 0
            for axis in longer:
                expected = set(_along(shared, axis))
                if len(expected ^ set(moved[axis])) > 0.05 * self.shape[axis]:  # a value may stay by chance
                    return False
        return True

    def said(self) -> str:
        """Where along each axis outputs move with the first value, if that is in part of the places."""
        part = [a for a, found in enumerate(self.first) if a > 0 and 1 < len(found) < self.shape[a]]
        words = [f"{listed(self.first[a], range(self.shape[a]))} of {self.shape[a]} along axis {a}" for a in part]
        return f"the first value of inputs {list(self.shape)} enters outputs {' and '.join(words)}" if words else ""


def listed(found: Sequence[int], tried: Sequence[int] | np.ndarray) -> str:
    """Numbers as one range where they are neighbours among those that were tried."""
    places = np.nonzero(np.isin(tried, found))[0]
    if len(places) > 1 and np.all(np.diff(places) == 1):
        return f"{found[0]} to {found[-1]}"
    return ", ".join(map(str, found[:8])) + (", …" if len(found) > 8 else "")


def reach_of(function: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...]) -> Reach | None:
    """Where outputs move with the first and with the last value of inputs of a shape.

    The value is so large that it enters the statistics as much as all others together.

    Args:
        function: the layer, on inputs so large that no ε matters.
        shape: of the inputs.

    Returns:
        The places; None where the layer does not run on such inputs.
    """
    rng = probe_generator(6)
    base, other = (0.5 + rng.normal(size=shape) for _ in range(2))
    found = []
    try:
        start = function(base)
        scale = np.max(np.abs(function(other) - start))
        for place in (0, -1):
            moved = base.copy()
            moved[(place,) * base.ndim] += 8 * math.sqrt(base.size)
            changed = np.abs(function(moved) - start) > 1e-5 * scale
            found.append(tuple(_along(changed, axis) for axis in range(base.ndim)))
    except Exception:
        return None
    return Reach(shape, *found) if np.all(np.isfinite(start)) and scale > 0 else None


def _along(chosen: np.ndarray, axis: int) -> tuple[int, ...]:
    """Places along an axis at which something is chosen."""
    return tuple(np.flatnonzero(chosen.any(tuple(a for a in range(chosen.ndim) if a != axis))).tolist())

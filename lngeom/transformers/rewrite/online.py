"""Rotations at run time: Hadamard matrices that stay in the model, and are described with it.

Hidden units stand behind an activation, queries and keys behind rotary positions: a rotation cannot pass these, and is
no change of arrays alone. It is applied when the model runs (R3 and R4 of SpinQuant, as of QuaRot).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from lngeom.transformers.description import Stack, exchange
from lngeom.transformers.forward import hadamard
from lngeom.transformers.rewrite.draft import Draft
from lngeom.transformers.rewrite.step import AbstractStep, Obstacle, attentions, networks, units


def blocks_of(sizes: Iterable[int], block: int | None, what: str) -> int:
    """Rows of the Hadamard matrices: as given, or the largest power of two that divides all sizes of vectors.

    Raises:
        ValueError: if there are no such blocks.

    >>> blocks_of([11008, 1408], None, "units")
    128
    """
    sizes = set(sizes)
    found = math.gcd(*sizes) & -math.gcd(*sizes) if block is None else block
    if block is None and found < 2:
        raise ValueError(f"a Hadamard matrix needs a power of two that divides the number of {what}; it is odd")
    if found < 2 or found & (found - 1) or any(size % found for size in sizes):
        numbers = ", ".join(map(str, sorted(sizes)))
        raise ValueError(f"{numbers} {what} have no blocks of {found}: a power of two above 1 must divide their number")
    return found


@dataclass(frozen=True)
class TurnUnits(AbstractStep):
    """Turns the hidden units of each network at run time (R4): W₂ ← W₂ H, and the network is W₂ H (H a(…)).

    H has Hadamard matrices on its diagonal, is symmetric and its own inverse, see `forward.hadamard`.

    Attributes:
        block: rows of each, a power of two; None: the largest one that divides the units of every network.
    """

    block: int | None = None
    word = "turn-units"
    identity = "H H = I, so W₂ H applied to H a is W₂ a"
    positive = ("block",)

    def _block(self, stack: Stack, draft: Draft) -> int:
        return blocks_of((units(net, draft) for _, net in networks(stack)), self.block, "hidden units")

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """Units that are turned already.

        Raises:
            ValueError: if there are no such blocks.
        """
        self._block(stack, draft)
        return [
            Obstacle(path, "its units are turned at run time already", "Turn them back first (turn-back).")
            for path, net in networks(stack)
            if net.hadamard is not None
        ]

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Turns each network."""
        block = self._block(stack, draft)
        for _, net in networks(stack):
            label = f"units turned at run time (blocks of {block})"
            draft.edit(net.down, label, lambda W, rows: hadamard(W, block), by_rows=True)
        return exchange(stack, {path: replace(net, hadamard=block) for path, net in networks(stack)})


@dataclass(frozen=True)
class TurnQueriesAndKeys(AbstractStep):
    """Turns queries and keys at run time (R3), after norms and rotary positions: q ← Hq, k ← Hk. No array changes.

    Attributes:
        block: rows of each Hadamard matrix on the diagonal of H, a power of two; None: the largest one that divides the
            width of every head.
    """

    block: int | None = None
    word = "turn-queries-and-keys"
    identity = "(Hq)·(Hk) = q·k for orthogonal H"
    positive = ("block",)

    def _block(self, stack: Stack) -> int:
        return blocks_of((a.query_width for _, a in attentions(stack)), self.block, "coordinates of a head")

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """Heads that are turned already.

        Raises:
            ValueError: if there are no such blocks.
        """
        self._block(stack)
        return [
            Obstacle(path, "its queries and keys are turned at run time already", "Turn them back first (turn-back).")
            for path, a in attentions(stack)
            if a.hadamard is not None
        ]

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Says so in the description."""
        block = self._block(stack)
        return exchange(stack, {path: replace(a, hadamard=block) for path, a in attentions(stack)})


def online(stack: Stack) -> dict[str, int]:
    """The rotations of a stack at run time, as its config says them: rows of the blocks by "units", "queries_and_keys".

    Raises:
        ValueError: if blocks of the stack differ.
    """
    both = (
        ("units", {net.hadamard for _, net in networks(stack)}),
        ("queries_and_keys", {a.hadamard for _, a in attentions(stack)}),
    )
    found: dict[str, int] = {}
    for name, blocks in both:
        if len(blocks) > 1:
            raise ValueError(f"the {name.replace('_', ' ')} of some blocks are turned otherwise than those of others")
        if (block := next(iter(blocks), None)) is not None:
            found[name] = block
    return found


def with_online(stack: Stack, given: Any) -> Stack:
    """The stack with rotations at run time.

    Args:
        stack: without such rotations.
        given: what `online` returns.

    Raises:
        ValueError: if it is something else.
    """
    if not isinstance(given, dict) or not given or set(given) - {"units", "queries_and_keys"}:
        raise ValueError(f"lngeom_online must have 'units' or 'queries_and_keys', or both; got {given!r}")
    if wrong := [block for block in given.values() if type(block) is not int or block < 2]:
        raise ValueError(f"lngeom_online must have whole numbers of rows above 1; got {wrong[0]!r}")
    new: dict[str, Any] = {}
    if "units" in given:
        new |= {path: replace(net, hadamard=given["units"]) for path, net in networks(stack)}
    if "queries_and_keys" in given:
        new |= {path: replace(a, hadamard=given["queries_and_keys"]) for path, a in attentions(stack)}
    return exchange(stack, new)


def turned(stack: Stack) -> tuple[str, ...]:
    """What is turned at run time, anywhere: "units", "queries_and_keys"."""
    both = (("units", networks(stack)), ("queries_and_keys", attentions(stack)))
    return tuple(name for name, parts in both if any(part.hadamard is not None for _, part in parts))


@dataclass(frozen=True)
class TurnBack(AbstractStep):
    """Takes all rotations at run time back into the arrays: W₂ ← W₂ H, and nothing is turned."""

    word = "turn-back"
    identity = TurnUnits.identity

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """None."""
        return []

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Turns each network back."""
        new: dict[str, Any] = {path: replace(a, hadamard=None) for path, a in attentions(stack)}
        for path, net in networks(stack):
            if (block := net.hadamard) is not None:
                label = "units are no longer turned at run time"
                draft.edit(net.down, label, lambda W, rows, block=block: hadamard(W, block), by_rows=True)
            new[path] = replace(net, hadamard=None)
        return exchange(stack, new)

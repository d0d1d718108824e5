"""What a rewrite is: what it needs, what it does, and what its refusals say. The rewrites themselves are in `steps`."""

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import ClassVar, NamedTuple

import numpy as np

from lngeom._core.numerics import WITNESS
from lngeom.transformers.description import (
    Attention,
    FeedForward,
    FrontEnd,
    Head,
    Linear,
    Norm,
    Rows,
    Site,
    Space,
    Stack,
    Table,
)
from lngeom.transformers.parts import Part
from lngeom.transformers.rewrite.draft import Draft


class Obstacle(NamedTuple):
    """Why a step would change the function.

    Attributes:
        site: the norm, reader or writer at fault.
        reason: what is wrong with it.
        remedy: what to do.
    """

    site: str
    reason: str
    remedy: str


class Refused(ValueError):
    """A step would change the function.

    Attributes:
        obstacles: what is at fault.
        difference: largest relative difference of logits (of log-probabilities where logits may move) that the step
            made on this model when it was applied all the same; NaN where it could not be applied.
    """

    def __init__(
        self, step: str, obstacles: list[Obstacle], difference: float = float("nan"), faults: Sequence[str] = ()
    ) -> None:
        self.obstacles, self.difference = obstacles, difference
        first, others = obstacles[0], len(obstacles) - 1
        measured = f"Applied all the same, it changes this model's outputs by {difference:.1e} of the largest."
        if not np.isfinite(difference):
            measured = "Applied all the same, it gives no finite outputs."
        elif difference <= WITNESS:
            measured = f"{measured[:-1]}; with other weights it changes more."
        where = first.site + (f" and at {others} other place{'s' * (others > 1)}" if others else "")
        super().__init__(
            " ".join(
                filter(
                    None,
                    (
                        f"{step} refused at {where}: {first.reason}.",
                        first.remedy,
                        measured,
                        f"Note that {faults[0]}." if faults else "",
                    ),
                )
            )
        )


class AbstractStep(Part, ABC):
    """A rewrite.

    Attributes:
        word: its name in the command line.
        identity: the algebra that makes it exact.
        moves_logits: whether only log-probabilities stay.
    """

    word: ClassVar[str]
    identity: ClassVar[str]
    moves_logits: ClassVar[bool] = False

    @abstractmethod
    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """Why the step would change this model's function; empty if it is exact."""

    @abstractmethod
    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Changes the draft, whether or not there are obstacles, and returns the new description."""


def gain(draft: Draft, norm: Norm, d: int) -> np.ndarray:
    """γ [d]."""
    return np.ones(d) if norm.gain is None else norm.offset + draft[norm.gain]


def bias(draft: Draft, norm: Norm, d: int) -> np.ndarray:
    """β [d]."""
    return np.zeros(d) if norm.bias is None else draft[norm.bias]


def width(stack: Stack, draft: Draft) -> int:
    """d, the width of the stream."""
    return stack.ends(draft.shape)[1]


def norm_width(stack: Stack, draft: Draft, norm: Site) -> int:
    """How many coordinates a norm has: those of the stream, or of its latent."""
    return stack.output_space(norm).width or width(stack, draft)


def chosen(site: Site, only: tuple[str, ...]) -> bool:
    """Whether a path matches one of the patterns, or there are none."""
    return not only or any(fnmatchcase(site.path, pattern) for pattern in only)


def as_linear(part: Linear | Table) -> Linear:
    """A table as the map whose matrix has its rows."""
    return part.linear if isinstance(part, Table) else part


def shared_with(stack: Stack, site: Site) -> str | None:
    """Another part that uses the same entries of an array."""
    part: Linear = as_linear(site.part)
    for i, table in enumerate(stack.tables):
        if table.weight == part.weight and site.path != f"tables.{i}":
            return f"tables.{i} ({table.weight})"
    for other in stack.linears:
        same = other.part.weight == part.weight and other.part.expert == part.expert
        pairs = ((other.part.rows, part.rows), (other.part.columns, part.columns))
        if same and other.path != site.path and all(_overlap(*pair) for pair in pairs):
            return str(other)
    return None


def shared_arrays(stack: Stack, site: Site, readers: Iterable[Site]) -> Iterator[Obstacle]:
    """Why what a norm or a map writes cannot be changed with its readers: arrays that others use too."""
    if isinstance(site.part, Norm):
        for other in stack.norms:
            for name in filter(None, (site.part.gain, site.part.bias)):
                if other != site and name in {other.part.gain, other.part.bias}:
                    remedy = "Give each an array of its own first."
                    yield Obstacle(str(site), f"it shares {name!r} with {other.path}", remedy)
    for reader in readers:
        if (shared := shared_with(stack, reader)) is not None:
            remedy = "Untie first (untie)." if reader.path == "head.linear" else "Give each its own matrix first."
            yield Obstacle(str(reader), f"it reads {site.path}, and shares its matrix with {shared}", remedy)


def _overlap(a: Rows | None, b: Rows | None) -> bool:
    return a is None or b is None or bool(np.intersect1d(a.indices(), b.indices()).size)


def attentions(stack: Stack) -> Iterator[tuple[str, Attention]]:
    """Attention of each block, with its path."""
    for i, block in enumerate(stack.blocks):
        yield f"blocks.{i}.attention", block.attention


def given_out(space: Space) -> bool:
    """Whether what is written to a space is the model's output itself."""
    return any(isinstance(reader.part, Head) for reader in space.readers)


def carried_along(space: Space) -> Iterator[Obstacle]:
    """Front ends that write to a space: why its coordinates are fixed."""
    for site in space.writers:
        if isinstance(site.part, FrontEnd):
            activation = site.part.layers[-1].activation
            reason = f"what it writes to the stream comes from {activation}, and its arrays are carried along unchanged"
            yield Obstacle(site.path, reason, "Leave the stream's coordinates.")


def networks(stack: Stack) -> Iterator[tuple[str, FeedForward]]:
    """Feed-forward network or experts of each block, with their paths."""
    for i, block in enumerate(stack.blocks):
        if isinstance(block.feed_forward, FeedForward):
            yield f"blocks.{i}.feed_forward", block.feed_forward
        else:
            yield from ((f"blocks.{i}.feed_forward.{at}", expert) for at, expert in block.feed_forward.networks())


def no_such_path(only: tuple[str, ...], sites: Sequence[Site], reason: str = "no norm has such a path") -> Obstacle:
    """Patterns that fit no path, and the paths that there are."""
    paths = [s.path for s in sites]
    near = did_you_mean(only[0], paths)
    return Obstacle(", ".join(only), f"{reason}{near}", f"Paths are {', '.join(paths[:4])}, ...")


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """The word that is nearest to a wrong one, as a question in brackets; "" if none is near."""
    near = difflib.get_close_matches(word, list(words), 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def units(net: FeedForward, draft: Draft) -> int:
    """How many hidden units a network has."""
    return net.down.sizes(draft.shape(net.down.weight))[1]


def not_homogeneous(path: str, net: FeedForward) -> Iterator[Obstacle]:
    """Why the hidden units of a network cannot be scaled: their activation, a clamp, a matrix that turns them."""
    where = f"{path} ({net.up.weight})"
    if net.clamp is not None:
        yield Obstacle(where, f"its linear factor is clamped at {net.clamp:g}", "Leave the units.")
    if net.hadamard is not None:
        yield Obstacle(where, "a matrix turns its units at run time", "Turn them back first (turn-back).")
    if net.gate is None and net.activation not in {"relu", "relu2", "identity"}:
        yield Obstacle(
            where,
            f"{net.activation} is not homogeneous, and there is no gate beside it",
            "Only ReLU, ReLU² and gated units can be scaled.",
        )

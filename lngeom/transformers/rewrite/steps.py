r"""Exact rewrites of a stack, one class each.

Writers of a space move as $W \to GW$, readers as $W \to WG^{-1}$. Each step says what it needs, derives from the
description where that fails, and changes the arrays and the description. Formulas use γ, β of a norm, D = diag(γ) and
$P = I - 11^\top/d$.
"""

import csv
import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lngeom.transformers.description import (
    Attention,
    FeedForward,
    FrontEnd,
    Linear,
    Mixture,
    Norm,
    Site,
    Space,
    Stack,
    Table,
    exchange,
)
from lngeom.transformers.parts import shown
from lngeom.transformers.rewrite.channels import (
    ScaleChannels as ScaleChannels,
    Smooth as Smooth,
    read_vectors,
    scale_units,
)
from lngeom.transformers.rewrite.draft import Draft
from lngeom.transformers.rewrite.online import (
    TurnBack as TurnBack,
    TurnQueriesAndKeys as TurnQueriesAndKeys,
    TurnUnits as TurnUnits,
)
from lngeom.transformers.rewrite.orthogonal import Orthogonal
from lngeom.transformers.rewrite.step import (
    AbstractStep,
    Obstacle,
    Refused as Refused,
    as_linear,
    attentions,
    bias,
    carried_along,
    chosen,
    did_you_mean,
    gain,
    given_out,
    networks,
    no_such_path,
    norm_width,
    not_homogeneous,
    shared_arrays,
    shared_with,
    width,
)

EXACT = 1e-12
"""Size, relative to the largest entry, below which a mean counts as zero and gains count as equal."""


@dataclass(frozen=True)
class Untie(AbstractStep):
    """Gives a tied head a matrix of its own, U := E. An untied stack stays as it is."""

    word = "untie"
    identity = "U := E copies the table of tokens; the function does not change"

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """None."""
        return []

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Copies the table."""
        if not stack.tied:
            return stack
        name = stack.head.untied
        draft.duplicate(stack.tables[0].weight, name, "a copy of the table of tokens")
        return replace(stack, head=replace(stack.head, linear=replace(stack.head.map, weight=name)))


@dataclass(frozen=True)
class FoldNorms(AbstractStep):
    r"""Moves gains and biases of norms into the linear maps that read their outputs.

    W ← W D, γ ← 1 and b ← b + Wβ, β ← 0. Readers without b: under LayerNorm β ← 1 carries the offset, as
    W ← W D P + (Wβ)1ᵀ/d (and readers with b: W ← W D P, b ← b + Wβ). Under RMSNorm β ← β/γ stays.

    Attributes:
        only: patterns of paths, such as "blocks.*.attention_norm"; (): every norm but those that write to the stream
            beside a branch. Norms of post-norm stacks write to the stream and cannot be folded.
    """

    only: tuple[str, ...] = ()
    word = "fold"
    identity = "W(γ ⊙ n + β) + b = (W diag γ)n + (b + Wβ), for every reader of the norm's output"

    def targets(self, stack: Stack) -> list[Site]:
        """Norms to fold."""
        post = any(b.placing == "post" for b in stack.blocks)
        return [
            norm for norm in stack.norms if (chosen(norm, self.only) if self.only else post or not _kept(stack, norm))
        ]

    def _of_heads(self, stack: Stack) -> list[tuple[Site, Linear]]:
        """Norms of queries and keys that were asked for, with the maps before them."""
        found = []
        for path, a in attentions(stack):
            for part, norm, projection in (("query", a.query_norm, a.query), ("key", a.key_norm, a.key)):
                site = Site(f"{path}.{part}_norm", norm)
                if norm is not None and self.only and chosen(site, self.only):
                    found.append((site, projection))
        return found

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """Outputs that are also the stream, shared readers, biases that nothing can take, norms of queries and keys."""
        found = [
            Obstacle(
                str(norm),
                f"no linear map reads its output, and {projection.weight} stands before it, not after it",
                "Leave the norms of queries and keys.",
            )
            for norm, projection in self._of_heads(stack)
        ]
        if self.only and not self.targets(stack) and not found:
            found.append(no_such_path(self.only, stack.norms))
        for norm in self.targets(stack):
            space = stack.output_space(norm)
            if given_out(space):
                reason = "its output is the model's output (hidden states), and no linear map reads it alone"
                found.append(Obstacle(str(norm), reason, "Leave this norm."))
                continue
            others = [w for w in space.writers if w != norm] + [r for r in space.readers if isinstance(r.part, Norm)]
            if others:
                found.append(
                    Obstacle(
                        str(norm),
                        f"its output is also the residual stream, which {others[0]} "
                        f"{'writes to' if others[0] in space.writers else 'reads'}: the gain cannot move into the "
                        "linear readers alone",
                        "Leave this norm; fold those whose output only linear maps read.",
                    )
                )
                continue
            found += shared_arrays(stack, norm, space.readers)
            d = norm_width(stack, draft, norm)
            if norm.part.kind != "layer" and np.any(bias(draft, norm.part, d)):
                bare = [r for r in space.readers if _taking(r, space.readers) is None]
                if bare and not np.all(gain(draft, norm.part, d)):
                    found.append(
                        Obstacle(
                            str(bare[0]), f"it has no bias to take that of {norm.path}", "Give it a bias of zeros."
                        )
                    )
        return found

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Folds each norm."""
        for site, projection in self._of_heads(stack):  # refused: the gain moves into the map before the norm
            if site.part.gain is not None:
                g = np.ravel(site.part.offset + draft[site.part.gain])
                g = np.tile(g, len(draft.matrix(projection)) // g.size)
                draft.edit(projection, "gain folded", lambda W, rows, g=g: W * g[rows][:, None], by_rows=True)
                draft.set(site.part.gain, np.full(draft.shape(site.part.gain), 1.0 - site.part.offset), "gain folded")
        for norm in self.targets(stack):
            _fold(norm, list(_linear_readers(stack, stack.output_space(norm))), draft, norm_width(stack, draft, norm))
        return stack


def _kept(stack: Stack, norm: Site) -> bool:
    """Whether more than linear maps reads a norm: it writes to the stream, or its output is the model's."""
    space = stack.output_space(norm)
    return space.residual or given_out(space)


def _linear_readers(stack: Stack, space: Space) -> Iterator[Site]:
    """Linear maps that read a space, through further norms too (only for a step that is refused)."""
    for reader in space.readers:
        if isinstance(reader.part, Norm):
            if (inner := stack.output_space(reader)).residual:
                continue
            yield from _linear_readers(stack, inner)
        elif isinstance(reader.part, Linear):
            yield reader


def _fold(norm: Site, readers: list[Site], draft: Draft, d: int) -> None:
    g, b = gain(draft, norm.part, d), bias(draft, norm.part, d)
    label = "gain and bias of a norm folded"
    if np.all(g == 1) and not np.any(b):
        return
    bare = bool(np.any(b)) and any(_taking(r, readers) is None for r in readers)
    centred = bare and norm.part.kind == "layer"
    kept = bare and not centred
    for reader in readers:
        part: Linear = reader.part
        offset = draft.matrix(part) @ b if np.any(b) and not kept else None
        carried = None
        if offset is not None and (taking := _taking(reader, readers)) is not None:
            old = draft.offsets(taking)
            assert old is not None
            draft.set_offsets(taking, old + offset, label)
        elif offset is not None:
            carried = offset / d

        def change(W: np.ndarray, rows: Any, carried: np.ndarray | None = carried) -> np.ndarray:
            W = W * g
            if centred:
                W = W - W.mean(-1, keepdims=True)
            return W if carried is None else W + carried[rows][:, None]

        draft.edit(part, label, change, by_rows=True)
    if norm.part.gain is not None:
        draft.set(norm.part.gain, np.full(d, 1.0 - norm.part.offset), label)
    if norm.part.bias is not None:
        draft.set(norm.part.bias, np.ones(d) if centred else b / g if kept else np.zeros(d), label)


def _taking(reader: Site, readers: Iterable[Site]) -> Linear | None:
    """The map whose bias takes an offset of a reader: its own, or that of the map whose output it is added to."""
    if reader.part.bias is not None or reader.path != "head.mean":
        return None if reader.part.bias is None else reader.part
    return next((r.part for r in readers if r.path == "head.linear" and r.part.bias is not None), None)


@dataclass(frozen=True)
class FlashNorm(AbstractStep):
    """Folds the gains of RMSNorms into the maps that read them, and leaves the gains out of the model.

    W ← W D, and the norm is x / √(mean(x²) + ε) alone (Graef et al., 2024). Loaders that know of it skip the
    multiplication; others give a missing gain the value 1.

    Attributes:
        only: patterns of paths; (): the norms of all blocks. Published checkpoints keep the gain of the last norm.
    """

    only: tuple[str, ...] = ()
    word = "flash-norm"
    identity = "W(γ ⊙ n) = (W diag γ)n, and a gain of ones does nothing"

    def targets(self, stack: Stack) -> list[Site]:
        """Norms whose gains are left out."""
        return [
            n
            for n in FoldNorms(self.only).targets(stack)
            if self.only or (n.path.startswith("blocks.") and n.part.kind == "rms" and n.part.gain is not None)
        ]

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """Those of `FoldNorms`, and norms that are no RMSNorm with a gain alone.

        Raises:
            ValueError: if no norm is chosen, and no block has one.
        """
        chosen_norms = self.targets(stack)
        if not self.only and not chosen_norms:
            raise ValueError("flash-norm is for RMSNorms with a gain that only linear maps read: no block has one")
        found = [
            Obstacle(str(n), reason, "Fold it (fold), and keep its arrays.")
            for n in chosen_norms
            for wrong, reason in (
                (n.part.kind != "rms", "it is no RMSNorm"),
                (n.part.gain is None, "it has no gain"),
                (n.part.bias is not None, "it has a bias"),
            )
            if wrong
        ]
        return found + FoldNorms(tuple(n.path for n in chosen_norms) or self.only).obstacles(stack, draft)

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Folds each norm, and drops its gain."""
        norms = [n for n in self.targets(stack) if n.part.gain is not None]
        FoldNorms(tuple(n.path for n in norms)).run(stack, draft)
        for norm in norms:
            draft.drop(norm.part.gain, "gain of ones left out")
        return exchange(stack, {n.path: replace(n.part, gain=None) for n in norms})


@dataclass(frozen=True)
class FoldScales(AbstractStep):
    """Moves the factors of channels of branches (layer scale) into the maps that write them.

    W ← diag(λ) W, b ← λ ⊙ b, λ ← 1. A stack without such factors stays as it is.
    """

    word = "fold-scales"
    identity = "λ ⊙ (Wx + b) = (diag(λ) W)x + λ ⊙ b"

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """Writers whose arrays others use too."""
        found = []
        for path, name, writers in _channel_scales(stack):
            found += [
                Obstacle(f"{path} ({writer.weight})", f"it shares its matrix with {shared}", "Give each its own first.")
                for inner, writer in writers
                if (shared := shared_with(stack, Site(f"{path}.{inner}", writer))) is not None
            ]
            if [other for _, other, _ in _channel_scales(stack)].count(name) > 1:
                found.append(Obstacle(f"{path} ({name})", "other branches use its factors too", "Leave them."))
        return found

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Folds the factors of each branch."""
        label = "factors of channels folded"
        for _, name, writers in _channel_scales(stack):
            factors = np.array(draft[name])
            if np.all(factors == 1):
                continue
            for _, part in writers:
                draft.edit(part, label, lambda W, rows, s=factors: W * s[rows][:, None], by_rows=True)
                if (b := draft.offsets(part)) is not None:
                    draft.set_offsets(part, factors * b, label)
            draft.set(name, np.ones_like(factors), label)
        return stack


def _channel_scales(stack: Stack) -> list[tuple[str, str, tuple[tuple[str, Linear], ...]]]:
    """Branches with factors of channels: path, name of the factors, writers."""
    return [
        (f"blocks.{i}.{name}", scale, getattr(block, name).writers())
        for i, block in enumerate(stack.blocks)
        for name in ("attention", "feed_forward")
        if (scale := getattr(block, f"{name}_scale")) is not None
    ]


def _uneven_scales(stack: Stack, draft: Draft, paths: Iterable[str] | None = None) -> Iterator[Obstacle]:
    """Factors of channels, of branches with a writer at these paths, that do not commute with changes of the stream."""
    chosen_paths = None if paths is None else tuple(paths)
    for path, name, _ in _channel_scales(stack):
        if chosen_paths is not None and not any(each.startswith(f"{path}.") for each in chosen_paths):
            continue
        if not _constant(draft[name]):
            reason = "the factors of its channels are not constant, and act on what it writes"
            yield Obstacle(f"{path} ({name})", reason, "Fold them first (fold-scales).")


@dataclass(frozen=True)
class CentreReaders(AbstractStep):
    """W ← W P for the linear maps that read a folded LayerNorm.

    Attributes:
        only: patterns of paths of norms; (): every LayerNorm whose output only linear maps read.
    """

    only: tuple[str, ...] = ()
    word = "centre-readers"
    identity = "LayerNorm's output is orthogonal to 1, so W P n = W n"

    def targets(self, stack: Stack) -> list[Site]:
        """Norms whose readers are centred."""
        return [
            n for n in stack.norms if chosen(n, self.only) and n.part.centres and (self.only or not _kept(stack, n))
        ]

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """Gains or biases that are left, and norms that do not centre."""
        remedy = "Fold it first (fold); a bias that is left then carries the offset of readers without one."
        found = [
            Obstacle(str(n), "its gain is not constant or its bias not zero", remedy)
            for n in self.targets(stack)
            for d in (norm_width(stack, draft, n),)
            if not _constant(gain(draft, n.part, d)) or np.any(bias(draft, n.part, d))
        ]
        for n in self.targets(stack):
            space = stack.output_space(n)
            readers = [r for r in space.readers if isinstance(r.part, Linear)]
            found += [
                Obstacle(str(r), f"it shares its matrix with {s}", "Untie first (untie).")
                for r in readers
                if (s := shared_with(stack, r))
            ]
            found += [
                Obstacle(str(r), f"it reads what {others[0]} adds to the output of {n.path} too", "Leave this norm.")
                for r in readers
                if (others := [w for w in space.writers_before(r) if w != n])
            ]
            if not readers:
                found.append(Obstacle(str(n), "no linear map reads its output itself", "Leave this norm."))
        if self.only and not any(chosen(n, self.only) for n in stack.norms):
            found.append(no_such_path(self.only, stack.norms))
        elif not self.targets(stack):
            first = stack.norms[0] if stack.norms else "the stack"
            found.append(
                Obstacle(str(first), "it does not centre its input", "Only readers of LayerNorm can be centred.")
            )
        return found

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Centres each reader."""
        norms = self.targets(stack) or list(stack.norms)
        for norm in norms:
            space = stack.output_space(norm)
            readers = [r for r in space.readers if isinstance(r.part, Linear)]
            for reader in readers or _linear_readers(stack, space):  # further ones only where the step is refused
                draft.edit(reader.part, "rows centred", lambda W, rows: W - W.mean(-1, keepdims=True), by_rows=True)
        return stack


@dataclass(frozen=True)
class CentreWriters(AbstractStep):
    """Removes the mean over the stream's coordinates from everything that is written to it.

    Rows of tables less their mean, W ← P W, b ← P b: the mean goes over the *output* axis of a writer. What norms and
    front ends write keeps its mean.

    Attributes:
        only: patterns of paths of writers; (): every table and linear map that writes to a space which norms read.
    """

    only: tuple[str, ...] = ()
    word = "centre"
    identity = "LayerNorm subtracts the mean of its input, so a multiple of 1 in the stream is not seen"

    def targets(self, stack: Stack) -> list[tuple[Space, Site]]:
        """Writers, each with its space."""
        return [
            (space, writer)
            for space in stack.spaces
            for writer in space.writers
            if isinstance(writer.part, Linear | Table) and chosen(writer, self.only)
        ]

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """Readers that do not subtract the mean, and tables that the head shares."""
        found = list(_uneven_scales(stack, draft, (writer.path for _, writer in self.targets(stack))))
        for space, writer in self.targets(stack):
            if (shared := shared_with(stack, writer)) is not None:
                found.append(Obstacle(str(writer), f"it shares its array with {shared}", "Untie first (untie)."))
            for reader in space.readers_after(writer):
                if not (isinstance(reader.part, Norm) and reader.part.centres):
                    what = "an RMSNorm, which" if isinstance(reader.part, Norm) else "a linear map, which"
                    found.append(
                        Obstacle(
                            str(reader),
                            f"{what} sees the mean that {writer} writes",
                            "Centre only what LayerNorms alone read.",
                        )
                    )
                    break
        if not self.targets(stack):
            writers = [w for s in stack.spaces for w in s.writers if isinstance(w.part, Linear | Table)]
            front = [o for s in stack.spaces for o in carried_along(s) if chosen(Site(o.site, None), self.only)]
            found += front or [no_such_path(self.only, writers, "no table or linear writer has such a path")]
        return found

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Centres each writer."""
        label = "written mean removed"
        for _, writer in self.targets(stack):
            if isinstance(writer.part, Table):
                draft.edit(as_linear(writer.part), label, lambda E, rows: E - E.mean(-1, keepdims=True), by_rows=True)
                continue
            draft.edit(writer.part, label, lambda W, rows: W - W.mean(0), by_rows=False)
            if (b := draft.offsets(writer.part)) is not None:
                draft.set_offsets(writer.part, b - b.mean(), label)
        return stack


@dataclass(frozen=True)
class ToRMSNorm(AbstractStep):
    """Exchanges LayerNorms for RMSNorms with the same γ, β and ε, where everything that they read is centred.

    Attributes:
        only: patterns of paths; (): every LayerNorm that reads what tables and linear maps write.
    """

    only: tuple[str, ...] = ()
    word = "rms"
    identity = "if the mean of x is zero, var(x) = mean(x²): LayerNorm and RMSNorm with the same ε agree"

    def targets(self, stack: Stack) -> list[Site]:
        """Norms to exchange."""
        return [n for n in stack.norms if n.part.kind == "layer" and chosen(n, self.only)]

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """Writers whose mean is not zero."""
        found = [] if self.targets(stack) or not self.only else [no_such_path(self.only, stack.norms)]
        if self.targets(stack):
            found += _uneven_scales(stack, draft)
        means: dict[str, float] = {}
        for norm in self.targets(stack):
            for writer in stack.input_space(norm).writers_before(norm):
                if writer.path not in means:
                    means[writer.path] = _written_mean(writer, draft, width(stack, draft))
                if not means[writer.path] <= EXACT:
                    remedy = "Centre the writers first (centre)."
                    if isinstance(writer.part, Norm | FrontEnd):
                        what = "norm" if isinstance(writer.part, Norm) else "front end"
                        remedy = f"A {what} that writes to the stream cannot be centred."
                    found.append(Obstacle(str(writer), f"{norm.path} reads its mean, which is not zero", remedy))
        return found

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Exchanges each norm in the description."""
        return exchange(stack, {n.path: replace(n.part, kind="rms") for n in self.targets(stack)})


def _written_mean(writer: Site, draft: Draft, d: int) -> float:
    """Largest mean over the output axis, relative to the largest entry."""
    part = writer.part
    if isinstance(part, Norm):
        n, b = gain(draft, part, d), bias(draft, part, d)
        return 0.0 if part.centres and _constant(n) and abs(b.mean()) <= EXACT * max(1.0, np.abs(b).max()) else np.inf
    if isinstance(part, Table):
        worst = scale = 0.0
        whole = part.layout != "rows"
        for rows in [draft.matrix(part.linear)] if whole else (rows for _, rows in draft.pieces(part.weight)):
            worst, scale = max(worst, np.abs(rows.mean(-1)).max()), max(scale, np.abs(rows).max())
        return worst / scale if scale else 0.0
    if not isinstance(part, Linear):
        return np.inf
    W, b = draft.matrix(part), draft.offsets(part)
    found = [(np.abs(W.mean(0)).max(), np.abs(W).max())]
    if b is not None:
        found.append((abs(b.mean()), np.abs(b).max()))
    return max((float(mean / scale) if scale else 0.0) for mean, scale in found)


def _constant(g: np.ndarray) -> bool:
    return bool(np.ptp(g) <= EXACT * np.abs(g).max())


@dataclass(frozen=True)
class Rotate(AbstractStep):
    """Rotates the stream by an orthogonal matrix Q, and with it all that norms carry along.

    Tables E ← E Qᵀ, writers W ← Q W, b ← Q b, readers W ← W Qᵀ, biases of norms β ← Q β. LayerNorms need Q1 = 1, which
    the default respects.

    Attributes:
        seed: of the random signs, or the random matrix.
        matrix: Q [d, d]; None: a randomized Hadamard matrix, or a random matrix where none of this size is known.
        hadamard: whether to prefer a Hadamard matrix.
        block: K, for a Q with Hadamard matrices of K rows on its diagonal; None: one of d rows.
    """

    seed: int = 0
    matrix: np.ndarray | jax.Array | None = None
    hadamard: bool = True
    block: int | None = None
    not_negative, positive = ("seed",), ("block",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block is not None and (self.matrix is not None or not self.hadamard):
            raise ValueError("a block is for Hadamard matrices: leave out matrix= and hadamard=False, or block=")

    word = "rotate"
    identity = "an RMSNorm without gain commutes with orthogonal Q (a LayerNorm if Q1 = 1): W Qᵀ n(Q x) = W n(x)"

    def reached(self, stack: Stack) -> tuple[list[Space], list[Site]]:
        """Spaces that rotate together, and the norms between them."""
        spaces = [s for s in stack.spaces if s.residual]
        norms: list[Site] = []
        for space in spaces:  # grows while it is walked
            for event in space.events:
                if isinstance(event.site.part, Norm) and event.site not in norms:
                    norms.append(event.site)
                    for other in (stack.input_space(event.site), stack.output_space(event.site)):
                        if other not in spaces:
                            spaces.append(other)
        return spaces, norms

    def orthogonal(self, stack: Stack, draft: Draft) -> Orthogonal:
        """Q."""
        fix = any(n.part.kind == "layer" for n in self.reached(stack)[1])
        matrix = None if self.matrix is None else np.asarray(self.matrix)
        return Orthogonal(
            width(stack, draft), self.seed, fix_ones=fix, matrix=matrix, hadamard=self.hadamard, block=self.block
        )

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """Gains that do not commute with Q, tied heads behind them, LayerNorms where Q1 ≠ 1."""
        d = width(stack, draft)
        spaces, norms = self.reached(stack)
        found = [obstacle for space in spaces for obstacle in carried_along(space)]
        found += [
            Obstacle(space.name, "it is the model's output (hidden states), which would be rotated too", "")
            for space in spaces
            if given_out(space)
        ]
        found += _uneven_scales(stack, draft)
        if self.block is not None:
            self.orthogonal(stack, draft)  # which raises where there are no such blocks
        for norm in norms:
            if not _constant(gain(draft, norm.part, d)):
                writes = stack.output_space(norm).residual
                head = stack.tied and any(r.path == "head.linear" for r in stack.output_space(norm).readers)
                remedy = "Fold it first (fold)."
                if writes:
                    remedy = "A norm that writes to the stream cannot be folded: this stack has no such rotation."
                elif head:
                    remedy = "Untie the head, then fold (untie, fold)."
                found.append(Obstacle(str(norm), "its gain is not constant, and does not commute with Q", remedy))
        if self.matrix is not None:
            Q = self.orthogonal(stack, draft)
            ones = np.ones(d)
            if np.abs(Q.apply(ones) - 1).max() > EXACT:
                found += [
                    Obstacle(
                        str(n),
                        "a LayerNorm needs Q1 = 1",
                        "Centre the writers and exchange it (centre, rms).",
                    )
                    for n in norms
                    if n.part.kind == "layer"
                ]
        for space in spaces:
            found += [
                Obstacle(w.path, f"the activation {w.part} before {space.readers[0]} does not commute with Q", "")
                for w in space.writers
                if isinstance(w.part, str)
            ]
        return found

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Rotates every space that is reached."""
        Q = self.orthogonal(stack, draft)
        spaces, norms = self.reached(stack)
        label = f"rotated by Q ({Q.kind})"
        done: set[tuple[Any, ...]] = set()

        def rows(part: Linear) -> None:
            key = (part.weight, part.rows, part.columns, part.expert)
            if key not in done:
                done.add(key)
                draft.edit(part, label, lambda W, rows: Q.apply(W), by_rows=True)

        for space in spaces:
            for event in space.events:
                part = event.site.part
                if isinstance(part, Table) or (isinstance(part, Linear) and event.access == "read"):
                    rows(as_linear(part))
                elif isinstance(part, Linear):
                    draft.edit(part, label, lambda W, rows: Q.apply(W.T).T, by_rows=False)
                    if (b := draft.offsets(part)) is not None:
                        draft.set_offsets(part, Q.apply(b), label)
        for norm in norms:
            if norm.part.bias is not None and np.any(b := draft[norm.part.bias]):
                draft.set(norm.part.bias, Q.apply(b), label)
        return stack


@dataclass(frozen=True)
class Balance(AbstractStep):
    r"""Gives the two sides of each hidden unit equal norms.

    ReLU and the linear factor of a gated unit: w₁, b₁ × c and w₂ / c with $c = \sqrt{\|w_2\|/\|(w_1, b_1)\|}$. ReLU²:
    w₁, b₁ × c and w₂ / c² with $c^6 = 2\|w_2\|^2/\|(w_1, b_1)\|^2$, which makes the sum of squares smallest. A unit of
    which one side is zero stays.

    Attributes:
        power_of_two: round each c to a power of two, which is exact bit for bit in every floating-point dtype.
    """

    power_of_two: bool = False
    word = "balance"
    identity = "ReLU(c z) = c ReLU(z) for c > 0, ReLU² by c², and a gated unit is linear in its second factor"

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """Activations that are not homogeneous, clamps, and units that a matrix turns at run time."""
        return [obstacle for path, net in networks(stack) for obstacle in not_homogeneous(path, net)]

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Scales the units of each network."""
        for _, net in networks(stack):
            self._scale(net, draft)
        return stack

    def _scale(self, net: FeedForward, draft: Draft) -> None:
        square = net.gate is None and net.activation == "relu2"
        into = np.sum(draft.matrix(net.up) ** 2, 1)
        b = draft.offsets(net.up)
        if b is not None:
            into = into + b**2
        out = np.sum(draft.matrix(net.down) ** 2, 0)
        alive = (into > 0) & (out > 0)
        ratio = np.where(alive, out, 1.0) / np.where(alive, into, 1.0)
        c = np.where(alive, (2 * ratio) ** (1 / 6) if square else ratio**0.25, 1.0)
        if self.power_of_two:
            c = 2.0 ** np.round(np.log2(c))
        scale_units(net, 1 / c, draft, "units scaled by powers of two" if self.power_of_two else "units balanced")


@dataclass(frozen=True)
class MergeValueBias(AbstractStep):
    r"""Moves the value bias behind the attention average: $b_O \mathrel{+}= \sum_h W_O^h b_V$, $b_V \leftarrow 0$."""

    word = "merge-value-bias"
    identity = "rows of attention sum to 1, so the average of v + b_V is the average of v, plus b_V"

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """Maps without an output bias, and sinks."""
        found = []
        for path, a in attentions(stack):
            if a.value.bias is None:
                continue
            if a.output.bias is None:
                found.append(
                    Obstacle(f"{path}.output ({a.output.weight})", "it has no bias that could take b_V", "Leave b_V.")
                )
            if a.sink is not None:
                found.append(Obstacle(f"{path} ({a.sink})", "with a sink the rows of attention do not sum to 1", ""))
        return found

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Moves each bias."""
        label = "value bias merged into output bias"
        for _, a in attentions(stack):
            if (b := draft.offsets(a.value)) is None:
                continue
            if (old := draft.offsets(a.output)) is not None:
                by_head = np.repeat(b.reshape(a.kv_heads, -1), a.group, 0).reshape(-1)
                draft.set_offsets(a.output, old + draft.matrix(a.output) @ by_head, label)
            draft.set_offsets(a.value, np.zeros_like(b), label)
        return stack


@dataclass(frozen=True)
class RotateValues(AbstractStep):
    """Rotates the values of each key/value head by an orthogonal matrix R, and its part of the output map back.

    W_V ← R W_V, b_V ← R b_V, and W_O ← W_O Rᵀ for every query head of the group. It is exact in every stack.

    Attributes:
        seed: of the random signs, or the random matrix; each head has its own.
        hadamard: whether to prefer a Hadamard matrix.
    """

    seed: int = 0
    hadamard: bool = True
    not_negative = ("seed",)
    word = "rotate-values"
    identity = "the attention average of R v is R times that of v, for any R"

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """None."""
        return []

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Rotates the heads of each block."""
        for block, (_, a) in enumerate(attentions(stack)):
            seeds = np.random.SeedSequence([self.seed, block]).generate_state(a.kv_heads)
            R = [Orthogonal(a.value_width, int(seed), hadamard=self.hadamard) for seed in seeds]
            label = f"values rotated by R ({R[0].kind})"

            def turned(x: np.ndarray, R: list[Orthogonal] = R, a: Attention = a, group: int = 1) -> np.ndarray:
                """Each head's part of the last axis, turned."""
                parts = x.reshape(*x.shape[:-1], -1, a.value_width)
                heads = [R[h // group].apply(parts[..., h, :]) for h in range(parts.shape[-2])]
                return np.stack(heads, -2).reshape(x.shape)

            draft.edit(a.value, label, lambda W, columns, turned=turned: turned(W.T).T, by_rows=False)
            if (b := draft.offsets(a.value)) is not None:
                draft.set_offsets(a.value, turned(b), label)
            group = a.group
            draft.edit(
                a.output, label, lambda W, rows, turned=turned, group=group: turned(W, group=group), by_rows=True
            )
        return stack


@dataclass(frozen=True)
class DropKeyBias(AbstractStep):
    """Sets the key bias to zero; that of a part which all heads share stays.

    Attributes:
        unrotated_only: only on coordinates without rotary positions.
    """

    unrotated_only: bool = False
    word = "drop-key-bias"
    identity = "q·b_K adds one number to all scores of a query, which the softmax over keys ignores"

    def _coordinates(self, a: Attention) -> np.ndarray:
        keep = np.ones(a.query_width, bool)
        if self.unrotated_only and a.rotary is not None:
            keep[a.rotary.turned] = False
        return keep[: a.key_width]

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """Rotary positions, norms of keys, caps, sinks."""
        found = []
        for path, a in attentions(stack):
            if a.key.bias is None:
                continue
            reasons = [
                (
                    a.rotary is not None and self._coordinates(a)[a.rotary.turned].any(),
                    "rotary positions turn it",
                ),
                (not self._coordinates(a).any(), "rotary positions turn all of it"),
                (a.key_norm is not None, "a norm of the keys follows"),
                (a.cap is not None, "the scores have a cap"),
                (a.sink is not None, "the softmax has a sink"),
            ]
            remedy = "Keep it, or drop it on the other coordinates only (drop-key-bias=unrotated)."
            found += [Obstacle(f"{path}.key ({a.key.bias})", why, remedy) for fails, why in reasons if fails]
        return found

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Sets each bias to zero."""
        for _, a in attentions(stack):
            if (b := draft.offsets(a.key)) is not None:
                kept = np.tile(~self._coordinates(a), a.kv_heads)
                draft.set_offsets(a.key, np.where(kept, b, 0.0), "key bias dropped")
        return stack


@dataclass(frozen=True)
class MergeParallelBias(AbstractStep):
    """One output bias per parallel block: b₂ ← b₂ + b_O, b_O ← 0."""

    word = "merge-parallel-bias"
    identity = "both branches of a parallel block are added to the same stream"

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """Blocks that are not parallel, or whose second branch has no bias."""
        found = []
        for i, block in enumerate(stack.blocks):
            down = getattr(block.feed_forward, "down", None)
            if block.attention.output.bias is None:
                continue
            if not block.parallel or block.placing != "pre":
                found.append(Obstacle(f"blocks.{i}", "its branches are not added to the same stream", ""))
            elif down is None or down.bias is None:
                found.append(Obstacle(f"blocks.{i}.feed_forward", "it has no output bias of its own", ""))
        return found

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Merges each pair."""
        label = "output biases of the block merged"
        for block in stack.blocks:
            out, down = block.attention.output, getattr(block.feed_forward, "down", None)
            b, b2 = draft.offsets(out), None if down is None else draft.offsets(down)
            if b is not None and down is not None and b2 is not None:
                draft.set_offsets(down, b2 + b, label)
                draft.set_offsets(out, np.zeros_like(b), label)
        return stack


@dataclass(frozen=True)
class CentreHead(AbstractStep):
    """Removes the mean over the vocabulary from the head: U ← U − mean of its rows, b_U likewise."""

    word = "centre-head"
    identity = "the softmax ignores one number added to all logits; logits move, log-probabilities do not"
    moves_logits = True

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """A cap of the logits, a tied head, and none at all."""
        if stack.head.linear is None:
            return [Obstacle("head", "the outputs are hidden states, and not logits", "")]
        found, head = [], f"head.linear ({stack.head.linear.weight})"
        if stack.head.cap is not None:
            found.append(Obstacle(head, "the cap of the logits sees the number that is added", "Leave the head."))
        if stack.tied:
            found.append(Obstacle(head, "it is also the table of tokens", "Untie first (untie)."))
        return found

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Centres the head."""
        label = "mean over the vocabulary removed"
        for _, part in stack.head.maps:
            mean = _column_mean(draft, part)
            draft.edit(part, label, lambda W, rows, mean=mean: W - mean, by_rows=True)
            if (b := draft.offsets(part)) is not None:
                draft.set_offsets(part, b - b.mean(), label)
        return stack


def _column_mean(draft: Draft, part: Linear) -> np.ndarray:
    """Mean of the rows of W, some rows at a time where that is possible."""
    if part != Linear(part.weight, part.bias) or len(draft.shape(part.weight)) != 2:
        return draft.matrix(part).mean(0)
    total = np.zeros(draft.shape(part.weight)[1])
    for _, rows in draft.pieces(part.weight):
        total += rows.sum(0)
    return total / draft.shape(part.weight)[0]


@dataclass(frozen=True)
class CentreRouter(AbstractStep):
    """Removes the mean over the experts from each router."""

    word = "centre-router"
    identity = "the router's softmax, and the order of its outputs, ignore one number added to all of them"

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """Sigmoid routers."""
        return [
            Obstacle(f"blocks.{i}.feed_forward.router", "its scores are sigmoids, which see the number added", "")
            for i, block in enumerate(stack.blocks)
            if isinstance(block.feed_forward, Mixture) and block.feed_forward.scores == "sigmoid"
        ]

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Centres each router."""
        label = "mean over the experts removed"
        for block in stack.blocks:
            if isinstance(block.feed_forward, Mixture):
                router = block.feed_forward.router
                draft.edit(router, label, lambda W, rows: W - W.mean(0), by_rows=False)
                if (b := draft.offsets(router)) is not None:
                    draft.set_offsets(router, b - b.mean(), label)
        return stack


@dataclass(frozen=True)
class ScaleStream(AbstractStep):
    """Multiplies the stream by c: writers × c, and ε × c² in every norm that reads it.

    Attributes:
        factor: c > 0.
        scale_epsilon: whether ε follows; if not, the step is exact for ε = 0 only.
    """

    factor: float = 1.0
    scale_epsilon: bool = True
    word = "scale"
    identity = "a norm is scale-invariant if ε is scaled by c²"

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """Factors that are not positive, readers that see the scale, an ε that stays."""
        if not 0 < self.factor < np.inf:
            return [Obstacle("factor", f"c must be positive and finite; got {self.factor}", "")]
        found = []
        for space in _streams(stack):
            found += carried_along(space)
            found += [
                Obstacle(str(w), f"it shares its array with {s}", "Untie first (untie).")
                for w in space.writers
                if isinstance(w.part, Table | Linear) and (s := shared_with(stack, w))
            ]
            found += [
                Obstacle(str(w), "it writes to the stream and has no gain to scale", "Give it a gain of ones.")
                for w in space.writers
                if isinstance(w.part, Norm) and w.part.gain is None
            ]
            if not self.scale_epsilon:
                found += [
                    Obstacle(str(r), f"ε = {r.part.eps:g} stays while its input is scaled", "Scale ε by c² too.")
                    for r in space.readers
                    if isinstance(r.part, Norm) and r.part.eps
                ]
        return found

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Scales the writers, linear readers inversely, and ε."""
        c, d, label = self.factor, width(stack, draft), f"stream scaled by {self.factor:g}"
        new: dict[str, Norm] = {}
        for space in _streams(stack):
            for event in space.events:
                part = event.site.part
                if isinstance(part, FrontEnd):  # refused
                    continue
                if event.access == "write" and isinstance(part, Table | Linear):
                    draft.edit(as_linear(part), label, lambda W, rows: W * c, by_rows=True)
                    if isinstance(part, Linear) and (b := draft.offsets(part)) is not None:
                        draft.set_offsets(part, b * c, label)
                elif event.access == "write":
                    if part.gain is not None:
                        draft.set(part.gain, c * gain(draft, part, d) - part.offset, label)
                    if part.bias is not None:
                        draft.set(part.bias, c * draft[part.bias], label)
                elif isinstance(part, Linear):
                    draft.edit(part, label, lambda W, rows: W / c, by_rows=True)
                elif self.scale_epsilon:
                    new[event.site.path] = replace(part, eps=part.eps * c**2)
        return exchange(stack, new)


def _streams(stack: Stack) -> list[Space]:
    return [s for s in stack.spaces if s.residual and s.name != "embedding"]


@dataclass(frozen=True)
class ShiftTables(AbstractStep):
    """Moves the mean of each further table's rows into the first table, that of tokens: E + 1cᵀ, P − 1cᵀ."""

    word = "shift-tables"
    identity = "one row of each table is added at every position"

    def obstacles(self, stack: Stack, draft: Draft) -> list[Obstacle]:
        """A tied head behind a cap (without one, the softmax ignores the shift of a tied head), and patches."""
        if stack.inputs == "patch" or any(table.index in {"input", "leading"} for table in stack.tables):
            reason = "its rows are not read once at each position, so that a shift of all of them is seen"
            return [Obstacle(f"tables.0 ({stack.tables[0].weight})", reason, "Leave the tables.")]
        if stack.tied:
            return [Obstacle(str(stack.tables[0].weight), "it is also the head", "Untie first (untie).")]
        return []

    def run(self, stack: Stack, draft: Draft) -> Stack:
        """Shifts the tables."""
        if not stack.tables:
            return stack
        first, label = stack.tables[0], "mean row moved to the table of tokens"
        total = np.zeros(width(stack, draft))
        for table in stack.tables[1:]:
            mean = _column_mean(draft, as_linear(table))
            total = total + table.scale * mean
            draft.edit(as_linear(table), label, lambda W, rows, mean=mean: W - mean, by_rows=True)
        if np.any(total):
            draft.edit(as_linear(first), label, lambda W, rows: W + total / first.scale, by_rows=True)
        return stack


STEPS: dict[str, type[AbstractStep]] = {kind.word: kind for kind in AbstractStep.__subclasses__()}
"""Steps by their names in the command line."""


def check_steps(steps: Any) -> tuple[AbstractStep, ...]:
    """Steps, as a tuple.

    Raises:
        TypeError: naming what is no step.
    """
    if isinstance(steps, str):
        raise TypeError(f"steps must be a list of steps, such as [{_calls(steps)}]; got the text {steps!r}")
    if isinstance(steps, AbstractStep):
        raise TypeError(f"steps must be a list of steps; got one step (did you mean [{steps!r}]?)")
    if isinstance(steps, Mapping) or not isinstance(steps, Iterable):
        raise TypeError(f"steps must be a list of steps, such as [rw.steps.FoldNorms()]; got {shown(steps)}")
    found = tuple(steps)
    for step in found:
        if isinstance(step, str):
            raise TypeError(f"a step must be an object, such as {_calls(step)}; got the text {step!r}")
        if not isinstance(step, AbstractStep):
            raise TypeError(f"a step must be an object, such as rw.steps.FoldNorms(); got {shown(step)}")
    return found


def _calls(text: str) -> str:
    """What makes the steps that a text may mean."""
    names = {word: f"rw.steps.{kind.__name__}()" for word, kind in STEPS.items()}
    names |= {kind.__name__: f"rw.steps.{kind.__name__}()" for kind in STEPS.values()}
    near = [difflib.get_close_matches(word.strip().partition("=")[0], names, 1) for word in text.split(",")]
    return ", ".join(names[found[0]] for found in near if found) or "rw.steps.FoldNorms()"


def parse(text: str, seed: int = 0, alpha: float = 0.5) -> list[AbstractStep]:
    """Steps from their names, as in the command line.

    Args:
        text: names, separated by commas; in double quotes, "smooth=a,b.npz", where a file has a comma. A value may
            follow: `fold=PATH`, `centre=PATH`, `centre-readers=PATH`, `rms=PATH` and `flash-norm=PATH` with a pattern
            of paths, `balance=power-of-two`, `drop-key-bias=unrotated`, `scale=FACTOR`, `rotate=BLOCK`,
            `turn-units=BLOCK` and `turn-queries-and-keys=BLOCK` with a number of rows, `scale-channels=FILE` and
            `smooth=FILE` with a file as `channels.read_vectors` reads it.
        seed: of random rotations.
        alpha: α of `smooth`.

    Returns:
        The steps.

    Raises:
        TypeError: if it is no text.
        ValueError: naming a step or a value that there is not.
        OSError: if a file cannot be read.

    >>> parse("untie,fold=blocks.*.attention_norm,rotate=64", seed=3)
    [Untie(), FoldNorms(only=('blocks.*.attention_norm',)), Rotate(seed=3, matrix=None, hadamard=True, block=64)]
    """
    if not isinstance(text, str):
        raise TypeError(f"steps must be a text, such as 'untie,fold,rotate'; got {shown(text)}")
    found: list[AbstractStep] = []
    for item in filter(None, (item.strip() for item in next(csv.reader([text], skipinitialspace=True), []))):
        word, _, value = item.partition("=")
        if word not in STEPS:
            raise ValueError(f"no step {word!r}{did_you_mean(word, STEPS)}; there are {', '.join(STEPS)}")
        kind: Any = STEPS[word]
        if kind is ScaleStream:
            try:
                found.append(ScaleStream(float(value)))
            except ValueError as error:
                raise ValueError(f"scale needs a factor, such as scale=2; got {item!r}") from error
        elif kind in {ScaleChannels, Smooth}:
            if not value:
                raise ValueError(f"{word} needs a file, such as {word}=scales.safetensors; got {item!r}")
            vectors = read_vectors(Path(value))
            found.append(ScaleChannels(vectors) if kind is ScaleChannels else Smooth(vectors, alpha))
        elif value and "block" in kind.__dataclass_fields__:
            if not value.isdecimal():
                raise ValueError(f"{word} takes a number of rows, such as {word}=64; got {item!r}")
            found.append(Rotate(seed, block=int(value)) if kind is Rotate else kind(int(value)))
        elif value and "only" in kind.__dataclass_fields__:
            found.append(kind(only=(value,)))
        elif value and (word, value) not in {("balance", "power-of-two"), ("drop-key-bias", "unrotated")}:
            raise ValueError(f"step {word!r} takes no value {value!r}")
        elif kind in {Rotate, RotateValues}:
            found.append(kind(seed))
        else:
            found.append(kind(True) if value else kind())
    if not found:
        raise ValueError(f"name at least one step of {', '.join(STEPS)}")
    return found

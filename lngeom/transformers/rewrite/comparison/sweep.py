"""Part by part: the second model's part on the first model's stream, and the first model's output of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from lngeom._core.draws import probe_generator
from lngeom.transformers.description import Block, Mixture
from lngeom.transformers.forward import attention_branch, embedded, feed_forward_branch, head, norm, side
from lngeom.transformers.rewrite.comparison.models import EXACT, Gap, Model, finite, rows_and_columns, worst
from lngeom.transformers.rewrite.comparison.streams import Map, in_a_row, seen, starts

ROUNDINGS = 5.0
"""A part differs if it is this many times as far away as random roundings take it.

Exact rewrites of 13 families, tiny and rounded once to float32 or bfloat16, were at most 3.1 times as far away. The
bound was set after this.
"""

NEAR = 100.0
"""A part that is up to this many times as far away is looked at again, with the roundings of `again`.

The second look was added after a false alarm: both models rounded to float32, five coordinates wide, one row of 192.
"""

MASKED = 1e4
"""Logits this many times as far from the middle one as is usual are cut there: their tokens are masked."""

RANDOM = 2
"""Sequences of random streams beside those of the probes."""

Weights = Mapping[str, Any]


@dataclass(frozen=True)
class Local:
    """How far one part of the second model is from the first model's, given the same stream.

    Attributes:
        path: the part, as in descriptions; "tables" for all tables together, and a front end.
        difference: distance of outputs, relative to the first model's: of the row (a position of a sequence) or the
            column (a coordinate, over all positions) for which rounding explains least.
        rounding: what random roundings change there: of the second model's arrays; in a second look, of both models'.
        rows: of tables, the rows that differ, as "token 17"; else nothing.
        alone: what this part alone, in the first model's place of it, changes in log-probabilities, relative to the
            largest; None where it was not asked for.
    """

    path: str
    difference: float
    rounding: float
    rows: tuple[str, ...] = ()
    alone: float | None = None

    @property
    def allowed(self) -> float:
        """The difference that rounding explains."""
        return max(ROUNDINGS * self.rounding, EXACT)

    @property
    def differs(self) -> bool:
        """Whether rounding does not explain the difference."""
        return not self.difference <= self.allowed


Branch = Literal["attention", "feed_forward", "both"]


def pieces(block: Block) -> tuple[Branch, ...]:
    """What of a block reads one stream: the branches, or both where they are parallel."""
    return ("both",) if block.parallel else ("attention", "feed_forward")


def comparable(first: Block, second: Block) -> tuple[Block, Block]:
    """Two blocks whose mixtures, if they choose experts alike, use all of them.

    A choice among nearly equal experts is not continuous, and experts that are not chosen are not seen. What only the
    choice sees is compared by `choices.other_choice`.
    """
    a, b = first.feed_forward, second.feed_forward
    if not (isinstance(a, Mixture) and isinstance(b, Mixture)) or choice(a) != choice(b):
        return first, second
    return replace(first, feed_forward=_all_used(a)), replace(second, feed_forward=_all_used(b))


def choice(mixture: Mixture) -> tuple[Any, ...]:
    """What experts are chosen by, beside arrays."""
    return mixture.top, len(mixture.experts), mixture.groups, mixture.choice_bias is None


def _all_used(mixture: Mixture) -> Mixture:
    """The mixture with all of its experts in use."""
    return replace(mixture, top=None, groups=None, choice_bias=None)


def entering(block: Block, branch: Branch, between: Map) -> Map:
    """The map of streams that a part reads: attention without a norm sees the mean too."""
    bare = block.bare_attention and branch == "attention"
    return replace(between, centred=(False, False)) if bare else between


def path_of(i: int, branch: Branch) -> str:
    """The path of a part."""
    return f"blocks.{i}" if branch == "both" else f"blocks.{i}.{branch}"


def output(block: Block, branch: Branch, weights: Weights, x: Array) -> Array:
    """What a part adds to the stream; of a post-norm block, the stream after it."""
    if branch == "both":
        return attention_branch(block, weights, x) + feed_forward_branch(block, weights, x)
    y = (attention_branch if branch == "attention" else feed_forward_branch)(block, weights, x)
    if block.placing != "post":
        return y
    after = block.attention_norm if branch == "attention" else block.feed_forward_norm
    assert after is not None
    return norm(after, weights, x + y)


def wide(function: Callable[..., Any], *arguments: Any) -> np.ndarray:
    """A function's result in float64."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        return np.asarray(function(*arguments))


def streams(
    model: Model, tokens: np.ndarray, seed: int, between: Map
) -> Iterator[tuple[int, Branch | Literal["head"], np.ndarray]]:
    """The stream before each part of a model, and before the head.

    `RANDOM` sequences are added whose streams are random numbers: they reach what no token reaches. They are such that
    the second model can have them: without a mean, where it sees none.
    """
    x = wide(embedded, model.stack, model.arrays, tokens)
    random = probe_generator(seed).standard_normal((RANDOM, *x.shape[1:])) * np.sqrt(np.mean(x**2))
    x = np.concatenate([x, between.back(between.forth(random))])
    for i, block in enumerate(model.stack.blocks):
        for branch in pieces(block):
            yield i, branch, x
            y = wide(output, block, branch, model.arrays, x)
            x = y if block.placing == "post" else x + y
    yield len(model.stack.blocks), "head", x


Pairs = tuple[Sequence[Weights], Sequence[Weights]]
"""Arrays of the first and of the second model with random roundings, as many of both."""


def sweep(
    before: Model,
    after: Model,
    between: Map,
    tokens: np.ndarray,
    shaken: Sequence[Weights],
    again: Callable[[], Pairs] | None = None,
) -> Iterator[tuple[Local, Map, np.ndarray | None]]:
    """Compares part by part.

    Where a part differs by no more than `NEAR` roundings, the roundings of both models count: few draws of the second
    model's alone say too little of one row of a small model.

    Args:
        before: the first model.
        after: the second, with as many blocks of the same kind.
        between: the map between their streams.
        tokens: the probes.
        shaken: arrays of the second model with random roundings.
        again: makes those of both models for a second look; None: there is none.

    Yields:
        Each part's comparison, with the map of streams after it, and the first model's stream before it.
    """
    yield _tables(before, after, shaken, between), between, None
    held: tuple[Local, Local, Map, Map, np.ndarray] | None = None  # a part that agrees with another scale after it
    for i, branch, x in streams(before, tokens, 0, between):

        def looked(
            by: Map, own: Sequence[Weights], others: Sequence[Weights], i: int, branch: Any, x: np.ndarray
        ) -> tuple[Local, Local, Map]:
            if branch == "head":
                found = heads(before, after, others, x, by, own=own)
                return found, found, by
            first, second = before.stack.blocks[i], after.stack.blocks[i]
            return compared(
                first, second, branch, before.arrays, after.arrays, others, x, by, path_of(i, branch), own=own
            )

        def local(by: Map, i: int = i, branch: Any = branch, x: np.ndarray = x) -> tuple[Local, Local, Map]:
            found = looked(by, (), shaken, i, branch, x)
            if again is not None and found[0].differs and found[0].difference <= NEAR * found[0].rounding:
                return looked(by, *again(), i, branch, x)
            return found

        if held is not None:  # the scale is the model's if the next part agrees with it, a mistake if not
            scaled, plain, with_scale, without, at = held
            if local(with_scale)[0].differs and not local(without)[0].differs:
                yield plain, without, at
                between = without
            else:
                yield scaled, with_scale, at
                between = with_scale
            held = None
        found, as_it_was, after_it = local(between)
        if after_it is not between:
            held = found, as_it_was, after_it, between, x
            continue
        yield found, after_it, x


def compared(
    first: Block,
    second: Block,
    branch: Branch,
    weights: Weights,
    others: Weights,
    shaken: Sequence[Weights],
    x: np.ndarray,
    between: Map,
    path: str,
    own: Sequence[Weights] = (),
) -> tuple[Local, Local, Map]:
    """One part's comparison, and the map of streams after it.

    Roundings of the first model's arrays, in `own`, are added to those of the second one's.

    After a norm of a post-norm block the scale may be another one. Then the first comparison is with that scale, the
    second without, and the map is a new one.
    """
    first, second = comparable(first, second)
    mapped = entering(first, branch, between).forth(x)
    y = wide(output, first, branch, weights, x)
    z, *noises = (
        seen(wide(output, second, branch, arrays, mapped), between.centred[1]) for arrays in (others, *shaken)
    )
    noises = _both(noises, [between.forth(wide(output, first, branch, arrays, x)) - between.forth(y) for arrays in own])
    found = Local(path, *rows_and_columns(between.forth(y), z, noises))
    if first.placing == "post" and found.differs:
        size = float(np.sum(between.forth(y) ** 2))
        scaled = replace(between, scale=between.scale * float(np.sum(between.forth(y) * z)) / max(size, 1e-300))
        if scaled.scale and not (again := Local(path, *rows_and_columns(scaled.forth(y), z, noises))).differs:
            return again, found, scaled
    return found, found, between


def _both(noises: Sequence[np.ndarray], own: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Outputs of the second model's roundings, with what the first one's change."""
    return [noise + change for noise, change in zip(noises, own, strict=True)] if own else list(noises)


def _tables(before: Model, after: Model, shaken: Sequence[Weights], between: Map) -> Local:
    """All rows of all tables."""
    if before.bare or after.bare:
        between = replace(between, centred=(False, False))
    found = Gap(0.0, 0.0)
    wrong: list[tuple[float, str]] = []
    length = in_a_row(before, after)
    every = [starts(before, length), *(starts(after, length, None, weights) for weights in (None, *shaken))]
    for (kind, at, x), (_, also, y), *others in zip(*every, strict=False):
        n = min(len(at), len(also))
        wanted = between.forth(x[:n])
        y, *noises = (seen(v[:n], between.centred[1]) for v in (y, *(other[2] for other in others)))
        sizes = np.linalg.norm(wanted, axis=1)
        sizes = np.where(sizes > 0, sizes, 1.0)
        with np.errstate(over="ignore", invalid="ignore"):
            gaps = finite(np.linalg.norm(y - wanted, axis=1) / sizes, np.inf)
            noise = finite(np.sqrt(np.mean([np.sum((v - y) ** 2, 1) for v in noises], 0)) / sizes, 0.0)
        bad = np.flatnonzero(~(gaps <= np.maximum(ROUNDINGS * noise, EXACT)))
        wrong += [(float(gaps[r]), f"{kind} {at[r]}") for r in bad]
        found = max(found, worst(gaps, noise), key=lambda gap: gap.roundings)
    return Local("tables", *found, rows=tuple(k for _, k in sorted(wrong, reverse=True)))


def heads(
    before: Model,
    after: Model,
    shaken: Sequence[Weights],
    x: np.ndarray,
    between: Map,
    weights: Weights | None = None,
    own: Sequence[Weights] = (),
) -> Local:
    """Final norm and head: logits up to a number that all of a position share, and the outputs beside the head.

    Roundings of the first model's arrays, in `own`, are added to those of the second one's.
    """
    mapped = between.forth(x)
    beside = len(before.stack.side) == len(after.stack.side)
    count = min(before.outputs, after.outputs)
    shared = before.stack.head.cap is None and after.stack.head.cap is None

    def outputs(model: Model, weights: Weights, stream: np.ndarray) -> list[np.ndarray]:
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            final, x = model.stack.final, jnp.asarray(stream)
            x = x if final is None else norm(final, weights, x)
            logits = np.asarray(head(model.stack, weights, x))[..., :count]
            found = [np.asarray(v) for v in side(model.stack, weights, x)] if beside else []
            found = [logits, *found] if model.stack.hidden_states else found
        middle = np.median(logits, -1, keepdims=True) * shared  # softmax does not see what all share
        bound = MASKED * np.median(np.abs(logits - middle)) + 1e-300
        return [np.clip(logits - middle, -bound, bound), *found]

    wanted, got = (
        outputs(before, before.arrays, x),
        outputs(after, after.arrays if weights is None else weights, mapped),
    )
    plain = outputs(after, after.arrays, mapped) if shaken else []
    noises = [outputs(after, each, mapped) for each in shaken]
    changes = [outputs(before, each, x) for each in own]
    gaps = [
        rows_and_columns(
            a, b, _both([b + noise[k] - plain[k] for noise in noises], [change[k] - a for change in changes])
        )
        for k, (a, b) in enumerate(zip(wanted, got, strict=True))
    ]
    which = max(range(len(gaps)), key=lambda k: gaps[k].roundings)
    last = 1 if before.stack.hidden_states else 0
    return Local("head" if which <= last else f"side.{which - 1 - last}", *gaps[which])

"""Who reads which norm, and where an offset of a reader can go: derived from the description alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lngeom.transformers.arrays import Change, StackArrays, contract
from lngeom.transformers.description import Attention, Block, FeedForward, Linear, Mixture, Norm, Space, Stack


@dataclass(frozen=True)
class Reader:
    """A linear map that reads a norm's output or the stream.

    Attributes:
        part: the map.
        hidden: rows [out] whose offset changes nothing (keys before a softmax).
        carrier: the block whose output bias can take the offset (values), or None.
    """

    part: Linear
    hidden: np.ndarray
    carrier: Block | None = None


@dataclass(frozen=True)
class Reading:
    """The readers of one norm, or of the stream itself.

    Attributes:
        norm: the norm; None: the stream is read directly.
        readers: all linear maps that read it.
        kind: "folds": nothing else reads the norm; "residual": its output is also the stream (post-norm); "direct": no
            norm; "tied": the reader is the token table.
        branch: the branch of these readers.
        after: the norm that takes the branch's output or the sum with it ("residual", "direct").
    """

    norm: Norm | None
    readers: tuple[Reader, ...]
    kind: Literal["folds", "residual", "direct", "tied"]
    branch: Attention | FeedForward | Mixture | None = None
    after: Norm | None = None


def pairs_by_frequency(attention: Attention) -> tuple[list[list[tuple[int, int]]], list[int]]:
    """Rotary pairs by frequency up to whole turns and direction, and the coordinates that do not turn."""
    still = set(range(attention.query_width))
    classes: dict[float, list[tuple[int, int]]] = {}
    if attention.rotary is not None:
        for (i, j), frequency in zip(attention.rotary.pairs, attention.rotary.frequencies, strict=True):
            turn = (frequency + np.pi) % (2 * np.pi) - np.pi
            if turn == 0:
                continue
            still -= {i, j}
            classes.setdefault(round(abs(turn), 12), []).append((i, j) if turn > 0 else (j, i))
    return list(classes.values()), sorted(still)


def keys_are_relative(attention: Attention) -> bool:
    """Whether one number added to all scores of a query changes nothing, so that an offset of keys is invisible."""
    return attention.cap is None and attention.sink is None


def weights_sum_to_one(mixture: Mixture) -> bool:
    """Whether a mixture's weights sum to one at every position."""
    return mixture.renormalize or (mixture.scores == "softmax" and mixture.top in {None, len(mixture.experts)})


def weights_are_constant(mixture: Mixture) -> bool:
    """Whether one expert has the weight 1 whatever the router says."""
    alone = 1 in {mixture.top, len(mixture.experts)}
    return alone and (mixture.renormalize or (mixture.scores == "softmax" and len(mixture.experts) == 1))


def absorbing(branch: Attention | FeedForward | Mixture) -> list[Linear]:
    """Maps whose biases all take a vector that is added to a branch's output; none where one of them has no bias."""
    if isinstance(branch, Attention):
        found = [branch.output]
    elif isinstance(branch, FeedForward):
        found = [branch.down]
    else:
        found = [e.down for e in branch.experts] if weights_sum_to_one(branch) else []
    return found if all(part.bias is not None for part in found) else []


def can_absorb(branch: Attention | FeedForward | Mixture) -> bool:
    """Whether a vector can be added to a branch's output."""
    return bool(absorbing(branch))


def absorb(arrays: StackArrays, branch: Attention | FeedForward | Mixture, value: Any) -> list[Change]:
    """Adds a vector [K d] to the output of a branch through its biases."""
    return [arrays.change_offsets(part, value) for part in absorbing(branch)]


def carries_values(block: Block) -> bool:
    """Whether a constant added to every value can go into an output bias: attention's, or that of a parallel branch."""
    if block.attention.sink is not None:
        return False
    return can_absorb(block.attention) or (block.parallel and block.placing == "pre" and can_absorb(block.feed_forward))


def output_heads(arrays: StackArrays, attention: Attention) -> np.ndarray:
    """W_O by query head [n d v]."""
    shape = arrays.width, attention.heads, attention.value_width
    return arrays.matrix(attention.output).reshape(shape).transpose(1, 0, 2)


def summed_outputs(arrays: StackArrays, attention: Attention) -> np.ndarray:
    """Σ_h W_O^h over the query heads of each key/value head, as one map [d n_k·v]."""
    heads = output_heads(arrays, attention).reshape(
        attention.kv_heads, attention.group, arrays.width, attention.value_width
    )
    return heads.sum(1).transpose(1, 0, 2).reshape(arrays.width, -1)


def carry_values(arrays: StackArrays, block: Block, value: Any) -> list[Change]:
    """Takes an offset of values [K n_k·v] out of an output bias."""
    moved = -contract("di,Ki->Kd", summed_outputs(arrays, block.attention), value)
    return absorb(arrays, value_carrier(block), moved)


def value_carrier(block: Block) -> Attention | FeedForward | Mixture:
    """The branch whose output bias takes an offset of values."""
    return block.attention if can_absorb(block.attention) else block.feed_forward


def unsettled(arrays: StackArrays, norm: Norm | None, reader: Reader) -> np.ndarray:
    """Rows [out] of a reader whose offset is seen and cannot be changed by the reader's own parameters or a carrier."""
    if reader.part.bias is not None or reader.carrier is not None:
        return np.zeros(len(reader.hidden), bool)
    if norm is not None and norm.centres and norm.bias is not None and _lever(arrays, norm) != 0:
        return np.zeros(len(reader.hidden), bool)
    return ~reader.hidden


def settle(arrays: StackArrays, norm: Norm | None, reader: Reader, offset: Any) -> list[Change]:
    """Changes that take an offset [K out] off a reader's output; its unsettled rows must be zero."""
    if reader.part.bias is not None:
        return [arrays.change_offsets(reader.part, -offset)]
    if reader.carrier is not None:
        return carry_values(arrays, reader.carrier, offset)
    if norm is None or reader.hidden.all() or not norm.centres or norm.bias is None:
        return []
    seen = contract("Ko,o->Ko", offset, (~reader.hidden).astype(float))
    along = 1 / arrays.gain(norm) / _lever(arrays, norm)
    return [arrays.change_matrix(reader.part, -contract("Ko,d->Kod", seen, along))]


def _lever(arrays: StackArrays, norm: Norm) -> float:
    """Σ β/γ: what a row along 1/γ adds to the offset of its output."""
    return float(np.sum(arrays.bias(norm) / arrays.gain(norm)))


def attention_readers(arrays: StackArrays, block: Block) -> tuple[Reader, ...]:
    """Queries, keys and values, with the keys' invisible rows and the values' carrier."""
    a = block.attention
    still = np.zeros(a.query_width, bool)
    if keys_are_relative(a) and a.query_norm is None:
        still[pairs_by_frequency(a)[1]] = True
    none = np.zeros(a.heads * a.query_width, bool)
    return (
        Reader(a.query, none),
        Reader(a.key, np.tile(still, a.kv_heads)),
        Reader(a.value, np.zeros(a.kv_heads * a.value_width, bool), block if carries_values(block) else None),
    )


def feed_forward_readers(arrays: StackArrays, branch: FeedForward | Mixture) -> tuple[Reader, ...]:
    """Router, up and gate matrices."""
    return tuple(Reader(part, np.zeros(len(arrays.matrix(part)), bool)) for _, part in branch.readers())


def last_norm(stack: Stack) -> Norm | None:
    """The norm whose output the head, or the layer before it, reads."""
    if stack.final is not None or not stack.blocks:
        return stack.final
    return stack.blocks[-1].feed_forward_norm if stack.blocks[-1].placing == "post" else None


def head_norm(stack: Stack) -> Norm | None:
    """The norm just before the head's matrix."""
    return last_norm(stack) if stack.head.transform is None else stack.head.transform.norm


def readings(arrays: StackArrays) -> Iterator[Reading]:
    """Every norm with its linear readers, and every direct reading of the stream, in order."""
    stack = arrays.stack
    previous = stack.embedding_norm
    for block in stack.blocks:
        attend, feed = attention_readers(arrays, block), feed_forward_readers(arrays, block.feed_forward)
        if block.placing == "post":
            kind = "direct" if previous is None else "residual"
            yield Reading(previous, attend, kind, block.attention, block.attention_norm)
            yield Reading(block.attention_norm, feed, "residual", block.feed_forward, block.feed_forward_norm)
            previous = block.feed_forward_norm
        elif block.placing == "outer":
            yield Reading(None, attend, "direct", block.attention, block.attention_writing_norm)
            yield Reading(None, feed, "direct", block.feed_forward, block.feed_forward_writing_norm)
        elif block.shared_norm:
            yield Reading(block.attention_norm, (*attend, *feed), "folds")
        else:
            yield Reading(block.attention_norm, attend, "folds")
            yield Reading(block.feed_forward_norm, feed, "folds")
    if (transform := stack.head.transform) is not None:
        rows = np.zeros(len(arrays.matrix(transform.linear)), bool)
        yield Reading(last_norm(stack), (Reader(transform.linear, rows),), "folds")
    rows = np.zeros(len(arrays.matrix(stack.head.map)), bool)
    yield Reading(head_norm(stack), (Reader(stack.head.map, rows),), "tied" if stack.tied else "folds")


def space_of(stack: Stack, path: str) -> Space:
    """The space that the part at a path writes to."""
    return next(s for s in stack.spaces if any(w.path == path for w in s.writers))


def unseen_along_one(stack: Stack, path: str) -> bool:
    """Whether a constant added to all coordinates of what this part writes is removed: all later readers centre."""
    space = space_of(stack, path)
    writer = next(w for w in space.writers if w.path == path)
    return all(isinstance(r.part, Norm) and r.part.centres for r in space.readers_after(writer))

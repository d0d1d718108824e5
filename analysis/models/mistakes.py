"""Exact rewrites of a transformer, and mistakes planted into one: those made in public, and slips of their kind."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from lngeom.transformers import Linear, Mixture, Stack, rewrite as rw
from lngeom.transformers.description import exchange
from lngeom.transformers.rewrite import Refused, steps as do

Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Planted:
    """A faulty model.

    Attributes:
        stack: its description.
        weights: its arrays.
        part: path of the first part that is wrong.
        words: a word of each answer that names the mistake.
    """

    stack: Stack
    weights: Weights
    part: str
    words: tuple[str, ...]


def exact(stack: Stack, weights: Weights) -> Iterator[tuple[str, Stack, Weights]]:
    """Every rewrite that the family allows."""
    for name, steps in {
        "untie": [do.Untie()],
        "fold": [do.Untie(), do.FoldNorms()],
        "centre": [*_folded(stack), do.CentreWriters()],
        "rotate": [*_folded(stack), do.Rotate(seed=1)],
        "centre, rms, rotate": [
            *_folded(stack),
            *(do.CentreReaders(), do.CentreWriters(), do.ToRMSNorm(), do.Rotate(seed=1)),
        ],
        **({"fold scales": [do.FoldScales()]} if _scaled(stack) else {}),
        "rotate values": [do.RotateValues()],
        "balance": [do.Balance()],
        "merge value bias": [do.MergeValueBias()],
        "drop key bias": [do.DropKeyBias()],
        "merge parallel bias": [do.MergeParallelBias()],
        "scale": [do.Untie(), do.ScaleStream(factor=2.0)],
        "shift tables": [do.ShiftTables()],
        "centre head": [do.Untie(), do.CentreHead()],
        "centre router": [do.CentreRouter()],
    }.items():
        try:
            out = rw.apply(stack, weights, steps)
        except Refused:
            continue
        yield name, out.stack, dict(out.weights)


def _rewritten(stack: Stack, weights: Weights, *steps: Any) -> tuple[Stack, Weights] | None:
    try:
        out = rw.apply(stack, weights, list(steps))
    except Refused:
        return None
    return out.stack, {name: np.array(value) for name, value in out.weights.items()}


def _readers(stack: Stack, i: int) -> list[tuple[str, Linear]]:
    """Readers of the reading norms of a block, with the path of their part."""
    block = stack.blocks[i]
    found = []
    for name in ("attention", "feed_forward"):
        path = f"blocks.{i}" if block.parallel else f"blocks.{i}.{name}"
        found += [(path, part) for _, part in getattr(block, name).readers()]
    return found


def _gain(stack: Stack, weights: Weights, path: str) -> np.ndarray | None:
    norm = next((n.part for n in stack.norms if n.path == path), None)
    return None if norm is None or norm.gain is None else norm.offset + weights[norm.gain]


def _part(stack: Stack, i: int, name: str) -> str:
    return f"blocks.{i}" if stack.blocks[i].parallel else f"blocks.{i}.{name}"


def _scaled(stack: Stack) -> bool:
    """Whether branches have factors of channels."""
    return any(block.attention_scale or block.feed_forward_scale for block in stack.blocks)


def _folded(stack: Stack) -> list[Any]:
    """Steps before the stream can be rotated."""
    return [do.Untie(), do.FoldNorms(), *([do.FoldScales()] if _scaled(stack) else [])]


def _with(weights: Weights, part: Linear, matrix: np.ndarray) -> Weights:
    return weights | {part.weight: part.with_matrix(weights[part.weight], matrix)}


def gain_forgotten(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """A gain is folded into all readers but one."""
    found = _rewritten(stack, weights, do.Untie(), do.FoldNorms())
    if found is None:
        return None
    new, arrays = found
    i = int(draw.integers(len(stack.blocks)))
    block = stack.blocks[i]
    if block.placing not in {"pre", "sandwich"} or block.attention_norm is None or block.attention_norm.gain is None:
        return None
    reader = block.attention.readers()[1][1]  # keys, or what they are read from
    arrays = _with(arrays, reader, reader.matrix(weights[reader.weight]))
    return Planted(new, arrays, _part(stack, i, "attention"), ("gain γ of attention_norm is left out",))


def gain_twice(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """A reader of the second branch gets the gain, which stays in the norm."""
    i = int(draw.integers(len(stack.blocks)))
    block = stack.blocks[i]
    where = "attention_norm" if block.shared_norm else "feed_forward_norm"
    gain = _gain(stack, weights, f"blocks.{i}.{where}")
    if block.placing == "post" or gain is None:
        return None
    part = block.feed_forward.readers()[-1][1]
    arrays = _with(weights, part, part.matrix(weights[part.weight]) * gain)
    return Planted(stack, arrays, _part(stack, i, "feed_forward"), ("there twice",))


def one_plus(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """γ is stored where 1 + γ is read, or the other way round."""
    i = int(draw.integers(len(stack.blocks)))
    block = stack.blocks[i]
    norm = block.attention_norm if block.placing in {"pre", "sandwich"} else None
    if norm is None or norm.gain is None:
        return None
    sign = 1.0 if norm.offset else -1.0
    arrays = weights | {norm.gain: weights[norm.gain] + sign}
    return Planted(stack, arrays, _part(stack, i, "attention"), ("stands for γ", "attention_norm"))


def centred_tables(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """The table of tokens is centred before RMSNorms."""
    if any(n.part.kind != "rms" for n in stack.norms) or stack.blocks[0].placing == "post":
        return None
    name = stack.tables[0].weight
    rows = weights[name]
    return Planted(stack, weights | {name: rows - rows.mean(1, keepdims=True)}, "tables", ("centred",))


def writer_not_centred(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """LayerNorms become RMSNorms, and one writer was not centred."""
    found = _rewritten(stack, weights, *_folded(stack), do.CentreWriters(), do.ToRMSNorm())
    if found is None:
        return None
    new, arrays = found
    i = int(draw.integers(len(stack.blocks)))
    part, scale = stack.blocks[i].attention.output, stack.blocks[i].attention_scale
    matrix = part.matrix(weights[part.weight])
    arrays = _with(arrays, part, matrix if scale is None else weights[scale][:, None] * matrix)
    return Planted(new, arrays, _part(stack, i, "attention"), ("not centred",))


def folded_into_tied(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """The final norm's gain is folded into a head that is the table of tokens too."""
    gain = None if stack.final is None else _gain(stack, weights, "final")
    if not stack.tied or gain is None or stack.final is None or stack.final.gain is None:
        return None
    name = stack.tables[0].weight
    ones = np.full_like(weights[stack.final.gain], 1 - stack.final.offset)
    arrays = weights | {name: weights[name] * gain, stack.final.gain: ones}
    return Planted(stack, arrays, "tables", ("final norm is folded into them",))


def pairs_permuted(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """Rows of queries and keys in the other order of rotary pairs."""
    i = int(draw.integers(len(stack.blocks)))
    a = stack.blocks[i].attention
    if a.rotary is None or a.rotary.coordinates < 4:
        return None
    order = np.arange(a.rotary.coordinates).reshape(2, -1).T.reshape(-1)
    order = np.argsort(order) if a.rotary.pairing == "adjacent" else order
    arrays, start = weights, a.rotary.start
    keys, shift = ((a.key, a.kv_heads), 0) if a.shared_key is None else ((a.shared_key, 1), a.key_width)
    for (part, heads), first in (((a.query, a.heads), start), (keys, start - shift)):
        matrix = part.matrix(arrays[part.weight])
        rows = np.array(matrix.reshape(heads, -1, matrix.shape[1]))
        rows[:, first : first + len(order)] = rows[:, first + order]
        arrays = _with(arrays, part, rows.reshape(matrix.shape))
    return Planted(stack, arrays, _part(stack, i, "attention"), ("rotary pairs",))


def epsilon(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """A norm has another ε."""
    i = int(draw.integers(len(stack.blocks)))
    site = next((n for n in stack.norms if n.path == f"blocks.{i}.attention_norm"), None)
    if site is None or stack.blocks[i].placing == "post":
        return None
    new = exchange(stack, {site.path: replace(site.part, eps=10 * site.part.eps + 1e-4)})
    return Planted(new, weights, _part(stack, i, "attention"), ("eps",))


def scaled_without_epsilon(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """The stream is scaled, and ε is not."""
    found = _rewritten(stack, weights, do.Untie(), do.ScaleStream(factor=0.01))
    if found is None or stack.blocks[0].placing not in {"pre", "sandwich"}:
        return None
    new, arrays = found
    old = {n.path: n.part for n in stack.norms}
    new = exchange(new, {n.path: replace(n.part, eps=old[n.path].eps) for n in new.norms})
    first = "feed_forward" if stack.blocks[0].attention_norm is None else "attention"
    return Planted(new, arrays, _part(stack, 0, first), ("eps",))


def not_orthogonal(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """The stream is turned by a matrix that is not orthogonal."""
    found = _rewritten(stack, weights, do.Untie(), do.FoldNorms())
    if found is None or any(n.part.kind != "rms" for n in stack.norms) or stack.blocks[0].placing != "pre":
        return None
    new, arrays = found
    d = stack.width(arrays)
    R = np.linalg.qr(draw.standard_normal((d, d)))[0] @ (np.eye(d) + 0.02 * draw.standard_normal((d, d)))
    inverse = np.linalg.inv(R)
    for table in new.tables:
        arrays = _with(arrays, table.linear, table.linear.matrix(arrays[table.weight]) @ R.T)
    for i, block in enumerate(new.blocks):
        for _, part in _readers(new, i):
            arrays = _with(arrays, part, part.matrix(arrays[part.weight]) @ inverse)
        for branch in (block.attention, block.feed_forward):
            for _, part in branch.writers():
                arrays = _with(arrays, part, R @ part.matrix(arrays[part.weight]))
    for _, head in new.head.maps:
        arrays = _with(arrays, head, head.matrix(arrays[head.weight]) @ inverse)
    return Planted(new, arrays, "tables", ("not orthogonal",))


def _rotated(stack: Stack, weights: Weights) -> tuple[Stack, Weights] | None:
    return _rewritten(stack, weights, *_folded(stack), do.Rotate(seed=3))


def writer_not_rotated(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """A rotated model, and one map that writes was left out."""
    found = _rotated(stack, weights)
    if found is None:
        return None
    new, arrays = found
    i = int(draw.integers(len(stack.blocks)))
    part, scale = stack.blocks[i].feed_forward.writers()[0][1], stack.blocks[i].feed_forward_scale
    matrix = part.matrix(weights[part.weight])
    arrays = _with(arrays, part, matrix if scale is None else weights[scale][:, None] * matrix)
    return Planted(new, arrays, _part(stack, i, "feed_forward"), ("not rotated",))


def tables_not_rotated(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """A rotated model whose tables were left out."""
    found = _rotated(stack, weights)
    if found is None:
        return None
    new, arrays = found
    arrays |= {table.weight: weights[table.weight] for table in stack.tables}
    return Planted(new, arrays, "tables", ("not rotated",))


def quantized(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """One matrix in four bits."""
    i = int(draw.integers(len(stack.blocks)))
    part = stack.blocks[i].feed_forward.writers()[-1][1]
    matrix = part.matrix(weights[part.weight])
    step = np.abs(matrix).max(1, keepdims=True) / 7
    return Planted(
        stack,
        _with(weights, part, np.round(matrix / step) * step),
        _part(stack, i, "feed_forward"),
        ("quantized", part.weight),
    )


def values_reordered(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """Heads of the values in another order than those of the outputs."""
    i = int(draw.integers(len(stack.blocks)))
    a = stack.blocks[i].attention
    if a.kv_heads < 2:
        return None
    matrix = a.value.matrix(weights[a.value.weight])
    rolled = np.roll(matrix.reshape(a.kv_heads, -1, matrix.shape[1]), 1, 0).reshape(matrix.shape)
    arrays = _with(weights, a.value, rolled)
    return Planted(stack, arrays, _part(stack, i, "attention"), ("rows are in another order",))


def transposed(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """A square matrix transposed."""
    i = int(draw.integers(len(stack.blocks)))
    part = stack.blocks[i].attention.output
    matrix = part.matrix(weights[part.weight])
    if matrix.shape[0] != matrix.shape[1]:
        return None
    return Planted(stack, _with(weights, part, matrix.T), _part(stack, i, "attention"), ("transposed",))


def bias_lost(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """An output bias set to zero."""
    i = int(draw.integers(len(stack.blocks)))
    part = stack.blocks[i].attention.output
    if part.bias is None:
        return None
    arrays = weights | {part.bias: np.zeros_like(weights[part.bias])}
    return Planted(stack, arrays, _part(stack, i, "attention"), ("bias",))


def activation(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """Another form of the activation."""
    i = int(draw.integers(len(stack.blocks)))
    block = stack.blocks[i]
    other = {
        "gelu": "gelu_tanh",
        "gelu_tanh": "gelu",
        "quick_gelu": "gelu",
        "silu": "gelu",
        "relu": "gelu",
        "relu2": "relu",
    }
    f = block.feed_forward
    if isinstance(f, Mixture):
        return None
    new: Any = replace(f, activation=other[f.activation])
    blocks = (*stack.blocks[:i], replace(block, feed_forward=new), *stack.blocks[i + 1 :])
    return Planted(replace(stack, blocks=blocks), weights, _part(stack, i, "feed_forward"), ("activation",))


def score_scale(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """Another factor of the scores."""
    i = int(draw.integers(len(stack.blocks)))
    block = stack.blocks[i]
    new = replace(block.attention, scale=2 * block.attention.score_scale)
    blocks = (*stack.blocks[:i], replace(block, attention=new), *stack.blocks[i + 1 :])
    return Planted(replace(stack, blocks=blocks), weights, _part(stack, i, "attention"), ("scale",))


def router_forgotten(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """The norm before a mixture is folded into the experts and not into the router."""
    found = _rewritten(stack, weights, do.Untie(), do.FoldNorms())
    i = int(draw.integers(len(stack.blocks)))
    f = stack.blocks[i].feed_forward
    if found is None or not isinstance(f, Mixture):
        return None
    new, arrays = found
    arrays = _with(arrays, f.router, f.router.matrix(weights[f.router.weight]))
    return Planted(new, arrays, _part(stack, i, "feed_forward"), ("router", "left out"))


def gate_for_up(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """Gate and linear factor exchanged."""
    i = int(draw.integers(len(stack.blocks)))
    f = stack.blocks[i].feed_forward
    f = f.experts[0] if isinstance(f, Mixture) else f
    if f.gate is None:
        return None
    up, gate = (part.matrix(weights[part.weight]) for part in (f.up, f.gate))
    arrays = _with(_with(weights, f.up, gate), f.gate, up)
    return Planted(stack, arrays, _part(stack, i, "feed_forward"), ("exchanged",))


def table_scale(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """The factor of the table of tokens is left out, or one is added."""
    first = stack.tables[0]
    new = replace(first, scale=1.0 if first.scale != 1 else float(np.sqrt(stack.width(weights))))
    if stack.embedding_norm is not None or len(stack.tables) > 1:
        return None
    return Planted(replace(stack, tables=(new,)), weights, "tables", ("multiplied",))


def row_changed(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """One row of the table of tokens is another's."""
    part = stack.tables[0].linear
    rows = np.array(part.matrix(weights[part.weight]))
    rows[7] = rows[8]
    return Planted(stack, _with(weights, part, rows), "tables", ("1 row",))


def query_for_key(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """Queries and keys exchanged."""
    i = int(draw.integers(len(stack.blocks)))
    a = stack.blocks[i].attention
    if a.heads != a.kv_heads:
        return None
    query, key = (part.matrix(weights[part.weight]) for part in (a.query, a.key))
    if query.shape != key.shape:
        return None
    arrays = _with(weights, a.query, key)
    arrays = _with(arrays, a.key, query)
    for part, other in ((a.query, a.key), (a.key, a.query)):
        if part.bias is not None and other.bias is not None:
            moved = part.with_offsets(arrays[part.bias], other.offsets(weights[other.bias]))
            arrays = arrays | {part.bias: moved}
    return Planted(stack, arrays, _part(stack, i, "attention"), ("exchanged",))


def blocks_exchanged(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """The first two blocks in each other's place."""
    first, second, *rest = stack.blocks
    new = replace(stack, blocks=(second, first, *rest))
    return Planted(new, weights, _part(stack, 0, "attention"), ("block 1", "place of block 0"))


def branch_scaled(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """The last map of a network multiplied by a number, as by a merged adapter with another scale."""
    i = int(draw.integers(len(stack.blocks)))
    part = stack.blocks[i].feed_forward.writers()[0][1]
    arrays = _with(weights, part, 1.1 * part.matrix(weights[part.weight]))
    return Planted(stack, arrays, _part(stack, i, "feed_forward"), ("multiplied by 1.1",))


def row_of_head(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """One row of an untied head is another's."""
    found = _rewritten(stack, weights, do.Untie())
    if found is None:
        return None
    new, arrays = found
    if (part := new.head.linear) is None:
        return None
    rows = np.array(part.matrix(arrays[part.weight]))
    rows[5] = rows[6]
    return Planted(new, _with(arrays, part, rows), "head", ("1 of 23 rows",))


def writing_gain(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """The gain of a norm that writes to the stream is stored as γ − 1."""
    i = int(draw.integers(len(stack.blocks)))
    block = stack.blocks[i]
    norm = block.attention_norm if block.placing == "post" else block.attention_writing_norm
    if norm is None or norm.gain is None:
        return None
    arrays = weights | {norm.gain: weights[norm.gain] - 1}
    return Planted(stack, arrays, _part(stack, i, "attention"), ("γ − 1 stands for γ",))


def latent_gain_forgotten(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """The gain of a latent's norm is folded into all maps that read it but one."""
    found = _rewritten(stack, weights, do.FoldNorms(only=("blocks.*.attention.*_latent.norm",)))
    i = int(draw.integers(len(stack.blocks)))
    a = stack.blocks[i].attention
    if found is None or a.kv_latent is None:
        return None
    new, arrays = found
    arrays = _with(arrays, a.value, a.value.matrix(weights[a.value.weight]))
    return Planted(new, arrays, _part(stack, i, "attention"), ("gain γ of attention.kv_latent.norm is left out",))


def shared_key_scaled(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """The part of the keys that all heads share multiplied by a number, as by YaRN's factor put in twice."""
    i = int(draw.integers(len(stack.blocks)))
    part = stack.blocks[i].attention.shared_key
    if part is None:
        return None
    arrays = _with(weights, part, 1.2 * part.matrix(weights[part.weight]))
    return Planted(stack, arrays, _part(stack, i, "attention"), ("multiplied by 1.2", part.weight))


def latent_epsilon(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """The norm of a latent has another ε."""
    i = int(draw.integers(len(stack.blocks)))
    latent = stack.blocks[i].attention.kv_latent
    if latent is None:
        return None
    path = f"blocks.{i}.attention.kv_latent.norm"
    new = exchange(stack, {path: replace(latent.norm, eps=10 * latent.norm.eps + 1e-4)})
    return Planted(new, weights, _part(stack, i, "attention"), (f"{path}.eps",))


def choice_bias_lost(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """The bias for the choice of experts is zero, as where a loader takes it for a buffer of its own."""
    i = _mixture_at(stack, draw)
    name = None if i is None else getattr(stack.blocks[i].feed_forward, "choice_bias", None)
    if i is None or name is None:
        return None
    arrays = weights | {name: np.zeros_like(weights[name])}
    return Planted(stack, arrays, _part(stack, i, "feed_forward"), ("bias", name))


def groups_left_out(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """Experts are chosen among all, and not in groups."""
    i = _mixture_at(stack, draw)
    network = None if i is None else stack.blocks[i].feed_forward
    if not isinstance(network, Mixture) or network.groups is None:
        return None
    path = f"blocks.{i}.feed_forward"
    return Planted(exchange(stack, {path: replace(network, groups=None)}), weights, path, ("groups",))


def scale_left_out(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """Factors of channels are 1, as where a converter forgets layer scale."""
    i = int(draw.integers(len(stack.blocks)))
    name = stack.blocks[i].attention_scale
    if name is None:
        return None
    arrays = weights | {name: np.ones_like(weights[name])}
    return Planted(stack, arrays, _part(stack, i, "attention"), ("it is 1", name))


def scale_twice(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """Factors of channels are folded into the last map of a network, and stay."""
    i = int(draw.integers(len(stack.blocks)))
    name = stack.blocks[i].feed_forward_scale
    if name is None:
        return None
    part = stack.blocks[i].feed_forward.writers()[0][1]
    arrays = _with(weights, part, weights[name][:, None] * part.matrix(weights[part.weight]))
    return Planted(stack, arrays, _part(stack, i, "feed_forward"), ("factors of channels are there twice",))


def class_token_lost(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """The class token is zero."""
    name = next((table.weight for table in stack.tables if table.index == "leading"), None)
    if name is None:
        return None
    return Planted(stack, weights | {name: 0 * weights[name]}, "tables", ("1 row", name))


def positions_moved(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """Positions begin one row too early, as where the class token's is left out."""
    table = next((t for t in stack.tables if t.index == "position"), None)
    if table is None or not any(t.index == "leading" for t in stack.tables):
        return None
    rows = table.linear.matrix(weights[table.weight])
    moved = np.concatenate([rows[1:], rows[-1:]])
    return Planted(stack, _with(weights, table.linear, moved), "tables", ("rows differ",))


def head_parts_exchanged(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """The head's columns for the first position and for the mean of the others are exchanged."""
    first, mean = stack.head.linear, stack.head.mean
    if first is None or mean is None:
        return None
    a, b = (part.matrix(weights[part.weight]) for part in (first, mean))
    return Planted(stack, _with(_with(weights, first, b), mean, a), "head", ("exchanged",))


def directions_exchanged(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """Rows of relative positions before and behind stand in each other's place."""
    a = stack.blocks[0].attention
    if a.buckets is None or a.relative is None:
        return None
    moved = np.roll(weights[a.relative], a.buckets.count // 2, axis=0)
    words = ("rows", "another order", a.relative)
    return Planted(stack, weights | {a.relative: moved}, _part(stack, 0, "attention"), words)


def buckets_changed(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """Relative positions share rows up to another distance."""
    i = int(draw.integers(len(stack.blocks)))
    a = stack.blocks[i].attention
    if a.buckets is None:
        return None
    path = f"blocks.{i}.attention"
    new = replace(a, buckets=replace(a.buckets, largest=4 * a.buckets.largest))
    return Planted(exchange(stack, {path: new}), weights, path, ("buckets.largest",))


def front_activation(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """Another form of the activation of a front end's last layer."""
    if stack.front is None:
        return None
    path = f"front.layers.{len(stack.front.layers) - 1}"
    new = replace(stack.front.layers[-1], activation="gelu_tanh")
    return Planted(exchange(stack, {path: new}), weights, "tables", (path, "activation"))


def windows_reversed(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """The windows of a layer of a front end run backwards, as where a convolution is taken for a correlation."""
    if stack.front is None:
        return None
    i = int(draw.integers(len(stack.front.layers)))
    name = stack.front.layers[i].linear.weight
    arrays = weights | {name: weights[name][..., ::-1].copy()}
    return Planted(stack, arrays, "tables", (f"front.layers.{i}", name))


def front_bias_lost(stack: Stack, weights: Weights, draw: np.random.Generator) -> Planted | None:
    """The bias of a layer of a front end is zero."""
    if stack.front is None:
        return None
    name = stack.front.layers[int(draw.integers(len(stack.front.layers)))].linear.bias
    return None if name is None else Planted(stack, weights | {name: 0 * weights[name]}, "tables", ("zero", name))


def _mixture_at(stack: Stack, draw: np.random.Generator) -> int | None:
    """A block with a mixture."""
    found = [i for i, block in enumerate(stack.blocks) if isinstance(block.feed_forward, Mixture)]
    return int(draw.choice(found)) if found else None


MISTAKES: tuple[Callable[[Stack, Weights, np.random.Generator], Planted | None], ...] = (
    *(gain_forgotten, gain_twice, one_plus, centred_tables, writer_not_centred, folded_into_tied, pairs_permuted),
    *(epsilon, scaled_without_epsilon, not_orthogonal, writer_not_rotated, tables_not_rotated, quantized),
    *(values_reordered, transposed, bias_lost, activation, score_scale, router_forgotten, gate_for_up, table_scale),
    *(row_changed, query_for_key, blocks_exchanged, branch_scaled, row_of_head, writing_gain),
    *(latent_gain_forgotten, shared_key_scaled, latent_epsilon, choice_bias_lost, groups_left_out),
    *(scale_left_out, scale_twice, class_token_lost, positions_moved, head_parts_exchanged, directions_exchanged),
    *(buckets_changed, front_activation, windows_reversed, front_bias_lost),
)
"""Functions that plant a mistake, or return None where a family cannot have it."""

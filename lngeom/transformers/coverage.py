"""Stacks whose symmetries are not predicted: refused by name."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from lngeom.transformers.description import Attention, Block, FeedForward, Linear, Mixture, Norm, Stack, Table, walk


def require_covered(stack: Stack, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuses what the theory of `symmetries` and `counts` does not cover.

    Raises:
        ValueError: naming the part and what to do.
    """
    if (ends := other_ends(stack)) is not None:
        _refuse(ends)
    for path, part in walk(stack):
        if isinstance(part, Block) and (scale := part.attention_scale or part.feed_forward_scale):
            _refuse(f"{path}: factors of channels of a branch ({scale})")
        if isinstance(part, Attention):
            _check_attention(path, part, shapes)
        elif isinstance(part, FeedForward) and part.gate is None and part.activation == "identity":
            _refuse(f"{path}: a network without a nonlinearity")
        elif isinstance(part, FeedForward) and part.clamp is not None:
            _refuse(f"{path}: a clamped network")
        elif isinstance(part, FeedForward) and part.hadamard is not None:
            _refuse(f"{path}: hidden units that a matrix turns at run time")
        elif isinstance(part, Mixture) and part.shared is not None:
            _refuse(f"{path}: a shared expert")
        elif isinstance(part, Mixture) and part.groups is not None:
            _refuse(f"{path}: a router that chooses among groups of experts")
        elif isinstance(part, Mixture) and part.choice_bias is not None:
            _refuse(f"{path}: a bias for the choice of experts alone")
        elif isinstance(part, Mixture) and part.factor != 1:
            _refuse(f"{path}: a factor of the weights of experts")
    if bare := [i for i, block in enumerate(stack.blocks) if block.bare_attention]:
        _refuse(f"attention that reads the stream without a norm (blocks.{bare[0]})")
    if stack.side:
        _refuse(f"a map beside the head ({stack.side[0].weight})")
    placings = {b.placing for b in stack.blocks}
    if len(placings) > 1:
        _refuse(f"blocks of several placings ({', '.join(sorted(placings))})")
    if not stack.blocks:
        _refuse("a stack without blocks")
    if stack.final is None and "post" not in placings:
        _refuse("a head that reads the stream itself, without a final norm")
    if stack.final is not None and "post" in placings:
        _refuse("a final norm after post-norm blocks")
    kinds = {n.centres for n in _stream_norms(stack)}
    if len(kinds) > 1:
        _refuse("a stream that norms of two kinds read or write")
    _check_shared(stack)


def other_ends(stack: Stack) -> str | None:
    """What a stack reads or gives, in words, if its symmetries there have no names; None if they have."""
    if stack.inputs != "token":
        return f"a stack that reads {'patches' if stack.inputs == 'patch' else 'frames, by a front end'}"
    if stack.hidden_states:
        return "a stack whose outputs are hidden states"
    if stack.head.reads != "each":
        return "a head that reads one position alone"
    if other := next((t for t in stack.tables if t.index in {"input", "leading"} or t.layout != "rows"), None):
        return f"a table of another kind than tokens, types and positions ({other.weight})"
    return None


def _stream_norms(stack: Stack) -> list[Norm]:
    found = [site.part for site in stack.norms if not site.path.startswith("head.")]
    return [part for part in found if isinstance(part, Norm)]


def _refuse(what: str) -> None:
    raise ValueError(
        f"null spaces are not predicted for {what}; lg.fisher(...).nullspace() measures that of a small model"
    )


def _check_attention(path: str, a: Attention, shapes: Mapping[str, tuple[int, ...]]) -> None:
    query, key = a.query_norm, a.key_norm
    if a.latents():
        _refuse(f"{path}: latent attention, whose queries, or keys and values, are read through a further norm")
    if a.shared_key is not None:
        _refuse(f"{path}: a part of the keys that all heads share")
    if a.window is not None and a.window < 2:
        _refuse(f"{path}: a window of one position")
    if query is None or key is None:
        return
    if query.kind != key.kind:
        _refuse(f"{path}: norms of two kinds for queries and keys")
    if (query.gain is None) != (key.gain is None):
        _refuse(f"{path}: a gain on one of queries and keys")
    biased = query.bias is not None or key.bias is not None
    if biased and query.gain is None:
        _refuse(f"{path}: normalized queries and keys with a bias and without a gain")
    if biased and (a.cap is not None or a.sink is not None):
        _refuse(f"{path}: biases of normalized queries and keys under a cap or a sink")
    if a.rotary is not None and a.rotary_first and (query.gain is not None or query.centres):
        _refuse(f"{path}: rotary positions before a norm with gains or centring")
    if query.centres and a.norm_over == "all":
        _refuse(f"{path}: a centring norm over all heads at once")
    by_head = [math.prod(shapes[g]) > a.query_width for g in (query.gain, key.gain) if g is not None]
    if any(by_head) and (query.centres or biased):
        _refuse(f"{path}: gains by head in a centring norm, or with biases")
    if len(set(by_head)) > 1:
        _refuse(f"{path}: gains by head for one of queries and keys")


def _check_shared(stack: Stack) -> None:
    """One array may have one role, but for the token table that is the head, and relative tables."""
    uses: Counter[tuple] = Counter()
    for path, part in walk(stack):
        if isinstance(part, Linear):
            if path == "head.linear" and stack.tied:
                if part.layout != "oi" or part.rows is not None:
                    _refuse("a tied head that takes part of the table")
                continue
            uses[part.weight, part.rows, part.columns, part.expert] += 1
            if part.bias is not None:
                uses[part.bias, part.rows, part.expert] += 1
        elif isinstance(part, Norm):
            uses.update((name,) for name in (part.gain, part.bias) if name is not None)
        elif isinstance(part, Table):
            uses[part.weight,] += 1
        for key in ("temperature", "sink"):
            if isinstance(name := getattr(part, key, None), str):
                uses[name,] += 1
    tables: dict[str, Any] = {}
    for block in stack.blocks:
        a = block.attention
        if a.relative is not None and tables.setdefault(a.relative, a.buckets) != a.buckets:
            _refuse(f"a relative table that blocks read by other rows ({a.relative})")
    shared = [use[0] for use, count in uses.items() if count > 1]
    if shared:
        _refuse(f"an array with two roles ({shared[0]})")

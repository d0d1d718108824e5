"""Tiny transformers of every variant, as descriptions with random weights."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from lngeom.transformers import (
    Attention,
    Block,
    Buckets,
    FeedForward,
    Head,
    Linear,
    Mixture,
    Norm,
    Rotary,
    Stack,
    Table,
    Transform,
)


@dataclass(frozen=True)
class Variant:
    """A configuration.

    Attributes:
        width: d.
        vocabulary: V.
        length: T, positions.
        blocks: L.
        hidden: f.
        heads: n.
        kv_heads: n_k; None: n.
        query_width: k.
        value_width: v.
        norm: "layer" or "rms".
        gain: whether norms in blocks have gains.
        beta: whether norms in blocks have biases.
        final: parameters of the final norm: any of "g" and "b"; None: as in blocks.
        placing: of the norms.
        parallel: None, "shared" (one norm) or "two".
        embedding_norm: whether a norm follows the tables.
        positions: "learned", "rotary", "alibi", "relative", "buckets" (one relative table of all blocks, whose rows
            several distances share) or "none".
        rotated: rotary coordinates.
        frequencies: of rotary pairs; None: falling powers.
        types: rows of a table of types, or 0.
        biases: which linear maps have biases, of "qkvo12".
        head_bias: whether the head has one.
        tied: whether the head is the token table.
        transform: whether a layer stands before the head.
        activation: of the networks.
        gated: whether they have a gate.
        experts: number of experts, or 0.
        router_bias: whether the router has one.
        top: experts in use, or None.
        renormalize: whether their weights are divided by their sum.
        scores: of the router.
        query_key: norm of queries and keys: "l2", "rms", "layer", "rms over all heads" or None.
        query_key_gain: whether it has gains (of "l2": a temperature instead).
        query_key_bias: whether it has biases.
        temperature: whether scores have a factor by head.
        cap: of scores, or None.
        head_cap: of logits, or None.
        head_scale: factor of logits.
        factor: of what branches add to the stream.
        sink: whether attention has a sink.
        causal: whether attention is.
        eps: ε of every norm.
        unit_gains: whether gains are 1 and biases 0, as at initialization.
    """

    width: int = 5
    vocabulary: int = 7
    length: int = 4
    blocks: int = 2
    hidden: int = 4
    heads: int = 2
    kv_heads: int | None = None
    query_width: int = 3
    value_width: int = 3
    norm: str = "layer"
    gain: bool = True
    beta: bool = True
    final: str | None = None
    placing: str = "pre"
    parallel: str | None = None
    embedding_norm: bool = False
    positions: str = "learned"
    rotated: int = 4
    frequencies: tuple[float, ...] | None = None
    types: int = 0
    biases: str = "qkvo12"
    head_bias: bool = False
    tied: bool = False
    transform: bool = False
    activation: str = "gelu"
    gated: bool = False
    experts: int = 0
    router_bias: bool = False
    top: int | None = None
    renormalize: bool = True
    scores: str = "softmax"
    query_key: str | None = None
    query_key_gain: bool = True
    query_key_bias: bool = False
    temperature: bool = False
    cap: float | None = None
    head_cap: float | None = None
    head_scale: float = 1.0
    factor: float = 1.0
    sink: bool = False
    causal: bool = True
    eps: float = 0.0
    unit_gains: bool = False


def build(variant: Variant) -> tuple[Stack, dict[str, tuple[int, ...]]]:
    """The description of a variant, and the shapes of its arrays by name."""
    builder = _Builder(variant)
    return builder.stack(), builder.shapes


def random_weights(variant: Variant, shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """Random weights in float64: gains of both signs away from zero, and nothing equal."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes.items():
        role = name.rpartition(".")[2]
        fan = shape[-1] if len(shape) > 1 else 1
        values = rng.normal(size=shape)
        if role == "gain":
            found[name] = np.sign(values) * rng.uniform(0.5, 1.8, shape)
        elif role in {"bias", "beta"}:
            found[name] = 0.5 * values
        elif role == "temperature":
            found[name] = rng.uniform(1.5, 2.5, shape)
        elif name in {"tokens", "positions", "types"} or role in {"sink", "relative"}:
            found[name] = values
        else:
            found[name] = 1.3 * values / math.sqrt(fan)
        if variant.unit_gains and role in {"gain", "bias", "beta"}:
            found[name] = np.full(shape, float(role == "gain"))
    return found


class _Builder:
    def __init__(self, variant: Variant):
        self.v = variant
        self.shapes: dict[str, tuple[int, ...]] = {}

    def array(self, name: str, *shape: int) -> str:
        self.shapes[name] = shape
        return name

    def linear(self, name: str, outputs: int, inputs: int, bias: bool) -> Linear:
        weight = self.array(f"{name}.weight", outputs, inputs)
        return Linear(weight, self.array(f"{name}.bias", outputs) if bias else None)

    def norm(self, name: str, kind: str, size: int, gain: bool, beta: bool) -> Norm:
        names = (
            self.array(f"{name}.gain", size) if gain else None,
            self.array(f"{name}.beta", size) if beta else None,
        )
        return Norm(kind, *names, eps=self.v.eps)  # type: ignore[arg-type]

    def stream_norm(self, name: str) -> Norm:
        return self.norm(name, self.v.norm, self.v.width, self.v.gain, self.v.beta)

    def stack(self) -> Stack:
        v = self.v
        tables = [Table(self.array("tokens", v.vocabulary, v.width))]
        if v.positions == "learned":
            tables.append(Table(self.array("positions", v.length, v.width), "position"))
        if v.types:
            tables.append(Table(self.array("types", v.types, v.width), "type"))
        first = self.stream_norm("embedding_norm") if v.embedding_norm else None
        blocks = tuple(self.block(f"blocks.{i}") for i in range(v.blocks))
        last = None
        if v.placing != "post":
            parts = ("g" * v.gain + "b" * v.beta) if v.final is None else v.final
            last = self.norm("final", v.norm, v.width, "g" in parts, "b" in parts)
        transform = None
        if v.transform:
            inner = self.linear("transform", v.width, v.width, True)
            transform = Transform(inner, self.norm("transform_norm", v.norm, v.width, True, True))
        if v.tied:
            head = Linear("tokens", self.array("head.bias", v.vocabulary) if v.head_bias else None)
        else:
            head = self.linear("head", v.vocabulary, v.width, v.head_bias)
        return Stack(tuple(tables), blocks, Head(head, v.head_cap, transform, scale=v.head_scale), last, first)

    def block(self, name: str) -> Block:
        v = self.v
        reads, writes = v.placing != "outer", v.placing in {"sandwich", "outer"}
        network = self.network(f"{name}.network") if not v.experts else self.mixture(f"{name}.mixture")
        return Block(
            self.attention(f"{name}.attention"),
            network,
            v.placing,  # type: ignore[arg-type]
            self.stream_norm(f"{name}.norm1") if reads else None,
            self.stream_norm(f"{name}.norm2") if reads and v.parallel != "shared" else None,
            self.stream_norm(f"{name}.after1") if writes else None,
            self.stream_norm(f"{name}.after2") if writes else None,
            parallel=v.parallel is not None,
            factor=v.factor,
        )

    def network(self, name: str) -> FeedForward:
        v = self.v
        up = self.linear(f"{name}.up", v.hidden, v.width, "1" in v.biases)
        gate = self.linear(f"{name}.gate", v.hidden, v.width, "1" in v.biases) if v.gated else None
        down = self.linear(f"{name}.down", v.width, v.hidden, "2" in v.biases)
        return FeedForward(up, down, gate, v.activation)  # type: ignore[arg-type]

    def relative(self, name: str) -> str | None:
        v = self.v
        if v.positions == "buckets":  # one table for all blocks
            return self.array("shared.relative", 8, v.heads)
        return self.array(f"{name}.relative", v.heads, v.length) if v.positions == "relative" else None

    def mixture(self, name: str) -> Mixture:
        v = self.v
        router = self.linear(f"{name}.router", v.experts, v.width, v.router_bias)
        experts = tuple(self.network(f"{name}.{i}") for i in range(v.experts))
        return Mixture(router, experts, v.scores, v.top, v.renormalize)  # type: ignore[arg-type]

    def attention(self, name: str) -> Attention:
        v = self.v
        n, n_k, k = v.heads, v.kv_heads or v.heads, v.query_width
        rotary = None
        if v.positions == "rotary":
            pairs = v.rotated // 2
            rotary = Rotary(v.frequencies or tuple(20.0 ** (-i / pairs) for i in range(pairs)))
        whole = v.query_key == "rms over all heads"
        kind = "rms" if whole else v.query_key
        gain = v.query_key_gain and kind != "l2"
        sizes = (n * k, n_k * k) if whole else (k, k)
        norms = [
            self.norm(f"{name}.{side}_norm", kind, size, gain, v.query_key_bias) if kind else None
            for side, size in zip(("query", "key"), sizes, strict=True)
        ]
        temperature = v.temperature or (kind == "l2" and v.query_key_gain)
        return Attention(
            self.linear(f"{name}.query", n * k, v.width, "q" in v.biases),
            self.linear(f"{name}.key", n_k * k, v.width, "k" in v.biases),
            self.linear(f"{name}.value", n_k * v.value_width, v.width, "v" in v.biases),
            self.linear(f"{name}.output", v.width, n * v.value_width, "o" in v.biases),
            n,
            n_k,
            k,
            v.value_width,
            scale=1.0 if kind else None,
            rotary=rotary,
            query_norm=norms[0],
            key_norm=norms[1],
            norm_over="all" if whole else "head",
            temperature=self.array(f"{name}.temperature", n) if temperature else None,
            cap=v.cap,
            sink=self.array(f"{name}.sink", n) if v.sink else None,
            alibi=tuple(2.0 ** -(1 + i) for i in range(n)) if v.positions == "alibi" else None,
            relative=self.relative(name),
            buckets=Buckets(8, 3) if v.positions == "buckets" else None,
            causal=v.causal,
        )


BARE: dict[str, Any] = {"biases": ""}
RMS: dict[str, Any] = {"norm": "rms", "beta": False}
ROTARY: dict[str, Any] = {"positions": "rotary", "rotated": 4, "query_width": 4}
LLAMA: dict[str, Any] = {**RMS, **BARE, **ROTARY, "activation": "silu", "gated": True}
GEMMA: dict[str, Any] = {**LLAMA, "activation": "gelu", "placing": "sandwich", "tied": True}
POST: dict[str, Any] = {"placing": "post"}

CHECKED: dict[str, tuple[Variant, int]] = {
    "GPT-2: learned positions, tied": (Variant(tied=True, vocabulary=8), 214),
    "GPT-2, tied, ε > 0": (Variant(tied=True, vocabulary=8, eps=0.3), 213),
    "GPT-2, tied, head bias": (Variant(tied=True, vocabulary=8, head_bias=True), 220),
    "GPT-2, untied": (Variant(), 241),
    "GPT-2, untied, no mask": (Variant(causal=False), 241),
    "GPT-2, untied, SiLU": (Variant(activation="silu"), 241),
    "GPT-2, untied, ε > 0": (Variant(eps=0.3), 240),
    "GPT-2, untied, head bias": (Variant(head_bias=True), 248),
    "OPT: ReLU": (Variant(activation="relu"), 249),
    "ReLU squared": (Variant(activation="relu2"), 249),
    "ReGLU": (Variant(activation="relu", gated=True), 265),
    "bilinear": (Variant(activation="identity", gated=True), 265),
    "pre-LN without linear biases": (Variant(**BARE), 185),
    "pre-LN without linear biases, tied": (Variant(**BARE, tied=True, vocabulary=8), 158),
    "pre-LN, gains only": (Variant(**BARE, beta=False), 194),
    "pre-LN, biases of queries, keys and values": (Variant(biases="qkv"), 221),
    "value bias without output bias": (
        Variant(width=6, biases="qkv12", vocabulary=8, blocks=1),
        146,
    ),
    "OLMo-1: bare LN, rotary, SwiGLU": (Variant(**{**LLAMA, "norm": "layer"}, gain=False), 165),
    "OLMo-1, tied": (Variant(**{**LLAMA, "norm": "layer"}, gain=False, tied=True, vocabulary=8), 154),
    "Llama: RMS, rotary, SwiGLU": (Variant(**LLAMA), 101),
    "Llama, three positions": (Variant(**LLAMA, length=3), 101),
    "Llama, ε > 0": (Variant(**LLAMA, eps=0.3), 100),
    "Llama, tied": (Variant(**LLAMA, tied=True, vocabulary=8), 81),
    "Llama, three blocks": (Variant(**{**LLAMA, "blocks": 3}), 141),
    "Llama, four heads in two groups": (Variant(**LLAMA, heads=4, kv_heads=2), 101),
    "Llama, one key/value head": (Variant(**LLAMA, kv_heads=1), 75),
    "Qwen2: biases of queries, keys and values": (
        Variant(**{**LLAMA, "biases": "qkv"}, heads=4, kv_heads=2),
        103,
    ),
    "pre-RMS, learned positions": (Variant(**RMS, **BARE, vocabulary=9), 118),
    "pre-RMS, learned positions, biases": (Variant(**RMS), 142),
    "pre-RMS, no positions": (Variant(**RMS, **BARE, positions="none", vocabulary=9), 113),
    "pre-RMS with β, biases": (Variant(norm="rms"), 162),
    "pre-RMS with β, biases, head bias": (Variant(norm="rms", head_bias=True), 168),
    "pre-LN, no positions": (Variant(positions="none", vocabulary=9), 235),
    "ALiBi": (Variant(positions="alibi", vocabulary=9), 235),
    "pre-LN, no positions, tied, no mask": (
        Variant(positions="none", vocabulary=9, tied=True, causal=False),
        206,
    ),
    "pre-LN, four heads in two groups": (Variant(heads=4, kv_heads=2, blocks=1), 151),
    "T5: relative table, RMS, ReLU": (
        Variant(**RMS, **BARE, positions="relative", activation="relu", vocabulary=9),
        125,
    ),
    "T5's encoder: one relative table with shared rows, RMS, ReLU": (
        Variant(**RMS, **BARE, positions="buckets", activation="relu", vocabulary=9, causal=False),
        125,
    ),
    "T5 v1.1's encoder: one relative table with shared rows, RMS, gated GELU": (
        Variant(**RMS, **BARE, positions="buckets", gated=True, vocabulary=9, causal=False, head_bias=True),
        126,
    ),
    "Pythia: parallel, two LN, partly rotary": (
        Variant(parallel="two", **{**ROTARY, "rotated": 2}, vocabulary=20),
        246,
    ),
    "GPT-J: parallel, one LN, partly rotary": (
        Variant(parallel="shared", **{**ROTARY, "rotated": 2}, biases="12", head_bias=True, vocabulary=20),
        192,
    ),
    "PaLM: parallel, one RMS, one key/value head, tied": (
        Variant(**LLAMA, parallel="shared", kv_heads=1, tied=True, vocabulary=20),
        45,
    ),
    "QK L2 with temperature": (Variant(query_key="l2", vocabulary=8), 214),
    "QK L2 with temperature, ε > 0": (Variant(query_key="l2", eps=0.3), 204),
    "QK L2, rotary, groups": (
        Variant(**LLAMA, query_key="l2", heads=4, kv_heads=2, vocabulary=12, blocks=1),
        63,
    ),
    "QK RMS without gains, rotary": (
        Variant(**LLAMA, query_key="rms", query_key_gain=False, vocabulary=12, blocks=1),
        61,
    ),
    "QK RMS without gains": (Variant(query_key="rms", query_key_gain=False), 213),
    "QK RMS with gains": (Variant(query_key="rms"), 207),
    "Qwen3: QK RMS with gains, rotary, groups": (
        Variant(**LLAMA, query_key="rms", heads=4, kv_heads=2, vocabulary=12, blocks=1),
        61,
    ),
    "ViT-22B: QK LN with gains, no mask": (Variant(query_key="layer", causal=False, query_width=4), 259),
    "QK LN with gains and biases": (Variant(query_key="layer", query_key_bias=True, query_width=4), 269),
    "QK LN bare": (Variant(query_key="layer", query_key_gain=False, query_width=4, blocks=1), 149),
    "QK LN with gains, groups": (Variant(query_key="layer", query_width=4, heads=4, kv_heads=2, blocks=1), 174),
    "QK LN with gains, rotary": (Variant(query_key="layer", **ROTARY, vocabulary=12, blocks=1), 142),
    "QK LN with gains and biases, rotary": (
        Variant(query_key="layer", query_key_bias=True, **ROTARY, vocabulary=12, blocks=1),
        142,
    ),
    "Gemma-2: sandwich RMS, tied, caps, groups": (
        Variant(**GEMMA, cap=5.0, head_cap=8.0, heads=4, kv_heads=2, vocabulary=8),
        85,
    ),
    "Gemma-3: sandwich RMS, tied, QK RMS": (
        Variant(**GEMMA, query_key="rms", heads=4, kv_heads=2, vocabulary=12, blocks=1),
        43,
    ),
    "sandwich RMS": (Variant(**LLAMA, placing="sandwich"), 95),
    "sandwich RMS, ε > 0": (Variant(**LLAMA, placing="sandwich", eps=0.3), 90),
    "peri-LN: sandwich LN, biases": (Variant(placing="sandwich"), 243),
    "OLMo-2: outer RMS, QK RMS over all heads": (
        Variant(**LLAMA, placing="outer", query_key="rms over all heads", vocabulary=12, blocks=1),
        41,
    ),
    "OLMo-2 with LN": (Variant(**{**LLAMA, "norm": "layer"}, placing="outer", vocabulary=12), 106),
    "post-LN (2017)": (Variant(**POST), 195),
    "post-LN, ε > 0": (Variant(**POST, eps=0.3), 191),
    "post-LN, tied": (Variant(**POST, tied=True, vocabulary=8), 175),
    "post-LN, one block": (Variant(**POST, blocks=1), 102),
    "post-LN, embedding LN": (Variant(**POST, embedding_norm=True), 219),
    "post-LN, embedding LN, no linear biases": (Variant(**POST, **BARE, embedding_norm=True), 155),
    "BERT: post-LN, embedding LN, types, tied, no mask": (
        Variant(**POST, embedding_norm=True, types=2, tied=True, head_bias=True, causal=False, vocabulary=8),
        210,
    ),
    "post-RMS, gains only": (Variant(**POST, norm="rms", beta=False), 120),
    "BLOOM: ALiBi, embedding LN, tied": (
        Variant(positions="alibi", embedding_norm=True, tied=True, vocabulary=9),
        208,
    ),
    "pre-LN, embedding LN": (Variant(embedding_norm=True), 238),
    "pre-RMS, embedding RMS": (Variant(**RMS, embedding_norm=True), 133),
    "soft mixture of three": (Variant(experts=3, hidden=3, blocks=1), 156),
    "soft mixture of three, router bias": (Variant(experts=3, hidden=3, router_bias=True, blocks=1), 159),
    "sigmoid mixture of three": (Variant(experts=3, hidden=3, scores="sigmoid", blocks=1), 151),
    "soft mixture of two SwiGLU, ε > 0": (
        Variant(experts=2, hidden=3, activation="silu", gated=True, eps=0.3, blocks=1),
        160,
    ),
    "Mixtral: two of three experts": (Variant(**LLAMA, experts=3, top=2, hidden=3, vocabulary=9, blocks=1), 71),
    "one of three experts, renormalized": (
        Variant(**LLAMA, experts=3, top=1, hidden=3, vocabulary=9, blocks=1),
        81,
    ),
    "final soft cap": (Variant(head_cap=5.0), 236),
    "attention soft cap": (Variant(cap=4.0), 229),
    "attention sinks": (Variant(sink=True), 217),
    "attention sinks, rotary, RMS": (Variant(**RMS, sink=True, vocabulary=9, **ROTARY), 93),
    "wide heads": (Variant(query_width=6, value_width=6), 505),
    "wide heads, RMS": (Variant(**RMS, **BARE, query_width=6, value_width=6, vocabulary=9), 326),
}
"""Name → configuration and its nullity, measured by another program."""

FURTHER: dict[str, tuple[Variant, int | None]] = {
    "outer LN with biases and β": (Variant(placing="outer", vocabulary=9), None),
    "outer LN with biases and β, one block": (Variant(placing="outer", vocabulary=9, blocks=1), None),
    "BERT with a layer before the head": (
        Variant(
            **POST, embedding_norm=True, types=2, tied=True, head_bias=True, transform=True, causal=False, vocabulary=8
        ),
        None,
    ),
    "tied LN with β and without gain": (Variant(tied=True, final="b", vocabulary=8), None),
    "tied RMS at unit gains": (Variant(**LLAMA, tied=True, unit_gains=True, vocabulary=8), None),
    "GPT-2, tied, at unit gains": (Variant(tied=True, vocabulary=8, unit_gains=True), None),
    "Qwen3 at unit gains": (
        Variant(**LLAMA, query_key="rms", heads=4, kv_heads=2, vocabulary=12, blocks=1, unit_gains=True),
        None,
    ),
    "post-LN, one block, at unit gains": (Variant(**POST, blocks=1, unit_gains=True), None),
    "one rotary frequency for two pairs": (Variant(**LLAMA, frequencies=(0.7, 0.7)), None),
    "a rotary pair that does not turn": (Variant(**LLAMA, frequencies=(0.7, 0.0)), None),
    "temperature without QK norm": (Variant(**LLAMA, temperature=True), None),
    "QK RMS with gains and temperature": (Variant(query_key="rms", temperature=True, blocks=1), None),
    "parallel sandwich LN with β": (
        Variant(placing="sandwich", parallel="two", vocabulary=20, blocks=1),
        None,
    ),
    "relative table under an attention cap": (
        Variant(**RMS, **BARE, positions="relative", cap=4.0, vocabulary=9, blocks=1),
        None,
    ),
    "two of three experts without renormalizing": (
        Variant(**LLAMA, experts=3, top=2, renormalize=False, hidden=3, vocabulary=9, blocks=1),
        None,
    ),
    "parallel mixture without output bias": (
        Variant(parallel="two", biases="qkv12", experts=2, hidden=3, vocabulary=20, blocks=1),
        None,
    ),
    "post-RMS with β and biases": (Variant(**POST, norm="rms", embedding_norm=True, head_bias=True), None),
    "pre-RMS with β, no linear biases": (Variant(norm="rms", **BARE, blocks=1), None),
    "post-LN without output bias": (Variant(**POST, biases="qkv12", blocks=1), None),
}
"""Name → further configurations, predicted here for the first time."""

"""Llama and the families after it: rotary positions and gated networks."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lngeom.transformers.description import Attention, Block, FeedForward, Head, Linear, Mixture, Norm, Stack, Table
from lngeom.transformers.rewrite.configs import Options, rotary
from lngeom.transformers.rewrite.layouts.shared import base_prefix, block_windows, rms, sizes


def llama_like(
    options: Options,
    *,
    norm: Callable[[str], Norm],
    norms: tuple[str | None, str | None, str | None, str | None] = (
        "input_layernorm",
        "post_attention_layernorm",
        None,
        None,
    ),
    placing: Any = "pre",
    heads_norm: str | None = None,
    qkv_bias: bool | None = None,
    sliding: Callable[[int], bool] | None = None,
    scale: float = 1.0,
    score_scale: float | None = None,
    gated: Callable[[str], FeedForward | Mixture] | None = None,
) -> Stack:
    """What the families after Llama share: rotary positions, gated networks, and the names.

    Args:
        options: the config.
        norm: makes a norm from its name.
        norms: names of the reading norms and the writing norms of both branches.
        placing: as of `Block`.
        heads_norm: "head" or "all" where queries and keys have norms.
        qkv_bias: whether q, k and v have biases; None: as `attention_bias` says, with an output bias.
        sliding: which blocks have a sliding window where `layer_types` does not say; None: `layer_types` is not read,
            and all blocks have the window that the family may have.
        scale: factor of the table of tokens.
        score_scale: factor of the scores.
        gated: makes the second branch from its prefix; None: the gated network.

    Returns:
        The description.
    """
    d, n, layers = sizes(options)
    n_k = n if options.get("num_key_value_heads") is None else options.get("num_key_value_heads")
    width = d // n if options.get("head_dim") is None else options.get("head_dim")
    every = options.get("attention_bias")
    turn = rotary(options, width)
    windows = [options.first("sliding_window")] * layers if sliding is None else block_windows(options, layers, sliding)
    if any(window is not None and window < 1 for window in windows):
        raise ValueError(f"option 'sliding_window' must be positive; got {options.get('sliding_window')}")
    activation = options.activation("hidden_act" if options.kind != "gemma2" else "hidden_activation")
    mlp_bias = bool(options.first("mlp_bias"))
    at = base_prefix(options, "model.", "embed_tokens.weight")

    def linear(name: str, has_bias: bool) -> Linear:
        return Linear(f"{name}.weight", f"{name}.bias" if has_bias else None)

    def network(prefix: str) -> FeedForward:
        up, gate, down = (linear(f"{prefix}mlp.{part}_proj", mlp_bias) for part in ("up", "gate", "down"))
        return FeedForward(up, down, gate, activation)

    blocks = []
    for i in range(layers):
        prefix = f"{at}layers.{i}."
        q, k, v = (linear(f"{prefix}self_attn.{part}_proj", every if qkv_bias is None else qkv_bias) for part in "qkv")
        output = linear(f"{prefix}self_attn.o_proj", every and qkv_bias is None)
        attention = Attention(
            q,
            k,
            v,
            output,
            n,
            n_k,
            width,
            width,
            scale=score_scale,
            rotary=turn,
            query_norm=norm(f"{prefix}self_attn.q_norm") if heads_norm else None,
            key_norm=norm(f"{prefix}self_attn.k_norm") if heads_norm else None,
            norm_over="all" if heads_norm == "all" else "head",
            cap=options.first("attn_logit_softcapping"),
            window=windows[i],
        )
        n1, n2, m1, m2 = (None if name is None else norm(prefix + name) for name in norms)
        blocks.append(Block(attention, (gated or network)(prefix), placing, n1, n2, m1, m2))
    first = f"{at}embed_tokens.weight"
    tied = options.get("tie_word_embeddings")
    head = Head(Linear(first if tied else "lm_head.weight"), options.first("final_logit_softcapping"))
    return Stack((Table(first, scale=scale),), tuple(blocks), head, norm(f"{at}norm"))


def llama(options: Options) -> Stack:
    """Llama 1 to 3."""
    return llama_like(options, norm=rms(options))


def mistral(options: Options) -> Stack:
    """Mistral: one window for all blocks, whatever `layer_types` says."""
    return llama_like(options, norm=rms(options))


def _last_blocks(options: Options) -> Callable[[int], bool]:
    """Blocks from `max_window_layers` on, where windows are in use (Qwen)."""
    used = options.get("use_sliding_window") and options.get("sliding_window") is not None
    return lambda i: used and i >= options.get("max_window_layers")


def qwen2(options: Options) -> Stack:
    """Qwen 2 and 2.5: biases of q, k, v."""
    return llama_like(options, norm=rms(options), qkv_bias=True, sliding=_last_blocks(options))


def qwen3(options: Options) -> Stack:
    """Qwen 3: norms of queries and keys, by head."""
    return llama_like(options, norm=rms(options), heads_norm="head", sliding=_last_blocks(options))


def gemma(options: Options) -> Stack:
    """Gemma: gains 1 + w, table times √d, tied. Its first files say "gelu" and mean the tanh approximation."""
    options.only("use_bidirectional_attention", None, False)
    stack = llama_like(options, norm=rms(options, offset=1), scale=math.sqrt(options.get("hidden_size")))
    if options.get("hidden_act") != "gelu":
        return stack
    tanh = (replace(b, feed_forward=replace(b.feed_forward, activation="gelu_tanh")) for b in stack.blocks)
    return replace(stack, blocks=tuple(tanh))


def gemma2(options: Options) -> Stack:
    """Gemma 2: `pre_feedforward_layernorm` reads, `post_*_layernorm` write."""
    options.only("use_bidirectional_attention", None, False)
    return llama_like(
        options,
        norm=rms(options, offset=1),
        norms=(
            "input_layernorm",
            "pre_feedforward_layernorm",
            "post_attention_layernorm",
            "post_feedforward_layernorm",
        ),
        placing="sandwich",
        sliding=lambda i: i % 2 == 0,
        scale=math.sqrt(options.get("hidden_size")),
        score_scale=options.get("query_pre_attn_scalar") ** -0.5,
    )


def olmo(options: Options) -> Stack:
    """OLMo 1: LayerNorms without gain and bias."""
    options.only("clip_qkv", None)
    return llama_like(options, norm=lambda name: Norm("layer", eps=1e-5))


def olmo2(options: Options) -> Stack:
    """OLMo 2: both norms write, and nothing normalizes what the branches read."""
    return llama_like(
        options,
        norm=rms(options),
        norms=(None, None, "post_attention_layernorm", "post_feedforward_layernorm"),
        placing="outer",
        heads_norm="all",
    )


def mixtral(options: Options) -> Stack:
    """Mixtral: the router and every expert read the norm's output; w1 is the gate, w3 the linear factor."""
    experts, top = options.get("num_local_experts"), options.get("num_experts_per_tok")
    activation = options.activation("hidden_act")

    def mixture(prefix: str) -> Mixture:
        at = f"{prefix}block_sparse_moe."
        found = []
        for e in range(experts):
            up, down, gate = (Linear(f"{at}experts.{e}.{part}.weight") for part in ("w3", "w2", "w1"))
            found.append(FeedForward(up, down, gate, activation))
        return Mixture(Linear(f"{at}gate.weight"), tuple(found), top=top)

    return llama_like(options, norm=rms(options), gated=mixture)

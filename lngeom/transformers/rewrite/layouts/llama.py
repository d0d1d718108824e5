"""Llama and the families after it: rotary positions, and names such as `model.layers.0.self_attn.q_proj`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lngeom.transformers.description import (
    Attention,
    Block,
    Head,
    Linear,
    Norm,
    Rotary,
    Stack,
    Table,
)
from lngeom.transformers.rewrite.configs import Options
from lngeom.transformers.rewrite.defaults import DEFAULTS
from lngeom.transformers.rewrite.layouts.shared import (
    Network,
    base_prefix,
    block_windows,
    by_head,
    check_windows,
    fused_rows,
    gated,
    head_sizes,
    layer_norm,
    linear,
    local_and_global,
    one_turn,
    plain,
    rms,
    sizes,
)

PRE = ("input_layernorm", "post_attention_layernorm", None, None)
SHARED = ("input_layernorm", None, None, None)
OUTER = (None, None, "post_attention_layernorm", "post_feedforward_layernorm")
GEMMA = ("input_layernorm", "pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm")
"""Names of the reading norms and the writing norms of both branches. The same name has other roles elsewhere."""


def after_llama(
    options: Options,
    *,
    norm: Callable[[str], Norm],
    norms: tuple[str | None, str | None, str | None, str | None] = PRE,
    placing: Any = "pre",
    final: str = "norm",
    parallel: bool = False,
    turns: Sequence[Rotary | None] | None = None,
    windows: Sequence[int | None] | None = None,
    heads_norm: str | None = None,
    heads_names: tuple[str, str] = ("q_norm", "k_norm"),
    rotary_first: bool = False,
    sinks: bool = False,
    biases: tuple[bool, bool] | None = None,
    qkv: str | None = None,
    output: str = "o_proj",
    head_bias: bool = False,
    scale: float = 1.0,
    score_scale: float | None = None,
    factor: float = 1.0,
    logit_scale: float = 1.0,
    network: Network | None = None,
) -> Stack:
    """What the families after Llama share.

    Args:
        options: the config.
        norm: makes a norm from its name.
        norms: names of the reading norms and the writing norms of both branches.
        placing: as of `Block`.
        final: name of the last norm.
        parallel: whether both branches read the same stream.
        turns: rotary positions of each block; None: one for all, which turn every coordinate.
        windows: sliding window of each block; None: the one of the config, if the family has it.
        heads_norm: "head" or "all" where queries and keys have norms.
        heads_names: names of these norms.
        rotary_first: whether rotary positions come before them.
        sinks: whether attention has sinks.
        biases: whether q, k and v have biases, and whether the output map has; None: as `attention_bias` says.
        qkv: name of the one matrix of q, k and v: "qkv_proj", one after the other; "query_key_value", by head.
        output: name of the output map.
        head_bias: whether the head has a bias.
        scale: factor of the table of tokens.
        score_scale: factor of the scores.
        factor: factor of what the branches add to the stream.
        logit_scale: factor of the logits.
        network: makes the second branch; None: the gated network.

    Returns:
        The description.
    """
    n, n_k, width = head_sizes(options)
    layers = sizes(options)[2]
    turns = one_turn(options) if turns is None else turns
    if windows is None:
        windows = check_windows([options.first("sliding_window")] * layers)
    with_bias, output_bias = (options.get("attention_bias"),) * 2 if biases is None else biases
    network = gated(options, bias=bool(options.first("mlp_bias"))) if network is None else network
    at = base_prefix(options, "model.", "embed_tokens.weight")
    blocks = []
    for i in range(layers):
        prefix = f"{at}layers.{i}."
        if qkv is None:
            q, k, v = (linear(f"{prefix}self_attn.{part}_proj", with_bias) for part in "qkv")
        else:
            rows = by_head(n, width) if qkv == "query_key_value" else fused_rows([n * width, n_k * width, n_k * width])
            q, k, v = (linear(f"{prefix}self_attn.{qkv}", with_bias, rows=r) for r in rows)
        query_norm, key_norm = (norm(f"{prefix}self_attn.{name}") if heads_norm else None for name in heads_names)
        attention = Attention(
            q,
            k,
            v,
            linear(f"{prefix}self_attn.{output}", output_bias),
            n,
            n_k,
            width,
            width,
            scale=score_scale,
            rotary=turns[i],
            query_norm=query_norm,
            key_norm=key_norm,
            norm_over="all" if heads_norm == "all" else "head",
            rotary_first=rotary_first,
            cap=options.first("attn_logit_softcapping"),
            sink=f"{prefix}self_attn.sinks" if sinks else None,
            window=windows[i],
        )
        n1, n2, m1, m2 = (None if name is None else norm(prefix + name) for name in norms)
        blocks.append(Block(attention, network(prefix, i), placing, n1, n2, m1, m2, parallel, factor))
    first = f"{at}embed_tokens.weight"
    tied = options.get("tie_word_embeddings")
    matrix = Linear(first if tied else "lm_head.weight", "lm_head.bias" if head_bias else None)
    head = Head(matrix, options.first("final_logit_softcapping"), scale=logit_scale)
    return Stack((Table(first, scale=scale),), tuple(blocks), head, norm(f"{at}{final}"))


# Gated networks.


def llama(options: Options) -> Stack:
    """Llama 1 to 3."""
    return after_llama(options, norm=rms(options))


def mistral(options: Options) -> Stack:
    """Mistral: one window for all blocks, whatever `layer_types` says."""
    return after_llama(options, norm=rms(options))


def last_blocks(options: Options) -> list[int | None]:
    """Windows of the blocks from `max_window_layers` on, where windows are in use (Qwen)."""
    used = options.get("use_sliding_window") and options.get("sliding_window") is not None
    return block_windows(options, sizes(options)[2], lambda i: used and i >= options.get("max_window_layers"))


def qwen2(options: Options) -> Stack:
    """Qwen 2 and 2.5: biases of q, k, v."""
    return after_llama(options, norm=rms(options), biases=(True, False), windows=last_blocks(options))


def qwen3(options: Options) -> Stack:
    """Qwen 3: norms of queries and keys, by head."""
    return after_llama(options, norm=rms(options), heads_norm="head", windows=last_blocks(options))


def gemma(options: Options) -> Stack:
    """Gemma: gains 1 + w, table times √d, tied. Its first files say "gelu" and mean the tanh approximation."""
    options.only("use_bidirectional_attention", None, False)
    stack = after_llama(options, norm=rms(options, offset=1), scale=math.sqrt(options.get("hidden_size")))
    if options.get("hidden_act") != "gelu":
        return stack
    tanh = (replace(b, feed_forward=replace(b.feed_forward, activation="gelu_tanh")) for b in stack.blocks)
    return replace(stack, blocks=tuple(tanh))


def gemma2(options: Options) -> Stack:
    """Gemma 2: `pre_feedforward_layernorm` reads, `post_*_layernorm` write."""
    options.only("use_bidirectional_attention", None, False)
    return after_llama(
        options,
        norm=rms(options, offset=1),
        norms=GEMMA,
        placing="sandwich",
        windows=block_windows(options, sizes(options)[2], lambda i: i % 2 == 0),
        scale=math.sqrt(options.get("hidden_size")),
        score_scale=options.get("query_pre_attn_scalar") ** -0.5,
    )


def all_but_every_nth(options: Options) -> Callable[[int], bool]:
    """Which blocks have a window: all but every `sliding_window_pattern`-th."""

    def sliding(i: int) -> bool:
        if not (n := options.get("sliding_window_pattern")):
            raise ValueError("option 'sliding_window_pattern' must be positive where 'layer_types' is not given; got 0")
        return (i + 1) % n != 0

    return sliding


def gemma3_text(options: Options) -> Stack:
    """Gemma 3, its language model: as Gemma 2, with norms of queries and keys; five blocks of six have a window."""
    options.only("use_bidirectional_attention", None, False)
    windows = block_windows(options, sizes(options)[2], all_but_every_nth(options))
    bases = {True: options.get("rope_local_base_freq"), False: options.get("rope_theta")}
    return after_llama(
        options,
        norm=rms(options, offset=1),
        norms=GEMMA,
        placing="sandwich",
        heads_norm="head",
        windows=windows,
        turns=local_and_global(options, [window is not None for window in windows], bases),
        scale=math.sqrt(options.get("hidden_size")),
        score_scale=options.get("query_pre_attn_scalar") ** -0.5,
    )


def olmo(options: Options) -> Stack:
    """OLMo 1: LayerNorms without gain and bias."""
    options.only("clip_qkv", None)
    return after_llama(options, norm=lambda name: Norm("layer", eps=1e-5))


def olmo2(options: Options) -> Stack:
    """OLMo 2: both norms write, and nothing normalizes what the branches read."""
    return after_llama(options, norm=rms(options), norms=OUTER, placing="outer", heads_norm="all")


def olmo3(options: Options) -> Stack:
    """OLMo 3: as OLMo 2; three blocks of four have a window."""
    windows = block_windows(options, sizes(options)[2], lambda i: (i + 1) % 4 != 0)
    bases = {True: DEFAULTS["olmo3"]["rope_theta"], False: options.get("rope_theta")}  # as the package reads them
    turns = local_and_global(options, [window is not None for window in windows], bases)
    norm = rms(options)
    return after_llama(options, norm=norm, norms=OUTER, placing="outer", heads_norm="all", windows=windows, turns=turns)


def smollm3(options: Options) -> Stack:
    """SmolLM 3: every fourth block has no positions."""
    layers, turning = sizes(options)[2], options.get("no_rope_layers")
    if turning is None:
        turning = [(i + 1) % options.get("no_rope_layer_interval") for i in range(layers)]
    if len(turning) != layers:
        raise ValueError(
            f"option 'no_rope_layers' must have an entry for each of {layers} layers; it has {len(turning)}"
        )
    used = options.get("use_sliding_window") and options.get("sliding_window") is not None
    windows = block_windows(options, layers, lambda i: used and not turning[i])
    turns = [turn if turning[i] else None for i, turn in enumerate(one_turn(options))]
    return after_llama(options, norm=rms(options), windows=windows, turns=turns)


def seed_oss(options: Options) -> Stack:
    """Seed-OSS: biases of q, k, v and of the output map by options of their own."""
    biases = options.get("attention_bias"), options.get("attention_out_bias")
    return after_llama(options, norm=rms(options), biases=biases)


def helium(options: Options) -> Stack:
    """Helium: adjacent rotary pairs, no bias of the output map."""
    biases, turns = (options.get("attention_bias"), False), one_turn(options, pairing="adjacent")
    return after_llama(options, norm=rms(options), biases=biases, turns=turns)


def ernie4_5(options: Options) -> Stack:
    """Ernie 4.5: adjacent rotary pairs, all biases or none."""
    bias = bool(options.get("use_bias"))
    turns, network = one_turn(options, pairing="adjacent"), gated(options, bias=bias)
    return after_llama(options, norm=rms(options), biases=(bias, bias), turns=turns, network=network)


def phi3(options: Options) -> Stack:
    """Phi-3 and Phi-4: rows q | k | v, and gate | up, in one matrix each."""
    scheme = options.get("rope_scaling") or options.get("rope_parameters") or {}
    if "yarn" in (scheme.get("rope_type"), scheme.get("type")):
        raise ValueError(
            "rotary positions of type 'yarn' are not covered: the transformers package takes them as longrope"
        )
    turns, network = one_turn(options, partial=True), gated(options, fused=True)
    return after_llama(options, norm=rms(options), qkv="qkv_proj", biases=(False, False), turns=turns, network=network)


def glm(options: Options) -> Stack:
    """GLM-4 of 9B: adjacent rotary pairs on a part of each head, gate | up in one matrix."""
    turns, network = one_turn(options, partial=True, pairing="adjacent"), gated(options, fused=True)
    biases = options.get("attention_bias"), False
    return after_llama(options, norm=rms(options), biases=biases, turns=turns, network=network)


def glm4(options: Options) -> Stack:
    """GLM-4-0414: as GLM, with writing norms."""
    turns, network = one_turn(options, partial=True, pairing="adjacent"), gated(options, fused=True)
    return after_llama(
        options,
        norm=rms(options),
        norms=("input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"),
        placing="sandwich",
        biases=(options.get("attention_bias"), False),
        turns=turns,
        network=network,
    )


def stablelm(options: Options) -> Stack:
    """StableLM: LayerNorms; rotary positions on a part of each head."""
    options.only("qk_layernorm", False)  # each head has a norm of its own name
    parallel = options.get("use_parallel_residual")
    return after_llama(
        options,
        norm=layer_norm(options, "layer_norm_eps"),
        norms=SHARED if parallel else PRE,
        parallel=parallel,
        biases=(options.get("use_qkv_bias"), False),
        turns=one_turn(options, partial=True),
    )


def vaultgemma(options: Options) -> Stack:
    """VaultGemma: as Gemma 2, without writing norms."""
    return after_llama(
        options,
        norm=rms(options, offset=1),
        norms=("input_layernorm", "pre_feedforward_layernorm", None, None),
        windows=block_windows(options, sizes(options)[2], lambda i: i % 2 == 0),
        scale=math.sqrt(options.get("hidden_size")),
        score_scale=options.get("query_pre_attn_scalar") ** -0.5,
    )


def need_head_dim(options: Options) -> None:
    """Refuses a config without `head_dim`, which the package does not derive for some families."""
    if options.get("head_dim") is None:
        raise ValueError("option 'head_dim' must be an integer: the transformers package runs no such model without it")


def ministral(options: Options) -> Stack:
    """Ministral: as Mistral, with a window where `layer_types` says so."""
    need_head_dim(options)
    windows = block_windows(options, sizes(options)[2], lambda _: options.get("sliding_window") is not None)
    return after_llama(options, norm=rms(options), biases=(False, False), windows=windows)


def exaone4(options: Options) -> Stack:
    """EXAONE 4: both norms write; blocks without a window have no positions, if there are windows at all."""
    window = options.get("sliding_window")
    if window is None and options.get("layer_types") is None:
        raise ValueError("option 'layer_types' must be given where 'sliding_window' is null")
    windows = block_windows(options, sizes(options)[2], all_but_every_nth(options))
    turns = [
        turn if window is None or sliding is not None else None
        for turn, sliding in zip(one_turn(options), windows, strict=True)
    ]
    return after_llama(
        options,
        norm=rms(options),
        norms=OUTER,
        placing="outer",
        heads_norm="head",
        biases=(False, False),
        windows=windows,
        turns=turns,
    )


def hunyuan_v1_dense(options: Options) -> Stack:
    """Hunyuan: norms of queries and keys after rotary positions."""
    need_head_dim(options)
    names = ("query_layernorm", "key_layernorm")
    return after_llama(options, norm=rms(options), heads_norm="head", heads_names=names, rotary_first=True)


def granite(options: Options) -> Stack:
    """Granite: factors of the table, of the scores, of the branches and of the logits."""
    return after_llama(
        options,
        norm=rms(options),
        scale=options.get("embedding_multiplier"),
        score_scale=options.get("attention_multiplier"),
        factor=options.get("residual_multiplier"),
        logit_scale=1 / options.get("logits_scaling"),
    )


def cohere(options: Options) -> Stack:
    """Command R: parallel blocks with one LayerNorm without a bias, adjacent rotary pairs, a factor of the logits."""
    return after_llama(
        options,
        norm=layer_norm(options, "layer_norm_eps", bias=False),
        norms=SHARED,
        parallel=True,
        turns=one_turn(options, pairing="adjacent"),
        heads_norm="head" if options.get("use_qk_norm") else None,
        logit_scale=options.get("logit_scale"),
    )


def cohere2(options: Options) -> Stack:
    """Command R7B: as Command R; blocks without a window have no positions."""
    windows = block_windows(options, sizes(options)[2], all_but_every_nth(options))
    turns = one_turn(options, pairing="adjacent")
    return after_llama(
        options,
        norm=layer_norm(options, "layer_norm_eps", bias=False),
        norms=SHARED,
        parallel=True,
        windows=windows,
        turns=[turn if window is not None else None for turn, window in zip(turns, windows, strict=True)],
        logit_scale=options.get("logit_scale"),
    )


# Networks without a gate.


def arcee(options: Options) -> Stack:
    """Arcee: squared ReLU."""
    network = plain(options, "mlp.up_proj", "mlp.down_proj", bias=options.get("mlp_bias"))
    return after_llama(options, norm=rms(options), network=network)


def nemotron(options: Options) -> Stack:
    """Nemotron: LayerNorms with gains 1 + w, squared ReLU, rotary positions on a part of each head."""
    network = plain(options, "mlp.up_proj", "mlp.down_proj", bias=options.get("mlp_bias"))
    norm, turns = layer_norm(options, "norm_eps", offset=1), one_turn(options, partial=True)
    return after_llama(options, norm=norm, turns=turns, network=network)


def starcoder2(options: Options) -> Stack:
    """StarCoder 2: LayerNorms, one window for all blocks."""
    bias = options.get("use_bias")
    network = plain(options, "mlp.c_fc", "mlp.c_proj", bias=bias)
    return after_llama(options, norm=layer_norm(options, "norm_epsilon"), biases=(bias, bias), network=network)


def phi(options: Options) -> Stack:
    """Phi-1 to Phi-2: parallel blocks with one norm, rotary positions on a part of each head, a head with a bias."""
    return after_llama(
        options,
        norm=layer_norm(options, "layer_norm_eps"),
        norms=SHARED,
        final="final_layernorm",
        parallel=True,
        turns=one_turn(options, partial=True),
        heads_norm="head" if options.get("qk_layernorm") else None,
        heads_names=("q_layernorm", "k_layernorm"),
        biases=(True, True),
        output="dense",
        head_bias=True,
        network=plain(options, "mlp.fc1", "mlp.fc2"),
    )


def persimmon(options: Options) -> Stack:
    """Persimmon: q, k, v by head in one matrix, norms of queries and keys with gains and biases, squared ReLU."""
    return after_llama(
        options,
        norm=layer_norm(options, "layer_norm_eps"),
        final="final_layernorm",
        turns=one_turn(options, partial=True),
        heads_norm="head" if options.get("qk_layernorm") else None,
        heads_names=("q_layernorm", "k_layernorm"),
        biases=(True, True),
        qkv="query_key_value",
        output="dense",
        network=plain(options, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    )

"""Descriptions of published architectures: from a config, as files have it, to a stack with the names on disk.

One function a family. Roles are stated here for each family; the same name has other roles elsewhere. Every option of
a config is read, known to be without effect on the function, or refused by name.
"""

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sized
from dataclasses import replace
from typing import Any

from lngeom.transformers.description import (
    Attention,
    Block,
    FeedForward,
    Head,
    Linear,
    Mixture,
    Norm,
    Rotary,
    Rows,
    Stack,
    Table,
    Transform,
    exchange_norms,
)
from lngeom.transformers.rewrite.configs import Options, rotary

RMS_MARK = "lngeom_rms_"
"""What `model_type` begins with where RMSNorms stand in place of the family's LayerNorms. No other library knows it."""


LARGEST = 1 << 24
"""Widths and numbers of experts above this are mistakes."""


def _prefix(options: Options, prefix: str, probe: str) -> str:
    """The prefix of names, "" where files were saved without it."""
    return "" if prefix + probe not in options.names and probe in options.names else prefix


def _windows(options: Options, layers: int, default: Callable[[int], bool]) -> list[int | None]:
    """The sliding window of each block, or None, where `layer_types` says which blocks have one."""
    window, kinds = options.get("sliding_window"), options.get("layer_types")
    if options.first("use_sliding_window") is False:
        window = None
    if kinds is None:
        kinds = ["sliding_attention" if default(i) else "full_attention" for i in range(layers)]
    if len(kinds) != layers:
        raise ValueError(f"option 'layer_types' must have an entry for each of {layers} layers; it has {len(kinds)}")
    if unknown := [kind for kind in kinds if kind not in ("full_attention", "sliding_attention")]:
        raise ValueError(f"option 'layer_types' has {unknown[0]!r}, which is not covered")
    sliding = [kind == "sliding_attention" for kind in kinds]
    if any(sliding) and window is None:
        raise ValueError("option 'layer_types' has 'sliding_attention', and no sliding_window is in use")
    return [window if s else None for s in sliding]


def _llama_like(
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
    d, n, layers = _sizes(options)
    n_k = n if options.get("num_key_value_heads") is None else options.get("num_key_value_heads")
    width = d // n if options.get("head_dim") is None else options.get("head_dim")
    every = options.get("attention_bias")
    turn = rotary(options, width)
    windows = [options.first("sliding_window")] * layers if sliding is None else _windows(options, layers, sliding)
    if any(window is not None and window < 1 for window in windows):
        raise ValueError(f"option 'sliding_window' must be positive; got {options.get('sliding_window')}")
    activation = options.activation("hidden_act" if options.kind != "gemma2" else "hidden_activation")
    mlp_bias = bool(options.first("mlp_bias"))
    at = _prefix(options, "model.", "embed_tokens.weight")

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


def _sizes(options: Options) -> tuple[int, int, int]:
    """Width of the stream, heads, blocks."""
    names = ("n_embd", "n_head") if options.kind in {"gpt2", "gptj"} else ("hidden_size", "num_attention_heads")
    names = ("hidden_size", "n_head") if options.kind == "bloom" else names
    d, n = map(options.get, names)
    layers = options.first("num_hidden_layers", "n_layer")
    if isinstance(options.names, Sized) and layers > len(options.names):
        raise ValueError(f"config.json says {layers} layers, and the folder holds {len(options.names)} arrays")
    if max(d, options.first("head_dim") or 0, options.first("num_local_experts") or 0) > LARGEST:
        raise ValueError(f"config.json says a width, or a number of experts, above {LARGEST}")
    if options.first("head_dim") is None and d % n:
        raise ValueError(f"{names[1]} = {n} must divide {names[0]} = {d}")
    return d, n, layers


def _rms(options: Options, offset: Any = 0) -> Callable[[str], Norm]:
    eps = options.get("rms_norm_eps")
    return lambda name: Norm("rms", f"{name}.weight", offset=offset, eps=eps)


def llama(options: Options) -> Stack:
    """Llama 1 to 3."""
    return _llama_like(options, norm=_rms(options))


def mistral(options: Options) -> Stack:
    """Mistral: one window for all blocks, whatever `layer_types` says."""
    return _llama_like(options, norm=_rms(options))


def _last_blocks(options: Options) -> Callable[[int], bool]:
    """Blocks from `max_window_layers` on, where windows are in use (Qwen)."""
    used = options.get("use_sliding_window") and options.get("sliding_window") is not None
    return lambda i: used and i >= options.get("max_window_layers")


def qwen2(options: Options) -> Stack:
    """Qwen 2 and 2.5: biases of q, k, v."""
    return _llama_like(options, norm=_rms(options), qkv_bias=True, sliding=_last_blocks(options))


def qwen3(options: Options) -> Stack:
    """Qwen 3: norms of queries and keys, by head."""
    return _llama_like(options, norm=_rms(options), heads_norm="head", sliding=_last_blocks(options))


def gemma(options: Options) -> Stack:
    """Gemma: gains 1 + w, table times √d, tied. Its first files say "gelu" and mean the tanh approximation."""
    options.only("use_bidirectional_attention", None, False)
    stack = _llama_like(options, norm=_rms(options, offset=1), scale=math.sqrt(options.get("hidden_size")))
    if options.get("hidden_act") != "gelu":
        return stack
    tanh = (replace(b, feed_forward=replace(b.feed_forward, activation="gelu_tanh")) for b in stack.blocks)
    return replace(stack, blocks=tuple(tanh))


def gemma2(options: Options) -> Stack:
    """Gemma 2: `pre_feedforward_layernorm` reads, `post_*_layernorm` write."""
    options.only("use_bidirectional_attention", None, False)
    return _llama_like(
        options,
        norm=_rms(options, offset=1),
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
    return _llama_like(options, norm=lambda name: Norm("layer", eps=1e-5))


def olmo2(options: Options) -> Stack:
    """OLMo 2: both norms write, and nothing normalizes what the branches read."""
    return _llama_like(
        options,
        norm=_rms(options),
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

    return _llama_like(options, norm=_rms(options), gated=mixture)


def _layer_norm(options: Options, option: str) -> Callable[[str], Norm]:
    eps = options.get(option)

    def norm(name: str) -> Norm:
        old = options.kind == "bert" and f"{name}.gamma" in options.names  # its first files; no other class renames
        gain, bias = ("gamma", "beta") if old else ("weight", "bias")
        return Norm("layer", f"{name}.{gain}", f"{name}.{bias}", eps=eps)

    return norm


def _biased(name: str, layout: Any = "oi", rows: Rows | None = None) -> Linear:
    return Linear(f"{name}.weight", f"{name}.bias", layout, rows)


def gpt2(options: Options) -> Stack:
    """GPT-2: matrices [in, out], columns q | k | v, learned positions, tied."""
    options.only("scale_attn_by_inverse_layer_idx", False)
    options.only("add_cross_attention", False)
    options.only("scale_attn_weights", True)
    d, n, layers = _sizes(options)
    activation = options.activation("activation_function")
    norm, at = _layer_norm(options, "layer_norm_epsilon"), _prefix(options, "transformer.", "wte.weight")
    blocks = []
    for i in range(layers):
        prefix = f"{at}h.{i}."
        q, k, v = (_biased(f"{prefix}attn.c_attn", "io", Rows(j * d, d)) for j in range(3))
        attention = Attention(q, k, v, _biased(f"{prefix}attn.c_proj", "io"), n, n, d // n, d // n)
        up, down = _biased(f"{prefix}mlp.c_fc", "io"), _biased(f"{prefix}mlp.c_proj", "io")
        network = FeedForward(up, down, None, activation)
        blocks.append(Block(attention, network, "pre", norm(f"{prefix}ln_1"), norm(f"{prefix}ln_2")))
    tables = (Table(f"{at}wte.weight"), Table(f"{at}wpe.weight", "position"))
    tied = options.get("tie_word_embeddings")
    head = Head(Linear(f"{at}wte.weight" if tied else "lm_head.weight"))
    return Stack(tables, tuple(blocks), head, norm(f"{at}ln_f"))


NEOX_HEADS = ("embed_out.weight", "lm_head.weight")
"""The head of GPT-NeoX: its name in most files, and in memory. The `transformers` package takes both as one."""


def gpt_neox(options: Options) -> Stack:
    """GPT-NeoX and Pythia: parallel blocks with two norms, rows [head, (q, k, v), width] in one matrix."""
    d, n, layers = _sizes(options)
    width, parallel = d // n, options.get("use_parallel_residual")
    options.only("attention_bias", True)
    turn = rotary(options, width)
    activation = options.activation("hidden_act")
    norm, at = _layer_norm(options, "layer_norm_eps"), _prefix(options, "gpt_neox.", "embed_in.weight")
    blocks = []
    for i in range(layers):
        prefix = f"{at}layers.{i}."
        fused = f"{prefix}attention.query_key_value"
        q, k, v = (_biased(fused, rows=Rows(j * width, width, n, 3 * width)) for j in range(3))
        attention = Attention(q, k, v, _biased(f"{prefix}attention.dense"), n, n, width, width, rotary=turn)
        up, down = _biased(f"{prefix}mlp.dense_h_to_4h"), _biased(f"{prefix}mlp.dense_4h_to_h")
        norms = (norm(f"{prefix}input_layernorm"), norm(f"{prefix}post_attention_layernorm"))
        blocks.append(Block(attention, FeedForward(up, down, None, activation), "pre", *norms, parallel=parallel))
    first = f"{at}embed_in.weight"
    tied = options.get("tie_word_embeddings")
    own = next((name for name in NEOX_HEADS if name in options.names), NEOX_HEADS[0])
    head = Head(Linear(first if tied else own), untied=own)
    return Stack((Table(first),), tuple(blocks), head, norm(f"{at}final_layer_norm"))


def gptj(options: Options) -> Stack:
    """GPT-J: parallel blocks with one norm, adjacent rotary pairs, a head with a bias."""
    d, n, layers = _sizes(options)
    turned = options.get("rotary_dim")
    if turned % 2 or turned > d // n:
        raise ValueError(f"option 'rotary_dim' must be even and at most {d // n}, the width of a head; got {turned}")
    options.only("rotary", True)
    turn = Rotary(tuple(10000.0 ** (-2 * i / turned) for i in range(turned // 2)), pairing="adjacent")
    activation = options.activation("activation_function")
    norm, at = _layer_norm(options, "layer_norm_epsilon"), _prefix(options, "transformer.", "wte.weight")
    blocks = []
    for i in range(layers):
        prefix = f"{at}h.{i}."
        q, k, v, out = (Linear(f"{prefix}attn.{part}_proj.weight") for part in ("q", "k", "v", "out"))
        attention = Attention(q, k, v, out, n, n, d // n, d // n, rotary=turn)
        network = FeedForward(_biased(f"{prefix}mlp.fc_in"), _biased(f"{prefix}mlp.fc_out"), None, activation)
        blocks.append(Block(attention, network, "pre", norm(f"{prefix}ln_1"), parallel=True))
    tied = options.get("tie_word_embeddings")
    head = Head(Linear(f"{at}wte.weight" if tied else "lm_head.weight", "lm_head.bias"))
    return Stack((Table(f"{at}wte.weight"),), tuple(blocks), head, norm(f"{at}ln_f"))


def opt(options: Options) -> Stack:
    """OPT: `final_layer_norm` of a layer reads the MLP; positions begin at row 2; tied."""
    d, n, layers = _sizes(options)
    for option, value in (
        ("do_layer_norm_before", True),
        ("enable_bias", True),
        ("layer_norm_elementwise_affine", True),
        ("_remove_final_layer_norm", False),
    ):
        options.only(option, value)
    options.only("word_embed_proj_dim", None, d)
    activation = options.activation("activation_function")
    at = "model.decoder." if "model.decoder.embed_positions.weight" in options.names else "decoder."

    def norm(name: str) -> Norm:
        return Norm("layer", f"{name}.weight", f"{name}.bias", eps=1e-5)

    blocks = []
    for i in range(layers):
        prefix = f"{at}layers.{i}."
        q, k, v, out = (_biased(f"{prefix}self_attn.{part}_proj") for part in ("q", "k", "v", "out"))
        attention = Attention(q, k, v, out, n, n, d // n, d // n)
        network = FeedForward(_biased(f"{prefix}fc1"), _biased(f"{prefix}fc2"), None, activation)
        norms = (norm(f"{prefix}self_attn_layer_norm"), norm(f"{prefix}final_layer_norm"))
        blocks.append(Block(attention, network, "pre", *norms))
    first = f"{at}embed_tokens.weight"
    tables = (Table(first), Table(f"{at}embed_positions.weight", "position", offset=2))
    tied = options.get("tie_word_embeddings")
    head = Head(Linear(first if tied else "lm_head.weight"))
    return Stack(tables, tuple(blocks), head, norm(f"{at}final_layer_norm"))


BERT_BIASES = ("cls.predictions.decoder.bias", "cls.predictions.bias")
"""The bias of BERT's head: the name of the array that is added, and the name under which most files hold it.

The `transformers` package ties the two where `tie_word_embeddings` is true; otherwise the second has no effect.
"""


def bert(options: Options) -> Stack:
    """BERT with its masked-language head: post-norm, no causal mask, a layer before the tied head."""
    d, n, layers = _sizes(options)
    options.only("position_embedding_type", "absolute")
    options.only("add_cross_attention", False)
    options.only("is_decoder", False)
    activation = options.activation("hidden_act")
    norm = _layer_norm(options, "layer_norm_eps")
    blocks = []
    for i in range(layers):
        prefix = f"bert.encoder.layer.{i}."
        q, k, v = (_biased(f"{prefix}attention.self.{part}") for part in ("query", "key", "value"))
        output = _biased(f"{prefix}attention.output.dense")
        attention = Attention(q, k, v, output, n, n, d // n, d // n, causal=False)
        network = FeedForward(
            _biased(f"{prefix}intermediate.dense"), _biased(f"{prefix}output.dense"), None, activation
        )
        norms = (norm(f"{prefix}attention.output.LayerNorm"), norm(f"{prefix}output.LayerNorm"))
        blocks.append(Block(attention, network, "post", *norms))
    at, top = "bert.embeddings.", "cls.predictions."
    word, position, kind = (f"{at}{name}_embeddings.weight" for name in ("word", "position", "token_type"))
    tables = (Table(word), Table(position, "position"), Table(kind, "type"))
    tied = options.get("tie_word_embeddings")
    untied = f"{top}decoder.weight"
    transform = Transform(_biased(f"{top}transform.dense"), norm(f"{top}transform.LayerNorm"), activation)
    head = Head(Linear(tables[0].weight if tied else untied, BERT_BIASES[0]), transform=transform, untied=untied)
    return Stack(tables, tuple(blocks), head, embedding_norm=norm(f"{at}LayerNorm"))


def bloom(options: Options) -> Stack:
    """BLOOM: ALiBi, a norm after the table, rows [head, (q, k, v), width] in one matrix, tied."""
    d, n, layers = _sizes(options)
    width = d // n
    options.only("apply_residual_connection_post_layernorm", False)
    norm = _layer_norm(options, "layer_norm_epsilon")
    at = _prefix(options, "transformer.", "word_embeddings.weight")
    blocks = []
    for i in range(layers):
        prefix = f"{at}h.{i}."
        q, k, v = (
            _biased(f"{prefix}self_attention.query_key_value", rows=Rows(j * width, width, n, 3 * width))
            for j in range(3)
        )
        output = _biased(f"{prefix}self_attention.dense")
        attention = Attention(q, k, v, output, n, n, width, width, alibi=alibi_slopes(n))
        up, down = _biased(f"{prefix}mlp.dense_h_to_4h"), _biased(f"{prefix}mlp.dense_4h_to_h")
        norms = (norm(f"{prefix}input_layernorm"), norm(f"{prefix}post_attention_layernorm"))
        blocks.append(Block(attention, FeedForward(up, down, None, "gelu_tanh"), "pre", *norms))
    first = f"{at}word_embeddings.weight"
    tied = options.get("tie_word_embeddings")
    head = Head(Linear(first if tied else "lm_head.weight"))
    tables = (Table(first),)
    return Stack(tables, tuple(blocks), head, norm(f"{at}ln_f"), norm(f"{at}word_embeddings_layernorm"))


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Slopes of ALiBi (arXiv 2108.12409): 2^(−8i/n) for the largest power of two n, then every other one of 2n.

    >>> alibi_slopes(4)
    (0.25, 0.0625, 0.015625, 0.00390625)
    """
    n = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * i / n) for i in range(1, n + 1)]
    return (*slopes, *(2 ** (-4 * i / n) for i in range(1, 2 * (heads - n) + 1, 2)))


FAMILIES: dict[str, Callable[[Options], Stack]] = {
    f.__name__: f
    for f in (llama, mistral, qwen2, qwen3, gemma, gemma2, olmo, olmo2, mixtral, gpt2, gpt_neox, gptj, opt, bert, bloom)
}
"""Families by `model_type`."""

BUFFERS = (
    *("*.rotary_emb.inv_freq", "*.attn.bias", "*.attn.masked_bias", "*.attention.bias", "*.attention.masked_bias"),
    *("*.attention.rotary_emb.*", "*embeddings.position_ids"),
)
"""Arrays that the package computes by itself, and does not load."""

SIDE = (
    *("score", "classifier", "qa_outputs"),  # modeling_layers.py, models/*/modeling_*.py
    *("multiple_choice_head.summary", "v_head.summary"),  # GPT-2's second head; TRL's value head
)
"""Linear maps beside the head: each reads what the head reads."""

BERT_SIDE, BERT_BEHIND = "bert.pooler.dense", "cls.seq_relationship.*"
"""What reads the same as the layer before BERT's head; and what only that is read by."""


def sides(kind: str, names: Container[str]) -> tuple[Linear, ...]:
    """Linear maps beside the head, of those that are stored.

    Raises:
        ValueError: naming a bias that the package would start at zero.
    """
    candidates = (BERT_SIDE,) if kind == "bert" else SIDE
    found = [name for name in candidates if f"{name}.weight" in names]
    if lacking := [name for name in found if name != "score" and f"{name}.bias" not in names]:
        raise ValueError(f"the folder lacks '{lacking[0]}.bias', and holds '{lacking[0]}.weight'")
    return tuple(Linear(f"{name}.weight", f"{name}.bias" if f"{name}.bias" in names else None) for name in found)


def behind(kind: str) -> tuple[str, ...]:
    """Patterns of arrays that the function of the described maps does not depend on."""
    return (*BUFFERS, BERT_BEHIND) if kind == "bert" else BUFFERS


def second_names(stack: Stack) -> dict[str, str]:
    """Second names of arrays, as the files of a family may hold them, with the first."""
    found = {BERT_BIASES[1]: BERT_BIASES[0]} if stack.head.linear.bias == BERT_BIASES[0] else {}
    return found | ({NEOX_HEADS[1]: NEOX_HEADS[0]} if stack.head.untied == NEOX_HEADS[0] else {})


def describe(config: Mapping[str, Any], names: Container[str], ignore: Iterable[str] = ()) -> Stack:
    """The description of a checkpoint.

    Args:
        config: its config.json.
        names: names of its arrays.
        ignore: options of the config that have no effect.

    Returns:
        The description.

    Raises:
        ValueError: naming an architecture or an option that is not covered.
    """
    return options_and_stack(config, names, ignore)[1]


def options_and_stack(
    config: Mapping[str, Any], names: Container[str], ignore: Iterable[str] = ()
) -> tuple[Options, Stack]:
    """As `describe`, with the options that were read."""
    kind = config.get("model_type")
    marked = isinstance(kind, str) and kind.startswith(RMS_MARK)
    kind = kind.removeprefix(RMS_MARK) if isinstance(kind, str) else ""
    family = FAMILIES.get(kind)
    if family is None:
        raise ValueError(
            f"model_type {config.get('model_type')!r} is not covered (covered: {', '.join(FAMILIES)}): describe it by "
            "hand (lg.Stack)"
        )
    options = Options(kind, config, names)
    options.check(ignore)
    stack = family(options)
    return options, with_rms(stack) if marked else stack


def check_sizes(options: Options, stack: Stack, weights: Mapping[str, Any]) -> None:
    """Checks that arrays have the sizes of the config; the package loads no others.

    Raises:
        ValueError: naming an option and an array that differ.
    """
    d, head = options.first("hidden_size", "n_embd"), stack.head.linear
    positions, inner = ("max_position_embeddings", "n_positions"), ("intermediate_size", "n_inner", "ffn_dim")
    rows = {"token": ("vocab_size",), "position": positions, "type": ("type_vocab_size",)}
    wanted = [(stack.tables[0].weight, 1, d, "the width of the stream")]
    for table in stack.tables:
        option = rows[table.index]
        wanted.append((table.weight, 0, options.first(*option) + table.offset, " or ".join(option)))
    spare = (name for name in (stack.head.untied, *second_names(stack)) if name in weights)
    for name in filter(None, (head.weight, head.bias, *spare)):
        wanted.append((name, 0, options.get("vocab_size"), "vocab_size"))
    for block in stack.blocks:
        branch = block.feed_forward
        for network in branch.experts if isinstance(branch, Mixture) else (branch,):
            size = options.first(*inner)
            axis = 0 if network.up.layout == "oi" else 1
            wanted.append((network.up.weight, axis, 4 * d if size is None else size, "the width of hidden layers"))
    for side in stack.side if options.kind == "bert" else ():
        wanted.append((side.weight, 0, d, "the width of the stream"))
    for site in stack.linears:
        for name, axes in ((site.part.weight, 2), (site.part.bias, 1)):
            if name is not None and len(weights[name].shape) != axes:
                raise ValueError(f"{name!r} must have {axes} axes; it has shape {tuple(weights[name].shape)}")
    for name, axis, size, what in wanted:
        if weights[name].shape[axis] != size:
            raise ValueError(
                f"{name!r} has shape {tuple(weights[name].shape)}, and config.json says {size} ({what}, axis {axis}): "
                "the config is that of another model, or lacks an option"
            )


def with_rms(stack: Stack) -> Stack:
    """The stack with RMSNorms in place of its LayerNorms."""
    layers = {n.path: replace(n.part, kind="rms") for n in stack.norms if n.part.kind == "layer"}
    return exchange_norms(stack, layers)

"""Descriptions of published architectures: from a config, as files have it, to a stack with the names on disk.

One function a family. Roles are stated here for each family; the same name has other roles elsewhere. Every option of
a config is read, known to be without effect on the function, or refused by name.
"""

import fnmatch
import math
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Any

from lngeom.stacks.description import (
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

RMS_MARK = "lngeom_rms_"
"""What `model_type` begins with where RMSNorms stand in place of the family's LayerNorms. No other library knows it."""

IGNORED = (
    *("_name_or_path", "architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "*_token_id"),
    *("use_cache", "*dropout*", "*pdrop", "initializer_range", "init_std", "layerdrop", "gradient_checkpointing"),
    *(
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "task_specific_params",
        "n_ctx",
        "summary_*",
        "return_dict",
    ),
    *("output_hidden_states", "output_attentions", "output_router_logits", "router_aux_loss_coef", "prefix"),
    *("router_jitter_noise", "pretraining_tp", "slow_but_exact", "use_flash_attention_2", "experts_implementation"),
    *("max_position_embeddings", "n_positions", "tokenizer_class", "seq_length"),
    *("is_encoder_decoder", "is_decoder", "scale_attn_weights", "reorder_and_upcast_attn", "vocab_size", "_attn_*"),
    *("attn_implementation", "cache_implementation", "n_embed", "offset_alibi", "attention_softmax_in_fp32"),
    *("masked_softmax_fusion", "skip_bias_add*", "unk_index", "type_vocab_size"),
)
"""Options without effect on the function in use (those that have one are read before)."""

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "quick_gelu": "quick_gelu",
    "linear": "identity",
}
"""Names of activations in configs."""


class Options:
    """The options of a config; each is asked for once.

    Args:
        config: the config.
        names: names of the arrays on disk.
    """

    def __init__(self, config: Mapping[str, Any], names: Container[str]) -> None:
        self._config, self.names, self._used = config, names, set()

    def get(self, *aliases: str, default: Any = None) -> Any:
        """The first of these options that is set; the default where none is."""
        self._used |= set(aliases)
        return next((v for a in aliases if (v := self._config.get(a)) is not None), default)

    def need(self, *aliases: str) -> Any:
        """An option that must be there.

        Raises:
            ValueError: if it is not.
        """
        if (found := self.get(*aliases)) is None:
            raise ValueError(f"config.json must have {' or '.join(map(repr, aliases))}; it has neither")
        return found

    def only(self, option: str, *allowed: Any) -> None:
        """Refuses other values of an option.

        Raises:
            ValueError: naming the option and its value.
        """
        found = self._config.get(option)
        self._used.add(option)
        if found is not None and found not in allowed:
            raise ValueError(f"option {option!r} = {found!r} is not covered (covered: {', '.join(map(repr, allowed))})")

    def activation(self, *aliases: str, default: str | None = None) -> Any:
        """The activation.

        Raises:
            ValueError: if its name is unknown.
        """
        name = self.get(*aliases, default=default)
        if name not in ACTIVATIONS:
            raise ValueError(f"option {aliases[0]!r} = {name!r} is not covered (covered: {', '.join(ACTIVATIONS)})")
        return ACTIVATIONS[name]

    def finish(self) -> None:
        """Refuses options that nobody read.

        Raises:
            ValueError: naming the first one.
        """
        for name, value in self._config.items():
            known = name in self._used or matches(name, IGNORED)
            if not known and value not in (None, False, [], {}):
                raise ValueError(
                    f"option {name!r} = {value!r} of model_type {self._config.get('model_type')!r} is unknown: "
                    "describe the model by hand (lg.Stack)"
                )


def rotary(options: Options, width: int, *, theta: float = 10000.0, part: float = 1.0, **form: Any) -> Rotary:
    """Rotary positions of a config.

    Args:
        options: the config.
        width: width of a head.
        theta: base where the config has none.
        part: part of the coordinates that turn, where the config has none.
        **form: further fields of `Rotary`.

    Returns:
        The description.

    Raises:
        ValueError: naming a scheme that is not covered.
    """
    found = dict(options.get("rope_parameters", default={}))
    scaling = options.get("rope_scaling", default={})
    found |= {k: v for k, v in scaling.items() if v is not None}
    top = {
        "rope_theta": options.get("rope_theta", "rotary_emb_base", default=theta),
        "partial_rotary_factor": options.get("partial_rotary_factor", "rotary_pct", default=part),
    }
    found = top | found
    kind = found.pop("rope_type", found.pop("type", "default"))
    found.pop("type", None)
    base, share = found.pop("rope_theta"), found.pop("partial_rotary_factor")
    coordinates = int(width * share)
    angles = [base ** (-2 * i / coordinates) for i in range(coordinates // 2)]
    if kind == "linear":
        factor = found.pop("factor")
        angles = [a / factor for a in angles]
    elif kind == "llama3":
        factor, low, high = found.pop("factor"), found.pop("low_freq_factor"), found.pop("high_freq_factor")
        length = found.pop("original_max_position_embeddings")
        angles = [_llama3(a, factor, low, high, length) for a in angles]
    elif kind != "default":
        raise ValueError(f"rotary positions of type {kind!r} are not covered (covered: default, linear, llama3)")
    if found:
        name, value = next(iter(found.items()))
        raise ValueError(f"rotary option {name!r} = {value!r} is not covered for type {kind!r}")
    return Rotary(tuple(angles), **form)


def _llama3(angle: float, factor: float, low: float, high: float, length: float) -> float:
    """Slow angles divided by `factor`, fast ones kept, and a linear passage between (Llama 3.1)."""
    turns = length * angle / (2 * math.pi)  # turns within the original context
    keep = min(1.0, max(0.0, (turns - low) / (high - low)))
    return angle * (keep + (1 - keep) / factor)


def _prefix(options: Options, prefix: str, probe: str) -> str:
    """The prefix of names, "" where files were saved without it."""
    return "" if prefix + probe not in options.names and probe in options.names else prefix


def _windows(options: Options, layers: int, default: Callable[[int], bool]) -> list[int | None]:
    """The sliding window of each block, or None."""
    window, kinds = options.get("sliding_window"), options.get("layer_types")
    if kinds is not None and (unknown := set(kinds) - {"full_attention", "sliding_attention"}):
        raise ValueError(f"option 'layer_types' has {sorted(unknown)[0]!r}, which is not covered")
    sliding = [default(i) if kinds is None else kinds[i] == "sliding_attention" for i in range(layers)]
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
    tied: bool = False,
    heads_norm: str | None = None,
    qkv_bias: bool | None = None,
    sliding: Callable[[int], bool] = lambda i: False,
    scale: float = 1.0,
    score_scale: float | None = None,
    theta: float = 10000.0,
    gated: Callable[[str], FeedForward | Mixture] | None = None,
) -> Stack:
    """What the families after Llama share: rotary positions, gated networks, and the names.

    Args:
        options: the config.
        norm: makes a norm from its name.
        norms: names of the reading norms and the writing norms of both branches.
        placing: as of `Block`.
        tied: whether the head is tied where the config does not say.
        heads_norm: "head" or "all" where queries and keys have norms.
        qkv_bias: whether q, k and v have biases; None: as `attention_bias` says, with an output bias.
        sliding: which blocks have a sliding window where the config does not say.
        scale: factor of the table of tokens.
        score_scale: factor of the scores.
        theta: base of the rotary frequencies where the config has none.
        gated: makes the second branch from its prefix; None: the gated network.

    Returns:
        The description.
    """
    d, n, layers = options.need("hidden_size"), options.need("num_attention_heads"), options.need("num_hidden_layers")
    n_k = options.get("num_key_value_heads", default=n)
    width = options.get("head_dim", default=d // n)
    every = options.get("attention_bias", default=False)
    turn = rotary(options, width, theta=theta)
    windows = _windows(options, layers, sliding)
    activation = options.activation("hidden_activation", "hidden_act", default="silu")
    options.get("intermediate_size")
    mlp_bias = options.get("mlp_bias", default=False)
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
            cap=options.get("attn_logit_softcapping"),
            window=windows[i],
        )
        n1, n2, m1, m2 = (None if name is None else norm(prefix + name) for name in norms)
        blocks.append(Block(attention, (gated or network)(prefix), placing, n1, n2, m1, m2))
    first = f"{at}embed_tokens.weight"
    is_tied = options.get("tie_word_embeddings", default=tied)
    head = Head(Linear(first if is_tied else "lm_head.weight"), options.get("final_logit_softcapping"))
    return Stack((Table(first, scale=scale),), tuple(blocks), head, norm(f"{at}norm"))


def _rms(options: Options, default: float = 1e-6, offset: Any = 0) -> Callable[[str], Norm]:
    eps = options.get("rms_norm_eps", default=default)
    return lambda name: Norm("rms", f"{name}.weight", offset=offset, eps=eps)


def llama(options: Options) -> Stack:
    """Llama 1 to 3."""
    return _llama_like(options, norm=_rms(options))


def mistral(options: Options) -> Stack:
    """Mistral."""
    return _llama_like(options, norm=_rms(options), sliding=lambda i: True)


def qwen2(options: Options) -> Stack:
    """Qwen 2 and 2.5: biases of q, k, v."""
    slides = options.get("use_sliding_window", default=False)
    first = options.get("max_window_layers", default=28)
    return _llama_like(options, norm=_rms(options), qkv_bias=True, sliding=lambda i: slides and i >= first)


def qwen3(options: Options) -> Stack:
    """Qwen 3: norms of queries and keys, by head."""
    slides = options.get("use_sliding_window", default=False)
    first = options.get("max_window_layers", default=28)
    if options.get("head_dim") is None:
        raise ValueError("config.json of model_type 'qwen3' must have 'head_dim'; it has none")
    return _llama_like(options, norm=_rms(options), heads_norm="head", sliding=lambda i: slides and i >= first)


def gemma(options: Options) -> Stack:
    """Gemma: gains 1 + w, table times √d, tied."""
    options.only("use_bidirectional_attention", False)
    scale = math.sqrt(options.need("hidden_size"))
    return _llama_like(options, norm=_rms(options, offset=1), tied=True, scale=scale)


def gemma2(options: Options) -> Stack:
    """Gemma 2: `pre_feedforward_layernorm` reads, `post_*_layernorm` write."""
    options.only("use_bidirectional_attention", False)
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
        tied=True,
        sliding=lambda i: i % 2 == 0,
        scale=math.sqrt(options.need("hidden_size")),
        score_scale=options.get("query_pre_attn_scalar", default=256) ** -0.5,
    )


def olmo(options: Options) -> Stack:
    """OLMo 1: LayerNorms without gain and bias."""
    options.only("clip_qkv", None)
    return _llama_like(options, norm=lambda name: Norm("layer", eps=1e-5))


def olmo2(options: Options) -> Stack:
    """OLMo 2: both norms write, and nothing normalizes what the branches read."""
    return _llama_like(
        options,
        norm=_rms(options, default=1e-5),
        norms=(None, None, "post_attention_layernorm", "post_feedforward_layernorm"),
        placing="outer",
        heads_norm="all",
    )


def mixtral(options: Options) -> Stack:
    """Mixtral: the router and every expert read the norm's output; w1 is the gate, w3 the linear factor."""
    experts, top = options.need("num_local_experts"), options.get("num_experts_per_tok", default=2)
    activation = options.activation("hidden_act", default="silu")

    def mixture(prefix: str) -> Mixture:
        at = f"{prefix}block_sparse_moe."
        found = []
        for e in range(experts):
            up, down, gate = (Linear(f"{at}experts.{e}.{part}.weight") for part in ("w3", "w2", "w1"))
            found.append(FeedForward(up, down, gate, activation))
        return Mixture(Linear(f"{at}gate.weight"), tuple(found), top=top)

    return _llama_like(options, norm=_rms(options, default=1e-5), sliding=lambda i: True, theta=1e6, gated=mixture)


def _layer_norm(options: Options, option: str, default: float) -> Callable[[str], Norm]:
    eps = options.get(option, default=default)

    def norm(name: str) -> Norm:
        old = f"{name}.gamma" in options.names  # BERT's first files
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
    d, n, layers = options.need("n_embd", "hidden_size"), options.need("n_head"), options.need("n_layer")
    options.get("n_inner")
    activation = options.activation("activation_function", default="gelu_new")
    norm, at = _layer_norm(options, "layer_norm_epsilon", 1e-5), _prefix(options, "transformer.", "wte.weight")
    blocks = []
    for i in range(layers):
        prefix = f"{at}h.{i}."
        q, k, v = (_biased(f"{prefix}attn.c_attn", "io", Rows(j * d, d)) for j in range(3))
        attention = Attention(q, k, v, _biased(f"{prefix}attn.c_proj", "io"), n, n, d // n, d // n)
        up, down = _biased(f"{prefix}mlp.c_fc", "io"), _biased(f"{prefix}mlp.c_proj", "io")
        network = FeedForward(up, down, None, activation)
        blocks.append(Block(attention, network, "pre", norm(f"{prefix}ln_1"), norm(f"{prefix}ln_2")))
    tables = (Table(f"{at}wte.weight"), Table(f"{at}wpe.weight", "position"))
    tied = options.get("tie_word_embeddings", default=True)
    head = Head(Linear(f"{at}wte.weight" if tied else "lm_head.weight"))
    return Stack(tables, tuple(blocks), head, norm(f"{at}ln_f"))


def gpt_neox(options: Options) -> Stack:
    """GPT-NeoX and Pythia: parallel blocks with two norms, rows [head, (q, k, v), width] in one matrix."""
    d, n, layers = options.need("hidden_size"), options.need("num_attention_heads"), options.need("num_hidden_layers")
    width, parallel = d // n, options.get("use_parallel_residual", default=True)
    options.only("attention_bias", True)
    options.get("intermediate_size")
    turn = rotary(options, width, part=0.25)
    activation = options.activation("hidden_act", default="gelu")
    norm, at = _layer_norm(options, "layer_norm_eps", 1e-5), _prefix(options, "gpt_neox.", "embed_in.weight")
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
    tied = options.get("tie_word_embeddings", default=False)
    head = Head(Linear(first if tied else "embed_out.weight"), untied="embed_out.weight")
    return Stack((Table(first),), tuple(blocks), head, norm(f"{at}final_layer_norm"))


def gptj(options: Options) -> Stack:
    """GPT-J: parallel blocks with one norm, adjacent rotary pairs, a head with a bias."""
    d, n, layers = options.need("n_embd"), options.need("n_head"), options.need("n_layer")
    turned = options.get("rotary_dim", default=d // n)
    options.get("n_inner")
    options.only("rotary", True)
    turn = Rotary(tuple(10000.0 ** (-2 * i / turned) for i in range(turned // 2)), pairing="adjacent")
    activation = options.activation("activation_function", default="gelu_new")
    norm, at = _layer_norm(options, "layer_norm_epsilon", 1e-5), _prefix(options, "transformer.", "wte.weight")
    blocks = []
    for i in range(layers):
        prefix = f"{at}h.{i}."
        q, k, v, out = (Linear(f"{prefix}attn.{part}_proj.weight") for part in ("q", "k", "v", "out"))
        attention = Attention(q, k, v, out, n, n, d // n, d // n, rotary=turn)
        network = FeedForward(_biased(f"{prefix}mlp.fc_in"), _biased(f"{prefix}mlp.fc_out"), None, activation)
        blocks.append(Block(attention, network, "pre", norm(f"{prefix}ln_1"), parallel=True))
    tied = options.get("tie_word_embeddings", default=False)
    head = Head(Linear(f"{at}wte.weight" if tied else "lm_head.weight", "lm_head.bias"))
    return Stack((Table(f"{at}wte.weight"),), tuple(blocks), head, norm(f"{at}ln_f"))


def opt(options: Options) -> Stack:
    """OPT: `final_layer_norm` of a layer reads the MLP; positions begin at row 2; tied."""
    d, n, layers = options.need("hidden_size"), options.need("num_attention_heads"), options.need("num_hidden_layers")
    for option, value in (
        ("do_layer_norm_before", True),
        ("word_embed_proj_dim", d),
        ("enable_bias", True),
        ("layer_norm_elementwise_affine", True),
        ("_remove_final_layer_norm", False),
    ):
        options.only(option, value)
    options.get("ffn_dim")
    activation = options.activation("activation_function", default="relu")
    at = "model.decoder." if "model.decoder.embed_tokens.weight" in options.names else "decoder."

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
    tied = options.get("tie_word_embeddings", default=True)
    head = Head(Linear(first if tied else "lm_head.weight"))
    return Stack(tables, tuple(blocks), head, norm(f"{at}final_layer_norm"))


def bert(options: Options) -> Stack:
    """BERT with its masked-language head: post-norm, no causal mask, a layer before the tied head."""
    d, n, layers = options.need("hidden_size"), options.need("num_attention_heads"), options.need("num_hidden_layers")
    options.only("position_embedding_type", "absolute")
    options.only("add_cross_attention", False)
    options.only("is_decoder", False)
    options.get("intermediate_size")
    activation = options.activation("hidden_act", default="gelu")
    norm = _layer_norm(options, "layer_norm_eps", 1e-12)
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
    tied = options.get("tie_word_embeddings", default=True)
    untied = f"{top}decoder.weight"
    transform = Transform(_biased(f"{top}transform.dense"), norm(f"{top}transform.LayerNorm"), activation)
    head = Head(Linear(tables[0].weight if tied else untied, f"{top}bias"), transform=transform, untied=untied)
    return Stack(tables, tuple(blocks), head, embedding_norm=norm(f"{at}LayerNorm"))


def bloom(options: Options) -> Stack:
    """BLOOM: ALiBi, a norm after the table, rows [head, (q, k, v), width] in one matrix, tied."""
    d, n = options.need("hidden_size", "n_embed"), options.need("n_head", "num_attention_heads")
    layers, width = options.need("n_layer", "num_hidden_layers"), d // n
    options.only("apply_residual_connection_post_layernorm", False)
    norm = _layer_norm(options, "layer_norm_epsilon", 1e-5)
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
    tied = options.get("tie_word_embeddings", default=True)
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

IRRELEVANT = (
    *("*.rotary_emb.inv_freq", "*.attn.bias", "*.attn.masked_bias", "*.attention.bias", "*.attention.masked_bias"),
    *("*.attention.rotary_emb.*", "*.embeddings.position_ids", "bert.pooler.*", "cls.seq_relationship.*"),
)
"""Arrays that the logits do not depend on: buffers, and heads for other tasks."""


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a name fits one of the patterns."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def copies(stack: Stack) -> tuple[str, ...]:
    """Arrays that some files hold again though they are other arrays: the matrix of a tied head, and its bias."""
    found = (stack.head.untied,) if stack.tied else ()
    bias = stack.head.linear.bias
    return (*found, *(("cls.predictions.decoder.bias",) if bias == "cls.predictions.bias" else ()))


def describe(config: Mapping[str, Any], names: Container[str]) -> Stack:
    """The description of a checkpoint.

    Args:
        config: its config.json.
        names: names of its arrays.

    Returns:
        The description.

    Raises:
        ValueError: naming an architecture or an option that is not covered.
    """
    kind = config.get("model_type")
    marked = isinstance(kind, str) and kind.startswith(RMS_MARK)
    family = FAMILIES.get(kind.removeprefix(RMS_MARK) if isinstance(kind, str) else "")
    if family is None:
        raise ValueError(
            f"model_type {kind!r} is not covered (covered: {', '.join(FAMILIES)}): describe it by hand (lg.Stack)"
        )
    options = Options(config, names)
    stack = family(options)
    options.finish()
    return with_rms(stack) if marked else stack


def with_rms(stack: Stack) -> Stack:
    """The stack with RMSNorms in place of its LayerNorms."""
    layers = {n.path: replace(n.part, kind="rms") for n in stack.norms if n.part.kind == "layer"}
    return exchange_norms(stack, layers)

"""GPT-2 and the families after it: LayerNorms with biases, networks without a gate."""

from collections.abc import Callable

from lngeom.transformers.description import (
    Attention,
    Block,
    FeedForward,
    Head,
    Linear,
    Norm,
    Rotary,
    Rows,
    Stack,
    Table,
)
from lngeom.transformers.rewrite.configs import Options, rotary
from lngeom.transformers.rewrite.layouts.shared import (
    alibi_slopes,
    base_prefix,
    biased,
    by_head,
    fused_rows,
    layer_norm,
    linear,
    plain,
    sizes,
)


def gpt2(options: Options) -> Stack:
    """GPT-2: matrices [in, out], columns q | k | v, learned positions, tied."""
    options.only("scale_attn_by_inverse_layer_idx", False)
    options.only("add_cross_attention", False)
    options.only("scale_attn_weights", True)
    d, n, layers = sizes(options)
    activation = options.activation()
    norm, at = layer_norm(options, "layer_norm_epsilon"), base_prefix(options, "transformer.", "wte.weight")
    blocks = []
    for i in range(layers):
        prefix = f"{at}h.{i}."
        q, k, v = (biased(f"{prefix}attn.c_attn", "io", Rows(j * d, d)) for j in range(3))
        attention = Attention(q, k, v, biased(f"{prefix}attn.c_proj", "io"), n, n, d // n, d // n)
        up, down = biased(f"{prefix}mlp.c_fc", "io"), biased(f"{prefix}mlp.c_proj", "io")
        network = FeedForward(up, down, None, activation)
        blocks.append(Block(attention, network, "pre", norm(f"{prefix}ln_1"), norm(f"{prefix}ln_2")))
    return _with_positions(options, at, blocks, norm)


NEOX_HEADS = ("embed_out.weight", "lm_head.weight")
"""The head of GPT-NeoX: its name in most files, and in memory. The `transformers` package takes both as one."""


def gpt_neox(options: Options) -> Stack:
    """GPT-NeoX and Pythia: parallel blocks with two norms, rows [head, (q, k, v), width] in one matrix."""
    d, n, layers = sizes(options)
    width, parallel = d // n, options.get("use_parallel_residual")
    options.only("attention_bias", True)
    turn = rotary(options, width, partial=True)
    activation = options.activation()
    norm, at = layer_norm(options, "layer_norm_eps"), base_prefix(options, "gpt_neox.", "embed_in.weight")
    blocks = []
    for i in range(layers):
        prefix = f"{at}layers.{i}."
        fused = f"{prefix}attention.query_key_value"
        q, k, v = (biased(fused, rows=Rows(j * width, width, n, 3 * width)) for j in range(3))
        attention = Attention(q, k, v, biased(f"{prefix}attention.dense"), n, n, width, width, rotary=turn)
        up, down = biased(f"{prefix}mlp.dense_h_to_4h"), biased(f"{prefix}mlp.dense_4h_to_h")
        norms = (norm(f"{prefix}input_layernorm"), norm(f"{prefix}post_attention_layernorm"))
        blocks.append(Block(attention, FeedForward(up, down, None, activation), "pre", *norms, parallel=parallel))
    first = f"{at}embed_in.weight"
    tied = options.get("tie_word_embeddings")
    own = next((name for name in NEOX_HEADS if name in options.names), NEOX_HEADS[0])
    head = Head(Linear(first if tied else own), untied=own)
    return Stack((Table(first),), tuple(blocks), head, norm(f"{at}final_layer_norm"))


def adjacent_pairs(options: Options, width: int) -> Rotary:
    """Rotary positions of GPT-J: adjacent pairs of the first `rotary_dim` coordinates."""
    turned = options.get("rotary_dim")
    if turned % 2 or turned > width:
        raise ValueError(f"option 'rotary_dim' must be even and at most {width}, the width of a head; got {turned}")
    return Rotary(tuple(10000.0 ** (-2 * i / turned) for i in range(turned // 2)), pairing="adjacent")


def gptj(options: Options) -> Stack:
    """GPT-J: parallel blocks with one norm, adjacent rotary pairs, a head with a bias."""
    d, n, layers = sizes(options)
    options.only("rotary", True)
    turn = adjacent_pairs(options, d // n)
    activation = options.activation()
    norm, at = layer_norm(options, "layer_norm_epsilon"), base_prefix(options, "transformer.", "wte.weight")
    blocks = []
    for i in range(layers):
        prefix = f"{at}h.{i}."
        q, k, v, out = (Linear(f"{prefix}attn.{part}_proj.weight") for part in ("q", "k", "v", "out"))
        attention = Attention(q, k, v, out, n, n, d // n, d // n, rotary=turn)
        network = FeedForward(biased(f"{prefix}mlp.fc_in"), biased(f"{prefix}mlp.fc_out"), None, activation)
        blocks.append(Block(attention, network, "pre", norm(f"{prefix}ln_1"), parallel=True))
    tied = options.get("tie_word_embeddings")
    head = Head(Linear(f"{at}wte.weight" if tied else "lm_head.weight", "lm_head.bias"))
    return Stack((Table(f"{at}wte.weight"),), tuple(blocks), head, norm(f"{at}ln_f"))


def opt(options: Options) -> Stack:
    """OPT: `final_layer_norm` of a layer reads the MLP; positions begin at row 2; tied."""
    d, n, layers = sizes(options)
    for option, value in (
        ("do_layer_norm_before", True),
        ("enable_bias", True),
        ("layer_norm_elementwise_affine", True),
        ("_remove_final_layer_norm", False),
    ):
        options.only(option, value)
    options.only("word_embed_proj_dim", None, d)
    activation = options.activation()
    at = "model.decoder." if "model.decoder.embed_positions.weight" in options.names else "decoder."

    def norm(name: str) -> Norm:
        return Norm("layer", f"{name}.weight", f"{name}.bias", eps=1e-5)

    blocks = []
    for i in range(layers):
        prefix = f"{at}layers.{i}."
        q, k, v, out = (biased(f"{prefix}self_attn.{part}_proj") for part in ("q", "k", "v", "out"))
        attention = Attention(q, k, v, out, n, n, d // n, d // n)
        network = FeedForward(biased(f"{prefix}fc1"), biased(f"{prefix}fc2"), None, activation)
        norms = (norm(f"{prefix}self_attn_layer_norm"), norm(f"{prefix}final_layer_norm"))
        blocks.append(Block(attention, network, "pre", *norms))
    first = f"{at}embed_tokens.weight"
    tables = (Table(first), Table(f"{at}embed_positions.weight", "position", offset=2))
    tied = options.get("tie_word_embeddings")
    head = Head(Linear(first if tied else "lm_head.weight"))
    return Stack(tables, tuple(blocks), head, norm(f"{at}final_layer_norm"))


def bloom(options: Options) -> Stack:
    """BLOOM: ALiBi, a norm after the table, rows [head, (q, k, v), width] in one matrix, tied."""
    d, n, layers = sizes(options)
    width = d // n
    options.only("apply_residual_connection_post_layernorm", False)
    norm = layer_norm(options, "layer_norm_epsilon")
    at = base_prefix(options, "transformer.", "word_embeddings.weight")
    blocks = []
    for i in range(layers):
        prefix = f"{at}h.{i}."
        q, k, v = (
            biased(f"{prefix}self_attention.query_key_value", rows=Rows(j * width, width, n, 3 * width))
            for j in range(3)
        )
        output = biased(f"{prefix}self_attention.dense")
        attention = Attention(q, k, v, output, n, n, width, width, alibi=alibi_slopes(n))
        up, down = biased(f"{prefix}mlp.dense_h_to_4h"), biased(f"{prefix}mlp.dense_4h_to_h")
        norms = (norm(f"{prefix}input_layernorm"), norm(f"{prefix}post_attention_layernorm"))
        blocks.append(Block(attention, FeedForward(up, down, None, "gelu_tanh"), "pre", *norms))
    first = f"{at}word_embeddings.weight"
    tied = options.get("tie_word_embeddings")
    head = Head(Linear(first if tied else "lm_head.weight"))
    tables = (Table(first),)
    return Stack(tables, tuple(blocks), head, norm(f"{at}ln_f"), norm(f"{at}word_embeddings_layernorm"))


def codegen(options: Options) -> Stack:
    """CodeGen: as GPT-J; rows [quarter, (q, v, k), width] in one matrix."""
    d, n, layers = sizes(options)
    if n % QUARTERS:
        raise ValueError(f"option 'n_head' must be a multiple of {QUARTERS}; got {n}")
    turn = adjacent_pairs(options, d // n)
    norm, at = layer_norm(options, "layer_norm_epsilon"), base_prefix(options, "transformer.", "wte.weight")
    network, width = plain(options, "mlp.fc_in", "mlp.fc_out"), d // QUARTERS
    blocks = []
    for i in range(layers):
        prefix = f"{at}h.{i}."
        q, v, k = (linear(f"{prefix}attn.qkv_proj", rows=Rows(j * width, width, QUARTERS, 3 * width)) for j in range(3))
        out = linear(f"{prefix}attn.out_proj")
        attention = Attention(q, k, v, out, n, n, d // n, d // n, rotary=turn)
        blocks.append(Block(attention, network(prefix, i), "pre", norm(f"{prefix}ln_1"), parallel=True))
    tied = options.get("tie_word_embeddings")
    head = Head(Linear(f"{at}wte.weight" if tied else "lm_head.weight", "lm_head.bias"))
    return Stack((Table(f"{at}wte.weight"),), tuple(blocks), head, norm(f"{at}ln_f"))


QUARTERS = 4
"""Parts of CodeGen's matrix of queries, keys and values, one for each processor that it was trained on."""


def gpt_bigcode(options: Options) -> Stack:
    """StarCoder 1: as GPT-2, with matrices [out, in] and one key/value head, or q, k, v by head."""
    options.only("add_cross_attention", False)
    options.only("scale_attn_weights", True)
    d, n, layers = sizes(options)
    width, one = d // n, options.get("multi_query")
    rows = fused_rows([d, width, width]) if one else by_head(n, width)
    norm, at = layer_norm(options, "layer_norm_epsilon"), base_prefix(options, "transformer.", "wte.weight")
    network = plain(options, "mlp.c_fc", "mlp.c_proj")
    blocks = []
    for i in range(layers):
        prefix = f"{at}h.{i}."
        q, k, v = (biased(f"{prefix}attn.c_attn", rows=r) for r in rows)
        attention = Attention(q, k, v, biased(f"{prefix}attn.c_proj"), n, 1 if one else n, width, width)
        blocks.append(Block(attention, network(prefix, i), "pre", norm(f"{prefix}ln_1"), norm(f"{prefix}ln_2")))
    return _with_positions(options, at, blocks, norm)


def gpt_neo(options: Options) -> Stack:
    """GPT-Neo: scores without a factor, a window in every other block."""
    d, n, layers = sizes(options)
    layer_types = options.get("attention_layers")
    if layer_types is None:
        layer_types = [kind for kinds, count in options.get("attention_types") or ALTERNATING for kind in count * kinds]
    if len(layer_types) != layers or set(layer_types) - {"global", "local"}:
        raise ValueError(
            f"options 'attention_types' and 'attention_layers' must say global or local for each of {layers} layers; "
            f"they say {layer_types}"
        )
    norm, at = layer_norm(options, "layer_norm_epsilon"), base_prefix(options, "transformer.", "wte.weight")
    network = plain(options, "mlp.c_fc", "mlp.c_proj")
    blocks = []
    for i, kind in enumerate(layer_types):
        prefix = f"{at}h.{i}."
        q, k, v, out = (linear(f"{prefix}attn.attention.{part}_proj", part == "out") for part in ("q", "k", "v", "out"))
        window = options.get("window_size") if kind == "local" else None
        attention = Attention(q, k, v, out, n, n, d // n, d // n, scale=1.0, window=window)
        blocks.append(Block(attention, network(prefix, i), "pre", norm(f"{prefix}ln_1"), norm(f"{prefix}ln_2")))
    return _with_positions(options, at, blocks, norm)


ALTERNATING = [[["global", "local"], 12]]
"""What GPT-Neo has for `attention_types` where it is absent."""


def _with_positions(options: Options, at: str, blocks: list[Block], norm: Callable[[str], Norm]) -> Stack:
    """Blocks between GPT-2's tables and its last norm and head."""
    tables = (Table(f"{at}wte.weight"), Table(f"{at}wpe.weight", "position"))
    tied = options.get("tie_word_embeddings")
    head = Head(Linear(f"{at}wte.weight" if tied else "lm_head.weight"))
    return Stack(tables, tuple(blocks), head, norm(f"{at}ln_f"))


def falcon(options: Options) -> Stack:
    """Falcon: parallel blocks with one norm or two; rows [group, (q of the group, k, v), width] in one matrix."""
    if options.get("alibi"):
        raise ValueError("option 'alibi' = True is not covered: the distances of Falcon are rounded to bfloat16")
    if options.given("head_dim"):
        raise ValueError("option 'head_dim' is not covered: the transformers package loads no Falcon that has it")
    d, n, layers = sizes(options)
    width, new, parallel = d // n, bool(options.get("new_decoder_architecture")), bool(options.get("parallel_attn"))
    n_k = options.get("num_kv_heads") or n
    if not new and not options.get("multi_query") and n_k != n:
        raise ValueError(f"option 'num_kv_heads' = {n_k} without 'multi_query' is not covered (covered: {n})")
    if not new and options.get("multi_query"):
        n_k = 1
    if n % n_k:
        raise ValueError(f"option 'num_kv_heads' = {n_k} must divide {n}, the number of heads")
    count = options.get("num_ln_in_parallel_attn")
    count = (2 if new else 1) if count is None else count
    if (new and not parallel) or (count != 1 and not new):
        raise ValueError(
            f"options 'new_decoder_architecture' = {new}, 'parallel_attn' = {parallel} and 'num_ln_in_parallel_attn' = "
            f"{count} do not go together: the transformers package runs no such model"
        )
    names = ("input_layernorm", None if parallel else "post_attention_layernorm")
    names = ("ln_attn", "ln_mlp") if count == 2 else names
    bias, group = bool(options.get("bias")), n // n_k
    rows = [Rows(0, group * width, n_k, (group + 2) * width)]
    rows += [Rows((group + j) * width, width, n_k, (group + 2) * width) for j in range(2)]
    turn = rotary(options, width)
    norm, at = layer_norm(options, "layer_norm_epsilon"), base_prefix(options, "transformer.", "word_embeddings.weight")
    network = plain(options, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=bias)
    blocks = []
    for i in range(layers):
        prefix = f"{at}h.{i}."
        q, k, v = (linear(f"{prefix}self_attention.query_key_value", bias, rows=r) for r in rows)
        output = linear(f"{prefix}self_attention.dense", bias)
        attention = Attention(q, k, v, output, n, n_k, width, width, rotary=turn)
        n1, n2 = (None if name is None else norm(prefix + name) for name in names)
        blocks.append(Block(attention, network(prefix, i), "pre", n1, n2, parallel=parallel))
    first = f"{at}word_embeddings.weight"
    tied = options.get("tie_word_embeddings")
    head = Head(Linear(first if tied else "lm_head.weight"))
    return Stack((Table(first),), tuple(blocks), head, norm(f"{at}ln_f"))


def mpt(options: Options) -> Stack:
    """MPT: no biases, ALiBi whatever the options say, rows q | k | v in one matrix.

    Of `attn_config` the package reads two options: the clipping of queries, keys and values, and the factor of scores.
    """
    d, n, layers = sizes(options)
    inner = options.get("attn_config") or {}
    if inner.get("clip_qkv"):
        raise ValueError(f"option 'attn_config' with 'clip_qkv' = {inner['clip_qkv']!r} is not covered (covered: null)")
    scale = inner.get("softmax_scale")
    if scale is not None and (isinstance(scale, bool) or not isinstance(scale, int | float) or not scale > 0):
        raise ValueError(f"option 'softmax_scale' in 'attn_config' must be a positive number; got {scale!r}")
    if options.get("max_seq_len") < 2:
        raise ValueError("option 'max_seq_len' must be at least 2: with 1, the package leaves the distances out")
    if n & (n - 1):
        raise ValueError(f"option 'n_heads' = {n} is not covered: it must be a power of two")
    norm = layer_norm(options, "layer_norm_epsilon", bias=False)
    at = base_prefix(options, "transformer.", "wte.weight")
    blocks = []
    for i in range(layers):
        prefix = f"{at}blocks.{i}."
        q, k, v = (linear(f"{prefix}attn.Wqkv", rows=r) for r in fused_rows([d, d, d]))
        output = linear(f"{prefix}attn.out_proj")
        attention = Attention(q, k, v, output, n, n, d // n, d // n, scale=scale, alibi=alibi_slopes(n))
        network = FeedForward(linear(f"{prefix}ffn.up_proj"), linear(f"{prefix}ffn.down_proj"), None, "gelu")
        blocks.append(Block(attention, network, "pre", norm(f"{prefix}norm_1"), norm(f"{prefix}norm_2")))
    first = f"{at}wte.weight"
    tied = options.get("tie_word_embeddings")
    head = Head(Linear(first if tied else "lm_head.weight"))
    return Stack((Table(first),), tuple(blocks), head, norm(f"{at}norm_f"))

"""GPT-2 and the families after it: LayerNorms with biases, networks without a gate."""

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
from lngeom.transformers.rewrite.layouts.shared import alibi_slopes, base_prefix, biased, layer_norm, sizes


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
    tables = (Table(f"{at}wte.weight"), Table(f"{at}wpe.weight", "position"))
    tied = options.get("tie_word_embeddings")
    head = Head(Linear(f"{at}wte.weight" if tied else "lm_head.weight"))
    return Stack(tables, tuple(blocks), head, norm(f"{at}ln_f"))


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


def gptj(options: Options) -> Stack:
    """GPT-J: parallel blocks with one norm, adjacent rotary pairs, a head with a bias."""
    d, n, layers = sizes(options)
    turned = options.get("rotary_dim")
    if turned % 2 or turned > d // n:
        raise ValueError(f"option 'rotary_dim' must be even and at most {d // n}, the width of a head; got {turned}")
    options.only("rotary", True)
    turn = Rotary(tuple(10000.0 ** (-2 * i / turned) for i in range(turned // 2)), pairing="adjacent")
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

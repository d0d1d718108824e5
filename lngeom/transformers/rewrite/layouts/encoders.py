"""BERT and other encoders: no causal mask, a layer before the head."""

from collections.abc import Callable
from typing import Any

from lngeom.transformers.description import Attention, Block, FeedForward, Head, Linear, Norm, Stack, Table, Transform
from lngeom.transformers.rewrite.configs import Options
from lngeom.transformers.rewrite.layouts.shared import (
    biased,
    fused_rows,
    layer_kinds,
    layer_norm,
    linear,
    local_and_global,
    sizes,
)

HEAD_BIASES = {
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    "lm_head.decoder.bias": "lm_head.bias",
}
"""The bias of an encoder's head: the name of the array that is added, and the name under which most files hold it.

The `transformers` package ties the two where `tie_word_embeddings` is true; otherwise the second has no effect.
"""

POOLERS = {
    "bert": ("bert.pooler.dense",),
    "ernie": ("ernie.pooler.dense",),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), ("roberta.pooler.dense",)),
    "vit": ("vit.pooler.dense", "pooler.dense"),
}
"""What reads the same as the layer before an encoder's head, or as the head, by family."""


def after_bert(
    options: Options, base: str, *, predictions: tuple[str, str, str], activation: Any = None, first: int = 0
) -> Stack:
    """BERT with its masked-language head, and what has its names.

    Args:
        options: the config.
        base: prefix of the names of tables and blocks.
        predictions: names of the layer before the head, of its norm, and of the head.
        activation: of the layer before the head; None: that of the blocks.
        first: row of the first position.

    Returns:
        The description.
    """
    d, n, layers = sizes(options)
    options.only("position_embedding_type", "absolute")
    options.only("add_cross_attention", False)
    options.only("is_decoder", False)
    norm = layer_norm(options, "layer_norm_eps")
    blocks = []
    for i in range(layers):
        prefix = f"{base}encoder.layer.{i}."
        q, k, v = (biased(f"{prefix}attention.self.{part}") for part in ("query", "key", "value"))
        output = biased(f"{prefix}attention.output.dense")
        attention = Attention(q, k, v, output, n, n, d // n, d // n, causal=False)
        up, down = biased(f"{prefix}intermediate.dense"), biased(f"{prefix}output.dense")
        norms = (norm(f"{prefix}attention.output.LayerNorm"), norm(f"{prefix}output.LayerNorm"))
        blocks.append(Block(attention, FeedForward(up, down, None, options.activation()), "post", *norms))
    at = f"{base}embeddings."
    word, position, kind = (f"{at}{name}_embeddings.weight" for name in ("word", "position", "token_type"))
    tables = (Table(word), Table(position, "position", first), Table(kind, "type"))
    head = _head(options, word, predictions, norm, options.activation() if activation is None else activation)
    return Stack(tables, tuple(blocks), head, embedding_norm=norm(f"{at}LayerNorm"))


def _head(
    options: Options, word: str, predictions: tuple[str, str, str], norm: Callable[[str], Norm], activation: Any
) -> Head:
    """The head and the layer before it."""
    dense, before, decoder = predictions
    untied = f"{decoder}.weight"
    matrix = Linear(word if options.get("tie_word_embeddings") else untied, f"{decoder}.bias")
    return Head(matrix, transform=Transform(biased(dense), norm(before), activation), untied=untied)


CLS = ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.decoder")


def bert(options: Options) -> Stack:
    """BERT with its masked-language head: post-norm, no causal mask, a layer before the tied head."""
    return after_bert(options, "bert.", predictions=CLS)


def ernie(options: Options) -> Stack:
    """ERNIE: as BERT, without a table of tasks."""
    options.only("use_task_id", False)
    return after_bert(options, "ernie.", predictions=CLS)


def roberta(options: Options) -> Stack:
    """RoBERTa, XLM-RoBERTa, CamemBERT: positions begin behind the row of padding; the head's layer has GELU."""
    names = ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder")
    first = options.get("pad_token_id") + 1
    return after_bert(options, "roberta.", predictions=names, activation="gelu", first=first)


def electra(options: Options) -> Stack:
    """ELECTRA's generator, with tables as wide as the stream."""
    options.only("embedding_size", options.get("hidden_size"))
    names = ("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head")
    return after_bert(options, "electra.", predictions=names, activation="gelu")


def distilbert(options: Options) -> Stack:
    """DistilBERT: as BERT, without a table of types, with names of its own."""
    d, n, layers = sizes(options)

    def norm(name: str) -> Norm:
        return Norm("layer", f"{name}.weight", f"{name}.bias", eps=1e-12)

    blocks = []
    for i in range(layers):
        prefix = f"distilbert.transformer.layer.{i}."
        q, k, v, out = (biased(f"{prefix}attention.{part}_lin") for part in ("q", "k", "v", "out"))
        attention = Attention(q, k, v, out, n, n, d // n, d // n, causal=False)
        up, down = biased(f"{prefix}ffn.lin1"), biased(f"{prefix}ffn.lin2")
        norms = (norm(f"{prefix}sa_layer_norm"), norm(f"{prefix}output_layer_norm"))
        blocks.append(Block(attention, FeedForward(up, down, None, options.activation()), "post", *norms))
    at = "distilbert.embeddings."
    tables = (Table(f"{at}word_embeddings.weight"), Table(f"{at}position_embeddings.weight", "position"))
    names = ("vocab_transform", "vocab_layer_norm", "vocab_projector")
    head = _head(options, tables[0].weight, names, norm, options.activation())
    return Stack(tables, tuple(blocks), head, embedding_norm=norm(f"{at}LayerNorm"))


def modernbert(options: Options) -> Stack:
    """ModernBERT: pre-norm behind an embedding norm, which is the norm of the first attention too; no causal mask."""
    d, n, layers = sizes(options)
    width, inner = d // n, options.get("intermediate_size")
    every = options.get("global_attn_every_n_layers")
    sliding = layer_kinds(options, layers, lambda i: i % every != 0)
    bases = {True: options.get("local_rope_theta"), False: options.get("global_rope_theta")}
    if options.get("rope_scaling"):
        raise ValueError("option 'rope_scaling' is not covered: give the rotary positions in 'rope_parameters'")
    turns = local_and_global(options, sliding, bases)
    norm = layer_norm(options, "norm_eps", bias=options.get("norm_bias"))
    bias, hidden_bias = options.get("attention_bias"), options.get("mlp_bias")
    blocks = []
    for i in range(layers):
        prefix = f"model.layers.{i}."
        q, k, v = (linear(f"{prefix}attn.Wqkv", bias, rows=r) for r in fused_rows([d, d, d]))
        window = options.get("local_attention") // 2 + 1 if sliding[i] else None
        output = linear(f"{prefix}attn.Wo", bias)
        attention = Attention(q, k, v, output, n, n, width, width, rotary=turns[i], causal=False, window=window)
        gate, up = (linear(f"{prefix}mlp.Wi", hidden_bias, rows=r) for r in fused_rows([inner, inner]))
        network = FeedForward(up, linear(f"{prefix}mlp.Wo", hidden_bias), gate, options.activation())
        before = norm(f"{prefix}attn_norm") if i else None
        after = norm(f"{prefix}mlp_norm")
        blocks.append(Block(attention, network, "pre", before, after, bare_attention=not i))
    word, untied = "model.embeddings.tok_embeddings.weight", "decoder.weight"
    matrix = Linear(
        word if options.get("tie_word_embeddings") else untied, "decoder.bias" if options.get("decoder_bias") else None
    )
    activation = options.activation("classifier_activation")
    transform = Transform(linear("head.dense", options.get("classifier_bias")), norm("head.norm"), activation)
    head = Head(matrix, transform=transform, untied=untied)
    return Stack((Table(word),), tuple(blocks), head, norm("model.final_norm"), norm("model.embeddings.norm"))

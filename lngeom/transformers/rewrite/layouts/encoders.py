"""BERT: post-norm, no causal mask, a layer before the head."""

from lngeom.transformers.description import Attention, Block, FeedForward, Head, Linear, Stack, Table, Transform
from lngeom.transformers.rewrite.configs import Options
from lngeom.transformers.rewrite.layouts.shared import biased, layer_norm, sizes

BERT_BIASES = ("cls.predictions.decoder.bias", "cls.predictions.bias")
"""The bias of BERT's head: the name of the array that is added, and the name under which most files hold it.

The `transformers` package ties the two where `tie_word_embeddings` is true; otherwise the second has no effect.
"""


def bert(options: Options) -> Stack:
    """BERT with its masked-language head: post-norm, no causal mask, a layer before the tied head."""
    d, n, layers = sizes(options)
    options.only("position_embedding_type", "absolute")
    options.only("add_cross_attention", False)
    options.only("is_decoder", False)
    activation = options.activation()
    norm = layer_norm(options, "layer_norm_eps")
    blocks = []
    for i in range(layers):
        prefix = f"bert.encoder.layer.{i}."
        q, k, v = (biased(f"{prefix}attention.self.{part}") for part in ("query", "key", "value"))
        output = biased(f"{prefix}attention.output.dense")
        attention = Attention(q, k, v, output, n, n, d // n, d // n, causal=False)
        network = FeedForward(biased(f"{prefix}intermediate.dense"), biased(f"{prefix}output.dense"), None, activation)
        norms = (norm(f"{prefix}attention.output.LayerNorm"), norm(f"{prefix}output.LayerNorm"))
        blocks.append(Block(attention, network, "post", *norms))
    at, top = "bert.embeddings.", "cls.predictions."
    word, position, kind = (f"{at}{name}_embeddings.weight" for name in ("word", "position", "token_type"))
    tables = (Table(word), Table(position, "position"), Table(kind, "type"))
    tied = options.get("tie_word_embeddings")
    untied = f"{top}decoder.weight"
    transform = Transform(biased(f"{top}transform.dense"), norm(f"{top}transform.LayerNorm"), activation)
    head = Head(Linear(tables[0].weight if tied else untied, BERT_BIASES[0]), transform=transform, untied=untied)
    return Stack(tables, tuple(blocks), head, embedding_norm=norm(f"{at}LayerNorm"))

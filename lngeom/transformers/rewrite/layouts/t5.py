"""The encoder of T5: RMS norms, scores without a factor, one table of relative positions that all blocks share.

Its decoder reads the encoder by cross-attention, and is not covered.
"""

from typing import Any

from lngeom.transformers.description import Attention, Block, Buckets, FeedForward, Head, Norm, Stack, Table
from lngeom.transformers.rewrite.configs import ACTIVATIONS, Options
from lngeom.transformers.rewrite.layouts.shared import biased, linear, sizes


def t5(options: Options) -> Stack:
    """T5's encoder: its hidden states, or logits of tokens."""
    options.only("is_decoder", False)
    maps = (f"transformer.encoder.block.0.layer.0.SelfAttention.{part}.weight" for part in "qkvo")
    at = "transformer." if any(name in options.names for name in maps) else ""
    if f"{at}decoder.final_layer_norm.weight" in options.names:
        raise ValueError(
            "a T5 with a decoder is not covered: its cross-attention reads the encoder. Save the encoder alone "
            "(T5EncoderModel, T5ForTokenClassification)"
        )
    _, n, layers = sizes(options)
    width, eps = options.get("d_kv"), options.get("layer_norm_epsilon")
    names = ("relative_attention_num_buckets", "relative_attention_max_distance")
    count, largest = (options.get(name) for name in names)
    if count < 4 or count % 2 or largest <= count // 4:
        raise ValueError(
            f"options {names[0]!r} = {count} and {names[1]!r} = {largest} are not covered: an even number, at least 4, "
            "and more than a quarter of it"
        )
    buckets = Buckets(count, largest)
    gated, activation = _network(options)
    first = f"{at}encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"

    def norm(name: str) -> Norm:
        if options.get("initializer_factor") != 1 and f"{name}.weight" not in options.names:
            raise ValueError(
                f"option 'initializer_factor' = {options.get('initializer_factor')!r} is what the transformers package "
                f"gives {name + '.weight'!r}, which is absent: the option must be 1.0"
            )
        return Norm("rms", f"{name}.weight", eps=eps)

    blocks = []
    for i in range(layers):
        prefix = f"{at}encoder.block.{i}.layer."
        q, k, v, out = (linear(f"{prefix}0.SelfAttention.{part}") for part in "qkvo")
        attention = Attention(
            q, k, v, out, n, n, width, width, scale=1.0, relative=first, buckets=buckets, causal=False
        )
        names = ("wi_1", "wo", "wi_0") if gated else ("wi", "wo")
        up, down, *gate = (linear(f"{prefix}1.DenseReluDense.{part}") for part in names)
        network = FeedForward(up, down, gate[0] if gate else None, activation)
        norms = (norm(f"{prefix}0.layer_norm"), norm(f"{prefix}1.layer_norm"))
        blocks.append(Block(attention, network, "pre", *norms))
    head = Head(biased("classifier"), untied="") if "classifier.weight" in options.names else Head(None, untied="")
    return Stack((Table(f"{at}shared.weight"),), tuple(blocks), head, norm(f"{at}encoder.final_layer_norm"))


def _network(options: Options) -> tuple[bool, Any]:
    """Whether networks have a gate, and their activation.

    `feed_forward_proj` says both; `is_gated_act` and `dense_act_fn`, which the package writes beside it, come first.

    Raises:
        ValueError: naming an option that is not covered.
    """
    given = options.get("feed_forward_proj")
    first, *rest = given.split("-")
    if len(rest) > 1 or (rest and first != "gated"):
        raise ValueError(f"option 'feed_forward_proj' = {given!r} must be an activation, or 'gated-' and one")
    name = "gelu_new" if given == "gated-gelu" else given.split("-")[-1]
    own, gated = options.get("dense_act_fn"), options.get("is_gated_act")
    which, name = ("feed_forward_proj", name) if own is None else ("dense_act_fn", own)
    if name not in ACTIVATIONS:
        raise ValueError(f"option {which!r} = {name!r} is not covered (covered: {', '.join(ACTIVATIONS)})")
    return (first == "gated" if gated is None else gated), ACTIVATIONS[name]

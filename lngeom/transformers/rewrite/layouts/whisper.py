"""The encoder of Whisper: a front end of two convolutions reads log-mel frames, and pre-norm blocks its outputs.

Its decoder reads the encoder by cross-attention, and is not covered; nor is a head of sounds.
"""

from lngeom.transformers.description import (
    Attention,
    Block,
    Convolution,
    FeedForward,
    FrontEnd,
    Head,
    Linear,
    Norm,
    Stack,
    Table,
)
from lngeom.transformers.rewrite.configs import Options
from lngeom.transformers.rewrite.layouts.shared import biased, linear, sizes

WHOLE = tuple(f"{at}{name}" for at in ("model.", "") for name in ("encoder.conv1.weight", "decoder.layer_norm.weight"))
"""Names in the files of classes that have more than the encoder."""

ENCODER_ALONE = "Save the encoder alone: model.get_encoder().save_pretrained(FOLDER)"
"""What to do with a whole model."""


def whisper(options: Options) -> Stack:
    """Whisper's encoder: its hidden states."""
    if more := next((name for name in WHOLE if name in options.names), None):
        raise ValueError(
            f"a Whisper with more than its encoder ({more!r}) is not covered: the cross-attention of a decoder, or a "
            f"head of sounds, reads the encoder. {ENCODER_ALONE}"
        )
    d, n, layers = sizes(options)
    activation = options.activation()

    def norm(name: str) -> Norm:
        return Norm("layer", f"{name}.weight", f"{name}.bias", eps=1e-5)

    def convolution(name: str, stride: int) -> Convolution:
        return Convolution(Linear(f"{name}.weight", f"{name}.bias", input_axes=2), stride, "gelu")

    blocks = []
    for i in range(layers):
        at = f"layers.{i}."
        q, v, out = (biased(f"{at}self_attn.{part}_proj") for part in ("q", "v", "out"))
        key = linear(f"{at}self_attn.k_proj")
        attention = Attention(q, key, v, out, n, n, d // n, d // n, causal=False)
        network = FeedForward(biased(f"{at}fc1"), biased(f"{at}fc2"), None, activation)
        norms = (norm(f"{at}self_attn_layer_norm"), norm(f"{at}final_layer_norm"))
        blocks.append(Block(attention, network, "pre", *norms))
    front = FrontEnd((convolution("conv1", 1), convolution("conv2", 2)))
    positions = Table("embed_positions.weight", "position")
    return Stack((positions,), tuple(blocks), Head(None, untied=""), norm("layer_norm"), front=front)

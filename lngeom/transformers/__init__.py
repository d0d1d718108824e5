"""Transformers: descriptions, forward pass, symmetries, null spaces, and exact rewrites (`rewrite`).

It may import `_core`.
"""

from lngeom.transformers.description import (
    Attention as Attention,
    Block as Block,
    Buckets as Buckets,
    Convolution as Convolution,
    FeedForward as FeedForward,
    FrontEnd as FrontEnd,
    Groups as Groups,
    Head as Head,
    Latent as Latent,
    Linear as Linear,
    Mixture as Mixture,
    Norm as Norm,
    Rotary as Rotary,
    Rows as Rows,
    Stack as Stack,
    Table as Table,
    Transform as Transform,
)
from lngeom.transformers.forward import hidden as hidden, logits as logits

__all__ = [
    "Attention",
    "Block",
    "Buckets",
    "Convolution",
    "FeedForward",
    "FrontEnd",
    "Groups",
    "Head",
    "Latent",
    "Linear",
    "Mixture",
    "Norm",
    "Rotary",
    "Rows",
    "Stack",
    "Table",
    "Transform",
    "hidden",
    "logits",
]

"""Transformer stacks: descriptions, and their reference forward pass."""

from lngeom.stacks.description import (
    Attention as Attention,
    Block as Block,
    FeedForward as FeedForward,
    Head as Head,
    Linear as Linear,
    Mixture as Mixture,
    Norm as Norm,
    Rotary as Rotary,
    Rows as Rows,
    Stack as Stack,
    Table as Table,
    Transform as Transform,
)
from lngeom.stacks.forward import hidden as hidden, logits as logits

__all__ = [
    "Attention",
    "Block",
    "FeedForward",
    "Head",
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

"""Normalization layers that keep Table 1 in floating point, and the paper's recurrent cells.

It may import `_core`.
"""

from lngeom.nn.functional import batch_norm, group_norm, layer_norm, rms_norm, weight_norm
from lngeom.nn.fused import fused_layer_norm
from lngeom.nn.gated import GRU, LSTM, LayerNormGRU, LayerNormLSTM
from lngeom.nn.modules import BatchNorm, GroupNorm, LayerNorm, RMSNorm, WeightNorm, convert_layer_norm
from lngeom.nn.recurrent import RNN, LayerNormRNN, unroll

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BatchNorm",
    "GroupNorm",
    "LayerNorm",
    "LayerNormGRU",
    "LayerNormLSTM",
    "LayerNormRNN",
    "RMSNorm",
    "WeightNorm",
    "batch_norm",
    "convert_layer_norm",
    "fused_layer_norm",
    "group_norm",
    "layer_norm",
    "rms_norm",
    "unroll",
    "weight_norm",
]

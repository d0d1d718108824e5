"""Normalization layers that keep Table 1 in floating point, and the paper's recurrent cells."""

from lngeom.nn.dynamics import HiddenDynamics, gradient_growth, hidden_dynamics, unroll_batch_norm
from lngeom.nn.functional import RunningStatistics, batch_norm, group_norm, layer_norm, rms_norm, weight_norm
from lngeom.nn.fused import fused_layer_norm
from lngeom.nn.gated import GRU, LSTM, GRUInputs, LayerNormGRU, LayerNormLSTM, LSTMState
from lngeom.nn.modules import BatchNorm, GroupNorm, LayerNorm, RMSNorm, WeightNorm, convert_layer_norm
from lngeom.nn.recurrent import RNN, AbstractCell, LayerNormRNN, unroll

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "AbstractCell",
    "BatchNorm",
    "GRUInputs",
    "GroupNorm",
    "HiddenDynamics",
    "LSTMState",
    "LayerNorm",
    "LayerNormGRU",
    "LayerNormLSTM",
    "LayerNormRNN",
    "RMSNorm",
    "RunningStatistics",
    "WeightNorm",
    "batch_norm",
    "convert_layer_norm",
    "fused_layer_norm",
    "gradient_growth",
    "group_norm",
    "hidden_dynamics",
    "layer_norm",
    "rms_norm",
    "unroll",
    "unroll_batch_norm",
    "weight_norm",
]

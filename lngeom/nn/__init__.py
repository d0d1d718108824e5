"""Normalization layers that keep Table 1 in floating point, and the paper's recurrent cells."""

from lngeom.nn.functional import (
    RunningStatistics as RunningStatistics,
    batch_norm as batch_norm,
    group_norm as group_norm,
    layer_norm as layer_norm,
    rms_norm as rms_norm,
    weight_norm as weight_norm,
)
from lngeom.nn.gated import (
    GRU as GRU,
    LSTM as LSTM,
    GRUInputs as GRUInputs,
    LayerNormGRU as LayerNormGRU,
    LayerNormLSTM as LayerNormLSTM,
    LSTMState as LSTMState,
)
from lngeom.nn.modules import (
    BatchNorm as BatchNorm,
    GroupNorm as GroupNorm,
    LayerNorm as LayerNorm,
    RMSNorm as RMSNorm,
    WeightNorm as WeightNorm,
    convert_layer_norm as convert_layer_norm,
)
from lngeom.nn.recurrent import (
    RNN as RNN,
    AbstractCell as AbstractCell,
    LayerNormRNN as LayerNormRNN,
    unroll as unroll,
)

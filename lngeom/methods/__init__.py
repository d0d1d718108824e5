r"""Normalization methods as maps $(W, X) \mapsto n$ from weights and inputs to normalized summed inputs.

The methods of Table 1 share Eq. 5: with summed inputs $a = Wx$,

$$n_i = \frac{a_i - \mu_i}{\sigma_i}, \qquad z_i = g_i n_i + b_i,$$

and differ only in the statistics $\mu$ and $\sigma$. They subclass `AbstractStatisticsNormalizer` and define these
statistics. A method of another form subclasses `AbstractNormalizer` directly.

It may import `_core`.
"""

from lngeom.methods.base import AbstractNormalizer, AbstractStatisticsNormalizer, Statistics
from lngeom.methods.inputs import (
    PreBatchNorm,
    PreLayerNorm,
    PreRMSNorm,
    QueryKeyLayerNorm,
    QueryKeyNorm,
    ResidualLayerNorm,
)
from lngeom.methods.named import METHODS
from lngeom.methods.spatial import InstanceNorm, PooledLayerNorm, SpatialGroupNorm
from lngeom.methods.statistics import (
    BatchNorm,
    BatchNormEvaluation,
    GroupNorm,
    Identity,
    LayerNorm,
    RMSNorm,
    ScaleNorm,
    WeightNorm,
)
from lngeom.methods.stored import BiasedLayerNorm, DynamicTanh, PowerNormEvaluation
from lngeom.methods.weights import (
    CosineNorm,
    PearsonCorrelation,
    SpectralNorm,
    WeightStandardization,
    WeightStandardizedGroupNorm,
)

__all__ = [
    "METHODS",
    "AbstractNormalizer",
    "AbstractStatisticsNormalizer",
    "BatchNorm",
    "BatchNormEvaluation",
    "BiasedLayerNorm",
    "CosineNorm",
    "DynamicTanh",
    "GroupNorm",
    "Identity",
    "InstanceNorm",
    "LayerNorm",
    "PearsonCorrelation",
    "PooledLayerNorm",
    "PowerNormEvaluation",
    "PreBatchNorm",
    "PreLayerNorm",
    "PreRMSNorm",
    "QueryKeyLayerNorm",
    "QueryKeyNorm",
    "RMSNorm",
    "ResidualLayerNorm",
    "ScaleNorm",
    "SpatialGroupNorm",
    "SpectralNorm",
    "Statistics",
    "WeightNorm",
    "WeightStandardization",
    "WeightStandardizedGroupNorm",
]

r"""Normalization methods as maps $(W, X) \mapsto n$ from weights and inputs to normalized summed inputs.

The methods of Table 1 share Eq. 5: with summed inputs $a = Wx$,

$$n_i = \frac{a_i - \mu_i}{\sigma_i}, \qquad z_i = g_i n_i + b_i,$$

and differ only in the statistics $\mu$ and $\sigma$. They subclass `AbstractStatisticsNormalizer` and define these
statistics. A method of another form subclasses `AbstractNormalizer` directly.

It may import `_core`.
"""

from lngeom.methods.base import AbstractNormalizer, AbstractStatisticsNormalizer, Statistics
from lngeom.methods.batch import BatchNorm, BatchNormEvaluation, PowerNormEvaluation
from lngeom.methods.composed import ResidualLayerNorm, WeightStandardizedGroupNorm
from lngeom.methods.inputs import PreBatchNorm, PreLayerNorm, PreRMSNorm
from lngeom.methods.layer import BiasedLayerNorm, GroupNorm, LayerNorm, RMSNorm, ScaleNorm
from lngeom.methods.page import METHODS
from lngeom.methods.pointwise import DynamicTanh, Identity
from lngeom.methods.query_key import QueryKeyLayerNorm, QueryKeyNorm
from lngeom.methods.spatial import InstanceNorm, PooledLayerNorm, SpatialGroupNorm
from lngeom.methods.weight import (
    CosineNorm,
    PearsonCorrelation,
    SpectralNorm,
    WeightNorm,
    WeightStandardization,
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

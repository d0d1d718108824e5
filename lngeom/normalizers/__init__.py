r"""Normalization methods as maps $(W, X) \mapsto n$ from weights and inputs to normalized summed inputs.

The methods of Table 1 share Eq. 5: with summed inputs $a = Wx$,

$$n_i = \frac{a_i - \mu_i}{\sigma_i}, \qquad z_i = g_i n_i + b_i,$$

and differ only in the statistics $\mu$ and $\sigma$. They subclass `AbstractStatisticsNormalizer` and define these
statistics. A method of another form subclasses `AbstractNormalizer` directly.
"""

from lngeom.normalizers._base import (
    AbstractNormalizer as AbstractNormalizer,
    AbstractStatisticsNormalizer as AbstractStatisticsNormalizer,
    Statistics as Statistics,
    summed_inputs as summed_inputs,
)
from lngeom.normalizers._inputs import (
    AbstractQueryKeyNorm as AbstractQueryKeyNorm,
    PreBatchNorm as PreBatchNorm,
    PreLayerNorm as PreLayerNorm,
    PreRMSNorm as PreRMSNorm,
    QueryKeyLayerNorm as QueryKeyLayerNorm,
    QueryKeyNorm as QueryKeyNorm,
    ResidualLayerNorm as ResidualLayerNorm,
)
from lngeom.normalizers._methods import METHODS as METHODS, Method as Method
from lngeom.normalizers._spatial import (
    InstanceNorm as InstanceNorm,
    PooledLayerNorm as PooledLayerNorm,
    SpatialGroupNorm as SpatialGroupNorm,
)
from lngeom.normalizers._statistics import (
    AbstractGroupedNormalizer as AbstractGroupedNormalizer,
    BatchNorm as BatchNorm,
    BatchNormEvaluation as BatchNormEvaluation,
    GroupNorm as GroupNorm,
    Identity as Identity,
    LayerNorm as LayerNorm,
    RMSNorm as RMSNorm,
    ScaleNorm as ScaleNorm,
    WeightNorm as WeightNorm,
)
from lngeom.normalizers._stored import (
    BiasedLayerNorm as BiasedLayerNorm,
    DynamicTanh as DynamicTanh,
    PowerNormEvaluation as PowerNormEvaluation,
)
from lngeom.normalizers._weights import (
    CosineNorm as CosineNorm,
    PearsonCorrelation as PearsonCorrelation,
    SpectralNorm as SpectralNorm,
    WeightStandardization as WeightStandardization,
    WeightStandardizedGroupNorm as WeightStandardizedGroupNorm,
)

r"""Normalization methods as maps $(W, X) \mapsto n$ from weights and inputs to normalized summed inputs.

The methods of Table 1 share Eq. 5: with summed inputs $a = Wx$,

$$n_i = \frac{a_i - \mu_i}{\sigma_i}, \qquad z_i = g_i n_i + b_i,$$

and differ only in the statistics $\mu$ and $\sigma$. They subclass `AbstractStatisticsNormalizer` and define these
statistics. A method of another form subclasses `AbstractNormalizer` directly.
`lg.normalizers["qk_l2"]` is the class of a row of the extended table; each module here is the page of a few.

It may import `_core`.
"""

# The order of these pages is that of the table's rows.
# isort: off
from lngeom.methods import batch as batch
from lngeom.methods import weight as weight
from lngeom.methods import layer as layer
from lngeom.methods import spatial as spatial
from lngeom.methods import composed as composed
from lngeom.methods import query_key as query_key
from lngeom.methods import pointwise as pointwise
from lngeom.methods import inputs as inputs
# isort: on

from lngeom._core.named import subscripted
from lngeom.methods.base import AbstractNormalizer, AbstractStatisticsNormalizer, Statistics
from lngeom.methods.batch import BatchNorm, BatchNormEvaluation
from lngeom.methods.layer import GroupNorm, LayerNorm, RMSNorm
from lngeom.methods.page import KINDS, METHODS
from lngeom.methods.pointwise import Identity
from lngeom.methods.weight import WeightNorm

__all__ = [
    "METHODS",
    "AbstractNormalizer",
    "AbstractStatisticsNormalizer",
    "BatchNorm",
    "BatchNormEvaluation",
    "GroupNorm",
    "Identity",
    "LayerNorm",
    "RMSNorm",
    "Statistics",
    "WeightNorm",
]

subscripted(__name__, KINDS, "method", {m.name: (m.title, m.kind.__name__) for m in METHODS.values()})

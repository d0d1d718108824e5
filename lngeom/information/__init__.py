"""Fisher information of normalized models, and of any JAX function: matrices, products, null spaces.

It may import `_core`, `families`, `methods`, `transformers`.
"""

from lngeom._core.numerics import ConvergenceError
from lngeom.information._coupled import BatchCoupled
from lngeom.information._fisher import fisher
from lngeom.information._operator import FisherOperator
from lngeom.information._summed import average, weighted_sum
from lngeom.information._vocabulary import VocabularyHead

__all__ = [
    "BatchCoupled",
    "ConvergenceError",
    "FisherOperator",
    "VocabularyHead",
    "average",
    "fisher",
    "weighted_sum",
]

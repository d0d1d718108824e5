"""Fisher information of normalized models, and of any JAX function: matrices, products, null spaces."""

from lngeom._vocabulary import VocabularyHead
from lngeom.information._coupled import BatchCoupled
from lngeom.information._fisher import fisher
from lngeom.information._operator import FisherOperator
from lngeom.numerics import ConvergenceError

__all__ = ["BatchCoupled", "ConvergenceError", "FisherOperator", "VocabularyHead", "fisher"]

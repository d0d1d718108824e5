"""Fisher information of normalized models, and of any JAX function: matrices, products, null spaces."""

from lngeom._conventions import CONVENTIONS as CONVENTIONS, Convention as Convention, scaling as scaling
from lngeom.information._coupled import BatchCoupled as BatchCoupled
from lngeom.information._fisher import fisher as fisher
from lngeom.information._operator import FisherOperator as FisherOperator
from lngeom.information.reference import from_paper_order as from_paper_order, to_paper_order as to_paper_order
from lngeom.nullspace import (
    Condition as Condition,
    PredictedNullspace as PredictedNullspace,
    predicted_nullspace as predicted_nullspace,
)
from lngeom.numerics import ConvergenceError as ConvergenceError

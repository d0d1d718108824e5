"""Fisher information of normalized models: matrices, products, null spaces."""

from lngeom.information._directions import Condition as Condition, PredictedNullspace as PredictedNullspace
from lngeom.information._nullspace import predicted_nullspace as predicted_nullspace
from lngeom.information._order import from_paper_order as from_paper_order, to_paper_order as to_paper_order

"""Fisher information of normalized models: matrices, products, null spaces."""

from lngeom.information._directions import Condition as Condition
from lngeom.information._directions import PredictedNullspace as PredictedNullspace
from lngeom.information._nullspace import predicted_nullspace as predicted_nullspace
from lngeom.information._order import from_paper_order as from_paper_order
from lngeom.information._order import to_paper_order as to_paper_order

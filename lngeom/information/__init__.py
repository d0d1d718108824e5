"""Fisher information of normalized models, and of any JAX function: matrices, products, null spaces."""

from lngeom._numerics import ConvergenceError as ConvergenceError
from lngeom.information import _registrations as _registrations
from lngeom.information._conversions import CONVENTIONS as CONVENTIONS, Convention as Convention, scaling as scaling
from lngeom.information._directions import Condition as Condition, PredictedNullspace as PredictedNullspace
from lngeom.information._fisher import fisher as fisher
from lngeom.information._geometry import christoffel as christoffel, geodesic as geodesic
from lngeom.information._nullspace import predicted_nullspace as predicted_nullspace
from lngeom.information._operator import FisherOperator as FisherOperator
from lngeom.information._order import from_paper_order as from_paper_order, to_paper_order as to_paper_order
from lngeom.information._streaming import BatchCoupled as BatchCoupled
from lngeom.information._summary import Summary as Summary, summarize as summarize

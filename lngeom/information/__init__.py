"""Fisher information of normalized models, and of any JAX function: matrices, products, null spaces."""

from lngeom.information import _registrations as _registrations
from lngeom.information._conversions import CONVENTIONS as CONVENTIONS
from lngeom.information._conversions import Convention as Convention
from lngeom.information._conversions import scaling as scaling
from lngeom.information._fisher import fisher as fisher
from lngeom.information._geometry import christoffel as christoffel
from lngeom.information._geometry import geodesic as geodesic
from lngeom.information._neurons import block_diagonal as block_diagonal
from lngeom.information._neurons import neuron_blocks as neuron_blocks
from lngeom.information._nullspace import (
    Condition as Condition,
)
from lngeom.information._nullspace import (
    PredictedNullspace as PredictedNullspace,
)
from lngeom.information._nullspace import (
    predicted_nullspace as predicted_nullspace,
)
from lngeom.information._operator import FisherOperator as FisherOperator
from lngeom.information._order import from_paper_order as from_paper_order
from lngeom.information._order import to_paper_order as to_paper_order

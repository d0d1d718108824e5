"""Discovery of the affine symmetries of any layer, in its weights and in its inputs."""

from lngeom.discovery._algebra import (
    AlgebraDescription as AlgebraDescription,
    Generator as Generator,
    SymmetryAlgebra as SymmetryAlgebra,
)
from lngeom.discovery._discover import LIMIT as LIMIT, discover_symmetries as discover_symmetries
from lngeom.discovery._discrete import (
    DiscreteSymmetries as DiscreteSymmetries,
    discrete_symmetries as discrete_symmetries,
)

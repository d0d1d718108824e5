"""Learning dynamics of normalized networks: effective rates, equivalences and equilibria."""

from lngeom.training.equilibrium import predict_equilibrium
from lngeom.training.equivalence import equivalent_schedule
from lngeom.training.groups import scale_invariant_groups
from lngeom.training.natural import natural_gradient
from lngeom.training.tracker import read_geometry, track_geometry

__all__ = [
    "equivalent_schedule",
    "natural_gradient",
    "predict_equilibrium",
    "read_geometry",
    "scale_invariant_groups",
    "track_geometry",
]

"""Learning dynamics of normalized networks: effective rates, equivalences and equilibria."""

from lngeom.training._equilibrium import Equilibrium as Equilibrium, predict_equilibrium as predict_equilibrium
from lngeom.training._equivalence import (
    EquivalentSchedule as EquivalentSchedule,
    equivalent_schedule as equivalent_schedule,
)
from lngeom.training._groups import scale_invariant_groups as scale_invariant_groups
from lngeom.training._laws import LAWS as LAWS, Law as Law
from lngeom.training._tracker import (
    Geometry as Geometry,
    GeometryState as GeometryState,
    read_geometry as read_geometry,
    track_geometry as track_geometry,
)

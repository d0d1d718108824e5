"""Learning dynamics of normalized networks: effective rates, equivalences and equilibria.

It may import `_core`, `families`, `information`.
"""

from lngeom.information.groups import scale_invariant_groups
from lngeom.training.advisor import plan
from lngeom.training.decay import decay_mask
from lngeom.training.equilibrium import predict_equilibrium
from lngeom.training.equivalence import equivalent_decay, equivalent_schedule, fixed_norm_schedule
from lngeom.training.natural import natural_gradient
from lngeom.training.tracker import read_geometry, track_geometry
from lngeom.training.writers import write_record

__all__ = [
    "decay_mask",
    "equivalent_decay",
    "equivalent_schedule",
    "fixed_norm_schedule",
    "natural_gradient",
    "plan",
    "predict_equilibrium",
    "read_geometry",
    "scale_invariant_groups",
    "track_geometry",
    "write_record",
]

"""Learning dynamics of normalized networks: effective rates, equivalences, equilibria, and a training loop."""

from lngeom.training._checkpoint import (
    load_checkpoint as load_checkpoint,
    read_header as read_header,
    save_checkpoint as save_checkpoint,
)
from lngeom.training._comparison import (
    Comparison as Comparison,
    Finding as Finding,
    Statement as Statement,
    compare_best as compare_best,
    compare_speed as compare_speed,
    sign_test as sign_test,
    steps_to as steps_to,
)
from lngeom.training._equilibrium import Equilibrium as Equilibrium, predict_equilibrium as predict_equilibrium
from lngeom.training._equivalence import (
    EquivalentSchedule as EquivalentSchedule,
    equivalent_schedule as equivalent_schedule,
)
from lngeom.training._groups import scale_invariant_groups as scale_invariant_groups
from lngeom.training._laws import LAWS as LAWS, Law as Law
from lngeom.training._loop import (
    Progress as Progress,
    Run as Run,
    Stream as Stream,
    Task as Task,
    TrainState as TrainState,
    gradient_task as gradient_task,
    train as train,
)
from lngeom.training._tracker import (
    Geometry as Geometry,
    GeometryState as GeometryState,
    read_geometry as read_geometry,
    track_geometry as track_geometry,
)

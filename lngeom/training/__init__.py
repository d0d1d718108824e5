"""Learning dynamics of normalized networks, and the loop that every experiment trains with."""

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
from lngeom.training._loop import (
    Progress as Progress,
    Run as Run,
    Stream as Stream,
    Task as Task,
    TrainState as TrainState,
    gradient_task as gradient_task,
    train as train,
)

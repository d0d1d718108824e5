"""The columns of the tables, each stated once: the indices on which s and t of the map s·y + t depend."""

from dataclasses import replace

from lngeom._core.named import spelled
from lngeom.methods.transformations.actions import Column

POSITIVE = r"\delta > 0"

WEIGHT_MATRIX_RESCALING = Column(
    "weight_matrix_rescaling",
    "Weight matrix re-scaling",
    r"W \mapsto \delta W",
    "weights",
    scale="",
    condition=POSITIVE,
    heading="δW",
)
WEIGHT_MATRIX_RECENTERING = Column(
    "weight_matrix_recentering",
    "Weight matrix re-centering",
    r"W \mapsto W + \mathbf{1}\gamma^\top",
    "weights",
    shift="d",
    heading="W+1γᵀ",
)
WEIGHT_VECTOR_RESCALING = Column(
    "weight_vector_rescaling",
    "Weight vector re-scaling",
    r"w_i \mapsto \delta w_i",
    "weights",
    scale="i",
    condition=POSITIVE,
    heading="δᵢwᵢ",
)
DATASET_RESCALING = Column(
    "dataset_rescaling",
    "Dataset re-scaling",
    r"X \mapsto \delta X",
    "inputs",
    scale="",
    condition=POSITIVE,
    heading="δX",
)
DATASET_RECENTERING = Column(
    "dataset_recentering",
    "Dataset re-centering",
    r"x_n \mapsto x_n + \gamma\ \forall n",
    "inputs",
    shift="d",
    heading="X+γ",
)
SINGLE_CASE_RESCALING = Column(
    "single_case_rescaling",
    "Single training case re-scaling",
    r"x_n \mapsto \delta x_n",
    "inputs",
    scale="n",
    condition=POSITIVE,
    heading="δxₙ",
)
WEIGHT_SIGN_FLIP = Column("weight_sign_flip", "Weight sign flip", r"W \mapsto -W", "weights", scale=-1, heading="−W")
SINGLE_CASE_RECENTERING = Column(
    "single_case_recentering",
    "Single training case re-centering",
    r"x_n \mapsto x_n + \gamma",
    "inputs",
    shift="nd",
    heading="xₙ+γ",
)
SINGLE_CASE_CONSTANT_SHIFT = Column(
    "single_case_constant_shift",
    "Single training case constant shift",
    r"x_n \mapsto x_n + c\mathbf{1}",
    "inputs",
    shift="n",
    heading="xₙ+c1",
)
WEIGHT_VECTOR_CONSTANT_SHIFT = Column(
    "weight_vector_constant_shift",
    "Weight vector constant shift",
    r"w_i \mapsto w_i + c_i\mathbf{1}",
    "weights",
    shift="i",
    heading="wᵢ+cᵢ1",
)
INPUT_RESCALING = Column(
    "input_rescaling",
    "Input re-scaling, entry by entry",
    r"X \mapsto X\,\mathrm{diag}(s)",
    "inputs",
    scale="d",
    condition="s > 0",
    heading="X·diag s",
)
WEIGHT_GROUP_RESCALING = Column(
    "weight_group_rescaling",
    "Weight group re-scaling",
    r"w_i \mapsto \delta_{G(i)} w_i",
    "weights",
    scale="g",
    condition=POSITIVE,
    heading="group scale",
    groups=2,
)
WEIGHT_GROUP_RECENTERING = Column(
    "weight_group_recentering",
    "Weight group re-centering",
    r"w_i \mapsto w_i + \gamma_{G(i)}",
    "weights",
    shift="gd",
    heading="group shift",
    groups=2,
)
BATCH_INDEPENDENCE = Column(
    "batch_independence",
    "Change of the other cases",
    r"x_m \mapsto x_m'\ \forall m \neq n",
    "inputs",
    shift="ntd",
    heading="other cases",
    samples=2,
    compares_first=True,
)

TABLE1 = (
    WEIGHT_MATRIX_RESCALING,
    WEIGHT_MATRIX_RECENTERING,
    WEIGHT_VECTOR_RESCALING,
    DATASET_RESCALING,
    DATASET_RECENTERING,
    SINGLE_CASE_RESCALING,
)
"""The six columns of Table 1, in its order."""

EXTENDED = (
    *TABLE1,
    WEIGHT_SIGN_FLIP,
    SINGLE_CASE_RECENTERING,
    SINGLE_CASE_CONSTANT_SHIFT,
    WEIGHT_VECTOR_CONSTANT_SHIFT,
    INPUT_RESCALING,
    WEIGHT_GROUP_RESCALING,
    WEIGHT_GROUP_RECENTERING,
    BATCH_INDEPENDENCE,
)
"""The columns of the extended table, in its order; the group columns are those of two groups."""


def named(name: str) -> Column:
    """The column of the extended table by its name, title or heading: "weight_sign_flip", "Weight sign flip", "−W".

    Raises:
        UnknownName: a `KeyError` and `ValueError`, if no column has this name; the message shows names near it.
    """
    known = {column.name: column for column in EXTENDED}
    return known[spelled(name, {c.name: (c.title, c.heading) for c in EXTENDED}, "transformation")]


def weight_group_rescaling(groups: int = 2) -> Column:
    """The column that scales the weights of every group of units by a factor of its own."""
    return replace(WEIGHT_GROUP_RESCALING, groups=groups)


def weight_group_recentering(groups: int = 2) -> Column:
    """The column that shifts the weights of every group of units by a vector of its own."""
    return replace(WEIGHT_GROUP_RECENTERING, groups=groups)


def extended(groups: int = 2) -> tuple[Column, ...]:
    """The columns of the extended table for a layer whose units are in so many groups."""
    return tuple(replace(column, groups=groups) if column.grouped else column for column in EXTENDED)

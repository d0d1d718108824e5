"""The columns of Table 1 and of the extended table."""

import jax
import jax.numpy as jnp

from lngeom.transformations._actions import AffineAction, Column, Transformation, positive_scale


def _weight_matrix_rescaling(key, params, inputs):
    return Transformation(weights=AffineAction(positive_scale(key, (), params.weights.dtype)))


def _weight_matrix_recentering(key, params, inputs):
    shift = jax.random.normal(key, (1, params.inputs), params.weights.dtype)
    return Transformation(weights=AffineAction(shift=shift * jnp.std(params.weights) * 3))


def _weight_vector_rescaling(key, params, inputs):
    scale = jnp.ones((params.units, 1), params.weights.dtype)
    unit = jax.random.randint(key, (), 0, params.units)
    return Transformation(weights=AffineAction(scale.at[unit].set(positive_scale(key, (), params.weights.dtype))))


def _dataset_rescaling(key, params, inputs):
    return Transformation(inputs=AffineAction(positive_scale(key, (), inputs.dtype)))


def _dataset_recentering(key, params, inputs):
    shift = jax.random.normal(key, (1,) * (inputs.ndim - 1) + inputs.shape[-1:], inputs.dtype)
    return Transformation(inputs=AffineAction(shift=shift * jnp.std(inputs) * 3))


def _single_case_rescaling(key, params, inputs):
    shape = (inputs.shape[0],) + (1,) * (inputs.ndim - 1)
    case = jax.random.randint(key, (), 0, inputs.shape[0])
    scale = jnp.ones(shape, inputs.dtype).at[case].set(positive_scale(key, (), inputs.dtype))
    return Transformation(inputs=AffineAction(scale))


def _weight_sign_flip(key, params, inputs):
    return Transformation(weights=AffineAction(-1.0))


def _one_case(key, inputs, value):
    """A value, [D] or a number, for one case and zero for the others, shaped to broadcast against inputs."""
    shape = (inputs.shape[0],) + (1,) * (inputs.ndim - 2) + jnp.shape(value)[-1:]
    shape = shape if jnp.ndim(value) else (*shape, 1)
    return jnp.zeros(shape, inputs.dtype).at[jax.random.randint(key, (), 0, inputs.shape[0])].set(value)


def _single_case_recentering(key, params, inputs):
    shift = jax.random.normal(jax.random.fold_in(key, 1), inputs.shape[-1:], inputs.dtype)
    return Transformation(inputs=AffineAction(shift=_one_case(key, inputs, shift * jnp.std(inputs) * 3)))


def _single_case_constant_shift(key, params, inputs):
    shift = positive_scale(jax.random.fold_in(key, 1), (), inputs.dtype) * jnp.std(inputs)
    return Transformation(inputs=AffineAction(shift=_one_case(key, inputs, shift)))


def _weight_vector_constant_shift(key, params, inputs):
    shift = jax.random.normal(key, (params.units, 1), params.weights.dtype)
    return Transformation(weights=AffineAction(shift=shift * jnp.std(params.weights) * 3))


def _input_rescaling(key, params, inputs):
    return Transformation(inputs=AffineAction(positive_scale(key, _per_input(inputs), inputs.dtype)))


def _per_input(inputs):
    return (1,) * (inputs.ndim - 1) + inputs.shape[-1:]


def _per_unit(per_group, units, groups):
    """Rows [groups K], each repeated for the units of its group: [H K]."""
    if units % groups:
        raise ValueError(f"the number of units must be a multiple of groups = {groups}; got H = {units}")
    return jnp.repeat(per_group, units // groups, 0)


def weight_group_rescaling(groups: int = 2) -> "Column":
    """The column that scales the weights of every group of units by a factor of its own."""

    def draw(key, params, inputs):
        scale = positive_scale(key, (groups, 1), params.weights.dtype)
        return Transformation(weights=AffineAction(_per_unit(scale, params.units, groups)))

    return Column(
        "weight_group_rescaling",
        "Weight group re-scaling",
        r"w_i \mapsto \delta_{G(i)} w_i,\ \delta > 0",
        draw,
        heading="group scale",
        groups=groups,
        positive=True,
    )


def weight_group_recentering(groups: int = 2) -> "Column":
    """The column that shifts the weights of every group of units by a vector of its own."""

    def draw(key, params, inputs):
        shift = jax.random.normal(key, (groups, params.inputs), params.weights.dtype) * jnp.std(params.weights) * 3
        return Transformation(weights=AffineAction(shift=_per_unit(shift, params.units, groups)))

    return Column(
        "weight_group_recentering",
        "Weight group re-centering",
        r"w_i \mapsto w_i + \gamma_{G(i)}",
        draw,
        heading="group shift",
        groups=groups,
    )


def _batch_independence(key, params, inputs):
    case = (inputs.shape[0],) + (1,) * (inputs.ndim - 1)
    scale_key, shift_key = jax.random.split(key)
    scale = positive_scale(scale_key, case, inputs.dtype).at[0].set(1.0)
    shift = jax.random.normal(shift_key, (*case[:-1], inputs.shape[-1]), inputs.dtype) * jnp.std(inputs) * 3
    return Transformation(inputs=AffineAction(scale, shift.at[0].set(0.0)))


WEIGHT_MATRIX_RESCALING = Column(
    "weight_matrix_rescaling",
    "Weight matrix re-scaling",
    r"W \mapsto \delta W,\ \delta > 0",
    _weight_matrix_rescaling,
    heading="δW",
    positive=True,
)
WEIGHT_MATRIX_RECENTERING = Column(
    "weight_matrix_recentering",
    "Weight matrix re-centering",
    r"W \mapsto W + \mathbf{1}\gamma^\top",
    _weight_matrix_recentering,
    heading="W+1γᵀ",
)
WEIGHT_VECTOR_RESCALING = Column(
    "weight_vector_rescaling",
    "Weight vector re-scaling",
    r"w_i \mapsto \delta w_i,\ \delta > 0",
    _weight_vector_rescaling,
    heading="δᵢwᵢ",
    positive=True,
)
DATASET_RESCALING = Column(
    "dataset_rescaling",
    "Dataset re-scaling",
    r"X \mapsto \delta X,\ \delta > 0",
    _dataset_rescaling,
    acts_on="inputs",
    heading="δX",
    positive=True,
)
DATASET_RECENTERING = Column(
    "dataset_recentering",
    "Dataset re-centering",
    r"x_n \mapsto x_n + \gamma\ \forall n",
    _dataset_recentering,
    acts_on="inputs",
    heading="X+γ",
)
SINGLE_CASE_RESCALING = Column(
    "single_case_rescaling",
    "Single training case re-scaling",
    r"x_n \mapsto \delta x_n,\ \delta > 0",
    _single_case_rescaling,
    acts_on="inputs",
    heading="δxₙ",
    positive=True,
)
WEIGHT_SIGN_FLIP = Column("weight_sign_flip", "Weight sign flip", r"W \mapsto -W", _weight_sign_flip, heading="−W")

TABLE1 = (
    WEIGHT_MATRIX_RESCALING,
    WEIGHT_MATRIX_RECENTERING,
    WEIGHT_VECTOR_RESCALING,
    DATASET_RESCALING,
    DATASET_RECENTERING,
    SINGLE_CASE_RESCALING,
)
"""The six columns of Table 1, in its order."""

SINGLE_CASE_RECENTERING = Column(
    "single_case_recentering",
    "Single training case re-centering",
    r"x_n \mapsto x_n + \gamma",
    _single_case_recentering,
    acts_on="inputs",
    heading="xₙ+γ",
)
SINGLE_CASE_CONSTANT_SHIFT = Column(
    "single_case_constant_shift",
    "Single training case constant shift",
    r"x_n \mapsto x_n + c\mathbf{1}",
    _single_case_constant_shift,
    acts_on="inputs",
    heading="xₙ+c1",
)
WEIGHT_VECTOR_CONSTANT_SHIFT = Column(
    "weight_vector_constant_shift",
    "Weight vector constant shift",
    r"w_i \mapsto w_i + c_i\mathbf{1}",
    _weight_vector_constant_shift,
    heading="wᵢ+cᵢ1",
)
INPUT_RESCALING = Column(
    "input_rescaling",
    "Input re-scaling, entry by entry",
    r"X \mapsto X\,\mathrm{diag}(s),\ s > 0",
    _input_rescaling,
    acts_on="inputs",
    heading="X·diag s",
    positive=True,
)
WEIGHT_GROUP_RESCALING = weight_group_rescaling()
WEIGHT_GROUP_RECENTERING = weight_group_recentering()
BATCH_INDEPENDENCE = Column(
    "batch_independence",
    "Change of the other cases",
    r"x_m \mapsto x_m'\ \forall m \neq n",
    _batch_independence,
    acts_on="inputs",
    heading="other cases",
    samples=2,
    compares_first=True,
)

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


def extended(groups: int = 2) -> tuple[Column, ...]:
    """The columns of the extended table for a layer whose units are in so many groups."""
    for_groups = {c.name: c for c in (weight_group_rescaling(groups), weight_group_recentering(groups))}
    return tuple(for_groups.get(column.name, column) for column in EXTENDED)

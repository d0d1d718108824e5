r"""Transformations of weights and data, as group actions on (W, X, g, b): the columns of the invariance tables.

Every column is a `Column` with a name and a formula, and draws a random member of its group. A drawn
`Transformation` acts elementwise and affinely, composes with ``@`` and has an inverse. A `MatrixGroup` mixes units
(equivariance: $f(QW, X) = Q f(W, X)$) or inputs (change of basis: $f(WA^{-1}, Ax) = f(W, x)$).
"""

from lngeom.transformations._actions import (
    AffineAction as AffineAction,
    Column as Column,
    Transformation as Transformation,
)
from lngeom.transformations._columns import (
    BATCH_INDEPENDENCE as BATCH_INDEPENDENCE,
    DATASET_RECENTERING as DATASET_RECENTERING,
    DATASET_RESCALING as DATASET_RESCALING,
    EXTENDED as EXTENDED,
    INPUT_RESCALING as INPUT_RESCALING,
    SINGLE_CASE_CONSTANT_SHIFT as SINGLE_CASE_CONSTANT_SHIFT,
    SINGLE_CASE_RECENTERING as SINGLE_CASE_RECENTERING,
    SINGLE_CASE_RESCALING as SINGLE_CASE_RESCALING,
    TABLE1 as TABLE1,
    WEIGHT_GROUP_RECENTERING as WEIGHT_GROUP_RECENTERING,
    WEIGHT_GROUP_RESCALING as WEIGHT_GROUP_RESCALING,
    WEIGHT_MATRIX_RECENTERING as WEIGHT_MATRIX_RECENTERING,
    WEIGHT_MATRIX_RESCALING as WEIGHT_MATRIX_RESCALING,
    WEIGHT_SIGN_FLIP as WEIGHT_SIGN_FLIP,
    WEIGHT_VECTOR_CONSTANT_SHIFT as WEIGHT_VECTOR_CONSTANT_SHIFT,
    WEIGHT_VECTOR_RESCALING as WEIGHT_VECTOR_RESCALING,
    extended as extended,
    weight_group_recentering as weight_group_recentering,
    weight_group_rescaling as weight_group_rescaling,
)
from lngeom.transformations._matrices import (
    BASIS_CHANGES as BASIS_CHANGES,
    EQUIVARIANCES as EQUIVARIANCES,
    INPUT_BASIS_CHANGES as INPUT_BASIS_CHANGES,
    INPUT_ROTATIONS as INPUT_ROTATIONS,
    INPUT_ROTATIONS_FIXING_ONE as INPUT_ROTATIONS_FIXING_ONE,
    UNIT_PERMUTATIONS as UNIT_PERMUTATIONS,
    UNIT_ROTATIONS as UNIT_ROTATIONS,
    UNIT_ROTATIONS_FIXING_ONE as UNIT_ROTATIONS_FIXING_ONE,
    MatrixGroup as MatrixGroup,
    group_permutations as group_permutations,
)

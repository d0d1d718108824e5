r"""Transformations of weights and data, as group actions on (W, X, g, b): the columns of the invariance tables.

Every column is a `Column` with a name and a formula, and draws a random member of its group. A drawn
`Transformation` acts elementwise and affinely, composes with ``@`` and has an inverse. A `MatrixGroup` mixes units
(equivariance: $f(QW, X) = Q f(W, X)$) or inputs (change of basis: $f(WA^{-1}, Ax) = f(W, x)$).
"""

from lngeom.methods.transformations.columns import (
    BATCH_INDEPENDENCE,
    DATASET_RECENTERING,
    DATASET_RESCALING,
    EXTENDED,
    INPUT_RESCALING,
    SINGLE_CASE_CONSTANT_SHIFT,
    SINGLE_CASE_RECENTERING,
    SINGLE_CASE_RESCALING,
    TABLE1,
    WEIGHT_GROUP_RECENTERING,
    WEIGHT_GROUP_RESCALING,
    WEIGHT_MATRIX_RECENTERING,
    WEIGHT_MATRIX_RESCALING,
    WEIGHT_SIGN_FLIP,
    WEIGHT_VECTOR_CONSTANT_SHIFT,
    WEIGHT_VECTOR_RESCALING,
)

__all__ = [
    "BATCH_INDEPENDENCE",
    "DATASET_RECENTERING",
    "DATASET_RESCALING",
    "EXTENDED",
    "INPUT_RESCALING",
    "SINGLE_CASE_CONSTANT_SHIFT",
    "SINGLE_CASE_RECENTERING",
    "SINGLE_CASE_RESCALING",
    "TABLE1",
    "WEIGHT_GROUP_RECENTERING",
    "WEIGHT_GROUP_RESCALING",
    "WEIGHT_MATRIX_RECENTERING",
    "WEIGHT_MATRIX_RESCALING",
    "WEIGHT_SIGN_FLIP",
    "WEIGHT_VECTOR_CONSTANT_SHIFT",
    "WEIGHT_VECTOR_RESCALING",
]

r"""Transformations of weights and data, as group actions on (W, X, g, b): the columns of the invariance tables.

Every column is a `Column` with a name and a formula, and draws a random member of its group. A drawn
`Transformation` acts elementwise and affinely, composes with ``@`` and has an inverse. A `MatrixGroup` mixes units
(equivariance: $f(QW, X) = Q f(W, X)$) or inputs (change of basis: $f(WA^{-1}, Ax) = f(W, x)$).

`TABLE1` and `EXTENDED` are the columns of the tables, `lg.transformations["weight_sign_flip"]` is one of them.
"""

from lngeom._core.named import subscripted
from lngeom.methods.transformations.columns import (
    DATASET_RECENTERING,
    DATASET_RESCALING,
    EXTENDED,
    SINGLE_CASE_RESCALING,
    TABLE1,
    WEIGHT_MATRIX_RECENTERING,
    WEIGHT_MATRIX_RESCALING,
    WEIGHT_VECTOR_RESCALING,
)

__all__ = [
    "DATASET_RECENTERING",
    "DATASET_RESCALING",
    "EXTENDED",
    "SINGLE_CASE_RESCALING",
    "TABLE1",
    "WEIGHT_MATRIX_RECENTERING",
    "WEIGHT_MATRIX_RESCALING",
    "WEIGHT_VECTOR_RESCALING",
]

subscripted(__name__, {c.name: c for c in EXTENDED}, "transformation", {c.name: (c.title, c.heading) for c in EXTENDED})

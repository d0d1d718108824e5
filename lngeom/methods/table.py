"""The extended invariance table: what the pages of the methods record, by row and column."""

from lngeom.methods import METHODS
from lngeom.methods.page import Cell as Cell
from lngeom.methods.transformations import EXTENDED as _EXTENDED
from lngeom.methods.transformations.matrices import BASIS_CHANGES, EQUIVARIANCES

COLUMNS = tuple(column.name for column in _EXTENDED)
"""Names of the columns."""

MATRIX_GROUPS = tuple(group.name for group in (*EQUIVARIANCES, *BASIS_CHANGES))
"""Equivariances of the units, f(QW, X) = Q f(W, X), and changes of the inputs' basis, f(WA⁻¹, Ax) = f(W, x)."""

EXTENDED = {method.name: dict(method.cells) for method in METHODS.values()}
"""Method, column → effect on the output."""

EQUIVARIANCE = {method.name: dict(method.equivariance) for method in METHODS.values()}
"""Method, group of matrices → whether the property holds. Outputs of attention logits are not units."""

"""The extended invariance table: what `lngeom.normalizers` records of each method, by transformation.

It is data, never computed. The claims of the topic "extended" check every cell by numbers and algebra.
"""

from enum import StrEnum

from lngeom.methods import METHODS, transformations
from lngeom.methods.transformations.matrices import BASIS_CHANGES, EQUIVARIANCES


class Cell(StrEnum):
    """Effect on the output: none, a change, or a change of sign only (which g → −g repairs)."""

    INVARIANT = "I"
    CHANGED = "no"
    SIGN = "±"


COLUMNS = tuple(column.name for column in transformations.EXTENDED)
"""Names of the columns."""

MATRIX_GROUPS = tuple(group.name for group in (*EQUIVARIANCES, *BASIS_CHANGES))
"""Equivariances of the units, f(QW, X) = Q f(W, X), and changes of the inputs' basis, f(WA⁻¹, Ax) = f(W, x)."""

_CELLS = {"I": Cell.INVARIANT, ".": Cell.CHANGED, "±": Cell.SIGN}


def _row(cells: str) -> dict[str, Cell]:
    named = zip((*COLUMNS, *MATRIX_GROUPS), cells.replace(" ", ""), strict=True)
    return {name: _CELLS[cell] for name, cell in named if cell != "-"}


_ROWS = {method.name: _row(method.cells) for method in METHODS.values()}

EXTENDED = {method: {name: row[name] for name in COLUMNS} for method, row in _ROWS.items()}
"""Method, column → effect on the output."""

EQUIVARIANCE = {method: {name: row[name] for name in MATRIX_GROUPS if name in row} for method, row in _ROWS.items()}
"""Method, group of matrices → whether the property holds. Outputs of attention logits are not units."""

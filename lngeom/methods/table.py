"""The extended invariance table: what the pages of the methods record, by row and column."""

from lngeom._core.named import UnknownName
from lngeom.methods import METHODS
from lngeom.methods.page import Cell as Cell, named
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

WORDS = {"rms": "RMS norm", "scale": "scale norm", "bn_evaluation": "batch norm in evaluation"}
"""Names of rows in a sentence, where neither alias nor title will do."""


def in_words(name: str) -> str:
    """The name of a row in a sentence, "layer norm", given by any of its names; another name is left as it is."""
    try:
        method = named(name)
    except UnknownName:
        return name
    return f"{method.alias} norm" if method.alias else WORDS.get(method.name, method.title)

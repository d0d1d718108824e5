"""The extended table's cells: each is settled by `prove`, and must come out as it is recorded."""

import functools

import jax.numpy as jnp

from lngeom.invariance_table import EXTENDED, Cell
from lngeom.normalizers import METHODS
from lngeom.symbolic.proof import Counterexample, Proof, ProofError
from lngeom.symbolic.registry import proves
from lngeom.symbolic.table import prove


def settled(evidence: Proof | Counterexample) -> Cell:
    """What a proof or a counterexample says of a cell."""
    if isinstance(evidence, Proof):
        return Cell.INVARIANT
    return Cell.SIGN if evidence.correction else Cell.CHANGED


def cell(method: str, column: str, recorded: Cell) -> Proof | Counterexample:
    """The proof or exact counterexample of a cell.

    Args:
        method: name of the row.
        column: name of the column.
        recorded: what the cell should say.

    Returns:
        The evidence.

    Raises:
        ProofError: if algebra settles the cell otherwise.
    """
    ones = jnp.ones((4, 4))
    evidence = prove(METHODS[method].make(ones, ones), column)
    if settled(evidence) is not recorded:
        raise ProofError(f"{method}, {column}: recorded as {recorded.value!r}, but it is {settled(evidence).value!r}")
    return evidence


for _method, _row in EXTENDED.items():
    for _column, _recorded in _row.items():
        proves(f"extended.{_method}.{_column}")(functools.partial(cell, _method, _column, _recorded))

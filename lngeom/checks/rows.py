"""Rows of the extended invariance table, and the columns that apply to a layer."""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp

from lngeom.checks.subject import Subject, as_elsewhere
from lngeom.methods.page import named
from lngeom.methods.table import EQUIVARIANCE, EXTENDED
from lngeom.methods.transformations.actions import Column
from lngeom.methods.transformations.columns import extended
from lngeom.methods.transformations.matrices import BASIS_CHANGES, EQUIVARIANCES, MatrixGroup

POSITIONS = 4
"""Number of positions for layers that need them."""


class Row(NamedTuple):
    """A row of the extended table.

    Attributes:
        cells: "I", "no" or "±" for each column and group of matrices.
        groups: number of groups of units that its group columns act on.
        square: whether W must be square.
        positions: whether inputs have positions.
    """

    cells: Mapping[str, str]
    groups: int
    square: bool
    positions: bool


def row(like: str) -> Row:
    """The table's row for a method.

    Args:
        like: the method by any of its names, such as "layer", "ln" or "LayerNorm".

    Returns:
        The row.

    Raises:
        ValueError: if no row has this name.
    """
    method = named(like)
    with as_elsewhere():
        example = method.make(jnp.eye(8), jnp.eye(8)[:, None])
    cells = EXTENDED[method.name] | EQUIVARIANCE[method.name]
    return Row({k: str(v) for k, v in cells.items()}, method.groups, method.square, example.needs_positions)


def columns(subject: Subject) -> tuple[Column | MatrixGroup, ...]:
    """The transformations which a layer is checked under, apart from changes of other samples."""
    units = tuple(g for g in EQUIVARIANCES if subject.outputs_are_units)
    return *(c for c in extended(subject.groups) if not c.compares_first), *units, *BASIS_CHANGES

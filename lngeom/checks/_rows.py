"""Which columns apply to a layer, and what the table of invariances says of a method."""

from collections.abc import Mapping

from lngeom.checks._subject import Subject
from lngeom.paper import TABLE1
from lngeom.transformations import TABLE1 as COLUMNS, WEIGHT_SIGN_FLIP, Column

NAMES = {"batch": "bn", "weight": "wn", "layer": "ln"}
"""Methods by the names of their normalizers."""


def columns(subject: Subject) -> tuple[Column, ...]:
    """The transformations which a layer is checked under."""
    return (*COLUMNS, WEIGHT_SIGN_FLIP)


def expected_row(like: str) -> Mapping[str, str]:
    """What the table says of a method: "I", "no" or "±" for each column.

    Args:
        like: the method, such as "layer" or "ln".

    Returns:
        Column → entry.

    Raises:
        ValueError: if there is no such row.
    """
    row = TABLE1.get(NAMES.get(like, like))
    if row is None:
        raise ValueError(f"no row {like!r} in the table of invariances; there are {', '.join((*NAMES, *TABLE1))}")
    cells = {name: "I" if says else "no" for name, says in row.items()}
    return cells | {"batch_independence": "no" if row is TABLE1["bn"] else "I"}

"""Evidence for inequalities between measured numbers: a bound is not refuted by being loose."""

import numpy as np
from numpy.typing import ArrayLike

from lngeom.claims import Role, vanishes
from lngeom.claims.evidence import Evidence


def at_most(description: str, values: ArrayLike, bound: ArrayLike, role: Role = Role.SUPPORTS) -> Evidence:
    """Evidence that no value is above its bound: the excess vanishes on the scale of the largest bound.

    Args:
        description: what is bounded.
        values: measured.
        bound: positive; one for all values, or one for each.
        role: what it says of the statement.

    Returns:
        The evidence. An excess far beyond rounding shows the opposite.
    """
    values, bound = np.asarray(values, float), np.asarray(bound, float)
    return _short(
        f"{description}: at most {np.max(bound):.3g}, found {np.max(values):.3g}", values - bound, bound, role
    )


def at_least(description: str, values: ArrayLike, bound: ArrayLike, role: Role = Role.SUPPORTS) -> Evidence:
    """Evidence that no value is below its positive bound; arguments and result as for `at_most`."""
    values, bound = np.asarray(values, float), np.asarray(bound, float)
    return _short(
        f"{description}: at least {np.min(bound):.3g}, found {np.min(values):.3g}", bound - values, bound, role
    )


def _short(description: str, excess: np.ndarray, bound: np.ndarray, role: Role) -> Evidence:
    """Evidence that no excess is positive; an excess that is not finite is no evidence."""
    return vanishes(description, np.where(excess <= 0, 0.0, excess), scale=float(np.max(bound)), role=role)

"""Numbers that callers give: one that does not fit is refused with what was expected and what came."""

import math
import operator
from typing import Any

import numpy as np

from lngeom._core.types import is_concrete


def check_count(
    name: str, value: Any, least: int, most: int | None = None, *, what: str = "a whole number", bound: str = ""
) -> int:
    """A number of things, as an `int`.

    Args:
        name: of the argument.
        value: what was given: an integer of Python, NumPy or JAX.
        least: the smallest that fits.
        most: the largest.
        what: what it counts, for the message.
        bound: what the largest is, or the least where there is no largest, such as "P".

    Raises:
        ValueError: if it is not a whole number, beyond its limits, or has no value yet.
    """
    if not is_concrete(value):
        raise ValueError(f"{name} must have a value when jit traces the function: close over it, or make it static")
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        bound = f"{bound} = " if bound else ""
        limits = f", at least {bound}{least}" if most is None else f" between {least} and {bound}{most}"
        raise ValueError(f"{name} must be {what}{limits}; got {value!r}")
    return number


def check_nonnegative(name: str, value: Any) -> None:
    """Checks that a number is finite and at least 0. Under jit it has no value yet, and passes.

    Raises:
        ValueError: if it is no number, negative, infinite or NaN.
    """
    if not is_concrete(value):
        return
    try:
        number = math.nan if isinstance(value, str) or np.ndim(value) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} must be a finite number, at least 0; got {value!r}")

"""The time of a call, and the error of its result."""

import math
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def seconds_of(call: Callable[[], Any], wait: Callable[[Any], Any], budget: float, rounds: int = 3) -> float:
    """Smallest mean time of a call, each round about as long as the budget says."""
    wait(call())
    start = time.perf_counter()
    wait(call())
    repeats = max(1, min(1000, int(budget / max(time.perf_counter() - start, 1e-7))))
    best = math.inf
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            result = call()
        wait(result)
        best = min(best, (time.perf_counter() - start) / repeats)
    return best


def relative_error(found: Any, exact: Any) -> float:
    """The relative error |a − b| / |b| of all arrays together, in float64.

    Raises:
        ArithmeticError: if it is not finite, which is no evidence.
    """
    a, b = (
        np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(t)]) for t in (found, exact)
    )
    error = float(np.linalg.norm(a - b) / np.linalg.norm(b))
    if not math.isfinite(error):
        raise ArithmeticError("a result or its reference is not finite")
    return error

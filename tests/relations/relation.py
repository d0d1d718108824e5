"""What a relation is: a function of drawn arguments that asserts something, run by hypothesis, and seen failing."""

import functools
import os
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

QUICK = 2
"""Draws of a relation in the quick tier."""

DRAWN: Counter[str] = Counter()
"""Draws so far, by test."""


def relation(thorough: int = 40, **strategies: SearchStrategy) -> Callable[[Callable], Callable]:
    """Makes a test of a relation: it runs on `QUICK` draws, on `thorough` many with the profile of that name."""

    def decorate(statement: Callable[..., None]) -> Callable:
        @functools.wraps(statement)
        def as_drawn(**drawn: Any) -> None:
            DRAWN[statement.__name__] += 1
            with as_users_have_it():
                statement(**drawn)

        many = round(float(os.environ.get("RELATIONS_TIMES", "1")) * thorough)
        count = max(QUICK, many) if settings.get_current_profile_name() == "thorough" else QUICK
        test: Any = pytest.mark.relation(settings(max_examples=count)(given(**strategies)(as_drawn)))
        test.statement, test.strategies = as_drawn, strategies
        return test

    return decorate


def fails(test: Callable, draws: int = 12, **only: SearchStrategy) -> None:
    """Asserts that a relation fails on some draw: what a planted fault must bring about. `only` narrows the draws."""
    quiet = {
        "max_examples": draws,
        "database": None,
        "derandomize": True,
        "phases": [Phase.explicit, Phase.generate],
        "suppress_health_check": list(HealthCheck),
        "report_multiple_bugs": False,
        "print_blob": False,
    }
    with pytest.raises((AssertionError, ValueError, Warning, pytest.fail.Exception)):
        settings(**quiet)(given(**(test.strategies | only))(test.statement))()


@contextmanager
def as_users_have_it():
    """JAX's own rules of promotion, as outside of these tests."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def wide(value: Any) -> np.ndarray:
    return np.asarray(value).astype(np.float64)


def assert_same_matrix(found: Any, expected: Any, tol: float = 1e-9) -> None:
    """Entries agree on the scale of their own rows and columns, √(F_ii F_jj), so that no leaf hides another."""
    found, expected = wide(found), wide(expected)
    assert found.shape == expected.shape
    scale = np.sqrt(np.maximum(np.diagonal(expected), 0))
    floor = 1e-7 * scale.max(initial=0)  # rows of rounding alone
    scale = np.maximum(scale, floor)
    error = np.abs(found - expected) / np.maximum(np.outer(scale, scale), 1e-300)
    assert np.max(error, initial=0) <= tol, f"relative error {np.max(error):.2g} > {tol:.2g}"


def assert_close(found: Any, expected: Any, tol: float = 1e-9) -> None:
    """Numbers agree on the scale of the largest."""
    found, expected = wide(found), wide(expected)
    assert found.shape == expected.shape, f"{found.shape} and {expected.shape}"
    error = np.max(np.abs(found - expected), initial=0) / max(np.max(np.abs(expected), initial=0), 1e-300)
    assert error <= tol, f"relative error {error:.2g} > {tol:.2g}"

"""What a relation is: a function of drawn arguments that asserts something, run by hypothesis, and seen failing."""

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy, sampled_from

DRAWN: Counter[str] = Counter()
"""Draws so far, by test."""

KEPT = 32
"""Draws whose programs are kept: Linux gives a process 65,530 mappings of memory, a model takes up to 2,000."""


def relation(
    thorough: int = 40, quick: int = 1, each: dict[str, Iterable[Any]] | None = None, **strategies: SearchStrategy
) -> Callable[[Callable], Callable]:
    """Makes a test of a relation: it runs on `quick` draws, on `thorough` many with the profile of that name.

    The quick draws leave out the simplest, with which hypothesis begins, since all relations have it in common. None
    makes the test a thorough one. `each` names an argument of few values, each of which has a test and draws of its
    own.
    """
    known = {name: tuple(values) for name, values in (each or {}).items()}

    def decorate(statement: Callable[..., None]) -> Callable:
        many = round(float(os.environ.get("RELATIONS_TIMES", "1")) * thorough)
        left_out = settings.get_current_profile_name() != "thorough"
        seen: set[tuple] = set()

        @functools.wraps(statement)
        def as_drawn(**drawn: Any) -> None:
            DRAWN[statement.__name__] += 1
            if DRAWN.total() % KEPT == 0:
                jax.clear_caches()
            with as_users_have_it():
                statement(**drawn)

        @functools.wraps(statement)
        def but_the_simplest(**drawn: Any) -> None:
            key = tuple(str(drawn[name]) for name in known)
            if key in seen or not left_out:
                as_drawn(**drawn)
            seen.add(key)

        count = max(1, quick) + 1 if left_out else max(1, many)
        test: Any = pytest.mark.relation(settings(max_examples=count)(given(**strategies)(but_the_simplest)))
        for name, values in known.items():
            test = pytest.mark.parametrize(name, values)(test)
        chosen = {name: sampled_from(values) for name, values in known.items()}
        test.statement, test.strategies = as_drawn, strategies | chosen
        return test if quick else pytest.mark.thorough(test)

    return decorate


NOTICED = (AssertionError, ValueError, Warning, pytest.fail.Exception)
"""Errors by which a relation notices a fault. Others say that the fault broke something else."""


def draw(test: Callable, draws: int = 12, **only: SearchStrategy) -> None:
    """Runs a relation on a few draws, up to the first that fails. `only` narrows them."""
    quiet = {
        "max_examples": draws,
        "database": None,
        "derandomize": True,
        "phases": [Phase.explicit, Phase.generate],
        "suppress_health_check": list(HealthCheck),
        "report_multiple_bugs": False,
        "print_blob": False,
    }
    settings(**quiet)(given(**(test.strategies | only))(test.statement))()


def fails(test: Callable, draws: int = 12, **only: SearchStrategy) -> None:
    """Asserts that a relation fails on some draw: what a planted fault must bring about. `only` narrows the draws."""
    with pytest.raises(NOTICED):
        draw(test, draws, **only)


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

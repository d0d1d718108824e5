"""A planted fault in a claim of the gallery must turn its verdict."""

import functools
import sys
from typing import Any

import jax
from lngeom.claims import Problem, run
from lngeom.claims.papers import find
from lngeom.claims.registry import Claim, numbers


def problem() -> Problem:
    """Small random data."""
    return Problem(jax.random.normal(jax.random.key(7), (60, 8), float))


def claim_of(id: str) -> Claim:
    """A claim by its id."""
    return next(c for c in find(id.partition(".")[0]).claims if c.id == id)


@functools.cache
def known(id: str) -> tuple:
    """Numeric evidence of a claim without faults: what several tests start from is computed once."""
    return tuple(numbers(claim_of(id), problem()))


def verdict_with(monkeypatch, id: str, **patches: Any) -> str:
    """The verdict from numbers alone, with names in the claim's module replaced."""
    claim = claim_of(id)
    module = sys.modules[claim.check.__module__]
    for name, replacement in patches.items():
        assert hasattr(module, name), f"{module.__name__} has no {name}: the planted fault changes nothing"
        monkeypatch.setattr(module, name, replacement)
    outcome = run(claim, problem())
    assert not outcome.error, f"the fault stops the check instead of turning it: {outcome.error}"
    return outcome.verdict.value


def assert_turns(monkeypatch, id: str, **patches: Any) -> None:
    """Asserts that the fault turns the verdict."""
    sound = run(claim_of(id), problem(), numeric=lambda claim, problem: known(claim.id))
    assert sound.verdict is claim_of(id).expected, sound.error
    assert verdict_with(monkeypatch, id, **patches) != claim_of(id).expected.value

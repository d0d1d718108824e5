"""Planted faults in the claims about layer norm's backward pass and AdaNorm."""

import jax.numpy as jnp
import pytest
from lngeom.papers.gallery import xu2019

from tests.gallery.faults import assert_turns

STANDARDIZED = xu2019.standardized


def always_held(x, *, mean, scale):
    """σ is held, whatever is asked for."""
    return STANDARDIZED(x, mean=mean, scale=False)


def never_held(x, *, mean, scale):
    """μ is differentiated, whatever is asked for."""
    return STANDARDIZED(x, mean=True, scale=scale)


@pytest.mark.parametrize(
    ("id", "patches"),
    [
        ("full", {"reduced": xu2019.kept}),
        ("detach_mean", {"standardized": always_held}),
        ("detach_scale", {"kept": xu2019.reduced}),
        ("detach_both", {"standardized": never_held}),
        ("with_gain", {"gains": lambda problem, units: jnp.ones(units, problem.dtype)}),
        ("adanorm_unique", {"bound": lambda units: 2 * units**0.5}),
        ("positive", {"allowed": lambda k, units: k**2 * units / 2}),
    ],
)
def test_a_planted_fault_turns_the_verdict(monkeypatch, id, patches):
    assert_turns(monkeypatch, f"xu2019.{id}", **patches)


@pytest.mark.parametrize(("units", "dimension"), [(3, 7), (4, 4), (5, 3)])
def test_with_fewer_than_five_units_there_are_more_solutions(units, dimension):
    assert xu2019.solutions(units, 8, seed=0) == dimension

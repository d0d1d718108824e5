"""Planted faults in the claims about the curse of depth."""

import numpy as np
import pytest
from lngeom.papers.gallery import sun2025

from tests.gallery.faults import assert_turns, problem


def centred(x):
    """Layer norm without its division."""
    return x - x.mean(-1, keepdims=True)


@pytest.mark.parametrize(
    ("id", "patches"),
    [
        ("eq_5", {"standardized": centred}),
        ("exponential", {"standardized": centred}),
        ("bounded_if_exponential", {"exponential_deviation": lambda l: l}),
        ("linear_gives_linear", {"linear_deviation": lambda l: l}),
        ("scaling_growth", {"factor": lambda layer: 1 / layer}),
        ("scaling_gradient", {"printed_factor": lambda l: l**-0.5}),
        ("scaling_lowers", {"factor": lambda layer: layer**0.5}),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_a_planted_fault_turns_the_verdict(monkeypatch, id, patches):
    assert_turns(monkeypatch, f"sun2025.{id}", **patches)


def test_a_linear_variance_is_no_exponential():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sun2025, "signs_alone", lambda depth: 2**depth)
        with pytest.raises(ValueError, match="not linear in depth"):
            sun2025.exponential_proof()


def test_stacks_without_a_norm_grow_exponentially(monkeypatch):
    monkeypatch.setattr(sun2025, "standardized", centred)
    monkeypatch.setattr(sun2025, "DEPTH", 64)
    found = np.log(sun2025.variances(problem()).mean(0))
    assert found[64] > 1.8 * found[32] > 20

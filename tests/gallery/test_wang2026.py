"""Planted faults in the claims about scale vectors."""

import numpy as np
import pytest

from tests.gallery.faults import assert_turns


def rank_one_dropped(weights, gain, gradient):
    """The preconditioner γ_j² I."""
    return gain[None, :] ** 2 * gradient


@pytest.mark.parametrize(
    ("id", "patches"),
    [
        ("absorbed", {"read_linearly": lambda weights, inputs: np.tanh(inputs) @ weights.T}),
        ("preconditioner", {"preconditioned": rank_one_dropped}),
        ("at_least_one", {"start": lambda: 1.0}),
        ("conserved", {"decays": lambda decay: (decay, 0.0)}),
        ("instantly_faster", {"gain_at_start": lambda: 0.5}),
    ],
)
def test_a_planted_fault_turns_the_verdict(monkeypatch, id, patches):
    assert_turns(monkeypatch, f"wang2026.{id}", **patches)

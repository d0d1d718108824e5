"""Planted faults in the claims about the auto-tuning of rates."""

import pytest

from tests.gallery.faults import assert_turns


@pytest.mark.parametrize(
    ("id", "patches"),
    [
        ("lemma_2_4", {"EPSILON": 0.1}),
        ("small_gradients", {"EPSILON": 0.1}),
        ("effective_rate", {"NORM_POWER": 0.5}),
        ("any_rate", {"DECAY": 0.05, "LIMIT": 30_000}),  # without decay the slowest rate takes 26,600 steps
    ],
)
def test_a_planted_fault_turns_the_verdict(monkeypatch, id, patches):
    assert_turns(monkeypatch, f"arora2018.{id}", **patches)

"""Planted faults in the claims about Hyperball and equilibria of weight decay."""

import math

import numpy as np
import pytest
from lngeom.papers.gallery import wen2026

from tests.gallery.faults import assert_turns

NORM, PRINTED = wen2026.norm_square, wen2026.printed


def approximate(alpha, beta):
    """The cosine of √(2ηλ(1 − β)/(1 + β)), the law of small angles."""
    return math.cos(math.sqrt(2 * (1 - alpha) * (1 - beta) / (1 + beta)))


def not_normalized(W, update, rate):
    """Hyperball without its last normalization."""
    return W - rate * np.linalg.norm(W) * update / np.linalg.norm(update)


@pytest.mark.parametrize(
    ("id", "patches"),
    [
        ("depends_only", {"ratio_of": lambda m, v: m}),
        ("norm", {"norm_square": lambda alpha, beta: NORM(alpha, beta**2)}),
        ("correlation", {"product": lambda alpha, beta: beta / (1 - alpha * beta)}),
        ("angle", {"printed": lambda alpha, beta: PRINTED(alpha, beta) * (1 + alpha * beta) / 2}),
        ("exact_angle", {"cosine": approximate}),
        ("adam_update", {"adam_square": lambda b1: 1 - b1}),
        ("muon_update", {"muon_scale": lambda outputs, inputs: 1.0}),
        ("step", {"hyperball_step": not_normalized}),
    ],
)
def test_a_planted_fault_turns_the_verdict(monkeypatch, id, patches):
    assert_turns(monkeypatch, f"wen2026.{id}", **patches)

"""Planted faults in the claims about the geometric cost of normalization."""

import numpy as np
import pytest
from lngeom import families
from lngeom.papers.gallery import chun2026

from tests.gallery.faults import assert_turns, problem


def great_circle(problem):
    """States in a plane through 0."""
    return np.random.default_rng(0).standard_normal((400, 2)) @ np.eye(2, chun2026.WIDTH)


def balanced_bias(problem):
    """A bias that keeps the outputs in a plane through 0."""
    return np.ones(chun2026.WIDTH), np.arange(chun2026.WIDTH) - chun2026.WIDTH // 2.0


@pytest.mark.parametrize(
    ("id", "patches"),
    [
        ("layer_norm", {"layer_norm": chun2026.rms_norm}),
        ("rms", {"draw_inputs": great_circle}),
        ("learned_affine", {"gain_and_bias": balanced_bias}),
        ("downstream_bias", {"with_bias": lambda x: x}),
        ("simplex", {"simplex": np.exp}),
        ("softmax_outputs", {"outputs_without_condition": families.Bernoulli}),
        ("threshold", {"bent": lambda curvature: chun2026.cap(1.0) * [1.0, 1.0, 0.0]}),
    ],
)
def test_a_planted_fault_turns_the_verdict(monkeypatch, id, patches):
    assert_turns(monkeypatch, f"chun2026.{id}", **patches)


def test_a_law_of_second_order_is_seen(monkeypatch):
    assert_turns(monkeypatch, "chun2026.threshold", least_variance=lambda p: np.var(p[:, 0]))


def test_the_slope_counts_half_the_rank_of_the_design():
    points = chun2026.layer_norm(chun2026.draw_inputs(problem()))
    rank = np.linalg.matrix_rank(points)
    assert rank == chun2026.WIDTH - 1
    assert chun2026.coefficient(points) == pytest.approx(chun2026.OUTPUTS * rank / 2, rel=1e-6)

"""Planted faults in the claims about dynamic tanh."""

import jax.numpy as jnp
import numpy as np
import pytest
from lngeom.papers.gallery import zhu2025

from tests.gallery.faults import assert_turns

TOKENS = zhu2025.tokens


def one_constant(x):
    """One C for all tokens."""
    return np.full_like(x, zhu2025.WIDTH)


def fixed_slope(curve, x, y):
    """The fit with α = 1."""
    return zhu2025.fit_at(curve, 1.0, x, y)


def of_the_token(a):
    """α ∝ 1/rms of the token."""
    return 0.7 / jnp.sqrt(jnp.mean(a**2, 1, keepdims=True))


@pytest.mark.parametrize(
    ("id", "patches"),
    [
        ("linear_token", {"plotted_together": lambda x: x.reshape(len(x) // 2, -1)}),
        ("s_curve", {"tokens": lambda problem, spread: zhu2025.layer_norm(TOKENS(problem, spread))}),
        ("tanh", {"rms_diagonal": lambda y, rms, width: (1 - y**2 / (width - 1)) / rms}),
        ("isru", {"others": one_constant}),
        ("closer", {"best_fit": fixed_slope}),
        ("no_invariance", {"slope_of": of_the_token}),
    ],
)
def test_a_planted_fault_turns_the_verdict(monkeypatch, id, patches):
    assert_turns(monkeypatch, f"zhu2025.{id}", **patches)


def test_equal_scales_have_the_slope_of_a_line():
    assert zhu2025.expected_slope(0.0, *zhu2025.CENTRE) == pytest.approx(1, rel=1e-9)
    assert zhu2025.expected_slope(0.0, *zhu2025.TAIL) == pytest.approx(1, rel=1e-9)

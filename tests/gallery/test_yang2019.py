"""Planted faults in the claims about gradient explosion; pullbacks against automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lngeom.methods import BatchNorm
from lngeom.papers.gallery import yang2019
from lngeom.papers.gallery.yang2019 import dual_law, unit_jacobian
from lngeom.papers.lab import standardized

from tests.gallery.faults import assert_turns


def leaky(x):
    """ReLU with slope 1/2 for negative values."""
    return np.where(x > 0, x, 0.5 * x)


def swapped(units, depth, *, centre):
    """The law of the other norm."""
    return dual_law(units, depth, centre=not centre)


def of_rank_one_more(y):
    """A Jacobian that does not remove the direction of its value."""
    n = (y - y.mean()) / y.std()
    return unit_jacobian(y) + np.outer(n, n) / len(y) / y.std()


@pytest.mark.parametrize(
    ("id", "patches"),
    [
        ("linear", {"linear_rate": lambda batch: (batch - 2) / (batch - 1)}),
        ("relu", {"relu": leaky}),
        ("variance", {"BatchNorm": lambda: BatchNorm(eps=0.1)}),
        ("only_bn", {"orthogonal": yang2019.gaussian}),
        ("jacobian", {"unit_jacobian": of_rank_one_more}),
        ("layer_norm_dual", {"dual_law": swapped}),
    ],
)
def test_a_planted_fault_turns_the_verdict(monkeypatch, id, patches):
    assert_turns(monkeypatch, f"yang2019.{id}", **patches)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("centre", [True, False])
def test_the_pullback_is_that_of_automatic_differentiation(axis, centre):
    a, c = np.random.default_rng(0).normal(size=(2, 3, 5, 4))

    def norm(a):
        u = a - a.mean(axis, keepdims=True) if centre else a
        return u / jnp.sqrt(jnp.mean(u**2, axis, keepdims=True))

    value, pull = standardized(a, axis, centre=centre)
    expected, expected_pull = jax.vjp(norm, jnp.asarray(a))
    np.testing.assert_allclose(value, expected, atol=1e-13)
    np.testing.assert_allclose(pull(c), expected_pull(jnp.asarray(c))[0], atol=1e-13)


def test_an_axis_that_further_axes_would_move_is_refused():
    with pytest.raises(ValueError, match="counted from the last"):
        standardized(np.ones((2, 3)), 1)

"""Gradient explosion: pullbacks against automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lngeom.papers.lab import standardized


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

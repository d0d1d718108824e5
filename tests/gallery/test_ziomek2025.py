"""Extrapolation: the kernel against automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lngeom.claims import Problem
from lngeom.papers.gallery import ziomek2025
from lngeom.papers.gallery.ziomek2025 import NONE, SKIP, directions, random_weights


def norm(x):
    u = x - x.mean(1, keepdims=True)
    return u / jnp.sqrt(jnp.mean(u**2, 1, keepdims=True))


@pytest.mark.parametrize("place", [NONE, *ziomek2025.NORMED, SKIP])
def test_the_kernel_is_that_of_automatic_differentiation(place):
    problem = Problem(np.zeros((1, 1)))
    w, x = random_weights(problem, 7, 5), directions(problem, 4)

    def at(here, a):
        return norm(a) if here == place.partition(",")[0] else a

    def outputs(w):
        hidden = jax.nn.relu(at("first", at("input", jnp.asarray(x)) @ w.first.T / 5**0.5))
        last = jax.nn.relu(at("last", hidden @ w.second.T / 7**0.5))
        return last @ w.readout / 7**0.5 + (x @ w.path / 5**0.5 if place == SKIP else 0)

    J = np.concatenate([j.reshape(4, -1) for j in jax.jit(jax.jacrev(outputs))(w)], 1)
    found = ziomek2025.network(w, x, place)
    np.testing.assert_allclose(found.outputs, outputs(w), rtol=1e-12)
    np.testing.assert_allclose(ziomek2025.kernel(found, found), J @ J.T, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(ziomek2025.variances(w, x, place), np.diag(J @ J.T), rtol=1e-11)

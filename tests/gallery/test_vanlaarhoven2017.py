"""Planted faults in the claims about weight decay against normalization."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from lngeom.papers.gallery import vanlaarhoven2017

from tests.gallery.faults import assert_turns

OPTIMIZERS, HESSIAN = vanlaarhoven2017.OPTIMIZERS, vanlaarhoven2017.hessian


def constant_gradient(noise, w):
    """Gradients whose size does not depend on ‖w‖."""
    return noise - np.sum(noise * w, -1, keepdims=True) * w / np.sum(w**2, -1, keepdims=True)


@pytest.mark.parametrize(
    ("id", "patches"),
    [
        ("objective", {"compensated": lambda weight, factor: weight * factor}),
        ("no_effect", {"EPSILON": 1e-2}),
        ("adam_partly", {"OPTIMIZERS": OPTIMIZERS | {"Adam": (lambda: optax.adam(1e-4, eps=1.0), -1.0)}}),
        ("newton", {"hessian": lambda w, inputs: HESSIAN(w, inputs) + 1e-3 * jnp.eye(len(w))}),
        ("equilibrium", {"tangent_gradient": constant_gradient}),
        ("fixed_norm", {"EPSILON": 1e-2}),
    ],
)
def test_a_planted_fault_turns_the_verdict(monkeypatch, id, patches):
    assert_turns(monkeypatch, f"vanlaarhoven2017.{id}", **patches)


def test_the_hessian_is_that_of_the_loss():
    w, inputs = jnp.arange(1.0, 4.0), jax.random.normal(jax.random.key(0), (8, 3), float)
    found = jax.jit(jax.jacobian(jax.grad(vanlaarhoven2017.loss)))(w, inputs)
    np.testing.assert_allclose(jax.jit(HESSIAN)(w, inputs), found, rtol=1e-9, atol=1e-12)

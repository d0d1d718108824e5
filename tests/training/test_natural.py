"""Natural gradients follow F, and leave its null directions alone."""

from functools import cache

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from tests.cases import drawn

MODEL = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
X = drawn(0, 40, 3)
PARAMS = lg.GLMParameters(drawn(1, 4, 3), jnp.zeros(4), jnp.ones(4))


def loss(params):
    return -MODEL.log_prob(params, X, jnp.ones((40, 4))).mean()


@cache
def gradient():
    return jax.jit(jax.grad(loss))(PARAMS)


@cache
def null():
    return jnp.asarray(lg.predicted_nullspace(MODEL, PARAMS, X).basis)


def step(gradient, **options):
    opt = lg.training.natural_gradient(MODEL, **options)
    return ravel_pytree(opt.update(gradient, opt.init(PARAMS), PARAMS, inputs=X)[0])[0]


def noisy(size=1e-3):
    flat, unravel = ravel_pytree(gradient())
    return unravel(flat + size * null()[:, 0])


@pytest.mark.thorough
@pytest.mark.parametrize("approximation", ["ekfac", None])
def test_the_null_space_is_projected_out(approximation):
    found = step(noisy(), approximation=approximation)
    assert jnp.max(jnp.abs(null().T @ found)) < 1e-9 * jnp.linalg.norm(found)
    planted = step(noisy(), approximation="ekfac", nullspace=lambda p, x: null()[:, :0])  # nothing is known
    assert jnp.max(jnp.abs(null().T @ planted)) > 1e-3 * jnp.linalg.norm(planted)


def test_without_an_approximation_it_is_the_solution_with_f():
    exact = lg.fisher(MODEL, PARAMS, X).solve(ravel_pytree(gradient())[0], 1e-3).value
    np.testing.assert_allclose(step(gradient(), approximation=None), exact, rtol=1e-4, atol=1e-6)


def test_a_step_lowers_the_loss_and_jit_takes_a_given_basis():
    known = null()
    opt = optax.chain(
        lg.training.natural_gradient(MODEL, nullspace=lambda p, x: known, damping=1e-2), optax.scale(-0.1)
    )
    update = jax.jit(lambda g, s, p: opt.update(g, s, p, inputs=X))
    updates, _ = update(gradient(), opt.init(PARAMS), PARAMS)
    assert loss(optax.apply_updates(PARAMS, updates)) < loss(PARAMS)
    plain = lg.training.natural_gradient(MODEL)
    with pytest.raises(ValueError, match="under jit"):
        jax.jit(lambda g: plain.update(g, plain.init(PARAMS), PARAMS, inputs=X))(gradient())


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="damping must be more than 0"):
        lg.training.natural_gradient(MODEL, damping=0.0)
    opt = lg.training.natural_gradient(MODEL)
    with pytest.raises(ValueError, match="inputs=X"):
        opt.update(gradient(), opt.init(PARAMS), PARAMS)

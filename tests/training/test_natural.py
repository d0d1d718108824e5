"""Natural gradients follow F, and leave its null directions alone."""

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

MODEL = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
X = jax.random.normal(jax.random.key(0), (40, 3))
PARAMS = MODEL.init(jax.random.key(1), inputs=3, outputs=4)
NULL = jnp.asarray(lg.predicted_nullspace(MODEL, PARAMS, X).basis)
GRADIENT = jax.grad(lambda p: -MODEL.log_prob(p, X, jnp.ones((40, 4))).mean())(PARAMS)


def step(gradient=GRADIENT, **options):
    opt = lg.training.natural_gradient(MODEL, **options)
    return ravel_pytree(opt.update(gradient, opt.init(PARAMS), PARAMS, inputs=X)[0])[0]


def noisy(size=1e-3):
    flat, unravel = ravel_pytree(GRADIENT)
    return unravel(flat + size * NULL[:, 0])


@pytest.mark.parametrize("approximation", ["ekfac", None])
def test_the_null_space_is_projected_out(approximation):
    found = step(noisy(), approximation=approximation)
    assert jnp.max(jnp.abs(NULL.T @ found)) < 1e-9 * jnp.linalg.norm(found)
    planted = step(noisy(), approximation="ekfac", nullspace=lambda p, x: NULL[:, :0])  # nothing is known
    assert jnp.max(jnp.abs(NULL.T @ planted)) > 1e-3 * jnp.linalg.norm(planted)


def test_without_an_approximation_it_is_the_solution_with_f():
    exact = lg.fisher(MODEL, PARAMS, X).solve(ravel_pytree(GRADIENT)[0], 1e-3).value
    np.testing.assert_allclose(step(approximation=None), exact, rtol=1e-4, atol=1e-6)


def test_a_step_lowers_the_loss_and_jit_takes_a_given_basis():
    opt = optax.chain(lg.training.natural_gradient(MODEL, nullspace=lambda p, x: NULL, damping=1e-2), optax.scale(-0.1))
    update = jax.jit(lambda g, s, p: opt.update(g, s, p, inputs=X))
    updates, _ = update(GRADIENT, opt.init(PARAMS), PARAMS)
    loss = lambda p: -MODEL.log_prob(p, X, jnp.ones((40, 4))).mean()  # noqa: E731
    assert loss(optax.apply_updates(PARAMS, updates)) < loss(PARAMS)
    plain = lg.training.natural_gradient(MODEL)
    with pytest.raises(ValueError, match="under jit"):
        jax.jit(lambda g: plain.update(g, plain.init(PARAMS), PARAMS, inputs=X))(GRADIENT)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="damping must be more than 0"):
        lg.training.natural_gradient(MODEL, damping=0.0)
    opt = lg.training.natural_gradient(MODEL)
    with pytest.raises(ValueError, match="inputs=X"):
        opt.update(GRADIENT, opt.init(PARAMS), PARAMS)

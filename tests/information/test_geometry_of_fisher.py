"""The connection and geodesics of the Fisher metric, and its block diagonal by neuron."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom._numerics import agreement
from lngeom.information import block_diagonal, christoffel, geodesic, neuron_blocks

from tests.information import zoo


def glm(normalizer=None):
    model = lg.NormalizedGLM(normalizer or lg.normalizers.LayerNorm(), lg.families.Bernoulli())
    params = model.init(jax.random.key(0), inputs=2, outputs=4)
    return lg.fisher(model, params, jax.random.normal(jax.random.key(1), (60, 2)))


def matrix_at(F, theta):
    return F.at_problem(replace(F.problem, params=F.problem.unravel(theta))).as_matrix()


def test_christoffel_symbols_are_finite_differences_of_the_metric():
    F = glm()
    theta = F.problem.ravel(F.problem.params)
    v = jnp.cos(jnp.arange(F.in_size(), dtype=float))
    h = 1e-4
    along = (matrix_at(F, theta + h * v) - matrix_at(F, theta - h * v)) @ v / (2 * h)
    steps = h * jnp.eye(F.in_size())
    forms = [(v @ (matrix_at(F, theta + e) - matrix_at(F, theta - e)) @ v) / (2 * h) for e in steps]
    assert agreement(christoffel(F, v), along - jnp.stack(forms) / 2, 1e-6).agrees


def test_geodesics_keep_their_speed_and_stay_horizontal():
    F = glm()
    v = F.project_horizontal(0.1 * jnp.sin(jnp.arange(F.in_size(), dtype=float)))
    change = []
    for steps in (4, 8):
        params, velocity = geodesic(F, v, time=0.5, steps=steps)
        end = F.at_problem(replace(F.problem, params=params))
        change.append(abs(float(end.quadratic_form(velocity) / F.quadratic_form(v)) - 1))
    assert change[1] < 1e-8
    assert 8 < change[0] / change[1] < 32  # of fourth order
    straight = F.at_problem(replace(F.problem, params=F.problem.unravel(F.problem.ravel(F.problem.params) + 0.5 * v)))
    assert abs(float(straight.quadratic_form(v) / F.quadratic_form(v)) - 1) > 0.05


def test_the_connection_of_a_sampled_metric_is_refused():
    F = zoo.plain_network().fisher(method="monte_carlo", key=jax.random.key(0), samples=2)
    with pytest.raises(ValueError, match="exact metric"):
        christoffel(F, jnp.ones(F.in_size()))


LAYERS = [{"first.kernel": 1, "norm.gain": 0, "norm.bias": 0}, {"last.kernel": 1, "last.bias": 0}]


def test_neuron_blocks_are_slices_of_the_matrix():
    F = zoo.layer_norm_network().fisher()
    M = F.as_matrix()
    blocks = neuron_blocks(F, LAYERS)
    assert [b.shape for b in blocks] == [(6, 6, 6), (3, 7, 7)]
    approximate = block_diagonal(F, LAYERS)
    kept = approximate != 0
    assert int(jnp.sum(kept)) == 6 * 36 + 3 * 49
    assert agreement(jnp.where(kept, approximate - M, 0) + jnp.max(M), jnp.full(M.shape, jnp.max(M)), 1e-13).agrees
    assert agreement(jnp.trace(approximate), jnp.trace(M), 1e-13).agrees
    with pytest.raises(ValueError, match="each layer must name leaves once"):
        neuron_blocks(F, [{"first": 1}])


def test_normalization_couples_the_neurons_of_a_layer():
    """Without it the same-layer blocks of one GLM vanish; with layer norm they do not."""
    error = {}
    for normalizer in (lg.normalizers.Identity(), lg.normalizers.BatchNorm(), lg.normalizers.LayerNorm()):
        F = glm(normalizer)
        approximate = block_diagonal(F, [{"weights": 0, "bias": 0, "gain": 0}])
        M = F.as_matrix()
        error[type(normalizer).__name__] = float(jnp.linalg.norm(M - approximate) / jnp.linalg.norm(M))
    assert error["Identity"] < 1e-14
    assert error["BatchNorm"] < 1e-14
    assert error["LayerNorm"] > 0.05
    assert np.isfinite(list(error.values())).all()

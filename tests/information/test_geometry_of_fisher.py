"""The connection and geodesics of the Fisher metric."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import lngeom as lg
import pytest
from lngeom.information import christoffel, geodesic
from lngeom.numerics import agreement

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

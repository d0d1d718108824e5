"""Symbolic expressions, compiled, against the library's numerical code."""

from functools import cache

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
import sympy as sp
from hypothesis import given, strategies as st
from lngeom._core.numerics import agreement
from lngeom.papers.ba2016.fisher import chi
from lngeom.symbolic import layers, sums
from lngeom.symbolic.evaluation import compiled
from lngeom.symbolic.jacobian import LAYER, along

H, D, N = 4, 2, 3
SIZES = {sums.H: H, sums.D: D, sums.N: N, sums.G: 2, sums.M: 2}
TOLERANCE = 1e-9
EPS = layers.EPSILON

directions = lg.strategies.matrices(rows=H, columns=D)
eps_values = st.sampled_from([0.0, 1e-3, 0.5])

MEAN, VARIANCE = np.array([0.5, -1.0, 0.0, 2.0]), np.array([1.0, 0.25, 2.0, 0.5])
NORMALIZERS = {
    "Identity": lg.normalizers.Identity,
    "BatchNorm": lg.normalizers.BatchNorm,
    "BatchNormEvaluation": lambda eps: lg.normalizers.BatchNormEvaluation(jnp.array(MEAN), jnp.array(VARIANCE), eps),
    "WeightNorm": lg.normalizers.WeightNorm,
    "LayerNorm": lg.normalizers.LayerNorm,
    "RMSNorm": lg.normalizers.RMSNorm,
    "GroupNorm": lambda eps: lg.normalizers.GroupNorm(groups=2, eps=eps),
}


def _unit(method, index):
    if method.name != "GroupNorm":
        return index
    return ((index - 1) // 2 + 1, (index - 1) % 2 + 1)


def _fields(method, W, X):
    grouped = W.reshape(2, 2, D) if method.name == "GroupNorm" else W
    return {"W": grouped, "X": X, "m": MEAN, "v": VARIANCE}


@cache
def outputs(name):
    method = layers.METHODS[name]
    return compiled(lambda n, i: method(LAYER, n, _unit(method, i), EPS), (N, H), SIZES, [EPS])


def _point(data, normalizer):
    """Weights and inputs at which the normalizer's scales are far enough from zero that rounding is not amplified."""
    W, X = data.draw(lg.strategies.points(normalizer, units=H, features=D, samples=N))
    return np.asarray(W), np.asarray(X)


@pytest.mark.thorough
@pytest.mark.parametrize("name", NORMALIZERS)
@given(data=st.data(), eps=eps_values)
def test_general_definition_is_the_library_s(name, data, eps):
    normalizer = NORMALIZERS[name](eps=eps)
    W, X = _point(data, normalizer)
    ours = outputs(name)(**_fields(layers.METHODS[name], W, X), epsilon=eps)
    assert agreement(ours, normalizer(jnp.array(W), jnp.array(X)), TOLERANCE).agrees


@pytest.mark.parametrize("name", [name for name in NORMALIZERS if name != "BatchNormEvaluation"])
@given(data=st.data(), eps=eps_values)
def test_concrete_definition_is_the_library_s(name, data, eps):
    normalizer = NORMALIZERS[name](eps=eps)
    W, X = _point(data, normalizer)
    rows = layers.METHODS[name].rows(W.tolist(), X.tolist(), eps)
    ours = np.array([[numerator / np.sqrt(square) for numerator, square in row] for row in rows])
    assert agreement(ours, normalizer(jnp.array(W), jnp.array(X)), TOLERANCE).agrees


@cache
def slopes(name):
    method = layers.METHODS[name]
    return compiled(lambda n, i: along(method, sums.field("V"), EPS, n, i), (N, H), SIZES, [EPS])


@pytest.mark.parametrize("name", ["BatchNorm", "WeightNorm", "LayerNorm", "RMSNorm"])
@given(data=st.data(), V=directions, eps=eps_values)
def test_directional_derivative_is_that_of_automatic_differentiation(name, data, V, eps):
    normalizer = NORMALIZERS[name](eps=eps)
    W, X = _point(data, normalizer)
    V = np.asarray(V)
    _, slope = jax.jvp(lambda W: normalizer(W, jnp.array(X)), (jnp.array(W),), (jnp.array(V),))
    ours = slopes(name)(W=W, X=X, V=V, epsilon=eps)
    assert np.max(np.abs(ours - slope)) <= 1e-8 * (1 + np.max(np.abs(slope)))


@cache
def own_slopes(name):
    method = layers.METHODS[name]
    return compiled(lambda n, i: chi(method, sums.field("V"), i).subs(sums.n, n), (N, H), SIZES)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["BatchNorm", "WeightNorm", "LayerNorm"])
@given(data=st.data(), V=directions)
def test_chi_of_equation_14_is_the_own_row_derivative(name, data, V):
    normalizer = NORMALIZERS[name](eps=0.0)
    (W, X), V = _point(data, normalizer), np.asarray(V)
    jacobian = jax.jacobian(lambda W: normalizer(W, jnp.array(X)))(jnp.array(W))
    scale = jnp.broadcast_to(normalizer.statistics(jnp.array(W), jnp.array(X)).scale, (N, H))
    own = scale * jnp.einsum("niid,id->ni", jacobian, jnp.array(V))
    ours = own_slopes(name)(W=W, X=X, V=V)
    assert np.max(np.abs(ours - own)) <= 1e-8 * (1 + np.max(np.abs(own)))


@cache
def ratio_of_outputs():
    square = layers.LAYER_NORM.square
    return compiled(
        lambda n: sp.sqrt((square(LAYER, n, 1) + EPS) / (square(LAYER, n, 1) + EPS / 4)), (N,), SIZES, [EPS]
    )


@given(lg.strategies.points(lg.normalizers.LayerNorm(), units=H, features=D, samples=N), st.sampled_from([1e-3, 0.5]))
def test_ratio_of_outputs_with_eps_is_the_library_s(point, eps):
    normalizer = lg.normalizers.LayerNorm(eps=eps)
    W, X = map(np.asarray, point)
    before, after = (normalizer(jnp.array(c * W), jnp.array(X)) for c in (1.0, 2.0))
    ratio = ratio_of_outputs()(W=W, X=X, epsilon=eps)
    assert agreement(after, before * ratio[:, None], TOLERANCE).agrees


def test_a_wrong_definition_is_noticed():
    wrong = compiled(lambda n, i: 2 * layers.LAYER_NORM(LAYER, n, i), (N, H), SIZES)
    W, X = np.arange(8.0).reshape(H, D) ** 2, np.arange(6.0).reshape(N, D) + 1
    assert not agreement(wrong(W=W, X=X), lg.normalizers.LayerNorm()(jnp.array(W), jnp.array(X)), TOLERANCE).agrees

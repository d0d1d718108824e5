"""Symbolic expressions, compiled, against the library's numerical code."""

import hypothesis.extra.numpy as npst
import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
import sympy as sp
from hypothesis import assume, given, strategies as st
from lngeom._numerics import agreement
from lngeom.symbolic import layers, sums
from lngeom.symbolic.evaluation import compiled
from lngeom.symbolic.fisher_blocks import chi
from lngeom.symbolic.nullspaces import LAYER, along

H, D, N = 4, 2, 3
SIZES = {sums.H: H, sums.D: D, sums.N: N, sums.G: 2, sums.M: 2}
TOLERANCE = 1e-9
EPS = layers.EPSILON

entries = st.integers(-400, 400).map(lambda v: v / 100)
weights = npst.arrays(float, (H, D), elements=entries)
inputs = npst.arrays(float, (N, D), elements=entries)
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


COMPILED = {
    name: compiled(
        lambda n, i, method=layers.METHODS[name]: method(LAYER, n, _unit(method, i), EPS), (N, H), SIZES, [EPS]
    )
    for name in NORMALIZERS
}


def _well_defined(normalizer, W, X):
    """Scales far enough from zero that rounding is not amplified."""
    scale = normalizer.statistics(jnp.array(W), jnp.array(X)).scale
    return bool(jnp.min(scale) > 0.2)


@pytest.mark.parametrize("name", NORMALIZERS)
@given(W=weights, X=inputs, eps=eps_values)
def test_general_definition_is_the_library_s(name, W, X, eps):
    normalizer = NORMALIZERS[name](eps=eps)
    assume(_well_defined(normalizer, W, X))
    ours = COMPILED[name](**_fields(layers.METHODS[name], W, X), epsilon=eps)
    assert agreement(ours, normalizer(jnp.array(W), jnp.array(X)), TOLERANCE).agrees


@pytest.mark.parametrize("name", [name for name in NORMALIZERS if name != "BatchNormEvaluation"])
@given(W=weights, X=inputs, eps=eps_values)
def test_concrete_definition_is_the_library_s(name, W, X, eps):
    normalizer = NORMALIZERS[name](eps=eps)
    assume(_well_defined(normalizer, W, X))
    rows = layers.METHODS[name].rows(W.tolist(), X.tolist(), eps)
    ours = np.array([[numerator / np.sqrt(square) for numerator, square in row] for row in rows])
    assert agreement(ours, normalizer(jnp.array(W), jnp.array(X)), TOLERANCE).agrees


JACOBIANS = {
    name: compiled(
        lambda n, i, method=layers.METHODS[name]: along(method, sums.field("V"), EPS, n, i), (N, H), SIZES, [EPS]
    )
    for name in ("BatchNorm", "WeightNorm", "LayerNorm", "RMSNorm")
}


@pytest.mark.parametrize("name", JACOBIANS)
@given(W=weights, X=inputs, V=weights, eps=eps_values)
def test_directional_derivative_is_that_of_automatic_differentiation(name, W, X, V, eps):
    normalizer = NORMALIZERS[name](eps=eps)
    assume(_well_defined(normalizer, W, X) and np.any(V))
    _, slope = jax.jvp(lambda W: normalizer(W, jnp.array(X)), (jnp.array(W),), (jnp.array(V),))
    ours = JACOBIANS[name](W=W, X=X, V=V, epsilon=eps)
    assert np.max(np.abs(ours - slope)) <= 1e-8 * (1 + np.max(np.abs(slope)))


CHI = {
    name: compiled(
        lambda n, i, method=layers.METHODS[name]: chi(method, sums.field("V"), i).subs(sums.n, n), (N, H), SIZES
    )
    for name in ("BatchNorm", "WeightNorm", "LayerNorm")
}


@pytest.mark.parametrize("name", CHI)
@given(W=weights, X=inputs, V=weights)
def test_chi_of_equation_14_is_the_own_row_derivative(name, W, X, V):
    normalizer = NORMALIZERS[name](eps=0.0)
    assume(_well_defined(normalizer, W, X))
    jacobian = jax.jacobian(lambda W: normalizer(W, jnp.array(X)))(jnp.array(W))
    scale = jnp.broadcast_to(normalizer.statistics(jnp.array(W), jnp.array(X)).scale, (N, H))
    own = scale * jnp.einsum("niid,id->ni", jacobian, jnp.array(V))
    ours = CHI[name](W=W, X=X, V=V)
    assert np.max(np.abs(ours - own)) <= 1e-8 * (1 + np.max(np.abs(own)))


RATIO = compiled(
    lambda n: sp.sqrt(
        (layers.LAYER_NORM.square(LAYER, n, 1) + EPS) / (layers.LAYER_NORM.square(LAYER, n, 1) + EPS / 4)
    ),
    (N,),
    SIZES,
    [EPS],
)


@given(W=weights, X=inputs, eps=st.sampled_from([1e-3, 0.5]))
def test_ratio_of_outputs_with_eps_is_the_library_s(W, X, eps):
    normalizer = lg.normalizers.LayerNorm(eps=eps)
    assume(_well_defined(lg.normalizers.LayerNorm(), W, X))
    before, after = (normalizer(jnp.array(c * W), jnp.array(X)) for c in (1.0, 2.0))
    ratio = RATIO(W=W, X=X, epsilon=eps)
    assert agreement(after, before * ratio[:, None], TOLERANCE).agrees


def test_a_wrong_definition_is_noticed():
    wrong = compiled(lambda n, i: 2 * layers.LAYER_NORM(LAYER, n, i), (N, H), SIZES)
    W, X = np.arange(8.0).reshape(H, D) ** 2, np.arange(6.0).reshape(N, D) + 1
    assert not agreement(wrong(W=W, X=X), lg.normalizers.LayerNorm()(jnp.array(W), jnp.array(X)), TOLERANCE).agrees

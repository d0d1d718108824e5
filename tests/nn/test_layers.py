"""Values of the layers against their formulas and other libraries; modules; conversion; bad input."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lngeom import nn
from lngeom.nn.functional import RunningStatistics

from tests.nn.oracle import residual, row_norm

pytestmark = pytest.mark.optimized

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(3, 4, 12)) * 2 + 1)
GAIN, BIAS = (jnp.asarray(RNG.normal(size=12)) for _ in range(2))


def test_layer_norm_is_equation_3():
    expected = row_norm(np.asarray(X).reshape(-1, 12), GAIN, BIAS, np.ones((12, 12)), 1e-5)[0]
    assert residual(nn.layer_norm(X, GAIN, BIAS).reshape(-1, 12), expected) <= 1e-14


def test_norms_without_gain_and_bias_are_those_with_ones_and_zeros():
    for norm in (nn.layer_norm, nn.rms_norm, lambda *a: nn.group_norm(*a, groups=3)):
        np.testing.assert_array_equal(norm(X), norm(X, jnp.ones(12), jnp.zeros(12)))


@pytest.mark.parametrize("positions", [0, 1])
def test_group_norm_standardizes_each_group(positions):
    y = np.asarray(nn.group_norm(X, GAIN, BIAS, groups=3, positions=positions, eps=0.1))
    axes = (3,) if positions == 0 else (1, 3)
    grouped = np.asarray(X).reshape(3, 4, 3, 4)
    centered = grouped - grouped.mean(axes, keepdims=True)
    n = centered / np.sqrt((centered**2).mean(axes, keepdims=True) + 0.1)
    assert residual(y, n.reshape(3, 4, 12) * np.asarray(GAIN) + np.asarray(BIAS)) <= 1e-14


def test_group_norm_of_one_group_is_layer_norm():
    np.testing.assert_allclose(nn.group_norm(X, GAIN, BIAS, groups=1), nn.layer_norm(X, GAIN, BIAS), rtol=1e-13)


@pytest.mark.parametrize("exact", [False, True])
def test_batch_norm_in_evaluation_with_its_own_statistics_repeats_training(exact):
    y, running = nn.batch_norm(X, GAIN, BIAS, exact=exact)
    again, same = nn.batch_norm(X, GAIN, BIAS, running, training=False, exact=exact)
    assert residual(again, y) <= 1e-13
    np.testing.assert_array_equal(same.mean, running.mean)
    rows = np.asarray(X).reshape(-1, 12)
    assert residual(running.mean, rows.mean(0)) <= 1e-14
    assert residual(running.variance, rows.var(0)) <= 1e-13


def test_no_gradient_reaches_running_statistics():
    gradient = jax.grad(lambda x: jnp.sum(nn.batch_norm(x)[1].variance))(X)
    np.testing.assert_array_equal(gradient, 0)


def test_the_stored_mean_of_offset_data_is_within_one_unit_of_the_last_place():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2000, 6)) + 1000, jnp.float32)
    stored = np.asarray(nn.batch_norm(x)[1].mean, np.float64)
    assert np.max(np.abs(stored - np.asarray(x, np.float64).mean(0))) <= np.spacing(np.float32(1000))


@pytest.mark.parametrize("exact", [False, True])
def test_weight_norm_divides_by_the_length_of_each_weight_vector(exact):
    weights = jnp.asarray(RNG.normal(size=(5, 12)))
    z = nn.weight_norm(X, weights, GAIN[:5], BIAS[:5], exact=exact)
    w = np.asarray(weights)
    directions = w / np.linalg.norm(w, axis=1, keepdims=True)
    expected = np.asarray(X) @ directions.T * np.asarray(GAIN[:5]) + np.asarray(BIAS[:5])
    assert residual(z, expected) <= 1e-14

    def norm(w):
        return jnp.sum(jnp.sin(nn.weight_norm(X, w, exact=exact)))

    def plain(w):
        return jnp.sum(jnp.sin(X @ (w / jnp.linalg.norm(w, axis=1, keepdims=True)).T))

    assert residual(jax.grad(norm)(weights), jax.grad(plain)(weights)) <= 1e-12


MODULES = {
    "layer": (lambda **o: nn.LayerNorm(12, **o), lambda g, b: nn.layer_norm(X, g, b, eps=0.3)),
    "rms": (lambda **o: nn.RMSNorm(12, **o), lambda g, b: nn.rms_norm(X, g, b, eps=0.3)),
    "group": (
        lambda **o: nn.GroupNorm(12, 4, positions=1, **o),
        lambda g, b: nn.group_norm(X, g, b, groups=4, positions=1, eps=0.3),
    ),
    "batch": (lambda **o: nn.BatchNorm(12, **o), lambda g, b: nn.batch_norm(X, g, b, eps=0.3)[0]),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_start_as_the_identity_affine_map_and_apply_their_function(name):
    make, function = MODULES[name]
    module = make(eps=0.3, dtype=jnp.float64)
    np.testing.assert_array_equal(module.gain, 1)
    np.testing.assert_array_equal(module.bias, 0)
    module = eqx.tree_at(lambda m: (m.gain, m.bias), module, (GAIN, BIAS))
    y = eqx.filter_jit(module)(X)
    np.testing.assert_allclose(y[0] if name == "batch" else y, function(GAIN, BIAS), rtol=1e-12)
    assert make(use_gain=False, use_bias=False).gain is None


def test_weight_norm_module_applies_its_function():
    module = nn.WeightNorm(12, 5, key=jax.random.key(0), dtype=jnp.float64)
    np.testing.assert_array_equal(module(X), nn.weight_norm(X, module.weights))


def converted(source, **options):
    layer = nn.convert_layer_norm(source, **options)
    assert isinstance(layer, nn.LayerNorm)
    return layer


def test_conversion_from_flax_and_equinox_keeps_values():
    linen = pytest.importorskip("flax.linen")
    nnx = pytest.importorskip("flax.nnx")
    parameters = {"scale": GAIN, "bias": BIAS}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        expected = linen.LayerNorm(use_fast_variance=False).apply({"params": parameters}, X)
    np.testing.assert_allclose(converted(parameters)(X), expected, rtol=1e-12)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        source = nnx.LayerNorm(12, epsilon=0.2, use_fast_variance=False, rngs=nnx.Rngs(0), param_dtype=jnp.float64)
        source.scale[...] = GAIN
        expected = source(X)
        unbiased = nnx.LayerNorm(12, use_bias=False, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(converted(source)(X), expected, rtol=1e-12)
    assert converted(unbiased).bias is None
    source = eqx.tree_at(lambda m: (m.weight, m.bias), eqx.nn.LayerNorm(12, eps=0.2), (GAIN, BIAS))
    np.testing.assert_allclose(converted(source)(X), jax.vmap(jax.vmap(source))(X), rtol=1e-12)
    source = eqx.nn.LayerNorm(12, use_bias=False)
    assert converted(source).bias is None
    assert converted(source, exact=True).eps == 0


@pytest.mark.parametrize("source", [{}, {"kernel": GAIN}, {"LayerNorm_0": {"scale": GAIN}}, object()])
def test_conversion_of_something_else_says_what_is_needed(source):
    with pytest.raises(ValueError, match="must be a LayerNorm with a gain or a bias"):
        nn.convert_layer_norm(source)


def test_conversion_refuses_gains_over_several_axes():
    with pytest.raises(ValueError, match="vectors"):
        nn.convert_layer_norm(eqx.nn.LayerNorm((3, 4)))


@pytest.mark.peers
def test_layer_norm_agrees_with_torch_in_value_and_gradient():
    torch = pytest.importorskip("torch")
    args = [np.asarray(v) for v in (X, GAIN, BIAS)]
    ct = RNG.normal(size=X.shape)
    theirs = [torch.tensor(v, requires_grad=True) for v in args]
    output = torch.nn.functional.layer_norm(theirs[0], (12,), theirs[1], theirs[2])
    gradients = torch.autograd.grad(output, theirs, torch.tensor(ct))
    ours, pullback = jax.vjp(nn.layer_norm, *map(jnp.asarray, args))
    assert residual(ours, output.detach().numpy()) <= 1e-13
    for mine, other in zip(pullback(jnp.asarray(ct)), gradients, strict=True):
        assert residual(mine, other.numpy()) <= 1e-13


@pytest.mark.peers
def test_batch_and_group_norm_agree_with_torch():
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    rows = np.asarray(X).reshape(-1, 12)
    g, b = (torch.tensor(np.asarray(v)) for v in (GAIN, BIAS))
    mean, variance = torch.zeros(12).double(), torch.ones(12).double()
    theirs = functional.batch_norm(torch.tensor(rows), mean, variance, g, b, training=True, momentum=0.1)
    stored = RunningStatistics(jnp.zeros(12), jnp.ones(12))
    ours, running = nn.batch_norm(jnp.asarray(rows), GAIN, BIAS, stored, unbiased=True)
    assert residual(ours, theirs.numpy()) <= 1e-13
    assert residual(running.variance, variance.numpy()) <= 1e-13
    theirs = functional.group_norm(torch.tensor(np.moveaxis(np.asarray(X), 2, 1)), 3, g, b)
    ours = nn.group_norm(X, GAIN, BIAS, groups=3, positions=1)
    assert residual(np.moveaxis(np.asarray(ours), 2, 1), theirs.numpy()) <= 1e-13


BAD = {
    "integers": (lambda: nn.layer_norm(jnp.arange(6).reshape(2, 3)), "floating point; got dtype int"),
    "no units": (lambda: nn.layer_norm(jnp.zeros((2, 0))), "at least one unit"),
    "a scalar": (lambda: nn.rms_norm(jnp.zeros(())), "at least one unit"),
    "mismatched gain": (lambda: nn.layer_norm(X, jnp.ones(3)), r"gain must have shape \[H\] = \(12,\)"),
    "matrix bias": (lambda: nn.rms_norm(X, None, jnp.ones((1, 12))), "bias must have shape"),
    "integer gain": (lambda: nn.layer_norm(X, jnp.ones(12, int)), "gain must be floating point"),
    "negative eps": (lambda: nn.layer_norm(X, eps=-1.0), "eps must be at least 0"),
    "eps in exact mode": (lambda: nn.layer_norm(X, eps=1e-5, exact=True), "leave it out"),
    "one unit without eps": (lambda: nn.layer_norm(jnp.ones((2, 1)), eps=0.0), "of one unit is undefined"),
    "groups of one unit without eps": (
        lambda: nn.group_norm(X, groups=12, eps=0.0),
        "a group of one unit is undefined",
    ),
    "groups": (lambda: nn.group_norm(X, groups=5), "groups must divide"),
    "positions": (lambda: nn.group_norm(X, groups=3, positions=3), "positions must lie between"),
    "nothing stored": (lambda: nn.batch_norm(X, training=False), "evaluation needs stored statistics"),
    "stored for others": (
        lambda: nn.batch_norm(X, running=RunningStatistics(jnp.ones(3), jnp.ones(3))),
        "running mean must have shape",
    ),
    "empty batch in training": (lambda: nn.batch_norm(X[:0]), "at least 1 sample"),
    "one sample, unbiased": (lambda: nn.batch_norm(X[0, :1], unbiased=True), "at least 2 sample"),
    "weights of other inputs": (
        lambda: nn.weight_norm(X, jnp.ones((5, 3))),
        r"weights must be \[H D\] with D = 12",
    ),
    "module of no units": (lambda: nn.LayerNorm(0), "units must be at least 1"),
    "module groups": (lambda: nn.GroupNorm(12, 5), "groups must divide"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_clear_error(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_an_empty_batch_is_an_empty_result():
    for norm in (nn.layer_norm, nn.rms_norm, lambda x: nn.group_norm(x, groups=3)):
        assert norm(X[:0]).shape == (0, 4, 12)
    gradient = jax.grad(lambda g: jnp.sum(nn.layer_norm(X[:0], g)))(GAIN)
    np.testing.assert_array_equal(gradient, 0)


def test_one_unit_gives_the_bias():
    bias = jnp.array([3.0])
    for options in ({}, {"exact": True}):
        np.testing.assert_array_equal(nn.layer_norm(jnp.array([[5.0], [0.1]]), None, bias, **options), 3)


def test_two_units_without_eps_are_signs():
    y = nn.layer_norm(jnp.array([[1.0, 5.0], [0.3, -1e-20]]), exact=True)
    np.testing.assert_array_equal(y, [[-1, 1], [1, -1]])


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_a_row_with_a_nan_leaves_the_others_alone(bad, exact):
    spoilt = X.at[1, 2, 3].set(bad)
    y, clean = nn.layer_norm(spoilt, exact=exact), nn.layer_norm(X, exact=exact)
    assert jnp.isnan(y[1, 2]).all()
    keep = np.ones((3, 4), bool)
    keep[1, 2] = False
    np.testing.assert_array_equal(np.asarray(y)[keep], np.asarray(clean)[keep])

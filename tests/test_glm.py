"""Normalizers, transformations and the normalized GLM."""

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom._core.numerics import agreement
from lngeom.claims import numpy_reference
from lngeom.methods.transformations import TABLE1
from lngeom.methods.transformations.actions import AffineAction, Transformation
from lngeom.methods.transformations.columns import WEIGHT_SIGN_FLIP

from tests.cases import FAMILIES, drawn, normalizers

X = drawn(0, 20, 5)
LAYER = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
PARAMS = LAYER.init(jax.random.key(1), inputs=5, outputs=6)


def spread(params, seed=4):
    """The same weights with gains and biases away from 1 and 0."""
    keys = jax.random.split(jax.random.key(seed))
    gain = jax.random.uniform(keys[0], params.gain.shape, params.gain.dtype, 0.5, 1.5)
    return lg.GLMParameters(params.weights, params.bias - 0.3 * jax.random.uniform(keys[1], params.bias.shape), gain)


@pytest.mark.parametrize(
    ("method", "name"), [("identity", "identity"), ("bn", "batch"), ("wn", "weight"), ("ln", "layer"), ("rms", "rms")]
)
def test_normalizers_are_the_equations(method, name):
    model = lg.NormalizedGLM(normalizers(6, 5)[name], lg.families.Gaussian())
    params = spread(PARAMS)
    assert agreement(model.natural_parameters(params, X), numpy_reference.natural_parameters(method, params, X)).agrees


def test_group_norm_is_layer_norm_of_each_group():
    found = lg.normalizers.GroupNorm(3)(PARAMS.weights, X)
    parts = [lg.normalizers.LayerNorm()(PARAMS.weights[k : k + 2], X) for k in (0, 2, 4)]
    assert agreement(found, jnp.concatenate(parts, 1)).agrees


def test_evaluation_with_the_data_sets_own_statistics_is_training():
    training = lg.normalizers.BatchNorm(0.1)
    stored = training.evaluation(PARAMS.weights, X)
    assert agreement(training(PARAMS.weights, X), stored(PARAMS.weights, X)).agrees


@pytest.mark.parametrize("name", normalizers(6, 5))
def test_normalizers_take_positions(name):
    tokens = drawn(3, 4, 3, 5)
    assert normalizers(6, 5)[name](PARAMS.weights, tokens).shape == (4, 3, 6)


def test_batch_norm_takes_its_moments_over_positions_too():
    tokens = drawn(3, 4, 3, 5)
    found = lg.normalizers.BatchNorm()(PARAMS.weights, tokens)
    flat = lg.normalizers.BatchNorm()(PARAMS.weights, tokens.reshape(12, 5))
    assert agreement(found.reshape(12, 6), flat).agrees


def test_the_divergence_is_from_the_first_model_to_the_second():
    model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Poisson())
    params, other = spread(PARAMS), spread(PARAMS, 7)
    p, q = (np.exp(np.asarray(model.natural_parameters(at, X), float)) for at in (params, other))
    expected = np.mean(np.sum(p * np.log(p / q) - p + q, 1))
    assert float(model.kl(params, other, X)) == pytest.approx(expected, rel=1e-4)


def test_actions_scale_then_shift_compose_and_invert():
    first, second = AffineAction(2.0, 3.0), AffineAction(5.0, 7.0)
    value = jnp.array([1.0, -4.0])
    assert first(value).tolist() == [5.0, -5.0]
    assert (second @ first)(value).tolist() == [32.0, -18.0]
    assert first.inverse()(first(value)).tolist() == value.tolist()


def test_each_parameter_has_its_own_action():
    params = lg.GLMParameters(jnp.ones((2, 3)), jnp.full(2, 5.0), jnp.full(2, 7.0))
    scales = {"weights": 2.0, "inputs": 3.0, "gain": 10.0, "bias": 100.0}
    move = Transformation(**{name: AffineAction(scale) for name, scale in scales.items()})
    moved, inputs = move(params, jnp.ones((4, 3)))
    assert [float(v.max()) for v in (moved.weights, inputs, moved.gain, moved.bias)] == [2.0, 3.0, 70.0, 500.0]


@pytest.mark.parametrize("column", [*TABLE1, WEIGHT_SIGN_FLIP], ids=lambda c: c.name)
def test_transformations_form_a_group(column):
    params = spread(PARAMS)
    first, second = (column.draw(jax.random.key(k), params, X) for k in (1, 2))
    back = first.inverse()(*first(params, X))
    once = (second @ first)(params, X)
    twice = second(*first(params, X))
    for a, b in zip(jax.tree.leaves((back, once)), jax.tree.leaves(((params, X), twice)), strict=True):
        assert agreement(a, b).agrees
    assert (
        not agreement(jax.tree.leaves(first(params, X))[0], params.weights).agrees
        or not agreement(first(params, X)[1], X).agrees
    )


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAMILIES)
def test_kl_and_log_prob_have_their_shapes(name):
    model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), FAMILIES[name])
    params = model.init(jax.random.key(1), inputs=5, outputs=6)
    y = model.sample(jax.random.key(2), params, X)
    assert model.log_prob(params, X, y).shape == (20,)
    assert model.kl(params, spread(params), X).shape == ()
    assert float(model.kl(params, spread(params), X)) > 0


def test_parameters_follow_their_dtype():
    params = LAYER.init(jax.random.key(1), inputs=5, outputs=6, dtype=jnp.float32)
    assert LAYER.natural_parameters(params, X.astype(jnp.float32)).dtype == jnp.float32


def test_works_under_jit_vmap_and_grad():
    z = jax.jit(LAYER.natural_parameters)(PARAMS, X)
    assert agreement(z, LAYER.natural_parameters(PARAMS, X)).agrees
    batched = jax.vmap(LAYER.natural_parameters, (None, 0))(PARAMS, jnp.stack([X, 2 * X]))
    assert agreement(batched[0], batched[1]).agrees
    gradient = jax.grad(lambda p: jnp.sum(LAYER.natural_parameters(p, X)))(PARAMS)
    assert np.isfinite(gradient.weights).all()


@pytest.mark.parametrize(
    ("params", "inputs", "message"),
    [
        (PARAMS, X[:, :4], r"must have D = 5 columns, as weights has; got shape \(20, 4\)"),
        (PARAMS, X[0], r"must be \[N D\].*got shape \(5,\)"),
        (PARAMS, X[:0], r"must not be empty; got shape \(0, 5\)"),
        (PARAMS, X.at[0, 0].set(jnp.nan), "inputs must be finite; 1 of 100 entries"),
        (PARAMS, X.at[3].set(0.0), r"zero variance .* for 6 of 120 .* \(3, 0\)"),
        (PARAMS, jnp.ones((4, 5), int), "must be floating point; got dtype int64"),
        (
            lg.GLMParameters(PARAMS.weights, PARAMS.bias[:3], PARAMS.gain),
            X,
            r"bias must have shape \[H\] = \(6,\).*got \(3,\)",
        ),
        (
            lg.GLMParameters(PARAMS.weights[0], PARAMS.bias, PARAMS.gain),
            X,
            r"weights must be a matrix \[H D\]; got shape \(5,\)",
        ),
        (lg.GLMParameters(PARAMS.weights[:1], PARAMS.bias[:1], PARAMS.gain[:1]), X, "of one unit is undefined"),
    ],
)
def test_bad_input_is_named(params, inputs, message):
    with pytest.raises(ValueError, match=message):
        LAYER.natural_parameters(params, inputs)


def test_batch_norm_of_one_sample_is_undefined():
    model = lg.NormalizedGLM(lg.normalizers.BatchNorm(), lg.families.Bernoulli())
    with pytest.raises(ValueError, match="BatchNorm is undefined: zero variance"):
        model.natural_parameters(PARAMS, X[:1])


@pytest.mark.parametrize("make", [lg.normalizers.LayerNorm, lg.normalizers.BatchNorm, lg.normalizers.WeightNorm])
@pytest.mark.parametrize("eps", [-1e-5, float("nan")])
def test_eps_must_not_be_negative(make, eps):
    with pytest.raises(ValueError, match="eps must be at least 0"):
        make(eps=eps)


def test_groups_must_divide_the_units():
    with pytest.raises(ValueError, match="multiple of groups = 4; got H = 6"):
        lg.normalizers.GroupNorm(4)(PARAMS.weights, X)
    with pytest.raises(ValueError, match="groups must be at least 1"):
        lg.normalizers.GroupNorm(0)


def test_sizes_must_be_positive():
    with pytest.raises(ValueError, match="must be at least 1; got inputs=0"):
        LAYER.init(jax.random.key(0), inputs=0, outputs=3)

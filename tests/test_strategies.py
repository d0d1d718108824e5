"""Strategies: all they draw is valid, everything can be drawn, and a planted bug shrinks to what one can read."""

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from hypothesis import find, given, settings, strategies as st
from lngeom._core.numerics import agreement
from lngeom.checks import strategies
from lngeom.checks.strategies.models import LARGEST, is_valid
from lngeom.checks.strategies.numbers import BREAKING

FIND = settings(max_examples=500, database=None, derandomize=True)


SIZES = {"units": 4, "features": 2, "samples": 3}


@pytest.mark.thorough
@settings(max_examples=60)
@given(strategies.problems(**SIZES))
def test_every_problem_is_valid(problem):
    model, params, X, y = problem
    z = model.natural_parameters(params, X)  # raises where σ = 0, z is not finite or outside the domain
    assert jnp.max(jnp.abs(z)) <= LARGEST + 4
    assert jnp.all(params.gain != 0)
    assert jnp.all(jnp.isfinite(model.log_prob(params, X, y)))
    assert is_valid(model.normalizer, params.weights, X)


def test_validity_is_not_empty():
    constant = jnp.ones((3, 2)), jnp.ones((2, 2))
    assert not is_valid(lg.normalizers.LayerNorm(), *constant)
    assert not is_valid(lg.normalizers.BatchNorm(), *constant)
    assert not is_valid(lg.normalizers.WeightNorm(), jnp.zeros((3, 2)), constant[1])
    assert is_valid(lg.normalizers.RMSNorm(), *constant)


@pytest.mark.parametrize(
    "kind", ["BatchNorm", "WeightNorm", "LayerNorm", "RMSNorm", "GroupNorm", "BatchNormEvaluation"]
)
def test_every_normalizer_can_be_drawn(kind):
    drawn = find(strategies.normalizers(units=4), lambda n: type(n).__name__ == kind, settings=FIND)
    assert drawn(jnp.ones((4, 2)), jnp.ones((3, 2))).shape == (3, 4)


@settings(max_examples=60)
@given(strategies.data_sets())
def test_data_sets_are_finite_and_not_zero(X):
    assert bool(jnp.all(jnp.isfinite(X)))
    assert np.linalg.matrix_rank(np.asarray(X)) >= 1


@settings(max_examples=30)
@given(strategies.data_sets(samples=5, features=4, rank=2))
def test_rank_is_the_one_asked_for(X):
    assert np.linalg.matrix_rank(np.asarray(X)) == 2


@settings(max_examples=30)
@given(strategies.layer_inputs(offset=2.0**20, scale=2.0**-2, dtype=jnp.float32))
def test_layer_inputs_have_a_variance_after_rounding(a):
    assert a.dtype == jnp.float32
    assert bool(jnp.all(jnp.ptp(a, 1) > 0))


@pytest.mark.thorough
@settings(max_examples=60)
@given(
    strategies.problems(normalizer=lg.normalizers.LayerNorm(), family=lg.families.Gaussian(), **SIZES).flatmap(
        lambda p: strategies.transformations(p.params, p.inputs).map(lambda drawn: (p, *drawn))
    )
)
def test_layer_norm_follows_table_1_under_every_transformation(drawn):
    (model, params, X, _), column, move = drawn
    moved, data = move(params, X)
    assert not (bool(jnp.all(moved.weights == params.weights)) and bool(jnp.all(data == X)))
    if column.name in {
        "weight_matrix_rescaling",
        "weight_matrix_recentering",
        "dataset_rescaling",
        "single_case_rescaling",
    }:
        assert agreement(model.normalized(moved, data), model.normalized(params, X), 1e-9).agrees


@pytest.mark.thorough
def test_a_planted_bug_shrinks_to_a_readable_example():
    def is_wrong(problem):
        """An implementation that divides by the variance, and takes |g| for the gain."""
        model, params, X, _ = problem
        a = X @ params.weights.T
        a = a - jnp.mean(a, 1, keepdims=True)
        wrong = a / jnp.mean(a * a, 1, keepdims=True) * jnp.abs(params.gain)[None, :] + params.bias[None, :]
        return not agreement(wrong, model.natural_parameters(params, X)).agrees

    problem = find(
        strategies.problems(
            normalizer=lg.normalizers.LayerNorm(),
            family=lg.families.Gaussian(),
            units=st.integers(3, 4),
            features=st.integers(1, 2),
            samples=st.integers(2, 3),
        ),
        is_wrong,
        settings=FIND,
    )
    assert problem.params.weights.tolist() == [[1.0], [2.0], [3.0]]
    assert problem.inputs.tolist() == [[1.0], [2.0]]
    assert problem.params.gain.tolist() == [1.0, 1.0, 1.0]
    assert problem.params.bias.tolist() == [0.0, 0.0, 0.0]


def test_a_bug_of_negative_gains_shrinks_to_one_negative_gain():
    problem = find(
        strategies.problems(normalizer=lg.normalizers.RMSNorm(), family=lg.families.Gaussian(), **SIZES),
        lambda p: bool(jnp.any(p.params.gain < 0)),
        settings=FIND,
    )
    assert sorted(problem.params.gain.tolist()) == [-1.0, 1.0, 1.0, 1.0]
    assert jnp.all(problem.params.weights == jnp.round(problem.params.weights))


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (strategies.points(lg.normalizers.LayerNorm(), units=1), "LayerNorm of one unit is undefined"),
        (strategies.points(lg.normalizers.BatchNorm(), samples=1), "two samples"),
        (strategies.data_sets(samples=2, features=3, rank=3), "rank must be between 1 and"),
        (strategies.layer_inputs(width=1), "width must be at least 2"),
        (strategies.breaking_inputs(width=1), "width must be at least 2"),
        (strategies.breaking_inputs(kinds=["zeros"]), "kinds must be some of constant rows"),
        (strategies.breaking_inputs(kinds=[]), "kinds must be some of constant rows"),
        (strategies.normalizers(units=0), "units must be at least 1"),
    ],
)
def test_sizes_that_allow_nothing_valid_are_refused(strategy, message):
    with pytest.raises(ValueError, match=message):
        find(strategy, lambda value: True, settings=FIND)


def gradient(norm, a):
    c = jnp.reshape(jnp.cos(jnp.arange(a.size, dtype=a.dtype)), a.shape)  # no multiple of ones
    return jax.grad(lambda a: jnp.sum(c * norm(a)))(a)


@pytest.mark.parametrize("kind", BREAKING)
@settings(max_examples=25)
@given(data=st.data())
def test_gradients_of_our_norms_are_finite_and_orthogonal_where_derivatives_break(kind, data):
    a = data.draw(strategies.breaking_inputs(kinds=[kind], rows=2, width=4))
    if kind == "one unit":
        assert a.shape == (2, 1)
    layer = gradient(lg.nn.layer_norm, a)
    assert bool(jnp.all(jnp.isfinite(layer)))
    assert bool(jnp.all(jnp.isfinite(gradient(lg.nn.rms_norm, a))))
    assert float(jnp.max(jnp.abs(jnp.sum(layer, 1)))) <= 1e-9 * max(float(jnp.max(jnp.abs(layer))), 1.0)


def root_of_a_sum(a):
    return a / (jnp.linalg.norm(a - a.mean(-1, keepdims=True), axis=-1, keepdims=True) + 1e-6)


def two_pass(a):
    square = jnp.mean(a**2, -1, keepdims=True) - jnp.mean(a, -1, keepdims=True) ** 2
    return (a - a.mean(-1, keepdims=True)) / jnp.sqrt(jnp.maximum(square, 0.0) + 1e-5)


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        ("constant rows", lambda a: a[1, 0] > 0 and not jnp.all(jnp.isfinite(gradient(root_of_a_sum, a)[1]))),
        ("one unit", lambda a: not jnp.all(jnp.isfinite(gradient(root_of_a_sum, a)))),
        ("masked", lambda a: not jnp.all(jnp.isfinite(gradient(lambda a: a / jnp.linalg.norm(a), a[0])))),
        ("tiny variance", lambda a: jnp.std(a[0]) < 1e-4),
        (
            "large offset",
            lambda a: agreement(gradient(two_pass, a), gradient(lg.nn.layer_norm, a), tol=0.0).residual > 1e-3,
        ),
    ],
)
def test_a_broken_derivative_is_found(kind, broken):
    drawn = find(strategies.breaking_inputs(kinds=[kind], rows=2, width=4, dtype=jnp.float32), broken, settings=FIND)
    assert bool(jnp.all(jnp.isfinite(drawn)))

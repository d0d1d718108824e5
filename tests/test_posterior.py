"""Evidence and predictions do not change when weights before a norm are rescaled, and change without the gauge."""

import pickle
from dataclasses import replace

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from tests.cases import drawn

X = drawn(0, 30, 3)
Y = (X[:, 0] + X[:, 1] > 0).astype(int)
NEW = 2 * drawn(1, 5, 3)


def network(p, x):
    """Layer norm without ε between two layers."""
    h = x @ p["w"]
    h = h - jnp.mean(h, 1, keepdims=True)
    h = h / jnp.sqrt(jnp.mean(h**2, 1, keepdims=True))
    return jnp.tanh(h * p["gain"][None]) @ p["head"]


PARAMS = {
    "w": drawn(2, 3, 4),
    "gain": jnp.ones(4),
    "head": drawn(3, 4, 2),
}
SCALED = PARAMS | {"w": 10 * PARAMS["w"]}


def posterior(params, **options):
    return lg.laplace(network, params, X, Y, family=lg.families.Categorical(), prior_precision=0.7, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("structure", ["exact", "ekfac", "low_rank"])
def test_rescaled_weights_have_the_same_evidence_and_predictions(structure):
    before, after = (posterior(p, structure=structure, rank=6) for p in (PARAMS, SCALED))
    assert before.log_evidence == pytest.approx(after.log_evidence, rel=1e-9)
    np.testing.assert_allclose(before.covariance(NEW), after.covariance(NEW), rtol=1e-6)
    planted = [posterior(p, structure=structure, rank=6, gauge=False) for p in (PARAMS, SCALED)]
    assert abs(planted[0].log_evidence - planted[1].log_evidence) > 1
    assert float(jnp.max(jnp.abs(planted[0].variance(NEW) / planted[1].variance(NEW) - 1))) > 0.01


@pytest.mark.thorough
def test_without_a_gauge_it_is_the_usual_laplace_approximation():
    found = posterior(PARAMS, gauge=False)
    theta, unravel = ravel_pytree(PARAMS)
    z = network(PARAMS, X)
    matrix = np.asarray(lg.fisher(network, PARAMS, X, family=lg.families.Categorical()).as_matrix())
    H = 30 * matrix + 0.7 * np.eye(len(matrix))
    loss = jnp.sum(jax.nn.log_softmax(z)[jnp.arange(30), Y])
    evidence = loss - 0.35 * jnp.sum(theta**2) + 0.5 * (len(H) * np.log(0.7) - np.linalg.slogdet(H)[1])
    assert found.log_evidence == pytest.approx(float(evidence), rel=1e-9)
    J = np.asarray(jax.jacobian(lambda t: network(unravel(t), NEW))(theta))
    np.testing.assert_allclose(found.covariance(NEW), J @ np.linalg.inv(H) @ J.transpose(0, 2, 1), rtol=1e-6)


@pytest.mark.thorough
def test_a_rank_of_all_identifiable_directions_is_exact():
    exact, low = posterior(PARAMS), posterior(PARAMS, structure="low_rank", rank=19)
    assert exact.log_evidence == pytest.approx(low.log_evidence, rel=1e-7)
    np.testing.assert_allclose(exact.variance(NEW), low.variance(NEW), rtol=1e-5)


def test_draws_leave_the_gauge_alone_and_have_the_variance_of_predictions():
    found = posterior(PARAMS)
    sharp = replace(found, samples=30 * 10**6, prior_precision=0.7e6)  # small enough for linearization
    draws = sharp.sample(jax.random.key(5), 3000)
    change = draws["w"] - PARAMS["w"][None]
    assert float(jnp.max(jnp.abs(jnp.sum(change * PARAMS["w"][None], (1, 2))))) < 1e-9
    outputs = jax.vmap(lambda p: network(p, NEW))(draws)
    np.testing.assert_allclose(jnp.var(outputs, 0), sharp.variance(NEW), rtol=0.15)


def test_a_normalized_glm_leaves_its_predicted_null_space_out():
    model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
    params = model.init(jax.random.key(0), inputs=3, outputs=4)
    y = (drawn(1, 30, 4) < 0).astype(X.dtype)
    found = [
        lg.laplace(model, replace(params, weights=scale * params.weights), X, y, prior_precision=0.3)
        for scale in (1, 10)
    ]
    assert found[0].gauge.shape == (20, lg.predicted_nullspace(model, params, X).dimension)
    assert found[0].log_evidence == pytest.approx(found[1].log_evidence, rel=1e-9)


def test_units_can_be_rescaled_one_by_one():
    def f(p, x):
        h = x @ p["w"]
        return h / jnp.linalg.norm(p["w"], axis=0)[None] @ p["head"]

    params = {"w": PARAMS["w"], "head": PARAMS["head"]}
    scaled = params | {"w": params["w"] * jnp.array([[1.0, 10.0, 2.0, 0.1]])}
    kind = {"family": lg.families.Categorical(), "groups": {"w": 1}}
    found = [lg.laplace(f, p, X, Y, **kind) for p in (params, scaled)]
    assert found[0].gauge.shape[1] == 4
    assert found[0].log_evidence == pytest.approx(found[1].log_evidence, rel=1e-9)


def test_a_posterior_after_another_and_one_that_was_pickled_are_the_same():
    for params in (PARAMS, PARAMS | {"w": PARAMS["w"] + 1}):
        found = lg.laplace(network, params, X, Y, family=lg.families.Categorical())
        found.covariance(NEW), found.predict(NEW, jax.random.key(0))
    expected = lg.laplace(network, params, X, Y, family=lg.families.Categorical())
    assert found.log_evidence == pytest.approx(expected.log_evidence, rel=1e-12)
    for same in (expected, pickle.loads(pickle.dumps(expected))):
        np.testing.assert_allclose(found.covariance(NEW), same.covariance(NEW), rtol=1e-12)


@pytest.mark.parametrize("family", [lg.families.Bernoulli(), lg.families.Gaussian()])
def test_responses_of_one_output_need_no_axis_and_may_be_true_or_false(family):
    def one(p, x):
        return x @ p["w"]

    params, y = {"w": drawn(4, 3, 1)}, Y == 1
    log_likelihood = jnp.sum(family.log_prob(one(params, X), y[:, None].astype(X.dtype)))
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):  # as users have it
        for responses in (y, y[:, None], y.astype(X.dtype)):
            found = lg.laplace(one, params, X, responses, family=family)
            assert found.log_likelihood == pytest.approx(float(log_likelihood), rel=1e-12)


@pytest.mark.parametrize(
    ("responses", "message"),
    [(Y.at[3].set(-1), "labels 0 … 1; got 1 other, such as -1"), (Y[:5], r"y must have shape .* got \(5,\)")],
)
def test_bad_responses_are_named(responses, message):
    with pytest.raises(ValueError, match=message):
        lg.laplace(network, PARAMS, X, responses, family=lg.families.Categorical())


def test_bad_arguments_are_named():
    for options, message in (
        ({"structure": "diag"}, "structure must be one of"),
        ({"groups": {"v": None}}, "no leaf that has a posterior"),
        ({"groups": {"w": 2}}, "the axis of 'w'"),
        ({"structure": "low_rank", "rank": 0}, "rank must be a whole number between 1 and P − 1 = "),
        ({"structure": "low_rank", "rank": 2.5}, "rank must be"),
    ):
        with pytest.raises(ValueError, match=message):
            posterior(PARAMS, **options)
    with pytest.raises(ValueError, match="count must be a whole number, at least 0; got -1"):
        posterior(PARAMS).sample(jax.random.key(0), -1)
    with pytest.raises(ValueError, match="samples must be a whole number of draws, at least 1; got 0"):
        posterior(PARAMS).predict(X, jax.random.key(0), 0)
    assert all(len(leaf) == 0 for leaf in jax.tree.leaves(posterior(PARAMS).sample(jax.random.key(0), 0)))
    with pytest.raises(ValueError, match="prior_precision must be positive"):
        lg.laplace(network, PARAMS, X, Y, family=lg.families.Categorical(), prior_precision=0.0)
    with pytest.raises(ValueError, match="all zero"):
        posterior(PARAMS | {"gain": jnp.zeros(4)}, groups={"gain": None})

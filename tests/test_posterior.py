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


# Priors by layer, the variance of the noise, variances that are outputs, masks.

REGRESSION = {"first": {"w": drawn(7, 3, 5), "b": drawn(8, 5)}, "last": {"w": drawn(9, 5, 1), "b": drawn(10, 1)}}
RESPONSES = jnp.sin(2 * X[:, :1]) + 0.3 * drawn(11, 30, 1)


def regression(p, x):
    return jnp.tanh(x @ p["first"]["w"] + p["first"]["b"][None]) @ p["last"]["w"] + p["last"]["b"][None]


def regressed(family=None, params=REGRESSION, inputs=X, responses=RESPONSES, **options):
    family = lg.families.Gaussian(0.5) if family is None else family
    return lg.laplace(regression, params, inputs, responses, family=family, gauge=False, **options)


def literal(precisions, variance, params=REGRESSION):
    """Evidence and covariance at NEW of the regression, from the whole matrix."""
    theta, unravel = ravel_pytree(params)
    F = np.asarray(lg.fisher(regression, params, X, family=lg.families.Gaussian(variance)).as_matrix())
    H = 30 * F + np.diag(precisions)
    residual = np.asarray(regression(params, X) - RESPONSES)
    likelihood = -0.5 * np.sum(residual**2) / variance - 15 * np.log(2 * np.pi * variance)
    energy = 0.5 * np.sum(precisions * np.asarray(theta) ** 2)
    J = np.asarray(jax.jacobian(lambda t: regression(unravel(t), NEW))(theta))
    evidence = likelihood - energy + 0.5 * (np.sum(np.log(precisions)) - np.linalg.slogdet(H)[1])
    return evidence, J @ np.linalg.inv(H) @ J.transpose(0, 2, 1)


@pytest.mark.parametrize("structure", ["exact", "low_rank"])
def test_each_layer_may_have_a_prior_of_its_own(structure):
    given = {"first": 0.3, "last": 2.0, "last.b": 0.01}
    found = regressed(prior_precision=given, structure=structure, rank=25)
    assert found.prior_precisions == pytest.approx({"first.b": 0.3, "first.w": 0.3, "last.b": 0.01, "last.w": 2.0})
    each = np.concatenate([np.full(5, 0.3), np.full(15, 0.3), np.full(1, 0.01), np.full(5, 2.0)])
    evidence, covariance = literal(each, 0.5)
    assert found.log_evidence == pytest.approx(evidence, rel=1e-7)
    np.testing.assert_allclose(found.covariance(NEW), covariance, rtol=1e-6)
    draws = found.sample(jax.random.key(0), 20_000)
    np.testing.assert_allclose(jnp.std(draws["last"]["w"], 0)[:, 0] ** 2, np.diag(inverse(each))[21:], rtol=0.1)


def inverse(precisions):
    F = np.asarray(lg.fisher(regression, REGRESSION, X, family=lg.families.Gaussian(0.5)).as_matrix())
    return np.linalg.inv(30 * F + np.diag(precisions))


@pytest.mark.parametrize("structure", ["exact", "kfac", "ekfac"])
def test_precisions_of_layers_and_the_noise_are_found_by_the_evidence(structure):
    found = regressed(structure=structure)
    best = found.maximize_evidence(layers=True, noise=True)
    assert best.log_evidence > found.maximize_evidence(noise=True).log_evidence > found.maximize_evidence().log_evidence
    assert best.prior_precisions["first.w"] == best.prior_precisions["first.b"] != best.prior_precisions["last.w"]
    if structure == "exact":
        each = np.concatenate([np.full(leaf.size, best.prior_precisions[path]) for path, leaf in leaves()])
        evidence, covariance = literal(each, best.family.dispersion)
        assert best.log_evidence == pytest.approx(evidence, rel=1e-7)
        np.testing.assert_allclose(best.covariance(NEW), covariance, rtol=1e-6)
    for factors in ([1.1, 1.1, 1, 1], [0.9, 0.9, 1, 1], [1, 1, 1.1, 1.1], [1, 1, 0.9, 0.9]):
        assert best._with_precisions(factors).log_evidence < best.log_evidence
    for factor in (0.9, 1.1):
        assert best._with_noise(factor * best.family.dispersion).log_evidence < best.log_evidence
    alone = found.maximize_evidence(noise=True)
    for factor in (0.9, 1.1):
        assert replace(alone, prior_precision=factor * alone.prior_precision).log_evidence < alone.log_evidence
        assert alone._with_noise(factor * alone.family.dispersion).log_evidence < alone.log_evidence


def leaves():
    return [(f"{layer}.{name}", REGRESSION[layer][name]) for layer in ("first", "last") for name in "bw"]


def test_the_evidence_of_a_linear_model_is_the_marginal_likelihood():
    def line(p, x):
        return x @ p["w"]

    y = X @ jnp.array([[1.0], [-2.0], [0.5]]) + 0.3 * drawn(11, 30, 1)
    tau, variance = 0.7, 0.2
    w = jnp.linalg.solve(X.T @ X / variance + tau * jnp.eye(3), X.T @ y / variance)
    found = lg.laplace(line, {"w": w}, X, y, family=lg.families.Gaussian(variance), prior_precision=tau)
    K = np.asarray(X @ X.T / tau + variance * jnp.eye(30))
    exact = -0.5 * float(y[:, 0] @ np.linalg.solve(K, y[:, 0])) - 0.5 * np.linalg.slogdet(2 * np.pi * K)[1]
    assert found.log_evidence == pytest.approx(exact, rel=1e-9)
    np.testing.assert_allclose(
        found.predict_variance(NEW, jax.random.key(0), 4000)[:, 0], variance + found.variance(NEW)[:, 0], rtol=0.05
    )


def test_rescaled_weights_have_the_same_posterior_with_priors_by_layer_too():
    given = {"w": 0.1, "gain": 3.0, "head": 0.6}
    before, after = (
        lg.laplace(network, p, X, Y, family=lg.families.Categorical(), prior_precision=given) for p in (PARAMS, SCALED)
    )
    assert before.log_evidence == pytest.approx(after.log_evidence, rel=1e-9)
    np.testing.assert_allclose(before.covariance(NEW), after.covariance(NEW), rtol=1e-6)
    best = [found.maximize_evidence(layers=True) for found in (before, after)]
    assert best[0].log_evidence == pytest.approx(best[1].log_evidence, rel=1e-6)
    assert best[0].log_evidence > before.log_evidence
    draws = best[0].sample(jax.random.key(5), 10)
    np.testing.assert_allclose(jnp.sum((draws["w"] - PARAMS["w"][None]) * PARAMS["w"][None], (1, 2)), 0, atol=1e-9)


def test_variances_may_be_outputs():
    params = REGRESSION | {"last": {"w": 0.3 * drawn(9, 5, 2), "b": jnp.array([0.1, -1.0])}}
    found = lg.laplace(
        regression, params, X, RESPONSES, family=lg.families.HeteroscedasticGaussian(), gauge=False, prior_precision=0.4
    )
    mean, r = jnp.split(regression(params, X), 2, -1)
    likelihood = jnp.sum(jax.scipy.stats.norm.logpdf(RESPONSES, mean, jnp.exp(r / 2)))
    assert found.log_likelihood == pytest.approx(float(likelihood), rel=1e-9)
    key = jax.random.key(3)
    assert found.predict(NEW, key).shape == found.predict_variance(NEW, key).shape == (5, 1)
    z, S = regression(params, NEW), found.covariance(NEW)
    np.testing.assert_allclose(found.predict(NEW, key, 20_000)[:, 0], z[:, 0], atol=0.05)
    noise = jnp.exp(z[:, 1] + S[:, 1, 1] / 2)  # the mean of a lognormal variable
    np.testing.assert_allclose(found.predict_variance(NEW, key, 200_000)[:, 0], noise + S[:, 0, 0], rtol=0.05)
    correlated = lg.families.MultivariateGaussian([[2.0, 0.5], [0.5, 1.0]])
    both = lg.laplace(regression, params, X, jnp.tile(RESPONSES, (1, 2)), family=correlated, gauge=False)
    known = both.predict_variance(NEW, key, 20_000)
    np.testing.assert_allclose(known, jnp.array([[2.0, 1.0]]) + both.variance(NEW), rtol=0.05)


def test_a_mask_leaves_samples_out_and_weights_count_them_more_than_once():
    kept = jnp.arange(30) % 3 != 0
    wrong = jnp.where(kept[:, None], RESPONSES, jnp.nan)
    masked = regressed(mask=kept, responses=wrong)
    alone = regressed(inputs=X[kept], responses=RESPONSES[kept])
    assert masked.log_evidence == pytest.approx(alone.log_evidence, rel=1e-9)
    np.testing.assert_allclose(masked.covariance(NEW), alone.covariance(NEW), rtol=1e-7)
    best = [found.maximize_evidence(noise=True) for found in (masked, alone)]
    assert best[0].family.dispersion == pytest.approx(best[1].family.dispersion, rel=1e-5)
    weights = jnp.where(kept, 1.0, 3.0)
    rows = jnp.repeat(jnp.arange(30), weights.astype(int), total_repeat_length=50)
    weighted, repeated = regressed(mask=weights), regressed(inputs=X[rows], responses=RESPONSES[rows])
    assert weighted.log_evidence == pytest.approx(repeated.log_evidence, rel=1e-9)
    batches = [(X[i : i + 8], wrong[i : i + 8], kept[i : i + 8]) for i in range(0, 30, 8)]
    loaded = lg.laplace(
        *(regression, REGRESSION, lg.Batches(batches, inputs=0, y=1, mask=2)),
        family=lg.families.Gaussian(0.5),
        gauge=False,
    )
    assert loaded.log_evidence == pytest.approx(masked.log_evidence, rel=1e-9)
    assert loaded.responses == masked.responses == 20


def test_what_a_posterior_cannot_do_is_named():
    for options, message in (
        ({"prior_precision": {"first": 1.0}}, "has none for 'last.b'"),
        ({"prior_precision": {"first": 1.0, "last": 1.0, "lst": 2.0}}, "names 'lst', which begins no leaf"),
        ({"prior_precision": "1"}, "positive and finite; got 1"),
        ({"mask": jnp.zeros(30)}, "leaves out every sample"),
        ({"prior_precision": {"first": 1.0, "last": 0.0}}, "positive and finite; got 0.0"),
        ({"prior_precision": True}, "positive and finite; got True"),
        ({"structure": "kfac", "prior_precision": {"first": 1.0, "last.b": 1.0, "last.w": 2.0}}, "are one block"),
    ):
        with pytest.raises(ValueError, match=message):
            regressed(**options)
    with pytest.raises(ValueError, match=r"for families\.Gaussian of one variance"):
        posterior(PARAMS).maximize_evidence(noise=True)
    with pytest.raises(ValueError, match=r"for families\.Gaussian of one variance"):
        regressed(lg.families.Gaussian([0.5])).maximize_evidence(noise=True)
    with pytest.raises(ValueError, match="a mean and a variance"):
        lg.laplace(network, PARAMS, X, Y[:, None], family=lg.families.Mixture(lg.families.Bernoulli(), 1))
    with pytest.warns(RuntimeWarning, match="grows up to the bound of the variance"):
        regressed(responses=regression(REGRESSION, X)).maximize_evidence(noise=True)
    assert regressed(prior_precision=jnp.asarray(2.0)).prior_precision == 2.0
    with pytest.raises(ValueError, match="hold the mask"):
        lg.laplace(regression, REGRESSION, lg.Batches([(X, RESPONSES)], inputs=0, y=1), mask=jnp.ones(30))

    def batch_normalized(p, x):
        return (x - jnp.mean(x, 0)[None]) @ p["w"]

    with pytest.raises(ValueError, match="interact"):
        lg.laplace(batch_normalized, {"w": drawn(4, 3, 1)}, X, RESPONSES, family=lg.families.Gaussian())

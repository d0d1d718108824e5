"""Monte Carlo and empirical Fisher matrices, and expected information from statsmodels."""

import warnings

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom._core.numerics import agreement
from lngeom.information._derivative import sampled_scores

from tests.cases import drawn
from tests.information import zoo


def linear_model(family, seed=0):
    X = jnp.concatenate([jnp.ones((30, 1)), 0.3 * drawn(seed, 30, 2)], 1)
    outputs = 3 if family.joint else 1
    params = 0.3 * drawn(seed + 1, 3, outputs)
    if family.upper < np.inf:
        params = params.at[0].set(-1.5)
    return lambda p, x: x @ p, params, X


@pytest.mark.thorough
@pytest.mark.parametrize("family", zoo.FAMILIES, ids=lambda f: type(f).__name__)
def test_monte_carlo_error_falls_as_one_over_the_root_of_the_draws(family):
    apply, params, X = linear_model(family)
    exact = np.asarray(lg.fisher(apply, params, X, family=family).as_matrix())
    key, draws = jax.random.key(0), 24 * 256
    scores = np.asarray(jax.jit(lambda X: sampled_scores(family, apply(params, X), key, draws))(X))
    rows = np.einsum("nd,nmc->mndc", X, scores).reshape(draws, len(X), -1)
    one_each = np.matmul(rows.transpose(0, 2, 1), rows) / len(X)  # what each draw alone estimates
    F = lg.fisher(apply, params, X, family=family, method="monte_carlo", key=key, samples=4)
    assert agreement(F.as_matrix(), one_each[:4].mean(0), 1e-13).agrees
    counts = np.asarray([4, 16, 64, 256])
    errors = []
    for m in counts:
        estimates = one_each.reshape(-1, m, *exact.shape).mean(1)
        errors.append(np.sqrt(np.mean(np.sum(np.square(estimates - exact), (1, 2)))))
    slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert abs(slope + 0.5) < 0.1
    biased = [e + 0.3 * errors[0] for e in errors]  # an estimate of another matrix does not converge
    assert abs(np.polyfit(np.log(counts), np.log(biased), 1)[0] + 0.5) > 0.1


@pytest.mark.thorough
def test_standard_error_is_the_spread_of_estimates():
    case = zoo.layer_norm_network()
    exact = case.fisher().as_matrix()
    F = case.fisher(method="monte_carlo", key=jax.random.key(0), samples=400)
    score = (F.as_matrix() - exact) / jnp.where(F.standard_error() > 0, F.standard_error(), jnp.inf)
    assert 0.5 < float(jnp.sqrt(jnp.mean(jnp.square(score)))) < 2
    assert abs(float(F.trace() - jnp.trace(exact))) < 5 * float(F.standard_error(lambda F: F.trace()))
    with pytest.raises(ValueError, match="needs method='monte_carlo'"):
        case.fisher().standard_error()


@pytest.mark.thorough
def test_keys_make_estimates_reproducible():
    case = zoo.plain_network()
    draw = lambda seed: case.fisher(method="monte_carlo", key=jax.random.key(seed), samples=3).as_matrix()  # noqa: E731
    assert bool(jnp.all(draw(1) == draw(1)))
    assert not bool(jnp.allclose(draw(1), draw(2)))


@pytest.mark.thorough
def test_empirical_fisher_is_the_outer_product_of_gradients():
    case = zoo.layer_norm_network()
    y = jax.random.randint(jax.random.key(7), (40,), 0, 3)
    F = case.fisher(method="empirical", y=y)

    def loss(p, x, label):
        return case.family.log_prob(case.apply(p, x[None]), label[None])[0]

    gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(case.params, case.X, y)
    rows = jax.vmap(F.problem.ravel)(gradients)
    assert agreement(F.as_matrix(), rows.T @ rows / 40, 1e-13).agrees
    v = jnp.cos(jnp.arange(F.in_size(), dtype=float))
    assert agreement(F @ v, rows.T @ (rows @ v) / 40, 1e-13).agrees
    assert agreement(F.factor(), rows / 40**0.5, 1e-13).agrees
    with pytest.raises(ValueError, match="y must have shape"):
        case.fisher(method="empirical", y=y[:5])


STATSMODELS = {
    "Gaussian": (lg.families.Gaussian(0.7), lambda f: f.Gaussian(), 1.0),
    "Bernoulli": (lg.families.Bernoulli(), lambda f: f.Binomial(), 1.0),
    "Binomial": (lg.families.Binomial(7), lambda f: f.Binomial(), 1.0),
    "Poisson": (lg.families.Poisson(), lambda f: f.Poisson(), 1.0),
    "Gamma": (lg.families.Gamma(0.5), lambda f: f.Gamma(f.links.InversePower()), -1.0),
    "InverseGaussian": (lg.families.InverseGaussian(0.8), lambda f: f.InverseGaussian(f.links.InverseSquared()), -2.0),
    "NegativeBinomial": (
        lg.families.NegativeBinomial(2.5),
        lambda f: f.NegativeBinomial(f.links.NegativeBinomial(1 / 2.5), 1 / 2.5),
        1.0,
    ),
}
"""Family, statsmodels' family with the same link, and its linear predictor ÷ our z."""


@pytest.mark.parametrize("name", STATSMODELS)
def test_expected_information_is_that_of_statsmodels_with_the_sign_flipped(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import statsmodels.api as sm

        family, make, factor = STATSMODELS[name]
        apply, params, X = linear_model(family)
        mean = np.asarray(family.mean(apply(params, X)))[:, 0]
        trials = getattr(family, "trials", None)
        y = mean if trials is None else np.stack([mean, trials - mean], 1)
        glm = sm.GLM(y, np.asarray(X), family=make(sm.families))
        beta = factor * np.asarray(params)[:, 0]
        assert agreement(glm.family.link.inverse(np.asarray(X) @ beta) * (trials or 1), mean, 1e-12).agrees
        information = glm.information(beta, scale=family.dispersion)
    F = lg.fisher(apply, params, X, family=family).as_matrix()
    assert agreement(F, -information * factor**2 / len(X), 1e-12).agrees


def test_every_family_of_statsmodels_is_compared():
    """All but Tweedie, whose variance µ^p is an exponential family's for the p compared here: 0, 1, 2 and 3."""
    sm = pytest.importorskip("statsmodels.api")
    families = {
        name
        for name, kind in vars(sm.families).items()
        if isinstance(kind, type) and issubclass(kind, sm.families.Family)
    }
    assert families - {"Family", "Tweedie"} == set(STATSMODELS) - {"Bernoulli"}
    assert set(STATSMODELS) | {"Categorical"} == {type(family).__name__ for family in zoo.FAMILIES}

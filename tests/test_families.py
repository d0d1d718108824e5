"""Means, variances and densities against scipy.stats and hand-written forms."""

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
import scipy.stats as st
from lngeom._core.numerics import agreement

from tests.cases import FAMILIES, drawn

POSITIVE_PART = ("gamma", "inverse_gaussian", "negative_binomial")
SCALAR = [name for name in FAMILIES if name != "categorical"]


def natural(name):
    z = np.linspace(-2.0, 1.3, 7)
    return jnp.asarray(z - 1.5 if name in POSITIVE_PART else z)


def distribution(name, z):
    """The same distribution from scipy, in its own parameters."""
    family, z = FAMILIES[name], np.asarray(z)
    match name:
        case "gaussian":
            return st.norm(z, family.dispersion**0.5)
        case "bernoulli":
            return st.bernoulli(1 / (1 + np.exp(-z)))
        case "binomial":
            return st.binom(family.trials, 1 / (1 + np.exp(-z)))
        case "poisson":
            return st.poisson(np.exp(z))
        case "gamma":
            return st.gamma(1 / family.dispersion, scale=family.dispersion / -z)
        case "inverse_gaussian":
            mean = (-2 * z) ** -0.5
            return st.invgauss(mean * family.dispersion, scale=1 / family.dispersion)
        case "negative_binomial":
            return st.nbinom(family.successes, 1 - np.exp(z))


@pytest.mark.parametrize("name", SCALAR)
def test_mean_and_variance_follow_from_the_log_partition(name):
    z = natural(name)
    known = distribution(name, z)
    assert agreement(FAMILIES[name].mean(z), known.mean()).agrees
    assert agreement(FAMILIES[name].variance(z), known.var()).agrees


@pytest.mark.parametrize("name", SCALAR)
def test_log_prob_is_the_density(name):
    z = natural(name)
    known = distribution(name, z)
    y = np.full(7, 1.0) if name in {"bernoulli", "poisson", "binomial", "negative_binomial"} else np.linspace(0.2, 3, 7)
    expected = known.logpmf(y) if hasattr(known.dist, "pmf") else known.logpdf(y)
    assert agreement(FAMILIES[name].log_prob(z, jnp.asarray(y)), expected).agrees


def test_densities_of_several_outputs_are_those_of_scipy():
    generator = np.random.default_rng(0)
    z, y = generator.normal(size=(2, 5, 4))
    covariance = np.cov(generator.normal(size=(4, 9)))
    known = [st.multivariate_normal(mean, covariance).logpdf(at) for mean, at in zip(z, y, strict=True)]
    family = lg.families.MultivariateGaussian(covariance)
    assert agreement(family.log_prob(jnp.asarray(z), jnp.asarray(y)), np.array(known)).agrees
    mean, log_variance = z[:, :2], z[:, 2:]
    known = st.norm(mean, np.exp(log_variance / 2)).logpdf(y[:, :2]).sum(1)
    assert agreement(
        lg.families.HeteroscedasticGaussian().log_prob(jnp.asarray(z), jnp.asarray(y[:, :2])), known
    ).agrees


def test_categorical_samples_and_moments():
    z = jnp.array([0.3, -1.0, 0.8])
    family = FAMILIES["categorical"]
    q = np.exp(z) / np.exp(z).sum()
    assert agreement(family.mean(z), q).agrees
    assert agreement(family.metric(z), np.diag(q) - np.outer(q, q)).agrees
    assert agreement(family.variance(z), q * (1 - q)).agrees
    labels = np.asarray(family.sample(jax.random.key(0), jnp.broadcast_to(z[None], (40_000, 3))))
    assert np.abs(np.bincount(labels) / len(labels) - q).max() < 0.01
    one_hot = jax.nn.one_hot(labels[:5], 3, dtype=z.dtype)
    batch = jnp.broadcast_to(z[None], (5, 3))
    assert agreement(family.log_prob(batch, one_hot), family.log_prob(batch, labels[:5])).agrees


def test_the_metric_of_classes_has_one_null_direction():
    found = np.linalg.matrix_rank(np.asarray(FAMILIES["categorical"].metric(natural("categorical"))))
    assert found == FAMILIES["categorical"].metric_rank(7) == 6


@pytest.mark.parametrize("position", [0, 3])
def test_a_class_that_is_almost_sure_keeps_the_digits_of_its_variance(position):
    z = jnp.zeros(4).at[position].set(60.0)
    rest = 3 / (np.exp(60) + 3)
    towards = FAMILIES["categorical"].metric_product(z, jnp.zeros(4).at[position].set(1.0))
    assert float(towards[position]) == pytest.approx(rest, rel=1e-6, abs=0)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_a_root_of_any_metric_has_as_many_columns_as_its_rank(rank):
    factor = np.random.default_rng(rank).normal(size=(3, 4, rank)) * np.geomspace(1, 1e-3, rank)
    matrix = jnp.asarray(factor @ factor.swapaxes(-1, -2))
    root = np.asarray(lg.families.pivoted_cholesky(matrix))
    eps = float(jnp.finfo(matrix.dtype).eps)
    np.testing.assert_allclose(root @ root.swapaxes(-1, -2), matrix, atol=20 * eps * float(jnp.max(matrix)))
    assert np.all(np.count_nonzero(np.any(root != 0, -2), -1) == rank)


def test_saturated_outputs_stay_finite():
    z = jnp.array([1e3, -1e3, 0.0])
    for name in ("categorical", "bernoulli"):
        assert jnp.all(jnp.isfinite(FAMILIES[name].metric(z)))


@pytest.mark.parametrize("name", POSITIVE_PART)
@pytest.mark.parametrize(
    "normalizer", [lg.normalizers.LayerNorm(), lg.normalizers.BatchNorm(), lg.normalizers.Identity()]
)
def test_init_starts_inside_the_domain(name, normalizer):
    model = lg.NormalizedGLM(normalizer, FAMILIES[name])
    params = model.init(jax.random.key(0), inputs=6, outputs=9)
    X = 5 * drawn(1, 50, 6)
    assert float(jnp.max(model.natural_parameters(params, X))) < 0
    outside = lg.GLMParameters(params.weights, params.bias + 50.0, params.gain)
    with pytest.raises(ValueError, match="needs natural parameters z < 0; got max z"):
        model.natural_parameters(outside, X)


SETTINGS = [
    (lg.families.Gaussian, "dispersion"),
    (lg.families.Gamma, "dispersion"),
    (lg.families.InverseGaussian, "dispersion"),
    (lg.families.NegativeBinomial, "successes"),
]


@pytest.mark.parametrize(("family", "name"), SETTINGS)
@pytest.mark.parametrize(
    "value", [0.0, -1.0, np.nan, np.inf, [1.0, np.inf], [], [[1.0]], [[1.0], [1.0, 2.0]], "1", None, True, 1 + 1j]
)
def test_settings_must_be_positive_and_finite(family, name, value):
    with pytest.raises(ValueError, match=f"{name} must be positive and finite, a number or one for each output; got"):
        family(**{name: value})


@pytest.mark.parametrize("value", [0, -3, 2.5, np.float32(2.5), np.nan, np.inf, True, "7", None, [3], np.array([3, 4])])
def test_trials_must_be_a_whole_number(value):
    with pytest.raises(ValueError, match="trials must be a whole number, at least 1; got"):
        lg.families.Binomial(value)


@pytest.mark.parametrize("value", [7, 7.0, np.int8(7), np.float32(7), jnp.array(7), np.array(7.0)])
def test_a_number_means_the_same_whatever_its_type(value):
    z = jnp.array([[0.5, -2.0]], jnp.float32)
    y = jnp.ones_like(z)
    assert lg.families.Binomial(value) == lg.families.Binomial(7)
    np.testing.assert_array_equal(lg.families.Binomial(value).log_prob(z, y), lg.families.Binomial(7).log_prob(z, y))
    for family, name in SETTINGS:
        found, known = family(**{name: value}), family(**{name: 7.0})
        at = -jnp.abs(z)
        for numbers in (lambda f, at=at: f.variance(at), lambda f, at=at: f.log_prob(at, y)):
            assert numbers(found).dtype == jnp.float32
            np.testing.assert_allclose(numbers(found), numbers(known), rtol=1e-5)


@pytest.mark.parametrize(("family", "name"), SETTINGS)
def test_each_output_may_have_its_own_setting(family, name):
    z, y = -jnp.array([[0.5, 1.0, 2.0]]), np.array([[1, 2, 3]], np.uint8)
    values = [0.5, 1.25, 2.0]
    together = family(**{name: values})
    alone = [family(**{name: value}) for value in values]
    columns = [slice(i, i + 1) for i in range(3)]
    for what in ("variance", "mean", "metric_diagonal"):
        expected = jnp.concatenate([getattr(f, what)(z[:, i]) for f, i in zip(alone, columns, strict=True)], -1)
        assert agreement(getattr(together, what)(z), expected).agrees
    expected = jnp.concatenate([f.log_prob(z[:, i], y[:, i]) for f, i in zip(alone, columns, strict=True)], -1)
    assert agreement(together.log_prob(z, y), expected).agrees
    with pytest.raises(ValueError, match=rf"{name} of shape \(3,\), one for each output; got outputs \(1, 2\)"):
        together.variance(z[:, :2])


def test_a_setting_may_be_traced():
    z, y = jnp.array([[-0.5]]), jnp.array([[2.0]])
    slope = jax.jit(jax.grad(lambda phi: lg.families.Gaussian(phi).log_prob(z, y)[0, 0]))(2.0)
    assert float(slope) == pytest.approx(0.5 * (2.5**2 / 2 - 1) / 2)


@pytest.mark.parametrize(("dtype", "classes"), [(np.uint8, 300), (np.int8, 200), (np.int32, 300)])
def test_labels_of_few_bits_are_compared_with_many_classes(dtype, classes):
    family = lg.families.Categorical()
    family.check_responses(np.array([0, 100, 120], dtype), (3, classes))
    with pytest.raises(ValueError, match=r"labels 0 … 99; got 2 others, such as 100:"):
        family.check_responses(np.array([0, 100, 120], dtype), (3, 100))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, jnp.bfloat16])
@pytest.mark.parametrize(
    ("family", "y", "sentence"),
    [
        (lg.families.Binomial(3), 0.5, "Binomial takes finite responses from 0 to 3, whole numbers; got 1 other"),
        (lg.families.Binomial(3), 4, "Binomial takes finite responses from 0 to 3, whole numbers; got 1 other"),
        (lg.families.Poisson(), 1.25, r"from 0, whole numbers; got 1 other, such as 1\.25: correct y"),
        (lg.families.Poisson(), -1, "from 0, whole numbers; got 1 other, such as -1"),
        (lg.families.NegativeBinomial(), 2.5, r"from 0, whole numbers; got 1 other, such as 2\.5"),
        (lg.families.Gamma(), 0, "Gamma takes finite responses above 0; got 1 other, such as 0"),
        (lg.families.Gamma([0.5]), -2, "Gamma takes finite responses above 0; got 1 other, such as -2"),
        (lg.families.InverseGaussian(), 0, "InverseGaussian takes finite responses above 0; got 1 other, such as 0"),
        (lg.families.InverseGaussian(), np.inf, "InverseGaussian takes finite responses above 0; got 1 other"),
        (lg.families.Bernoulli(), 1.5, r"Bernoulli takes finite responses from 0 to 1; got 1 other, such as 1\.5"),
        (lg.families.Gaussian(), np.nan, "Gaussian takes finite responses from -inf; got 1 other, such as nan"),
    ],
)
def test_responses_that_a_family_cannot_have_are_refused(family, y, sentence, dtype):
    values = np.array([[1], [y]], dtype)
    with pytest.raises(ValueError, match=sentence):
        family.check_responses(values, (2, 1))
    family.check_responses(values, (2, 1), jnp.array([True, False]))


@pytest.mark.parametrize("name", SCALAR)
@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int32, np.float32])
def test_one_is_a_response_of_every_family_in_every_dtype(name, dtype):
    FAMILIES[name].check_responses(np.ones((2, 3), dtype), (2, 3))


def test_a_fisher_matrix_of_responses_that_cannot_be_is_refused_also_within_a_product_and_a_mixture():
    X, W = drawn(2, 4, 3), drawn(3, 3, 1)
    poisson, y = lg.families.Poisson(), jnp.array([0.0, 1.0, 2.5, 3.0])
    with pytest.raises(ValueError, match=r"whole numbers; got 1 other, such as 2\.5"):
        lg.fisher(lambda w, x: x @ w, W, X, family=poisson, method="empirical", y=y)
    with pytest.raises(ValueError, match="Gamma takes finite responses above 0"):
        lg.fisher(lambda w, x: -jnp.square(x @ w), W, X, family=lg.families.Gamma(), method="empirical", y=jnp.zeros(4))
    mixture = lg.families.Mixture(poisson, 2)
    with pytest.raises(ValueError, match=r"whole numbers; got 1 other, such as 2\.5"):
        mixture.check_responses(y, (4, 4))
    traced = jax.jit(lambda y: lg.fisher(lambda w, x: x @ w, W, X, family=poisson, method="empirical", y=y).trace())
    assert np.isfinite(float(traced(y)))


@pytest.mark.parametrize("dispersion", [0.5, 100.0])
def test_a_draw_of_a_gamma_family_is_a_response_also_where_it_underflows(dispersion):
    family, z = lg.families.Gamma(dispersion), jnp.full((2000, 1), -0.5, jnp.float32)
    y = family.sample(jax.random.key(0), z)
    family.check_responses(y, z.shape)
    assert jnp.all(jnp.isfinite(family.log_prob(z, y)))


def test_a_count_of_many_digits_is_compared_with_the_number_of_trials():
    family, y = lg.families.Binomial(2**25), np.array([2**25, 2**25 + 1], np.int32)
    with jax.enable_x64(False), pytest.raises(ValueError, match="got 1 other, such as 33554433"):
        family.check_responses(y, (2,))


@pytest.mark.parametrize("y", [1e-30, 1e-14, 1e14, 1e30])
def test_densities_of_tiny_and_huge_responses_are_finite(y):
    gamma = lg.families.Gamma(2.0).log_prob(jnp.float32([-1 / y]), jnp.float32([y]))
    assert float(gamma[0]) == pytest.approx(st.gamma(0.5, scale=2 * y).logpdf(y), rel=1e-5)
    phi = 1 / min(y, 1.0)
    found = lg.families.InverseGaussian(phi).log_prob(jnp.float32([-0.5]), jnp.float32([y]))
    assert float(found[0]) == pytest.approx(st.invgauss(phi, scale=1 / phi).logpdf(y), rel=1e-5)


f = lg.families
DRAWN = [
    (f.Bernoulli(), -7.0, jnp.bfloat16, st.bernoulli(1 / (1 + np.exp(7)))),
    (f.Bernoulli(), 7.0, jnp.float16, st.bernoulli(1 / (1 + np.exp(-7)))),
    (f.Binomial(3), -8.0, jnp.bfloat16, st.binom(3, 1 / (1 + np.exp(8)))),
    (f.Poisson(), -5.0, jnp.bfloat16, st.poisson(np.exp(-5))),
    (f.Poisson(), -2.75, jnp.float32, st.poisson(np.exp(-2.75))),
    (f.Poisson(), 18.0, jnp.float32, st.poisson(np.exp(18.0))),
    (f.Poisson(), 23.0, jnp.float32, st.poisson(np.exp(23.0))),
    (f.Binomial(10**8), -9.0, jnp.float32, st.binom(10**8, 1 / (1 + np.exp(9)))),
    (f.Binomial(10**8), -3.0, jnp.float32, st.binom(10**8, 1 / (1 + np.exp(3)))),
    (f.NegativeBinomial(0.5), -6.0, jnp.float32, st.nbinom(0.5, -np.expm1(-6))),
    (f.NegativeBinomial(2.5), -(2.0**-20), jnp.float32, st.nbinom(2.5, -np.expm1(-(2.0**-20)))),
    (f.InverseGaussian(1.0), -(2.0**-33), jnp.float32, st.invgauss(2.0**16)),
    (f.InverseGaussian(100.0), -0.5, jnp.float32, st.invgauss(100.0, scale=0.01)),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("family", "z", "dtype", "known"), DRAWN, ids=lambda v: getattr(v, "name", str(v)[:9]))
def test_draws_have_the_distribution_also_of_rare_outcomes_and_huge_means(family, z, dtype, known):
    """Up to five standard errors of the share of draws below each of several quantiles."""
    count = 200_000
    y = np.asarray(jax.jit(family.sample)(jax.random.key(3), jnp.full((count,), z, dtype)), float)
    below = np.unique(known.ppf([1e-4, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.9999]))
    share = known.cdf(below)
    error = np.sqrt(share * (1 - share) / count) + 1 / count
    assert np.all(np.abs(np.mean(y[:, None] <= below, 0) - share) <= 5 * error)


def test_a_rare_class_is_drawn_in_16_bits():
    z = jnp.broadcast_to(jnp.array([0.0, -9.0, 0.5], jnp.bfloat16), (400_000, 3))
    labels = np.asarray(f.Categorical().sample(jax.random.key(0), z))
    expected = len(z) * float(f.Categorical().mean(z[0].astype(float))[1])
    assert abs(np.sum(labels == 1) - expected) <= 5 * expected**0.5


def test_a_draw_of_an_inverse_gaussian_of_huge_mean_is_a_response():
    for z, dtype in ((-5e-13, jnp.float32), (-5e-31, jnp.float64)):
        at = jnp.full((100_000,), z, dtype)
        y = f.InverseGaussian(1.0).sample(jax.random.key(0), at)
        f.InverseGaussian(1.0).check_responses(y, at.shape)
        assert float(jnp.median(1 / y)) == pytest.approx(st.chi2(1).median(), rel=0.02)  # of Lévy, its limit


@pytest.mark.thorough
@pytest.mark.parametrize("family", [f.Bernoulli(), f.Poisson(), f.Binomial(1)], ids=lambda family: family.name)
@pytest.mark.parametrize("sign", [-1, 1])
def test_outcomes_below_the_resolution_of_float32_happen_as_often_as_they_should(family, sign):
    """17 million draws of a chance e^-17, sixteen times."""
    z = jnp.full((2**24,), 17.0 * (sign if family.support[1] == 1 else -1), jnp.float32)
    usual = 1.0 if float(z[0]) > 0 else 0.0
    count = jax.jit(lambda key: jnp.sum(family.sample(key, z) != usual))
    found = sum(int(count(key)) for key in jax.random.split(jax.random.key(1), 16))
    expected = 2**28 * np.exp(-17)
    assert abs(found - expected) <= 3.5 * expected**0.5

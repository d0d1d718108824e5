"""The checker of families passes those of the library and sees every planted fault."""

import jax
import jax.numpy as jnp
import lngeom as lg
import pytest

from tests.cases import FAMILIES

families = lg.families
OTHERS = {
    "a dispersion each": families.Gaussian([0.5, 1.0, 2.0]),
    "heteroscedastic": families.HeteroscedasticGaussian(),
    "multivariate": families.MultivariateGaussian([[2.0, 0.5], [0.5, 1.0]]),
    "mixture": families.Mixture(families.Categorical(), 2),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*FAMILIES, *OTHERS])
def test_families_of_the_library_pass(name):
    family = (FAMILIES | OTHERS)[name]
    last = "digits" if isinstance(family, families.AbstractFamily) else "draws"
    assert families.check(family)[-1] == last


class Unnormalized(families.Gaussian):
    def log_base_measure(self, y):
        return -0.5 * jnp.square(y) / self.dispersion


class WrongSpread(families.Gaussian):
    def sample(self, key, z):
        return z + self.dispersion * jax.random.normal(key, z.shape, z.dtype)


class WrongMean(families.Poisson):
    def mean(self, z):
        return jnp.exp(z) + 0.01


class WrongVariance(families.Poisson):
    def variance(self, z):
        return 1.01 * jnp.exp(z)


class ForgottenDispersion(families.Gaussian):
    def metric_product(self, z, v):
        return v


class WrongRoot(families.Categorical):
    def metric_sqrt_product(self, z, v):
        return jnp.sqrt(jax.nn.softmax(z, -1)) * v


class WrongRank(families.Categorical):
    def metric_rank(self, outputs):
        return outputs


class ReducesEverything(families.Categorical):
    def metric_product(self, z, v):
        q = jax.nn.softmax(z, -1)
        return q * (v - jnp.sum(q * v))


class Scalar(families.Categorical):
    def log_prob(self, z, y):
        return jnp.sum(super().log_prob(z, y))


class WrongScore(families.Categorical):
    def score(self, z, y):
        return 2 * super().score(z, y)


class Outside(families.Bernoulli):
    support = (0.0, 0.5)


class WrongMetric(families.HeteroscedasticGaussian):
    def metric_diagonal(self, z):
        return jnp.exp(-jnp.concatenate([z[..., 2:], z[..., 2:]], -1))


class WrongDensity(families.MultivariateGaussian):
    def log_prob(self, z, y):
        return super().log_prob(z, y) + jnp.sum(z, -1)


class Naive(families.Bernoulli):
    """log(1 + e^z) as it is written: e^z overflows, 1 + e^z rounds to 1, and derivatives are automatic."""

    mean, curvature = families.AbstractFamily.mean, families.AbstractFamily.curvature

    def log_partition(self, z):
        return jnp.log(1 + jnp.exp(z))


class NoCurvature(families.Bernoulli):
    """s(z) (1 − s(z)), which is 0 for confident z > 0."""

    def curvature(self, z):
        return jax.nn.sigmoid(z) * (1 - jax.nn.sigmoid(z))


class NearZero(families.NegativeBinomial):
    """1 − e^z, which is 0 near z = 0."""

    def mean(self, z):
        return self.successes * jnp.exp(z) / (1 - jnp.exp(z))


class NaiveClasses(families.Categorical):
    def metric_diagonal(self, z):
        q = jax.nn.softmax(z, -1)
        return q - q**2


FAULTS = [
    (Unnormalized(2.0), r"probabilities sum to 3\.545 at z = .*, not to 1: correct log_base_measure or log_partition"),
    (WrongSpread(2.0), r"and the mean product of scores .*: sample draws from another density"),
    (WrongMean(), "mean is not η', the gradient of log_partition"),
    (WrongVariance(), "variance is not φ η''"),
    (ForgottenDispersion(2.0), "Λ of metric_product is not η''/φ"),
    (WrongRoot(), "S of metric_sqrt_product does not have S Sᵀ = Λ"),
    (WrongRank(), r"metric_rank\(3\) is 3; Λ has rank 2"),
    (ReducesEverything(), "metric_product of a batch is not that of its rows: reduce the last axis alone"),
    (Scalar(), r"log_prob of outputs .* has shape \(\), not .*: reduce the last axis alone"),
    (WrongScore(), "score is not the gradient of log_prob"),
    (Outside(), "sample draws outside the support: Outside takes finite responses from 0 to 0.5; got"),
    (WrongMetric(), r"Λ\[2, 2\] is .*, and the mean product of scores .*, like the curvature of log_prob: correct"),
    (Naive(), r"the diagonal of Λ loses its digits in float32 from z = .* to .*: .* instead of .* at z = .*curvature"),
    (NoCurvature(), r"the diagonal of Λ loses its digits in float32 from z = 10.8 to 36: .*: define curvature"),
    (NearZero(), r"the mean η' loses its digits in float32 from z = -5.5e-05 to -3e-05: .*: define mean"),
    (NaiveClasses(), r"the diagonal of Λ loses its digits in float32 .*: define metric_product"),
    (WrongDensity([[1.0, 0.0], [0.0, 2.0]]), r"the mean of p\(y \| 0\.97 z\)/p\(y \| z\) over draws at z is .*, not 1"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("family", "sentence"), FAULTS, ids=lambda value: getattr(value, "name", ""))
def test_a_planted_fault_is_named_in_one_sentence(family, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        families.check(family)
    assert str(caught.value).startswith(f"{family.name}: ")


def test_outputs_outside_the_domain_are_refused():
    with pytest.raises(ValueError, match=r"Gamma: z must be finite outputs \[B C\] inside the domain; got \(1, 2\)"):
        families.check(families.Gamma(), jnp.ones((1, 2)))

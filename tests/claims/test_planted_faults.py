"""Faults planted in families, in the comparison of numbers and in exact counterexamples: each turns a claim."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy as sp
from jax.scipy.special import gammaln
from lngeom import families
from lngeom._core import numerics
from lngeom.claims import Verdict, all_claims, compared, decide, run
from lngeom.claims.proofs import proof_of
from lngeom.families import AbstractFamily
from lngeom.information import nullspace_theorem
from lngeom.nn import dynamics
from lngeom.papers.ba2016 import fisher, hidden_dynamics, metric
from lngeom.symbolic import jacobian, modular
from lngeom.symbolic.layers import METHODS
from lngeom.symbolic.proof import ProofError

pytestmark = pytest.mark.thorough


NEGATIVE_BINOMIAL, INVERSE_GAUSSIAN = families.NegativeBinomial(2.5), families.InverseGaussian(0.4)
GAMMA = families.Gamma(0.6)
ETA = "log_partition"
right_kl, right_variance, right_product = AbstractFamily.kl, AbstractFamily.variance, AbstractFamily.metric_product

FAMILY_FAULTS = {
    "η of the negative binomial, of one success": (
        "equation.10_wording",
        NEGATIVE_BINOMIAL,
        (families.NegativeBinomial, ETA, lambda self, z: -jnp.log(-jnp.expm1(z))),
    ),
    "η′ of the negative binomial, of one success": (
        "equation.11",
        NEGATIVE_BINOMIAL,
        (families.NegativeBinomial, "mean", lambda self, z: jnp.exp(z) / -jnp.expm1(z)),
    ),
    "η of the negative binomial, its sum": (
        "equation.10_wording",
        NEGATIVE_BINOMIAL,
        (families.NegativeBinomial, ETA, lambda self, z: self.successes * jnp.log(-jnp.expm1(z))),
    ),
    "η of the inverse Gaussian without 2": (
        "equation.10_wording",
        INVERSE_GAUSSIAN,
        (families.InverseGaussian, ETA, lambda self, z: -jnp.sqrt(-z)),
    ),
    "η″ of the inverse Gaussian without 2": (
        "equation.11",
        INVERSE_GAUSSIAN,
        (families.InverseGaussian, "curvature", lambda self, z: (-z) ** -1.5),
    ),
    "variance without φ": (
        "equation.11",
        GAMMA,
        (AbstractFamily, "variance", lambda self, z: right_variance(self, z) / self.dispersion),
    ),
    "Λ without φ": (
        "equation.9",
        GAMMA,
        (AbstractFamily, "metric_product", lambda self, z, v: right_product(self, z, v) * self.dispersion),
    ),
    "KL without φ": (
        "equation.8",
        GAMMA,
        (AbstractFamily, "kl", lambda self, z, other: right_kl(self, z, other) * self.dispersion),
    ),
    "score without φ": ("equation.9", GAMMA, (AbstractFamily, "score", lambda self, z, y: y - self.mean(z))),
    "base measure of the gamma family without 1/y": (
        "equation.10_wording",
        GAMMA,
        (
            families.Gamma,
            "log_base_measure",
            lambda self, y: families.Gamma.right(self, y) + jnp.log(y),
        ),
    ),
    "base measure of Bernoulli, e^−y": (
        "equation.10_wording",
        families.Bernoulli(),
        (families.Bernoulli, "log_base_measure", lambda self, y: -jnp.asarray(y)),
    ),
    "base measure of the binomial without n!": (
        "equation.10_wording",
        families.Binomial(5),
        (families.Binomial, "log_base_measure", lambda self, y: -gammaln(y + 1.0) - gammaln(self.trials - y + 1.0)),
    ),
    "base measure of classes, 1/C": (
        "equation.10_wording",
        families.Categorical(),
        (families.Categorical, "log_base_measure", lambda self, y: jnp.full(y.shape, -jnp.log(3.0) / 3)),
    ),
    "softmax by a sum": (
        "equation.11",
        families.Categorical(),
        (families.Categorical, "mean", lambda self, z: jnp.exp(z - jnp.max(z))),
    ),
}


@pytest.fixture
def one_family(monkeypatch):
    """The comparison of a single family; compiled programs hold methods as they were, and are dropped."""
    jax.clear_caches()
    yield lambda family: monkeypatch.setattr(compared, "FAMILIES", (family,))
    jax.clear_caches()


@pytest.mark.parametrize("name", FAMILY_FAULTS)
def test_a_wrong_family_turns_a_claim(problem, monkeypatch, one_family, name):
    id, family, fault = FAMILY_FAULTS[name]
    one_family(family)
    monkeypatch.setattr(families.Gamma, "right", families.Gamma.log_base_measure, raising=False)
    monkeypatch.setattr(*fault)
    found = run(all_claims(id=id)[0], problem)
    assert not found.error
    assert not found.as_recorded
    assert [e for e in found.evidence if e.description.startswith(type(family).__name__) and e.contradicts]


@pytest.mark.parametrize("family", compared.FAMILIES, ids=lambda family: type(family).__name__)
def test_an_eta_that_is_a_little_off_is_seen_of_every_family(monkeypatch, one_family, family):
    one_family(family)
    right = type(family).log_partition
    monkeypatch.setattr(type(family), ETA, lambda self, z: 1.01 * right(self, z))
    (at,) = compared.compared()
    cumulants = at.library["log_partition"], at.distribution.log_partition(at.z, at.other)
    assert not np.allclose(*map(np.asarray, cumulants), rtol=1e-3)


def test_without_faults_all_families_agree():
    for at in compared.compared():
        assert np.allclose(at.library["mean"], at.distribution.mean(at.z).astype(float), rtol=1e-12), at.name


@pytest.mark.parametrize(
    ("id", "attribute", "wrong"),
    [
        ("equation.3", "tolerance", lambda dtype, margin=1e9: 1e9 * float(jnp.finfo(dtype).eps)),
        ("equation.3", "WITNESS", 1e-12),
    ],
)
def test_a_comparison_that_is_too_loose_or_too_strict_turns_a_claim(problem, monkeypatch, id, attribute, wrong):
    monkeypatch.setattr(numerics, attribute, wrong)
    found = run(all_claims(id=id)[0], problem)
    assert not found.as_recorded
    assert [e for e in found.evidence if e.description.startswith("control") and not e.passed]


def test_ranks_that_are_always_certain_turn_a_claim(problem, monkeypatch):
    monkeypatch.setattr(numerics.RankDecision, "certain", property(lambda self: True))
    found = run(all_claims(id="equation.13_14.ln")[0], problem)
    assert [e.description for e in found.evidence if not e.passed and "control" in e.description]
    assert not found.as_recorded


def test_a_null_space_too_large_from_five_inputs_on_turns_its_claim(problem, monkeypatch):
    right = nullspace_theorem.trades
    monkeypatch.setattr(nullspace_theorem, "trades", lambda h, r, *a, **k: right(h, r, *a, **k) + 7 * (r >= 5))
    record = all_claims(id="nullspace.ln")[0]
    assert run(record, problem).verdict is Verdict.CLASH
    with pytest.raises(ProofError, match="does not hold"):
        proof_of.__wrapped__("nullspace.ln")


def scaled(function, *factors):
    return lambda *given: tuple(factor * value for factor, value in zip(factors, function(*given), strict=True))


WRONG_COUNTEREXAMPLES = {
    "Eqs. 13, 14: blocks by another formula": (
        "equation.13_14.ln",
        fisher,
        "weight_blocks",
        lambda u: scaled(fisher.stated_blocks, 4, 1)(u),
    ),
    "Eqs. 13, 14: 1/H forgotten": (
        "equation.13_14.ln",
        fisher,
        "stated_blocks",
        lambda u: tuple(sp.Integer(len(u)) * value for value in fisher.weight_blocks(u)),
    ),
    "Eq. 32: z⁴ for z²": (
        "equation.32",
        metric,
        "poisson_forms",
        lambda v: tuple(sum(sp.exp(z) * z**k for z in (sp.sqrt(2) / 2,) * 2 + (-sp.sqrt(2),)) / 3 for k in (0, 4)),
    ),
    "Eq. 35: left side times 4": ("equation.35", metric, "two_units", scaled(metric.two_units, 4, 1)),
}


@pytest.mark.parametrize("name", WRONG_COUNTEREXAMPLES)
def test_a_wrong_formula_in_an_exact_counterexample_is_refused(monkeypatch, name):
    id, page, attribute, wrong = WRONG_COUNTEREXAMPLES[name]
    monkeypatch.setattr(page, attribute, wrong)
    with pytest.raises(ProofError, match="does not hold"):
        proof_of.__wrapped__(id)


def test_growth_of_tangents_that_is_halved_is_seen(problem, monkeypatch):
    right = dynamics.hidden_dynamics
    assert decide(list(hidden_dynamics.tangent_growth(problem))) is Verdict.HOLDS
    halved = lambda *given: right(*given)._replace(growth=right(*given).growth / 2)  # noqa: E731
    monkeypatch.setattr(dynamics, "hidden_dynamics", halved)
    assert decide(list(hidden_dynamics.tangent_growth(problem))) is Verdict.CLASH


def test_draws_of_another_variance_turn_a_claim(problem, monkeypatch):
    wrong = lambda self, key, z: z + self.dispersion * jax.random.normal(key, z.shape, z.dtype)  # noqa: E731
    monkeypatch.setattr(families.Gaussian, "sample", wrong)
    found = run(all_claims(id="equation.11")[0], problem)
    assert [e.description for e in found.evidence if not e.passed] == [
        "Gaussian: variance of drawn responses, in standard errors"
    ]
    assert not found.as_recorded


@pytest.mark.parametrize("method", ["BatchNorm", "WeightNorm", "LayerNorm"])
def test_a_quotient_over_the_prime_field_without_the_slope_of_its_divisor_is_seen(monkeypatch, method):
    """The rank of batch and weight norm stays, as a row's scale may be traded against its gain."""
    assert jacobian.nullity(METHODS[method], (4, 2)) == {"LayerNorm": 3}.get(method, 4)
    monkeypatch.setattr(modular.PrimeField, "divide", lambda self, a, b: self.multiply(a, modular.inverse(b[..., :1])))
    with pytest.raises(ProofError, match="along a direction that is null"):
        jacobian.nullity(METHODS[method], (4, 2))

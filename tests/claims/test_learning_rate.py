"""The claims about the learning rate come out as recorded, and turn where what they rest on is broken."""

import dataclasses

import jax
import pytest
from lngeom import methods as normalizers
from lngeom.claims import Problem, Verdict, all_claims, run
from lngeom.claims.problem import NORMALIZERS
from lngeom.papers.training import equilibria, exponential
from lngeom.papers.training.network import sgd_path
from lngeom.training.laws import LAWS, Law

from .hostile import hostile_problem, wrong_verdicts


@pytest.fixture(scope="module")
def problem():
    return Problem(jax.random.normal(jax.random.key(3), (240, 7)), seed=5)


def outcome(problem, id):
    found = run(all_claims(id=id)[0], problem)
    assert not found.error, found.error
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(
    "id",
    [
        "dynamics.orthogonality",
        "dynamics.momentum_norm_growth",
        "dynamics.equivalence.sgd",
        "dynamics.equivalence.adamw",
        "dynamics.equivalence.lars",
        "dynamics.exponential_adamw",
        "dynamics.norm_doubling",
        "dynamics.gain_magnitude",
        "dynamics.equilibrium.lion",
        "text.implicit_early_stopping",
    ],
)
def test_claims_come_out_as_recorded(problem, id):
    found = outcome(problem, id)
    assert found.as_recorded, [(e.description, e.residual) for e in found.evidence if not e.passed]


@pytest.mark.thorough
def test_no_claim_has_a_false_verdict_or_clashes_far_from_zero(tmp_path):
    assert not wrong_verdicts(("learning-rate",), hostile_problem("an offset of 1e4", tmp_path))


def test_a_wrong_power_turns_an_equivalence(problem, monkeypatch):
    monkeypatch.setitem(LAWS, "sgd", Law(1, -1))
    assert not outcome(problem, "dynamics.equivalence.sgd").as_recorded
    monkeypatch.setitem(LAWS, "lars", Law(0, 0, -1))
    assert outcome(problem, "dynamics.equivalence.lars").verdict is Verdict.CLASH


@pytest.mark.thorough
def test_a_wrong_prediction_turns_an_equilibrium(problem, monkeypatch):
    make, rate, decay, settings = equilibria.OPTIMIZERS["normalized_gd"]
    monkeypatch.setitem(equilibria.OPTIMIZERS, "normalized_gd", (lambda r, d: make(1.1 * r, d), rate, decay, settings))
    assert not outcome(problem, "dynamics.equilibrium.normalized_gd").as_recorded


@pytest.mark.thorough
def test_a_norm_that_sees_the_scale_turns_orthogonality(problem, monkeypatch):
    monkeypatch.setitem(NORMALIZERS, "rms", normalizers.RMSNorm(eps=0.5))
    sgd_path.clear_cache()
    assert not outcome(problem, "dynamics.orthogonality").as_recorded
    sgd_path.clear_cache()


def test_a_rate_that_grows_at_another_speed_turns_the_exponential_rate(problem, monkeypatch):
    base, converted, rate, decay, settings = exponential.EXPONENTIAL["sgd"]

    def slower(o):
        return converted(dataclasses.replace(o, learning_rate=lambda t: o.learning_rate(t) ** 0.999))

    wrong = (base, slower, rate, decay, settings)
    monkeypatch.setattr(exponential, "EXPONENTIAL", {"sgd": wrong})
    assert not outcome(problem, "dynamics.exponential_learning_rate").as_recorded

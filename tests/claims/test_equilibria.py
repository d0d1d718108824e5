"""Predicted equilibria against second moments: an error of two per cent in one of them turns its claim."""

import dataclasses
import math

import numpy as np
import pytest
from lngeom.claims import Verdict, all_claims, decide, run
from lngeom.papers.training import equilibria
from lngeom.training import equilibrium, laws, predict_equilibrium


@pytest.mark.parametrize("name", equilibria.OPTIMIZERS)
def test_predictions_agree_with_second_moments(name):
    assert decide(list(equilibria.by_second_moments(name))) is Verdict.HOLDS


def quarter_power(optimizer, rate, decay, **settings):
    """SGD's norm with 2 for 2 − ηλ."""
    found = predict_equilibrium(optimizer, rate, decay, **settings)
    return dataclasses.replace(found, norm=found.norm * ((2 - rate * decay) / 2) ** 0.25)


def linear(b1, b2):
    """Lion's correlations of signs as if they were those of the filtered noise."""
    h = np.arange(2000)
    filtered = np.where(h > 0, (1 - b1) * b1 * (1 - b2) * b2 ** np.maximum(h - 1, 0), (1 - b1) ** 2)
    covariance = filtered + (b1 * (1 - b2)) ** 2 / (1 - b2**2) * b2**h
    return 1 + 4 / np.pi * float(np.sum(covariance[1:])) / covariance[0]


def scaled(angle=1.0, norm=1.0):
    def wrong(*arguments, **settings):
        found = predict_equilibrium(*arguments, **settings)
        return dataclasses.replace(found, angle=angle * found.angle, norm=norm * found.norm)

    return wrong


def remembering(optimizer, rate, decay, **settings):
    """RMSProp with Adam's β₁."""
    return predict_equilibrium("adamw", rate, decay, **settings)


FAULTS = {
    "SGD's 2 for 2 − ηλ": ("sgd", equilibria, "predict_equilibrium", quarter_power),
    "AdamW's norm two per cent too large": ("adamw", equilibria, "predict_equilibrium", scaled(norm=1.02)),
    "momentum's angle one per cent too small": ("momentum", equilibria, "predict_equilibrium", scaled(angle=0.99)),
    "RMSProp with Adam's β": ("rmsprop", equilibria, "predict_equilibrium", remembering),
    "Lion's arcsine linearized": ("lion", equilibrium, "lion_correlation", linear),
    "LARS's chord for its angle": ("lars", equilibria, "predict_equilibrium", scaled(angle=0.99999)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_turns_an_equilibrium(problem, monkeypatch, fault):
    """In place of random gradients, a walk that settles as it should."""
    name, owner, attribute, wrong = FAULTS[fault]
    rest = equilibria.prediction(name)
    excess = 1 + 0.5 * np.exp(-rest.relaxation * np.arange(1, equilibria.STEPS + 1))
    norms = np.broadcast_to(rest.norm * excess ** (1 / rest.power), (equilibria.SEEDS, equilibria.STEPS))
    monkeypatch.setattr(equilibria, "walk", lambda *given: (norms, np.full_like(norms, rest.angle)))
    claim = all_claims(id=f"dynamics.equilibrium.{name}")[0]
    assert run(claim, problem).as_recorded
    monkeypatch.setattr(owner, attribute, wrong)
    found = run(claim, problem)
    assert not found.error
    assert [e for e in found.evidence if "second moments" in e.description and not e.passed]
    assert not found.as_recorded


def test_another_law_of_eps_turns_rmsprop(problem, monkeypatch):
    assert decide(list(equilibria.with_eps(problem))) is Verdict.HOLDS
    monkeypatch.setitem(laws.LAWS, "rmsprop", laws.Law(1, -1, -1, decoupled=True))
    assert decide(list(equilibria.with_eps(problem))) is Verdict.CLASH


@pytest.mark.thorough
@pytest.mark.parametrize("fault", [lambda product, b2: math.log(2) / (2 * product), lambda product, b2: 400.0])
def test_half_lives_need_the_lag(problem, monkeypatch, fault):
    claim = all_claims(id="dynamics.half_life")[0]
    assert run(claim, problem).as_recorded
    monkeypatch.setattr(equilibrium, "lagging_half_life", fault)
    found = run(claim, problem)
    assert not found.error
    assert not found.as_recorded

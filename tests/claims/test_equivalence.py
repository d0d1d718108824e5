"""The laws of optimizers under W → cW: a wrong power, a wrong state and a step that is not optax's are each refused."""

import dataclasses

import jax
import numpy as np
import pytest
from lngeom.claims import Problem, Verdict, agree, all_claims, run
from lngeom.papers.training import equivalence
from lngeom.papers.training.equivalence import (
    BETA1,
    CORRECTION1,
    OPTIMIZERS,
    QUINTIC,
    SHAPE,
    STEPS,
    TAU,
    Line,
    by_lines,
    by_optax,
    equivalence_proof,
    line_step,
    natural_gradient_proof,
    norm,
    read_by,
)
from lngeom.symbolic.proof import ProofError
from lngeom.symbolic.sums import H, total
from lngeom.training.laws import LAWS, Law
from sympy import sqrt

FIELDS = ("rate", "decay", "eps")


def stands(lines, law: Law) -> bool:
    """Whether every line is multiplied by its power of c."""
    powers = {"W": 1, "P": -1} | {line.name: line.power for line in lines}
    return all(line_step(line, powers, law).verify() for line in lines)


def reads(name: str, hyperparameter: str) -> bool:
    """Whether the step of an optimizer has η, λ or ε."""
    return any(hyperparameter in found for found in read_by(STEPS[name]).values())


READ = [(name, hyperparameter) for name in STEPS for hyperparameter in FIELDS if reads(name, hyperparameter)]


def test_a_law_says_nothing_of_what_its_optimizer_does_not_have():
    for name in STEPS:
        assert all(reads(name, field) or getattr(LAWS[name], field) == 0 for field in FIELDS), name


@pytest.mark.parametrize("name", STEPS)
def test_every_line_stands_and_a_wrong_power_of_any_quantity_is_refused(name):
    assert stands(STEPS[name], LAWS[name])
    for quantity in {line.name for line in STEPS[name]} - {"W"}:
        wrong = tuple(
            dataclasses.replace(line, power=line.power + 1) if line.name == quantity else line for line in STEPS[name]
        )
        assert not stands(wrong, LAWS[name]), quantity


@pytest.mark.parametrize(("name", "hyperparameter"), READ)
def test_a_wrong_power_in_a_law_is_refused_by_the_proof(name, hyperparameter):
    for change in (-1, 1):
        law = dataclasses.replace(LAWS[name], **{hyperparameter: getattr(LAWS[name], hyperparameter) + change})
        assert not stands(STEPS[name], law)


@pytest.mark.thorough
def test_a_proof_of_a_wrong_law_cannot_be_made():
    for name, law in (("lars", Law(0, -2, 0)), ("adam", Law(1, 0, -1, decoupled=True))):
        with pytest.raises(ProofError):
            equivalence_proof(name, law)
    for law in (Law(0, 0, -1), Law(1, 0, -2), Law(0, -1, -2)):
        with pytest.raises(ProofError):
            natural_gradient_proof(law)


def replaced(name: str, quantity: str, formula) -> tuple[Line, ...]:
    """The step with other formulas for a quantity."""
    return tuple(
        dataclasses.replace(line, formula=formula) if line.name == quantity and line.times == 1 else line
        for line in STEPS[name]
    )


PLANTED = {
    "LARS: trust ratio of ‖g‖ + λ‖w‖": (
        "lars",
        lambda: replaced(
            "lars",
            "U",
            lambda q, h, l, d: TAU * norm(q.W) / (norm(q.P) + h.decay * norm(q.W) + h.eps) * q.R(l, d),
        ),
    ),
    "LARS: trust ratio 1/λ": (
        "lars",
        lambda: replaced("lars", "U", lambda q, h, l, d: TAU / h.decay * q.R(l, d)),
    ),
    "LARS without momentum": ("lars", lambda: replaced("lars", "B", lambda q, h, l, d: -h.rate * q.U(l, d))),
    "Adam without bias correction": (
        "adam",
        lambda: replaced("adam", "U", lambda q, h, l, d: q.A(l, d) / (sqrt(q.S(l, d)) + h.eps)),
    ),
    "Adam with ε inside the root": (
        "adam",
        lambda: replaced(
            "adam",
            "U",
            lambda q, h, l, d: (q.A(l, d) / CORRECTION1) / sqrt(q.S(l, d) / equivalence.CORRECTION2 + h.eps),
        ),
    ),
    "Muon without Nesterov's look-ahead": (
        "muon",
        lambda: replaced("muon", "R", lambda q, h, l, d: q.A(l, d) / CORRECTION1),
    ),
    "Muon with ε forgotten": ("muon", lambda: replaced("muon", "X", lambda q, h, l, d: q.R(l, d) / norm(q.R))),
    "Muon with a cubic step": (
        "muon",
        lambda: tuple(
            dataclasses.replace(
                line,
                formula=lambda q, h, l, d: (
                    QUINTIC[0] * q.X(l, d)
                    + QUINTIC[1] * total(lambda k: total(lambda e: q.X(l, e) * q.X(k, e), equivalence.D) * q.X(k, d), H)
                ),
            )
            if line.times > 1
            else line
            for line in STEPS["muon"]
        ),
    ),
    "LAMB without weight decay in its ratio": (
        "lamb",
        lambda: replaced("lamb", "R", lambda q, h, l, d: q.U(l, d)),
    ),
    "momentum that is an average": (
        "momentum",
        lambda: replaced("momentum", "B", lambda q, h, l, d: BETA1 * q.B(l, d) + (1 - BETA1) * q.R(l, d)),
    ),
}


def compared(name: str):
    """Three steps by optax and by the lines."""
    draw = np.random.default_rng(1)
    arguments = (
        name,
        draw.normal(size=SHAPE),
        draw.normal(size=(3, *SHAPE)),
        (0.2, 0.3 if OPTIMIZERS[name].decay else 0, 0.1),
    )
    return agree("steps", by_optax(*arguments), by_lines(*arguments))


@pytest.mark.parametrize("fault", PLANTED)
def test_a_step_that_is_not_optaxs_is_seen(fault, monkeypatch):
    name, lines = PLANTED[fault]
    monkeypatch.setitem(STEPS, name, lines())
    found = compared(name)
    assert found.contradicts, found.residual


@pytest.fixture(scope="module")
def problem():
    return Problem(jax.random.normal(jax.random.key(3), (240, 7)), seed=5)


def outcome(problem, name):
    found = run(all_claims(id=f"dynamics.equivalence.{name}")[0], problem)
    assert not found.error, found.error
    return found


@pytest.mark.parametrize(
    ("name", "law"),
    [("lars", Law(0, -2, 0)), ("muon", Law(1, -1, 0)), ("lamb", Law(1, -1, -1)), ("adam", Law(1, -1, 0))],
)
def test_a_wrong_law_turns_the_claim_by_numbers_alone(problem, monkeypatch, name, law):
    monkeypatch.setitem(LAWS, name, law)
    assert outcome(problem, name).verdict is Verdict.CLASH


def test_another_step_than_optaxs_turns_the_claim(problem, monkeypatch):
    name, lines = PLANTED["LARS: trust ratio of ‖g‖ + λ‖w‖"]
    monkeypatch.setitem(STEPS, name, lines())
    assert outcome(problem, name).verdict is Verdict.CLASH

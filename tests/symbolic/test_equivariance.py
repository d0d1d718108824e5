"""The equivariance theorem: its steps stand, false ones are refused, and an action that is no symmetry has no proof."""

import pytest
import sympy as sp
from lngeom.claims.proofs import proof_of
from lngeom.symbolic.equivariance import (
    CONSEQUENCES,
    NAME,
    ROWS,
    SCALING,
    SHIFT,
    block_step,
    descent_steps,
    first_order_steps,
    follows,
    generator_step,
    invariance,
    norm_step,
    second_order_step,
    sum_steps,
    tangent_step,
    theorem,
)
from lngeom.symbolic.jacobian import RADIAL, SHIFTS
from lngeom.symbolic.layers import BATCH_NORM, LAYER_NORM, RMS_NORM, WEIGHT_NORM
from lngeom.symbolic.proof import Proof, ProofError
from lngeom.symbolic.sums import field

FALSE = {
    "an orbit twice as fast": lambda: first_order_steps(2)[0],
    "F(θ) with Dg squared on one side": lambda: sum_steps(2)[0],
    "the Hessian without the derivative of ξ": lambda: second_order_step(0),
    "twice the rate": lambda: descent_steps(2)[0],
    "the whole of η²⟨p, Ap⟩": lambda: norm_step(sp.S.One),
    "rows of layer norm": lambda: invariance(ROWS, LAYER_NORM),
    "rows of batch and RMS norm": lambda: invariance(ROWS, BATCH_NORM, RMS_NORM),
    "a shift under batch norm": lambda: invariance(SHIFT, BATCH_NORM),
    "a shift that is a scale": lambda: generator_step(SHIFT, RADIAL),
    "a scale with the derivative of a shift": lambda: tangent_step(SCALING, field("V"), lambda l, d: sp.S.Zero),
}


@pytest.mark.parametrize("name", FALSE)
def test_a_false_step_is_refused(name):
    step = FALSE[name]()
    assert step.verify() is False
    with pytest.raises(ProofError, match="does not hold"):
        Proof("", (step,), name=name)


def test_the_theorem_is_proved_for_all_sizes():
    found = theorem()
    found.check()
    assert proof_of(NAME) == found
    assert found.establishes == "holds"
    assert not found.sizes


def test_steps_of_actions_stand():
    V = field("V")
    for step in (
        invariance(SCALING, BATCH_NORM, WEIGHT_NORM, LAYER_NORM, RMS_NORM),
        invariance(ROWS, BATCH_NORM, WEIGHT_NORM),
        invariance(SHIFT, LAYER_NORM),
        generator_step(SHIFT, SHIFTS),
        tangent_step(SCALING, V, V),
        block_step("", SCALING),
        block_step("", ROWS, single=True),
    ):
        step.check()


def test_a_block_of_another_power_is_refused(monkeypatch):
    monkeypatch.setattr(type(SCALING), "acts", lambda self, W: lambda l, d: sp.Symbol("c") ** 2 * W(1, d))
    assert not block_step("", SCALING).verify()


@pytest.mark.parametrize("consequence", CONSEQUENCES)
def test_a_consequence_is_cited_by_name(consequence):
    step = follows(consequence)
    assert step.lemma is theorem()
    assert step.latex == CONSEQUENCES[consequence]
    assert NAME in step.text


def test_a_lemma_cited_twice_is_one_lemma():
    proof = Proof("", (follows("fisher"), follows("gradient")), name="planted")
    assert proof.lemmas == (theorem(),)

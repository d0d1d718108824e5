"""Proofs beside the numbers: strength rises, records stay, and a proof that fails is no proof."""

import dataclasses

import jax
import pytest
from lngeom import claims, symbolic
from lngeom.claims import Kind, Problem, Role, Strength, Verdict, all_claims, proof_evidence, run
from lngeom.claims._evidence import agree, decide


@pytest.fixture(scope="module")
def problem():
    return Problem(jax.random.normal(jax.random.key(9), (60, 5)), seed=1, units=4)


def test_every_claim_is_proved_or_says_why_not():
    proved = set(claims.provable())
    for c in all_claims():
        assert (c.id in proved) != bool(c.why_numeric), c.id


def test_few_claims_rest_on_numbers_alone():
    assert sum(bool(c.why_numeric) for c in all_claims()) <= 8


@pytest.mark.parametrize(
    "id", ["table1.ln.weight_matrix_rescaling", "table1.ln.dataset_recentering", "equation.6", "equation.35"]
)
def test_a_proof_raises_the_strength_and_leaves_the_record(problem, id):
    record = all_claims(id=id)[0]
    before, after = run(record, problem), run(record, problem, proof_evidence)
    assert (before.strength, after.strength) == (Strength.NUMERIC, Strength.PROOF)
    assert before.verdict is after.verdict is record.expected
    assert all_claims(id=id)[0] is record


def test_proofs_say_what_their_claims_record():
    for c in all_claims()[::4]:
        evidence = proof_evidence(c.id) if c.id in claims.provable() else ()
        roles = {e.role for e in evidence}
        assert all(e.passed and e.kind is Kind.PROOF and e.steps for e in evidence), c.id
        if evidence:
            assert (Role.REFUTES in roles) == (c.expected is Verdict.REFUTED), c.id
            assert (Role.FAILS_WITHOUT_CONDITION in roles) == (c.expected is Verdict.CONDITIONAL), c.id


def test_a_proof_that_does_not_check_leaves_the_claim_undecided(monkeypatch):
    def broken(id):
        raise symbolic.ProofError("step 2 is false")

    monkeypatch.setattr(symbolic, "proof_of", broken)
    evidence = proof_evidence("equation.6")
    assert "step 2 is false" in evidence[0].description
    assert decide([agree("numbers", [1.0], [1.0]), *evidence]) is Verdict.UNDECIDED


def test_a_refutation_beside_numbers_that_agree_is_undecided():
    refuting = [dataclasses.replace(e, role=Role.REFUTES) for e in proof_evidence("table1.bn.single_case_rescaling")]
    assert decide([agree("numbers", [1.0], [1.0]), *refuting]) is Verdict.UNDECIDED


def test_a_claim_without_a_proof_has_no_proof_evidence():
    assert proof_evidence("no.such.claim") == ()

"""Every proof stands and is of its kind; beside the numbers strength rises, records stay, failures are no proof."""

import dataclasses
import json
import re

import pytest
from latex2mathml.converter import convert
from lngeom.claims import Role, Verdict, agree, all_claims, decide, proofs, proves, registry, run
from lngeom.claims.evidence import Kind, Strength
from lngeom.claims.papers import home
from lngeom.claims.proofs import proof_evidence, proof_of, provable
from lngeom.claims.registry import BA2016
from lngeom.methods import BatchNorm, LayerNorm
from lngeom.methods.table import Cell
from lngeom.methods.transformations import DATASET_RECENTERING, DATASET_RESCALING
from lngeom.symbolic import Counterexample, Proof
from lngeom.symbolic.notation import from_latex
from lngeom.symbolic.proof import ProofError, equality, fact
from lngeom.symbolic.table import prove_recorded

from tests.readable import unreadable

CONDITIONAL = {
    "equation.4",
    "equation.6",
    "equation.7",
    "equation.11",
    "equation.32",
    "text.bias_before_norm",
    "nullspace.completeness",
    "text.riemannian",
    "text.robust_to_scaling",
    "text.feature_shifting",
    "text.prediction_error_only",
    "statements.gradients_follow_outputs",
    "statements.any_unit_rescaling",
    "statements.gain_is_magnitude",
    "statements.gains_scale_blocks",
    "text.norm_controls_learning_rate",
    "statements.recurrent_grow_or_shrink",
}
REFUTED = {
    "text.all_methods_dataset_rescaling",
    "equation.13_14.ln",
    "text.factor_half",
}
SLIPS = {"equation.10_wording", "equation.35", "supplement.initialization"}


READ = [id for id in provable() if not id.startswith("extended.") and home(id) == BA2016]


@pytest.mark.thorough
@pytest.mark.parametrize("claim_id", READ)
def test_evidence_stands_renders_and_is_of_its_kind(claim_id):
    evidence = proof_of(claim_id)
    assert evidence is not None
    evidence.check()
    sets = {"refuted": REFUTED, "slip": SLIPS, "conditional": CONDITIONAL}
    expected = next((verdict for verdict, ids in sets.items() if claim_id in ids), "holds")
    assert evidence.establishes == expected
    if expected in {"refuted", "slip"}:
        assert isinstance(evidence, Counterexample)
        assert isinstance(evidence.correction, Proof)
    if expected == "conditional":
        assert isinstance(evidence, Proof)
        assert any(a.when_dropped for a in evidence.assumptions)
    record = json.loads(json.dumps(evidence.as_dict()))
    assert all({"text", "latex"} <= set(step) <= {"text", "latex", "checked"} for step in record["steps"])
    assert all(step["latex"] for step in record["steps"])
    assert record["steps"]
    text, latex = evidence.to_text(), evidence.to_latex()
    assert "_Dummy" not in text + latex
    assert not unreadable(evidence)
    if not claim_id.startswith("table1"):
        assert evidence.name == claim_id
    for formula in (evidence.statement, *(step["latex"] for step in record["steps"])):
        assert not set(re.sub(r"_\{[^{}]*\}", "", from_latex(formula))) & set("\\{}")
        assert "<math" in convert(formula)
    assert latex.count("{") == latex.count("}")


def test_a_cell_of_table_1_that_algebra_contradicts_has_no_proof():
    with pytest.raises(ProofError, match="LayerNorm, dataset_recentering: recorded as 'I', but algebra says 'no'"):
        prove_recorded(LayerNorm(), DATASET_RECENTERING, Cell.INVARIANT)
    with pytest.raises(ProofError, match="BatchNorm, dataset_rescaling: recorded as 'no', but algebra says 'I'"):
        prove_recorded(BatchNorm(), DATASET_RESCALING, Cell.CHANGED)


def test_ids_are_unique_and_unknown_ones_have_no_proof():
    assert len(set(provable())) == len(provable())
    assert proof_of("no.such.claim") is None
    with pytest.raises(ValueError, match="already has a proof"):
        proves("equation.3")


def test_registered_labels_are_enforced(monkeypatch):
    plain = Proof("1 = 1", (equality("one", 1, 1),), name="plain")
    for establishes, message in (
        ("refuted", "exact counterexample"),
        ("slip", "exact counterexample"),
        ("conditional", "dropped assumption"),
    ):
        monkeypatch.setitem(registry._PROVERS, f"test.{establishes}", (establishes, lambda: plain))
        with pytest.raises(ProofError, match=message):
            proof_of(f"test.{establishes}")


def test_a_step_at_some_sizes_is_no_proof_for_all(problem, monkeypatch):
    step = fact("so it is at H = 4", "1 = 1", lambda: True, sizes="H = 4")
    partial = Proof("1 = 1", (equality("one", 1, 1), step), name="equation.6")
    monkeypatch.setitem(registry._PROVERS, "equation.3", ("holds", lambda: partial))
    monkeypatch.setattr(proofs, "proof_of", proof_of.__wrapped__)  # makes it anew
    outcome = run(all_claims(id="equation.3")[0], problem, proof_evidence)
    assert outcome.verdict is Verdict.HOLDS
    assert outcome.strength is Strength.PROOF_AT_SIZES
    assert any("at H = 4" in e.description for e in outcome.evidence)


def test_every_claim_is_proved_or_says_why_not():
    proved = set(provable())
    for c in all_claims():
        assert (c.id in proved) != bool(c.why_numeric), c.id


def test_few_claims_rest_on_numbers_alone():
    assert sum(bool(c.why_numeric) for c in all_claims()) <= 9


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("id", "strength"),
    [
        ("table1.ln.weight_matrix_rescaling", Strength.PROOF),
        ("table1.ln.dataset_recentering", Strength.COUNTEREXAMPLE),
        ("equation.6", Strength.PROOF),
        ("equation.35", Strength.COUNTEREXAMPLE),
    ],
)
def test_a_proof_raises_the_strength_and_leaves_the_record(problem, id, strength):
    record = all_claims(id=id)[0]
    before, after = run(record, problem), run(record, problem, proof_evidence)
    assert (before.strength, after.strength) == (Strength.NUMERIC, strength)
    assert before.verdict is after.verdict is record.expected
    assert all_claims(id=id)[0] is record


def test_proofs_say_what_their_claims_record():
    for c in all_claims()[::4]:
        evidence = proof_evidence(c.id) if c.id in provable() else ()
        roles = {e.role for e in evidence}
        assert all(e.passed and e.kind is Kind.PROOF and e.steps for e in evidence), c.id
        if evidence:
            assert (Role.REFUTES in roles) == (c.expected is Verdict.REFUTED), c.id
            assert (Role.MISPRINT in roles) == (c.expected is Verdict.SLIP), c.id
            assert (Role.FAILS_WITHOUT_CONDITION in roles) == (c.expected is Verdict.CONDITIONAL), c.id


def test_a_proof_that_does_not_check_leaves_the_claim_undecided(monkeypatch):
    def broken(id):
        raise ProofError("step 2 is false")

    monkeypatch.setattr(proofs, "proof_of", broken)
    evidence = proof_evidence("equation.6")
    assert "step 2 is false" in evidence[0].description
    assert decide([agree("numbers", [1.0], [1.0]), *evidence]) is Verdict.UNDECIDED


def test_a_refutation_beside_numbers_that_agree_is_undecided():
    refuting = [dataclasses.replace(e, role=Role.REFUTES) for e in proof_evidence("table1.bn.single_case_rescaling")]
    assert decide([agree("numbers", [1.0], [1.0]), *refuting]) is Verdict.UNDECIDED


def test_a_claim_without_a_proof_has_no_proof_evidence():
    assert proof_evidence("no.such.claim") == ()


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (r"\sum_{k\neq i} g_k", "Σ_{k≠i} g_k"),
        (r"F_{w_1w_1}", "F_{w₁ w₁}"),
        (r"F_{w_iw_i}", "F_{w_i w_i}"),
        (r"\sigma^{-2}\sum_{k\neq i}g_k^2x_n", "σ⁻² Σ_{k≠i} g_k² x_n"),
        (r"\left[\begin{matrix}1 & 0\\-2 & - \frac{1}{2}\end{matrix}\right]", "[1 0; −2 −1/2]"),
    ],
)
def test_formulas_are_spaced_and_an_index_of_more_than_a_name_is_in_braces(formula, expected):
    assert from_latex(formula) == expected

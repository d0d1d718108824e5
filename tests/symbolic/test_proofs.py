"""Every registered proof stands, renders, and is of the kind it is said to be."""

import json

import pytest
import sympy as sp
from latex2mathml.converter import convert
from lngeom.symbolic import Counterexample, Proof, ProofError, proof_of, provable, proves
from lngeom.symbolic.proof import certified_nonzero, equality, fact, matrix

CONDITIONAL = {
    "equation.4",
    "equation.6",
    "equation.7",
    "equation.8",
    "equation.11",
    "text.bias_before_norm",
    "nullspace.completeness",
}
REFUTED = {
    "text.references_swapped",
    "text.all_methods_dataset_rescaling",
    "text.feature_shifting",
    "equation.10_wording",
    "equation.13_14.ln",
    "text.riemannian",
    "text.factor_half",
    "equation.32",
    "equation.35",
    "text.prediction_error_only",
    "supplement.initialization",
}


@pytest.mark.parametrize("claim_id", [id for id in provable() if not id.startswith("extended.")])
def test_evidence_stands_renders_and_is_of_its_kind(claim_id):
    evidence = proof_of(claim_id)
    assert evidence is not None
    evidence.check()
    expected = "refuted" if claim_id in REFUTED else "conditional" if claim_id in CONDITIONAL else "holds"
    assert evidence.establishes == expected
    if expected == "refuted":
        assert isinstance(evidence, Counterexample)
        assert isinstance(evidence.correction, Proof)
    if expected == "conditional":
        assert isinstance(evidence, Proof)
        assert any(a.when_dropped for a in evidence.assumptions)
    record = json.loads(json.dumps(evidence.as_dict()))
    assert all(set(step) == {"text", "latex"} and step["latex"] for step in record["steps"])
    assert record["steps"]
    text, latex = evidence.to_text(), evidence.to_latex()
    assert "_Dummy" not in text + latex
    if not claim_id.startswith("table1"):
        assert evidence.name == claim_id
    for formula in (evidence.statement, *(step["latex"] for step in record["steps"])):
        assert "<math" in convert(formula)
    assert latex.count("{") == latex.count("}")


def test_ids_are_unique_and_unknown_ones_have_no_proof():
    assert len(set(provable())) == len(provable())
    assert proof_of("no.such.claim") is None
    with pytest.raises(ValueError, match="already has a proof"):
        proves("equation.3")


def test_registered_labels_are_enforced(monkeypatch):
    from lngeom.symbolic import registry

    plain = Proof("plain", "1 = 1", (equality("one", 1, 1),))
    for establishes, message in (("refuted", "exact counterexample"), ("conditional", "dropped assumption")):
        monkeypatch.setitem(registry._PROVERS, f"test.{establishes}", (establishes, lambda: plain))
        with pytest.raises(ProofError, match=message):
            proof_of(f"test.{establishes}")


def test_a_proof_with_a_false_step_cannot_be_made():
    with pytest.raises(ProofError, match="does not hold"):
        Proof("false", "1 = 2", (equality("one is two", 1, 2),))
    with pytest.raises(ProofError, match="does not hold"):
        Proof("false", "", (fact("no", "", lambda: False),))
    with pytest.raises(ProofError, match="at least one step"):
        Proof("empty", "", ())


def test_a_step_is_checked_again_each_time():
    verdicts = iter([True, False])
    proof = Proof("fickle", "", (fact("once", "", lambda: next(verdicts)),))
    with pytest.raises(ProofError, match="once"):
        proof.check()


def test_a_truthy_value_is_not_a_check():
    with pytest.raises(ProofError):
        Proof("truthy", "", (fact("a number", "", lambda: 1),))  # pyright: ignore


def test_a_counterexample_must_differ_and_be_exact():
    with pytest.raises(ProofError, match="not a counterexample"):
        Counterexample("equal", "", {"x": 2}, lambda v: (sp.sqrt(v["x"]) * sp.sqrt(v["x"]), sp.Integer(2)))
    with pytest.raises(ProofError, match="must be exact"):
        Counterexample("float", "", {"x": 0.5}, lambda v: (v["x"], sp.Integer(2)))


@pytest.mark.parametrize(
    "zero",
    [
        sp.sqrt(2) + sp.sqrt(3) - sp.sqrt(5 + 2 * sp.sqrt(6)),
        sp.sqrt(8) - 2 * sp.sqrt(2),
        sp.exp(1) * sp.exp(sp.sqrt(2)) - sp.exp(1 + sp.sqrt(2)),
    ],
)
def test_disguised_zeros_are_not_certified(zero):
    assert not certified_nonzero(sp.sympify(zero))


def test_tiny_differences_are_certified():
    assert certified_nonzero(sp.sqrt(2) - sp.Rational(14142135623730950488, 10**19))
    assert certified_nonzero(sp.exp(sp.sqrt(2)) - sp.exp(sp.Rational(7, 5)))


def test_matrices_are_exact():
    assert matrix([["1/2", 1]]) == sp.ImmutableMatrix([[sp.Rational(1, 2), 1]])

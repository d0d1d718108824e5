"""A proof is refused where a step fails, and a counterexample where its sides are equal or inexact."""

import pytest
import sympy as sp
from lngeom.symbolic import Counterexample, Proof
from lngeom.symbolic.proof import Change, ProofError, certified_nonzero, equality, fact, matrix


def test_a_proof_with_a_false_step_cannot_be_made():
    with pytest.raises(ProofError, match="does not hold"):
        Proof("1 = 2", (equality("one is two", 1, 2),), name="false")
    with pytest.raises(ProofError, match="does not hold"):
        Proof("", (fact("no", "", lambda: False),), name="false")
    with pytest.raises(ProofError, match="at least one step"):
        Proof("", (), name="empty")


@pytest.mark.parametrize("route", ["lngeom.symbolic.sums.vanishes", "lngeom.symbolic.proof.agrees_at_small_sizes"])
def test_an_equality_needs_both_routes(route, monkeypatch):
    monkeypatch.setattr(route, lambda *_: True)
    with pytest.raises(ProofError, match="does not hold"):
        Proof("1 = 2", (equality("one is two", 1, 2),), name="false")


def test_a_step_is_checked_again_each_time():
    verdicts = iter([True, False])
    proof = Proof("", (fact("once", "", lambda: next(verdicts)),), name="fickle")
    with pytest.raises(ProofError, match="once"):
        proof.check()


def test_a_truthy_value_is_not_a_check():
    with pytest.raises(ProofError):
        Proof("", (fact("a number", "", lambda: 1),), name="truthy")  # pyright: ignore


def test_a_counterexample_must_differ_and_be_exact():
    with pytest.raises(ProofError, match="not a counterexample"):
        Counterexample("equal", "", {"x": 2}, lambda v: (sp.sqrt(v["x"]) * sp.sqrt(v["x"]), sp.Integer(2)))
    with pytest.raises(ProofError, match="must be exact"):
        Counterexample("float", "", {"x": 0.5}, lambda v: (v["x"], sp.Integer(2)))


def test_checking_a_counterexample_computes_its_sides_again():
    sides = [sp.Integer(1), sp.Integer(2)]
    found = Counterexample("numbers", "", {}, lambda _: (sides[0], sides[1]))
    found.check()
    sides[1] = sides[0]
    assert (found.left, found.right) == (1, 2)
    with pytest.raises(ProofError, match="both sides are 1"):
        found.check()


@pytest.mark.parametrize(
    "zero",
    [
        sp.sqrt(2) + sp.sqrt(3) - sp.sqrt(5 + 2 * sp.sqrt(6)),
        (sp.sqrt(2) + sp.sqrt(3) - sp.sqrt(5 + 2 * sp.sqrt(6))) ** 2,  # its interval ends in zero
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


def test_a_change_marks_the_entries_that_differ_and_no_others():
    half = sp.sqrt(2) / 2
    change = Change(("A", "A'"), sp.Matrix([[1, half]]), sp.Matrix([[2, sp.Pow(2, -sp.S.Half, evaluate=False)]]))
    assert change.differs == [[True, False]]
    assert change.as_dict()["before"][0][0] == "1"
    nested = sp.sqrt(3 - 2 * sp.sqrt(2))
    assert Change(("A", "A'"), sp.Matrix([[sp.sqrt(2) - 1]]), sp.Matrix([[nested]])).differs == [[False]]


def test_what_a_counterexample_shows_are_the_sides_that_it_compares():
    def shown(entry):
        return lambda v: (Change(("A", "A'"), sp.Matrix([[v["A"]]]), sp.Matrix([[entry]])),)

    def sides(v):
        return v["A"], v["A"] + 1

    assert Counterexample("x", "x", {"A": 1}, sides, changes=shown(2)).changes
    with pytest.raises(ProofError, match="no entries of what is shown"):
        Counterexample("x", "x", {"A": 1}, sides, changes=shown(3))

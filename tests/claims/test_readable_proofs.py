"""Every proof can be read at 80 columns; planted faults are seen."""

import re
from dataclasses import replace

import pytest
import sympy as sp
from lngeom.claims.papers import home
from lngeom.claims.proofs import proof_evidence, proof_of, provable
from lngeom.claims.registry import BA2016
from lngeom.methods.table import EXTENDED
from lngeom.symbolic import Counterexample, Proof
from lngeom.symbolic.jacobian import LAYER
from lngeom.symbolic.layers import LAYER_NORM
from lngeom.symbolic.proof import (
    APART,
    Assumption,
    ProofError,
    _before_signs,
    cited,
    confirmed,
    equality,
    fact,
    jointly,
    together,
)
from lngeom.symbolic.sums import D, H, field, i, mean, n, total

from tests.claims.test_proofs import READ as READ_THERE
from tests.readable import ALOUD, too_long, unreadable

ONE = equality("one", LAYER.a(n, i), LAYER.a(n, i), "z_{ni}")


def test_every_proof_is_read_by_a_test():
    """The proofs of the extended table by that of its cells, the others by that of the evidence.

    Those of other papers, which some test may have imported, are read by the tests of the gallery.
    """
    cells = {f"extended.{method}.{column}" for method, row in EXTENDED.items() for column in row}
    assert {id for id in provable() if home(id) == BA2016} == cells | set(READ_THERE)


@pytest.mark.parametrize(
    "id",
    [
        "equation.6",
        *(f"equation.13_14.{method}" for method in ("bn", "wn", "ln")),
        "text.factor_half",
        "nullspace.ln",
        "nullspace.completeness",
        "table1.ln.dataset_recentering",
    ],
)
def test_the_main_proofs_can_be_read_aloud(id):
    """With their counterexamples and corrections; a lemma that they cite is a proof of its own."""
    found = proof_of(id)
    assert too_long(found) == []
    longer = found.correction if isinstance(found, Counterexample) else found
    if longer:
        steps = (*longer.steps, *(replace(ONE, text=str(number)) for number in range(ALOUD)))
        assert too_long(replace(longer, steps=steps))


LONG = total(lambda d: sp.prod([field(f"{letter}")(i, d) for letter in "ABCDEFGHIJKLMNOP"]), D)

PLANTED = {
    "broken": (equality("A sum of products", LONG, LONG),),
    "wide": (fact("words that cannot be broken", "x" * 90, lambda: True),),
    r"names \['kappa": (equality("A name of Python's", sp.Symbol("kappa_one"), sp.Symbol("kappa_one")),),
    r"names \['\*\*": (fact("An operator of Python's", "x = x", lambda: True, "x**2 = x**2"),),
    "twice": (ONE, ONE),
    "says nothing": (equality("The same on both sides", LAYER.a(n, i), LAYER.a(n, i)),),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_faults_are_seen(fault):
    found = unreadable(Proof("1 = 1", PLANTED[fault], name="planted"))
    assert found
    assert any(re.match(fault, line) for line in found)


def test_a_proof_without_faults_has_none():
    assert not unreadable(Proof("a = a", (ONE,), name="sound"))


def test_names_stand_for_what_is_checked():
    """A short line with names is false where what they stand for is: families, parts, and parts only where needed."""
    u = field("u")

    def mean_of(l):
        return LAYER_NORM.numerator(LAYER, n, l)

    right = equality("", mean(u, H), 0, short={"u": mean_of})
    wrong = equality("", mean(u, H), 0, short={"u": lambda l: mean_of(l) + 1})
    assert right.plain == wrong.plain
    assert right.verify() is True
    assert wrong.verify() is False
    symbol = sp.Symbol("n_{ni}")
    for role in ("short", "long"):
        assert equality("", LAYER_NORM(LAYER), symbol, "n'", **{role: {symbol.name: LAYER_NORM(LAYER)}}).verify()
        assert not equality("", LAYER_NORM(LAYER), symbol, "n'", **{role: {symbol.name: LAYER.a(n, i)}}).verify()


def test_a_name_that_stands_for_nothing_is_refused():
    with pytest.raises(ProofError, match="no part of this step is q"):
        equality("a step", 1, 1, short={"q": LAYER.a(n, i)})


def test_joint_steps_must_read_the_same_and_all_be_true():
    other = equality("two", 2 * LAYER.a(n, i), 2 * LAYER.a(n, i))
    false = equality("false", LAYER.a(n, i), 0, r"a_{ni}")
    true = equality("true", LAYER.a(n, i) - LAYER.a(n, i), 0, r"a_{ni}")
    assert jointly("", [ONE, ONE]).verify() is True
    assert jointly("", [ONE, other]).verify() is False
    assert jointly("", [true, false]).verify() is False


def test_steps_side_by_side_and_steps_that_confirm_must_all_be_true():
    false = equality("false", LAYER.a(n, i), 0, r"a_{ni}")
    both = together("two", ONE, ONE)
    assert both.verify() is True
    assert both.plain == ONE.plain + APART + ONE.plain
    kept = confirmed(ONE, fact("by another route", "1 = 1", lambda: True))
    assert kept.verify() is True
    assert kept.plain == ONE.plain
    assert "by another route" in kept.checked
    for steps in ((ONE, false), (false, ONE)):
        assert together("", *steps).verify() is False
        assert confirmed(*steps).verify() is False


def test_a_lemma_is_cited_by_its_statement_and_is_checked_with_what_cites_it():
    answer = [True]
    lemma = Proof("2 = 2", (fact("two", "2 = 2", lambda: answer[0], sizes="H = 2"),), name="lemma.planted")
    citing = Proof("1 = 1", (ONE, cited("as known", lemma)), name="planted")
    assert citing.steps[1].plain == "2 = 2"
    assert "as known (lemma.planted)" in citing.to_text()
    assert (citing.lemmas, citing.sizes) == ((lemma,), "H = 2")
    citing.check()
    answer[0] = False
    with pytest.raises(ProofError, match="does not hold: two"):
        citing.check()


@pytest.mark.parametrize("establishes", ["conditional", "refuted"])
def test_what_does_not_hold_is_no_lemma(establishes):
    lemma = Proof("2 = 2", (ONE,), (Assumption("given", "1 = 1"),), establishes, name="lemma.planted")
    with pytest.raises(ProofError, match="does not hold: as known"):
        Proof("1 = 1", (cited("as known", lemma),), name="planted")


def test_lemmas_stand_beside_the_proof_that_cites_them():
    first, *lemmas = proof_evidence("nullspace.ln")
    assert first.description == "proof, 4 steps"
    assert [e.description.split(",")[0] for e in lemmas] == ["lemma.null_directions.ln", "lemma.equations.ln"]
    assert all(e.passed and e.steps and e.statement for e in lemmas)
    assert {e.description.split(",")[0] for e in lemmas} <= set(provable())


def test_long_formulas_break_before_signs_and_fill_their_lines():
    """In few brackets, with nothing lost; a sign may stand just behind the last column."""
    assert _before_signs("x" * 20 + " + " + "y" * 5, 20) == ["x" * 20, "        + " + "y" * 5]
    assert _before_signs("x" * 20 + " + " + "y" * 5, 19) == ["x" * 20 + " + " + "y" * 5]
    nested = "a = (" + " + ".join(["bbbb"] * 4) + ") − cc"
    assert _before_signs(nested, 32)[0].endswith(")")
    text = " − ".join(f"(u{k} + v{k})" for k in range(30))
    lines = _before_signs(text, 40)
    assert " ".join(line.strip() for line in lines) == text
    assert max(map(len, lines)) <= 40

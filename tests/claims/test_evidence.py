"""What numbers say and when they say nothing; and that no number overrides a proof."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lngeom.claims import NoEvidence, Problem, Role, Verdict, agree, decide, differ, run, same_integer, vanishes
from lngeom.claims.evidence import Evidence, Kind, Strength, weighed
from lngeom.claims.registry import Claim

ONE, TWO = np.ones(300), 2 * np.ones(300)
HOLED = np.where(np.arange(300) < 12, np.nan, 1.0)
YES, NO = agree("same", ONE, ONE), agree("same", ONE, TWO)
PROOFS = {role: Evidence(Kind.PROOF, role, "proof, 1 step", passed=True, samples=1) for role in Role}
NAN = agree("undefined", ONE, HOLED)
RAN = Evidence(Kind.EXPERIMENT, Role.REFUTES, "runs", passed=True, samples=10)
OPPOSITE = Evidence(Kind.EXPERIMENT, Role.SUPPORTS, "runs", passed=False, contradicts=True, samples=10)


@pytest.mark.parametrize(
    "evidence",
    [
        agree("x", HOLED, ONE),
        agree("x", HOLED, HOLED),
        differ("x", HOLED, TWO),
        vanishes("x", HOLED, scale=1.0),
    ],
)
def test_entries_that_are_not_finite_are_counted_and_say_nothing(evidence):
    assert evidence.no_evidence == "12 of 300 entries are NaN or infinite"
    assert not evidence.passed
    assert not evidence.contradicts
    assert not evidence.vacuous
    assert evidence.reason.startswith("no evidence: 12 of 300")


@pytest.mark.parametrize(
    "evidence",
    [
        agree("x", ONE * np.inf, ONE * np.inf),
        differ("x", np.float64(np.inf), np.float64(1.0)),
        differ("x", np.float64(1e308), np.float64(-1e308)),
        vanishes("x", ONE, scale=float("nan")),
        vanishes("x", ONE, scale=float("inf")),
        same_integer("x", float("nan"), 3),
        Evidence(Kind.COUNTEREXAMPLE, Role.SUPPORTS, "made by hand", passed=True, residual=float("nan")),
        Evidence(Kind.AGREEMENT, Role.SUPPORTS, "made by hand", passed=False, contradicts=True, residual=float("inf")),
    ],
)
def test_whatever_is_not_finite_says_nothing(evidence):
    assert evidence.no_evidence
    assert not evidence.passed
    assert not evidence.contradicts


def test_evidence_cannot_pass_and_show_the_opposite():
    with pytest.raises(ValueError, match="cannot show the opposite too: 'both'"):
        Evidence(Kind.AGREEMENT, Role.SUPPORTS, "both", passed=True, contradicts=True)


def test_agreement_within_the_tolerance_stands_until_rounding_is_of_the_size_of_a_witness():
    assert agree("x", ONE, ONE, rounding=1e-6).passed
    lost = agree("x", ONE, ONE, rounding=1e-2)
    assert not lost.passed
    assert "rounding alone may cause 1e-02" in lost.no_evidence


def test_a_residual_that_rounding_explains_says_nothing_and_one_far_beyond_it_contradicts():
    off = agree("x", ONE, ONE * (1 + 3e-10), rounding=1e-9)
    assert "rounding alone may cause 1e-09, and 3e-10 was measured" in off.no_evidence
    beyond = agree("x", ONE, ONE * (1 + 3e-7), rounding=1e-9)
    assert not beyond.no_evidence
    assert not beyond.passed
    assert not beyond.contradicts
    assert "decides nothing" in beyond.reason
    assert agree("x", ONE, TWO, rounding=1e-9).contradicts
    assert not agree("x", ONE, TWO, rounding=0.1).contradicts


def test_a_difference_must_exceed_its_own_rounding():
    assert differ("x", ONE, ONE * 1.01).passed
    assert differ("x", ONE, ONE * 1.01, rounding=1e-6).passed
    noise = differ("x", ONE, ONE * 1.01, rounding=1e-2)
    assert not noise.passed
    assert noise.tolerance == pytest.approx(0.1)
    assert vanishes("x", 0.01 * ONE, scale=1.0, rounding=1e-2).no_evidence
    assert vanishes("x", 0.01 * ONE, scale=1.0, rounding=1e-6).contradicts


def test_that_no_difference_is_seen_refutes_nothing():
    for values in (ONE, ONE + 1e-5):
        none = differ("x", ONE, values)
        assert "is too small to count: less than 1e-03" in none.no_evidence
        assert not none.contradicts
        assert decide([none]) is Verdict.UNDECIDED
        assert decide([none, PROOFS[Role.SUPPORTS]]) is Verdict.HOLDS


def test_counts_that_are_uncertain_say_nothing_only_where_they_differ():
    assert same_integer("x", 3, 3, uncertain="small singular values").passed
    assert same_integer("x", 3, 4, uncertain="small singular values").no_evidence == "small singular values"
    assert same_integer("x", 3, 4).contradicts


def test_weighing_finds_what_the_bound_would_have_said_at_once():
    for rounding in (1e-9, 1e-2):
        for make, values in ((agree, ONE), (agree, ONE * (1 + 3e-10)), (agree, TWO), (differ, ONE * 1.01)):
            assert weighed(make("x", ONE, values), rounding) == make("x", ONE, values, rounding=rounding)
        assert weighed(vanishes("x", ONE, scale=9.0), rounding) == vanishes("x", ONE, scale=9.0, rounding=rounding)
    assert weighed(YES, 0.0) == YES


def roles(*which):
    return [PROOFS[role] for role in which]


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        # A number that says nothing is set aside where a proof has its role, and only there.
        ([NAN], Verdict.UNDECIDED),
        ([YES, NAN], Verdict.UNDECIDED),
        ([NAN, *roles(Role.SUPPORTS)], Verdict.HOLDS),
        ([NAN, *roles(Role.SUPPORTS, Role.FAILS_WITHOUT_CONDITION)], Verdict.CONDITIONAL),
        ([YES, dataclasses.replace(NAN, role=Role.FAILS_WITHOUT_CONDITION), *roles(Role.SUPPORTS)], Verdict.UNDECIDED),
        ([dataclasses.replace(NAN, role=Role.REFUTES), *roles(Role.REFUTES, Role.CORRECTS)], Verdict.REFUTED),
        ([dataclasses.replace(NAN, role=Role.CORRECTS), *roles(Role.REFUTES)], Verdict.UNDECIDED),
        ([agree("zeros", 0 * ONE, 0 * ONE), *roles(Role.SUPPORTS)], Verdict.HOLDS),
        ([agree("zeros", 0 * ONE, 0 * ONE)], Verdict.UNDECIDED),
        # Two proofs against each other, and two kinds of falsehood, are no verdict.
        (roles(Role.SUPPORTS, Role.REFUTES, Role.CORRECTS), Verdict.CLASH),
        (roles(Role.REFUTES, Role.MISPRINT, Role.CORRECTS), Verdict.UNDECIDED),
        # An experiment refutes nothing, and does not hide a proof.
        ([RAN, *roles(Role.CORRECTS)], Verdict.NOT_REPRODUCED),
        ([OPPOSITE, *roles(Role.REFUTES, Role.CORRECTS)], Verdict.UNDECIDED),
        # A refutation says what is true instead.
        (roles(Role.REFUTES), Verdict.UNDECIDED),
        # A number against a proof is a clash, whatever else was found.
        ([NO], Verdict.CLASH),
        ([NO, *roles(Role.SUPPORTS)], Verdict.CLASH),
        ([NO, NAN, YES, *roles(Role.SUPPORTS)], Verdict.CLASH),
        ([YES, dataclasses.replace(NO, role=Role.CORRECTS), *roles(Role.CORRECTS)], Verdict.CLASH),
        ([differ("false", ONE, TWO, role=Role.REFUTES), *roles(Role.SUPPORTS)], Verdict.CLASH),
        ([NO, dataclasses.replace(PROOFS[Role.SUPPORTS], passed=False)], Verdict.CLASH),
        ([NO, *roles(Role.FAILS_WITHOUT_CONDITION)], Verdict.CLASH),
        ([NO, NAN], Verdict.CLASH),
        # A failure that rounding does not explain is not hidden by a proof.
        ([agree("nearly", ONE, ONE + 1e-6), *roles(Role.SUPPORTS)], Verdict.UNDECIDED),
        ([YES, dataclasses.replace(PROOFS[Role.SUPPORTS], passed=False)], Verdict.UNDECIDED),
    ],
)
def test_no_number_overrides_a_proof(evidence, verdict):
    assert decide(evidence) is verdict


def test_an_array_vanishes_only_where_every_entry_does():
    assert vanishes("zeros", np.zeros(2), scale=1.0).passed
    assert not Evidence(Kind.AGREEMENT, Role.SUPPORTS, "made by hand", passed=True, vacuous=True).passed
    assert not vanishes("opposite numbers", np.array([1.0, -1.0]), scale=1.0).passed


def outcome(check, *proofs, expected=Verdict.HOLDS):
    record = Claim("test.claim", topic="test", source="", statement="", expected=expected, check=check)
    return run(record, Problem(jax.random.normal(jax.random.key(0), (20, 4))), lambda id: proofs)


def test_a_refutation_by_a_number_does_not_call_itself_proved():
    by_number = outcome(lambda p: [NO], PROOFS[Role.FAILS_WITHOUT_CONDITION])
    assert (by_number.verdict, by_number.strength) == (Verdict.CLASH, Strength.NUMERIC)
    unchecked = outcome(lambda p: [YES], dataclasses.replace(PROOFS[Role.SUPPORTS], passed=False))
    assert (unchecked.verdict, unchecked.strength) == (Verdict.UNDECIDED, Strength.NUMERIC)


def test_a_check_that_cannot_be_made_leaves_the_verdict_to_the_proof():
    def check(problem):
        yield YES
        raise NoEvidence("3 rows are too few")

    alone = outcome(check)
    assert alone.verdict is Verdict.UNDECIDED
    assert not alone.error
    assert alone.reasons == ("numbers on this data: no evidence: 3 rows are too few",)
    assert outcome(check, PROOFS[Role.SUPPORTS]).as_recorded


def test_an_outcome_says_why_it_is_undecided():
    nothing = ("numbers on this data: no evidence: the check compared nothing",)
    assert outcome(lambda p: []).reasons == outcome(lambda p: [], PROOFS[Role.SUPPORTS]).reasons == nothing
    assert outcome(lambda p: [], PROOFS[Role.SUPPORTS]).silent
    assert outcome(lambda p: [YES]).reasons == ()
    assert outcome(lambda p: [NO]).reasons[0].startswith("same: it shows the opposite: the residual 5.0e-01")
    assert outcome(lambda p: [NAN]).silent


def offset_check(problem):
    """(x + 1e9) − 1e9 and x: equal, and lost to rounding for the data alone."""
    x = problem.inputs
    yield agree("offset", problem.rounded(x + 1e9) - 1e9, x)


def wrong_check(problem):
    yield agree("one in a million", problem.inputs * (1 + 1e-6), problem.inputs)


def opposite_check(problem):
    yield agree("twice", 2 * problem.inputs, problem.inputs)


def test_rounding_is_told_from_error_by_other_last_digits():
    lost = outcome(offset_check, PROOFS[Role.SUPPORTS])
    assert lost.verdict is Verdict.HOLDS
    assert "rounding alone may cause" in lost.evidence[0].no_evidence
    assert lost.evidence[0].rounding > 1e-7
    wrong = outcome(wrong_check, PROOFS[Role.SUPPORTS])
    assert wrong.verdict is Verdict.UNDECIDED
    assert not wrong.evidence[0].no_evidence
    assert wrong.evidence[0].rounding < 1e-12
    assert outcome(opposite_check, PROOFS[Role.SUPPORTS]).verdict is Verdict.CLASH
    assert outcome(opposite_check).verdict is Verdict.CLASH


def test_a_check_that_takes_another_course_at_other_last_digits_says_nothing():
    def fickle(problem):
        yield agree("twice", 2 * problem.inputs, problem.inputs)
        if problem.draw is not None:
            yield YES

    assert outcome(fickle).evidence[0].no_evidence


def test_what_passes_is_made_once_and_weighed_only_where_rounding_is_large():
    made = []

    def check(problem):
        made.append(problem.draw)
        yield differ("x", problem.inputs, 2 * problem.inputs)

    outcome(check)
    assert made == [None]
    record = Claim("test.claim", topic="test", source="", statement="", expected=Verdict.HOLDS, check=check)
    assert run(record, Problem(1e10 + jax.random.normal(jax.random.key(0), (20, 4)))).as_recorded
    assert made == [None, None, 0, 1]


def test_noise_is_no_difference():
    def noisy(problem):
        yield differ("noise", jnp.sin(1e4 * problem.inputs), jnp.cos(1e4 * problem.inputs))

    problem = Problem(1e10 + jax.random.normal(jax.random.key(0), (20, 4)))
    record = Claim("test.claim", topic="test", source="", statement="", expected=Verdict.HOLDS, check=noisy)
    found = run(record, problem)
    assert found.verdict is Verdict.UNDECIDED
    assert found.evidence[0].rounding > 1


def test_the_bound_of_a_case_follows_its_offset():
    inputs = jax.random.normal(jax.random.key(0), (50, 4))
    small, large = (Problem(offset + inputs).case("bn").rounding() for offset in (0.0, 1e6))
    assert 1e-16 < small < 1e-13
    assert large == pytest.approx(1e6 * small, rel=10)
    assert large > 1e-11
    assert Problem(jnp.ones((4, 3))).rounding == float("inf")

"""The registry itself: verdicts from evidence, and claims that turn when what they rest on is broken."""

import dataclasses
import re
import sys
import zlib
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lngeom import methods as normalizers, papers
from lngeom.claims import (
    Problem,
    Role,
    Verdict,
    agree,
    all_claims,
    claim,
    decide,
    differ,
    numpy_reference,
    paper,
    run,
    same_integer,
    vanishes,
)
from lngeom.claims.context import Context, Read, Reading
from lngeom.claims.erratum import Consequence, Erratum
from lngeom.claims.evidence import Kind
from lngeom.claims.papers import find, ids
from lngeom.claims.problem import NORMALIZERS
from lngeom.claims.registry import Claim, register, unfair
from lngeom.information import FisherOperator, reference
from lngeom.methods import Statistics
from lngeom.methods.base import summed_inputs
from lngeom.papers.ba2016 import metric as metric_claims, nullspace, scaling

ONE, TWO = np.ones(3), 2 * np.ones(3)
YES, NO = agree("same", ONE, ONE), agree("same", ONE, TWO)
MEANT = agree("as meant", ONE, ONE, role=Role.CORRECTS)


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        ([], Verdict.UNDECIDED),
        ([YES], Verdict.HOLDS),
        ([NO], Verdict.CLASH),
        ([YES, NO], Verdict.CLASH),
        ([agree("nearly", ONE, ONE + 1e-6)], Verdict.UNDECIDED),
        ([agree("zeros", 0 * ONE, 0 * ONE)], Verdict.UNDECIDED),
        ([YES, agree("nothing", ONE[:0], ONE[:0])], Verdict.UNDECIDED),
        ([YES, differ("breaks", ONE, TWO, role=Role.FAILS_WITHOUT_CONDITION)], Verdict.CONDITIONAL),
        ([YES, differ("does not break", ONE, ONE, role=Role.FAILS_WITHOUT_CONDITION)], Verdict.UNDECIDED),
        ([differ("breaks", ONE, TWO, role=Role.FAILS_WITHOUT_CONDITION)], Verdict.UNDECIDED),
        ([differ("false", ONE, TWO, role=Role.REFUTES)], Verdict.UNDECIDED),
        ([differ("false", ONE, TWO, role=Role.REFUTES), agree("true", ONE, ONE, role=Role.CORRECTS)], Verdict.REFUTED),
        ([differ("false", ONE, TWO, role=Role.MISPRINT), agree("true", ONE, ONE, role=Role.CORRECTS)], Verdict.SLIP),
        ([differ("false", ONE, TWO, role=Role.MISPRINT)], Verdict.UNDECIDED),
        ([YES, differ("false", ONE, TWO, role=Role.MISPRINT), MEANT], Verdict.UNDECIDED),
        ([dataclasses.replace(YES, kind=Kind.EXPERIMENT)], Verdict.HOLDS),
        ([dataclasses.replace(NO, kind=Kind.EXPERIMENT)], Verdict.NOT_REPRODUCED),
        ([NO, dataclasses.replace(NO, kind=Kind.EXPERIMENT)], Verdict.CLASH),
        (
            [differ("false", ONE, TWO, role=Role.REFUTES), agree("true", ONE, TWO, role=Role.CORRECTS)],
            Verdict.UNDECIDED,
        ),
        (
            [differ("false", ONE, ONE, role=Role.REFUTES), agree("true", ONE, ONE, role=Role.CORRECTS)],
            Verdict.UNDECIDED,
        ),
        ([same_integer("count", 3, 3)], Verdict.HOLDS),
        ([same_integer("count", 3, 4)], Verdict.CLASH),
        ([vanishes("zero", 1e-17 * ONE, scale=1.0)], Verdict.HOLDS),
        ([vanishes("not zero", ONE, scale=1.0)], Verdict.CLASH),
        ([vanishes("no scale", 0 * ONE, scale=0.0)], Verdict.UNDECIDED),
        ([vanishes("nan", np.nan * ONE, scale=1.0)], Verdict.UNDECIDED),
    ],
)
def test_verdict_follows_from_evidence(evidence, verdict):
    assert decide(evidence) is verdict


def test_the_eighteen_cells_are_the_papers():
    cells = {c.id for c in all_claims("invariance") if c.source == "Table 1"}
    assert cells == {f"table1.{m}.{column}" for m, row in paper.TABLE1.items() for column in row}
    assert len(cells) == 18


def records(**changes):
    """A refuted record that is fair, with changes."""
    readings = (Reading("as it stands", Verdict.REFUTED), Reading("in another way", Verdict.REFUTED))
    context = Context("A sentence.", "", "", readings, "why")
    given = {"correction": "true is", "context": context, "erratum": Erratum(Consequence.SENTENCE, "wrong")} | changes
    return Claim("test.id", **{"topic": "t", "source": "s", "statement": "…", "expected": Verdict.REFUTED} | given)


HOLDS_IN_A_WAY = Context(
    "A sentence.", "", "", (Reading("as it stands", Verdict.REFUTED), Reading("fairly", Verdict.HOLDS)), "why"
)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"correction": ""}, "a correction is needed exactly where"),
        ({"expected": Verdict.HOLDS, "erratum": None}, "a correction is needed exactly where"),
        ({"expected": Verdict.SLIP, "correction": ""}, "a correction is needed exactly where"),
        ({"expected": Verdict.NOT_REPRODUCED, "correction": ""}, "a correction is needed exactly where"),
        ({"read": Read.ABSTRACT}, "in the paper's abstract only, so it cannot be refuted"),
        ({"read": Read.NOTES}, "so it cannot be refuted"),
        ({"read": Read.NOWHERE}, "so it cannot be refuted"),
        ({"context": HOLDS_IN_A_WAY}, "not under every reading of its context"),
        ({"expected": Verdict.CONDITIONAL, "correction": ""}, "the first reading of its context is 'refuted'"),
        ({"erratum": Erratum(Consequence.NOTATION, "slip")}, "a slip of notation has the verdict 'slip'"),
        ({"expected": Verdict.SLIP}, "recorded as 'slip', but the first reading of its context is 'refuted'"),
        ({"expected": Verdict.SLIP, "context": None}, "a slip of notation has the verdict 'slip'"),
        ({"expected": Verdict.CLASH}, "a clash is found, never recorded"),
        ({"correction": " "}, "a correction is needed exactly where"),
        ({"expected": Verdict.UNDECIDED, "correction": "", "context": None}, "and has an erratum"),
    ],
)
def test_an_unfair_record_is_refused(changes, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        register(records(**changes))
    assert unfair(records()) == ""


@pytest.mark.thorough
def test_every_record_is_fair():
    for paper_id in ids():
        find(paper_id)
        assert [c.id for c in all_claims("all", paper=paper_id) if unfair(c)] == []


def test_ids_are_unique_and_corrections_in_place():
    with pytest.raises(ValueError, match="already registered"):
        claim("equation.3", topic="x", source="", statement="", expected=Verdict.HOLDS)(lambda p: [])
    with pytest.raises(ValueError, match="correction is needed exactly"):
        claim("test.no_correction", topic="x", source="", statement="", expected=Verdict.REFUTED)(lambda p: [])


def test_every_page_with_claims_is_loaded():
    all_claims()
    root = Path(papers.__file__).parent
    pages = [p for p in root.rglob("[!_]*.py") if "@claim(" in p.read_text() or "register(" in p.read_text()]
    names = {"lngeom.papers." + ".".join(p.relative_to(root).with_suffix("").parts) for p in pages}
    assert len(names) > 12
    assert names <= set(sys.modules)


def test_unknown_names_are_answered_with_known_ones():
    with pytest.raises(ValueError, match="the topics are invariance, fisher"):
        all_claims("weather")
    with pytest.raises(ValueError, match=r"claims are about Eqs\. 2–4, 6–35"):
        all_claims(id="equation.3333")
    with pytest.raises(ValueError, match=r"did you mean\n  text\.riemannian  conditional  Under the KL"):
        all_claims(id="riemanian")
    assert [c.id for c in all_claims(id="Eq. 13 layer norm")] == ["equation.13_14.ln"]


def test_a_check_that_raises_is_undecided_and_says_why(problem):
    broken = dataclasses.replace(all_claims(id="equation.3")[0], check=lambda p: 1 / 0)
    outcome = run(broken, problem)
    assert outcome.verdict is Verdict.UNDECIDED
    assert "ZeroDivisionError" in outcome.error
    assert not outcome.as_recorded


@pytest.mark.parametrize(
    ("reads", "runs"),
    [
        (lambda p: p.inputs, 3),
        (lambda p: p.case("ln"), 3),
        (lambda p: p.rounded(ONE), 3),
        (lambda p: None, 1),
        (lambda p: (p.key("draws"), p.small("ln"), p.dtype), 1),
    ],
)
def test_what_fails_without_the_data_is_not_made_again_on_other_last_digits(problem, reads, runs):
    made = []

    def check(p):
        reads(p)
        made.append(p)
        yield NO

    failing = dataclasses.replace(all_claims(id="equation.3")[0], check=check)
    assert run(failing, problem).verdict is Verdict.CLASH
    assert len(made) == runs


class WrongAxis(normalizers.LayerNorm):
    """Layer norm whose mean is taken over samples."""

    def statistics(self, weights, inputs):
        a = summed_inputs(weights, inputs)
        return Statistics(jnp.mean(a, 0, keepdims=True), super().statistics(weights, inputs).scale)


class Frozen(normalizers.BatchNorm):
    """Batch norm whose variance does not follow the weights."""

    def statistics(self, weights, inputs):
        mean, scale = super().statistics(weights, inputs)
        return Statistics(mean, jnp.ones_like(scale))


class Unscaled(normalizers.WeightNorm):
    """Weight norm by the norm of the whole matrix."""

    def statistics(self, weights, inputs):
        mean, scale = super().statistics(weights, inputs)
        return Statistics(mean, jnp.full_like(scale, jnp.linalg.norm(weights)))


class Centred(normalizers.RMSNorm):
    """RMS norm that subtracts a mean all the same."""

    def statistics(self, weights, inputs):
        return normalizers.LayerNorm(self.eps).statistics(weights, inputs)


@pytest.mark.parametrize(
    ("method", "broken", "id"),
    [
        ("ln", WrongAxis(), "table1.ln.weight_matrix_recentering"),
        ("ln", WrongAxis(), "equation.6"),
        ("ln", WrongAxis(), "statements.one_case"),
        ("ln", WrongAxis(), "statements.robust_to_batch_size"),
        ("ln", normalizers.LayerNorm(eps=0.5), "table1.ln.dataset_rescaling"),
        ("bn", Frozen(), "table1.bn.weight_vector_rescaling"),
        ("bn", Frozen(), "table1.bn.dataset_rescaling"),
        ("bn", normalizers.LayerNorm(), "equation.13_14.bn"),
        ("wn", Unscaled(), "table1.wn.weight_vector_rescaling"),
        ("wn", Unscaled(), "equation.13_14.wn"),
        ("rms", Centred(), "nullspace.rms"),
        ("gn", normalizers.LayerNorm(), "nullspace.gn"),
        ("identity", normalizers.WeightNorm(), "equation.12"),
    ],
)
def test_breaking_a_normalizer_turns_its_claims(problem, monkeypatch, method, broken, id):
    monkeypatch.setitem(NORMALIZERS, method, broken)
    outcome = run(all_claims(id=id)[0], problem)
    assert not outcome.as_recorded, [(e.description, e.residual) for e in outcome.evidence]
    assert outcome.verdict is not Verdict.REFUTED, "a bug of the library is no refutation of the paper"


def test_breaking_the_reference_turns_a_cell(problem, monkeypatch):
    right = numpy_reference.natural_parameters
    monkeypatch.setattr(numpy_reference, "natural_parameters", lambda m, p, x: right("identity", p, x))
    assert not run(all_claims(id="table1.ln.weight_matrix_rescaling")[0], problem).as_recorded


def test_a_printed_formula_that_were_right_would_not_be_refuted(problem, monkeypatch):
    monkeypatch.setattr(reference, "as_printed", reference.by_definition)
    assert run(all_claims(id="equation.13_14.ln")[0], problem).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("method", ["as_matrix", "mm", "diagonal", "block", "quadratic_form", "rank"])
def test_breaking_the_operator_that_users_call_turns_its_claim(problem, monkeypatch, method):
    right = getattr(FisherOperator, method)
    wrong = (lambda F: right(F) + 1) if method == "rank" else (lambda F, *given: 1.0001 * right(F, *given))
    monkeypatch.setattr(FisherOperator, method, wrong)
    outcome = run(all_claims(id="equation.13_14.ln")[0], problem)
    assert not outcome.as_recorded
    assert not outcome.error


def test_one_null_direction_too_many_turns_its_claim(problem, monkeypatch):
    right = nullspace.predicted_nullspace
    monkeypatch.setattr(
        nullspace,
        "predicted_nullspace",
        lambda *case: dataclasses.replace(right(*case), dimension=right(*case).dimension + 1),
    )
    assert run(all_claims(id="nullspace.ln")[0], problem).verdict is Verdict.CLASH


def test_a_wrong_direction_of_the_right_dimension_turns_its_claim(problem, monkeypatch):
    right = nullspace.predicted_nullspace
    monkeypatch.setattr(
        nullspace,
        "predicted_nullspace",
        lambda *case: dataclasses.replace(right(*case), basis=np.roll(right(*case).basis, 1, 0)),
    )
    assert run(all_claims(id="nullspace.ln")[0], problem).verdict is Verdict.CLASH


def test_the_wrong_power_turns_the_scaling_law(problem, monkeypatch):
    right = scaling.predicted
    monkeypatch.setattr(scaling, "predicted", lambda F, p, c, unit=None: right(F, p, c**0.5, unit))
    assert run(all_claims(id="scaling.matrix")[0], problem).verdict is Verdict.CLASH


def test_a_wrong_gain_metric_turns_its_claims(problem, monkeypatch):
    right = metric_claims.metric.gain_matrix
    monkeypatch.setattr(metric_claims.metric, "gain_matrix", lambda *a, **k: 2 * right(*a, **k))
    for id in ("equation.32", "equation.33", "equation.34", "text.prediction_error_only"):
        assert not run(all_claims(id=id)[0], problem).as_recorded


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(5, 3), (40, 90)])
def test_small_and_flat_data_sets_come_out_as_recorded(shape):
    small = Problem(jax.random.normal(jax.random.key(2), shape), seed=3)
    for c in all_claims():
        if c.topic in {"nullspace", "statements"}:
            outcome = run(c, small)
            assert outcome.as_recorded, (c.id, outcome.error, [e.description for e in outcome.evidence if not e.passed])


def test_a_problem_is_the_same_for_the_same_seed(problem):
    again = dataclasses.replace(problem)
    assert eqx.tree_equal(problem.case("ln"), again.case("ln"))
    assert not eqx.tree_equal(problem.case("ln"), dataclasses.replace(problem, seed=2).case("ln"))


def test_drawn_numbers_depend_on_the_seed_and_the_name_alone(problem):
    key = jax.random.fold_in(jax.random.key(problem.seed), zlib.crc32(b"a"))
    np.testing.assert_array_equal(jax.random.key_data(problem.key("a")), jax.random.key_data(key))
    np.testing.assert_array_equal(problem.normal("a", 7, 5), jax.random.normal(key, (7, 5), problem.dtype))
    uniform = jax.random.uniform(key, (3,), problem.dtype, -2.0, 3.0)
    np.testing.assert_allclose(problem.uniform("a", 3, low=-2.0, high=3.0), uniform, rtol=1e-15)


def errata_out_of_place(registered):
    """Ids of refuted claims and slips without an erratum, and of claims that hold or are open with one."""
    wanted = {Verdict.REFUTED: {True}, Verdict.SLIP: {True}, Verdict.CONDITIONAL: {True, False}}
    return [c.id for c in registered if (c.erratum is not None) not in wanted.get(c.expected, {False})]


def test_each_refuted_claim_says_what_it_means_for_the_paper():
    registered = all_claims(topic="all")
    assert errata_out_of_place(registered) == []
    refuted = next(c for c in registered if c.expected is Verdict.REFUTED)
    holds = next(c for c in registered if c.expected is Verdict.HOLDS)
    assert errata_out_of_place([dataclasses.replace(refuted, erratum=None)]) == [refuted.id]
    assert errata_out_of_place([dataclasses.replace(holds, erratum=refuted.erratum)]) == [holds.id]

"""Mutants: the catalogue fits the source, and a planted fault is noticed, or survives."""

import ast
from pathlib import Path

import lngeom
import pytest
from analysis.mutants import campaign
from analysis.mutants.campaign import MUTANTS
from analysis.mutants.catalogue import CATALOGUE
from analysis.mutants.examine import NoAnswer, Result, run_tests
from analysis.mutants.judge import differs
from analysis.mutants.mutant import AREAS, Mutant, matching
from analysis.mutants.table import kind, markdown, read, summarize, write
from lngeom.claims import all_claims

ROOT = Path(lngeom.__file__).resolve().parents[1]


def mutant(fragment="return 0.5 * delta @ gain_matrix(", replacement="return delta @ gain_matrix(", **more):
    fields = {"claims": ("equation.33",), "tests": ()} | more
    return Mutant("planted", "metric", "information/metric.py", fragment, replacement, "without ½", **fields)


def result(id, outcome, by="", how=""):
    return Result(id, MUTANTS[id].fingerprint, outcome, by, how, 1, 0.5)


def test_ids_are_unique_and_areas_known():
    assert len(MUTANTS) == len(CATALOGUE) >= 150
    assert {m.area for m in CATALOGUE} == set(AREAS)


def test_every_fragment_occurs_once_and_every_fault_is_a_program():
    sources = {m.file: (ROOT / "lngeom" / m.file).read_text(encoding="utf-8") for m in CATALOGUE}
    plain = {file: ast.dump(ast.parse(source)) for file, source in sources.items()}
    for m in CATALOGUE:
        changed = ast.dump(ast.parse(m.apply(sources[m.file])))
        assert changed != plain[m.file], f"{m.id} changes no code"


def test_somebody_is_asked_about_every_fault():
    known = [(claim.id, claim.topic) for claim in all_claims("all")]
    for m in CATALOGUE:
        assert matching(m.claims, known) or m.tests, m.id
        assert all((ROOT / file).is_file() for file in m.tests), m.id


@pytest.mark.parametrize(
    ("planted", "message"),
    [
        (mutant("no such text"), "occurs 0 times"),
        (mutant("delta", "other"), "occurs [0-9]+ times"),
        (mutant(replacement=mutant().fragment), "changes nothing"),
    ],
)
def test_a_mutant_that_does_not_fit_is_refused(planted, message):
    with pytest.raises(ValueError, match=message):
        planted.apply((ROOT / "lngeom/information/metric.py").read_text(encoding="utf-8"))


def test_patterns_of_claims():
    known = [("a.x", "first"), ("a.y", "second"), ("b", "first")]
    assert matching(("a.*", "first"), known) == ["a.x", "a.y", "b"]
    with pytest.raises(ValueError, match="no claim or topic 'c'"):
        matching(("c",), known)


def test_what_counts_as_noticed():
    holds, clash = {"verdict": "holds", "error": ""}, {"verdict": "clash", "error": ""}
    undecided, failed = {"verdict": "undecided", "error": ""}, {"verdict": "undecided", "error": "KeyError: 0"}
    assert differs(clash, holds)
    assert differs(failed, undecided)
    assert not differs(holds, holds)
    assert not differs(failed, failed)


@pytest.mark.thorough
def test_a_fault_is_noticed_by_a_claim_and_another_survives():
    noticed, survives = mutant(), mutant(replacement="return 0.5 * 1 * delta @ gain_matrix(")
    found = {r.fingerprint: r for r in campaign.results([noticed, survives])}
    first, second = found[noticed.fingerprint], found[survives.fingerprint]
    assert (first.outcome, first.by) == ("claims", "equation.33"), first
    assert (second.outcome, second.claims) == ("none", 1), second


def test_a_test_that_fails_notices(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # these tests need none
    failing = "import pytest\ndef test_one(): pass\n@pytest.mark.parametrize('x', ['a name'])\n"
    (tmp_path / "test_it.py").write_text(f"{failing}def test_two(x): assert 1 == 2\n")
    (tmp_path / "test_good.py").write_text("def test_one(): pass\n")
    assert run_tests(tmp_path, ["test_it.py"], 100) == ("test_it.py::test_two[a name]", "assert 1 == 2")
    assert run_tests(tmp_path, ["test_good.py"], 100) is None
    with pytest.raises(RuntimeError, match="exit code 4"):
        run_tests(tmp_path, ["test_missing.py"], 100)


def test_a_process_that_hangs_is_ended(tmp_path):
    (tmp_path / "test_it.py").write_text("import time\ndef test_one(): time.sleep(1000)\n")
    with pytest.raises(NoAnswer, match="no answer in 3 s"):
        run_tests(tmp_path, ["test_it.py"], 3)


def test_results_are_read_as_they_were_written(tmp_path):
    equivalent = next(m.id for m in CATALOGUE if m.equivalent)
    ids = [m.id for m in CATALOGUE if not m.equivalent][:3]
    found = [
        result(ids[0], "claims", "equation.3", "holds → refuted"),
        result(ids[1], "tests", "tests/test_glm.py::test"),
        result(ids[2], "none"),
        result(equivalent, "none"),
    ]
    assert [kind(r, MUTANTS[r.id]) for r in found] == ["claims", "tests", "none", "equivalent"]
    assert {k: v for k, v in summarize(found, MUTANTS)["all"].items() if v} == {
        "planted": 4, "claims": 1, "tests": 1, "none": 1, "equivalent": 1
    }  # fmt: skip
    path = tmp_path / "mutants.json"
    write(found, MUTANTS, {"command": "python -m analysis mutants", "code": "abc"}, path)
    configuration, again = read(path)
    assert configuration["code"] == "abc"
    assert {r.id: r for r in again} == {r.id: r for r in found}
    page = markdown(again, MUTANTS, configuration)
    later = markdown(again, MUTANTS, configuration | {"again": {"code": "`later`", "ids": [again[0].id]}})
    assert "nobody noticed 1 of these faults" in later
    assert f"in code `later`: `{again[0].id}`" in later
    assert "`equation.3` | holds → refuted |" in page
    assert "**by none**" in page
    assert campaign.kept_results(path, "abc") == again
    with pytest.raises(ValueError, match="other code"):
        campaign.kept_results(path, "def")

"""Claims of experiments: undecided without results, and turned by results that say the opposite."""

import dataclasses
import io
import json

import jax.numpy as jnp
import numpy as np
import pytest
from lngeom.claims import Problem, Verdict, all_claims, run
from lngeom.claims.comparison import TrainingStatement
from lngeom.claims.results import digest

STEPS = np.array([0, 10, 20, 30])
FAST, SLOW = np.array([1.0, 0.1, 0.1, 0.1]), np.array([1.0, 0.9, 0.8, 0.2])


STATEMENT = TrainingStatement("experiments.handwriting", "faster", "much faster", "new", "old", "NLL", bound=0.65)


def write(folder, treated, baseline, seeds=5, statement=STATEMENT):
    arrays = {}
    for arm, curve in (("new", treated), ("old", baseline)):
        arrays[f"{arm}/steps"] = STEPS
        arrays[f"{arm}/metrics"] = np.array(["NLL"])
        arrays[f"{arm}/curves"] = np.tile(curve[None, :, None], (seeds, 1, 1)).astype(np.float32)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    (folder / "handwriting").mkdir(exist_ok=True)
    files = {"curves.npz": buffer.getvalue(), "config.json": b"{}"}
    for name, content in files.items():
        (folder / "handwriting" / name).write_bytes(content)
    sha = {name: digest(content) for name, content in files.items()}
    statements = json.dumps({"sha256": sha, "statements": [statement.as_json()]})
    (folder / "handwriting" / "statements.json").write_text(statements)


@pytest.fixture
def problem(tmp_path):
    return Problem(jnp.ones((4, 3)), results=tmp_path)


CLAIM = all_claims(id="experiments.handwriting")[0]


def test_without_results_a_claim_waits_and_does_not_differ(problem):
    for where in (problem, dataclasses.replace(problem, results=None)):
        outcome = run(CLAIM, where)
        assert outcome.verdict is Verdict.UNDECIDED
        assert outcome.waiting
        assert outcome.as_recorded
        assert "python -m analysis handwriting" in outcome.error


def test_results_decide(problem):
    write(problem.results, FAST, SLOW)
    outcome = run(CLAIM, problem)
    assert outcome.verdict is Verdict.HOLDS
    assert outcome.strength == "experiment"
    write(problem.results, SLOW, FAST)
    assert run(CLAIM, problem).verdict is Verdict.REFUTED
    write(problem.results, FAST, SLOW, seeds=4)
    few = run(CLAIM, problem)
    assert few.verdict is Verdict.UNDECIDED
    assert not few.waiting
    assert not few.as_recorded


def test_damaged_results_are_an_error_and_not_a_lack_of_results(problem):
    write(problem.results, FAST, SLOW)
    path = problem.results / "handwriting" / "curves.npz"
    path.write_bytes(path.read_bytes()[:100])
    outcome = run(CLAIM, problem)
    assert "damaged" in outcome.error
    assert not outcome.as_recorded


def test_curves_without_a_statement_that_fits_them_are_an_error(problem):
    for statement, message in (
        (dataclasses.replace(STATEMENT, claim="experiments.draw"), "no statement of handwriting"),
        (dataclasses.replace(STATEMENT, baseline="older"), "no curve 'NLL' of 'older'"),
        (dataclasses.replace(STATEMENT, metric="error"), "no curve 'error' of 'new', 'old'"),
    ):
        write(problem.results, FAST, SLOW, statement=statement)
        outcome = run(CLAIM, problem)
        assert message in outcome.error
        assert not outcome.as_recorded
    path = problem.results / "handwriting" / "statements.json"
    path.write_text('{"statements": [{"text": "faster"}]}')
    assert "a statement lacks claim, paper" in run(CLAIM, problem).error
    path.unlink()
    assert "python -m analysis handwriting --redraw" in run(CLAIM, problem).error


def test_they_are_left_out_of_an_audit_that_does_not_ask_for_them():
    assert CLAIM not in all_claims()
    assert CLAIM in all_claims("experiments")

"""Claims of experiments: undecided without results, and turned by results that say the opposite."""

import dataclasses
import io
import json

import jax.numpy as jnp
import numpy as np
import pytest
from lngeom.claims import Problem, Verdict, all_claims, run
from lngeom.claims.comparison import TrainingStatement
from lngeom.claims.results import FOLDER, digest

STEPS = np.array([0, 10, 20, 30])
FAST, SLOW = np.array([1.0, 0.1, 0.1, 0.1]), np.array([1.0, 0.9, 0.8, 0.1])


STATEMENT = TrainingStatement("experiments.handwriting", "faster", "much faster", "new", "old", "NLL", bound=0.65)


def write(results, treated, baseline, seeds=10, statement=STATEMENT):
    """Results of the protocol, with one learning rate on either side of the best one."""
    arrays = {}
    for arm, curve in (("new", treated), ("old", baseline)):
        rates = [("choosing", rate, curve + rate * (rate != 0.003)) for rate in (0.001, 0.003, 0.01)]
        for stage, rate, values in (*rates, ("fresh", 0.003, curve)):
            name = f"{stage}/{arm}/{rate:g}"
            arrays[f"{name}/steps"] = STEPS
            arrays[f"{name}/metrics"] = np.array(["NLL"])
            count = seeds if stage == "fresh" else 3
            arrays[f"{name}/curves"] = np.tile(values[None, None], (1, count, 1)).astype(np.float32)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    folder = results / FOLDER / "handwriting"
    folder.mkdir(parents=True, exist_ok=True)
    files = {"curves.npz": buffer.getvalue(), "config.json": b'{"generated": true}'}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    sha = {name: digest(content) for name, content in files.items()}
    (folder / "report.json").write_text(json.dumps({"sha256": sha, "statements": [statement.as_json()]}))
    return folder


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
        assert "python -m analysis protocol handwriting" in outcome.error


def test_results_decide(problem):
    write(problem.results, FAST, SLOW)
    outcome = run(CLAIM, problem)
    assert outcome.verdict is Verdict.HOLDS
    assert outcome.strength == "experiment"
    (evidence,) = outcome.evidence
    assert "10 of 10 fresh seeds for, 0 against; learning rates 0.003 and 0.003; generated data" in evidence.description
    write(problem.results, SLOW, FAST)
    assert run(CLAIM, problem).verdict is Verdict.NOT_REPRODUCED
    write(problem.results, FAST, SLOW, seeds=4)
    few = run(CLAIM, problem)
    assert few.verdict is Verdict.UNDECIDED
    assert not few.waiting
    assert not few.as_recorded


def test_what_the_report_says_of_itself_is_not_believed(problem):
    path = write(problem.results, SLOW, FAST) / "report.json"
    report = json.loads(path.read_text())
    report["statements"][0] |= {"verdict": "SUPPORTED", "p, corrected": 0.0, "wins": 10, "losses": 0}
    path.write_text(json.dumps(report))
    assert run(CLAIM, problem).verdict is Verdict.NOT_REPRODUCED


@pytest.mark.parametrize("name", ["curves.npz", "config.json"])
def test_results_that_were_changed_after_their_run_are_an_error_and_not_a_lack_of_results(problem, name):
    path = write(problem.results, FAST, SLOW) / name
    path.write_bytes(path.read_bytes()[:-1])
    outcome = run(CLAIM, problem)
    assert f"{name} is missing or was changed after its run" in outcome.error
    assert not outcome.as_recorded


def test_curves_without_a_statement_that_fits_them_are_an_error(problem):
    for statement, message in (
        (dataclasses.replace(STATEMENT, claim="experiments.draw"), "no statement of handwriting"),
        (dataclasses.replace(STATEMENT, baseline="older"), "no curve 'NLL' of 'older'"),
        (dataclasses.replace(STATEMENT, metric="error"), "no curve 'error' of 'new', 'old'"),
    ):
        folder = write(problem.results, FAST, SLOW, statement=statement)
        outcome = run(CLAIM, problem)
        assert message in outcome.error
        assert not outcome.as_recorded
    report = json.loads((folder / "report.json").read_text())
    for broken in ({"statements": [{"text": "faster"}]}, {"statements": 1}, {"sha256": {}}):
        (folder / "report.json").write_text(json.dumps(report | broken))
        assert "run `python -m analysis protocol handwriting` again" in run(CLAIM, problem).error


def test_they_are_left_out_of_an_audit_that_does_not_ask_for_them():
    assert CLAIM not in all_claims()
    assert CLAIM in all_claims("experiments")

"""A badge says that a second program has checked a proof, and is gone once the proof is another."""

import copy

import pytest
from lngeom.claims.proofs import proof_evidence
from lngeom.report import second_check
from lngeom.report.document import as_record

CLAIM = "table1.bn.weight_matrix_recentering"


def digest_now(claim):
    return second_check.digest([as_record(e) for e in proof_evidence(claim)])


@pytest.fixture(scope="module")
def record():
    return {"id": CLAIM, "evidence": [as_record(e) for e in proof_evidence(CLAIM)]}


def test_a_proof_as_it_was_checked_has_a_badge(record):
    found = second_check.checked(record)
    assert found is not None
    assert found.twice >= 1


@pytest.mark.thorough
def test_every_badge_is_of_the_proof_as_it_is_now():
    """Else no badge would be shown, and nobody would see that: `python -m analysis trust` checks the proofs again."""
    stale = [id for id, kept in second_check._known().items() if kept["digest"] != digest_now(id)]
    assert not stale


def test_a_changed_step_has_none(record):
    changed = copy.deepcopy(record)
    changed["evidence"][0]["steps"][-1]["text"] += "!"
    assert second_check.checked(changed) is None
    assert second_check.checked(record | {"id": "another"}) is None
    assert second_check.checked(record | {"evidence": []}) is None

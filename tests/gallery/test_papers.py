"""Every claim of every paper has its recorded verdict, and a proof that can be read or a reason why it has none."""

import pytest
from lngeom.claims import Read, Verdict, run
from lngeom.claims.papers import PaperError, find, home, ids
from lngeom.claims.proofs import proof_evidence, proof_of
from lngeom.claims.registry import claim
from lngeom.papers.gallery import PAPERS

from tests.readable import unreadable

CLAIMS = {c.id: c for id in PAPERS for c in find(id).claims}


@pytest.mark.parametrize("id", CLAIMS)
def test_each_verdict_is_the_recorded_one(problem, id):
    outcome = run(CLAIMS[id], problem, proof_evidence)
    assert outcome.as_recorded, (outcome.verdict, outcome.reasons, outcome.error)
    assert not outcome.silent, outcome.reasons
    proof = proof_of(id)
    assert (proof is None) == bool(outcome.claim.why_numeric)
    assert proof is None or not unreadable(proof), unreadable(proof)


@pytest.mark.parametrize("id", PAPERS)
def test_each_paper_is_complete(id):
    paper = find(id)
    assert paper.id == id
    assert paper.finding.endswith(".")
    assert len(paper.claims) >= 3
    assert find(PAPERS[id]) is paper
    for c in paper.claims:
        assert c.id.startswith(f"{id}.")
        assert c.topic == c.paper == id == home(c.id)
        if c.expected is Verdict.CONDITIONAL:
            assert c.assumptions, c.id
        if c.expected in {Verdict.REFUTED, Verdict.SLIP}:
            assert c.erratum, c.id
            assert c.context, c.id
        assert c.read is not Read.NOWHERE, c.id
        if c.read is Read.OWN:
            assert c.context is None, f"{c.id} is lngeom's own, and so reads no sentence of the paper"


def test_claims_of_a_paper_are_not_in_the_audit_of_another():
    found = {c.id for c in find("ba2016").claims}
    assert found
    assert not found & set(CLAIMS)
    assert ids()[0] == "ba2016"


def test_an_unknown_paper_is_explained():
    with pytest.raises(PaperError, match="no paper 'nobody1999'"):
        find("nobody1999")


def test_a_folder_without_a_paper_is_explained(tmp_path):
    with pytest.raises(PaperError, match="no such folder"):
        find(str(tmp_path / "missing"))
    with pytest.raises(PaperError, match=r"no __init__\.py"):
        find(str(tmp_path))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/__init__.py").write_text("")
    with pytest.raises(PaperError, match="must make one"):
        find(str(tmp_path / "empty"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/__init__.py").write_text("1 / 0")
    with pytest.raises(PaperError, match="ZeroDivisionError"):
        find(str(tmp_path / "broken"))


def test_ids_are_unique_over_papers():
    with pytest.raises(ValueError, match="already registered"):
        claim(next(iter(CLAIMS)), topic="x", source="", statement="", expected=Verdict.HOLDS)(lambda p: ())

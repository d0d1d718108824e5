"""The sentence, the ranking and the counts are those of the document."""

import copy
import re
from pathlib import Path

import pytest
from lngeom.claims import Verdict, all_claims
from lngeom.claims.erratum import Consequence
from lngeom.claims.evidence import Strength
from lngeom.claims.registry import Outcome
from lngeom.report.document import document as build_document
from lngeom.report.errata import errors, headline, origins, printed
from lngeom.report.page import SOFTWARE

from tests.report.test_page import OWN


@pytest.fixture(scope="module")
def document():
    """What a full audit writes, without evidence, and with an answer for each cell of Table 1."""
    outcomes = [Outcome(c, c.expected, Strength.PROOF, (), 0.1) for c in all_claims()]
    return build_document(outcomes, OWN, 0)


def test_errors_are_ranked_by_what_they_change(document):
    found = {rank: [claim["id"] for claim in claims] for rank, claims in errors(document["claims"]).items()}
    assert list(found) == [rank.value for rank in Consequence]
    gravest = {"equation.13_14.ln"}
    assert set(found["changes a conclusion"]) == gravest
    refuted = {claim["id"] for claim in document["claims"] if claim["verdict"] == "refuted"}
    assert refuted <= {id for ids in found.values() for id in ids}
    assert set(found["slip of notation"]) == {c["id"] for c in document["claims"] if c["verdict"] == "slip"}


def test_a_claim_that_holds_on_the_data_is_no_error_and_neither_is_one_not_reproduced(document):
    changed = copy.deepcopy(document["claims"])
    for claim in changed:
        claim["verdict"] = "holds" if claim["id"] == "text.factor_half" else claim["verdict"]
        claim["verdict"] = "not reproduced" if claim["id"] == "equation.13_14.ln" else claim["verdict"]
    found = [claim["id"] for claims in errors(changed).values() for claim in claims]
    assert "text.factor_half" not in found
    assert "equation.13_14.ln" not in found
    assert "text.all_methods_dataset_rescaling" in found


def test_the_sentence_counts_what_is_listed(document):
    sentence = headline(document)
    assert sentence.startswith(
        "All 18 answers of Table 1 are right as printed, and elsewhere the audit finds 1 error that"
    )
    counts = [len(claims) for claims in errors(document["claims"]).values()]
    assert [int(n) for n in re.findall(r"\d+", sentence)] == [18, 1, *counts]
    wrong = copy.deepcopy(document)
    wrong["tables"][0]["rows"][0]["cells"][0]["verdict"] = "refuted"
    assert headline(wrong).startswith("17 of 18 answers of Table 1")
    assert str(printed(wrong["tables"][0])) == "17 of 18 as printed"
    wrong["claims"] = [claim for claim in wrong["claims"] if claim["id"] == "equation.13_14.ln"]
    assert headline(wrong | {"tables": []}).endswith("claims finds 1 error that changes a conclusion.")
    assert headline(wrong | {"claims": []}).endswith("finds no error.")


def test_claims_of_the_paper_and_additions_are_told_apart(document):
    counts = origins(document["claims"])
    assert sum(counts["paper"].values()) + sum(counts["added"].values()) == len(document["claims"])
    assert counts["paper"]["refuted"] == sum(c.expected is Verdict.REFUTED for c in all_claims())
    of = {claim["id"]: claim["origin"] for claim in document["claims"]}
    assert (of["equation.6"], of["nullspace.ln"]) == ("paper", "added")


def test_lngeom_is_cited_as_its_citation_file_says():
    citation = (Path(__file__).parents[2] / "CITATION.cff").read_text(encoding="utf-8")
    assert f'title: "{SOFTWARE}"' in citation
    assert "name: The lngeom authors" in citation

"""Every statement of the paper names its claims or a reason, and every claim about the paper is named."""

import io
import json
import re

import numpy as np
import pytest
from lngeom.claims import all_claims
from lngeom.claims.context import Read
from lngeom.claims.data import Dataset
from lngeom.claims.evidence import Strength
from lngeom.claims.registry import Outcome
from lngeom.papers.ba2016 import coverage as pages
from lngeom.papers.ba2016.coverage import STATEMENTS, Statement, coverage
from lngeom.report import terminal
from lngeom.report.document import document, dumps
from lngeom.report.page import page
from rich.console import Console


def faults(statements):
    ids = {c.id for c in all_claims("all")}
    for s in statements:
        if bool(s.claims) == bool(s.why_not):
            yield f"{s.text!r} needs claims or a reason, and not both"
        yield from (f"{s.text!r} names no claim: {id}" for id in s.claims if id not in ids)
    texts = [(s.section, s.text) for s in statements]
    yield from (f"{text} stands twice" for text in set(texts) if texts.count(text) > 1)
    named = {id for s in statements for id in s.claims}
    for c in all_claims("all"):
        if c.id not in named and c.read is not Read.OWN:
            yield f"{c.id} is about the paper, and no statement names it"
        if c.id in named and c.read is Read.OWN:
            yield f"{c.id} is a claim of ours, and a statement of the paper names it"


def test_statements_and_claims_name_each_other():
    assert list(faults(STATEMENTS)) == []


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ((*STATEMENTS, Statement("Section 1", "x")), "needs claims or a reason"),
        ((*STATEMENTS, Statement("Section 1", "x", ("equation.3",), "why")), "and not both"),
        ((*STATEMENTS, Statement("Section 1", "x", ("equation.36",))), "names no claim"),
        ((*STATEMENTS, STATEMENTS[0]), "stands twice"),
        (tuple(s for s in STATEMENTS if "equation.12" not in s.claims), "equation.12 is about the paper"),
        ((*STATEMENTS, Statement("Section 1", "x", ("dynamics.epsilon",))), "dynamics.epsilon is a claim of ours"),
    ],
)
def test_a_planted_fault_is_found(planted, found):
    assert any(found in text for text in faults(planted))


def test_counts_follow_the_list(monkeypatch):
    whole = coverage()
    assert whole.statements == whole.treated + whole.not_testable == len(STATEMENTS)
    assert re.match(rf"{whole.treated} of {whole.statements} statements of the paper are covered", str(whole))
    monkeypatch.setattr(pages, "STATEMENTS", (*STATEMENTS, Statement("Section 1", "x", why_not="y")))
    assert coverage() == whole._replace(statements=whole.statements + 1, not_testable=whole.not_testable + 1)
    only_on_request = Statement("Section 1", "y", ("experiments.draw",))
    monkeypatch.setattr(pages, "STATEMENTS", (*STATEMENTS, only_on_request))
    assert coverage().on_request == whole.on_request + 1


def test_sections_are_in_the_order_of_the_paper():
    sections = list(dict.fromkeys(s.section for s in STATEMENTS))
    numbered = [tuple(map(int, s.removeprefix("Section ").split("."))) for s in sections[1:-1]]
    assert numbered == sorted(numbered)
    assert (sections[0], sections[-1]) == ("Abstract", "Supplement")


def test_it_is_in_the_document_on_the_page_and_in_the_terminal():
    claims = all_claims("metric")[:2]
    outcomes = [Outcome(c, c.expected, Strength.PROOF, (), 0.1) for c in claims]
    data = Dataset(inputs=np.ones((4, 2)), name="own.npy", shape=(4, 2), rank=1, fingerprint="0" * 64, notes=())
    written = json.loads(dumps(document(outcomes, data, 0)))
    found = written["coverage"]
    assert [found[name] for name in ("statements", "treated", "on_request", "not_testable")] == list(coverage())
    assert [(s["section"], s["text"], tuple(s["claims"]), s["why_not"]) for s in found["list"]] == list(STATEMENTS)
    shown = page(written)
    assert str(coverage()) in shown
    targets = set(re.findall(r'<a href="#([^"]*)"><code>', shown))
    assert {c.id for c in claims} <= targets <= {c.id for c in claims}
    for several, expected in ((outcomes, True), (outcomes[:1], False)):
        console = Console(width=200, record=True, file=io.StringIO())
        console.print(*terminal.overview(several, document(several, data, 0)))
        assert ("not testable here" in " ".join(console.export_text().split())) is expected

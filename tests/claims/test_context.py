"""Refuted and conditional sentences of the paper stand in their context, with the reading that is judged."""

import dataclasses
import html
import json
import re

import numpy as np
import pytest
from lngeom.claims import Verdict, all_claims
from lngeom.claims.context import Read
from lngeom.claims.data import Dataset
from lngeom.claims.evidence import Strength
from lngeom.claims.registry import Outcome
from lngeom.report import terminal
from lngeom.report.document import document, dumps
from lngeom.report.page import page
from rich.console import Console


def texts(context):
    """All texts of a context."""
    return [context.sentence, context.before, context.after, context.verdict, *(r.says for r in context.readings)]


def without_context(claims):
    return [
        c.id
        for c in claims
        if c.expected in {Verdict.REFUTED, Verdict.SLIP, Verdict.NOT_REPRODUCED, Verdict.CONDITIONAL}
        and not c.context
        and c.read is not Read.OWN
    ]


def test_every_refuted_or_conditional_sentence_is_shown_in_its_context():
    claims = all_claims("all")
    assert without_context(claims) == []


def test_a_missing_context_is_seen():
    claim = all_claims(id="equation.32")[0]
    assert without_context([dataclasses.replace(claim, context=None)]) == ["equation.32"]
    assert without_context([dataclasses.replace(claim, context=None, expected=Verdict.HOLDS)]) == []


@pytest.mark.parametrize("claim", [c for c in all_claims("all") if c.context], ids=lambda c: c.id)
def test_a_context_says_what_it_must(claim):
    found = claim.context
    assert found.sentence
    assert found.before or found.after
    assert found.readings
    assert found.verdict
    named = re.findall(r"\b(?:equation|text|experiments|statements)\.[\w.]*\w", " ".join(texts(found)))
    assert {all_claims(id=id)[0].id for id in named} == set(named)


def test_it_is_in_the_document_on_the_page_and_in_the_terminal():
    claim, plain = all_claims(id="text.factor_half")[0], all_claims(id="equation.3")[0]
    assert claim.context
    outcomes = [Outcome(c, c.expected, Strength.PROOF, (), 0.1) for c in (claim, plain)]
    data = Dataset(inputs=np.ones((4, 2)), name="own.npy", shape=(4, 2), rank=1, fingerprint="0" * 64, notes=())
    written = json.loads(dumps(document(outcomes, data, 0)))
    assert written["claims"][0]["context"] == json.loads(json.dumps(dataclasses.asdict(claim.context)))
    assert "context" not in written["claims"][1]
    shown = html.unescape(re.sub(r"</?(sub|strong)>", "", page(written)))
    console = Console(width=4000, record=True)
    console.print(terminal.detail(outcomes[0]))
    printed = console.export_text()
    for part in texts(claim.context):
        assert re.sub(r"_(\w+)\b", r"\1", part) in shown
        assert part in printed
    assert "Even read charitably: " in printed
    console.print(terminal.detail(outcomes[1]))
    assert "The paper says" not in console.export_text()

"""What the terminal shows of an audit fits on a screen."""

import io

import pytest
from lngeom.claims import Verdict, all_claims
from lngeom.claims.evidence import Strength
from lngeom.claims.registry import Outcome
from lngeom.report import terminal
from rich.console import Console


@pytest.mark.parametrize("width", [80, 140])
def test_an_audit_is_shown_on_one_screen_with_unbroken_ids(width):
    outcomes = [Outcome(c, c.expected, Strength.PROOF, (), 0.0) for c in all_claims()]
    console = Console(width=width, record=True, file=io.StringIO())
    for part in terminal.overview(outcomes):
        console.print(part)
    lines = console.export_text().splitlines()
    assert len(lines) <= 43  # and two lines on where to read on
    assert max(map(len, lines)) <= width
    not_simply = [o.claim.id for o in outcomes if o.verdict is not Verdict.HOLDS]
    assert all(sum(f" {id} " in line for line in lines) == 1 for id in not_simply)
    assert sum(line.count("✓") == 6 for line in lines) == 3


def test_a_verdict_unlike_the_record_is_marked():
    first, *rest = [Outcome(c, c.expected, Strength.PROOF, (), 0.0) for c in all_claims(topic="metric")]
    changed = Outcome(first.claim, Verdict.UNDECIDED, Strength.NUMERIC, (), 0.0)
    console = Console(width=400, record=True, file=io.StringIO())
    for part in terminal.overview([changed, *rest]):
        console.print(part)
    assert f"(recorded: {first.claim.expected.value})" in console.export_text()

"""What the terminal shows of an audit fits on a screen."""

import io
import re

import pytest
from lngeom.checks.findings import Curve, Finding, Report, Result, Verdict as Behaviour
from lngeom.claims import Verdict, all_claims
from lngeom.claims.evidence import Evidence, Kind, Role, Strength
from lngeom.claims.registry import Outcome
from lngeom.cli import running
from lngeom.cli.commands import table
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


@pytest.fixture(scope="module")
def extended():
    """An outcome of each claim of the extended table, with the widest numbers."""
    evidence = tuple(Evidence(kind, Role.SUPPORTS, "", True, residual=1.234e-16) for kind in Kind)
    claims = [c for c in all_claims("extended") if c.source == "Table 1, extended"]
    return [Outcome(c, c.expected, Strength.NUMERIC, evidence, 0.0) for c in claims]


@pytest.mark.parametrize("width", [80, 140])
def test_no_number_of_the_extended_table_is_broken(extended, width):
    by_id = {o.claim.id: o for o in extended}
    grids = terminal.grids(width)
    rows = [(grid, method, grid.row(method, by_id).plain) for grid in grids for method in grid.recorded]
    assert len({id for grid, method, _ in rows for id in grid.claims(method)}) == len(by_id) - 4  # the exceptions
    for grid, method, row in rows:
        assert len(row) <= width
        assert "\n" not in row
        assert len(re.findall(r"(?:I|no|±)\* 1e-16\b", row)) == len(grid.claims(method))
    assert all(max(map(len, grid.head().plain.splitlines())) <= width for grid in grids)


def test_a_row_of_the_extended_table_is_printed_when_its_cells_are_known(extended, monkeypatch, capsys):
    """Before the next row is checked; in the order of the claims that `run` is given."""
    monkeypatch.setenv("COLUMNS", "80")
    known = {o.claim.id: o for o in extended}
    printed = []

    def feed(claims, *args, each, **kwargs):
        for claim in claims:
            each(known[claim.id])
            printed.append(capsys.readouterr().out)
        return None, []

    monkeypatch.setattr(running, "run", feed)
    table.run_extended("digits", 0, None)
    first = len(terminal.grids(80)[0].claims("bn"))
    before, now = "".join(printed[: first - 1]), printed[first - 1]
    assert "δW" in before
    assert "BN, training" not in before
    assert "BN, training" in now
    assert "".join(printed).count("BN, training") == len(terminal.grids(80))


LONG = (
    "summed inputs are too large for float32, so that the differences of their last digits are all that remains of them"
)


def report(**fields) -> Report:
    curve = Curve((1e-17, 9e17), (0.0, 0.0), (1.0, 1.0), True)
    held = {"holds": (1e-17, 9e17), "curve": curve}
    title = "permutations of units that respect groups"
    results = (
        Result("first", "Single training case re-scaling", "", Behaviour.INVARIANT, 7e-8, 1.2e-4, **held),
        Result("second", title, "", Behaviour.LOST, 7e-8, 1.2e-4, note=LONG, **held),
        Result("third", "Weight sign flip", "", Behaviour.NOT, 1.0, 1.2e-4),
    )
    return Report("mypackage.layers:MyNorm", "float32", results, (Finding("not finite", LONG, "x = 1"),), **fields)


@pytest.mark.parametrize("width", [60, 80, 140])
def test_a_check_leads_with_its_verdict_and_wraps(width):
    alone, beside = report(), report(like="layer", differences=(("third", "I"),))
    for found, verdict in ((alone, "In float32: 1 invariant"), (beside, "Differs from layer norm")):
        lines = found.to_text(width).splitlines()
        assert verdict in " ".join(lines[:2])
        assert max(map(len, lines)) <= width
        words = " ".join(found.to_text(width).split())
        assert LONG in words
        assert lines.index("Findings") < next(n for n, line in enumerate(lines) if line.startswith("transformation"))
    assert "Weight sign flip: yours: not invariant; layer norm: invariant" in " ".join(
        " ".join(beside.to_text(width).splitlines()[:7]).split()
    )
    assert report(like="layer").to_text(width).splitlines()[1].startswith("As layer norm, in float32")
    assert "x = 1" not in alone.to_text(width)
    assert alone.to_text(width, counterexamples=True).endswith("# not finite\nx = 1")

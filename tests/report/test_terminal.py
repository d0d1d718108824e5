"""What the terminal shows of an audit: what is true at the end, whole words at every width."""

import dataclasses
import io
import re

import numpy as np
import pytest
from lngeom.checks.findings import Curve, Finding, Report, Result, Verdict as Behaviour
from lngeom.claims import Verdict, agree, all_claims
from lngeom.claims.evidence import Evidence, Kind, Role, Strength
from lngeom.claims.proofs import proof_evidence
from lngeom.claims.registry import Outcome
from lngeom.cli import running
from lngeom.cli.commands import table
from lngeom.report import terminal, terminal_tables
from lngeom.report.document import document
from rich.cells import cell_len
from rich.console import Console

from tests.report.test_page import OWN


def overview(outcomes, width):
    """The lines of an overview."""
    console = Console(width=width, record=True, file=io.StringIO())
    for part in terminal.overview(outcomes, document(outcomes, OWN, 0)):
        console.print(part)
    return [line.rstrip() for line in console.export_text().splitlines()]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_an_audit_ends_with_what_is_true_in_whole_ids_and_sentences(width):
    outcomes = [Outcome(c, c.expected, Strength.PROOF, (), 0.0) for c in all_claims()]
    lines = overview(outcomes, width)
    assert max(map(cell_len, lines)) <= width
    words = " ".join(" ".join(lines).split())
    not_simply = [o.claim for o in outcomes if o.verdict is not Verdict.HOLDS]
    assert len(not_simply) == 27
    assert all(sum(bool(re.search(rf" {re.escape(c.id)}(,|$|  )", line)) for line in lines) == 1 for c in not_simply)
    assert sum(line.count("✓") == 3 for line in lines) == 6
    end = words[words.index("What is true") :]
    assert "All 18 answers of Table 1 are right as printed, and elsewhere the audit finds 1 error that" in end
    assert all(f"{c.erratum.title} {c.id}, {c.expected.value}" in end for c in not_simply if c.erratum)
    assert len(lines) - lines.index("What is true") <= (34 if width == 60 else 26)
    assert len(lines) <= {60: 110, 80: 90, 120: 66}[width]
    told = words[: words.index("What is true")]
    stated = [c for c in not_simply if c.expected is Verdict.CONDITIONAL and not c.erratum]
    assert len(stated) == 18
    assert all(f"{c.id} {c.statement}" in told for c in stated)
    assert "…" not in words


def test_verdicts_that_settle_nothing_are_named_where_they_are_many():
    claims = all_claims()
    outcomes = [Outcome(c, Verdict.UNDECIDED, Strength.NUMERIC, (), 0.0) for c in claims]
    words = " ".join(" ".join(overview(outcomes, 80)).split())
    assert f"Undecided {claims[0].id} (recorded: {claims[0].expected.value}), {claims[1].id} " in words
    assert claims[-1].statement not in words


def test_a_claim_is_shown_with_its_exact_counterexample_before_its_evidence():
    claim = all_claims(id="Eq. 13 LN")[0]
    evidence = (agree("two routes", np.ones(3), np.ones(3), role=Role.CORRECTS), *proof_evidence(claim.id))
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(terminal.detail(Outcome(claim, claim.expected, Strength.COUNTEREXAMPLE, evidence, 0.0)))
    text = console.export_text()
    parts = ("REFUTED by an exact counterexample: false under every reading", "What is true\n", "1/8 ≠ 1/4.")
    places = [text.index(part) for part in (*parts, "Evidence for what is true\n", "two routes")]
    assert places == sorted(places)
    assert not re.search(r" +$", text[text.index("What is true") :], re.MULTILINE)


def test_a_verdict_unlike_the_record_is_marked():
    first, *rest = [Outcome(c, c.expected, Strength.PROOF, (), 0.0) for c in all_claims(topic="metric")]
    changed = Outcome(first.claim, Verdict.UNDECIDED, Strength.NUMERIC, (), 0.0)
    assert f"  {first.claim.id} (recorded: {first.claim.expected.value})" in overview([changed, *rest], 400)
    assert terminal.problems([changed, *rest], OWN)[-1] == terminal.RECORD


@pytest.fixture(scope="module")
def extended():
    """An outcome of each claim of the extended table, with the widest numbers."""
    evidence = tuple(Evidence(kind, Role.SUPPORTS, "", True, residual=1.234e-16) for kind in Kind)
    claims = [c for c in all_claims("extended") if c.source == "Table 1, extended"]
    return [Outcome(c, c.expected, Strength.NUMERIC, evidence, 0.0) for c in claims]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_column_of_the_extended_table_is_defined_above_it(extended, width):
    by_id = {o.claim.id: o for o in extended}
    grids = terminal_tables.grids(width)
    rows = [(grid, method, grid.row(method, by_id).plain) for grid in grids for method in grid.recorded]
    assert len({id for grid, method, _ in rows for id in grid.claims(method)}) == len(by_id) - 4  # the exceptions
    for grid, method, row in rows:
        assert len(row) <= width
        assert len(re.findall(r"(?: yes| no| ±)(?= |$)", row)) == len(grid.claims(method))
    for grid in grids:
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(grid.head())
        lines = [line.rstrip() for line in console.export_text().splitlines()]
        assert max(map(cell_len, lines)) <= width
        assert lines[-1].split() == " ".join(grid.headings.values()).split()
        for name, heading in grid.headings.items():
            assert sum(line.startswith(f"{heading} ") and grid.meanings[name][:20] in line for line in lines) == 1
        assert grid.title.endswith("numbers alone decide") == grid.title.startswith("Mixtures")


def test_a_cell_unlike_the_record_is_loud(extended):
    by_id = {o.claim.id: o for o in extended}
    grid = terminal_tables.grids(80)[0]
    first = grid.claims("ln")[0]
    changed = by_id | {first: dataclasses.replace(by_id[first], verdict=Verdict.UNDECIDED)}
    assert "✗" not in grid.row("ln", by_id).plain
    assert grid.row("ln", changed).plain.count("✗") == 1


@pytest.mark.parametrize("width", [60, 80, 120])
def test_table_1_has_whole_words_and_says_which_answers_hold(width):
    cells = [Outcome(c, c.expected, Strength.COUNTEREXAMPLE, (), 0.0) for c in running.table1()]
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(terminal_tables.table1(terminal_tables.cells_of_table1(cells), strengths=True))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert text.count("counterexample") == 18
    assert (text.count("re-scaling"), text.count("re-centering")) == (4, 2)
    assert "all 18 answers hold" in " ".join(text.split())
    wrong = [dataclasses.replace(cells[0], verdict=Verdict.CLASH), *cells[1:]]
    console.print(terminal_tables.table1(terminal_tables.cells_of_table1(wrong), strengths=True))
    text = " ".join(console.export_text().split())
    assert "17 of 18 answers hold" in text
    assert text.count("✗ clash") == 1


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
    first = len(terminal_tables.grids(80)[0].claims("bn"))
    before, now = "".join(printed[: first - 1]), printed[first - 1]
    assert "δW" in before
    assert "BN, training" not in before
    assert "BN, training" in now
    assert "".join(printed).count("BN, training") == len(terminal_tables.grids(80))


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

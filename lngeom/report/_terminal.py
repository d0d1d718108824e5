"""Verdicts as tables in the terminal."""

from collections import Counter
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from lngeom.claims import Claim, Outcome, Strength, Verdict
from lngeom.claims._problem import TITLES
from lngeom.paper import TABLE1
from lngeom.transformations import TABLE1 as COLUMNS

STYLES = {
    Verdict.HOLDS: "green",
    Verdict.CONDITIONAL: "yellow",
    Verdict.REFUTED: "red",
    Verdict.UNDECIDED: "magenta",
}
STRENGTHS = {Strength.PROOF: "PROVED", Strength.NUMERIC: "SUPPORTED", Strength.EXPERIMENT: "MEASURED"}


def verdict(outcome: Outcome) -> Text:
    """Verdict and strength, with a mark where the verdict is not the recorded one."""
    text = outcome.verdict.value.upper()
    if outcome.verdict is not Verdict.UNDECIDED:
        text += f"\n{STRENGTHS[outcome.strength]}"
    if not outcome.as_recorded:
        text += f"\n(recorded: {outcome.claim.expected.value})"
    return Text(text, style=STYLES[outcome.verdict] + ("" if outcome.as_recorded else " reverse"))


def claims_table(outcomes: Sequence[Outcome]) -> Table:
    """One row a claim: id and source, statement, verdict and strength, kinds of evidence, residual."""
    table = Table(title="The claims of Layer Normalization (2016)", show_lines=True, expand=True)
    table.add_column("claim, source", ratio=5, overflow="fold")
    table.add_column("statement", ratio=8)
    table.add_column("verdict", width=11)
    table.add_column("evidence", width=14)
    table.add_column("residual", width=9, justify="right")
    for outcome in outcomes:
        claim = outcome.claim
        statement = Text(claim.statement)
        if claim.assumptions:
            statement.append("\nif " + "; ".join(claim.assumptions), style="dim")
        if outcome.error:
            statement.append(f"\n{outcome.error}", style="magenta")
        counts = Counter(e.kind.value for e in outcome.evidence)
        evidence = "\n".join(f"{count} {kind}" for kind, count in counts.items())
        name = Text.assemble(claim.id, (f"\n{claim.source}", "dim"))
        table.add_row(name, statement, verdict(outcome), evidence, _residual(outcome))
    return table


def _residual(outcome: Outcome) -> str:
    """The largest residual of what should agree, or else the smallest of what should differ."""
    close = [e.residual for e in outcome.evidence if e.kind.value in {"agreement", "proof"} and e.residual is not None]
    apart = [e.residual for e in outcome.evidence if e.kind.value == "counterexample" and e.residual is not None]
    if close and apart:
        return f"= {max(close):.1e}\n≠ {min(apart):.1e}"
    return f"= {max(close):.1e}" if close else f"≠ {min(apart):.1e}" if apart else "–"


def summary(outcomes: Sequence[Outcome]) -> Table:
    """Counts per verdict and strength."""
    table = Table(title=f"{len(outcomes)} claims")
    table.add_column("verdict")
    for strength in Strength:
        table.add_column(STRENGTHS[strength].lower(), justify="right")
    table.add_column("all", justify="right")
    for kind in Verdict:
        found = [o for o in outcomes if o.verdict is kind]
        counts = [sum(o.strength is s for o in found) for s in Strength]
        table.add_row(Text(kind.value, style=STYLES[kind]), *(str(c or "") for c in counts), str(len(found)))
    return table


def errata(outcomes: Sequence[Outcome]) -> Table | None:
    """What is false as printed, with what is true instead; a small experiment alone shows no such thing."""
    refuted = [o for o in outcomes if o.verdict is Verdict.REFUTED and o.strength is not Strength.EXPERIMENT]
    false = [o.claim for o in refuted if o.claim.correction]
    if not false:
        return None
    table = Table(title="False as printed", show_lines=True, expand=True)
    table.add_column("source", ratio=1)
    table.add_column("the paper says", ratio=3)
    table.add_column("true is", ratio=4)
    for claim in false:
        table.add_row(*(Text(part) for part in (claim.source, claim.statement, claim.correction)))
    return table


def numbers_alone(outcomes: Sequence[Outcome]) -> Table | None:
    """The claims whose verdict rests on numbers alone, and why."""
    found = [o.claim for o in outcomes if o.strength is Strength.NUMERIC and o.claim.why_numeric]
    if not found:
        return None
    table = Table(title="Resting on numbers alone", expand=True)
    table.add_column("claim", ratio=2, overflow="fold")
    table.add_column("why", ratio=5)
    for claim in found:
        table.add_row(Text(claim.id), Text(claim.why_numeric))
    return table


def listing(claims: Sequence[Claim], reserved: Sequence[Claim]) -> Table:
    """Ids, topics, sources and recorded verdicts, without checking anything."""
    table = Table(title=f"{len(claims)} claims, {len(reserved)} ids reserved", expand=True)
    for name in ("claim", "topic", "source"):
        table.add_column(name, overflow="fold")
    table.add_column("recorded", no_wrap=True)
    for claim in claims:
        style = STYLES[claim.expected]
        table.add_row(claim.id, claim.topic, claim.source, Text(claim.expected.value, style=style))
    for claim in reserved:
        table.add_row(claim.id, claim.topic, claim.source, Text("reserved", style="dim"))
    return table


def table1(outcomes: Sequence[Outcome]) -> Table:
    """Table 1 as the paper prints it, each cell with its verdict."""
    by_id = {o.claim.id: o for o in outcomes}
    table = Table(title="Table 1: invariance properties under the normalization methods", show_lines=True, padding=0)
    table.add_column("")
    for column in COLUMNS:
        table.add_column(column.title, justify="center", min_width=9, overflow="fold")
    for method, row in TABLE1.items():
        cells = []
        for column in COLUMNS:
            outcome = by_id[f"table1.{method}.{column.name}"]
            says = "Invariant" if row[column.name] else "No"
            if not outcome.as_recorded:
                cells.append(Text(f"{says}\n{outcome.verdict.value}", style="red reverse"))
                continue
            deviation = max(e.residual or 0.0 for e in outcome.evidence)
            style = "green" if row[column.name] else "yellow"
            cells.append(Text(f"{says}\n{STRENGTHS[outcome.strength].lower()}\n{deviation:.0e}", style=style))
        table.add_row(TITLES[method], *cells)
    table.caption = "Below each cell: strength, and the largest relative change of the output over the draws."
    return table

"""Verdicts as tables in the terminal."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lngeom.claims import Paper, Verdict
from lngeom.claims.data import Dataset
from lngeom.claims.evidence import Kind, Strength
from lngeom.claims.paper import TABLE1
from lngeom.claims.problem import TITLES
from lngeom.claims.registry import BA2016, Claim, Outcome
from lngeom.methods import METHODS
from lngeom.methods.table import EQUIVARIANCE, EXTENDED, Cell
from lngeom.methods.transformations import EXTENDED as EXTENDED_COLUMNS, TABLE1 as COLUMNS
from lngeom.methods.transformations.matrices import BASIS_CHANGES, EQUIVARIANCES
from lngeom.papers.ba2016.coverage import coverage

STYLES = {
    Verdict.HOLDS: "green",
    Verdict.CONDITIONAL: "yellow",
    Verdict.REFUTED: "red",
    Verdict.SLIP: "yellow",
    Verdict.NOT_REPRODUCED: "magenta",
    Verdict.UNDECIDED: "magenta",
    Verdict.CLASH: "bold white on red",
}
STRENGTHS = {
    Strength.PROOF: "PROVED",
    Strength.PROOF_AT_SIZES: "PROVED AT SIZES",
    Strength.COUNTEREXAMPLE: "COUNTEREXAMPLE",
    Strength.NUMERIC: "SUPPORTED",
    Strength.EXPERIMENT: "MEASURED",
}


def verdict(outcome: Outcome) -> Text:
    """Verdict and strength, with a mark where the verdict differs from the recorded one."""
    text = outcome.verdict.value.upper()
    if outcome.verdict not in {Verdict.UNDECIDED, Verdict.CLASH}:
        text += f"\n{STRENGTHS[outcome.strength]}"
    if not outcome.as_recorded:
        text += f"\n(recorded: {outcome.claim.expected.value})"
    return Text(text, style=STYLES[outcome.verdict] + ("" if outcome.as_recorded else " reverse"))


SETTLED = {Verdict.HOLDS, Verdict.CONDITIONAL, Verdict.REFUTED, Verdict.SLIP}
"""The verdicts that answer whether a statement is true."""


def counted(verdict: Verdict, count: int) -> str:
    """A verdict as the word beside a count: "2 hold", "3 slips", "1 refuted"."""
    plural = {Verdict.HOLDS: "hold", Verdict.SLIP: "slips"}
    return plural.get(verdict, verdict.value) if count != 1 else verdict.value


ALWAYS = {Verdict.HOLDS, Verdict.CONDITIONAL, Verdict.REFUTED, Verdict.UNDECIDED}
"""The verdicts that are counted even where no claim has them."""

NARROW = 70
"""Columns of a terminal below which a claim has one cell for all that is said of it beside its statement."""


def claims_table(outcomes: Sequence[Outcome], title: str, width: int = 80) -> Table:
    """One row a claim: id and source, statement, verdict and strength, kinds of evidence, residual."""
    table = Table(title=f"The claims of {title}", show_lines=True, expand=True)
    table.add_column("claim, source" if width >= NARROW else "claim", ratio=5, overflow="fold")
    table.add_column("statement", ratio=8)
    if width >= NARROW:
        table.add_column("verdict", width=16)
        table.add_column("evidence", width=14)
        table.add_column("residual", width=9, justify="right")
    for outcome in outcomes:
        claim = outcome.claim
        statement = Text(claim.statement)
        if claim.assumptions:
            statement.append("\nif " + "; ".join(claim.assumptions), style="dim")
        if outcome.error:
            statement.append(f"\n{outcome.error}", style="magenta")
        for reason in outcome.reasons:
            statement.append(f"\n{reason}", style=STYLES[Verdict.UNDECIDED])
        counts = Counter(e.kind.value for e in outcome.evidence)
        evidence = "\n".join(f"{count} {kind}" for kind, count in counts.items())
        name = Text.assemble(claim.id, (f"\n{claim.source}", "dim"))
        cells = verdict(outcome), evidence, _residual(outcome)
        if width < NARROW:
            name = Text("\n").join([name, *(Text(c) if isinstance(c, str) else c for c in cells)])
            cells = ()
        table.add_row(name, statement, *cells)
    return table


def _residual(outcome: Outcome) -> str:
    """The largest residual of what should agree, or else the smallest of what should differ."""
    measured = [e for e in outcome.evidence if e.residual is not None and not e.no_evidence]
    close = [e.residual for e in measured if e.kind is Kind.AGREEMENT and e.residual is not None]
    apart = [e.residual for e in measured if e.kind is Kind.COUNTEREXAMPLE and e.residual is not None]
    if close and apart:
        return f"= {max(close):.1e}\n≠ {min(apart):.1e}"
    return f"= {max(close):.1e}" if close else f"≠ {min(apart):.1e}" if apart else "–"


def _largest(outcome: Outcome, *kinds: Kind) -> str:
    """The largest residual among evidence of these kinds, or a dash where there is none."""
    found = [e.residual for e in outcome.evidence if e.kind in kinds and e.residual is not None and not e.no_evidence]
    return f"{max(found):.0e}" if found else "–"


def _of_2016(outcomes: Sequence[Outcome]) -> bool:
    """Whether the claims are about the paper of 2016, whose statements are counted."""
    return all(o.claim.paper == BA2016 for o in outcomes)


def summary(outcomes: Sequence[Outcome]) -> Table:
    """Counts per verdict and strength; of more than one claim, also how much of the paper all claims treat."""
    treated = str(coverage()) if _of_2016(outcomes) and len(outcomes) > 1 else None
    table = Table(title=f"{len(outcomes)} claim{'' if len(outcomes) == 1 else 's'}", caption=treated)
    table.add_column("verdict")
    shown = [s for s in Strength if any(o.strength is s for o in outcomes)]
    for strength in shown:
        table.add_column(STRENGTHS[strength].lower(), justify="right")
    table.add_column("all", justify="right")
    for kind in Verdict:
        found = [o for o in outcomes if o.verdict is kind]
        if not found and kind not in ALWAYS:
            continue
        counts = [sum(o.strength is s for o in found) for s in shown]
        table.add_row(Text(kind.value, style=STYLES[kind]), *(str(c or "") for c in counts), str(len(found)))
    return table


def overview(outcomes: Sequence[Outcome]) -> Iterator[Text | Table]:
    """What was found, in few lines: counts, Table 1, and a line for each claim that does not simply hold."""
    found = Counter(o.verdict for o in outcomes)
    parts = [f"{found[v]} {counted(v, found[v])}" for v in Verdict if found[v]]
    exact = sum(o.strength.exact for o in outcomes if o.verdict in SETTLED)
    yield Text(f"{len(outcomes)} claims: {', '.join(parts)}; {exact} proved or exact", style="bold")
    if _of_2016(outcomes) and len(outcomes) > 1:
        yield Text(str(coverage()).split(";")[0], style="dim")
    by_id = {o.claim.id: o for o in outcomes}
    if all(f"table1.{method}.{column.name}" in by_id for method in TABLE1 for column in COLUMNS):
        yield _small_table1(by_id)
    width = max((len(o.claim.id) for o in outcomes if o.verdict is not Verdict.HOLDS), default=0)
    for kind, title in TITLES_OF_VERDICTS.items():
        table = Table(box=None, show_header=False, expand=True, title=title, title_justify="left")
        table.title_style = STYLES[kind]
        table.add_column(no_wrap=True, min_width=width)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for outcome in outcomes:
            if outcome.verdict is kind:
                mark = "" if outcome.as_recorded else f"(recorded: {outcome.claim.expected.value}) "
                statement = Text(mark + outcome.claim.statement, no_wrap=True, overflow="ellipsis")
                table.add_row(outcome.claim.id, statement)
        if table.row_count:
            yield table


TITLES_OF_VERDICTS = {
    Verdict.CLASH: "A number contradicts a proof or a statement",
    Verdict.REFUTED: "Refuted under every reading",
    Verdict.SLIP: "Slips of notation: wrong as printed, clear and right as meant",
    Verdict.CONDITIONAL: "True under a condition",
    Verdict.NOT_REPRODUCED: "Not reproduced at the small size",
    Verdict.UNDECIDED: "Undecided",
}


def _small_table1(by_id: Mapping[str, Outcome]) -> Table:
    """Table 1 in three rows: what the paper says, and ✓ where the cell is as printed."""
    table = Table(box=None, padding=(0, 1, 0, 0), title_justify="left", title_style="bold")
    table.title = "Table 1: invariant? ✓ as printed"
    table.add_column("", no_wrap=True)
    for column in COLUMNS:
        title = column.title.lower().replace("re-", "re")
        table.add_column(title, width=max(map(len, title.split())))
    for method, row in TABLE1.items():
        cells = []
        for column in COLUMNS:
            right = by_id[f"table1.{method}.{column.name}"].as_recorded
            says = "yes" if row[column.name] else "no"
            cells.append(Text(f"{says} {'✓' if right else '✗'}", style="green" if right else "red reverse"))
        table.add_row(TITLES[method], *cells)
    return table


def errata(outcomes: Sequence[Outcome]) -> Table | None:
    """Refuted statements and slips of notation with their corrections."""
    false = [o.claim for o in outcomes if o.verdict in {Verdict.REFUTED, Verdict.SLIP} and o.claim.correction]
    if not false:
        return None
    table = Table(title="Wrong as printed", show_lines=True, expand=True)
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


def context(outcomes: Sequence[Outcome]) -> Panel | None:
    """The paper's sentence, in bold in its context, and how it can be read; only where a single claim was checked."""
    if len(outcomes) != 1 or outcomes[0].claim.context is None:
        return None
    found = outcomes[0].claim.context
    text = Text(f"{found.before} " if found.before else "")
    text.append(found.sentence, style="bold").append(f" {found.after}" if found.after else "")
    for reading in found.readings:
        text.append("\n\nReading: ", style="dim").append(f"{reading.says} → ")
        text.append(reading.verdict.value, style=STYLES[reading.verdict])
    text.append("\n\nWhy: ", style="dim").append(found.verdict)
    return Panel(text, title="The paper says", title_align="left")


def papers_table(papers: Sequence[tuple[Paper, Sequence[Outcome]]], *, findings: bool = False) -> Table:
    """One row a paper: its id, and its claims by verdict; with its title and finding where these are wanted."""
    shown = [v for v in Verdict if any(o.verdict is v for _, outcomes in papers for o in outcomes)]
    table = Table(
        title=f"{len(papers)} paper{'' if len(papers) == 1 else 's'}, {sum(len(o) for _, o in papers)} claims",
        expand=findings,
        box=None,
    )
    table.add_column("paper", no_wrap=True)
    for kind in shown:
        table.add_column(kind.value, style=STYLES[kind], justify="right", no_wrap=True)
    if findings:
        table.add_column("title, and what was found", ratio=1)
    for paper, outcomes in papers:
        counts = [sum(o.verdict is kind for o in outcomes) for kind in shown]
        title = Text.assemble((f"{paper.title} ({paper.year})", "bold"), f". {paper.finding}" if paper.finding else "")
        table.add_row(paper.id, *(str(n or "") for n in counts), *([title] if findings else []))
    return table


def clashes(outcomes: Sequence[Outcome]) -> Panel | None:
    """Numbers that contradict a proof or what a statement says. No audit should have any."""
    found = [o for o in outcomes if o.verdict is Verdict.CLASH]
    if not found:
        return None
    lines = [f"{o.claim.id}\n  " + "\n  ".join(o.reasons) for o in found]
    text = (
        "A number contradicts a proof, or a statement that is recorded to be true. The number, the proof or the record "
        "is wrong, and all three are lngeom's: please report the data set and the seed.\n\n"
    )
    title = f"CLASH in {len(found)} claim{'' if len(found) == 1 else 's'}"
    return Panel(Text(text + "\n".join(lines)), title=title, border_style="bold red")


def notices(outcomes: Sequence[Outcome], dataset: Dataset) -> list[str]:
    """Notices about numbers that are no evidence on a user's data."""
    silent = sum(o.silent for o in outcomes)
    if not silent or dataset.bundled:
        return []
    text = f"{silent} of {len(outcomes)} claims have numbers that are no evidence on this data"
    return [f"{text}; where the verdict stands, a proof carries it alone"]


def problems(outcomes: Sequence[Outcome], dataset: Dataset) -> list[str]:
    """One line for each kind of failure; none if every verdict is the recorded one.

    On the default data, numbers that are no evidence are a failure too, since every number can be evidence there.

    Args:
        outcomes: the claims that were checked.
        dataset: the data set.

    Returns:
        Lines that name the claims.
    """
    clashing = [o for o in outcomes if o.verdict is Verdict.CLASH]
    found = {
        "CLASH, a number contradicts a proof or a recorded statement": clashing,
        "verdicts that differ from the record": [o for o in outcomes if not o.as_recorded],
        "numbers that are no evidence": [o for o in outcomes if o.silent and dataset.bundled],
    }
    return [f"{text}: {', '.join(o.claim.id for o in these)}" for text, these in found.items() if these]


def remarks(outcomes: Sequence[Outcome]) -> Table | None:
    """Reasons for verdicts that differ from the record, and numbers that are no evidence; None if there are none."""
    found = [o for o in outcomes if o.reasons or not o.as_recorded]
    if not found:
        return None
    table = Table(title="What the numbers do not show on this data", expand=True, show_lines=True)
    table.add_column("claim", ratio=3, overflow="fold")
    table.add_column("verdict", width=16)
    table.add_column("why", ratio=6, overflow="fold")
    for outcome in found:
        why = "\n".join((*outcome.reasons, *filter(None, [outcome.error])))
        table.add_row(Text(outcome.claim.id), verdict(outcome), Text(why))
    return table


def listing(claims: Sequence[Claim]) -> Table:
    """Ids, topics, sources and recorded verdicts, without checking anything."""
    table = Table(title=f"{len(claims)} claims", expand=True)
    for name in ("claim", "topic", "source"):
        table.add_column(name, overflow="fold")
    table.add_column("recorded", no_wrap=True)
    for claim in claims:
        style = STYLES[claim.expected]
        table.add_row(claim.id, claim.topic, claim.source, Text(claim.expected.value, style=style))
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
            deviation = _largest(outcome, Kind.AGREEMENT, Kind.COUNTEREXAMPLE)
            style = "green" if row[column.name] else "yellow"
            cells.append(Text(f"{says}\n{STRENGTHS[outcome.strength].lower()}\n{deviation}", style=style))
        table.add_row(TITLES[method], *cells)
    table.caption = (
        "Below each cell: strength, and the largest relative change of the output over the draws (– where the numbers "
        "are no evidence)."
    )
    return table


CELL_STYLES = {Cell.INVARIANT: "green", Cell.SIGN: "cyan", Cell.CHANGED: "yellow"}


EXTENDED_LEGEND = (
    "I: invariant; no: changed; ±: only the sign, which g → −g repairs; beside it the largest relative change over the "
    "draws (± after the repair, – where the numbers are no evidence), and * where numbers alone decide."
)
CELL_WIDTH = 9
METHOD_WIDTH = max(len(METHODS[name].title) for name in EXTENDED)


@dataclass(frozen=True)
class Grid:
    """All methods against as many columns of a table as fit side by side.

    Attributes:
        title: of the table.
        recorded: what is recorded of each method and column.
        headings: of the columns, by their names.
    """

    title: str
    recorded: Mapping[str, Mapping[str, Cell]]
    headings: Mapping[str, str]

    def claims(self, method: str) -> list[str]:
        """Ids of the claims of a row."""
        return [f"extended.{method}.{name}" for name in self.headings if name in self.recorded[method]]

    def head(self) -> Text:
        """The title and the headings."""
        titles = " ".join(heading.rjust(CELL_WIDTH) for heading in self.headings.values())
        return Text(f"\n{self.title}\n", style="bold").append(f"{'':{METHOD_WIDTH}} {titles}", style="not bold")

    def row(self, method: str, by_id: Mapping[str, Outcome]) -> Text:
        """A method's title and cells."""
        text = Text(METHODS[method].title.ljust(METHOD_WIDTH))
        for name in self.headings:
            recorded = self.recorded[method].get(name)
            cell = Text("–") if recorded is None else _cell(by_id[f"extended.{method}.{name}"], recorded)
            text.append(" " * max(1, CELL_WIDTH + 1 - len(cell))).append_text(cell)
        return text


def batched(names: Iterable[str], count: int) -> Iterator[list[str]]:
    """Lists of at most so many names."""
    rest = iter(names)
    while chunk := list(islice(rest, count)):
        yield chunk


def grids(width: int) -> list[Grid]:
    """The extended table, then equivariances and changes of basis, in parts that are at most `width` columns wide."""
    tables = (
        ("The extended invariance table", EXTENDED, {c.name: c.heading for c in EXTENDED_COLUMNS}),
        (
            "f(QW, X) = Q f(W, X), and f(WA⁻¹, Ax) = f(W, x)",
            EQUIVARIANCE,
            {g.name: g.heading for g in (*EQUIVARIANCES, *BASIS_CHANGES)},
        ),
    )
    count = max(1, (width - METHOD_WIDTH) // (CELL_WIDTH + 1))
    parts = []
    for title, recorded, headings in tables:
        chunks = list(batched(headings, count))
        for number, names in enumerate(chunks, 1):
            of = f" ({number} of {len(chunks)})" if len(chunks) > 1 else ""
            parts.append(Grid(f"{title}{of}", recorded, {name: headings[name] for name in names}))
    return parts


def exceptions(outcomes: Sequence[Outcome]) -> Table | None:
    """The exceptions to the extended table."""
    found = [o for o in outcomes if ".exception." in o.claim.id]
    if not found:
        return None
    table = Table(title="Exceptions", expand=True)
    for name in ("claim", "statement", "verdict"):
        table.add_column(name, overflow="fold")
    for outcome in found:
        table.add_row(outcome.claim.id, Text(outcome.claim.statement), verdict(outcome))
    return table


def _cell(outcome: Outcome, recorded: Cell) -> Text:
    if not outcome.as_recorded:
        return Text(f"{recorded.value} {outcome.verdict.value}", style="red reverse")
    deviation = _largest(outcome, Kind.COUNTEREXAMPLE if recorded is Cell.CHANGED else Kind.AGREEMENT)
    mark = "" if outcome.strength.exact else "*"
    return Text(f"{recorded.value}{mark} {deviation}", style=CELL_STYLES[recorded])

"""Tables in the terminal: Table 1, the extended invariance table, the papers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group
from rich.table import Table
from rich.text import Text

from lngeom.claims import Paper, Verdict
from lngeom.claims.evidence import Kind, Strength
from lngeom.claims.paper import TABLE1
from lngeom.claims.problem import TITLES
from lngeom.claims.proofs import provable
from lngeom.claims.registry import Outcome
from lngeom.methods import METHODS
from lngeom.methods.table import EQUIVARIANCE, EXTENDED, Cell
from lngeom.methods.transformations import EXTENDED as EXTENDED_COLUMNS, TABLE1 as COLUMNS
from lngeom.methods.transformations.matrices import BASIS_CHANGES, EQUIVARIANCES
from lngeom.symbolic.notation import from_latex

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
    Strength.PROOF: "proved",
    Strength.PROOF_AT_SIZES: "proved at sizes",
    Strength.COUNTEREXAMPLE: "counterexample",
    Strength.NUMERIC: "numbers alone",
    Strength.EXPERIMENT: "measured",
}
"""What a cell rests on."""


def cells_of_table1(outcomes: Sequence[Outcome]) -> dict[str, Outcome]:
    """The cells of Table 1 by id; empty where not all of them were checked."""
    by_id = {o.claim.id: o for o in outcomes}
    ids = [f"table1.{method}.{column.name}" for method in TABLE1 for column in COLUMNS]
    return {id: by_id[id] for id in ids} if all(id in by_id for id in ids) else {}


def table1(cells: Mapping[str, Outcome], *, strengths: bool = False) -> Group:
    """Table 1, a row a transformation: the paper's answers, with ✓ where they hold.

    Args:
        cells: outcomes by id.
        strengths: whether each cell says what it rests on.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("", ratio=1)
    for method in TABLE1:
        table.add_column(TITLES[method], no_wrap=True)
    for column in COLUMNS:
        row = []
        for method, answers in TABLE1.items():
            outcome = cells[f"table1.{method}.{column.name}"]
            holds = outcome.as_recorded and outcome.verdict is Verdict.HOLDS
            says = f"{'yes' if answers[column.name] else 'no'} {'✓' if holds else '✗ ' + outcome.verdict.value}"
            text = Text(says, style=("green" if answers[column.name] else "yellow") if holds else "red reverse")
            if strengths and holds:
                text.append(f"\n{STRENGTHS[outcome.strength]}", style="dim")
            row.append(text)
        table.add_row(column.title, *row)
    right = sum(o.as_recorded and o.verdict is Verdict.HOLDS for o in cells.values())
    answers = f"all {right} answers hold" if right == len(cells) else f"{right} of {len(cells)} answers hold"
    head = Text(f"Table 1, is the output invariant? The paper's answers, ✓ where they hold: {answers}.", style="bold")
    return Group(head, table, *([deviations(list(cells.values()))] if strengths else []))


def deviations(outcomes: Sequence[Outcome]) -> Text:
    """How far outputs moved in all cells: those that stay at most, those that change at least."""
    measured = [e for o in outcomes for e in o.evidence if e.residual is not None and not e.no_evidence]
    still = [e.residual for e in measured if e.kind is Kind.AGREEMENT and e.residual is not None]
    moved = [e.residual for e in measured if e.kind is Kind.COUNTEREXAMPLE and e.residual is not None]
    stay = f"Invariant outputs moved by at most {max(still):.0e}, relative to their size" if still else ""
    others = f"{'the others' if still else 'Outputs moved'} by at least {min(moved):.0e}" if moved else ""
    said = ", ".join(filter(None, (stay, others)))
    return Text(f"{said}." if said else "No number counts as evidence.", style="dim")


CELL_STYLES = {Cell.INVARIANT: "green", Cell.SIGN: "cyan", Cell.CHANGED: "yellow"}
CELL_WORDS = {Cell.INVARIANT: "yes", Cell.SIGN: "±", Cell.CHANGED: "no"}
EXTENDED_LEGEND = (
    "Is the output invariant? yes; no; ± where only its sign changes, which g → −g repairs; – where the question does "
    "not apply. A proof or an exact counterexample decides each cell, where the heading says no other."
)
METHOD_WIDTH = max(len(METHODS[name].title) for name in EXTENDED)
GAP = 1
"""Columns of space between cells."""


@dataclass(frozen=True)
class Grid:
    """All methods against as many columns of a table as fit side by side.

    Attributes:
        title: of the table.
        recorded: what is recorded of each method and column.
        headings: of the columns, by their names.
        meanings: of the columns: what each heading stands for.
    """

    title: str
    recorded: Mapping[str, Mapping[str, Cell]]
    headings: Mapping[str, str]
    meanings: Mapping[str, str]

    def claims(self, method: str) -> list[str]:
        """Ids of the claims of a row."""
        return [f"extended.{method}.{name}" for name in self.headings if name in self.recorded[method]]

    def head(self) -> Group:
        """The title, the meaning of each heading, and the headings."""
        long = max(map(len, self.headings.values()))
        means = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, show_header=False)
        means.add_column(no_wrap=True, min_width=long)
        means.add_column()
        for name, heading in self.headings.items():
            means.add_row(heading, self.meanings[name])
        titles = (heading.rjust(self.width(name)) for name, heading in self.headings.items())
        row = f"{'':{METHOD_WIDTH}}{''.join(titles)}"
        return Group(Text(f"\n{self.title}", style="bold"), means, Text(f"\n{row}", style="bold", no_wrap=True))

    def width(self, name: str) -> int:
        """Columns of a cell with the space before it."""
        return GAP + max(len(self.headings[name]), len("yes"))

    def row(self, method: str, by_id: Mapping[str, Outcome]) -> Text:
        """A method's title and cells."""
        text = Text(METHODS[method].title.ljust(METHOD_WIDTH), no_wrap=True)
        for name in self.headings:
            recorded = self.recorded[method].get(name)
            cell = Text("–") if recorded is None else _cell(by_id[f"extended.{method}.{name}"], recorded)
            text.append(" " * max(1, self.width(name) - len(cell))).append_text(cell)
        return text


def _cell(outcome: Outcome, recorded: Cell) -> Text:
    if not outcome.as_recorded:
        return Text(f"{CELL_WORDS[recorded]}✗", style="red reverse")
    return Text(CELL_WORDS[recorded], style=CELL_STYLES[recorded])


def grids(width: int, methods: Sequence[str] = tuple(EXTENDED)) -> list[Grid]:
    """The extended table, then equivariances and changes of basis, in parts that are at most `width` columns wide.

    Args:
        width: columns.
        methods: names of the rows.
    """
    proved = set(provable())
    groups = (*EQUIVARIANCES, *BASIS_CHANGES)
    tables = (
        ("The extended invariance table", EXTENDED, EXTENDED_COLUMNS, [c.action for c in EXTENDED_COLUMNS]),
        ("Mixtures of units, and of inputs", EQUIVARIANCE, groups, [g.formula for g in groups]),
    )
    parts = []
    for title, all_recorded, columns, formulas in tables:
        recorded = {method: all_recorded[method] for method in methods}
        headings = {c.name: c.heading for c in columns}
        meanings = {c.name: f"{c.title}: {from_latex(f)}" for c, f in zip(columns, formulas, strict=True)}
        alone = proved.isdisjoint(f"extended.{m}.{c}" for m in recorded for c in headings)
        chunks = list(_fitting(headings, width - METHOD_WIDTH))
        for place, names in enumerate(chunks, 1):
            of = f" ({place} of {len(chunks)})" if len(chunks) > 1 else ""
            by = ": numbers alone decide" if alone else ""
            shown, means = ({n: texts[n] for n in names} for texts in (headings, meanings))
            parts.append(Grid(f"{title}{of}{by}", recorded, shown, means))
    return parts


def _fitting(headings: Mapping[str, str], width: int) -> Iterator[list[str]]:
    """Names of columns that fit side by side, part by part."""
    names: list[str] = []
    used = 0
    for name, heading in headings.items():
        own = GAP + max(len(heading), len("yes"))
        if names and used + own > width:
            yield names
            names, used = [], 0
        names.append(name)
        used += own
    yield names


def papers_table(papers: Sequence[tuple[Paper, Sequence[Outcome]]]) -> Table:
    """One row a paper: its id, and its claims by verdict."""
    shown = [v for v in Verdict if any(o.verdict is v for _, outcomes in papers for o in outcomes)]
    total = sum(len(o) for _, o in papers)
    title = f"{len(papers)} paper{'' if len(papers) == 1 else 's'}, {total} claim{'' if total == 1 else 's'}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("paper", no_wrap=True)
    for kind in shown:
        table.add_column(kind.value, style=STYLES[kind], justify="right")
    for paper, outcomes in papers:
        table.add_row(paper.id, *(str(sum(o.verdict is kind for o in outcomes)) for kind in shown))
    return table

"""The errors that an audit found, by how far they reach, with a sentence and counts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lngeom._core.text import counted
from lngeom.claims.erratum import Consequence

Record = Mapping[str, Any]
NOUNS = {
    Consequence.CONCLUSION: ("error that changes a conclusion", "errors that change a conclusion"),
    Consequence.SENTENCE: ("wrong sentence", "wrong sentences"),
    Consequence.NOTATION: ("slip of notation", "slips of notation"),
}


class Printed(NamedTuple):
    """How many cells of a table are as printed.

    Attributes:
        right: cells whose claim holds.
        cells: all that were checked.
    """

    right: int
    cells: int

    def __str__(self) -> str:
        """The counts as text."""
        return f"{self.right} of {self.cells} as printed"


def printed(table: Record) -> Printed:
    """The cells of a table of the document that are as printed."""
    cells = [cell for row in table["rows"] for cell in row["cells"] if cell]
    return Printed(sum(cell["verdict"] == "holds" for cell in cells), len(cells))


def errors(claims: Sequence[Record]) -> dict[str, list[Record]]:
    """The errors found, by how far they reach.

    Args:
        claims: records of the document.

    Returns:
        Consequence → claims that have an erratum and whose verdict is "refuted", "slip" or "conditional", the gravest
        first; without a consequence that no error has.
    """
    found = [c for c in claims if "erratum" in c and c["verdict"] in {"refuted", "slip", "conditional"}]
    ranked = {rank.value: [c for c in found if c["erratum"]["consequence"] == rank] for rank in Consequence}
    return {rank: these for rank, these in ranked.items() if these}


def origins(claims: Sequence[Record]) -> dict[str, dict[str, int]]:
    """Counts of verdicts, of the claims that treat the paper's statements and of those that lngeom adds.

    Args:
        claims: records of the document.

    Returns:
        "paper" and "added" → verdict → count.
    """
    return {
        origin: dict(Counter(c["verdict"] for c in claims if c["origin"] == origin)) for origin in ("paper", "added")
    }


def headline(document: Record) -> str:
    """One sentence of what was found.

    Args:
        document: the report.

    Returns:
        Text.
    """
    ranked = errors(document["claims"])
    counts = [f"{len(these)} {NOUNS[Consequence(rank)][len(these) != 1]}" for rank, these in ranked.items()]
    found = " and ".join(filter(None, (", ".join(counts[:-1]), *counts[-1:]))) or "no error"
    table = next((t for t in document["tables"] if t["name"] == "table1"), None)
    if table is None:
        open_ = document["summary"]["verdicts"].get("not reproduced", 0)
        small = (
            f"; {counted(open_, 'result')} {'is' if open_ == 1 else 'are'} not reproduced at the small size"
            if open_
            else ""
        )
        return f"The audit of {counted(document['summary']['claims'], 'claim')} finds {found}{small}."
    right, cells = printed(table)
    answers = f"All {cells} answers" if right == cells else f"{right} of {cells} answers"
    return f"{answers} of Table 1 are right as printed, and elsewhere the audit finds {found}."

"""The errors that an audit found, by how far they reach, with a sentence and counts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lngeom._core.text import counted
from lngeom.claims.erratum import Consequence

Record = Mapping[str, Any]
_NOUNS = {
    Consequence.CONCLUSION: ("error that changes a conclusion", "errors that change a conclusion"),
    Consequence.SENTENCE: ("wrong sentence", "wrong sentences"),
    Consequence.NOTATION: ("slip of notation", "slips of notation"),
}


def heading(rank: str, errors: Sequence[Any]) -> str:
    """The heading over errors that reach equally far: "Wrong sentences"."""
    return _NOUNS[Consequence(rank)][len(errors) != 1].capitalize()


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


SAID = {"holds": ("holds", "hold"), "slip": ("slip of notation", "slips of notation")}
"""Verdict → its words beside one claim and beside several, where they are not its own."""


def by_verdict(verdicts: Mapping[str, int]) -> str:
    """Counts of verdicts in words.

    Args:
        verdicts: verdict → count.

    Returns:
        Text.

    Example:
        >>> by_verdict({"holds": 2, "refuted": 0, "slip": 1})
        '2 hold, 1 slip of notation'
    """
    found = {name: count for name, count in verdicts.items() if count}
    return ", ".join(f"{n} {SAID.get(name, (name, name))[n != 1]}" for name, n in found.items())


def tally(document: Record) -> str:
    """How the errors of the headline and the verdicts of all claims count together.

    Args:
        document: the report.

    Returns:
        Text.
    """
    claims = document["claims"]
    wrong = [c for these in errors(claims).values() for c in these]
    found = Counter(c["verdict"] for c in wrong)
    order = {name: found[name] for name in document["summary"]["verdicts"]}
    one = len(wrong) == 1
    about = (
        f"The {'error is' if one else f'{len(wrong)} errors are'}, by verdict: {by_verdict(order)}. " if wrong else ""
    )
    of_all = by_verdict(document["summary"]["verdicts"])
    return f"{about}{counted(len(claims), 'claim')} in all: {of_all}."


def headline(document: Record) -> str:
    """One sentence of what was found.

    Args:
        document: the report.

    Returns:
        Text.
    """
    ranked = errors(document["claims"])
    counts = [f"{len(these)} {_NOUNS[Consequence(rank)][len(these) != 1]}" for rank, these in ranked.items()]
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

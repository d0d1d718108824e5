"""The statements of the paper, section by section, with the claims that treat them or the reason why none does.

They stand in `coverage.json`. A statement is a sentence, or a part of one, that could be false. Definitions of symbols,
announcements and descriptions of the set-up of an experiment are left out. Quotations are literal, with mathematics in
Unicode, "…" for omissions and square brackets around what is not the paper's.
"""

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import NamedTuple

from lngeom.claims.registry import all_claims


class Statement(NamedTuple):
    """A statement of the paper.

    Attributes:
        section: where it stands.
        text: its words.
        claims: ids of the claims that treat it.
        why_not: why no claim does; empty where one does.
    """

    section: str
    text: str
    claims: tuple[str, ...] = ()
    why_not: str = ""


class Coverage(NamedTuple):
    """How much of the paper is treated.

    Attributes:
        statements: number of all statements.
        treated: those that claims treat.
        on_request: those of them that only claims treat which an audit takes in on request.
        not_testable: those that none treats, each with its reason.
    """

    statements: int
    treated: int
    on_request: int
    not_testable: int

    def __str__(self) -> str:
        """One line for a reader."""
        return (
            f"{self.treated} of {self.statements} statements of the paper are covered, {self.on_request} of them on "
            f"request (--topic all); {self.not_testable} are not testable here."
        )


def coverage() -> Coverage:
    """Counts the statements of the paper."""
    treated = [s for s in STATEMENTS if s.claims]
    default = {c.id for c in all_claims()}
    on_request = sum(default.isdisjoint(s.claims) for s in treated)
    return Coverage(len(STATEMENTS), len(treated), on_request, len(STATEMENTS) - len(treated))


def _read() -> tuple[Statement, ...]:
    """The file's statements; a reason that several have stands there once, under a name."""
    data = json.loads(files("lngeom.papers.ba2016").joinpath("coverage.json").read_text("utf-8"))
    reasons = data["reasons"]

    def statement(section: str, text: str, claims: Sequence[str] = (), why_not: str = "") -> Statement:
        return Statement(section, text, tuple(claims), reasons.get(why_not, why_not))

    return tuple(statement(section, **fields) for section, found in data["sections"].items() for fields in found)


STATEMENTS = _read()
"""All statements, in the order of the paper."""

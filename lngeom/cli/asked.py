"""Claims that a command is asked about by a name that may mean several, and their proofs."""

from typing import Any

import typer
from rich.console import Console

from lngeom.cli.console import refusing, tell

FEW = 5
"""Up to so many claims are answered together."""


def named(name: str, paper: str | None = None, *, every: bool = False, listed: bool = False) -> list[Any]:
    """The claims that a name means, where they are few enough to be answered together or are only listed.

    Args:
        name: an id, "Eq. 13", words.
        paper: id of the paper, where one is given.
        every: whether those that only mention it are wanted too.
        listed: whether they are listed, however many.

    Raises:
        Exit: with 2, if no claim has the name, or too many do; claims that may be meant are listed.
    """
    from lngeom.claims import papers
    from lngeom.claims.names import UnknownClaim
    from lngeom.report import terminal

    console = Console(stderr=True, highlight=False)
    try:
        with refusing(papers.PaperError):
            found = papers.claims(name, paper, every=every)
    except UnknownClaim as error:
        tell(error.headline)
        for claim in error.near:
            console.print(terminal.entry(claim))
        raise typer.Exit(2) from error
    if name.strip().lower() in {id for c in found for id in c.formerly}:
        console.print(f"{name} is now part of {found[0].id}.", style="yellow")
    if len(found) > FEW and not listed:
        verdicts = terminal.counts([c.expected for c in found])
        tell(f"{name!r} means {len(found)} claims: {verdicts}. Name one of them, such as")
        for claim in found[:FEW]:
            console.print(terminal.entry(claim))
        table = ". As a table: lngeom table" if all(c.source.startswith("Table 1") for c in found) else ""
        console.print(f"All {len(found)}: lngeom verify --list --claim {name!r}{table}")
        raise typer.Exit(2)
    return found


def proof(id: str) -> Any:
    """The proof or exact counterexample of a claim or lemma, checked as it is made; None where there is none.

    Raises:
        Exit: with 1, if it does not check.
    """
    from lngeom.claims.proofs import proof_of
    from lngeom.symbolic.proof import ProofError

    try:
        return proof_of(id)
    except ProofError as error:
        tell(f"the proof of {id} does not check: {error}")
        raise typer.Exit(1) from error

"""Print the proof, or the exact counterexample, of a claim. The formula of every step is checked by machine."""

import dataclasses
import difflib
import sys
from typing import Annotated

import typer

from lngeom.cli.console import fail, width


def run(
    id: Annotated[str | None, typer.Argument(help="A claim's id, such as table1.ln.weight_matrix_rescaling.")] = None,
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Print also what the machine checked at each step.")] = False,
    list_only: Annotated[bool, typer.Option("--list", help="List the claims that have a proof.")] = False,
) -> None:
    from lngeom.claims import papers
    from lngeom.claims.proofs import proof_of, provable

    papers.find(papers.home(id))
    known = provable()
    if list_only:
        sys.stdout.write("\n".join(known) + "\n")
        return
    if id is None:
        fail("name a claim; --list shows the claims that have a proof")
    if id not in known:
        near = difflib.get_close_matches(id, known, n=3, cutoff=0.5)
        fail(f"no proof of {id!r}" + (f"; near it: {', '.join(near)}" if near else "; list them with --list"))
    found = proof_of(id)
    assert found is not None
    named = dataclasses.replace(found, name=id)  # cells of a table share their proofs, which go by another name
    sys.stdout.write((named.to_latex() if latex else named.to_text(width(), full)) + "\n")

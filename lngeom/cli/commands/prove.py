"""Print the verdict and the proof, or the exact counterexample, of a claim; every formula is checked by machine.

A claim that rests on numbers alone says so, and shows them.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lngeom.cli import certificates, programs, running
from lngeom.cli.asked import named, proof
from lngeom.cli.console import fail, refusing, width
from lngeom.cli.options import Data, Seed


def run(
    id: Annotated[
        str | None, typer.Argument(help="A claim: its id, 'Eq. 13', 'Table 1', or words of it.", metavar="CLAIM")
    ] = None,
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Print also what the machine checked at each step.")] = False,
    list_only: Annotated[bool, typer.Option("--list", help="List the claims that have a proof.")] = False,
    certificate: Annotated[
        Path | None,
        typer.Option(
            help="Write what each step rests on to this .json file, for analysis/check_certificate.py.", metavar="FILE"
        ),
    ] = None,
    data: Data = "digits",
    seed: Seed = 0,
) -> None:
    from lngeom.claims import papers
    from lngeom.claims.proofs import LEMMA, provable
    from lngeom.report import terminal

    if list_only:
        papers.find(papers.home(id))
        sys.stdout.write("\n".join(provable()) + "\n")
        return
    if id is None:
        fail("name a claim, such as 'Eq. 13'; --list shows the claims that have a proof")
    if id.startswith(LEMMA):
        _lemma(id, latex, full)
        return
    claims = named(id)
    if certificate:
        certificates.write_one(claims, certificate)
        return
    console = Console(highlight=False)
    if latex:
        for claim in claims:
            _steps(claim.id, latex, full)
        return
    if len(claims) > 1:
        verdicts = terminal.counts([c.expected for c in claims])
        console.print(f"{id}: {verdicts}", style="bold", markup=False)
        console.print(terminal.meanings(c.expected for c in claims))
        for claim in claims:
            console.print(terminal.entry(claim))
        console.print()
    known = set(provable())
    for place, claim in enumerate(claims):
        if place:
            console.print()
        if claim.id in known:
            proof(claim.id)  # made before the recorded verdict is printed, which one that fails does not support
            console.print(terminal.recorded(claim))
            console.print()
            _steps(claim.id, latex, full)
        else:
            _numbers(claim, data, seed)


def _steps(id: str, latex: bool, full: bool) -> None:
    """Prints the proof or exact counterexample of a claim or lemma."""
    found = proof(id)
    if found is None:
        fail(f"{id} has no proof to write as LaTeX: it rests on numbers alone")
    shown = dataclasses.replace(found, name=id)  # cells of a table share their proofs, which go by another name
    sys.stdout.write((shown.to_latex() if latex else shown.to_text(width(), full)) + "\n")
    sys.stdout.flush()


def _numbers(claim, data: str, seed: int) -> None:
    """Prints what a claim without a proof rests on."""
    from lngeom.report import terminal

    programs.compile_sparingly()
    _, (outcome,) = running.run([claim], data, seed, proofs=False)
    console = Console(highlight=False)
    if outcome.waiting:
        console.print(terminal.recorded(claim))
        console.print(f"\nIt rests on an experiment: {outcome.error}", markup=False)
        return
    console.print("No proof: this claim rests on numbers alone.", style="bold")
    console.print(terminal.detail(outcome))


def _lemma(id: str, latex: bool, full: bool) -> None:
    """Prints the proof of a lemma, which is no claim."""
    from lngeom._core.named import spelled
    from lngeom.claims.proofs import LEMMA, provable

    with refusing(ValueError):
        id = spelled(id, {name: () for name in provable() if name.startswith(LEMMA)}, "lemma")
    _steps(id, latex, full)

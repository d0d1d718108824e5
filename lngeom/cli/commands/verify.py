"""Check every claim of the paper on real data; exit 0 if all verdicts are the recorded ones, else 1.

Exit 1 means that a verdict differs, is undecided, or clashes: a number contradicts a proof. Some numbers are no
evidence on your data, because they are not finite or lost to rounding. Then a proof alone decides, if there is one.
On the digits such numbers also lead to exit 1.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lngeom.cli import programs, running
from lngeom.cli.console import check_writable, conclude, fail, refusing, writing, written
from lngeom.cli.options import Data, Json, Seed


def run(
    data: Data = "digits",
    topic: Annotated[str | None, typer.Option(help="Check one topic only (see --list), or 'all'.")] = None,
    claim: Annotated[str | None, typer.Option(help="Check one claim only, by its id (see --list).")] = None,
    paper: Annotated[
        str | None,
        typer.Option(
            help="Check another paper: its id or number on arXiv (see lngeom papers), 'all', or the path of a folder.",
            metavar="ID|PATH|all",
        ),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(help="Also check the experiments' claims, on the results in this folder (such as figures)."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for report.json and report.html.")] = Path("report"),
    json: Json = False,
    seed: Seed = 0,
    every: Annotated[bool, typer.Option("--all", help="Print every claim, not only what does not hold.")] = False,
    list_only: Annotated[bool, typer.Option("--list", help="List the claims without checking them.")] = False,
) -> None:
    from lngeom.claims import papers, registry
    from lngeom.report import terminal, write
    from lngeom.report.document import document as build_document, dumps
    from lngeom.report.page import page as build_page

    if paper == "all":
        if topic is not None or claim is not None or results is not None:
            fail("--paper all checks every claim of every paper: leave --topic, --claim and --results out")
        _verify_all(data, seed, out, json, list_only)
        return
    with refusing(ValueError):
        about = papers.find(paper or papers.home(claim))
        chosen = registry.all_claims(topic, claim, about.id)
        if results is not None and topic is None and claim is None:
            chosen += registry.all_claims("experiments")
    if list_only:
        Console().print(terminal.listing(chosen if topic or claim else registry.all_claims("all", paper=about.id)))
        return
    if results is not None and not results.is_dir():
        fail(f"no folder {results}: give the output folder of `python -m analysis`")
    check_writable(out)
    programs.compile_sparingly()
    dataset, outcomes = running.run(chosen, data, seed, results, papers={about.id: paper or about.id})
    document = build_document(outcomes, dataset, seed, about)
    text = dumps(document)
    with writing(out):
        paths = write(out, {"report.json": text, "report.html": build_page(document)})
    if json:
        sys.stdout.write(text)
    else:
        _print(outcomes, dataset, about.title, every or len(outcomes) == 1)
        written(paths)
    conclude(outcomes, dataset)


def _print(outcomes, dataset, title: str, detailed: bool) -> None:
    """Prints every claim, or an overview of what does not hold."""
    from lngeom.report import terminal

    console = Console()
    if detailed:
        console.print(terminal.claims_table(outcomes, title, console.width))
    if alarm := terminal.clashes(outcomes):
        console.print(alarm)
    console.print(f"Data: {dataset.name}, {' × '.join(map(str, dataset.shape))}, rank {dataset.rank}", highlight=False)
    for note in dataset.notes:
        console.print(f"  {note}", highlight=False, markup=False)
    if detailed:
        console.print(terminal.summary(outcomes))
        for extra in (terminal.context(outcomes), terminal.errata(outcomes), terminal.numbers_alone(outcomes)):
            if extra:
                console.print(extra)
        return
    for part in terminal.overview(outcomes):
        console.print(part, highlight=False)
    console.print("\nOne claim: lngeom verify --claim ID, lngeom prove ID. Every claim: --all.", style="dim")


def _verify_all(data: str, seed: int, out: Path, json: bool, list_only: bool) -> None:
    """Checks every paper, and writes a report of each and an index of all."""
    from lngeom.claims import papers
    from lngeom.report import gallery, terminal, write
    from lngeom.report.document import document as build_document, dumps
    from lngeom.report.page import page as build_page

    with refusing(papers.PaperError):
        found = [papers.find(id) for id in papers.ids()]
    claims = [c for p in found for c in p.claims]
    if list_only:
        Console().print(terminal.listing(claims))
        return
    check_writable(out)
    programs.compile_sparingly()
    dataset, outcomes = running.run(claims, data, seed)
    checked = [(p, [o for o in outcomes if o.claim.paper == p.id]) for p in found]
    documents = {p.id: build_document(these, dataset, seed, p) for p, these in checked}
    with writing(out):
        for id, document in documents.items():
            write(out / id, {"report.json": dumps(document), "report.html": build_page(document)})
        index = gallery.index(documents)
        paths = write(out, {"index.json": dumps(index), "index.html": gallery.page(index)})
    if json:
        sys.stdout.write(dumps(index))
    else:
        Console().print(terminal.papers_table(checked))
        written(paths)
    conclude(outcomes, dataset)

"""Check every claim of the paper on real data; exit 0 if all verdicts are the recorded ones, else 1.

A recorded verdict is the one that lngeom keeps in its sources beside a claim. Exit 1 means that a verdict differs \
from it, is undecided, or clashes: a number contradicts a proof. Some numbers do not count as evidence on your data, \
because they are not finite or lost to rounding. Then a proof alone decides, if there is one. On the digits such \
numbers also lead to exit 1.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lngeom.cli import certificates as certificates_of, every_paper, programs, running
from lngeom.cli.asked import named
from lngeom.cli.console import check_writable, conclude, fail, refusing, writing, written
from lngeom.cli.options import Data, Json, Seed

REPORT = Path("report")
"""Where the report of a whole audit is written by default."""


def run(
    data: Data = "digits",
    topic: Annotated[str | None, typer.Option(help="Check one topic only (see --list), or 'all'.")] = None,
    claim: Annotated[
        str | None,
        typer.Option(
            help="Check one claim only: its id, 'Eq. 13', 'Table 1', or words of it. With --list, find claims."
        ),
    ] = None,
    paper: Annotated[
        str | None,
        typer.Option(
            help="Check another paper: its id, an author or number on arXiv (see lngeom papers), 'all', or a folder.",
            metavar="ID|PATH|all",
        ),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(help="Also check the experiments' claims, on the results in this folder (such as figures)."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for report.json and report.html. [default: report, of another paper report/ID; with "
            "--claim or --topic nothing is written]",
            show_default=False,
        ),
    ] = None,
    certificates: Annotated[
        Path | None,
        typer.Option(help="Also write a certificate of each proof to this folder, for analysis/check_certificate.py."),
    ] = None,
    json: Json = False,
    seed: Seed = 0,
    every: Annotated[
        bool,
        typer.Option("--all", help="Print every claim, not only what does not hold; of a list, all that mention it."),
    ] = False,
    list_only: Annotated[
        bool, typer.Option("--list", help="List claims with their statements, without checking; see --claim.")
    ] = False,
) -> None:
    from lngeom.claims import papers, registry
    from lngeom.report import terminal, write
    from lngeom.report.document import document as build_document, dumps, listing
    from lngeom.report.page import page as build_page

    if paper == "all":
        if topic is not None or claim is not None or results is not None:
            fail("--paper all checks every claim of every paper: leave --topic, --claim and --results out")
        if certificates is not None:
            fail("certificates are written for one paper at a time: name it")
        every_paper.verify(data, seed, out or REPORT, json, list_only)
        return
    with refusing(ValueError):
        about = papers.find(paper) if paper else papers.LAYER_NORMALIZATION
        if claim is not None:
            chosen = named(claim, about.id if paper else None, every=list_only and every, listed=list_only)
            if len({c.paper for c in chosen}) > 1 and not list_only:
                fail(f"{claim!r} means {', '.join(c.id for c in chosen)}: name one of them")
            about = papers.find(chosen[0].paper)
            chosen = registry.of_topic(chosen, topic)
        else:
            chosen = registry.all_claims(topic or ("all" if list_only else None), paper=about.id)
            if results is not None and topic is None:
                chosen += registry.all_claims("experiments")
    if list_only:
        if json:
            sys.stdout.write(dumps(listing(chosen)))
        else:
            Console().print(terminal.listing(chosen), highlight=False)
        if claim is not None and not every:
            found = papers.claims(claim, about.id if paper else None, every=True)
            if more := len(registry.of_topic(found, topic)) - len(chosen):
                console = Console(stderr=json, highlight=False)
                console.print(f"\n{more} more mention {claim!r}: add --all", soft_wrap=True)
        return
    if results is not None and not results.is_dir():
        fail(f"no folder {results}: give the output folder of `python -m analysis`")
    if out is None and claim is None and topic is None:  # a part would replace the report of the whole
        out = REPORT if about.id == registry.BA2016 else REPORT / about.id
    if out is not None:
        check_writable(out)
    if certificates is not None:
        check_writable(certificates, "--certificates")
    programs.compile_sparingly()
    dataset, outcomes = running.run(chosen, data, seed, results, papers={about.id: paper or about.id})
    document = build_document(outcomes, dataset, seed, about)
    text = dumps(document)
    paths: list[Path] = []
    if out is not None:
        with writing(out):
            paths = write(out, {"report.json": text, "report.html": build_page(document)})
    if json:
        sys.stdout.write(text)
    else:
        _print(outcomes, dataset, document, about, paper, every, claim is not None)
        if paths:
            written(paths)
    if certificates is not None:
        certificates_of.write_all(chosen, certificates)
    conclude(outcomes, dataset)


def _print(outcomes, dataset, document, about, paper: str | None, every: bool, asked: bool) -> None:
    """Prints what was asked for: a few claims in detail, every claim, or an overview that ends with what is true."""
    from lngeom.claims import papers
    from lngeom.report import terminal

    console = Console(highlight=False)
    if asked and not every:
        if len(outcomes) > 1:
            console.print(terminal.counts([o.verdict for o in outcomes]), style="bold")
            console.print(*(terminal.entry(o.claim, o.verdict) for o in outcomes), sep="\n", end="\n\n")
        for outcome in outcomes:
            console.print(terminal.detail(outcome), end="\n\n")
    if every:
        console.print(f"The claims of {about.title}\n", style="bold")
        console.print(*map(terminal.short, outcomes), sep="\n", end="\n\n")
    if alarm := terminal.clashes(outcomes):
        console.print(alarm)
    console.print(terminal.data(dataset))
    if asked:
        return
    for part in terminal.overview(outcomes, document, about):
        console.print(part)
    named = "" if paper is None else f" --paper {paper}"
    one = "'Eq. 13'" if paper is None else outcomes[0].claim.id
    proved = f", lngeom prove {one}" if paper is None or about.id in papers.ids() else ""
    more = f"More: lngeom verify{named} --claim {one}{proved}. Every claim: lngeom verify{named} --all."
    console.print(f"\n{more}", style="dim")

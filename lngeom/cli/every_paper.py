"""`lngeom verify --paper all`: every paper, a report of each, and an index."""

import sys
from pathlib import Path

from rich.console import Console

from lngeom.cli import programs, running
from lngeom.cli.console import check_writable, conclude, refusing, writing, written


def verify(data: str, seed: int, out: Path, json: bool, list_only: bool) -> None:
    """Checks every paper, and writes a report of each and an index of all."""
    from lngeom.claims import papers
    from lngeom.report import gallery, terminal, terminal_tables, write
    from lngeom.report.document import document as build_document, dumps, listing
    from lngeom.report.page import page as build_page

    with refusing(papers.PaperError):
        found = [papers.find(id) for id in papers.ids()]
    claims = [c for p in found for c in p.claims]
    if list_only:
        if json:
            sys.stdout.write(dumps(listing(claims)))
        else:
            Console().print(terminal.listing(claims), highlight=False)
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
        Console(highlight=False).print(terminal_tables.papers_table(checked))
        written(paths)
    conclude(outcomes, dataset)

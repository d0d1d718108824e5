"""List the papers that lngeom audits, with the verdicts recorded beside its sources and the main finding."""

from rich.console import Console

from lngeom.cli.console import refusing


def run() -> None:
    from lngeom.claims import papers
    from lngeom.report import terminal

    with refusing(papers.PaperError):
        found = [papers.find(id) for id in papers.ids()]
    console = Console(highlight=False)
    claims = [c for p in found for c in p.claims]
    head = f"{len(found)} papers, {len(claims)} claims, as recorded: {terminal.counts([c.expected for c in claims])}"
    console.print(head, style="bold")
    console.print(terminal.meanings(c.expected for c in claims))
    console.print(terminal.papers_found(found))
    console.print("One of them: lngeom verify --paper ID. All: --paper all. One of your own: lngeom new-paper NAME.")

"""List the papers that lngeom audits, with the recorded verdicts of their claims and the main finding."""

from rich.console import Console

from lngeom.cli.console import refusing


def run() -> None:
    from lngeom.claims import papers, registry
    from lngeom.report import terminal

    with refusing(papers.PaperError):
        found = [papers.find(id) for id in papers.ids()]
    recorded = [(p, [registry.recorded(c) for c in p.claims]) for p in found]
    Console().print(terminal.papers_table(recorded, findings=True))
    Console().print("One of them: lngeom verify --paper ID. All: --paper all. One of your own: lngeom new-paper NAME.")

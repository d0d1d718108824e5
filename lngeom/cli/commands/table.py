"""Print Table 1 with the verdict of each cell, or the extended table; exit codes as for verify."""

from typing import Annotated

import typer
from rich.console import Console

from lngeom.cli import programs, running, workers
from lngeom.cli.console import conclude, width
from lngeom.cli.options import Data, Seed


def run(
    data: Data = "digits",
    seed: Seed = 0,
    extended: Annotated[
        bool, typer.Option("--extended", help="Print 25 methods against 14 transformations and 7 groups of matrices.")
    ] = False,
) -> None:
    if extended:
        with workers.Workers(running.MANY.provers) as prover:
            prover.prepare("lngeom.papers.extended")
            dataset, outcomes = run_extended(data, seed, prover)
    else:
        programs.compile_sparingly()
        dataset, outcomes = running.run(running.table1(), data, seed, steps=False)
    from lngeom.report import terminal

    part = terminal.exceptions(outcomes) if extended else terminal.table1(outcomes)
    for shown in (part, terminal.remarks(outcomes), terminal.clashes(outcomes)):
        if shown:
            Console().print(shown)
    conclude(outcomes, dataset)


def run_extended(data: str, seed: int, prover: workers.Workers | None):
    """Checks the claims of the extended table, and prints each row as soon as its cells are known."""
    from lngeom.claims import registry
    from lngeom.report import terminal

    programs.compile_sparingly()
    claims = {c.id: c for c in registry.all_claims("extended") if c.source == "Table 1, extended"}
    rows = [(grid, method) for grid in terminal.grids(width()) for method in grid.recorded]
    ordered = [claims.pop(id) for grid, method in rows for id in grid.claims(method)] + list(claims.values())
    console, by_id = Console(), {}
    console.print(terminal.EXTENDED_LEGEND, highlight=False)
    console.print(rows[0][0].head(), soft_wrap=True)

    def each(outcome) -> None:
        by_id[outcome.claim.id] = outcome
        while rows and all(cell in by_id for cell in rows[0][0].claims(rows[0][1])):
            grid, method = rows.pop(0)
            console.print(grid.row(method, by_id), soft_wrap=True)
            if rows and rows[0][0] is not grid:
                console.print(rows[0][0].head(), soft_wrap=True)

    return running.run(ordered, data, seed, steps=False, each=each, prover=prover)

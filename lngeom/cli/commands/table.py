"""Print Table 1 with the verdict of each cell, or the extended table; exit codes as for verify."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from lngeom.cli import programs, running, workers
from lngeom.cli.console import conclude, refusing, width
from lngeom.cli.options import Data, Seed


def run(
    methods: Annotated[
        list[str] | None,
        typer.Argument(help="Methods, such as LN or 'batch norm': only their rows of the extended table."),
    ] = None,
    data: Data = "digits",
    seed: Seed = 0,
    extended: Annotated[
        bool, typer.Option("--extended", help="Print 25 methods against 14 transformations and 7 groups of matrices.")
    ] = False,
) -> None:
    from lngeom.methods.page import named

    with refusing(ValueError):
        names = [named(name).name for name in methods or ()]
    if extended := extended or bool(names):
        with workers.Workers(running.MANY.provers) as prover:
            prover.prepare("lngeom.papers.extended")
            dataset, outcomes = run_extended(data, seed, prover, names)
    else:
        programs.compile_sparingly()
        dataset, outcomes = running.run(running.table1(), data, seed, steps=False)
    from lngeom.report import terminal, terminal_tables

    console = Console(highlight=False, width=width())
    if extended:
        console.print()
        if not names:
            console.print("Exceptions", style="bold")
            console.print(*(terminal.short(o) for o in outcomes if ".exception." in o.claim.id), sep="\n", end="\n\n")
        console.print(terminal_tables.deviations([o for o in outcomes if ".exception." not in o.claim.id]))
        console.print("Each cell's numbers: lngeom verify --topic extended --json", style="dim")
    else:
        console.print(terminal_tables.table1(terminal_tables.cells_of_table1(outcomes), strengths=True))
    for shown in (terminal.remarks(outcomes), terminal.clashes(outcomes)):
        if shown:
            console.print(shown)
    conclude(outcomes, dataset)


def run_extended(data: str, seed: int, prover: workers.Workers | None, methods: Sequence[str] = ()):
    """Checks the claims of the extended table, or of some of its rows, and prints each row when its cells are known."""
    from lngeom.claims import registry
    from lngeom.methods import METHODS
    from lngeom.report import terminal_tables

    programs.compile_sparingly()
    claims = {c.id: c for c in registry.all_claims("extended") if c.source == "Table 1, extended"}
    rows = [
        (grid, method) for grid in terminal_tables.grids(width(), methods or tuple(METHODS)) for method in grid.recorded
    ]
    ordered = [claims.pop(id) for grid, method in rows for id in grid.claims(method)]
    ordered += [] if methods else claims.values()
    console, by_id = Console(highlight=False, width=width()), {}
    console.print(terminal_tables.EXTENDED_LEGEND)
    console.print(rows[0][0].head())

    def each(outcome) -> None:
        by_id[outcome.claim.id] = outcome
        while rows and all(cell in by_id for cell in rows[0][0].claims(rows[0][1])):
            grid, method = rows.pop(0)
            console.print(grid.row(method, by_id), soft_wrap=True)
            if rows and rows[0][0] is not grid:
                console.print(rows[0][0].head())

    return running.run(ordered, data, seed, steps=False, each=each, prover=prover)

"""Draw the figures: invariance tables, printed and exact Fisher matrices, scaling, line elements, spectra."""

import json
from pathlib import Path
from typing import Annotated

import typer

from lngeom.cli import programs, running
from lngeom.cli.console import check_writable, fail, written
from lngeom.cli.options import Data, Seed


def run(
    out: Annotated[Path, typer.Option(help="Folder for the figures: SVG, PNG and their data as JSON.")] = Path(
        "figures"
    ),
    from_report: Annotated[
        Path, typer.Option("--report", help="Folder of a report. If it has none, Table 1 is measured again.")
    ] = Path("report"),
    data: Data = "digits",
    seed: Seed = 0,
    no_caption: Annotated[bool, typer.Option("--no-caption", help="Leave the captions out of the pictures.")] = False,
) -> None:
    import jax

    from lngeom import plots
    from lngeom.plots import geometry, studies
    from lngeom.plots.style import options
    from lngeom.report.tables import tables as build_tables

    check_writable(out)
    programs.compile_sparingly()
    report = from_report / "report.json"
    try:
        tables = json.loads(report.read_text(encoding="utf-8"))["tables"]
    except FileNotFoundError:
        tables = build_tables(running.run(running.table1(), data, seed, proofs=False)[1])
    except (OSError, ValueError, KeyError, TypeError) as error:
        fail(f"{report} is not a report of this version: {error!r}; run lngeom verify again")
    with jax.enable_x64(True), options(captions=not no_caption):
        paths = [path for table in tables for path in plots.invariance_table(table, out / table["name"])]
        for study in studies.ALL:
            paths += getattr(geometry, study.__name__)(study(), out / study.__name__)
    written(paths)

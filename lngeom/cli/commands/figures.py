"""Draw the figures: invariance tables, printed and exact Fisher matrices, scaling, line elements, spectra."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lngeom.cli import programs, running
from lngeom.cli.console import check_writable, fail, refusing, written
from lngeom.cli.options import Data, Seed

TABLES = ("table1", "extended")


def run(
    out: Annotated[Path, typer.Option(help="Folder for the figures: SVG, PNG and their data as JSON.")] = Path(
        "figures"
    ),
    from_report: Annotated[
        Path,
        typer.Option("--report", help="Folder of a report on this data. If it has none, Table 1 is measured again."),
    ] = Path("report"),
    data: Data = "digits",
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Draw this figure only; may be repeated.", metavar="NAME")
    ] = None,
    seed: Seed = 0,
    slide: Annotated[bool, typer.Option("--slide", help="16:9, with larger type and no captions.")] = False,
    no_caption: Annotated[bool, typer.Option("--no-caption", help="Leave the captions out of the pictures.")] = False,
) -> None:
    import jax

    from lngeom import plots
    from lngeom.claims.data import DataError, load
    from lngeom.plots import geometry, studies
    from lngeom.plots.style import options

    known = (*TABLES, *(study.__name__ for study in studies.ALL))
    chosen = tuple(only or known)
    if strange := [name for name in chosen if name not in known]:
        fail(f"no figure {strange[0]!r}; the figures are {', '.join(known)}")
    if from_report.is_file():
        fail(f"--report takes the folder that lngeom verify wrote, with its report.json; {from_report} is a file")
    check_writable(out)
    programs.compile_sparingly()
    with refusing(DataError):
        dataset = load(data, seed)
    rows, source = None, ""
    if not dataset.bundled:
        rows = studies.features(dataset.inputs)
        source = f"Inputs: {dataset.name}."
    paths: list[Path] = []
    with jax.enable_x64(True), options(captions=not no_caption, slide=slide, source=source):
        for table in _tables(from_report, dataset, data, seed, [name for name in TABLES if name in chosen]):
            paths += plots.invariance_table(table, out / table["name"])
    if rows is not None and rows.shape[1] < dataset.inputs.shape[1]:
        source = f"Inputs: the {rows.shape[1]} columns of {dataset.name} that vary most."
    with jax.enable_x64(True), options(captions=not no_caption, slide=slide, source=source):
        for study in studies.ALL:
            if study.__name__ in chosen:
                paths += getattr(geometry, study.__name__)(study(data=rows), out / study.__name__)
    if paths:
        written(paths)


def _tables(folder: Path, dataset: Any, data: str, seed: int, names: Sequence[str]) -> list[Mapping[str, Any]]:
    """The tables asked for: of a report on the same data, or else Table 1 measured now. It says what is left."""
    from lngeom.report.tables import tables as build_tables

    if not names:
        return []
    path, found = folder / "report.json", []
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        found = report["tables"] if report["data"]["sha256"] == dataset.fingerprint else []
        if not found and "table1" in names:
            typer.echo(f"{path} is on other data, or has no table: Table 1 is measured again", err=True)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError) as error:
        fail(f"{path} is not a report of this version: {error!r}; run lngeom verify again")
    if "table1" in names and not any(table["name"] == "table1" for table in found):
        found = [*found, *build_tables(running.run(running.table1(), data, seed, proofs=False)[1])]
    if "extended" in names and not any(table["name"] == "extended" for table in found):
        own = "" if dataset.bundled else f" --data {data}"
        typer.echo(f"Left out: extended, whose cells take minutes; first lngeom verify --topic extended{own}", err=True)
    return [table for table in found if table["name"] in names]

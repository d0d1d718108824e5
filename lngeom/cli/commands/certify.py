"""Compare two transformers; exit 0 if they are one function (up to rounding), 1 if not or undecided, 2 on bad input."""

import sys
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from lngeom.cli import programs
from lngeom.cli.console import refusing, stages
from lngeom.cli.options import Ignore, Json, Seed


def run(
    before: Annotated[
        Path,
        typer.Argument(help="A checkpoint: config.json and .safetensors files.", metavar="BEFORE", show_default=False),
    ],
    after: Annotated[
        Path,
        typer.Argument(help="Another one, which may have other names and dtypes.", metavar="AFTER", show_default=False),
    ],
    json: Json = False,
    probes: Annotated[
        tuple[int, int], typer.Option(help="Sequences and positions of random tokens.", metavar="N T")
    ] = (4, 32),
    seed: Seed = 0,
    ignore: Ignore = None,
) -> None:
    from lngeom.transformers.rewrite import certify

    programs.compile_sparingly()
    with refusing(ValueError, OSError), stages() as watch:
        found = certify(before, after, probes=probes, seed=seed, ignore=ignore or (), stage=watch)
    if json:
        sys.stdout.write(dumps(found.to_json(), indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(f"{found}\n")
    if not found.same:
        raise typer.Exit(1)

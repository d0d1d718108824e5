"""Write a folder for a paper of your own, with one worked claim, its proof and its test."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lngeom.cli.console import check_writable, fail, refusing, written


def run(
    name: Annotated[str, typer.Argument(help="Name of the paper, such as doe2027: a folder of this name is written.")],
    out: Annotated[Path, typer.Option(help="Folder to write it into.")] = Path(),
) -> None:
    from lngeom.claims.papers import PaperError
    from lngeom.report import newpaper, write

    check_writable(out)
    with refusing(PaperError):
        files = newpaper.files(name)
    if (out / name).exists():
        fail(f"{out / name} exists already: give another name or --out")
    written(write(out / name, files))
    Console().print(f"Check it: lngeom verify --paper {out / name}. Test it: pytest {out / name}.", soft_wrap=True)

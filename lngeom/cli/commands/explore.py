"""Write a page to play with: Table 1, Fisher matrices, null directions and learning rates, with sliders."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from lngeom.cli import programs
from lngeom.cli.console import check_writable, fail, tell, writing, written


def run(
    out: Annotated[Path, typer.Option(help="The page to write.", metavar="FILE.html")] = Path("explorer.html"),
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    from lngeom.report import explorer, write

    if out.is_dir():
        fail(f"--out {out} is a folder: name a file, such as {out / 'explorer.html'}")
    if out.suffix.lower() not in {".html", ".htm"}:
        fail(f"--out {out} is a page of HTML: name it with .html, such as {out.with_suffix('.html')}")
    check_writable(out.parent)
    programs.compile_sparingly()
    text = explorer.page()
    with writing(out):
        write(out.parent, {out.name: text})
    written([out])
    if open_page and not webbrowser.open(out.absolute().as_uri()):
        tell(f"found no browser: open {out} yourself")

"""The figures of the gallery's papers: `python -m analysis gallery [PAPER …]`."""

import argparse
import importlib
from pathlib import Path

import jax
from lngeom._core.files import check_writable
from lngeom.papers.gallery import PAPERS
from lngeom.plots.style import options
from rich.console import Console
from rich.progress import Progress

from analysis.progress import timed_columns


def modules() -> dict[str, str]:
    """Ids of the papers that have a figure, and the modules that draw them, in the gallery's order."""
    here = Path(__file__).parent
    return {id: f"analysis.gallery.{id}" for id in PAPERS if (here / f"{id}.py").is_file()}


def main() -> None:
    """Draws the figures that are named, or all."""
    known = modules()
    parser = argparse.ArgumentParser(prog="python -m analysis gallery", description=__doc__)
    parser.add_argument("papers", nargs="*", metavar="PAPER", help=f"of {', '.join(known)}; all of them by default")
    parser.add_argument("--out", type=Path, default=Path("figures/gallery"), help="folder of the figures")
    parser.add_argument("--no-caption", action="store_true", help="leave the captions out of the pictures")
    given = parser.parse_args()
    if unknown := set(given.papers) - set(known):
        parser.error(f"no figure for {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    try:
        check_writable(given.out)
    except OSError as error:
        parser.error(f"cannot write to --out {given.out}: {error}")
    chosen = given.papers or list(known)
    bar = Progress(*timed_columns(), console=Console(stderr=True))
    with jax.enable_x64(True), options(captions=not given.no_caption), bar:
        task = bar.add_task("", total=len(chosen))
        for id in chosen:
            bar.update(task, description=id)
            importlib.import_module(known[id]).draw(given.out)
            bar.advance(task)
    print(f"Written: {given.out}")


if __name__ == "__main__":
    main()

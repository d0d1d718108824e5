"""The figures of the audit: `python -m analysis figures` is `lngeom figures`; `--redraw` draws all from their data.

`python -m analysis figures --redraw [NAME …] [--out DIR] [--no-caption]` draws figures again without computing
anything: experiments from their curves, all others from the JSON file beside the figure.
"""

import argparse
import sys
from pathlib import Path

from lngeom._core.files import check_writable
from lngeom.cli.commands import app
from lngeom.plots.style import options
from rich.console import Console

from analysis.figures.redraw import DRAWINGS, EXPERIMENTS, redraw


def main() -> None:
    """Draws them into `figures/`."""
    if "--redraw" not in sys.argv:
        app(["figures", *sys.argv[1:]], prog_name="python -m analysis figures")
        return
    parser = argparse.ArgumentParser(prog="python -m analysis figures", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="figures; all that have their data by default")
    parser.add_argument("--redraw", action="store_true", help="draw figures from their data, without computing")
    parser.add_argument("--no-caption", action="store_true", help="leave the captions out of the pictures")
    parser.add_argument("--out", type=Path, default=Path("figures"), help="folder of the figures")
    chosen = parser.parse_args()
    check_writable(chosen.out)
    known = [n for n in sorted({*DRAWINGS, *EXPERIMENTS}) if (chosen.out / f"{n}.json").is_file()]
    console = Console(stderr=True)
    with options(captions=not chosen.no_caption):
        for name in chosen.names or known:
            try:
                redraw(name, chosen.out)
            except ValueError as error:
                console.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
                sys.exit(2)
            console.print(f"Drawn: {chosen.out / name}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()

"""The figures of the audit: `python -m analysis figures` is `lngeom figures`."""

import sys

from lngeom.cli import app


def main() -> None:
    """Draws them into `figures/`."""
    app(["figures", *sys.argv[1:]], prog_name="python -m analysis figures")


if __name__ == "__main__":
    main()

"""The `lngeom` command, and `python -m lngeom`. A signal ends it with one message, during its imports too."""

import io
import sys

from lngeom.cli.interrupts import stoppable
from lngeom.cli.pipes import closable


def main() -> None:
    """Entry point of the command."""
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a sign shows another in its place
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    with stoppable(" ".join(["lngeom", *sys.argv[1:2]])), closable():
        from lngeom.cli import commands

        commands.main()


if __name__ == "__main__":
    main()

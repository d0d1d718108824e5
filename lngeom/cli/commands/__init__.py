"""The commands: a module each. Its docstring is the help, the signature of its `run` the options."""

import importlib
import sys
from typing import Annotated

import typer

from lngeom.cli.commands import version
from lngeom.cli.console import tell
from lngeom.cli.workers import collect_seldom

NAMES = (
    *("verify", "papers", "new_paper", "table", "figures", "explore", "prove", "check", "lint", "fisher", "rewrite"),
    *("certify", "plan", "where", "version"),
)
"""Modules of the commands, in the order of the help."""

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="The geometry of normalization layers: an audit of Layer Normalization (2016).",
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        version.run()
        raise typer.Exit


@app.callback()
def _options(
    shown: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


for _name in NAMES:
    _module = importlib.import_module(f"lngeom.cli.commands.{_name}")
    app.command(_name.replace("_", "-"), help=_module.__doc__)(_module.run)


def main() -> None:
    """Runs the command, within `lngeom.__main__`."""
    collect_seldom()
    try:
        app()
    except OSError as error:
        tell(str(error))
        sys.exit(2)

"""Find known mistakes around a model's norms; exit 1 if there are any, 2 if no norm could be checked."""

import sys
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from lngeom._core import files as _files
from lngeom.cli import programs
from lngeom.cli.console import check_writable, fail, refusing, width, writing
from lngeom.cli.options import Evaluation, Json


def run(
    model: Annotated[
        str,
        typer.Argument(
            help="A function that returns (model, X), such as mypkg.models:problem; a third item holds arguments of "
            "lg.lint.",
            metavar="MODULE:NAME",
        ),
    ],
    rules: Annotated[list[str] | None, typer.Option("--rule", help="Run this rule only; may be repeated.")] = None,
    evaluation: Evaluation = False,
    json: Json = False,
    sarif: Annotated[Path | None, typer.Option(help="Also write the report here, in SARIF 2.1.0.")] = None,
) -> None:
    from lngeom.checks.adapters import load
    from lngeom.checks.linting import lint
    from lngeom.checks.linting.given import given

    if sarif is not None:
        check_writable(sarif.parent, "--sarif")
    programs.keep_programs()
    with refusing(ValueError):
        found = given(load(model, "a model is named as PACKAGE.MODULE:NAME, such as mypkg.models:problem"), model)
        options: dict[str, Any] = found.options
        options |= ({"rules": rules} if rules else {}) | ({"training": False} if evaluation else {})
        report = lint(found.model, found.X, **options)
    if sarif is not None:
        text = dumps(report.to_sarif(found.uri, found.line), indent=2) + "\n"
        with writing(sarif, "--sarif"):
            sarif.parent.mkdir(parents=True, exist_ok=True)
            with _files.replacing(sarif) as file:
                file.write(text.encode())
    if not report.checked:
        reasons = "; ".join(f"{path or report.model}: {reason}" for path, _, reason in report.unchecked)
        fail(f"no norm of {report.model} could be checked{f': {reasons}' if reasons else ': it has none'}")
    sys.stdout.write(dumps(report.to_dict(), indent=2) + "\n" if json else f"{report.to_text(width())}\n")
    if report.findings:
        raise typer.Exit(1)

"""Say what a layer is and does; exit 1 if it differs from --like or a derivative is wrong, 2 if nothing was checked."""

import sys
from typing import Annotated

import typer

from lngeom.cli import programs
from lngeom.cli.console import fail, refusing, width
from lngeom.cli.options import Evaluation, Seed


def run(
    layer: Annotated[
        str, typer.Argument(help="The layer, such as flax.nnx:LayerNorm or mypkg.layers:MyNorm.", metavar="MODULE:NAME")
    ],
    dtype: Annotated[str, typer.Option(help="float64, float32, bfloat16 or float16.")] = "float32",
    like: Annotated[
        str | None, typer.Option(help="Compare with this row of the invariance table, such as layer.")
    ] = None,
    evaluation: Evaluation = False,
    kind: Annotated[
        str | None, typer.Option(help="Signature of a function: 'weights' for (W, X) → y, 'summed' for a → y.")
    ] = None,
    units: Annotated[int | None, typer.Option(help="Number of units, if the layer requires one.", min=2)] = None,
    positions: Annotated[int | None, typer.Option(help="Number of positions T, for inputs [N T D].", min=2)] = None,
    counterexamples: Annotated[
        bool, typer.Option("--counterexamples", help="Also print code that shows each failure, to paste into a test.")
    ] = False,
    derivatives: Annotated[
        bool, typer.Option("--derivatives", help="Check its derivatives in place of its invariances, in all modes.")
    ] = False,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="With --derivatives, also as torch.compile makes a layer of torch.")
    ] = False,
    seed: Seed = 0,
) -> None:
    from lngeom.checks import check_derivatives, check_invariances

    programs.keep_programs()
    options = {"kind": kind, "units": units, "positions": positions}
    if compiled and not derivatives:
        fail("--compiled is about derivatives: give --derivatives too")
    if derivatives:
        if like:
            fail("--like is about invariances, and --derivatives has no row: give one of them")
        with refusing(ValueError):
            found = check_derivatives(
                layer, dtype=dtype, training=not evaluation, seed=seed, compiled=compiled, **options
            )
        if not found.checked:
            fail(f"no derivative of {found.layer} could be checked: {found.results[0].note}")
        sys.stdout.write(f"{found.to_text(width(), code=counterexamples)}\n")
        if found.wrong:
            raise typer.Exit(1)
        return
    with refusing(ValueError):
        report = check_invariances(layer, like=like, dtype=dtype, training=not evaluation, seed=seed, **options)
    if report.unchecked:
        fail(f"nothing of {report.layer} could be checked: {report.unchecked}")
    sys.stdout.write(f"{report.to_text(width(), counterexamples=counterexamples)}\n")
    if report.differs:
        raise typer.Exit(1)

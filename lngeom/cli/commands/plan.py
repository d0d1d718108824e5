"""Say what weight decay does to each parameter of a model, and where norms and angles per step will settle."""

import sys
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from lngeom.cli import programs
from lngeom.cli.console import refusing, width
from lngeom.cli.options import Json

CONTRACT = """
    def problem():                  # lngeom plan yourmodule:problem --learning-rate 1e-3 --weight-decay 0.1
        return apply, params, X     # apply(params, X) gives the outputs of a batch X
A fourth item, such as {"optimizer": optax.adamw(...), "mask": mask}, holds further arguments of lg.training.plan.
A torch module is given as (module, X); a third item, such as {"output": "logits"}, holds arguments of lg.from_torch.
Or name apply itself, with --params FILE.npz (one array per leaf, "layer1.kernel") and --data FILE.npy."""
"""Objects that a user may name, shown in errors."""


def run(
    model: Annotated[
        str,
        typer.Argument(
            help="A function that returns (apply, params, X), such as mypkg.models:problem; or apply itself, with "
            "--params and --data.",
            metavar="MODULE:NAME",
        ),
    ],
    optimizer: Annotated[
        str | None, typer.Option(help="Law of the optimizer: adamw, sgd, momentum, lion, … [default: adamw]")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="η. Needed, unless the model brings it.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="λ. [default: 0]")] = None,
    momentum: Annotated[float | None, typer.Option(help="β of momentum; β₁ of adamw and lion.")] = None,
    b2: Annotated[float | None, typer.Option(help="β₂.")] = None,
    gradient_scale: Annotated[
        float | None, typer.Option(help="Root mean square of ‖w‖‖∇‖, for norms at rest of sgd, momentum and lars.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="X: a .npz, .npy, .csv or .tsv file (or .gz).", metavar="FILE")
    ] = None,
    params: Annotated[
        Path | None, typer.Option(help="Parameters: a .npz with one array per leaf ('layer1.kernel').")
    ] = None,
    json: Json = False,
) -> None:
    from lngeom.checks.adapters import load
    from lngeom.cli.fisher_inputs import from_object
    from lngeom.training import plan

    programs.compile_sparingly()
    options = {
        "optimizer": optimizer,
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
        "momentum": momentum,
        "b2": b2,
        "gradient_scale": gradient_scale,
    }
    with refusing(ValueError, OSError):
        found = load(model, "a model is named as PACKAGE.MODULE:NAME, such as mypkg.models:problem")
        file = None if data is None else Path(data)
        given = from_object(found, model, params=params, data=file, contract=CONTRACT)
        said: dict[str, Any] = {"optimizer": "adamw", **given.arguments}
        said |= {name: value for name, value in options.items() if value is not None}
        if "learning_rate" not in said:
            raise ValueError(f"--learning-rate must say η, unless the fourth item of {model} holds it:{CONTRACT}")
        try:
            made = plan(given.model_or_apply, given.params, given.X, **said)
        except TypeError as error:
            raise ValueError(f"lg.training.plan raised TypeError: {error}") from error
    sys.stdout.write((dumps(_finite(made.rows), indent=2) if json else made.to_text(width())) + "\n")


def _finite(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with null in place of NaN, which JSON lacks."""
    return [{k: None if isinstance(v, float) and v != v else v for k, v in row.items()} for row in rows]

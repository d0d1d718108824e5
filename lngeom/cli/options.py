"""Options that several commands have."""

from typing import Annotated

import typer

Seed = Annotated[int, typer.Option(help="Seed of everything random.", min=0, max=2**32 - 1)]
Data = Annotated[
    str,
    typer.Option(
        help="'digits', or a .npz, .npy, .csv or .tsv file (or .gz): one sample a row.", metavar="digits|FILE"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Evaluation = Annotated[bool, typer.Option("--evaluation", help="Examine evaluation mode instead of training mode.")]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        help="An option of config.json that no code reads. Repeat it for several.", metavar="KEY", show_default=False
    ),
]

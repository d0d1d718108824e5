"""Rewrite a transformer without changing its function; exit 0 if certified, 1 if not, 2 if a step is refused."""

import sys
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from lngeom.cli import programs
from lngeom.cli.console import refusing, stages, tell
from lngeom.cli.options import Ignore, Json, Seed


def run(
    folder: Annotated[
        Path,
        typer.Argument(help="A checkpoint: config.json and .safetensors files.", metavar="FOLDER", show_default=False),
    ],
    do: Annotated[
        str,
        typer.Option(
            help="Steps in order, such as untie,fold,rotate or untie,fold,centre,rms,rotate. Others: flash-norm, "
            "fold-scales, scale-channels=FILE, smooth=FILE, rotate-values, balance (balance=power-of-two), "
            "merge-value-bias, drop-key-bias (drop-key-bias=unrotated), merge-parallel-bias, centre-readers, "
            "centre-head, centre-router, shift-tables, scale=FACTOR, turn-units, turn-queries-and-keys, turn-back. "
            "rotate=64 rotates in blocks of 64. "
            "fold, flash-norm, centre and rms take a pattern of paths, such as fold=blocks.*.attention_norm.",
            metavar="STEPS",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The new folder. Without it, nothing is written.", show_default=False)
    ] = None,
    json: Json = False,
    seed: Seed = 0,
    alpha: Annotated[
        float | None, typer.Option(help="α of smooth, from 0 to 1; 0.5 without it.", show_default=False)
    ] = None,
    ignore: Ignore = None,
) -> None:
    from lngeom.transformers.rewrite import checkpoints, load, save
    from lngeom.transformers.rewrite.layouts import family_of
    from lngeom.transformers.rewrite.rewriting import plan
    from lngeom.transformers.rewrite.steps import parse

    programs.compile_sparingly()
    with refusing(ValueError, OSError):
        steps, config = parse(do, seed, 0.5 if alpha is None else alpha), {}
        if alpha is not None and not any(step.word == "smooth" for step in steps):
            raise ValueError("--alpha is of the step smooth, which --do does not name")
        if out is not None:
            checkpoints.check_target(out)
        found = plan(*load(folder, ignore=ignore or ()), steps, seed=seed)
        if out is not None:
            config = checkpoints.check_saved(found.stack, found.draft, found.before)[1]
        if not json:
            sys.stdout.write(f"{found.describe()}\n")
            sys.stdout.flush()
        with stages() as watch:
            watch("certificate")
            certificate = found.certify()
            if out is not None and certificate.passed:
                watch("writing")
                certificate = save(found.rewritten(certificate), out)
    written = None if out is None or not certificate.passed else str(out)
    if json:
        document = {"plan": found.to_json(), "certificate": certificate.to_json(), "written": written}
        sys.stdout.write(dumps(document, indent=2, ensure_ascii=False) + "\n")
    else:
        note = "; lngeom alone loads it" if family_of(config)[0] else ""
        sys.stdout.write(f"{certificate}\n" + ("" if written is None else f"Written: {written}{note}\n"))
        if out is None:
            sys.stdout.write("Nothing was written: --out FOLDER writes the new checkpoint\n")
        source = found.draft.source
        left = checkpoints.left_out(source) if written and isinstance(source, checkpoints.Checkpoint) else ()
        if left:
            sys.stdout.write(f"Not copied: {', '.join(left)}\n")
    if not certificate.passed:
        tell("; ".join(["the certificate failed", *certificate.faults[:1], "nothing was written"]))
        raise typer.Exit(1)

"""The effective learning rate of normalized networks, in experiments: `python -m analysis learning_rate`.

A run that is killed goes on when it is started again: parts that are done are kept, trainings go on from their
checkpoints, and the results are the same to the bit.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
from lngeom._core.files import check_writable
from lngeom.cli.interrupts import on_stop
from lngeom.plots import style
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from analysis.measurements.learning_rate.figures import save_part
from analysis.measurements.learning_rate.networks import FULL, SMALL, Part, Sizes
from analysis.measurements.learning_rate.parts import PARTS
from analysis.store import only_run, write


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return np.asarray(value).tolist() if hasattr(value, "__array__") else value


def _arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _arrays(v) for k, v in value.items()}
    return np.asarray(value) if isinstance(value, list) else value


def compute(name: str, sizes: Sizes, folder: Path, progress: Callable | None = None) -> Part:
    """The results of a part, from those kept in a folder where they are of the same sizes and versions.

    Args:
        name: of the part.
        sizes: of everything.
        folder: where results and checkpoints are kept.
        progress: gives the callback of a training by its name.

    Returns:
        Arrays by name.

    Raises:
        ValueError: if a training diverges, or the results that are kept are damaged.
    """
    identity = {"sizes": asdict(sizes), "jax": jax.__version__, "numpy": np.__version__}
    path = folder / f"{name}.json"
    if path.exists():
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}): remove it and start again") from error
        if kept["identity"] == identity:
            return _arrays(kept["results"])
    folder.mkdir(parents=True, exist_ok=True)
    with jax.enable_x64(True):
        results = _plain(PARTS[name](sizes, folder, progress))
    write(path, json.dumps({"identity": identity, "results": results}))
    return _arrays(results)


def run(sizes: Sizes, out: Path, names: Sequence[str] = tuple(PARTS), console: Console | None = None) -> list[Path]:
    """Runs parts, or takes what is left of an earlier run, and draws them.

    Args:
        sizes: of everything.
        out: folder of figures; results and checkpoints are kept below it until all is done.
        names: of the parts.
        console: where progress is shown; nowhere by default.

    Returns:
        Paths of what was written.

    Raises:
        OSError: if nothing can be written to `out`.
        ValueError: if a training diverges, or another run is at work in `out`.
    """
    check_writable(out)
    folder = out / ".learning_rate"
    on_stop(lambda: f"Finished parts and checkpoints are kept in {folder}. Start it again to go on.")
    written: list[Path] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with only_run(folder), Progress(*columns, console=console or Console(quiet=True), transient=True) as bar:
        overall = bar.add_task("parts", total=len(names))

        def progress(name: str):
            task = bar.add_task(name, total=None)
            return lambda step, steps, metrics: bar.update(task, completed=step, total=steps)

        for name in names:
            bar.update(overall, description=name)
            written += save_part(name, compute(name, sizes, folder, progress), asdict(sizes), out / name)
            bar.advance(overall)
    if set(names) == set(PARTS):
        shutil.rmtree(folder, ignore_errors=True)
    return written


def main() -> None:
    """Entry point of `python -m analysis learning_rate`."""
    parser = argparse.ArgumentParser(prog="python -m analysis learning_rate", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--small", action="store_true", help="sizes that take minutes (default)")
    size.add_argument("--full", action="store_true", help="longer runs, more seeds, wider layers")
    parser.add_argument("--only", choices=list(PARTS), nargs="+", default=list(PARTS), help="run these parts only")
    parser.add_argument("--no-caption", action="store_true", help="leave the captions out of the pictures")
    parser.add_argument("--out", type=Path, default=Path("figures"), help="folder of the figures")
    options = parser.parse_args()
    console = Console(stderr=True)
    try:
        with style.options(captions=not options.no_caption):
            written = run(FULL if options.full else SMALL, options.out, options.only, console)
    except ValueError as error:
        console.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
    console.print("Written: " + ", ".join(map(str, written)), highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()

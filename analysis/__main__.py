"""`python -m analysis NAME | all | list`: runs experiments, benchmarks and figures of this folder."""

import argparse
import ast
import importlib
import os
import pkgutil
import runpy
import shutil
import sys
import textwrap
import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, get_args

from lngeom._core.files import check_writable
from lngeom.cli.interrupts import on_stop, stoppable
from lngeom.plots import style
from rich.console import Console
from rich.table import Table

import analysis
from analysis.experiments import dry_run
from analysis.experiments.drawing import draw
from analysis.experiments.experiment import Experiment, load_full, real_version
from analysis.experiments.loop import Progress
from analysis.experiments.results import Results, check_replaces_its_own, is_done, read, write
from analysis.experiments.running import configuration, run
from analysis.experiments.variants import Variant, variant_of, with_variant
from analysis.progress import Watch, duration
from analysis.store import only_run


class Runnable(NamedTuple):
    """What `python -m analysis NAME` runs.

    Attributes:
        module: where it is.
        group: the folder in which it is; empty for this one.
        title: first line of its docstring.
        experiment: whether it is an experiment, a module with `EXPERIMENT`; others are programs with their own options.
    """

    module: str
    group: str
    title: str
    experiment: bool


def discover() -> dict[str, Runnable]:
    """Names that can be run: experiments, programs, and packages with a `__main__`, except tutorials."""
    found = {}
    modules = pkgutil.walk_packages(analysis.__path__, "analysis.")
    for module in sorted(modules, key=lambda m: m.name.count(".")):  # a short name at the top gives way
        parent, _, name = module.name.rpartition(".")
        path = Path(analysis.__path__[0], *module.name.split(".")[1:])
        path = path / "__main__.py" if module.ispkg else path.with_suffix(".py")
        if parent == "analysis.tutorials" or name == "__main__" or not path.is_file():
            continue
        source = path.read_text(encoding="utf-8")
        experiment = "\nEXPERIMENT = " in source
        if experiment or '\nif __name__ == "__main__":' in source:
            title = (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]
            parts = path.relative_to(analysis.__path__[0]).parts
            found[name] = Runnable(module.name, parts[0] if len(parts) > 1 else "", title, experiment)
    return dict(sorted(found.items()))


def listing(known: Mapping[str, Runnable], width: int = 80) -> str:
    """What can be run, by folder, each with the first line of its docstring."""
    lines = []
    for group in sorted({runnable.group for runnable in known.values()}):
        members = {name: runnable for name, runnable in known.items() if runnable.group == group}
        lines += ["", f"analysis/{group}"]
        for name, runnable in members.items():
            title = runnable.title.partition(": `python -m")[0].rstrip(
                "."
            )  # without the command, which stands before it
            lines += textwrap.wrap(f"  {name:<22} {title}", width, subsequent_indent=" " * 25, break_on_hyphens=False)
    return "\n".join(lines[1:])


def experiments_of(runnables: Iterable[Runnable]) -> list[Experiment]:
    """The experiments among what can be run."""
    return [importlib.import_module(r.module).EXPERIMENT for r in runnables if r.experiment]


def _layouts() -> str:
    """What the folder of --data holds, for each experiment."""
    rows = []
    for experiment in experiments_of(discover().values()):
        for option, files in (
            ("--full", experiment.files),
            ("--real", experiment.real.files if experiment.real else ""),
        ):
            if files:
                rows.append(textwrap.fill(f"{experiment.name} {option}: {files}", 100, subsequent_indent="  "))
    return "what the folder of --data holds:\n" + "\n".join(rows)


def _parse(known: Iterable[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m analysis",
        description="Experiments, benchmarks and figures of this project.",
        epilog=_layouts() if {"-h", "--help"} & set(sys.argv) else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=[*known, "all", "list"], help="what to run; 'all': every experiment")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--small", action="store_true", help="train at small size on bundled or generated data (default)")
    size.add_argument("--real", action="store_true", help="train at a reduced size on real data from disk")
    size.add_argument("--full", action="store_true", help="train at the paper's size on a data set from disk")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the data, for --full and --real; see below")
    parser.add_argument(
        "--arms",
        choices=get_args(Variant),
        help="our arms, those as the authors' code has them, or both; by default ours, and the authors' with --full",
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (5)")
    parser.add_argument(
        "--workers", type=int, help="arms trained in parallel; by default one per core, and one with --full"
    )
    parser.add_argument("--resume", action="store_true", help="continue a run that was stopped")
    parser.add_argument("--dry-run", action="store_true", help="with --full: measure one step on generated data")
    parser.add_argument("--redraw", action="store_true", help="compare and draw the results in --out without training")
    parser.add_argument("--no-caption", action="store_true", help="leave the captions out of the pictures")
    parser.add_argument(
        "--out",
        type=Path,
        help="folder of the results; by default figures, and results for --full, --real, other --arms or --seeds",
    )
    options = parser.parse_args()
    if options.out is None:
        other = options.full or options.real or options.arms in {"authors", "both"}
        options.out = Path("results" if other or options.seeds != parser.get_default("seeds") else "figures")
    if options.arms is None:
        options.arms = "authors" if options.full or options.dry_run else "ours"
    if options.seeds < 1:
        parser.error(f"--seeds must be at least 1; got {options.seeds}")
    if options.workers is None:
        options.workers = 1 if options.full else os.cpu_count() or 1
    if options.workers < 1:
        parser.error(f"--workers must be at least 1; got {options.workers}")
    return options


def _report(console: Console, experiment: Experiment, results: Results) -> None:
    table = Table("statement", "the paper", "ratio or difference", "seeds for, against", title=experiment.title)
    for row in results.comparisons:
        table.add_row(row["text"], row["paper"], row["median"], f"{row['wins']}, {row['losses']}")
    console.print(table)
    console.print(
        f"One learning rate for every arm. A verdict tunes them all: python -m analysis protocol {experiment.name}",
        highlight=False,
        soft_wrap=True,
    )
    for text in results.summary.get("not measured", ()):
        console.print(f"Not measured on these data: {text}", style="yellow", highlight=False)
    diverged = {n: sum(s is not None for s in a["diverged at step"]) for n, a in results.summary["arms"].items()}
    for name, count in diverged.items():
        if count:
            console.print(f"{name}: {count} of {results.configuration['seeds']} runs diverged", style="yellow")


def _experiment(console: Console, experiment: Experiment, options: argparse.Namespace) -> None:
    if options.redraw:
        experiment = with_variant(experiment, variant_of(experiment, options.out))
        _finish(console, experiment, read(experiment, options.out), options.out)
        return
    check_writable(options.out)
    with only_run(options.out / experiment.name):
        _train(console, experiment, options)


def estimate(experiments: Iterable[Experiment], seeds: int, workers: int) -> str:
    """What training at the small size takes, in a sentence."""
    lines, whole = [], 0.0
    for experiment in experiments:
        steps = sum(experiment.length(experiment.small, arm)[0] for arm in experiment.arms.values())
        seconds = steps * seeds * experiment.cost / 1000
        whole += seconds / min(workers, len(experiment.arms))
        lines.append(f"{experiment.name}: {duration(seconds)} of a processor")
    return "\n".join([*lines, f"In all about {duration(whole)}, with what is not done yet."])


def _train(console: Console, experiment: Experiment, options: argparse.Namespace) -> None:
    if options.real:
        experiment = real_version(experiment, options.data)
    settings = experiment.full if options.full else experiment.small
    described = configuration(experiment, settings, options.seeds)
    check_replaces_its_own(experiment, described, options.out)
    if options.name == "all" and options.resume and is_done(experiment, described, options.out):
        _finish(
            console, experiment, read(experiment, options.out), options.out
        )  # it may have been killed at its figure
        return
    folder = options.out / experiment.name / "checkpoints"

    def kept() -> str:
        count = len(list(folder.glob("*.checkpoint")))
        if not count:
            return "No checkpoint had been written yet. Start it again from the beginning."
        return (
            f"Checkpoints of {count} of {len(experiment.arms)} arms are kept in {folder}. Go on with "
            f"python -m analysis {options.name} --resume and the other options as they were."
        )

    on_stop(kept)
    start = time.perf_counter()
    with Watch(Console(stderr=True)) as watch:
        rows = {}
        for name, arm in experiment.arms.items():
            rows[name] = watch.add(f"{experiment.name}: {name}", experiment.length(settings, arm)[0])
        data = _full_data(console, experiment, options.data) if options.full else None
        if not options.resume:
            shutil.rmtree(folder, ignore_errors=True)

        def progress(arm: str) -> Progress:
            return lambda step, steps, metrics: rows[arm](step, steps)

        results = run(
            experiment,
            settings=settings,
            data=data,
            seeds=options.seeds,
            folder=folder,
            resume=options.resume,
            progress=progress,
            workers=options.workers,
            keep_best=options.full or options.real,
        )
    _finish(console, experiment, results, options.out)
    if options.full or options.real:
        weights = folder.with_name("weights")
        shutil.rmtree(weights, ignore_errors=True)
        folder.rename(weights)
        console.print(f"Weights after the last step and at the best value: {weights}", highlight=False, soft_wrap=True)
    shutil.rmtree(folder, ignore_errors=True)
    console.print(f"{time.perf_counter() - start:.0f} s", highlight=False)


def _full_data(console: Console, experiment: Experiment, folder: Path | None) -> Any:
    """The data of the full size; what the loader warns of is printed."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        data = load_full(experiment, folder)
    for warning in told:
        console.print(str(warning.message), style="yellow", highlight=False, markup=False, soft_wrap=True)
    return data


def _finish(console: Console, experiment: Experiment, results: Results, out: Path) -> None:
    paths = [*write(experiment, results, out), *draw(experiment, results, out)]
    _report(console, experiment, results)
    console.print("Written: " + ", ".join(map(str, paths)), highlight=False, soft_wrap=True)


def _fail(error: Exception) -> NoReturn:
    Console(stderr=True).print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
    sys.exit(2)


def main() -> None:
    """Entry point of `python -m analysis`."""
    with stoppable(" ".join(["python -m analysis", *sys.argv[1:2]])):
        try:
            _main()
        except OSError as error:
            _fail(error)


def _main() -> None:
    known = discover()
    named = known.get(sys.argv[1]) if len(sys.argv) > 1 else None
    if named and not named.experiment:  # it has options of its own
        sys.argv[0] = f"python -m analysis {sys.argv.pop(1)}"
        runpy.run_module(named.module, run_name="__main__", alter_sys=True)
        return
    options = _parse(known)
    console = Console()
    if options.name == "list":
        print(listing(known))
        return
    chosen = experiments_of(known.values() if options.name == "all" else [known[options.name]])
    experiments = chosen if options.redraw else [with_variant(e, options.arms) for e in chosen]
    try:
        if options.dry_run:
            console.print(dry_run.table([dry_run.measure(e) for e in experiments]), highlight=False)
            return
        if options.name == "all" and not options.redraw and not options.full:
            console.print(estimate(experiments, options.seeds, options.workers), highlight=False, soft_wrap=True)
        with style.options(captions=not options.no_caption):
            for experiment in experiments:
                _experiment(console, experiment, options)
    except ValueError as error:
        _fail(error)


if __name__ == "__main__":
    main()

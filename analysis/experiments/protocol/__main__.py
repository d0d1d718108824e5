"""Every arm at its own best learning rate, judged on fresh seeds: `python -m analysis protocol [EXPERIMENT ...]`.

A run that is stopped goes on when it is started again, and gives the same results to the bit.
"""

import argparse
import os
import shutil
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from lngeom._core.files import check_writable
from lngeom.claims.results import FOLDER
from lngeom.cli.interrupts import on_stop
from lngeom.plots import style
from rich.console import Console

from analysis import experiments as package
from analysis.experiments.experiment import Experiment, real_version
from analysis.experiments.protocol import table
from analysis.experiments.protocol.plan import Plan, provenance, real_plan
from analysis.experiments.protocol.trials import Trials, carry_out, configuration, seconds
from analysis.progress import Watch, duration
from analysis.store import only_run


def known() -> dict[str, Experiment]:
    """Every experiment by its name."""
    modules = (import_module(f"{package.__name__}.{m.name}") for m in iter_modules(package.__path__) if not m.ispkg)
    found = [m.EXPERIMENT for m in modules if hasattr(m, "EXPERIMENT")]
    return {e.name: e for e in found}


def estimate(chosen: list[Experiment], plan: Plan, workers: int) -> str:
    """What the runs will take, before anything is known of extended grids and lengths."""
    lines = []
    for e in chosen:
        least, most = seconds(e, plan), seconds(e, plan, plan.longest)
        lines.append(f"{e.name}: {duration(least)} of a processor; at the longest {duration(most)}")
    whole = sum(seconds(e, plan) for e in chosen)
    lines.append(
        f"In all {duration(whole / workers)} with {workers} workers at the least; up to {plan.longest} times as long "
        "where arms do not stop improving."
    )
    return "\n".join(lines)


def carry_out_one(experiment: Experiment, plan: Plan, out: Path, workers: int, console: Console) -> None:
    """Runs the protocol for one experiment, or takes up what is left of it.

    Args:
        experiment: the experiment.
        plan: rates, seeds and lengths.
        out: folder of all figures.
        workers: parts that are trained at once.
        console: for progress.

    Raises:
        ValueError: if kept results or parts are of another configuration.
    """
    described = configuration(experiment, plan, provenance())
    kept = table.read(experiment, out)
    folder = out / FOLDER / experiment.name
    if kept is not None:
        if kept.configuration != described:
            raise ValueError(f"{folder} holds results of another configuration or protocol: remove it, or give --out")
        console.print(f"{experiment.name} is done.", highlight=False)
        return
    parts = folder / "parts"
    with only_run(folder), Watch(console) as watch:

        def say(text: str) -> None:
            console.print(f"{experiment.name}: {text}", highlight=False, markup=False, soft_wrap=True)

        trials = Trials(
            experiment,
            plan,
            described,
            parts,
            lambda name, steps: watch.add(f"{experiment.name} {name}", steps),
            workers,
        )
        curved = carry_out(trials, say)
        paths = [*table.write(experiment, described, curved, out), *table.draw(experiment, described, curved, out)]
        for path in paths:
            say(f"written: {path}")
        shutil.rmtree(parts, ignore_errors=True)


def draw_again(experiment: Experiment, out: Path) -> None:
    """Draws the kept curves of an experiment, if there are any; the figure names the versions that computed them."""
    kept = table.read(experiment, out)
    if kept is not None:
        with style.options(versions=kept.configuration["versions"]):
            table.draw(experiment, kept.configuration, kept.curved, out)


def main() -> None:
    """Entry point of `python -m analysis protocol`."""
    found = known()
    parser = argparse.ArgumentParser(
        prog="python -m analysis protocol",
        description="Tunes every arm, judges it on fresh seeds, and writes a table of every statement; see "
        "analysis/PROTOCOL.md. Start it again to continue.",
    )
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=f"all by default: {', '.join(found)}")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="trainings at once; one per core")
    parser.add_argument("--out", type=Path, help="folder of the results; figures, or results with --real")
    parser.add_argument("--real", action="store_true", help="the larger versions on real data, see point 20")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the real data: python -m analysis --help")
    parser.add_argument("--fresh", type=int, default=3, help="with --real: number of fresh seeds (3)")
    parser.add_argument("--estimate", action="store_true", help="print what it will take, and end")
    parser.add_argument("--table", action="store_true", help="judge and draw the kept curves again, without training")
    options = parser.parse_args()
    if unknown := sorted(set(options.experiments) - set(found)):
        parser.error(f"no experiment {', '.join(unknown)}; there are {', '.join(found)}")
    if options.workers < 1:
        parser.error(f"--workers must be at least 1; got {options.workers}")
    if options.fresh < 1:
        parser.error(f"--fresh must be at least 1; got {options.fresh}")
    if options.real and len(options.experiments) != 1:
        parser.error("--real takes one experiment, with its folder in --data")
    options.out = options.out or Path("results" if options.real else "figures")
    console, plan = Console(), real_plan(options.fresh) if options.real else Plan()
    try:
        if options.real:
            found = {name: real_version(found[name], options.data) for name in options.experiments}
        chosen = [found[name] for name in options.experiments or found]
        check_writable(options.out)
        if not options.table:
            console.print(estimate(chosen, plan, options.workers), highlight=False, soft_wrap=True)
        if options.estimate:
            return
        on_stop(lambda: "What is done is kept. Start it again with the same options to continue.")
        for experiment in chosen:
            if options.table:
                draw_again(experiment, options.out)
            else:
                carry_out_one(experiment, plan, options.out, options.workers, console)
        paths = table.write_table(list(found.values()), options.out)
    except (ValueError, OSError) as error:
        Console(stderr=True).print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
    if not paths:
        console.print(f"No results of the protocol in {options.out}: run it without --table.", highlight=False)
        return
    console.print(paths[0].read_text(encoding="utf-8"), highlight=False, markup=False, soft_wrap=True)
    console.print("Written: " + ", ".join(map(str, paths)), highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()

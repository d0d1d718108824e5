"""Planted faults, and who notices them: `python -m analysis mutants [--area A] [--only ID …] [--resume] [--sample K]`.

Mutants are drawn from the targets, the same ones each time. First every claim and every quick test runs without a
fault, and which functions of `lngeom` each one runs is noted. Then each mutant is planted by itself in a copy of the
repository. Those are asked that run its function: claims first, then relations, then other quick tests, quick ones
first, up to a number of seconds.

Exit status 0: somebody notices every fault that changes a result; 1: one survives, ends every import or gets no answer;
2: the arguments do not fit; 130: interrupted.
"""

import argparse
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import lngeom
from lngeom._core.files import check_writable, replacing, temporary_folder
from lngeom.cli.interrupts import on_stop
from rich.console import Console
from rich.progress import Progress

from analysis.mutants.examine import Baseline, Copy, Result, code_of, examine, passes
from analysis.mutants.mutator import Mutant
from analysis.mutants.table import Survivors, is_good, markdown, read, summarize, write
from analysis.mutants.targets import AREAS, all_mutants, fresh_mutants
from analysis.progress import timed_columns

ROOT = Path(lngeom.__file__).resolve().parents[1]
"""The checkout."""

SURVIVORS = Path(__file__).with_name("survivors.toml")
"""Why survivors survive."""

_PLAIN: Any = {"markup": False, "highlight": False, "soft_wrap": True}

Mutants = Mapping[str, tuple[Mutant, str]]
"""Mutants and their areas, by id."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m analysis mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="ID", help="plant these mutants only, drawn or not")
    parser.add_argument("--area", choices=AREAS, help="plant the mutants of one area only")
    parser.add_argument(
        "--sample", type=int, metavar="K", help="draw K mutants of each file, in place of its own number"
    )
    parser.add_argument("--list", action="store_true", help="list the mutants without planting them")
    parser.add_argument("--resume", action="store_true", help="keep the results in --out, and plant the others")
    parser.add_argument("--again", action="store_true", help="ask tests that were added about the survivors in --out")
    parser.add_argument(
        "--fresh", type=int, metavar="K", help="plant K mutants of the mathematics that are not listed, for the page"
    )
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="keep there what runs without a fault, and read it"
    )
    parser.add_argument("--out", type=Path, help="file of the results (figures/mutants.json; none with a choice)")
    parser.add_argument("--table", type=Path, help="page of the results (analysis/MUTANTS.md; none with a choice)")
    return parser


def main() -> None:
    """Entry point of `python -m analysis mutants`."""
    parser = _parser()
    options = parser.parse_args()
    if options.sample is not None and options.sample < 1:
        parser.error(f"--sample must be at least 1; got {options.sample}")
    if not options.only and not options.area and options.sample is None:
        options.out = options.out or Path("figures/mutants.json")
        options.table = options.table or Path("analysis/MUTANTS.md")
    if (options.resume or options.again or options.fresh is not None) and options.out is None:
        parser.error("--resume, --again and --fresh need --out, the file to go on from")
    if options.fresh is not None and options.fresh < 1:
        parser.error(f"--fresh must be at least 1; got {options.fresh}")
    try:
        known = all_mutants(ROOT, options.sample)
        if options.only:
            known |= {
                id: (m := Mutant.of(id), m.file.partition("/")[0].replace("_core", "core")) for id in options.only
            }
        chosen = {
            id: (mutant, area)
            for id, (mutant, area) in known.items()
            if (not options.only or id in options.only) and options.area in {None, area}
        }
        if options.list:
            for id, (mutant, area) in chosen.items():
                changed = mutant.apply((ROOT / "lngeom" / mutant.file).read_text(encoding="utf-8"))[1]
                sys.stdout.write(f"{area:12} {id}: {changed}\n")
            return
        sys.exit(_command(chosen, options))
    except (ValueError, RuntimeError) as error:
        Console(stderr=True).print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)


def kept_results(path: Path, code: str) -> tuple[dict[str, Any], list[Result]]:
    """The configuration and the results in a file.

    Args:
        path: of the file; it need not exist.
        code: hash of the code under test, as `code_of` gives it.

    Returns:
        Both; nothing where there is no file.

    Raises:
        ValueError: if the file is of other code.
    """
    if not path.exists():
        return {}, []
    configuration, found = read(path)
    if configuration["code"] != code:
        raise ValueError(f"{path} holds results of other code: start without --resume")
    return configuration, found


def _command(chosen: Mutants, options: argparse.Namespace) -> int:
    console, code = Console(stderr=True), code_of(ROOT)
    configuration: dict[str, Any] = {"command": "python -m analysis mutants", "code": code, "seconds": 0.0}
    found: dict[str, Result] = {}
    if options.again or options.fresh:
        configuration, results = read(options.out)
        found = {r.id: r for r in results}
    elif options.resume:
        kept, results = kept_results(options.out, code)
        configuration |= kept
        found = {r.id: r for r in results}
    survivors = Survivors.read(SURVIVORS)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        check_writable(options.out.parent)

    def keep() -> None:
        if options.out:
            write(list(found.values()), survivors, configuration, options.out)

    def kept_so_far() -> str:
        if not options.out:
            return "No results are kept."
        return f"Results of {len(found)} mutants are in {options.out}. Go on with the same command and --resume."

    on_stop(kept_so_far)
    if options.again:
        with temporary_folder() as folder, Copy(ROOT, folder) as copy:
            ask_again(copy, found, survivors, code)
    elif options.fresh:
        unseen = fresh_mutants(ROOT, options.fresh, set(found))
        spent = {"seconds": 0.0}
        configuration["fresh"] = [r._asdict() for r in _plant(unseen, spent, options.baseline, console)]
        configuration |= {"fresh seconds": spent["seconds"], "fresh code": code}
    elif left := {id: m for id, m in chosen.items() if id not in found}:
        for result in _plant(left, configuration, options.baseline, console):
            found[result.id] = result
            keep()
            if options.only or not is_good(result, survivors):
                what = f"{result.outcome} {result.by} ({result.how}) after {result.seconds:g} s"
                text = f"{result.id}: {what}. {result.change}"
                style = "dim" if is_good(result, survivors) else "red"
                console.print(text, style=style, **_PLAIN)
    keep()
    if options.table:
        with replacing(options.table) as file:
            file.write(markdown(list(found.values()), survivors, configuration).encode())
    row = summarize(list(found.values()), survivors)["all"]
    console.print(", ".join(f"{count} {name}" for name, count in row.items() if count), highlight=False)
    return int(not all(is_good(r, survivors) for r in found.values()))


def _plant(
    left: Mutants, configuration: dict[str, Any], kept: Path | None, console: Console
) -> Generator[Result, None, None]:
    """Plants mutants by themselves, and notes in the configuration what runs without a fault and the seconds taken.

    Yields:
        What became of each.
    """
    before = configuration["seconds"]
    with temporary_folder() as folder, Copy(ROOT, folder) as copy:
        baseline = Baseline.read(kept, copy, console)
        told = {"baseline seconds": baseline.seconds, "witnesses": baseline.counts, "failing": baseline.failing}
        configuration |= {name: value for name, value in told.items() if name not in configuration}
        begin = time.monotonic()
        with Progress(*timed_columns(), console=console) as bar:
            task = bar.add_task("mutants", total=len(left))
            for id, (mutant, area) in left.items():
                result = examine(mutant, area, baseline, copy)
                configuration["seconds"] = round(before + time.monotonic() - begin, 1)
                bar.update(task, advance=1, description=f"mutants, {id}")
                yield result


def ask_again(copy: Copy, found: dict[str, Result], survivors: Survivors, code: str) -> None:
    """Plants those again for which a test was added, and notes with their results that it notices them.

    Args:
        copy: of the repository with the tests.
        found: results by id.
        survivors: the tests.
        code: hash of the code of the copy.

    Raises:
        ValueError: if a test does not run, fails without the fault, or does not notice it.
    """
    for id, test in survivors.tests.items():
        if id not in found or found[id].outcome not in {"none", "no answer"}:
            continue
        if not passes(copy, test):
            raise ValueError(f"{test} fails without the fault {id}")
        with copy.planted(Mutant.of(id)):
            if passes(copy, test):
                raise ValueError(f"{test} does not notice {id}")
        found[id] = found[id]._replace(later=test, later_code=code)

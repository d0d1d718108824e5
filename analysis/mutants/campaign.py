"""Planted faults, and who notices them: `python -m analysis mutants [--area A] [--only ID …] [--resume]`.

Every mutant of the catalogue is planted by itself in a copy of the repository. Its claims are checked there in a new
process, on small data. If no verdict changes, its test files run. A mutant that nobody notices survives.

Exit status 0: claims or tests notice every fault that changes a result; 1: one survives, ends every import or gets no
answer; 2: the arguments do not fit; 130: interrupted.
"""

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from pathlib import Path
from typing import Any

import lngeom
from lngeom._core.files import check_writable, replacing, temporary_folder
from lngeom.claims import all_claims
from lngeom.cli.interrupts import on_stop
from rich.console import Console
from rich.progress import Progress

from analysis.mutants.catalogue import CATALOGUE
from analysis.mutants.examine import Baseline, Result, examine, snapshot
from analysis.mutants.mutant import AREAS, Mutant, matching
from analysis.mutants.table import kind, markdown, read, summarize, write
from analysis.progress import timed_columns

ROOT = Path(lngeom.__file__).resolve().parents[1]
"""The checkout."""

MUTANTS = {mutant.id: mutant for mutant in CATALOGUE}

LIMIT = 600.0
"""Seconds for the claims of a mutant, and for one test file."""

GOOD = {"claims", "tests", "equivalent"}
"""What should become of every mutant."""


def code_of(root: Path) -> str:
    """Hash of the code under test and of its tests.

    Args:
        root: the checkout.

    Returns:
        The hash.
    """
    found = hashlib.sha256()
    for path in sorted(p for folder in ("lngeom", "tests") for p in (root / folder).rglob("*.py")):
        found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def results(
    mutants: Sequence[Mutant], workers: int = 1, limit: float = LIMIT, console: Console | None = None
) -> Generator[Result, None, None]:
    """Plants every fault by itself.

    Args:
        mutants: the faults.
        workers: copies that are examined at a time.
        limit: seconds for the claims of a mutant, and for one test file.
        console: takes messages.

    Yields:
        Results, in the order they come.
    """
    known = [(claim.id, claim.topic) for claim in all_claims("all")]
    claims = {mutant.id: matching(mutant.claims, known) for mutant in mutants}
    console = console or Console(stderr=True, quiet=True)
    log = lambda text: console.print(text, style="yellow", markup=False, highlight=False)  # noqa: E731
    with temporary_folder() as folder:
        if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # programs without the fault are compiled once
            os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "compiled")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        original = folder / "original"
        snapshot(ROOT, original)
        baseline = Baseline(original, limit)
        pool = ThreadPoolExecutor(workers)
        try:
            futures = [pool.submit(examine, m, baseline, claims[m.id], limit, log) for m in mutants]
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _print(result: Result, console: Console) -> None:
    mutant = MUTANTS[result.id]
    what = kind(result, mutant)
    text = f"{result.id}: {what} {result.by} ({result.how}) after {result.seconds:g} s. {mutant.wrong}"
    console.print(text, style="dim" if what in GOOD else "red", markup=False, highlight=False, soft_wrap=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m analysis mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="ID", choices=MUTANTS, help="plant these mutants only")
    parser.add_argument("--area", choices=AREAS, help="plant the mutants of one area only")
    parser.add_argument("--list", action="store_true", help="list the mutants without planting them")
    parser.add_argument("--resume", action="store_true", help="keep the results in --out, and plant the others")
    parser.add_argument("--workers", type=int, default=1, help="number of mutants examined at a time")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for a mutant's claims, and for a test file")
    parser.add_argument(
        "--out", type=Path, help="file of the results (figures/mutants.json; none with --only or --area)"
    )
    parser.add_argument(
        "--table", type=Path, help="page of the results (analysis/MUTANTS.md; none with --only or --area)"
    )
    return parser


def main() -> None:
    """Entry point of `python -m analysis mutants`."""
    parser = _parser()
    options = parser.parse_args()
    if options.workers < 1:
        parser.error(f"--workers must be at least 1; got {options.workers}")
    if not options.limit > 0:
        parser.error(f"--limit must be positive; got {options.limit}")
    whole = not options.only and not options.area
    if whole:
        options.out = options.out or Path("figures/mutants.json")
        options.table = options.table or Path("analysis/MUTANTS.md")
    if options.resume and options.out is None:
        parser.error("--resume needs --out, the file to go on from")
    chosen = [m for m in CATALOGUE if (not options.only or m.id in options.only) and options.area in {None, m.area}]
    if options.list:
        for mutant in chosen:
            sys.stdout.write(f"{mutant.area:15} {mutant.id:40} {mutant.file}: {mutant.wrong}\n")
        return
    try:
        sys.exit(_command(chosen, options))
    except (ValueError, RuntimeError) as error:
        Console(stderr=True).print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)


def kept_results(path: Path, code: str) -> list[Result]:
    """The results in a file that are of mutants as they are now.

    Args:
        path: of the file; it need not exist.
        code: hash of the code under test, as `code_of` gives it.

    Returns:
        Results.

    Raises:
        ValueError: if the file is of other code.
    """
    if not path.exists():
        return []
    configuration, found = read(path)
    if configuration["code"] != code:
        raise ValueError(f"{path} holds results of other code: start without --resume")
    return [r for r in found if r.id in MUTANTS and MUTANTS[r.id].fingerprint == r.fingerprint]


def _command(chosen: Sequence[Mutant], options: argparse.Namespace) -> int:
    console, code = Console(stderr=True), code_of(ROOT)
    found = kept_results(options.out, code) if options.resume else []
    done = {result.id for result in found}
    left = [mutant for mutant in chosen if mutant.id not in done]
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        check_writable(options.out.parent)
    configuration: dict[str, Any] = {"command": "python -m analysis mutants", "code": code, "limit": options.limit}

    def keep() -> None:
        if options.out:
            write(found, MUTANTS, configuration, options.out)

    def kept() -> str:
        if not options.out:
            return "No results are kept."
        return f"Results of {len(found)} mutants are in {options.out}. Go on with the same command and --resume."

    on_stop(kept)
    start = time.perf_counter()
    with (
        Progress(*timed_columns(), console=console) as bar,
        closing(results(left, options.workers, options.limit, bar.console)) as coming,
    ):
        task = bar.add_task("mutants", total=len(left))
        for result in coming:
            found.append(result)
            keep()
            survivors = sum(kind(r, MUTANTS[r.id]) not in GOOD for r in found)
            bar.update(task, advance=1, description=f"mutants, {survivors} not noticed, {result.id}")
            if options.only or kind(result, MUTANTS[result.id]) not in GOOD:
                _print(result, bar.console)
    keep()
    if options.table:
        with replacing(options.table) as file:
            file.write(markdown(found, MUTANTS, configuration).encode())
    counts = ", ".join(f"{count} {name}" for name, count in summarize(found, MUTANTS)["all"].items() if count)
    console.print(f"{counts}; {(time.perf_counter() - start) / 60:.1f} min", highlight=False)
    return int(any(kind(r, MUTANTS[r.id]) not in GOOD for r in found))

r"""Generated models against a literal Fisher matrix: `python -m analysis fuzz [--models 2000] [--first-seed 0]`.

Every seed is a model: layers, attention, convolutions, gates, embeddings, scans, dropout, functions whose samples
interact, masks, mixed precisions, families that the library does not have. Every route of `lg.fisher` (products,
matrix, diagonal, blocks, factor, rank, null space, solutions, draws) is compared with $J^\top \Lambda J$ written out
in float64. A model has one matrix, by every route, or an error with a remedy.

Exit status 0: no silent difference and no crash; 1: there was one; 2: the arguments do not fit; 130: interrupted.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import jax
import numpy as np
from lngeom._files import replacing
from rich.console import Console
from rich.progress import Progress

from analysis.fuzz.compare import run, settings
from analysis.fuzz.models import Case, generate
from analysis.fuzz.outcome import FAILURES, OUTCOMES, Outcome
from analysis.progress import timed_columns

PIECE = 40
"""Models of one process: what JAX compiles stays in its memory."""

CLEAR = 10
"""Models after which compiled code is thrown away."""

KEPT = 20
"""Models after which the results are written, so that an interrupted campaign keeps them."""

LIMIT, START = 300.0, 120.0
"""Seconds after which a model counts as hung, and what a process may take to start beside."""


def on_devices(case: Case, devices: int) -> dict[str, Any]:
    """Arguments of `lg.fisher` which divide the samples of a case over devices, in a way its seed decides.

    Args:
        case: the model.
        devices: how many there are.

    Returns:
        A mesh, or the inputs on several devices; nothing for some seeds, and for one device.
    """
    generator = np.random.default_rng([case.seed, 4])
    samples = len(jax.tree.leaves(case.X)[0])
    kind = jax.sharding.AxisType.Auto if generator.random() < 0.5 else jax.sharding.AxisType.Explicit
    count = int(generator.choice([k for k in (1, 2, 4, 8) if k <= devices]))
    if count == 1:
        return {}
    divided = generator.random() < 0.5 and samples % count == 0
    shape = (count // 2, 2) if not divided and count > 2 and generator.random() < 0.3 else (count,)
    names = ("a", "b")[: len(shape)]
    mesh = jax.make_mesh(shape, names, (kind,) * len(shape), devices=jax.devices()[:count])
    if not divided:
        return {"mesh": mesh}
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(names))
    return {"X": jax.tree.map(lambda leaf: jax.device_put(leaf, rows), case.X)}


def examine(seed: int, devices: int = 1) -> Outcome:
    """Generates the model of a seed and compares all its routes.

    Args:
        seed: of the model.
        devices: to divide the samples over.

    Returns:
        What became of it.
    """
    with settings():
        case = generate(seed)
        more = on_devices(case, devices)
    return run(case, **more)


def _piece(seeds: Sequence[int], devices: int, reports: Connection) -> None:
    """A process: examines some seeds, and reports each before and after."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    jax.config.update("jax_disable_most_optimizations", True)  # nearly all the time is compilation
    with contextlib.suppress(BrokenPipeError):  # the parent is gone
        for count, seed in enumerate(seeds, 1):
            reports.send(seed)
            reports.send(examine(seed, devices))
            if count % CLEAR == 0:
                jax.clear_caches()
    reports.close()


@dataclass
class _Worker:
    """A process and what it still has to do."""

    process: Any
    reports: Connection
    left: list[int]
    current: int | None = None
    since: float = field(default_factory=lambda: time.monotonic() + START)


def outcomes(
    seeds: Sequence[int], workers: int, devices: int = 1, limit: float = LIMIT, target: Callable = _piece
) -> Iterator[Outcome]:
    """Examines seeds in processes of their own, which end after `PIECE` of them; one that hangs or dies is a crash.

    Args:
        seeds: of the models.
        workers: processes at a time.
        devices: simulated devices in each.
        limit: seconds for one model.
        target: what a process runs.

    Yields:
        Outcomes, in the order they come.
    """
    context = multiprocessing.get_context("spawn")
    pieces = [list(seeds[k : k + PIECE]) for k in range(0, len(seeds), PIECE)]
    pieces.reverse()
    running: list[_Worker] = []

    def start(piece: list[int]) -> None:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=target, args=(piece, devices, theirs), daemon=True)
        process.start()
        theirs.close()
        running.append(_Worker(process, ours, piece))

    def lost(worker: _Worker, why: str) -> Outcome:
        seed = worker.left.pop(0)
        if worker.left:
            pieces.append(worker.left)
        found = Outcome(seed, "")
        found.worsen("crash", "process", why)
        return found

    try:
        while pieces or running:
            while pieces and len(running) < workers:
                start(pieces.pop())
            ready = wait([w.reports for w in running], timeout=1)
            for worker in list(running):
                if worker.reports in ready:
                    try:
                        report = worker.reports.recv()
                    except EOFError:
                        worker.process.join()
                        running.remove(worker)
                        if worker.left:
                            yield lost(worker, f"the process ended with exit code {worker.process.exitcode}")
                        continue
                    worker.since = time.monotonic()
                    if isinstance(report, Outcome):
                        worker.left.remove(report.seed)
                        yield report
                elif time.monotonic() - worker.since > limit:
                    worker.process.kill()
                    worker.process.join()
                    running.remove(worker)
                    yield lost(worker, f"no answer in {limit:g} s")
    finally:
        for worker in running:
            worker.process.kill()
            worker.process.join()


def summarize(found: Sequence[Outcome]) -> dict[str, Any]:
    """Counts of outcomes, and for each route how often it was compared and its worst residual, with its seed.

    Args:
        found: outcomes.

    Returns:
        The summary; residuals are in units of the tolerance.
    """
    routes: dict[str, dict[str, Any]] = {}
    for outcome in found:
        for route, residual in outcome.residuals.items():
            row = routes.setdefault(route, {"compared": 0, "worst": -1.0, "seed": None})
            row["compared"] += 1
            if residual > row["worst"]:
                row |= {"worst": residual, "seed": outcome.seed}
    counts = Counter(outcome.outcome for outcome in found)
    return {
        "models": len(found),
        "outcomes": {name: counts[name] for name in OUTCOMES},
        "warned": sum(bool(outcome.warned) for outcome in found),
        "seconds of a model": float(np.median([o.seconds for o in found])) if found else None,
        "routes": routes,
    }


def write(found: Sequence[Outcome], configuration: dict[str, Any], path: Path) -> None:
    """Writes the summary and every outcome as JSON.

    Args:
        found: outcomes.
        configuration: of the run.
        path: of the file.
    """
    rows = []
    for outcome in sorted(found, key=lambda o: o.seed):
        row = asdict(outcome)
        row["residuals"] = {
            name: float(f"{r:.2g}") if np.isfinite(r) else "inf" for name, r in row["residuals"].items()
        }
        row |= {"tolerance": float(f"{outcome.tolerance:.2g}"), "seconds": round(outcome.seconds, 2)}
        rows.append(json.dumps(row, ensure_ascii=False))
    summary = summarize(found)
    for row in summary["routes"].values():
        row["worst"] = float(f"{row['worst']:.3g}") if np.isfinite(row["worst"]) else "inf"
    head = json.dumps({"configuration": configuration, "summary": summary}, indent=1, ensure_ascii=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write((head[:-2] + ',\n "cases": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n").encode())


def _print(outcome: Outcome, console: Console) -> None:
    colour = {"silent": "red", "crash": "red", "over-refused": "yellow"}.get(outcome.outcome, "dim")
    console.print(
        f"seed {outcome.seed}: {outcome.outcome}. {outcome.name}",
        style=colour,
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    for route, message in outcome.messages.items():
        console.print(f"    {route}: {message}", markup=False, highlight=False, soft_wrap=True)


def main() -> None:
    """Entry point of `python -m analysis fuzz`."""
    parser = argparse.ArgumentParser(prog="python -m analysis fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", type=int, default=2000, help="number of models")
    parser.add_argument(
        "--first-seed", "--seed", type=int, default=0, help="seed of the first model; the others follow"
    )
    parser.add_argument(
        "--only", type=int, nargs="+", metavar="SEED", help="run these seeds only, and print all details"
    )
    parser.add_argument(
        "--workers", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="number of parallel processes"
    )
    parser.add_argument("--devices", type=int, default=1, help="number of simulated devices that share the samples")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds after which a model counts as hung")
    parser.add_argument("--out", type=Path, default=Path("figures/fuzz.json"), help="file of the results")
    options = parser.parse_args()
    for name in ("models", "workers", "devices"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1; got {getattr(options, name)}")
    if options.first_seed < 0 or min(options.only or [0]) < 0:
        parser.error("seeds must be at least 0")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if options.devices > 1:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={options.devices}"
        os.environ["XLA_FLAGS"] = flags.strip()
    seeds = options.only or range(options.first_seed, options.first_seed + options.models)
    sys.exit(_command(list(seeds), options))


def _command(seeds: list[int], options: argparse.Namespace) -> int:
    console, found = Console(stderr=True), []
    start = time.perf_counter()
    configuration: dict[str, Any] = {"first seed": min(seeds), "models": len(seeds), "devices": options.devices}
    configuration |= {"jax": jax.__version__, "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}

    def keep() -> None:
        configuration["minutes"] = round((time.perf_counter() - start) / 60, 1)
        if not options.only:
            write(found, configuration, options.out)

    with Progress(*timed_columns(), console=console) as bar:
        task = bar.add_task("fuzz", total=len(seeds))
        for outcome in outcomes(seeds, options.workers, options.devices, options.limit):
            found.append(outcome)
            bad = sum(o.outcome in FAILURES for o in found)
            bar.update(task, advance=1, description=f"fuzz, {bad} failures, seed {outcome.seed}")
            if options.only or outcome.outcome in {*FAILURES, "over-refused"}:
                _print(outcome, bar.console)
            if len(found) % KEPT == 0:
                keep()
    keep()
    counts = ", ".join(f"{count} {name}" for name, count in summarize(found)["outcomes"].items())
    console.print(f"{len(found)} models in {configuration['minutes']} min: {counts}", highlight=False)
    return int(any(o.outcome in FAILURES for o in found))

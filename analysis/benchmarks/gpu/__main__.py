"""Layer norm, precision and Fisher products on the accelerator at hand, in nine minutes: `python -m analysis gpu`.

It measures on whatever device JAX finds. Results are written after every task, so that a run that is stopped leaves
what it measured. On an accelerator they are `gpu.json`, `gpu.md` and a figure; on a CPU the same tasks run at toy size
and are called `gpu_toy`, so that they never replace a measurement.

Calls of a kernel are chained inside one program, each on the result of the one before, and a barrier keeps the compiler
from joining them. A rate counts the bytes that must be moved: 2 arrays forward, 5 forward and backward. Small arrays
stay in the cache, so that a rate may exceed that of the memory.

It needs jax, numpy and `lngeom.nn`. What needs more (lineax for `lg.fisher`, torch, Triton through `torch.compile`,
curvlinops) is skipped where it is missing, and the results say so.
"""

import argparse
import os
import sys
import threading
import time
from pathlib import Path

import jax
from lngeom._core.files import check_writable

from analysis.benchmarks.gpu.results import draw
from analysis.benchmarks.gpu.run import Run, about_device, measure
from analysis.benchmarks.gpu.sizes import FULL, TOY


def main() -> None:
    """Measures within the budget, writes results, a table and a figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=9.0, help="budget; results so far stay when it is spent")
    parser.add_argument("--toy", action="store_true", help="at toy size, as on a CPU")
    parser.add_argument("--out", type=Path, default=Path("figures"))
    options = parser.parse_args()
    if not options.minutes > 0:
        parser.error(f"--minutes must be more than 0; got {options.minutes}")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch needs memory on the same device
    check_writable(options.out)
    options.out.mkdir(parents=True, exist_ok=True)
    toy = options.toy or jax.devices()[0].platform == "cpu"
    path = options.out / ("gpu_toy.json" if toy else "gpu.json")
    run = Run(TOY if toy else FULL, path, time.monotonic() + 60 * options.minutes)

    def stop() -> None:
        sys.stderr.write(f"the budget of {options.minutes:g} minutes is spent; what was measured is in {path}\n")
        sys.stderr.flush()
        os._exit(0)

    watch = threading.Timer(60 * options.minutes, stop)
    watch.daemon = True
    watch.start()
    measure(run, lambda line: print(line, file=sys.stderr, flush=True))
    print(path.with_suffix(".md").read_text(encoding="utf-8"))
    try:
        draw(run.rows, path.with_name(f"{path.stem}_rates"), about_device())
    except ImportError as error:
        print(f"no figure: {error}", file=sys.stderr)
    watch.cancel()
    if run.failed:
        sys.exit(1)


if __name__ == "__main__":
    main()

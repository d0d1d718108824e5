"""What a new user waits for, from the import to a described null space: `python -m analysis first_answer`.

Each model runs in a process of its own without a compilation cache. Seconds are of the processor (all threads), which
other work on the machine changes less than those of a clock; programs are those that XLA compiles.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

STAGES = ("import", "fisher", "first product", "rank", "nullspace", "describe")
"""What is timed, in this order, in one process."""

MODELS = ("CNN, nnx", "transformer, nnx", "LN MLP, nnx")
"""Names in `analysis.models.small_models`."""


def measured(name: str, sizes: dict[str, int]) -> dict[str, Any]:
    """All stages of a model in this process.

    Args:
        name: of a model.
        sizes: passed to the function that makes it.

    Returns:
        Seconds of processor and clock, and compiled programs by stage; parameters, nullity, unexplained directions.
    """
    rows: dict[str, list[float]] = {}
    compiled = [0]
    mark = [0.0, time.perf_counter(), 0]

    def stage(which: str) -> None:
        now = [time.process_time(), time.perf_counter(), compiled[0]]
        rows[which] = [b - a for a, b in zip(mark, now, strict=True)]
        mark[:] = [time.process_time(), time.perf_counter(), compiled[0]]

    import jax
    import jax.numpy as jnp
    import lngeom as lg

    stage("import")
    import numpy as np

    from analysis.models.small_models import MODELS as KNOWN

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_enable_compilation_cache", False)
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration_secs, **_: compiled.__setitem__(0, compiled[0] + ("backend_compile" in event))
    )
    foreign = KNOWN[name](**sizes)
    assert foreign.apply is not None
    stage("model")
    F = lg.fisher(foreign.apply, foreign.params, foreign.X, family=foreign.family)
    stage("fisher")
    v = jnp.asarray(np.random.default_rng(0).normal(size=F.in_size()))
    jax.block_until_ready(F @ v)
    stage("first product")
    F.rank()
    stage("rank")
    null = F.nullspace()
    stage("nullspace")
    described = null.describe()
    stage("describe")
    return {
        "parameters": F.in_size(),
        "nullity": null.dimension,
        "unexplained": described.unexplained,
        "stages": {k: rows[k] for k in STAGES},
    }


def alone(name: str, sizes: dict[str, int]) -> dict[str, Any]:
    """The same in a process of its own."""
    given = [sys.executable, "-W", "ignore", "-m", "analysis.benchmarks.first_answer", "--alone", name]
    given += ["--sizes", json.dumps(sizes)]
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    done = subprocess.run(given, capture_output=True, text=True, env=environment, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="part of a model's name")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    parser.add_argument("--sizes", type=json.loads, default={}, help='JSON, such as {"samples": 40}')
    options = parser.parse_args()
    if options.alone:
        sys.stdout.write(json.dumps(measured(options.alone, options.sizes)) + "\n")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "P", "null", "unexplained", *STAGES, title="processor seconds (programs compiled)")
    for name in (m for m in MODELS if options.only in m):
        found = alone(name, options.sizes)
        cells = [f"{cpu:.1f} ({programs})" for cpu, _, programs in found["stages"].values()]
        table.add_row(name, *(str(found[k]) for k in ("parameters", "nullity", "unexplained")), *cells)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    main()

"""What a new user waits for, from the import to a described null space: `python -m analysis first_answer`.

Each model runs in a process of its own without a compilation cache. Seconds of the processor (all threads) change less
than those of a clock where other work is on the machine. Prints one table, and writes `figures/first_answer.json` and,
as a table, `figures/first_answer.md`. It needs the extra `peers`.
"""

import functools
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


def measured(name: str) -> dict[str, Any]:
    """All stages of a model in this process.

    Args:
        name: of a model.

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
    foreign = KNOWN[name]()
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


def alone(name: str) -> dict[str, Any]:
    """The same in a process of its own."""
    given = [sys.executable, "-W", "ignore", "-m", "analysis.benchmarks.first_answer", "--alone", name]
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    done = subprocess.run(given, capture_output=True, text=True, env=environment, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _rows(results: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """A row a model: seconds of the processor, and in brackets those of a clock and compiled programs."""
    found = []
    for name, r in results.items():
        cells = [f"{cpu:.1f} ({clock:.1f}, {programs})" for cpu, clock, programs in r["stages"].values()]
        found.append((name, f"{r['parameters']:,}", str(r["nullity"]), str(r["unexplained"]), *cells))
    return found


def main() -> None:
    """Runs the models and writes their results."""
    if sys.argv[1:2] == ["--alone"]:
        sys.stdout.write(json.dumps(measured(sys.argv[2])) + "\n")
        return
    from analysis.measurements.model_table import ModelTable  # here, since it imports what is timed

    headings = ("model", "P", "null", "unexplained", *STAGES)

    def page(results: dict[str, dict[str, Any]]) -> str:
        return "\n".join(
            [
                "# First answers",
                "",
                "Each model in a process of its own, float64, nothing compiled before. Seconds of the processor, all",
                "threads; in brackets seconds of a clock, and how many programs XLA compiles.",
                "Written by `python -m analysis first_answer`.",
                "",
                *table.markdown(results),
                "",
            ]
        )

    table = ModelTable("first_answer", headings, _rows, page, ("jax", "flax"), 60.0)
    table.command({name: functools.partial(alone, name) for name in MODELS}, (__doc__ or "").splitlines()[0])


if __name__ == "__main__":
    main()

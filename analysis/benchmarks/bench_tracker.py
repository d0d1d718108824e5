"""What recording the geometry costs a training step: `python -m analysis bench_tracker`.

A layer-normalized MLP trained by Adam in float32, batches of 128, with and without `track_geometry`. One step in fifty
is recorded. A process compiles two programs, the plain step and one variant, which take turns of 50 steps in random
order, and gives the median of the variant's time over the plain one's, turn by turn. This is repeated in new processes:
where a process finds its memory moves such a ratio by some percent, for as long as it lives. The overhead is the median
of the processes. The plain step as a variant of its own shows the noise.

Each turn starts from a new state. This, nine processes and eight rounds were chosen after the first results of the
design. It follows one in which six programs shared a process and the cache, whose results disagreed. The goal is an
overhead of at most 3 % for the variant "tracked" on the large network, whose step is near 10 ms.

Not measured here: accelerators.
"""

import argparse
import importlib.metadata
import itertools
import os
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from lngeom import nn
from lngeom._core.files import check_writable
from lngeom.cli.workers import Workers
from lngeom.training import track_geometry

from analysis.store import write_results

NETWORKS = {"large": (784, 1000, 1000, 10), "small": (64, 256, 256, 10)}
LOOPS = ("one call a step", "scan, 4 seeds by vmap")
STEPS = 50


@dataclass(frozen=True)
class Measurement:
    """One variant, in one loop, on one network.

    Attributes:
        network: units of each of its layers.
        loop: one of `LOOPS`; the state is donated.
        variant: one of `variants()`.
        milliseconds: median time of the plain step beside it.
        overheads: of each process, the median of its time over that of the plain step of the same turn, less 1.
        copied: bytes that a step copies before it overwrites them; None in a scan, whose body is not looked into.
        rounds: turns of 50 steps of each program in each process.
    """

    network: tuple[int, ...]
    loop: str
    variant: str
    milliseconds: float
    overheads: tuple[float, ...]
    copied: int | None
    rounds: int

    @property
    def overhead(self) -> float:
        """Median of the processes."""
        return float(np.median(self.overheads))


def variants() -> dict[str, optax.GradientTransformation]:
    """The optimizers that are compared with the plain one, which is the first."""
    adam, weights = optax.adam(1e-3), ("weights0", "weights1")

    def tracked(**settings):
        return track_geometry(adam, learning_rate=1e-3, groups=weights, **settings)

    return {
        "plain, again": adam,
        "tracked": tracked(),
        "tracked by a link": optax.chain(adam, track_geometry(groups=weights)),
        "tracked, every step": tracked(every=1),
    }


def _start(sizes: tuple[int, ...]) -> dict[str, jax.Array]:
    params = {}
    for k, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        normal = jax.random.normal(jax.random.key(k), (inputs, outputs), jnp.float32)
        params |= {f"weights{k}": normal / inputs**0.5, f"bias{k}": jnp.zeros(outputs, jnp.float32)}
        params |= {f"gain{k}": jnp.ones(outputs, jnp.float32)} if k < len(sizes) - 2 else {}
    return params


def _loss(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    last = len(params) // 3
    for k in range(last):
        x = jax.nn.relu(nn.layer_norm(x @ params[f"weights{k}"], params[f"gain{k}"], params[f"bias{k}"]))
    scores = x @ params[f"weights{last}"] + params[f"bias{last}"][None]
    return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()


def _program(sizes: tuple[int, ...], loop: str, optimizer: optax.GradientTransformation) -> tuple[Any, Any]:
    """A compiled program that takes `STEPS` steps in all its calls, and the state it starts from."""
    x = jax.random.normal(jax.random.key(10), (128, sizes[0]), jnp.float32)
    y = jax.random.randint(jax.random.key(11), (128,), 0, sizes[-1])

    def step(carry, _=None):
        params, state = carry
        updates, state = optimizer.update(jax.grad(_loss)(params, x, y), state, params)
        return (optax.apply_updates(params, updates), state), None

    params = _start(sizes)
    carry = (params, optimizer.init(params))
    if loop == LOOPS[0]:
        traced = lambda carry: step(carry)[0]  # noqa: E731
    else:
        carry = jax.tree.map(lambda v: jnp.stack([v] * 4), carry)
        traced = jax.vmap(lambda carry: jax.lax.scan(step, carry, length=STEPS)[0])
    return jax.jit(traced, donate_argnums=0).lower(carry).compile(), carry


def copied_bytes(program: Any) -> int:
    """Bytes of float32 that the main computation of a program copies."""
    text = program.as_text()
    shapes = re.findall(r"f32\[([\d,]*)\]\S* copy\(", text[text.index("\nENTRY ") :])
    return sum(4 * int(np.prod([int(n) for n in shape.split(",") if n])) for shape in shapes)


def _runner(program: Any, carry: Any, calls: int) -> Callable[[], float]:
    def run() -> float:
        # a new state for each turn: both programs then work in the same memory, which the other has just freed
        state = program(jax.block_until_ready(jax.tree.map(jnp.copy, carry)))
        jax.block_until_ready(state)
        start = time.perf_counter()
        for _ in range(calls):
            state = program(state)
        jax.block_until_ready(state)
        return time.perf_counter() - start

    return run


def compare(sizes: tuple[int, ...], loop: str, variant: str, rounds: int) -> tuple[float, float, int | None]:
    """Times one variant against the plain step, in this process.

    Args:
        sizes: units of each layer.
        loop: one of `LOOPS`.
        variant: one of `variants()`.
        rounds: turns of each program.

    Returns:
        Median milliseconds of the plain step, the median overhead, and the bytes that the variant copies.
    """
    single = loop == LOOPS[0]
    programs = [_program(sizes, loop, optimizer) for optimizer in (optax.adam(1e-3), variants()[variant])]
    runners = [_runner(*program, STEPS if single else 1) for program in programs]
    for run in runners:
        run()
    order, times = np.random.default_rng(0), np.zeros((rounds, 2))
    for k in range(rounds):
        for which in order.permutation(2):
            times[k, which] = runners[which]()
    plain, tracked = times.T
    copied = copied_bytes(programs[1][0]) if single else None
    return 1e3 * float(np.median(plain)) / STEPS, float(np.median(tracked / plain)) - 1, copied


def measure(sizes: tuple[int, ...], loop: str, variant: str, rounds: int, processes: int) -> Measurement:
    """Times one variant against the plain step in new processes, one after the other.

    Args:
        sizes: units of each layer.
        loop: one of `LOOPS`.
        variant: one of `variants()`.
        rounds: turns of each program in each process.
        processes: their number.

    Returns:
        The measurement.
    """
    found = []
    for _ in range(processes):
        with Workers(1) as worker:
            found.append(worker.submit(compare, sizes, loop, variant, rounds).result())
    milliseconds, overheads, copied = zip(*found, strict=True)
    return Measurement(sizes, loop, variant, float(np.median(milliseconds)), overheads, copied[0], rounds)


def _write(found: list[Measurement], out: Path) -> None:
    packages = ("jax", "jaxlib", "optax")
    report = {
        "measurements": [asdict(m) | {"overhead": m.overhead} for m in found],
        "cores": len(os.sched_getaffinity(0)),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "accelerators": "not measured",
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    write_results(out, report)


def main() -> None:
    """Runs the benchmark and writes its JSON, after every case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--variants", nargs="+", choices=variants(), default=list(variants()))
    parser.add_argument("--processes", type=int, default=9, help="new processes for each measurement (9)")
    parser.add_argument(
        "--rounds", type=int, default=8, help="for the large network (8); the small one has three times as many"
    )
    parser.add_argument("--out", type=Path, default=Path("figures/bench_tracker.json"))
    options = parser.parse_args()
    check_writable(options.out.parent)
    cases = [
        ("large", LOOPS[0], options.rounds),
        ("small", LOOPS[0], 3 * options.rounds),
        ("small", LOOPS[1], options.rounds),
    ]
    found = []
    for name, loop, rounds in cases:
        for variant in options.variants if name in options.networks else ():
            m = measure(NETWORKS[name], loop, variant, rounds, options.processes)
            found.append(m)
            copied = "" if m.copied is None else f"{m.copied / 2**20:6.1f} MiB copied"
            print(
                f"{name:6} {m.loop:22} {m.variant:20} {m.milliseconds:8.3f} ms {m.overhead:+7.1%} "
                f"[{min(m.overheads):+.1%}, {max(m.overheads):+.1%}] {copied}",
                flush=True,
            )
            _write(found, options.out)


if __name__ == "__main__":
    main()

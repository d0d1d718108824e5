"""What recording the geometry costs a training step: `python -m analysis.bench_tracker`.

A layer-normalized MLP trained by Adam in float32, batches of 128, with and without `track_geometry`, in one process. A
measurement is a run of 50 steps, of which one is recorded where every fiftieth is; all variants take turns in random
order, ten steps at a time, and each is compared with the plain one of its round. The plain one is measured twice: what
lies between the two is noise. XLA may copy weights in the plain step too, where it does not see that their last use
comes before the update; "plain, in order" makes the update wait for all gradients, as the tracker does, and records
nothing. It is what the tracker is to be held against where the plain step is the slower one.

Not measured here: accelerators.
"""

import argparse
import importlib.metadata
import itertools
import json
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
from lngeom._files import check_writable, replacing
from lngeom.training import track_geometry

NETWORKS = {"large": (784, 1000, 1000, 10), "small": (64, 256, 256, 10)}
LOOPS = ("one call a step", "scan, 4 seeds by vmap")
PLAIN = "plain"
STEPS = 50
BLOCK = 10


@dataclass(frozen=True)
class Measurement:
    """One optimizer, in one loop, on one network.

    Attributes:
        network: units of each of its layers.
        loop: one of `LOOPS`; the state is donated.
        variant: one of `variants()`.
        milliseconds: median time of a step, over the rounds.
        overhead: median of its time over that of the plain step of the same round, less 1.
        quartiles: of the same.
        overhead_of_best: smallest time of its rounds over the smallest of the plain one's, less 1.
        temporaries: bytes XLA plans beyond inputs and outputs.
        copied: bytes that a step copies before it overwrites them; None in a scan, whose body is not looked into.
        rounds: how often each variant ran its 50 steps.
    """

    network: tuple[int, ...]
    loop: str
    variant: str
    milliseconds: float
    overhead: float
    quartiles: tuple[float, float]
    overhead_of_best: float
    temporaries: int
    copied: int | None
    rounds: int


def _in_order(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The same optimizer, whose update waits until all gradients are there."""

    def update(updates, state, params=None):
        first = sum(jnp.ravel(g)[0] for g in jax.tree.leaves(updates))
        nothing = jnp.where(first == 1e30, jnp.nan, -0.0)  # practically never so, which XLA does not know
        return optimizer.update(jax.tree.map(lambda g: g + nothing, updates), state, params)

    return optax.GradientTransformation(optimizer.init, update)


def variants() -> dict[str, optax.GradientTransformation]:
    """The optimizers that are compared, the plain one first."""
    adam, weights = optax.adam(1e-3), ("weights0", "weights1")

    def tracked(**settings):
        return track_geometry(adam, learning_rate=1e-3, groups=weights, **settings)

    return {
        PLAIN: adam,
        "plain, again": adam,
        "plain, in order": _in_order(adam),
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
    state = [jax.tree.map(jnp.copy, carry)]

    def run() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            state[0] = program(state[0])
        jax.block_until_ready(state[0])
        return time.perf_counter() - start

    return run


def measure(sizes: tuple[int, ...], loop: str, rounds: int) -> list[Measurement]:
    """Times all variants, which take turns.

    Args:
        sizes: units of each layer.
        loop: one of `LOOPS`.
        rounds: how often each runs its 50 steps.

    Returns:
        One measurement a variant.
    """
    programs = {name: _program(sizes, loop, optimizer) for name, optimizer in variants().items()}
    single = loop == LOOPS[0]
    runners = {name: _runner(*program, BLOCK if single else 1) for name, program in programs.items()}
    for run in runners.values():
        run()
    order, names = np.random.default_rng(0), list(runners)
    times = {name: np.zeros(rounds) for name in names}
    for k in range(rounds):
        for _ in range(STEPS // BLOCK if single else 1):
            for name in order.permutation(names):
                times[name][k] += runners[name]()
    found = []
    for name, (program, _) in programs.items():
        low, median, high = np.percentile(times[name] / times[PLAIN] - 1, (25, 50, 75))
        found.append(
            Measurement(
                network=sizes,
                loop=loop,
                variant=name,
                milliseconds=1e3 * float(np.median(times[name])) / STEPS,
                overhead=float(median),
                quartiles=(float(low), float(high)),
                overhead_of_best=float(times[name].min() / times[PLAIN].min()) - 1,
                temporaries=program.memory_analysis().temp_size_in_bytes,
                copied=copied_bytes(program) if single else None,
                rounds=rounds,
            )
        )
    return found


def _write(found: list[Measurement], out: Path) -> None:
    packages = ("jax", "jaxlib", "optax")
    report = {
        "measurements": [asdict(m) for m in found],
        "cores": len(os.sched_getaffinity(0)),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "accelerators": "not measured",
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as file:
        file.write((json.dumps(report, indent=1) + "\n").encode())


def main() -> None:
    """Runs the benchmark and writes its JSON, after every case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument(
        "--rounds", type=int, default=16, help="for the large network; the small one has three times as many"
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
        if name in options.networks:
            found += measure(NETWORKS[name], loop, rounds)
            for m in found[-len(variants()) :]:
                low, high = m.quartiles
                copied = "" if m.copied is None else f"{m.copied / 2**20:6.1f} MiB copied"
                print(
                    f"{name:6} {m.loop:22} {m.variant:20} {m.milliseconds:8.3f} ms {m.overhead:+7.1%} "
                    f"[{low:+.1%}, {high:+.1%}], of the best {m.overhead_of_best:+.1%} {copied}",
                    flush=True,
                )
            _write(found, options.out)


if __name__ == "__main__":
    main()

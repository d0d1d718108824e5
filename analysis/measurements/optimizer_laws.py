"""Laws of all optimizers of optax, and their equilibria against a simulation: `python -m analysis optimizer_laws`.

Weights of 16 × 16 numbers move under a gradient that is random in time, orthogonal to them and of size 1/‖w‖, as that
of a scale-invariant loss. The tracker says which law an optimizer follows, and where norm and angle will settle. Both
are compared with the means over the last fifth of the steps. Where no formula applies, there must be no prediction.
"""

import argparse
import inspect
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import optax
from lngeom._core.files import check_writable
from rich.console import Console
from rich.progress import Progress

from analysis.progress import timed_columns
from analysis.store import write

RATE, DECAY, SIZE, STEPS = 1e-2, 0.1, 16, 10_000
RIGHT = 0.05
"""Relative error up to which a prediction is right."""

OMITTED = {"lbfgs", "polyak_sgd", "noisy_sgd", "dpsgd"}
"""Optimizers that need the value of the loss, or a key, beside gradients."""


class Found(NamedTuple):
    """What the tracker says of an optimizer, and what the simulation shows.

    Attributes:
        name: of the optimizer.
        law: its law.
        norm: predicted and simulated.
        angle: predicted and simulated.
        remark: why there is no prediction, or no law.
    """

    name: str
    law: str
    norm: tuple[float, float]
    angle: tuple[float, float]
    remark: str

    @property
    def error(self) -> float:
        """The larger relative error of both predictions; NaN where there are none."""
        pairs = (self.norm, self.angle)
        return max(abs(predicted / simulated - 1) for predicted, simulated in pairs)


def decayed(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optimizer with weight decay beside it, multiplied by the rate."""
    return optax.chain(optimizer, optax.add_decayed_weights(-RATE * DECAY))


def optimizers() -> Iterator[tuple[str, Callable[[], optax.GradientTransformation]]]:
    """Every optimizer of optax that takes a learning rate, with weight decay; and some combinations."""
    for module in (optax, optax.contrib):
        for name in sorted(dir(module)):
            make = getattr(module, name)
            if not inspect.isfunction(make) or name.startswith(("_", "scale_by", "inject")) or name in OMITTED:
                continue
            arguments = inspect.signature(make).parameters
            if next(iter(arguments), "") != "learning_rate" or "GradientTransformation" not in _returns(make):
                continue
            given = {"weight_decay": DECAY} if "weight_decay" in arguments else {}
            yield name, lambda make=make, given=given: make(RATE, **given) if given else decayed(make(RATE))
    decay = optax.add_decayed_weights(DECAY)
    yield "L2 before sgd", lambda: optax.chain(decay, optax.sgd(RATE))
    yield "L2 before momentum", lambda: optax.chain(decay, optax.sgd(RATE, momentum=0.9))
    yield "L2 before adam", lambda: optax.chain(decay, optax.adam(RATE))
    yield "decay beside momentum", lambda: optax.chain(optax.trace(0.9), decay, optax.scale(-RATE))
    yield "clipped sgd", lambda: optax.chain(optax.clip_by_global_norm(1e3), decay, optax.sgd(RATE))
    yield "clipped adamw", lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(RATE, weight_decay=DECAY))
    yield (
        "adamw, accumulated",
        lambda: optax.MultiSteps(optax.adamw(RATE, weight_decay=DECAY), 4).gradient_transformation(),
    )
    yield "rate injected", lambda: optax.inject_hyperparams(optax.adamw)(learning_rate=RATE, weight_decay=DECAY)
    yield "lars without momentum", lambda: optax.lars(RATE, weight_decay=DECAY, trust_coefficient=10.0, momentum=0.0)


def _returns(make: Callable) -> str:
    return str(inspect.signature(make).return_annotation)


def simulate(optimizer: optax.GradientTransformation, steps: int, seed: int = 0) -> tuple[Any, np.ndarray, np.ndarray]:
    """The tracker's record at the end, and norms and angles of all steps that move."""
    tracker = lg.training.track_geometry(optimizer, learning_rate=RATE, weight_decay=DECAY, groups=["w"], every=20)
    params = {"w": jax.random.normal(jax.random.key(seed), (SIZE, SIZE)) / SIZE**0.5}

    def step(carry: tuple, key: jax.Array) -> tuple:
        params, state = carry
        w = params["w"]
        g = jax.random.normal(key, w.shape, w.dtype)
        g = (g - w * jnp.vdot(w, g) / jnp.vdot(w, w)) / jnp.linalg.norm(w) / SIZE
        updates, state = tracker.update({"w": g}, state, params)
        after: Any = optax.apply_updates(params, updates)
        turn = after["w"] / jnp.linalg.norm(after["w"]) - w / jnp.linalg.norm(w)
        return (after, state), (jnp.linalg.norm(after["w"]), 2 * jnp.arcsin(jnp.linalg.norm(turn) / 2))

    keys = jax.random.split(jax.random.key(seed + 1), steps)
    state = tracker.init(params)
    (_, state), (norm, angle) = jax.jit(lambda c: jax.lax.scan(step, c, keys))((params, state))
    return state, np.asarray(norm), np.asarray(angle)


def examine(name: str, make: Callable[[], optax.GradientTransformation], steps: int) -> Found:
    """The law of an optimizer, and its predictions beside the simulation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of optimizers that are deprecated, and of what was not said of them
        try:
            state, norm, angle = simulate(make(), steps)
        except Exception as error:  # of optimizers that need more than gradients, or of no known law
            return Found(name, "refused", (np.nan, np.nan), (np.nan, np.nan), str(error).splitlines()[0][:160])
        record = lg.training.read_geometry(state)
    last = slice(-max(1, steps // 5), None)
    moved = angle[last][angle[last] > 1e-3 * np.max(angle[last])]  # between steps, gradients are accumulated
    simulated = float(np.mean(norm[last])), float(np.sqrt(np.mean(moved**2))) if moved.size else 0.0
    predicted = float(record.equilibrium_norm[0]), float(record.equilibrium_angle[0])
    return Found(name, state.optimizer, (predicted[0], simulated[0]), (predicted[1], simulated[1]), record.remarks[0])


def table(rows: list[Found], steps: int) -> str:
    """The rows in Markdown."""
    number = lambda v: "" if np.isnan(v) else f"{v:.4g}"  # noqa: E731
    lines = [
        "# Laws of optimizers",
        "",
        f"`python -m analysis optimizer_laws`: η = {RATE}, λ = {DECAY}, {steps:,} steps, {SIZE * SIZE} weights; optax "
        f"{optax.__version__}. A prediction is of norm and angle at rest, or there is none.",
        "",
        "| optimizer | law | norm: predicted | simulated | angle: predicted | simulated | no prediction since |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (row.name, row.law, *map(number, (*row.norm, *row.angle)), row.remark.replace("|", "/"))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Entry point of `python -m analysis optimizer_laws`."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis optimizer_laws", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each simulation")
    parser.add_argument("--out", type=Path, default=Path("analysis/OPTIMIZERS.md"), help="file of the table")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error(f"--steps must be at least 1; got {options.steps}")
    check_writable(options.out.parent)
    console, rows = Console(stderr=True), []
    with jax.enable_x64(True), Progress(*timed_columns(), console=console) as bar:
        everything = list(optimizers())
        task = bar.add_task("optimizers", total=len(everything))
        for name, make in everything:
            rows.append(examine(name, make, options.steps))
            bar.update(task, advance=1, description=name)
    write(options.out, table(rows, options.steps))
    wrong = [row.name for row in rows if row.error > RIGHT]
    console.print(
        f"{len(rows)} optimizers, {sum(row.error <= RIGHT for row in rows)} with a prediction, wrong: {wrong or 'none'}"
    )
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()

"""What one training step at the paper's sizes takes: parameters, time, memory."""

import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from analysis.experiments.experiment import Experiment
from analysis.experiments.networks import parameters


@dataclass(frozen=True)
class Cost:
    """Cost of one full-size training step.

    Attributes:
        name: experiment and arm.
        parameters: of the model.
        seconds: of a step, compiled.
        gigabytes: that the compiled step needs: arguments, results and temporaries.
        loss: of the step.
    """

    name: str
    parameters: int
    seconds: float
    gigabytes: float
    loss: float


def measure(experiment: Experiment, arm: str | None = None) -> Cost:
    """Takes two full-size training steps on made-up data, and measures the second.

    Args:
        experiment: the experiment.
        arm: the arm; the last by default.

    Returns:
        The cost.

    Raises:
        ValueError: if the experiment has no made-up data, or a loss is not finite.
    """
    if experiment.synthetic is None:
        raise ValueError(f"{experiment.name} has no made-up data of its full size")
    arm = arm or list(experiment.arms)[-1]
    settings, key = experiment.full, jax.random.key(0)
    data = jax.tree.map(jnp.asarray, experiment.synthetic(settings))
    task = experiment.task(settings, experiment.arms[arm], data)
    state = jax.jit(task.init)(key)
    step = jax.jit(task.step, donate_argnums=0).lower(state, key, data).compile()
    used = step.memory_analysis()
    size = sum(getattr(used, f"{part}_size_in_bytes", 0) for part in ("argument", "temp"))
    count = parameters(state.model)
    state, _ = step(state, key, data)
    jax.block_until_ready(state)
    start = time.perf_counter()
    state, loss = step(state, key, data)
    jax.block_until_ready(state)
    seconds = time.perf_counter() - start
    if not np.isfinite(loss):
        raise ValueError(f"{experiment.name}, {arm}: the loss of a full-size step is {loss}")
    return Cost(f"{experiment.name}: {arm}", count, seconds, size / 2**30, float(loss))


def table(costs: list[Cost]) -> str:
    """The costs as Markdown."""
    lines = ["| experiment | parameters | step | memory |", "|---|---|---|---|"]
    lines += [f"| {c.name} | {c.parameters / 1e6:.2f} M | {c.seconds:.2f} s | {c.gigabytes:.2f} GiB |" for c in costs]
    return "\n".join(lines)

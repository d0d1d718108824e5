"""Digits read row by row by a recurrent network, with layer norm and without: the effect on real data."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float
from lngeom import nn
from lngeom.claims.comparison import TrainingStatement
from lngeom.nn.recurrent import AbstractCell

from analysis.experiments.datasets import Digits, bundled_digits, made_up_digits
from analysis.experiments.experiment import Experiment, Panel, Settings
from analysis.experiments.loaders import assemble
from analysis.experiments.loop import plain_task
from analysis.experiments.networks import Dense, cell, classification_metrics, negative_log_likelihood, rows


@dataclass(frozen=True)
class RowsSettings(Settings):
    """Sizes; `steps` are those at the larger batch."""

    hidden: int = 64
    rows: int = 8
    rate: float = 1e-3
    batch: int = 64
    small_batch: int = 4
    small_batch_steps: int = 2000


@dataclass(frozen=True)
class FullSettings(RowsSettings):
    """Sizes on MNIST, and how many of its images are trained on."""

    train: int = 55_000


class Arm(NamedTuple):
    """Which cell, normalized or not, at which batch size, and whether weights start scaled to their inputs."""

    kind: Any
    normalized: bool
    small_batch: bool = False
    scaled_start: bool = False


class Reader(eqx.Module):
    """A recurrent cell over the rows of an image, and a linear readout of its last state."""

    cell: AbstractCell
    readout: Dense
    rows: int = eqx.field(static=True)

    def __call__(self, images: Float[Array, "B D"]) -> Float[Array, "B 10"]:
        """Logits."""
        sequence = jnp.swapaxes(images.reshape(images.shape[0], self.rows, -1), 0, 1)
        state, _ = nn.unroll(self.cell, sequence)
        return self.readout(self.cell.output(state))


def task(settings: RowsSettings, arm: Arm, data: Digits):
    """Training of one arm."""
    batch = settings.small_batch if arm.small_batch else settings.batch
    inputs = data.train_images.shape[1] // settings.rows

    def init(key):
        keys = jax.random.split(key)
        made = cell(arm.kind, arm.normalized, inputs, settings.hidden, key=keys[0], scaled_start=arm.scaled_start)
        return Reader(made, Dense(settings.hidden, 10, key=keys[1]), settings.rows)

    def loss(model, key, data):
        chosen = rows(key, data.train_images.shape[0], batch)
        return jnp.mean(negative_log_likelihood(model(data.train_images[chosen]), data.train_labels[chosen]))

    def evaluate(model, data):
        return classification_metrics(model(data.test_images), data.test_labels, "test ")

    return plain_task(init, loss, optax.adam(settings.rate), evaluate)


VARIANTS = {"batch 64": {}, "batch 4": {"small_batch": True}, "scaled start": {"scaled_start": True}}
"""Batches of 64 and 4 from the start of the reference code, and batches of 64 from normal weights of variance 1/D."""

ARMS = {
    f"{kind}{' + LN' if normalized else ''}, {name}": Arm(kind, normalized, **variant)
    for name, variant in VARIANTS.items()
    for kind in ("GRU", "LSTM")
    for normalized in (False, True)
}

PAPER = "recurrent networks benefit the most, for small mini-batches too"
STATEMENTS = tuple(
    TrainingStatement(
        claim=f"experiments.recurrent_digits{part}",
        text=f"{kind} with layer norm, {which}: at most {bound:g} of the steps to 5 % test error",
        paper=PAPER,
        treated=f"{kind} + LN, {which}",
        baseline=f"{kind}, {which}",
        metric="test error",
        target=0.05,
        bound=bound,
    )
    for kind, which, bound, part in (
        ("GRU", "batch 64", 0.6, ""),
        ("LSTM", "batch 64", 1.0, ""),
        ("GRU", "batch 4", 0.6, ""),
        ("LSTM", "batch 4", 1.0, ""),
        ("GRU", "scaled start", 1.0, ".scaled_start"),
        ("LSTM", "scaled start", 1.0, ".scaled_start"),
        ("GRU", "scaled start", 0.6, ".scaled_start.as_much"),
    )
)

EXPERIMENT = Experiment(
    name="rows_of_digits",
    title="Digits read row by row",
    source="Sections 3.1 and 7",
    arms=ARMS,
    small=RowsSettings(steps=800, every=10),
    full=FullSettings(steps=20_000, every=100, hidden=256, rows=28, small_batch_steps=100_000),
    data=lambda settings: bundled_digits(),
    load=assemble.mnist,
    files="the four IDX files of MNIST, as they are or gzipped, or mnist.npz of Keras",
    task=task,
    length=lambda s, arm: (s.small_batch_steps, 2 * s.every) if arm.small_batch else (s.steps, s.every),
    cost=1.7,
    statements=STATEMENTS,
    panels=tuple(
        Panel(
            "test error",
            f"{kind}, {name}",
            "test error",
            arms := (f"{kind}, {name}", f"{kind} + LN, {name}"),
            log=True,
            labels=dict(zip(arms, ("no normalization", "layer norm"), strict=True)),
        )
        for kind in ("GRU", "LSTM")
        for name in VARIANTS
    ),
    synthetic=lambda settings: made_up_digits(1000, 100, 784),
    note="Real 8 × 8 digits, one row of pixels a step.",
)

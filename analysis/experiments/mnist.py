"""Permutation-invariant digits (Section 6.6, Figure 6): layer norm, batch norm and none, at two batch sizes.

The paper's batch norm stands on all layers, the logits included. The arm that leaves the logits alone, as layer
norm does, tells what of the difference comes from there.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float
from lngeom import nn
from lngeom.claims.comparison import TrainingStatement

from analysis.experiments.datasets import Digits, bundled_digits, made_up_digits
from analysis.experiments.experiment import Experiment, Panel, Real, Settings
from analysis.experiments.loaders import assemble
from analysis.experiments.loop import gradient_task
from analysis.experiments.networks import Dense, classification_metrics, fresh_statistics, negative_log_likelihood, rows


@dataclass(frozen=True)
class MLPSettings(Settings):
    """Sizes; `steps` are those at the larger batch."""

    hidden: int = 256
    rate: float = 1e-3
    batch: int = 128
    small_batch: int = 4
    small_batch_steps: int = 2000
    small_batch_every: int = 20
    train: int = 1437


class Arm(NamedTuple):
    """Which normalization, on which layers, at which batch size."""

    norm: str
    on_logits: bool
    small_batch: bool


class Layer(eqx.Module):
    """An affine map and what normalizes it."""

    dense: Dense
    norm: nn.LayerNorm | nn.BatchNorm | None

    def __call__(self, x, running, training):
        """Summed inputs, normalized, and the statistics to store."""
        a = self.dense(x)
        if isinstance(self.norm, nn.BatchNorm):
            return self.norm(a, running, training=training)
        return (a if self.norm is None else self.norm(a)), running


class MLP(eqx.Module):
    """Two hidden layers of rectified units, and logits."""

    layers: list[Layer]

    def __call__(self, x: Float[Array, "B D"], running: list, *, training: bool) -> tuple[Float[Array, "B 10"], list]:
        """Logits, and statistics to store."""
        stored = []
        for i, layer in enumerate(self.layers):
            x, statistics = layer(x if i == 0 else jax.nn.relu(x), running[i], training)
            stored.append(statistics)
        return x, stored


def network(settings: MLPSettings, arm: Arm, inputs: int, key) -> tuple[MLP, list]:
    """The network of one arm, and the statistics it starts with."""
    widths = (inputs, settings.hidden, settings.hidden, 10)
    layers, running = [], []
    for i, ((d, h), k) in enumerate(zip(pairwise(widths), jax.random.split(key, 3), strict=True)):
        norm = None
        if i < 2 or arm.on_logits:
            if arm.norm == "layer norm":
                norm = nn.LayerNorm(h)
            elif arm.norm == "batch norm":
                norm = nn.BatchNorm(h, unbiased=arm.small_batch, momentum=0.99 if arm.small_batch else 0.9)
        layers.append(Layer(Dense(d, h, key=k, scale=2**0.5), norm))
        running.append(fresh_statistics(h) if isinstance(norm, nn.BatchNorm) else None)
    return MLP(layers), running


EVALUATED = 10_000
"""Training images on which the training NLL is evaluated, at most: all of them would take longer than an epoch."""


def task(settings: MLPSettings, arm: Arm, data: Digits):
    """Training of one arm."""
    batch = settings.small_batch if arm.small_batch else settings.batch

    def init(key):
        return network(settings, arm, data.train_images.shape[1], key)

    def loss(model, running, key, data):
        chosen = rows(key, data.train_images.shape[0], batch)
        logits, running = model(data.train_images[chosen], running, training=True)
        return jnp.mean(negative_log_likelihood(logits, data.train_labels[chosen])), running

    def evaluate(model, running, data):
        known = data.train_images[:EVALUATED], data.train_labels[:EVALUATED]
        sets = {"train ": known, "test ": (data.test_images, data.test_labels)}
        found = {}
        for name, (images, labels) in sets.items():
            found |= classification_metrics(model(images, running, training=False)[0], labels, name)
        return found

    return gradient_task(init, loss, optax.adam(settings.rate), evaluate)


NORMS = {
    "none": ("none", False),
    "BN on all layers": ("batch norm", True),
    "BN on hidden layers": ("batch norm", False),
    "LN on hidden layers": ("layer norm", False),
}
ARMS = {
    f"{name}, batch {4 if small else 128}": Arm(*norm, small) for small in (False, True) for name, norm in NORMS.items()
}

FASTER = "faster convergence than batch norm on all layers"
STATEMENTS = (
    *(
        TrainingStatement(
            claim=f"experiments.mnist{part}",
            text=f"layer norm, batch {size}: fewer steps to train NLL 0.1 than {than}",
            paper=paper,
            treated=f"LN on hidden layers, batch {size}",
            baseline=f"{than}, batch {size}",
            metric="train NLL",
            target=0.1,
        )
        for size, than, paper, part in (
            (128, "BN on all layers", FASTER, ""),
            (4, "BN on all layers", FASTER, ""),
            (128, "BN on hidden layers", "not compared", ".hidden_batch_norm_128"),
            (4, "BN on hidden layers", "not compared", ".hidden_batch_norm_4"),
            (128, "none", "not compared", ".none"),
            (4, "none", "not compared", ".none"),
        )
    ),
    *(
        TrainingStatement(
            claim=f"experiments.mnist.test_error_{size}",
            text=f"layer norm, batch {size}: lower best test error than BN on all layers",
            paper="lower test error in Figure 6",
            treated=f"LN on hidden layers, batch {size}",
            baseline=f"BN on all layers, batch {size}",
            metric="test error",
            measure="best",
        )
        for size in (128, 4)
    ),
)

FULL = MLPSettings(
    steps=25_800, every=430, hidden=1000, train=55_000, small_batch_steps=825_000, small_batch_every=13_750
)
"""Sixty epochs at both batch sizes; the real version of the protocol has ten at batch 4."""


def panels(metric: str, label: str) -> tuple[Panel, ...]:
    """Two panels of a curve, one for each batch size."""
    return tuple(
        Panel(
            metric,
            f"batch {size}",
            label,
            tuple(f"{name}, batch {size}" for name in NORMS),
            log=True,
            labels={f"{name}, batch {size}": name for name in NORMS},
        )
        for size in (128, 4)
    )


EXPERIMENT = Experiment(
    name="mnist",
    title="Permutation-invariant digits",
    source="Section 6.6, Figure 6",
    arms=ARMS,
    small=MLPSettings(steps=400, every=4),
    full=FULL,
    data=lambda settings: bundled_digits(settings.train),
    task=task,
    length=lambda s, arm: (s.small_batch_steps, s.small_batch_every) if arm.small_batch else (s.steps, s.every),
    load=assemble.mnist,
    files="the four IDX files of MNIST, as they are or gzipped, or mnist.npz of Keras",
    real=Real(
        replace(FULL, small_batch_steps=137_500, small_batch_every=2750),
        assemble.mnist,
        "the four IDX files of MNIST, as they are or gzipped, or mnist.npz of Keras",
        cost=7.0,
        note="MNIST and the paper's network; at batch 4, 10 epochs of the paper's 60.",
        panels=panels("train NLL", "train NLL, nats") + panels("test error", "test error"),
    ),
    cost=1.1,
    statements=STATEMENTS,
    panels=panels("train NLL", "train NLL, nats"),
    synthetic=lambda settings: made_up_digits(2000, 100, 784),
    note="A 64-256-256-10 network on real 8 × 8 digits; NLL with stored statistics. "
    "Test errors, whose bands overlap, are not drawn.",
)

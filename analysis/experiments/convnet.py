"""A convolutional network with no normalization, batch norm and layer norm, and the paper's explanation (Section 6.7).

The explanation: units whose receptive fields lie near the border of the image "are rarely turned on and thus have
very different statistics" from the others of their layer. It is measured: how often units at the border and inside
are on, and the spread of their means, in the network without normalization.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from lngeom import nn
from lngeom.claims.comparison import TrainingStatement

from analysis.experiments.datasets import Digits, bundled_digits, made_up_digits
from analysis.experiments.experiment import Experiment, Panel, Settings
from analysis.experiments.loaders import assemble
from analysis.experiments.loop import Run, gradient_task
from analysis.experiments.networks import Dense, classification_metrics, fresh_statistics, negative_log_likelihood, rows


@dataclass(frozen=True)
class ConvSettings(Settings):
    """Sizes."""

    side: int = 8
    channels: tuple[int, ...] = (8, 8, 16, 16)
    hidden: int = 32
    rate: float = 3e-3
    batch: int = 128
    train: int = 1437


class Arm(NamedTuple):
    """Which normalization."""

    norm: str


def patches(x: Float[Array, "B S S C"]) -> Float[Array, "B S S 9*C"]:
    """The 3 × 3 neighbourhood of every position; convolution is then a matrix product, which batches over seeds."""
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    side = x.shape[1]
    return jnp.concatenate([padded[:, i : i + side, j : j + side] for i in range(3) for j in range(3)], -1)


def largest_of_four(x: Float[Array, "B S S C"]) -> Float[Array, "B S//2 S//2 C"]:
    """The largest of every 2 × 2 positions; of equals, the first takes the gradient.

    `jnp.max` finds where its gradient goes by comparison with the maximum. XLA may compute the operand anew and round
    it otherwise. Then no element is equal, and the gradient is NaN.
    """

    def larger(a, b):
        return jnp.where(a >= b, a, b)

    pairs = larger(x[:, :, ::2], x[:, :, 1::2])
    return larger(pairs[:, ::2], pairs[:, 1::2])


class ConvNet(eqx.Module):
    """3 × 3 convolutions, with a 2 × 2 maximum after every second, then a hidden layer and logits."""

    convolutions: list[Dense]
    hidden: Dense
    readout: Dense
    norms: list[Any]
    side: int = eqx.field(static=True)

    def __call__(self, images: Float[Array, "B D"], running: list, training: bool):
        """Logits, statistics to store, and the summed inputs of every convolution before normalization."""
        x = images.reshape(-1, self.side, self.side, 1)
        stored, summed = [], []

        def normalize(a, i):
            norm = self.norms[i]
            if isinstance(norm, nn.BatchNorm):
                a, statistics = norm(a, running[i], training=training)
                stored.append(statistics)
                return a
            stored.append(None)
            if norm is None:
                return a
            return norm(a.reshape(a.shape[0], -1)).reshape(a.shape)

        for i, convolution in enumerate(self.convolutions):
            a = convolution(patches(x))
            summed.append(a)
            x = jax.nn.relu(normalize(a, i))
            if i % 2 == 1:
                x = largest_of_four(x)
        a = self.hidden(x.reshape(x.shape[0], -1))
        return self.readout(jax.nn.relu(normalize(a, len(self.convolutions)))), stored, summed


def network(settings: ConvSettings, arm: Arm, key) -> tuple[ConvNet, list]:
    """The network of one arm and the statistics it starts with.

    Layer norm takes its statistics over all units of a layer, channels and positions, as the paper has it, with gain
    and bias of each unit.
    """
    keys = jax.random.split(key, len(settings.channels) + 2)
    widths, side, convolutions, units = (1, *settings.channels), settings.side, [], []
    for i, (c, d) in enumerate(pairwise(widths)):
        convolutions.append(Dense(9 * c, d, key=keys[i], scale=2**0.5))
        units.append((d, side * side * d))
        side = side // 2 if i % 2 == 1 else side
    hidden = Dense(side * side * widths[-1], settings.hidden, key=keys[-2], scale=2**0.5)
    units.append((settings.hidden, settings.hidden))
    made = {
        "none": lambda n: None,
        "batch norm": lambda n: nn.BatchNorm(n[0]),
        "layer norm": lambda n: nn.LayerNorm(n[1]),
    }[arm.norm]
    norms = [made(n) for n in units]
    running = [fresh_statistics(n[0]) if arm.norm == "batch norm" else None for n in units]
    return ConvNet(convolutions, hidden, Dense(settings.hidden, 10, key=keys[-1]), norms, settings.side), running


def task(settings: ConvSettings, arm: Arm, data: Digits):
    """Training of one arm; batch norm is evaluated with the statistics of all training images."""

    def init(key):
        return network(settings, arm, key)

    def loss(model, running, key, data):
        chosen = rows(key, data.train_images.shape[0], settings.batch)
        logits, running, _ = model(data.train_images[chosen], running, True)
        return jnp.mean(negative_log_likelihood(logits, data.train_labels[chosen])), running

    def evaluate(model, running, data):
        statistics = model(data.train_images, [None] * len(running), True)[1]
        logits, _, _ = model(data.test_images, statistics, False)
        return classification_metrics(logits, data.test_labels, "test ")

    return gradient_task(init, loss, optax.adam(settings.rate), evaluate)


def border_statistics(summed: Float[np.ndarray, "S B P P C"]) -> dict[str, Any]:
    r"""How units at the border of the image differ from those inside, in one layer.

    Args:
        summed: summed inputs of a layer, for each seed.

    Returns:
        For each seed: how often units are on at the border and inside; and the part of the variance of the units'
        means, within a channel, that lies between border and inside (between 0 and 1).
    """
    size = summed.shape[2]
    inside = np.zeros((size, size), bool)
    inside[1:-1, 1:-1] = True
    on, mean = (summed > 0).mean(1), summed.mean(1)
    centered = mean - mean.mean((1, 2), keepdims=True)
    share = inside.mean()
    between = share * centered[:, inside].mean(1) ** 2 + (1 - share) * centered[:, ~inside].mean(1) ** 2
    return {
        "on at the border": on[:, ~inside].mean((1, 2)).round(4).tolist(),
        "on inside": on[:, inside].mean((1, 2)).round(4).tolist(),
        "rarely on (< 1 %) at the border": (on[:, ~inside] < 0.01).mean((1, 2)).round(4).tolist(),
        "rarely on (< 1 %) inside": (on[:, inside] < 0.01).mean((1, 2)).round(4).tolist(),
        "variance explained by the border": (between.sum(1) / (centered**2).mean((1, 2)).sum(1)).round(4).tolist(),
    }


def finish(settings: ConvSettings, data: Digits, runs: Mapping[str, Run]) -> dict[str, Any]:
    """Statistics of units at the border, before training and after, without normalization."""
    found = {}
    arm = Arm("none")
    trained = runs["none"].state
    start = jax.vmap(lambda s: network(settings, arm, jax.random.fold_in(jax.random.key(s), 0)))(
        jnp.asarray(runs["none"].seeds, jnp.uint32)
    )
    running, images = [None] * (len(settings.channels) + 1), jnp.asarray(data.test_images)
    summed_inputs = jax.jit(jax.vmap(lambda model: model(images, running, False)[2]))
    for when, model in (("before training", start[0]), ("after training", trained.model)):
        layers = summed_inputs(model)
        found[when] = {
            f"convolution {i + 1}": border_statistics(np.asarray(a)) for i, a in enumerate(layers) if a.shape[2] > 2
        }
    return {"units at the border": found}


BEST = "batch normalization outperforms the other methods"
STATEMENTS = tuple(
    TrainingStatement(
        claim=f"experiments.convolutions{part}",
        text=f"{treated}: fewer steps to 5 % test error than {baseline}",
        paper=paper,
        treated=treated,
        baseline=baseline,
        metric="test error",
        target=0.05,
    )
    for treated, baseline, paper, part in (
        ("layer norm", "none", "a speedup over the baseline", ""),
        ("batch norm", "none", BEST, ".batch_norm"),
        ("batch norm", "layer norm", BEST, ".batch_norm"),
    )
)

EXPERIMENT = Experiment(
    name="convnet",
    title="Convolutional network",
    source="Section 6.7",
    arms={"none": Arm("none"), "layer norm": Arm("layer norm"), "batch norm": Arm("batch norm")},
    small=ConvSettings(steps=120, every=1),
    full=ConvSettings(steps=25_800, every=430, side=28, channels=(32, 32, 64, 64), hidden=256, rate=1e-3, train=55_000),
    data=lambda settings: bundled_digits(settings.train),
    task=task,
    load=assemble.mnist,
    files="the four IDX files of MNIST, as they are or gzipped, or mnist.npz of Keras",
    cost=20.0,
    statements=STATEMENTS,
    panels=(Panel("test error", "Test error", "test error", log=True),),
    finish=finish,
    synthetic=lambda settings: made_up_digits(1000, 32, 784),
    note="Four convolutions and a hidden layer on real 8 × 8 digits. Test NLLs, whose bands overlap, are not drawn.",
)

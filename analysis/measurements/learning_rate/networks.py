"""Networks on digits, tracked as they train: an MLP, and a GRU that reads by rows."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from lngeom import nn
from lngeom.claims.problem import NORMALIZERS
from lngeom.training import read_geometry, track_geometry

from analysis.experiments.datasets import bundled_digits
from analysis.experiments.loop import Task, train

Part = dict[str, Any]

CHECKPOINT_SECONDS = 5.0


@dataclass(frozen=True)
class Sizes:
    """Sizes of all parts.

    Attributes:
        steps: training steps of the networks.
        every: steps between two records.
        seeds: runs of each.
        hidden: units of a layer.
        batch: samples of a minibatch.
        edge_steps: steps of gradient descent on all of the data.
    """

    steps: int = 400
    every: int = 10
    seeds: int = 3
    hidden: int = 32
    batch: int = 64
    edge_steps: int = 20_000


SMALL = Sizes()
FULL = Sizes(steps=4000, every=40, seeds=5, hidden=64, edge_steps=100_000)


def digit_arrays() -> dict[str, jax.Array]:
    """Images of mean zero and unit mean square, without the pixels that are constant."""
    data = bundled_digits()
    keep = data.train_images.std(0) > 0
    center, scale = data.train_images[:, keep].mean(0), data.train_images[:, keep].std()
    images = (data.train_images[:, keep].astype(np.float64) - center) / scale
    return {"x": jnp.asarray(images), "y": jnp.asarray(data.train_labels)}


def cross_entropy(logits, labels):
    """Mean over the samples, in nats."""
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


def mlp(hidden: int, inputs: int, key):
    """Parameters of an MLP with two normalized layers: w1 and w2 are scale-invariant."""
    keys = jax.random.split(key, 3)
    normal = lambda k, rows, columns: jax.random.normal(k, (rows, columns), float) / columns**0.5  # noqa: E731
    return {
        "w1": normal(keys[0], hidden, inputs),
        "w2": normal(keys[1], hidden, hidden),
        "g1": jnp.ones(hidden, float),
        "g2": jnp.ones(hidden, float),
        "b1": jnp.zeros(hidden, float),
        "b2": jnp.zeros(hidden, float),
        "w3": normal(keys[2], 10, hidden),
        "b3": jnp.zeros(10, float),
    }


def mlp_logits(params, x, normalizer: str = "ln"):
    """Outputs [N 10]."""
    for k in "12":
        x = jnp.tanh(NORMALIZERS[normalizer](params[f"w{k}"], x) * params[f"g{k}"][None] + params[f"b{k}"][None])
    return x @ params["w3"].T + params["b3"][None]


class Reader(eqx.Module):
    """A layer-normalized GRU over the eight rows of an image, and a readout."""

    cell: nn.LayerNormGRU
    readout: jax.Array

    def __call__(self, x):
        """Logits [N 10]."""
        state, _ = nn.unroll(self.cell, jnp.swapaxes(x.reshape(len(x), 8, 8), 0, 1))
        return state @ self.readout.T


def make_task(sizes: Sizes, init: Callable, logits: Callable, optimizer) -> Task:
    """Minibatches drawn with replacement; the record of the tracker at each evaluation."""

    def loss(params, x, y):
        return cross_entropy(logits(params, x), y)

    def start(key):
        params = init(key)
        return params, optimizer.init(params)

    def step(state, key, data):
        rows = jax.random.randint(key, (sizes.batch,), 0, len(data["x"]))
        params, memory = state
        value, gradient = jax.value_and_grad(loss)(params, data["x"][rows], data["y"][rows])
        updates, memory = optimizer.update(gradient, memory, params)
        return (optax.apply_updates(params, updates), memory), value

    def evaluate(state, data):
        found = read_geometry(state[1])
        names = ("norm", "angle", "effective_learning_rate", "radial_spread", "equilibrium_angle", "equilibrium_norm")
        return {f"{name}/{g}": getattr(found, name)[k] for name in names for k, g in enumerate(found.names)} | {
            "train error": jnp.mean((jnp.argmax(logits(state[0], data["x"]), -1) != data["y"]).astype(float))
        }

    return Task(start, step, evaluate)


def train_network(name: str, task: Task, sizes: Sizes, data, folder: Path | None, progress) -> Part:
    """Trains and gives the curves; refuses a run that diverged.

    Raises:
        ValueError: if the loss of a seed was NaN or infinite.
    """
    with jax.numpy_dtype_promotion("standard"):
        run = train(
            task,
            seeds=range(sizes.seeds),
            steps=sizes.steps,
            every=sizes.every,
            data=data,
            checkpoint=folder and folder / f"{name}.checkpoint",
            resume=True,
            checkpoint_seconds=CHECKPOINT_SECONDS,
            configuration={"run": name, "sizes": sizes.__dict__},
            progress=progress and progress(name),
        )
    if (run.diverged_at >= 0).any():
        raise ValueError(
            f"the run {name!r} diverged: its loss was NaN or infinite first at step {run.diverged_at.max()}; "
            "lower its learning rate"
        )
    return {"steps": run.steps} | run.curves


def _decayed(decay: float):
    return optax.add_decayed_weights(decay, mask=_mask)


def _mask(params: Any) -> Any:
    return {k: k in {"w1", "w2"} for k in params}


OPTIMIZERS: dict[str, tuple[str, float, float, Callable, dict[str, Any]]] = {
    "SGD": ("sgd", 0.5, 0.004, lambda rate, decay: optax.chain(_decayed(decay), optax.sgd(rate)), {}),
    "momentum": (
        "momentum",
        0.1,
        0.002,
        lambda rate, decay: optax.chain(_decayed(decay), optax.sgd(rate, momentum=0.9)),
        {"momentum": 0.9},
    ),
    "AdamW": ("adamw", 0.01, 0.1, lambda rate, decay: optax.adamw(rate, weight_decay=decay, mask=_mask), {}),
    "Lion": (
        "lion",
        0.003,
        0.3,
        lambda rate, decay: optax.lion(rate, weight_decay=decay, mask=_mask),
        {"momentum": 0.9, "b2": 0.99},
    ),
}
"""Kind, rate, decay, what makes it, and its settings, by name; ηλ is so small that the predictions at rest apply."""


def tracked(name: str, with_decay: bool, groups=("w1", "w2")):
    """An optimizer of `OPTIMIZERS` with a record of the geometry of these weights."""
    kind, rate, decay, make, settings = OPTIMIZERS[name]
    decay = decay if with_decay else 0.0
    return track_geometry(
        make(rate, decay), learning_rate=rate, weight_decay=decay, kind=kind, groups=groups, every=1, **settings
    )

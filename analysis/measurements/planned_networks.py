"""The networks on which `training_plan` measures, with their data."""

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from lngeom import nn
from sklearn.datasets import load_digits

SEED = 0


class Task(NamedTuple):
    """A network and its data.

    Attributes:
        params: at the start.
        apply: (params, inputs) → outputs.
        batch: key → (inputs, labels).
    """

    params: Any
    apply: Callable
    batch: Callable


def _normal(key: jax.Array, *shape: int) -> jax.Array:
    return jax.random.normal(key, shape, jnp.float32) / shape[0] ** 0.5


def transformer(width: int, layers: int, heads: int, context: int, batch: int) -> Task:
    """The transformer, on the sources of the standard library.

    Args:
        width: of the stream.
        layers: how many blocks.
        heads: of attention.
        context: characters of a sample.
        batch: samples of a batch.

    Returns:
        The task.
    """
    folder = Path(inspect.getfile(os)).parent
    text = b"".join(p.read_bytes() for p in sorted(folder.glob("*.py")))[: 4 * 2**20]
    data = jnp.asarray(np.minimum(np.frombuffer(text, np.uint8), 127), jnp.int32)
    keys = iter(jax.random.split(jax.random.key(SEED), 3 + 6 * layers))
    sizes = {"q": (width, width), "k": (width, width), "v": (width, width), "o": (width, width)}
    sizes |= {"up": (width, 4 * width), "down": (4 * width, width)}
    blocks = [
        {name: _normal(next(keys), *shape) for name, shape in sizes.items()}
        | {"gain": jnp.ones(width), "gain_up": jnp.ones(width)}
        for _ in range(layers)
    ]
    params = {"embed": _normal(next(keys), 128, width), "positions": 0.1 * _normal(next(keys), context, width)}
    params |= {"blocks": blocks, "gain": jnp.ones(width), "head": _normal(next(keys), width, 128)}
    causal = jnp.tril(jnp.ones((context, context), bool))

    def split(x):
        return x.reshape(*x.shape[:-1], heads, -1).swapaxes(-2, -3)

    def apply(p, tokens):
        x = p["embed"][tokens] + p["positions"]
        for b in p["blocks"]:
            n = nn.rms_norm(x, b["gain"], eps=1e-8)
            q, k = (nn.rms_norm(split(n @ b[name]), eps=1e-8) for name in ("q", "k"))
            scores = jnp.where(causal, q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5, -1e9)
            mixed = (jax.nn.softmax(scores) @ split(n @ b["v"])).swapaxes(-2, -3).reshape(x.shape)
            x = x + mixed @ b["o"]
            x = x + jax.nn.gelu(nn.rms_norm(x, b["gain_up"], eps=1e-8) @ b["up"]) @ b["down"]
        return nn.rms_norm(x, p["gain"], eps=1e-8) @ p["head"]

    def draw(key):
        starts = jax.random.randint(key, (batch, 1), 0, data.size - context - 1)
        rows = data[starts + jnp.arange(context + 1)]
        return rows[:, :-1], rows[:, 1:]

    return Task(params, apply, draw)


def mlp(units: int, batch: int) -> Task:
    """The MLP, on digits.

    Args:
        units: of each hidden layer.
        batch: samples of a batch.

    Returns:
        The task.
    """
    digits = load_digits()
    x, y = jnp.asarray(digits.data / 16, jnp.float32), jnp.asarray(digits.target)
    keys = jax.random.split(jax.random.key(SEED), 3)
    params = {"w1": _normal(keys[0], 64, units), "w2": _normal(keys[1], units, units)}
    params |= {"gain": jnp.ones(units), "bias": jnp.zeros(units), "head": _normal(keys[2], units, 10)}

    def apply(p, x):
        x = jax.nn.relu(nn.layer_norm(x @ p["w1"], eps=1e-8))
        return jax.nn.relu(nn.layer_norm(x @ p["w2"], p["gain"], p["bias"], eps=1e-8)) @ p["head"]

    def draw(key):
        key, noise, labels, replaced = jax.random.split(key, 4)
        rows = jax.random.randint(key, (batch,), 0, len(x))
        random = jax.random.randint(labels, (batch,), 0, 10)
        label = jnp.where(jax.random.uniform(replaced, (batch,)) < 0.2, random, y[rows])
        return x[rows] + 0.3 * jax.random.normal(noise, (batch, 64)), label

    return Task(params, apply, draw)

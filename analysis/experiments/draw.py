"""DRAW on binarized digits (Section 6.4, Figure 4), with layer norm on the output of the LSTM's cell (Eq. 31).

The network is that of Gregor et al. (arXiv 1502.04623), with attention in reading and writing.
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
from lngeom import nn
from lngeom.claims.comparison import TrainingStatement

from analysis.experiments.datasets import Binarized, bundled_digits
from analysis.experiments.experiment import Experiment, Panel, Real, Settings
from analysis.experiments.loaders import assemble
from analysis.experiments.loop import plain_task
from analysis.experiments.networks import Dense, reference_start, rows


@dataclass(frozen=True)
class DrawSettings(Settings):
    """Sizes."""

    side: int = 8
    glimpses: int = 8
    hidden: int = 64
    latent: int = 10
    read: int = 2
    write: int = 4
    rate: float = 3e-3
    batch: int = 128
    clip: float = 10.0


class Arm(NamedTuple):
    """Whether the LSTMs' outputs are layer-normalized."""

    normalized: bool


def digits(settings: DrawSettings) -> Binarized:
    """The bundled digits, black above one half."""
    found = bundled_digits()
    return Binarized(*((v > 0.5).astype(np.float32) for v in (found.train_images, found.test_images)))


def filterbank(parameters: Float[Array, "B 5"], size: int, side: int):
    """Gaussian filters in x and y [B n S], and the intensity [B 1] (DRAW, Eqs. 19–26)."""
    x, y, log_variance, log_stride, log_intensity = jnp.split(parameters, 5, -1)
    stride = (side - 1) / max(size - 1, 1) * jnp.exp(log_stride)
    offsets = (jnp.arange(size, dtype=parameters.dtype) - (size - 1) / 2)[None]
    pixels = jnp.arange(side, dtype=parameters.dtype)[None, None]

    def bank(centre):
        means = (side + 1) / 2 * (centre + 1) - 1 + offsets * stride
        filters = jnp.exp(-jnp.square(pixels - means[..., None]) / (2 * jnp.exp(log_variance)[..., None]))
        return filters / (jnp.sum(filters, -1, keepdims=True) + 1e-8)

    return bank(x), bank(y), jnp.exp(log_intensity)


def apply_filters(
    down: Float[Array, "B n S"], values: Float[Array, "B S R"], across: Float[Array, "B m R"]
) -> Float[Array, "B n m"]:
    r"""$F_y V F_x^\top$ of each image, by sums of products: faster here than many tiny matrix products."""
    rows_done = jnp.sum(down[..., None] * values[:, None], 2)
    return jnp.sum(rows_done[:, :, None] * across[:, None], 3)


class Draw(eqx.Module):
    """Encoder, decoder and both attentions."""

    encoder: Any
    decoder: Any
    latent: Dense
    attend: Dense
    patch: Dense
    place: Dense
    side: int = eqx.field(static=True)
    glimpses: int = eqx.field(static=True)
    read: int = eqx.field(static=True)
    write: int = eqx.field(static=True)

    def bound(self, x: Float[Array, "B D"], key) -> Float[Array, " B"]:
        """Negative variational bound of each image, in nats, from one sample."""
        batch, z_size = x.shape[0], self.latent.bias.shape[0] // 2
        image = x.reshape(batch, self.side, self.side)
        noise = jax.random.normal(key, (self.glimpses, batch, z_size), x.dtype)

        def glimpse(values, across, down, intensity):
            return intensity * apply_filters(down, values, across).reshape(batch, -1)

        def step(carry, e):
            canvas, encoder, decoder = carry
            error = image - jax.nn.sigmoid(canvas)
            filters = filterbank(self.attend(decoder.hidden), self.read, self.side)
            read = jnp.concatenate([glimpse(image, *filters), glimpse(error, *filters)], -1)
            encoder = self.encoder(encoder, jnp.concatenate([read, decoder.hidden], -1))
            mean, log_sigma = jnp.split(self.latent(encoder.hidden), 2, -1)
            z = mean + jnp.exp(log_sigma) * e
            kl = jnp.sum(0.5 * (jnp.square(mean) + jnp.exp(2 * log_sigma) - 1) - log_sigma, -1)
            decoder = self.decoder(decoder, z)
            across, down, intensity = filterbank(self.place(decoder.hidden), self.write, self.side)
            patch = self.patch(decoder.hidden).reshape(batch, self.write, self.write)
            written = apply_filters(jnp.swapaxes(down, 1, 2), patch, jnp.swapaxes(across, 1, 2))
            return (canvas + written / intensity[..., None], encoder, decoder), kl

        start = (jnp.zeros_like(image), self.encoder.initial_state(batch), self.decoder.initial_state(batch))
        (canvas, _, _), kl = jax.lax.scan(step, start, noise)
        pixels = jnp.sum(jnp.logaddexp(0.0, canvas) - image * canvas, (1, 2))
        return pixels + jnp.sum(kl, 0)


def network(settings: DrawSettings, arm: Arm, key) -> Draw:
    """The network of one arm."""
    keys, h = jax.random.split(key, 8), settings.hidden

    def lstm(inputs, key):
        made = nn.LayerNormLSTM(inputs, h, key=key, output_only=True) if arm.normalized else nn.LSTM(inputs, h, key=key)
        return reference_start(made, jax.random.fold_in(key, 1))

    return Draw(
        lstm(2 * settings.read**2 + h, keys[0]),
        lstm(settings.latent, keys[1]),
        Dense(h, 2 * settings.latent, key=keys[2], scale=0.5),
        Dense(h, 5, key=keys[3], scale=0.1),
        Dense(h, settings.write**2, key=keys[4]),
        Dense(h, 5, key=keys[5], scale=0.1),
        settings.side,
        settings.glimpses,
        settings.read,
        settings.write,
    )


def task(settings: DrawSettings, arm: Arm, data: Binarized):
    """Training of one arm."""

    def loss(model, key, data):
        keys = jax.random.split(key)
        chosen = rows(keys[0], data.train.shape[0], settings.batch)
        return jnp.mean(model.bound(data.train[chosen], keys[1]))

    def evaluate(model, data):
        return {"test bound": jnp.mean(model.bound(data.test, jax.random.key(0)))}

    optimizer = optax.chain(optax.clip_by_global_norm(settings.clip), optax.adam(settings.rate))
    return plain_task(partial(network, settings, arm), loss, optimizer, evaluate)


def made_up(settings: DrawSettings) -> Binarized:
    """Noise of the shape of the full size."""
    images = np.random.default_rng(0).random((260, settings.side**2)) > 0.8
    return Binarized(images[:256].astype(np.float32), images[256:].astype(np.float32))


compared = partial(TrainingStatement, treated="LN", baseline="baseline", metric="test bound")
STATEMENTS = (
    *(
        compared(
            claim=f"experiments.draw{part}",
            text=f"layer norm: at most {bound:g} of the steps to the best common bound",
            paper="converges almost twice as fast",
            bound=bound,
        )
        for bound, part in ((0.9, ""), (0.6, ".twice_as_fast"))
    ),
    compared(
        claim="experiments.draw.final",
        text="layer norm: a better best bound",
        paper="82.09 against 82.36 nats",
        measure="best",
    ),
)

EXPERIMENT = Experiment(
    name="draw",
    title="DRAW on binarized digits",
    source="Section 6.4, Figure 4",
    arms={"baseline": Arm(False), "LN": Arm(True)},
    small=DrawSettings(steps=600, every=24),
    full=DrawSettings(steps=78_200, every=391, side=28, glimpses=64, hidden=256, latent=100, write=5, rate=1e-3),
    data=digits,
    task=task,
    load=assemble.draw,
    files="binarized_mnist_train.amat, binarized_mnist_valid.amat and binarized_mnist_test.amat",
    real=Real(
        DrawSettings(steps=3000, every=100, side=28, glimpses=8, hidden=128, latent=20, read=2, write=5),
        assemble.binarized_mnist,
        "the four IDX files of MNIST, as they are or gzipped, or mnist.npz of Keras",
        cost=170.0,
        panels=(Panel("test bound", "DRAW", "test variational bound, nats"),),
    ),
    cost=23.0,
    statements=STATEMENTS,
    panels=(Panel("test bound", "DRAW", "test variational bound, nats", limits=(None, 35)),),
    synthetic=made_up,
    note="8 × 8 digits, 8 glimpses; 12 steps are about an epoch.",
)

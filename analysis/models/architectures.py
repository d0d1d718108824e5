"""Ten models as users write them: the documented layers of five libraries, small, at their own initial values.

Each function returns a `Foreign`. Libraries are imported where they are used, so that one that is missing stops its own
models alone.
"""

import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np


class Foreign(NamedTuple):
    """A model of another library.

    Attributes:
        model: as `lngeom.check_model` takes it.
        X: its inputs.
        apply: as `lngeom.fisher` takes it; None where the model is not in JAX.
        params: its parameters, for `apply`.
        family: distribution of its responses.
    """

    model: Any
    X: Any
    apply: Callable[[Any, Any], Any] | None = None
    params: Any = None
    family: Any = None


def _tokens(samples: int, length: int, vocabulary: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, vocabulary, (samples, length))


def _normal(dtype: Any, *shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(dtype)


def _cast(tree: Any, dtype: Any) -> Any:
    """A pytree with its floating arrays in another dtype."""
    floating = lambda a: hasattr(a, "dtype") and jnp.issubdtype(a.dtype, jnp.floating)  # noqa: E731
    return jax.tree.map(lambda a: jnp.asarray(a, dtype) if floating(a) else a, tree)


def _itself(model: Any, X: Any) -> Any:
    return model(X)


def _each(model: Any, X: Any) -> Any:
    return jax.vmap(model)(X)


def attend(query: Any, key: Any, value: Any, *, mask: Any = None, **_: Any) -> Any:
    """Attention in the dtype of its inputs [… T h k]; the function that flax takes otherwise has a float32 softmax."""
    scores = jnp.einsum("...ihk,...jhk->...hij", query, key) / math.sqrt(query.shape[-1])
    scores = scores if mask is None else jnp.where(mask, scores, -jnp.inf)
    return jnp.einsum("...hij,...jhk->...ihk", jax.nn.softmax(scores), value)


def _block(width: int, heads: int, causal: bool, settings: dict[str, Any]) -> Any:
    """A pre-norm transformer block of flax.nnx."""
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self):
            self.norm_1 = nnx.LayerNorm(width, **settings)
            self.attention = nnx.MultiHeadAttention(heads, width, decode=False, attention_fn=attend, **settings)
            self.norm_2 = nnx.LayerNorm(width, **settings)
            self.up = nnx.Linear(width, 2 * width, **settings)
            self.down = nnx.Linear(2 * width, width, **settings)

        def __call__(self, x):
            mask = nnx.make_causal_mask(x[..., 0]) if causal else None
            x = x + self.attention(self.norm_1(x), mask=mask)
            return x + self.down(nnx.gelu(self.up(self.norm_2(x))))

    return Block()


def gpt(dtype: Any = "float32", *, width: int = 4, blocks: int = 2, samples: int = 40) -> Foreign:
    """A GPT of flax.nnx: learned positions, causal attention, pre-norm blocks, an untied head."""
    from flax import nnx

    vocabulary, length = 8, 5
    settings: dict[str, Any] = {"dtype": dtype, "param_dtype": dtype, "rngs": nnx.Rngs(0)}

    class GPT(nnx.Module):
        def __init__(self):
            self.tokens = nnx.Embed(vocabulary, width, **settings)
            self.positions = nnx.Embed(length, width, **settings)
            self.blocks = nnx.List([_block(width, 2, True, settings) for _ in range(blocks)])
            self.norm = nnx.LayerNorm(width, **settings)
            self.head = nnx.Linear(width, vocabulary, use_bias=False, **settings)

        def __call__(self, tokens):
            x = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[-1])[None])
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    model = GPT()
    return Foreign(model, _tokens(samples, length, vocabulary), _itself, model, lg.families.Categorical())


def vit(dtype: Any = "float32") -> Foreign:
    """A vision transformer of flax.nnx: patches by a convolution, a class token, one block."""
    from flax import nnx

    width, classes, side = 6, 5, 8
    settings: dict[str, Any] = {"dtype": dtype, "param_dtype": dtype, "rngs": nnx.Rngs(1)}

    class ViT(nnx.Module):
        def __init__(self):
            self.patches = nnx.Conv(1, width, (4, 4), strides=(4, 4), padding="VALID", **settings)
            self.token = nnx.Param(jax.random.normal(jax.random.key(2), (1, 1, width), dtype))
            self.positions = nnx.Param(0.1 * jax.random.normal(jax.random.key(3), (1, 5, width), dtype))
            self.block = _block(width, 2, False, settings)
            self.norm = nnx.LayerNorm(width, **settings)
            self.head = nnx.Linear(width, classes, **settings)

        def __call__(self, images):
            x = self.patches(images).reshape(len(images), -1, width)
            first = jnp.broadcast_to(self.token[...], (len(x), 1, width))
            x = jnp.concatenate([first, x], 1) + self.positions[...]
            return self.head(self.norm(self.block(x)[:, 0]))

    model = ViT()
    return Foreign(model, _normal(dtype, 200, side, side, 1), _itself, model, lg.families.Categorical())


def unet(dtype: Any = "float32") -> Foreign:
    """A U-Net of equinox: two levels, group norms, a skip connection."""
    import equinox as eqx

    keys = iter(jax.random.split(jax.random.key(4), 8))

    class Level(eqx.Module):
        conv: eqx.nn.Conv2d
        norm: eqx.nn.GroupNorm

        def __init__(self, inputs, outputs):
            self.conv = eqx.nn.Conv2d(inputs, outputs, 3, padding=1, key=next(keys))
            self.norm = eqx.nn.GroupNorm(2, outputs)

        def __call__(self, x):
            return jax.nn.silu(self.norm(self.conv(x)))

    class UNet(eqx.Module):
        enter: Level
        pool: eqx.nn.AvgPool2d
        middle: Level
        up: eqx.nn.ConvTranspose2d
        leave: Level
        head: eqx.nn.Conv2d

        def __init__(self):
            self.enter = Level(1, 4)
            self.pool = eqx.nn.AvgPool2d(2, 2)
            self.middle = Level(4, 4)
            self.up = eqx.nn.ConvTranspose2d(4, 4, 2, stride=2, key=next(keys))
            self.leave = Level(8, 4)
            self.head = eqx.nn.Conv2d(4, 1, 1, key=next(keys))

        def __call__(self, image):
            early = self.enter(image)
            late = self.up(self.middle(self.pool(early)))
            return self.head(self.leave(jnp.concatenate([early, late])))

    model = _cast(UNet(), dtype)
    return Foreign(model, _normal(dtype, 30, 1, 8, 8), _each, model, lg.families.Gaussian())


def mlp(dtype: Any = "float32", *, width: int = 12, samples: int = 200) -> Foreign:
    """A perceptron of haiku: linear layers, each with a layer norm."""
    import haiku as hk

    def network(x):
        for _ in range(2):
            x = jax.nn.relu(hk.LayerNorm(-1, create_scale=True, create_offset=True)(hk.Linear(width)(x)))
        return hk.Linear(4)(x)

    transformed = hk.without_apply_rng(hk.transform(network))
    X = _normal(dtype, samples, 7)
    params = _cast(transformed.init(jax.random.key(5), X), dtype)
    return Foreign((transformed, params), X, transformed.apply, params, lg.families.Categorical())


def cnn(dtype: Any = "float32") -> Foreign:
    """A convolutional network of Keras 3 on JAX: convolutions, batch norms and a head."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential([keras.Input((8, 8, 1))])
    for channels in (4, 6):
        model.add(layers.Conv2D(channels, 3, padding="same", dtype=dtype))
        model.add(layers.BatchNormalization(dtype=dtype))
        model.add(layers.Activation("relu", dtype=dtype))
        model.add(layers.MaxPooling2D(2, dtype=dtype))
    model.add(layers.Flatten(dtype=dtype))
    model.add(layers.Dense(4, dtype=dtype))
    X = _normal(dtype, 200, 8, 8, 1)
    if keras.backend.backend() != "jax":
        return Foreign(model, X)
    names = [v.path for v in model.trainable_variables]
    fixed = [v.value for v in model.non_trainable_variables]

    def apply(params, X):
        return model.stateless_call([params[name] for name in names], fixed, X, training=False)[0]

    params = dict(zip(names, (v.value for v in model.trainable_variables), strict=True))
    return Foreign(model, X, apply, params, lg.families.Categorical())


def resnet(dtype: Any = "float32") -> Foreign:
    """A residual network of torch with batch norms."""
    import torch
    from torch import nn

    torch.manual_seed(0)

    class Basic(nn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(outputs)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(outputs)
            self.downsample = None
            if stride > 1 or inputs != outputs:
                self.downsample = nn.Sequential(
                    nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
                )

        def forward(self, x):
            shortcut = x if self.downsample is None else self.downsample(x)
            out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
            return torch.relu(out + shortcut)

    class ResNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(8)
            self.layer1 = nn.Sequential(Basic(8, 8, 1), Basic(8, 8, 1))
            self.layer2 = nn.Sequential(Basic(8, 16, 2), Basic(16, 16, 1))
            self.fc = nn.Linear(16, 10)

        def forward(self, x):
            x = self.layer2(self.layer1(torch.relu(self.bn1(self.conv1(x)))))
            return self.fc(x.mean((2, 3)))

    return Foreign(ResNet().to(getattr(torch, str(dtype))), _normal(dtype, 16, 3, 8, 8))


def state_space(dtype: Any = "float32") -> Foreign:
    """Two blocks of a diagonal state-space model in equinox, each behind an RMS norm and gated."""
    import equinox as eqx

    width, states, classes = 6, 4, 5
    keys = iter(jax.random.split(jax.random.key(6), 16))

    class Diagonal(eqx.Module):
        log_decay: jax.Array
        frequency: jax.Array
        log_step: jax.Array
        B: jax.Array
        C: jax.Array
        D: jax.Array

        def __init__(self):
            self.log_decay = jnp.log(0.5) * jnp.ones(states)
            self.frequency = jnp.pi * jnp.arange(states, dtype=float)
            self.log_step = jnp.log(0.1) + 0.1 * jax.random.normal(next(keys), (states,))
            self.B = jax.random.normal(next(keys), (2, states, width)) / np.sqrt(width)
            self.C = jax.random.normal(next(keys), (2, width, states)) / np.sqrt(states)
            self.D = jax.random.normal(next(keys), (width,))

        def __call__(self, x):
            step = jnp.exp(self.log_step)
            turn = jnp.exp(step * jax.lax.complex(-jnp.exp(self.log_decay), self.frequency))
            driven = jax.lax.complex(x @ self.B[0].T, x @ self.B[1].T) * step
            turns = jnp.broadcast_to(turn, driven.shape)
            _, state = jax.lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (turns, driven))
            return jnp.real(state @ jax.lax.complex(self.C[0], self.C[1]).T) + self.D * x

    class Block(eqx.Module):
        norm: eqx.nn.RMSNorm
        ssm: Diagonal
        gate: eqx.nn.Linear
        out: eqx.nn.Linear

        def __init__(self):
            self.norm = eqx.nn.RMSNorm(width)
            self.ssm = Diagonal()
            self.gate = eqx.nn.Linear(width, width, key=next(keys))
            self.out = eqx.nn.Linear(width, width, key=next(keys))

        def __call__(self, x):
            normed = jax.vmap(self.norm)(x)
            gated = jax.nn.gelu(self.ssm(normed)) * jax.nn.sigmoid(jax.vmap(self.gate)(normed))
            return x + jax.vmap(self.out)(gated)

    class StateSpace(eqx.Module):
        encoder: eqx.nn.Linear
        blocks: list[Block]
        norm: eqx.nn.RMSNorm
        head: eqx.nn.Linear

        def __init__(self):
            self.encoder = eqx.nn.Linear(3, width, key=next(keys))
            self.blocks = [Block(), Block()]
            self.norm = eqx.nn.RMSNorm(width)
            self.head = eqx.nn.Linear(width, classes, key=next(keys))

        def __call__(self, x):
            x = jax.vmap(self.encoder)(x)
            for block in self.blocks:
                x = block(x)
            return jax.vmap(self.head)(jax.vmap(self.norm)(x))

    model = _cast(StateSpace(), dtype)
    return Foreign(model, _normal(dtype, 30, 12, 3), _each, model, lg.families.Categorical())


def mixture(dtype: Any = "float32") -> Foreign:
    """A mixture of experts in flax.nnx: two of four experts a token, behind an RMS norm."""
    from flax import nnx

    width, hidden, experts, vocabulary = 6, 4, 4, 9
    settings: dict[str, Any] = {"dtype": dtype, "param_dtype": dtype, "rngs": nnx.Rngs(7)}

    class Experts(nnx.Module):
        def __init__(self):
            draw = nnx.initializers.lecun_normal(batch_axis=0)
            self.router = nnx.Linear(width, experts, use_bias=False, **settings)
            self.up = nnx.Param(draw(settings["rngs"].params(), (experts, width, hidden), dtype))
            self.down = nnx.Param(draw(settings["rngs"].params(), (experts, hidden, width), dtype))

        def __call__(self, x):
            scores, chosen = jax.lax.top_k(self.router(x), 2)
            weights = nnx.softmax(scores, -1)[..., None] * jax.nn.one_hot(chosen, experts, dtype=x.dtype)
            inside = nnx.silu(jnp.einsum("...d,edh->...eh", x, self.up[...]))
            outputs = jnp.einsum("...eh,ehd->...ed", inside, self.down[...])
            return jnp.einsum("...e,...ed->...d", weights.sum(-2), outputs)

    class Mixture(nnx.Module):
        def __init__(self):
            self.tokens = nnx.Embed(vocabulary, width, **settings)
            self.mix = nnx.Conv(width, width, (3,), padding="CAUSAL", **settings)
            self.norm_1 = nnx.RMSNorm(width, **settings)
            self.experts = Experts()
            self.norm_2 = nnx.RMSNorm(width, **settings)
            self.head = nnx.Linear(width, vocabulary, use_bias=False, **settings)

        def __call__(self, tokens):
            x = self.tokens(tokens)
            x = x + self.mix(x)
            return self.head(self.norm_2(x + self.experts(self.norm_1(x))))

    model = Mixture()
    return Foreign(model, _tokens(30, 8, vocabulary), _itself, model, lg.families.Categorical())


def lstm(dtype: Any = "float32") -> Foreign:
    """A recurrent network of flax.nnx: an LSTM over time with a layer norm behind it."""
    from flax import nnx

    vocabulary, width = 9, 6
    settings: dict[str, Any] = {"dtype": dtype, "param_dtype": dtype, "rngs": nnx.Rngs(8)}

    class Recurrent(nnx.Module):
        def __init__(self):
            self.tokens = nnx.Embed(vocabulary, width, **settings)
            self.lstm = nnx.RNN(nnx.OptimizedLSTMCell(width, width, **settings))
            self.norm = nnx.LayerNorm(width, **settings)
            self.head = nnx.Linear(width, vocabulary, **settings)

        def __call__(self, tokens):
            return self.head(self.norm(self.lstm(self.tokens(tokens))))

    model = Recurrent()
    return Foreign(model, _tokens(30, 8, vocabulary), _itself, model, lg.families.Categorical())


def diffusion(dtype: Any = "float32") -> Foreign:
    """A block of a diffusion model in flax.nnx: sinusoidal times, and group norms, one modulated by time."""
    from flax import nnx

    channels, embedded, side = 4, 6, 4
    settings: dict[str, Any] = {"dtype": dtype, "param_dtype": dtype, "rngs": nnx.Rngs(9)}

    class Denoiser(nnx.Module):
        def __init__(self):
            self.enter = nnx.Conv(2, channels, (3, 3), **settings)
            self.time_1 = nnx.Linear(embedded, embedded, **settings)
            self.time_2 = nnx.Linear(embedded, 2 * channels, **settings)
            self.norm_1 = nnx.GroupNorm(channels, num_groups=2, **settings)
            self.conv_1 = nnx.Conv(channels, channels, (3, 3), **settings)
            self.norm_2 = nnx.GroupNorm(channels, num_groups=2, use_bias=False, use_scale=False, **settings)
            self.conv_2 = nnx.Conv(channels, channels, (3, 3), **settings)
            self.norm_3 = nnx.LayerNorm(channels, use_bias=False, use_scale=False, **settings)
            self.leave = nnx.Conv(channels, 2, (1, 1), **settings)

        def __call__(self, images, times):
            angles = times[:, None] * jnp.asarray(100.0, dtype) ** -jnp.linspace(0, 1, embedded // 2, dtype=dtype)[None]
            embedding = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)
            modulation = self.time_2(nnx.silu(self.time_1(embedding)))[:, None, None]
            scale, shift = jnp.split(modulation, 2, -1)
            x = self.enter(images)
            inside = self.conv_1(nnx.silu(self.norm_1(x)))
            inside = self.norm_2(inside) * (1 + scale) + shift
            x = x + self.conv_2(nnx.silu(inside))
            return self.leave(self.norm_3(x))

    model = Denoiser()
    times = np.random.default_rng(2).uniform(0, 10, 60).astype(dtype)
    X = _normal(dtype, 60, side, side, 2), times
    return Foreign(model, X, lambda m, X: m(*X), model, lg.families.Gaussian())


ARCHITECTURES: dict[str, Callable[..., Foreign]] = {
    "GPT, nnx": gpt,
    "ViT, nnx": vit,
    "U-Net, equinox": unet,
    "MLP, haiku": mlp,
    "CNN, keras": cnn,
    "ResNet, torch": resnet,
    "SSM, equinox": state_space,
    "MoE, nnx": mixture,
    "LSTM, nnx": lstm,
    "diffusion, nnx": diffusion,
}
"""Name and library of each model, and the function that makes it in a dtype."""

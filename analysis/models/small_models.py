"""Small models as users write them, for first answers and for the names of null directions.

Each function returns a `Foreign` of `analysis.models.architectures`. `trained` moves parameters to where training may
bring them: gains, biases and weights all differ.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np

from analysis.models.architectures import Foreign, attend


def trained(params: Any, size: float = 0.2, seed: int = 11) -> Any:
    """The parameters with a normal change of every entry, `size` times the root mean square of its leaf, or 1 if 0."""
    rng = np.random.default_rng(seed)

    def moved(leaf: Any) -> Any:
        if not hasattr(leaf, "dtype") or not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        scale = float(jnp.sqrt(jnp.mean(jnp.square(leaf)))) or 1.0
        return leaf + jnp.asarray(size * scale * rng.normal(size=leaf.shape), leaf.dtype)

    return jax.tree.map(moved, params)


def _normal(dtype: Any, *shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(dtype)


def _itself(model: Any, X: Any) -> Any:
    return model(X)


def _each(model: Any, X: Any) -> Any:
    return jax.vmap(model)(X)


def cnn(dtype: Any = "float64", *, samples: int = 300) -> Foreign:
    """A convolutional network of flax.nnx: two convolutions with ReLU, and two dense layers behind a flattening."""
    from flax import nnx

    settings: dict[str, Any] = {"dtype": dtype, "param_dtype": dtype, "rngs": nnx.Rngs(0)}

    class CNN(nnx.Module):
        def __init__(self):
            self.conv_1 = nnx.Conv(1, 4, (3, 3), **settings)
            self.conv_2 = nnx.Conv(4, 6, (3, 3), **settings)
            self.dense = nnx.Linear(2 * 2 * 6, 34, **settings)
            self.head = nnx.Linear(34, 10, **settings)

        def __call__(self, images):
            x = nnx.max_pool(nnx.relu(self.conv_1(images)), (2, 2), strides=(2, 2))
            x = nnx.max_pool(nnx.relu(self.conv_2(x)), (2, 2), strides=(2, 2))
            return self.head(nnx.relu(self.dense(x.reshape(len(x), -1))))

    model = CNN()
    return Foreign(model, _normal(dtype, samples, 8, 8, 1), _itself, model, lg.families.Categorical())


def transformer(dtype: Any = "float64", *, width: int = 16, samples: int = 64) -> Foreign:
    """A pre-norm transformer of flax.nnx: two blocks, two heads, no positions, an untied head."""
    from flax import nnx

    vocabulary, length = 12, 8
    settings: dict[str, Any] = {"dtype": dtype, "param_dtype": dtype, "rngs": nnx.Rngs(0)}

    class Block(nnx.Module):
        def __init__(self):
            self.norm_1 = nnx.LayerNorm(width, **settings)
            self.attention = nnx.MultiHeadAttention(2, width, decode=False, attention_fn=attend, **settings)
            self.norm_2 = nnx.LayerNorm(width, **settings)
            self.up = nnx.Linear(width, 2 * width, **settings)
            self.down = nnx.Linear(2 * width, width, **settings)

        def __call__(self, x):
            x = x + self.attention(self.norm_1(x))
            return x + self.down(nnx.gelu(self.up(self.norm_2(x))))

    class Transformer(nnx.Module):
        def __init__(self):
            self.tokens = nnx.Embed(vocabulary, width, **settings)
            self.blocks = nnx.List([Block() for _ in range(2)])
            self.norm = nnx.LayerNorm(width, **settings)
            self.head = nnx.Linear(width, vocabulary, **settings)

        def __call__(self, tokens):
            x = self.tokens(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    model = Transformer()
    tokens = np.random.default_rng(0).integers(0, vocabulary, (samples, length))
    return Foreign(model, tokens, _itself, model, lg.families.Categorical())


def mlp(dtype: Any = "float64", *, samples: int = 300) -> Foreign:
    """A perceptron of flax.nnx with a layer norm before each ReLU."""
    from flax import nnx

    settings: dict[str, Any] = {"dtype": dtype, "param_dtype": dtype, "rngs": nnx.Rngs(0)}

    class MLP(nnx.Module):
        def __init__(self):
            self.layers = nnx.List([nnx.Linear(n, 24, **settings) for n in (10, 24)])
            self.norms = nnx.List([nnx.LayerNorm(24, **settings) for _ in range(2)])
            self.head = nnx.Linear(24, 5, **settings)

        def __call__(self, x):
            for layer, norm in zip(self.layers, self.norms, strict=True):
                x = nnx.relu(norm(layer(x)))
            return self.head(x)

    model = MLP()
    return Foreign(model, _normal(dtype, samples, 10), _itself, model, lg.families.Categorical())


def residual(dtype: Any = "float64", *, samples: int = 200) -> Foreign:
    """A residual perceptron of equinox: RMS norms before gated layers."""
    import equinox as eqx

    keys = iter(jax.random.split(jax.random.key(1), 8))

    class Gated(eqx.Module):
        norm: eqx.nn.RMSNorm
        gate: eqx.nn.Linear
        up: eqx.nn.Linear
        down: eqx.nn.Linear

        def __init__(self):
            self.norm = eqx.nn.RMSNorm(8, use_bias=False)
            self.gate, self.up = (eqx.nn.Linear(8, 10, use_bias=False, key=next(keys)) for _ in range(2))
            self.down = eqx.nn.Linear(10, 8, use_bias=False, key=next(keys))

        def __call__(self, x):
            y = self.norm(x)
            return x + self.down(jax.nn.silu(self.gate(y)) * self.up(y))

    class Residual(eqx.Module):
        enter: eqx.nn.Linear
        blocks: list[Gated]
        norm: eqx.nn.RMSNorm
        head: eqx.nn.Linear

        def __init__(self):
            self.enter = eqx.nn.Linear(6, 8, key=next(keys))
            self.blocks = [Gated()]
            self.norm = eqx.nn.RMSNorm(8, use_bias=False)
            self.head = eqx.nn.Linear(8, 4, key=next(keys))

        def __call__(self, x):
            x = self.enter(x)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    model = jax.tree.map(lambda a: a.astype(dtype) if hasattr(a, "dtype") else a, Residual())
    return Foreign(model, _normal(dtype, samples, 6), _each, model, lg.families.Categorical())


def autoencoder(dtype: Any = "float64", *, samples: int = 200) -> Foreign:
    """A tied autoencoder in plain JAX: the decoder is the transposed encoder."""
    rng = np.random.default_rng(2)
    make = lambda *shape: jnp.asarray(rng.normal(size=shape) / math.sqrt(shape[-1]), dtype)  # noqa: E731
    params = {"first": make(9, 7), "second": make(7, 4), "inner": make(7), "code": make(4), "outer": make(9)}

    def apply(p: Any, x: Any) -> Any:
        code = jax.nn.relu(x @ p["first"] + p["inner"][None]) @ p["second"] + p["code"][None]
        return code @ p["second"].T @ p["first"].T + p["outer"][None]

    return Foreign(None, _normal(dtype, samples, 9), apply, params, lg.families.Gaussian())


def network(dtype: Any = "float64", *, samples: int = 200) -> Foreign:
    """A convolutional network of flax.linen with group norms and a mean over positions."""
    import flax.linen as nn

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            for channels in (4, 6):
                x = nn.Conv(channels, (3, 3), dtype=dtype, param_dtype=dtype)(x)
                x = nn.relu(nn.GroupNorm(2, dtype=dtype, param_dtype=dtype)(x))
            return nn.Dense(5, dtype=dtype, param_dtype=dtype)(x.mean((1, 2)))

    model, X = Network(), _normal(dtype, samples, 6, 6, 1)
    params = model.init(jax.random.key(3), jnp.asarray(X))
    return Foreign((model, params), X, model.apply, params, lg.families.Categorical())


def deep(dtype: Any = "float64", *, samples: int = 200) -> Foreign:
    """A perceptron of haiku without norms: ReLU, squared ReLU and a linear bottleneck."""
    import haiku as hk

    def network(x):
        x = jax.nn.relu(hk.Linear(9)(x))
        x = jnp.square(jax.nn.relu(hk.Linear(8)(x)))
        return hk.Linear(4)(hk.Linear(3)(x))

    transformed = hk.without_apply_rng(hk.transform(network))
    X = _normal(dtype, samples, 6)
    params = jax.tree.map(lambda a: jnp.asarray(a, dtype), transformed.init(jax.random.key(5), X))
    return Foreign((transformed, params), X, transformed.apply, params, lg.families.Gaussian())


def parts(dtype: Any = "float64", *, samples: int = 40) -> Foreign:
    """A two-layer perceptron on data in two independent parts, which see different inputs, in few distinct rows."""
    rng = np.random.default_rng(6)
    make = lambda *shape: jnp.asarray(rng.normal(size=shape) / math.sqrt(shape[0]), dtype)  # noqa: E731
    params = {"first": make(8, 7), "bias": make(7), "second": make(7, 3)}
    X = np.zeros((samples, 8), dtype)
    rows = rng.normal(size=(9, 4))
    X[: samples // 2, :4] = rows[rng.integers(0, 4, samples // 2)]
    X[samples // 2 :, 4:] = rows[rng.integers(4, 9, samples - samples // 2)]

    def apply(p: Any, x: Any) -> Any:
        return jnp.tanh(x @ p["first"] + p["bias"][None]) @ p["second"]

    return Foreign(None, X, apply, params, lg.families.Categorical())


MODELS: dict[str, Callable[..., Foreign]] = {
    "CNN, nnx": cnn,
    "transformer, nnx": transformer,
    "LN MLP, nnx": mlp,
    "gated residual, equinox": residual,
    "tied autoencoder": autoencoder,
    "group norms, linen": network,
    "ReLU and bottleneck, haiku": deep,
    "data in parts": parts,
}
"""Name and library of each model, and the function that makes it in a dtype."""

"""A transformer with the shapes of GPT-2 as a plain JAX function: what benchmarks and experiments take products of."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

NORMS = ("layer norm", "RMS norm", "none")


@dataclass(frozen=True)
class Shape:
    """Sizes of a transformer.

    Attributes:
        vocabulary: V.
        length: T, the largest number of positions.
        width: d.
        depth: number of blocks.
        heads: of each block; they divide the width.
        norm: one of `NORMS`.
        placing: "pre", or "post".
        eps: of the norms.
    """

    vocabulary: int
    length: int
    width: int
    depth: int
    heads: int
    norm: str = "layer norm"
    placing: str = "pre"
    eps: float = 1e-5

    def __post_init__(self) -> None:
        """Checks the sizes.

        Raises:
            ValueError: if the heads do not divide the width, or a name is unknown.
        """
        if self.width % self.heads:
            raise ValueError(f"the heads must divide the width; got {self.heads} heads and width {self.width}")
        if self.norm not in NORMS or self.placing not in {"pre", "post"}:
            raise ValueError(f"norm must be one of {NORMS}, placing pre or post; got {self.norm!r}, {self.placing!r}")


GPT2 = Shape(vocabulary=50257, length=1024, width=768, depth=12, heads=12)
"""GPT-2 small; its head is tied to the table of tokens, so that it has 124 million parameters."""

TOY = Shape(vocabulary=12, length=6, width=8, depth=1, heads=2)


def parameters(shape: Shape, key: Array, dtype: Any = jnp.float32, tied: bool = True) -> PyTree:
    """Random weights as GPT-2 draws them: N(0, 0.02²), and less for what writes to the stream.

    Args:
        shape: the sizes.
        key: random key.
        dtype: of every array.
        tied: whether the head is the table of tokens.
    """
    d, f = shape.width, 4 * shape.width
    keys = iter(jax.random.split(key, 4 + 6 * shape.depth))

    def kernel(rows: int, columns: int, scale: float = 0.02) -> Float[Array, "rows columns"]:
        return scale * jax.random.normal(next(keys), (rows, columns), dtype)

    def norm() -> dict[str, Array]:
        found = {} if shape.norm == "none" else {"gain": jnp.ones(d, dtype)}
        return found | ({"bias": jnp.zeros(d, dtype)} if shape.norm == "layer norm" else {})

    def linear(rows: int, columns: int, scale: float = 0.02) -> dict[str, Array]:
        return {"kernel": kernel(rows, columns, scale), "bias": jnp.zeros(columns, dtype)}

    writing = 0.02 / math.sqrt(2 * shape.depth)
    blocks = [
        {
            "norm_1": norm(),
            "query": linear(d, d),
            "key": linear(d, d),
            "value": linear(d, d),
            "output": linear(d, d, writing),
            "norm_2": norm(),
            "up": linear(d, f),
            "down": linear(f, d, writing),
        }
        for _ in range(shape.depth)
    ]
    params = {"tokens": kernel(shape.vocabulary, d), "positions": kernel(shape.length, d), "blocks": blocks}
    params |= {"norm": norm()}
    return params if tied else params | {"head": kernel(d, shape.vocabulary)}


def normalize(x: Float[Array, "*batch d"], norm: dict[str, Array], eps: float) -> Float[Array, "*batch d"]:
    """Layer norm where there is a bias, RMS norm where there is a gain alone, x itself where there is neither."""
    if not norm:
        return x
    if "bias" in norm:
        x = x - jnp.mean(x, -1, keepdims=True)
    x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + eps) * norm["gain"]
    return x + norm["bias"] if "bias" in norm else x


def apply(shape: Shape, params: PyTree, tokens: Int[Array, "N T"]) -> Float[Array, "N T V"]:
    """Logits at every position."""
    count, length = tokens.shape
    heads, size = shape.heads, shape.width // shape.heads
    seen = jnp.tril(jnp.ones((length, length), bool))

    def linear(x: Array, layer: dict[str, Array]) -> Array:
        return x @ layer["kernel"] + layer["bias"]

    def attend(x: Array, block: dict[str, Any]) -> Array:
        q, k, v = (linear(x, block[name]).reshape(count, length, heads, size) for name in ("query", "key", "value"))
        scores = jnp.einsum("nthk,nshk->nhts", q, k) / math.sqrt(size)
        weights = jax.nn.softmax(jnp.where(seen, scores, jnp.finfo(x.dtype).min), -1)
        return linear(jnp.einsum("nhts,nshk->nthk", weights, v).reshape(count, length, shape.width), block["output"])

    def feed(x: Array, block: dict[str, Any]) -> Array:
        return linear(jax.nn.gelu(linear(x, block["up"])), block["down"])

    x = params["tokens"][tokens] + params["positions"][:length]
    for block in params["blocks"]:
        for branch, name in ((attend, "norm_1"), (feed, "norm_2")):
            if shape.placing == "pre":
                x = x + branch(normalize(x, block[name], shape.eps), block)
            else:
                x = normalize(x + branch(x, block), block[name], shape.eps)
    x = normalize(x, params["norm"], shape.eps)
    return x @ (params["tokens"].T if "head" not in params else params["head"])


def function(shape: Shape) -> Callable[[PyTree, Int[Array, "N T"]], Float[Array, "N T V"]]:
    """The map (params, tokens) ↦ logits of one shape."""
    return lambda params, tokens: apply(shape, params, tokens)

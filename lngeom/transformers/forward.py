"""The reference forward pass of a described stack: slow, literal, and the judge of every rewrite."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float, Int

from lngeom._core.types import is_concrete
from lngeom.transformers.description import (
    Attention,
    Block,
    FeedForward,
    FrontEnd,
    Groups,
    Latent,
    Linear,
    Mixture,
    Norm,
    Rotary,
    Stack,
    Table,
)

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "relu2": lambda x: jax.nn.relu(x) ** 2,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
    "identity": lambda x: x,
}
"""Activations by their names in descriptions."""


def logits(
    stack: Stack, weights: Mapping[str, Any], tokens: Int[Array, "N T"], types: Int[Array, "N T"] | None = None
) -> Float[Array, "N T V"]:
    """Logits of a stack at every position.

    Positions are 0 … T − 1, those of leading rows included, and no position is masked but by causality. Arrays keep
    their dtype. In dtypes below float32, statistics of norms, scores and router weights are computed in float32.
    float64 needs `jax.enable_x64(True)`.

    Args:
        stack: the description.
        weights: arrays by name. A mapping with methods `rows(name, index)` and `pieces(name)` is asked for rows of
            tables and matrices, some at a time, instead of whole arrays.
        tokens: token ids; where the inputs are patches or frames, vectors [N, T, entries], or numbers of entries that
            are 1 among zeros.
        types: rows of the table of types; None: 0.

    Returns:
        The logits, at one position where the head reads the first alone; the hidden states where there is no head.

    Raises:
        ValueError: if a table has no row for an input or a position, or vectors have another length.
    """
    return head(stack, weights, hidden(stack, weights, tokens, types))


def hidden(
    stack: Stack, weights: Mapping[str, Any], tokens: Int[Array, "N T"], types: Int[Array, "N T"] | None = None
) -> Float[Array, "N T d"]:
    """What the head reads: the output of the final norm, or of the last block where there is none."""
    x = embedded(stack, weights, tokens, types)
    for block in stack.blocks:
        x = after(block, weights, x)
    return x if stack.final is None else norm(stack.final, weights, x)


def embedded(
    stack: Stack, weights: Mapping[str, Any], tokens: Int[Array, "N T"], types: Int[Array, "N T"] | None = None
) -> Float[Array, "N T d"]:
    """The stream before the first block."""
    tokens = jnp.asarray(tokens)
    N, T = tokens.shape[:2]
    before = stack.leading(weights)
    rows = {
        "token": tokens,
        "patch": tokens,
        "input": np.zeros((1, T), int),
        "type": np.zeros((N, T), int) if types is None else jnp.asarray(types),
        "leading": np.arange(before)[None],
        "position": np.arange(before + T)[None],
    }
    x = 0 if stack.front is None else front_end(stack.front, weights, tokens)
    for table in stack.tables:
        if table.index == "patch" and tokens.ndim == 3:
            found = _weighed(table, _array(weights[table.weight]), tokens)
        else:
            found = _rows(table, weights, rows[table.index] + table.offset)
        if before and table.index != "position":
            empty = (0, T) if table.index == "leading" else (before, 0)
            found = jnp.pad(found, ((0, 0), empty, (0, 0)))
        x = x + times(table.scale, found)
    x = jnp.asarray(x)
    return x if stack.embedding_norm is None else norm(stack.embedding_norm, weights, x)


def front_end(
    part: FrontEnd, weights: Mapping[str, Any], inputs: Float[Array, "N T e"] | Int[Array, "N T"]
) -> Float[Array, "N T d"]:
    """What a front end writes at each position.

    Raises:
        ValueError: if inputs have another number of entries than its first layer reads.
    """
    entries = part.sizes(lambda name: tuple(weights[name].shape))[0]
    dtype = weights[part.layers[0].linear.weight].dtype
    if inputs.ndim == 2:
        inputs = jax.nn.one_hot(inputs, entries, dtype=dtype)
    elif inputs.shape[2] != entries:
        raise ValueError(
            f"inputs must be [N, T, {entries}]: at each position {part.frames} frames of {entries // part.frames} "
            f"channels, joined; got shape {inputs.shape}"
        )
    x = inputs.astype(dtype).reshape(len(inputs), -1, entries // part.frames)
    for layer in part.layers:
        windows = _windows(x, weights[layer.linear.weight].shape[2], layer.stride)
        x = _activated(layer.activation, linear(layer.linear, weights, windows), None)
    return x


@functools.partial(jax.jit, static_argnums=(1, 2))
def _windows(x: Float[Array, "N L c"], size: int, stride: int) -> Float[Array, "N t c*w"]:
    """The inputs around every one that a stride reaches, channel by channel."""
    length = x.shape[1]
    padded = jnp.pad(x, ((0, 0), (size // 2, size // 2), (0, 0)))
    found = jnp.stack([padded[:, j : j + length : stride] for j in range(size)], -1)
    return found.reshape(*found.shape[:2], -1)


def after(block: Block, weights: Mapping[str, Any], x: Float[Array, "N T d"]) -> Float[Array, "N T d"]:
    """The stream after a block."""
    if block.placing == "post":
        assert block.attention_norm is not None
        assert block.feed_forward_norm is not None
        x = norm(block.attention_norm, weights, x + attention_branch(block, weights, x))
        return norm(block.feed_forward_norm, weights, x + feed_forward_branch(block, weights, x))
    if block.parallel:
        return x + (attention_branch(block, weights, x) + feed_forward_branch(block, weights, x))
    x = x + attention_branch(block, weights, x)
    return x + feed_forward_branch(block, weights, x)


def attention_branch(block: Block, weights: Mapping[str, Any], x: Float[Array, "N T d"]) -> Float[Array, "N T d"]:
    """What attention adds to the stream: its reading norm, itself, its writing norm, and the factor."""
    y = attention(block.attention, weights, _read(block.attention_norm, block.placing, weights, x))
    y = _scaled(block.attention_scale, weights, times(block.factor, y))
    return y if block.attention_writing_norm is None else norm(block.attention_writing_norm, weights, y)


def feed_forward_branch(block: Block, weights: Mapping[str, Any], x: Float[Array, "N T d"]) -> Float[Array, "N T d"]:
    """What the second branch adds to the stream."""
    before = block.attention_norm if block.shared_norm else block.feed_forward_norm
    y = times(block.factor, feed_forward(block.feed_forward, weights, _read(before, block.placing, weights, x)))
    y = _scaled(block.feed_forward_scale, weights, y)
    return y if block.feed_forward_writing_norm is None else norm(block.feed_forward_writing_norm, weights, y)


def head(stack: Stack, weights: Mapping[str, Any], x: Float[Array, "N T d"]) -> Float[Array, "N T V"]:
    """Logits from what `hidden` returns; the same again where there is no map to logits."""
    if stack.head.linear is None:
        return x
    if (transform := stack.head.transform) is not None:
        x = _activated(transform.activation, linear(transform.linear, weights, x), None)
        x = norm(transform.norm, weights, x)
    first = stack.head.reads == "first"
    z = linear(stack.head.linear, weights, x[:, :1] if first else x)
    if stack.head.mean is not None:
        z = z + linear(stack.head.mean, weights, x[:, 1:].mean(1, keepdims=True))
    z = times(stack.head.scale, z)
    return z if stack.head.cap is None else stack.head.cap * jnp.tanh(z / stack.head.cap)


def side(stack: Stack, weights: Mapping[str, Any], x: Float[Array, "N T d"]) -> tuple[Float[Array, "N T o"], ...]:
    """Outputs of the maps beside the head, from what `hidden` returns."""
    return tuple(linear(part, weights, x) for part in stack.side)


def linear(part: Linear, weights: Mapping[str, Any], x: Float[Array, "N T i"]) -> Float[Array, "N T o"]:
    """Wx + b."""
    pieces: Any = getattr(weights, "pieces", None)
    bias = None if part.bias is None else _array(part.of_expert(weights[part.bias]))
    nameless = replace(part, weight="", bias=None, expert=None)
    if pieces is None or part != Linear(part.weight, part.bias):
        return _mapped(nameless, _array(part.of_expert(weights[part.weight])), bias, x)
    y = jnp.concatenate([_mapped(nameless, _array(rows), None, x) for _, rows in pieces(part.weight)], -1)
    return y if bias is None else y + nameless.offsets(bias)[None, None]


@functools.partial(jax.jit, static_argnums=0)
def _mapped(part: Linear, weight: Array, bias: Array | None, x: Float[Array, "N T i"]) -> Float[Array, "N T o"]:
    """Wx + b as one program like `_normalized`, the same one for every layer with these shapes."""
    y = jnp.einsum("nti,oi->nto", x, part.matrix(weight))
    return y if bias is None else y + part.offsets(bias)[None, None]


def norm(part: Norm, weights: Mapping[str, Any], x: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """γ ⊙ n + β over the last axis."""
    gain, bias = (None if name is None else _array(weights[name]) for name in (part.gain, part.bias))
    return _normalized(part.kind, part.eps, part.offset, x, gain, bias)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _normalized(kind: str, eps: float, offset: int, x: Array, gain: Array | None, bias: Array | None) -> Array:
    """The norm as one program: a certificate compiles it once, not an operation at a time."""
    dtype, x = x.dtype, _wide(x)
    if kind == "layer":
        x = x - jnp.mean(x, -1, keepdims=True)
    total = jnp.sum if kind == "l2" else jnp.mean
    y = x / jnp.sqrt(total(x * x, -1, keepdims=True) + eps)
    if gain is not None:
        y = y * (offset + _last(gain.astype(y.dtype), x))
    if bias is not None:
        y = y + _last(bias.astype(y.dtype), x)
    return y.astype(dtype)


def attention(part: Attention, weights: Mapping[str, Any], x: Float[Array, "N T d"]) -> Float[Array, "N T d"]:
    """Sum over heads of averaged values, and the output map."""
    N, T, _ = x.shape
    asked, given = (latent(each, weights, x) for each in (part.query_latent, part.kv_latent))
    q = linear(part.query, weights, asked).reshape(N, T, part.heads, part.query_width)
    k = linear(part.key, weights, given).reshape(N, T, part.kv_heads, part.key_width)
    v = linear(part.value, weights, given).reshape(N, T, part.kv_heads, part.value_width)
    if part.shared_key is not None:
        shared = linear(part.shared_key, weights, x)[:, :, None]
        k = jnp.concatenate([k, jnp.broadcast_to(shared, (N, T, part.kv_heads, part.shared_width))], -1)
    if part.rotary is not None and part.rotary_first:
        q, k = rotate(part.rotary, q), rotate(part.rotary, k)
    if part.query_norm is not None and part.key_norm is not None:
        q, k = _heads_norm(part.query_norm, part, weights, q), _heads_norm(part.key_norm, part, weights, k)
    if part.rotary is not None and not part.rotary_first:
        q, k = rotate(part.rotary, q), rotate(part.rotary, k)
    if part.hadamard is not None:
        q, k = hadamard(q, part.hadamard), hadamard(k, part.hadamard)
    temperature, relative, sink = (
        None if name is None else _array(weights[name]) for name in (part.temperature, part.relative, part.sink)
    )
    if relative is not None:
        away = np.abs(np.arange(T)[:, None] - np.arange(T)[None])
        relative = relative[:, away] if part.buckets is None else relative.T[:, part.buckets.rows(T)]
    averaged = _averaged(
        q, k, v, temperature, relative, sink, part.score_scale, part.cap, part.alibi, part.causal, part.window
    )
    return linear(part.output, weights, averaged)


def latent(part: Latent | None, weights: Mapping[str, Any], x: Float[Array, "N T d"]) -> Float[Array, "N T r"]:
    """What maps behind a latent read; the input itself where there is none."""
    return x if part is None else norm(part.norm, weights, linear(part.linear, weights, x))


@functools.partial(jax.jit, static_argnames=("scale", "cap", "alibi", "causal", "window"))
def _averaged(
    q: Float[Array, "N T h k"],
    k: Float[Array, "N T h_k k"],
    v: Float[Array, "N T h_k v"],
    temperature: Array | None,
    relative: Array | None,
    sink: Array | None,
    scale: float,
    cap: float | None,
    alibi: tuple[float, ...] | None,
    causal: bool,
    window: int | None,
) -> Float[Array, "N T h*v"]:
    """Values averaged by each head, side by side, as one program like `_normalized`."""
    N, T, heads, width = q.shape
    kv_heads, value_width = v.shape[2:]
    group = heads // kv_heads
    q = q.reshape(N, T, kv_heads, group, width)
    scores = _wide(jnp.einsum("nigmk,njgk->ngmij", q, k)) * scale
    scores = scores.reshape(N, heads, T, T)
    dtype = scores.dtype
    if temperature is not None:
        scores = scores * temperature.astype(dtype).reshape(1, -1, 1, 1)
    if cap is not None:
        scores = cap * jnp.tanh(scores / cap)
    i, j = np.arange(T)[:, None], np.arange(T)[None]
    if alibi is not None:
        scores = scores - jnp.asarray(np.array(alibi)[:, None, None] * (i - j), dtype)[None]
    if relative is not None:
        scores = scores + relative.astype(dtype)[None]
    seen = (i >= j) if causal else np.ones((T, T), bool)
    if window is not None:
        seen = seen & (np.abs(i - j) < window)
    scores = jnp.where(seen[None, None], scores, -jnp.inf)
    if sink is not None:
        column = sink.astype(dtype).reshape(1, -1, 1, 1)
        scores = jnp.concatenate([scores, jnp.broadcast_to(column, (N, heads, T, 1))], -1)
    share = jax.nn.softmax(scores, -1)[..., :T].astype(v.dtype).reshape(N, kv_heads, group, T, T)
    return jnp.einsum("ngmij,njgv->nigmv", share, v).reshape(N, T, heads * value_width)


def hadamard(x: Any, block: int) -> Any:
    r"""x H along the last axis, where H has blocks $S/\sqrt{K}$ on its diagonal: symmetric and its own inverse.

    S [K, K] is Sylvester's Hadamard matrix, $S_{2K} = [[S_K, S_K], [S_K, -S_K]]$, with entries ±1.

    Args:
        x: array [..., n] of NumPy or JAX.
        block: K, a power of two that divides n.

    Returns:
        The product, of the shape and dtype of x.

    >>> hadamard(np.array([1.0, 0.0, 3.0, 4.0]), 2) * 2**0.5
    array([ 1.,  1.,  7., -1.])
    """
    power = block.bit_length() - 1
    left, right = (scipy.linalg.hadamard(1 << p) for p in (power // 2, power - power // 2))
    scale = np.asarray(block**-0.5, x.dtype)
    y = x.reshape(*x.shape[:-1], -1, len(left), len(right))
    return (scale * (left.astype(x.dtype) @ y @ right.astype(x.dtype))).reshape(x.shape)


@functools.partial(jax.jit, static_argnums=0)
def rotate(part: Rotary, x: Float[Array, "N T h k"]) -> Float[Array, "N T h k"]:
    """Each pair of coordinates of position t turned by t · frequency."""
    angles = np.arange(x.shape[1])[:, None] * np.array(part.frequencies)
    cos, sin = (jnp.asarray(part.factor * f(angles), x.dtype)[None, :, None] for f in (np.cos, np.sin))
    first, second = (np.array([pair[which] for pair in part.pairs], int) for which in (0, 1))
    a, b = x[..., first], x[..., second]
    return x.at[..., first].set(a * cos - b * sin).at[..., second].set(b * cos + a * sin)


def feed_forward(
    part: FeedForward | Mixture, weights: Mapping[str, Any], x: Float[Array, "N T d"]
) -> Float[Array, "N T d"]:
    """The network, or the sum of experts weighted by the router."""
    if isinstance(part, FeedForward):
        up = linear(part.up, weights, x)
        gate = None if part.gate is None else linear(part.gate, weights, x)
        units = _activated(part.activation, up, gate, part.clamp)
        return linear(part.down, weights, units if part.hadamard is None else hadamard(units, part.hadamard))
    shares = routing(part, weights, x)
    y = jnp.zeros_like(x)
    for e, expert in enumerate(part.experts):
        y = _with_share(y, shares, e, feed_forward(expert, weights, x))
    if part.shared is None:
        return y
    z = feed_forward(part.shared, weights, x)
    return y + (z if part.shared_gate is None else jax.nn.sigmoid(linear(part.shared_gate, weights, x)) * z)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _activated(
    name: str, up: Float[Array, "N T m"], gate: Float[Array, "N T m"] | None, clamp: float | None = None
) -> Float[Array, "N T m"]:
    """What the output map reads, as one program like `_normalized`."""
    if gate is None:
        return ACTIVATIONS[name](up)
    if clamp is not None:
        gate, up = jnp.minimum(gate, clamp), jnp.clip(up, -clamp, clamp) + 1
    return ACTIVATIONS[name](gate) * up


@jax.jit
def _with_share(total: Array, shares: Float[Array, "N T E"], expert: int, y: Float[Array, "N T d"]) -> Array:
    """The sum with one expert's part, the same program for every expert."""
    return total + shares[..., expert, None] * y


def routing(part: Mixture, weights: Mapping[str, Any], x: Float[Array, "N T d"]) -> Float[Array, "N T E"]:
    """Weight of each expert at each position; zero for those not in use."""
    scores = linear(part.router, weights, x)
    bias = None if part.choice_bias is None else _array(weights[part.choice_bias])
    shares = _shares(part.scores, part.top, part.renormalize, part.groups, scores, bias)
    return times(part.factor, shares.astype(x.dtype))


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _shares(
    kind: str,
    top: int | None,
    renormalize: bool,
    groups: Groups | None,
    outputs: Float[Array, "N T E"],
    bias: Float[Array, " E"] | None,
) -> Float[Array, "N T E"]:
    """Weights from the router's outputs, as one program like `_normalized`."""
    outputs = _wide(outputs)
    shares = jax.nn.softmax(outputs, -1) if kind == "softmax" else jax.nn.sigmoid(outputs)
    if top is not None:
        by_score = bias is not None or groups is not None  # elsewhere outputs have the order of scores
        chosen = (shares if bias is None else shares + bias.astype(shares.dtype)[None, None]) if by_score else outputs
        if groups is not None:
            parts = chosen.reshape(*chosen.shape[:-1], groups.count, -1)
            worth = jax.lax.top_k(parts, groups.best)[0].sum(-1)
            open_ = _largest(worth, groups.top)[..., None] > 0
            chosen = jnp.where(open_, parts, -jnp.inf).reshape(chosen.shape)
        shares = shares * _largest(chosen, top)
    return shares / shares.sum(-1, keepdims=True) if renormalize else shares


def _largest(values: Float[Array, "... E"], count: int) -> Float[Array, "... E"]:
    """1 at so many of the largest values, 0 elsewhere."""
    return jax.nn.one_hot(jax.lax.top_k(values, count)[1], values.shape[-1], dtype=values.dtype).sum(-2)


def _rows(table: Table, weights: Mapping[str, Any], index: Array) -> Array:
    """Rows of a table."""
    name = table.weight
    if table.layout == "rows" and hasattr(weights, "rows"):
        needed, places = np.unique(np.asarray(index), return_inverse=True)
        try:
            some = weights.rows(name, needed)  # pyright: ignore[reportAttributeAccessIssue]
        except IndexError as error:
            raise ValueError(f"the inputs ask for rows {needed[0]} to {needed[-1]} of {name!r}: {error}") from error
        return _taken(_array(some), places.reshape(index.shape))
    array = _array(weights[name])
    array = array if table.layout == "rows" else table.linear.matrix(array)
    if is_concrete(index) and np.size(index):  # XLA would take the nearest row
        first, last = int(np.min(index)), int(np.max(index))
        if first < 0 or last >= len(array):
            raise ValueError(f"the inputs ask for rows {first} to {last} of {name!r}, which has {len(array)}")
    return _taken(array, index)


@functools.partial(jax.jit, static_argnums=0)
def _weighed(table: Table, array: Array, patches: Float[Array, "N T p"]) -> Float[Array, "N T d"]:
    """The rows of a table, each with a weight of every input."""
    rows = table.linear.matrix(array)
    return jnp.einsum("ntp,pd->ntd", patches.astype(rows.dtype), rows)


def _scaled(name: str | None, weights: Mapping[str, Any], y: Float[Array, "N T d"]) -> Float[Array, "N T d"]:
    """What a branch adds, with a factor for each channel."""
    return y if name is None else y * _array(weights[name]).astype(y.dtype)[None, None]


def _array(value: Any) -> Array:
    """An array on its device: `jnp.asarray` compiles a program for each shape of NumPy's."""
    return jax.device_put(value) if isinstance(value, np.ndarray) else jnp.asarray(value)


@jax.jit
def _taken(table: Array, index: Array) -> Array:
    return table[index]


def _read(part: Norm | None, placing: str, weights: Mapping[str, Any], x: Array) -> Array:
    return x if part is None or placing == "post" else norm(part, weights, x)


def _heads_norm(part: Norm, attend: Attention, weights: Mapping[str, Any], x: Float[Array, "N T h k"]) -> Array:
    if attend.norm_over == "head":
        return norm(part, weights, x)
    return norm(part, weights, x.reshape(*x.shape[:2], -1)).reshape(x.shape)


def _last(vector: Array, x: Array) -> Array:
    """A gain or bias as it meets x [..., d]: one for all, or one for each head."""
    vector = vector.reshape(-1, x.shape[-1])
    inner = vector.shape if len(vector) > 1 else vector.shape[1:]
    return vector.reshape((1,) * (x.ndim - len(inner)) + inner)


def times(factor: float, x: Array) -> Array:
    """A number, in the dtype of the array, times the array."""
    return x if factor == 1 else x * jnp.asarray(factor, x.dtype)


def _wide(x: Array) -> Array:
    """In float32 at least."""
    return x if x.dtype.itemsize >= 4 else x.astype(jnp.float32)

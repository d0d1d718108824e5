"""The grammar's words: layers that a generated model is put together from, each a function (params, x) ↦ x.

A maker takes the builder, which holds the random numbers and the parameters so far, and the width F of its input
[N … F]; it gives the layer and the width of its output.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

Function = Callable[[dict, Any], Array]


class TooLarge(Exception):
    """A layer with more parameters than the model may have."""


class Layer(NamedTuple):
    """A layer.

    Attributes:
        run: (params, x) ↦ x.
        wide: the same without casts to a lower precision.
    """

    run: Function
    wide: Function


class Builder:
    """Random numbers, and the parameters of the model so far.

    Attributes:
        rng: of the structure and all values.
        params: group of leaves → name → values.
        limit: largest number of parameters.
        low: dtype of casts inside layers, or None for no casts.
        casts: whether a layer has such a cast.
        reverse: whether a layer has a derivative in reverse mode alone.
        mixes: whether a layer mixes the positions of a sample.
    """

    def __init__(self, seed: int, limit: int, low: str | None):
        self.rng = np.random.default_rng([seed, 0])
        self.params: dict[str, dict[str, np.ndarray]] = {}
        self.limit = limit
        self.low = low
        self.casts = False
        self.reverse = False
        self.mixes = False

    @property
    def size(self) -> int:
        """Number of parameters so far."""
        return sum(v.size for group in self.params.values() for v in group.values() if v.dtype.kind == "f")

    def group(self, kind: str, **leaves: np.ndarray) -> str:
        """Adds leaves under a new name.

        Args:
            kind: of the layer.
            leaves: values.

        Returns:
            The name.

        Raises:
            TooLarge: if the model has no room for them.
        """
        name = f"{kind}{len(self.params)}"
        if self.size + sum(v.size for v in leaves.values() if v.dtype.kind == "f") > self.limit:
            raise TooLarge(name)
        self.params[name] = leaves
        return name

    def normal(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> np.ndarray:
        """Normal numbers."""
        return np.asarray(mean + scale * self.rng.normal(size=shape))

    def kernel(self, inputs: int, outputs: int) -> np.ndarray:
        """A kernel [D H] that keeps the scale of its inputs."""
        return self.normal(inputs, outputs, scale=inputs**-0.5)

    def pick(self, *choices: Any) -> Any:
        """One of these."""
        return choices[self.rng.integers(len(choices))]

    def cast(self, probability: float) -> str | None:
        """The dtype of a cast, with this probability and if there are any."""
        low = self.low if self.chance(probability) else None
        self.casts |= low is not None
        return low

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return bool(self.rng.random() < probability)


def same(function: Function) -> Layer:
    """A layer without casts."""
    return Layer(function, function)


# Layers of the last axis.


def dense(b: Builder, width: int, units: int | None = None) -> tuple[Layer, int]:
    outputs: int = b.pick(1, 2, 3, 3, 4, width) if units is None else units
    style = b.pick("matmul", "matmul", "transposed", "einsum", "tensordot", "vmap", "flat", "sum")
    kernel = b.kernel(width, outputs)
    stored = {"transposed": kernel.T, "flat": kernel.reshape(-1)}.get(style, kernel)
    name = b.group("dense", kernel=np.array(stored))
    bias = b.chance(0.6) and b.size + outputs <= b.limit
    if bias:
        b.params[name]["bias"] = b.normal(outputs, scale=0.3)

    def run(p, x):
        w = p[name]["kernel"]
        match style:
            case "matmul":
                y = x @ w
            case "transposed":
                y = x @ w.T
            case "einsum":
                y = jnp.einsum("...i,ij->...j", x, w)
            case "tensordot":
                y = jnp.tensordot(x, w, 1)
            case "vmap":
                y = jax.vmap(lambda row: row @ w)(x) if x.ndim > 1 else x @ w
            case "flat":
                y = x @ w.reshape(width, outputs)
            case _:
                y = jnp.sum(x[..., :, None] * w, -2)
        return y + p[name]["bias"] if bias else y

    return same(run), outputs


def activation(b: Builder, width: int) -> tuple[Layer, int]:
    function = b.pick(
        jnp.tanh,
        jax.nn.relu,
        jax.nn.gelu,
        jax.nn.silu,
        jax.nn.softplus,
        jnp.sin,
        lambda x: jax.nn.softmax(x, -1),
        lambda x: jnp.where(x > 0, x, 0.1 * x),
        lambda x: jnp.clip(x, -1, 1),
        lambda x: jnp.maximum(x, jnp.roll(x, 1, -1)),
        lambda x: jnp.cumsum(x, -1),
        lambda x: jnp.sort(x, -1),
        lambda x: x + jax.lax.stop_gradient(jnp.round(x) - x),
        lambda x: 0.5 * x + 0.5 * jax.lax.stop_gradient(x),
        lambda x: jnp.square(x),
        lambda x: x / (1 + jnp.sum(jnp.square(x), -1, keepdims=True)),
        lambda x: jax.nn.log_softmax(x, -1),
    )
    return same(lambda p, x: function(x)), width


def standardized(x: Array, eps: float, groups: int, centered: bool) -> Array:
    """The last axis of x normalized, in groups."""
    parts = x.reshape(*x.shape[:-1], groups, -1)
    if centered:
        parts = parts - jnp.mean(parts, -1, keepdims=True)
    return (parts / jnp.sqrt(jnp.mean(jnp.square(parts), -1, keepdims=True) + eps)).reshape(x.shape)


def norm(b: Builder, width: int) -> tuple[Layer, int]:
    groups = 2 if width % 2 == 0 and b.chance(0.3) else 1
    centered = b.chance(0.6)
    eps = b.pick(1e-6, 1e-5, 1e-3, 0.1) if centered and width // groups < 3 else b.pick(0.0, 1e-6, 1e-5, 0.1)
    leaves = {}
    if b.chance(0.7):
        leaves["gain"] = b.normal(width, scale=0.2, mean=1.0)
    if b.chance(0.5):
        leaves["shift"] = b.normal(width, scale=0.2)
    name = b.group("norm", **leaves) if leaves else ""
    low = b.cast(0.3)

    def run(p, x, low=low):
        y = standardized(x if low is None else x.astype(low), eps, groups, centered).astype(x.dtype)
        y = y * p[name]["gain"] if "gain" in leaves else y
        return y + p[name]["shift"] if "shift" in leaves else y

    return Layer(run, lambda p, x: run(p, x, None)), width


def gain(b: Builder, width: int) -> tuple[Layer, int]:
    kind = b.pick("gain", "shift", "scalar", "exponential", "mixed")
    value = np.array(0.7 + 0.3 * b.rng.normal()) if kind == "scalar" else b.normal(width, mean=0.5)
    name = b.group("gain", value=value)

    def run(p, x):
        v = p[name]["value"]
        match kind:
            case "shift":
                return x + v
            case "exponential":
                return x * jnp.exp(v)
            case "mixed":
                return x * v + jnp.square(v)
            case _:
                return x * v

    return same(run), width


def reparametrized(b: Builder, width: int) -> tuple[Layer, int]:
    """A kernel that is a function of the parameters."""
    kind = b.pick("weight norm", "low rank", "adapter", "masked", "scaled", "symmetric", "resolvent", "column", "outer")
    square = kind in {"symmetric", "resolvent"}
    outputs = width if square else b.pick(2, 3)
    rank = 1
    fixed = b.kernel(width, outputs)
    leaves = {"kernel": b.kernel(width, outputs)}
    match kind:
        case "weight norm":
            leaves["length"] = b.normal(outputs, scale=0.2, mean=1.0)
        case "low rank" | "adapter":
            leaves = {"left": b.kernel(width, rank), "right": b.normal(rank, outputs)}
        case "scaled":
            leaves["scale"] = np.array(0.8)
        case "outer":
            leaves = {"left": b.normal(width), "right": b.normal(outputs)}
    pattern = b.rng.random((width, outputs)) < 0.6
    name = b.group("kernel", **leaves)

    def run(p, x):
        q = p[name]
        match kind:
            case "weight norm":
                w = q["kernel"] / jnp.linalg.norm(q["kernel"], axis=0) * q["length"]
            case "low rank":
                w = q["left"] @ q["right"]
            case "adapter":
                w = jnp.asarray(fixed, x.dtype) + q["left"] @ q["right"]
            case "masked":
                w = jnp.where(pattern, q["kernel"], 0)
            case "scaled":
                w = q["kernel"] * q["scale"]
            case "symmetric":
                w = q["kernel"] + q["kernel"].T
            case "resolvent":
                eye = jnp.eye(width, dtype=q["kernel"].dtype)
                w = jnp.linalg.inv((3 * eye + q["kernel"]).astype(jnp.promote_types(x.dtype, jnp.float32)))
            case "column":
                w = q["kernel"].at[:, 0].multiply(2)
            case _:
                w = q["left"][:, None] * q["right"][None, :]
        return x @ w.astype(jnp.promote_types(x.dtype, q[next(iter(q))].dtype))

    return same(run), outputs


def shared(b: Builder, width: int) -> tuple[Layer, int]:
    """One kernel that is used twice."""
    kind = b.pick("twice", "tied", "residual", "with its bias elsewhere")
    leaves = {"kernel": b.kernel(width, width if kind != "tied" else 2)}
    if kind == "with its bias elsewhere":
        leaves["bias"] = b.normal(width, scale=0.4)
    name = b.group("shared", **leaves)

    def run(p, x):
        w = p[name]["kernel"]
        match kind:
            case "twice":
                return jnp.tanh(x @ w) @ w
            case "tied":
                return jax.nn.gelu(x @ w) @ w.T
            case "residual":
                return x + jnp.tanh(x @ w) + jnp.sin(x @ w)
            case _:
                c = p[name]["bias"]
                return jnp.tanh(x @ w + c) * c

    return same(run), width


def gate(b: Builder, width: int) -> tuple[Layer, int]:
    kind = b.pick("glu", "swiglu", "one kernel", "parameter", "bilinear")
    outputs = b.pick(2, 3) if kind != "parameter" else width
    match kind:
        case "glu" | "swiglu":
            leaves = {"up": b.kernel(width, outputs), "gate": b.kernel(width, outputs)}
        case "one kernel":
            leaves = {"both": b.kernel(width, 2 * outputs), "bias": b.normal(2 * outputs, scale=0.2)}
        case "parameter":
            leaves = {"gate": b.normal(width)}
        case _:
            outputs = 2
            leaves = {"form": b.normal(outputs, width, width, scale=1 / width)}
    name = b.group("gate", **leaves)

    def run(p, x):
        q = p[name]
        match kind:
            case "glu":
                return (x @ q["up"]) * jax.nn.sigmoid(x @ q["gate"])
            case "swiglu":
                return (x @ q["up"]) * jax.nn.silu(x @ q["gate"])
            case "one kernel":
                up, by = jnp.split(x @ q["both"] + q["bias"], 2, -1)
                return up * jax.nn.sigmoid(by)
            case "parameter":
                return x * jax.nn.sigmoid(q["gate"])
            case _:
                return jnp.einsum("...i,kij,...j->...k", x, q["form"], x)

    return same(run), outputs


def residual(b: Builder, width: int) -> tuple[Layer, int]:
    inner, _ = dense(b, width, width)
    first = b.chance(0.5)

    def run(p, x):
        branch = jnp.tanh(inner.run(p, x)) if first else inner.run(p, jnp.tanh(x))
        return x + branch

    return same(run), width


def wrapped(b: Builder, width: int) -> tuple[Layer, int]:
    """A dense layer inside a transformation of JAX."""
    inner, outputs = dense(b, width)
    kind = b.pick("checkpoint", "jit", "map over samples", "vmap", "cond", "switch", "loop")
    name = ""
    if kind == "cond":
        name = b.group("switch", level=np.array(b.pick(-0.5, 0.5)))
    if kind == "switch":
        name = b.group("switch", branch=np.array(b.pick(0, 1)))

    def run(p, x):
        f = lambda x: jnp.tanh(inner.run(p, x))  # noqa: E731
        match kind:
            case "checkpoint":
                return jax.checkpoint(lambda p, x: jnp.tanh(inner.run(p, x)))(p, x)
            case "jit":
                return jax.jit(lambda p, x: jnp.tanh(inner.run(p, x)))(p, x)
            case "map over samples":
                return jax.lax.map(f, x)
            case "vmap":
                return jax.vmap(f)(x)
            case "cond":
                return jax.lax.cond(p[name]["level"] > 0, f, lambda x: 0.5 * f(x), x)
            case "switch":
                return jax.lax.switch(p[name]["branch"], [f, lambda x: 2 * f(x)], x)
            case _:
                y = f(x)
                return jax.lax.fori_loop(0, 2, lambda _, y: jnp.sin(y) + 0.5 * y, y)

    return same(run), outputs


def scanned_layers(b: Builder, width: int) -> tuple[Layer, int]:
    name = b.group("stack", kernels=np.stack([b.kernel(width, width) for _ in range(2)]))

    def run(p, x):
        step = lambda h, w: (jnp.tanh(h @ w).astype(h.dtype), None)  # noqa: E731
        dtype = jnp.promote_types(x.dtype, p[name]["kernels"].dtype)
        return jax.lax.scan(step, x.astype(dtype), p[name]["kernels"])[0]

    return same(run), width


@jax.custom_jvp
def _forward_rule(x):
    return jnp.tanh(x)


_forward_rule.defjvp(lambda x, t: (jnp.tanh(x[0]), (1 - jnp.square(jnp.tanh(x[0]))) * t[0]))


@jax.custom_vjp
def _reverse_rule(x):
    return jnp.tanh(x)


_reverse_rule.defvjp(lambda x: (jnp.tanh(x), jnp.tanh(x)), lambda y, g: (g * (1 - jnp.square(y)),))


def custom_rule(b: Builder, width: int) -> tuple[Layer, int]:
    reverse = b.chance(0.5)
    b.reverse |= reverse
    function = _reverse_rule if reverse else _forward_rule
    return same(lambda p, x: function(x)), width


def rearranged(b: Builder, width: int) -> tuple[Layer, int]:
    kind = b.pick("permutation", "concatenation", "flip", "halves", "constant noise", "repeat")
    order = np.asarray(b.rng.permutation(width))
    kept = b.rng.random(width) < 0.7
    name = b.group("order", index=order) if kind == "permutation" else ""

    def run(p, x):
        match kind:
            case "permutation":
                return x[..., p[name]["index"]]
            case "concatenation":
                return jnp.concatenate([x, jnp.square(x[..., :1])], -1)
            case "flip":
                return jnp.flip(x, -1)
            case "halves":
                return jnp.concatenate([x[..., : width // 2], jnp.tanh(x[..., width // 2 :])], -1)
            case "constant noise":
                return jnp.where(kept, x / 0.7, 0)
            case _:
                return jnp.repeat(x, 2, -1) if width < 3 else x

    outputs = {"concatenation": width + 1, "repeat": 2 * width if width < 3 else width}.get(kind, width)
    return same(run), outputs


def cast(b: Builder, width: int) -> tuple[Layer, int]:
    """A cast to low precision, and back or not."""
    low, back = b.cast(1), b.chance(0.7)
    if low is None:
        return activation(b, width)
    return Layer(lambda p, x: x.astype(low).astype(x.dtype if back else low), lambda p, x: x), width


ANYWHERE = {
    dense: 8,
    activation: 6,
    norm: 6,
    gain: 3,
    reparametrized: 4,
    shared: 3,
    gate: 4,
    residual: 4,
    wrapped: 4,
    scanned_layers: 2,
    custom_rule: 1,
    rearranged: 3,
    cast: 2,
}
"""Layers of [N … F], with their weights in the draw."""


# Layers of sequences [N T F].


def attention(b: Builder, width: int) -> tuple[Layer, int]:
    b.mixes = True
    causal, normalized, separate = b.chance(0.5), b.chance(0.3), b.chance(0.7)
    names = ("query", "key", "value") if separate else ("value",)
    name = b.group("attention", **{k: b.kernel(width, width) for k in names})
    low = b.cast(0.7)

    def run(p, x, low=low):
        q, k, v = (x @ p[name][n] if n in names else x for n in ("query", "key", "value"))
        if normalized:
            q, k = (standardized(a, 1e-6, 1, False) for a in (q, k))
        scores = jnp.einsum("nqf,nkf->nqk", q, k)
        if causal:
            scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
        weights = jax.nn.softmax(scores if low is None else scores.astype(low), -1).astype(scores.dtype)
        return x + jnp.einsum("nqk,nkf->nqf", weights, v)

    return Layer(run, lambda p, x: run(p, x, None)), width


def recurrent(b: Builder, width: int) -> tuple[Layer, int]:
    b.mixes = True
    state = b.pick(1, 2, 3)
    gated = b.chance(0.4)
    leaves = {"input": b.kernel(width, state), "recurrent": b.kernel(state, state), "start": b.normal(state)}
    if gated:
        leaves["gate"] = b.kernel(width, state)
    name = b.group("cell", **leaves)

    def run(p, x):
        q = p[name]
        dtype = jnp.result_type(x, *q.values())

        def step(h, x):
            new = jnp.tanh(x @ q["input"] + h @ q["recurrent"])
            if gated:
                share = jax.nn.sigmoid(x @ q["gate"])
                new = share * h + (1 - share) * new
            return new.astype(dtype), new.astype(dtype)

        start = jnp.broadcast_to(q["start"].astype(dtype), (len(x), state))
        return jnp.swapaxes(jax.lax.scan(step, start, jnp.swapaxes(x, 0, 1))[1], 0, 1)

    return same(run), state


def convolution(b: Builder, width: int) -> tuple[Layer, int]:
    """Over positions, by `jax.lax.conv_general_dilated`; of each channel alone, or of all."""
    b.mixes = True
    each = b.chance(0.3)
    outputs = width if each else b.pick(1, 2, 3)
    kernel = b.normal(2, 1 if each else width, outputs, scale=(2 * width) ** -0.5)
    name = b.group("convolution", kernel=kernel, bias=b.normal(outputs, scale=0.3))

    def run(p, x):
        w = p[name]["kernel"]
        dtype = jnp.result_type(x, w)
        y = jax.lax.conv_general_dilated(
            x.astype(dtype),
            w.astype(dtype),
            (1,),
            "SAME",
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=width if each else 1,
        )
        return y + p[name]["bias"]

    return same(run), outputs


def across_positions(b: Builder, width: int, positions: int) -> tuple[Layer, int]:
    kind = b.pick("positions", "mixer", "noise", "shift")
    b.mixes |= kind in {"mixer", "shift"}
    noise = b.rng.normal(size=(positions, width))
    name = ""
    if kind == "positions":
        name = b.group("position", table=b.normal(positions, width))
    if kind == "mixer":
        name = b.group("mixer", kernel=b.kernel(positions, positions))

    def run(p, x):
        match kind:
            case "positions":
                return x + p[name]["table"]
            case "mixer":
                return x + jnp.einsum("ntf,ts->nsf", x, p[name]["kernel"])
            case "noise":
                return x + jnp.asarray(noise, x.dtype)
            case _:
                return x + jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]

    return same(run), width


SEQUENCES = {attention: 4, recurrent: 3, convolution: 3, across_positions: 4}
"""Layers of [N T F]."""


# Layers of a whole batch: what they give for a row depends on the other rows, or on how many there are.


def batch_layer(b: Builder, width: int, kind: str, cell: list | None = None) -> tuple[Layer, int]:
    """One of `BATCH`; with a cell it takes means over samples with the function it finds there."""
    key = jax.random.key(int(b.rng.integers(2**31)))
    level = float(b.normal(scale=0.1))
    name = b.group("batch", gain=b.normal(width, scale=0.2, mean=1.0)) if kind == "batch norm" else ""

    def mean(x):
        over_samples = cell[0](x) if cell else jnp.mean(x, 0, keepdims=True)
        return jnp.mean(over_samples, tuple(range(x.ndim - 1)), keepdims=True)

    def run(p, x):
        n = len(x)
        index = jnp.arange(n, dtype=x.dtype).reshape(-1, *(1,) * (x.ndim - 1))
        match kind:
            case "batch norm":
                centred = x - mean(x)
                scale = jnp.sqrt(mean(jnp.square(centred)) + 1e-3)
                return centred / scale * p[name]["gain"]
            case "centring":
                return x - mean(x)
            case "softmax over samples":
                return jax.nn.softmax(x, 0)
            case "attention over samples":
                return jnp.einsum("nm,m...->n...", jax.nn.softmax(x.reshape(n, -1) @ x.reshape(n, -1).T, -1), x)
            case "first row":
                return x + 0.5 * x[:1]
            case "last row":
                return x + 0.5 * x[-1:]
            case "neighbour":
                return x + 0.5 * jnp.roll(x, 1, 0)
            case "cumulative":
                return jnp.cumsum(x, 0)
            case "sorted samples":
                return jnp.sort(x, 0)
            case "cond on the mean":
                return jax.lax.cond(jnp.mean(x) > level, jnp.tanh, jnp.sin, x)
            case "largest norm":
                return x / (1 + jnp.max(jnp.abs(x)))
            case "dropout":
                return jnp.where(jax.random.bernoulli(key, 0.6, x.shape), x / 0.6, 0)
            case "noise":
                return x + 0.5 * jax.random.normal(key, x.shape, x.dtype)
            case "random factor of each sample":
                return x * (1 + jax.random.uniform(key, index.shape, x.dtype))
            case "drop path":
                return x + jnp.where(jax.random.bernoulli(key, 0.5, index.shape), 2 * jnp.tanh(x), 0)
            case "position":
                return x + 0.3 * index
            case "position factor":
                return x * (1 + 0.3 * index)
            case "first sample only":
                return jnp.where(index == 0, 2 * x, x)
            case "number of samples":
                return x * n
            case "noise by the number":
                return x * (1 + jax.random.uniform(jax.random.fold_in(key, n), x.shape[-1:], x.dtype))
            case _:
                return x if n < 5 else 2 * x

    return same(run), width


BATCH = (
    "batch norm",
    "batch norm",
    "centring",
    "softmax over samples",
    "attention over samples",
    "first row",
    "last row",
    "neighbour",
    "cumulative",
    "sorted samples",
    "cond on the mean",
    "largest norm",
    "dropout",
    "dropout",
    "dropout",
    "noise",
    "random factor of each sample",
    "drop path",
    "position",
    "position factor",
    "first sample only",
    "number of samples",
    "noise by the number",
    "many samples",
)
"""Kinds of layers of a whole batch."""

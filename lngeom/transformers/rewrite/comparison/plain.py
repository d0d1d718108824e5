"""One part of a model in the basis of another model's stream, with gains and biases of its reading norm in its maps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lngeom.transformers.description import Block, FeedForward, Latent, Linear, Mixture, Norm
from lngeom.transformers.forward import attention, feed_forward, norm, times
from lngeom.transformers.rewrite.comparison.models import Model
from lngeom.transformers.rewrite.comparison.streams import Map, seen
from lngeom.transformers.rewrite.comparison.sweep import Branch, comparable, entering, wide


@dataclass(frozen=True)
class Affine:
    """A linear map as the function sees it.

    A reader has the matrix W diag(γ), and W diag(γ) P where its norm centres, with the offset Wβ + b. A writer has W
    and b, times the factors of channels where there are any, and PW and Pb where the stream is seen without its mean.

    Attributes:
        weight: W [out, in].
        bias: b [out].
        gain: γ [in] of the norm that it reads, or None.
        shift: β [in] of that norm.
        centred: whether that norm centres, or (without a gain) the stream that it writes to does.
        arrays: names of the stored arrays, weight and bias.
        scale: factors of channels [out] of a writer, which are in its weight and bias; None: there are none.
        folded: what of the bias is Wβ [out], folded in from the norm that it reads; None: nothing.
    """

    weight: Float[np.ndarray, "out in"]
    bias: Float[np.ndarray, " out"]
    gain: Float[np.ndarray, " in"] | None
    shift: Float[np.ndarray, " in"] | None
    centred: bool
    arrays: tuple[str, str | None]
    scale: Float[np.ndarray, " out"] | None = None
    folded: Float[np.ndarray, " out"] | None = None

    @property
    def stored(self) -> tuple[str, ...]:
        """Names of the arrays that there are."""
        return tuple(name for name in self.arrays if name is not None)

    @property
    def matrix(self) -> Float[np.ndarray, "out in"]:
        """The matrix that the function sees."""
        return self.with_gain(self.gain)

    def with_gain(self, gain: np.ndarray | None) -> Float[np.ndarray, "out in"]:
        """The matrix with another gain."""
        if gain is None:
            return seen(self.weight.T, self.centred).T
        return seen(self.weight * gain, self.centred)

    @property
    def offset(self) -> Float[np.ndarray, " out"]:
        """The offset that the function sees."""
        if self.shift is None:
            return seen(self.bias, self.centred)
        return self.weight @ self.shift + self.bias

    def on_rows(self, change: Any) -> "Affine":
        """The map after a linear change of its outputs, a function of [out, …]."""
        return replace(self, weight=change(self.weight), bias=change(self.bias[:, None])[:, 0])

    def on_columns(self, change: Any) -> "Affine":
        """The map after a linear change of its inputs, a function of [out, in]."""
        assert self.gain is None
        return replace(self, weight=change(self.weight))


Maps = dict[str, Affine]


@dataclass(frozen=True)
class Plain:
    """A part with maps of its own.

    Attributes:
        block: the block, whose maps have plain names.
        branch: which of its branches.
        maps: the linear maps by name, such as "attention.query".
        vectors: other arrays by name: gains and biases that do not fold, sinks, temperatures, relative tables.
        stored: their names in the checkpoint.
        between: the map from the stream in whose basis the part is to its own; the same map after it, of a post-norm.
        centred: whether the model's stream is seen without its mean.
    """

    block: Block
    branch: Branch
    maps: Maps
    vectors: dict[str, np.ndarray]
    stored: dict[str, str]
    between: tuple[Map, Map]
    centred: bool
    own: bool = field(default=True)

    def output(self, x: Float[np.ndarray, "N T d"]) -> Float[np.ndarray, "N T d"]:
        """What the part adds to the stream x, or the stream after a post-norm part."""
        values: dict[str, np.ndarray] = dict(self.vectors)
        for name, part in self.maps.items():
            values |= {f"{name}.weight": part.matrix, f"{name}.bias": part.offset}
        return wide(self._run, values, x)

    def _run(self, values: Mapping[str, Any], x: np.ndarray) -> Array:
        block, (before, after) = self.block, self.between
        u = before.forth(x) if self.own else x
        found: Any = 0
        for branch in ("attention", "feed_forward") if self.branch == "both" else (self.branch,):
            reading = reading_norm(block, branch)
            n = u if reading is None else np.asarray(norm(reading, {}, jnp.asarray(u)))
            if self.own:
                n = n if before.turn is None else n @ before.turn
                n = n if reading is not None else n / before.scale
            n = jnp.asarray(n)
            if branch == "attention":
                y = attention(block.attention, values, n)
                last = block.attention_writing_norm
            else:
                y = feed_forward(block.feed_forward, values, n)
                last = block.feed_forward_writing_norm
            y = times(block.factor, y)
            if last is not None:
                y = norm(last, values, y)
            found = found + y
        if block.placing == "post":
            last = block.attention_norm if self.branch == "attention" else block.feed_forward_norm
            assert last is not None
            found = norm(last, values, jnp.asarray(u) + found)
        if self.own and not folds_writers(block):  # the scale is in the arrays of the norm that writes
            found = replace(after, scale=1.0).back(np.asarray(found))
        return jnp.asarray(found if self.own else seen(np.asarray(found), self.centred))


def reading_norm(block: Block, branch: Branch) -> Norm | None:
    """The norm that a branch reads, if it is not part of a sum."""
    if block.placing == "post":
        return None
    return block.attention_norm if branch == "attention" or block.shared_norm else block.feed_forward_norm


def folds_writers(block: Block) -> bool:
    """Whether the last maps of the branches write to the stream itself."""
    return block.placing == "pre"


def read_norm(block: Block, name: str) -> tuple[str, Norm | None]:
    """The norm that a map of a block reads, and its path in the block; "" where it reads the stream itself.

    Args:
        block: the block.
        name: of the map, such as "attention.query".
    """
    branch, _, inner = name.partition(".")
    if branch == "attention":
        for latent, part, readers in block.attention.latents():
            if inner in dict(readers):
                return f"attention.{latent}.norm", part.norm
    over = reading_norm(block, "attention" if branch == "attention" else "feed_forward")
    if over is None:
        return "", None
    return "attention_norm" if over is block.attention_norm else "feed_forward_norm", over


def reads_latent(block: Block, name: str) -> bool:
    """Whether a map of a block reads a latent, and not the stream or a norm of it."""
    return read_norm(block, name)[0].startswith("attention.")


def plain(
    model: Model, block: Block, branch: Branch, between: tuple[Map, Map] | None, centred: tuple[bool, bool]
) -> Plain:
    """A part of a model.

    Args:
        model: the model.
        block: the block.
        branch: the part.
        between: maps from the streams in whose basis the part is wanted to its own streams; None: its own basis.
        centred: whether the first model's reading norm centres, and whether this model's stream is seen without its
            mean.

    Returns:
        The part.
    """
    arrays = model.arrays
    scale = 1.0 if between is None else between[1].scale
    maps: Maps = {}
    vectors: dict[str, np.ndarray] = {}
    stored: dict[str, str] = {}

    def vector(path: str, name: str | None, offset: float = 0.0) -> str | None:
        if name is None:
            return None
        vectors[path], stored[path] = np.array(arrays[name], np.float64) + offset, name
        return path

    def bare(path: str, part: Norm | None, keep: bool) -> Norm | None:
        if part is None:
            return None
        if not keep:
            return Norm(part.kind, eps=part.eps)
        gain, bias = vector(f"{path}.gain", part.gain, part.offset), vector(f"{path}.bias", part.bias)
        writes = not path.startswith("attention.")  # not of queries and keys
        for name in (gain, bias) if writes else ():
            if name is not None:
                vectors[name] = vectors[name] / scale
        return Norm(part.kind, gain, bias, 0, part.eps)

    def reader(path: str, part: Linear, over: Norm | None) -> Linear:
        maps[path] = read_through(model, part, over, None if between is None else between[0], centred[0])
        return Linear(f"{path}.weight", f"{path}.bias")

    def latent(
        path: str, part: Latent | None, over: Norm | None
    ) -> tuple[Latent | None, Callable[[str, Linear], Linear]]:
        """A latent whose norm has its gain in its readers, and what makes these."""
        if part is None:
            return None, lambda name, linear: reader(name, linear, over)
        own = None if between is None else Map(1.0, None, (False, False))

        def behind(name: str, linear: Linear) -> Linear:
            maps[name] = read_through(model, linear, part.norm, own, part.norm.centres)
            return Linear(f"{name}.weight", f"{name}.bias")

        norm = bare(f"{path}.norm", part.norm, False)
        assert norm is not None
        return replace(part, linear=reader(f"{path}.linear", part.linear, over), norm=norm), behind

    def writer(path: str, part: Linear) -> Linear:
        W, b = _matrix_and_bias(model, part)
        pulls = folds_writers(block)
        scale_of = block.attention_scale if path.startswith("attention.") else block.feed_forward_scale
        by_channel = None if scale_of is None else np.ravel(np.asarray(arrays[scale_of], np.float64))
        if by_channel is not None:
            W, b = by_channel[:, None] * W, by_channel * b
        if between is not None and pulls:
            W, b = between[1].back(W.T).T, between[1].back(b)
        maps[path] = Affine(W, b, None, None, centred[1] and pulls, (part.weight, part.bias), by_channel)
        return Linear(f"{path}.weight", f"{path}.bias")

    def network(path: str, part: FeedForward, over: Norm | None) -> FeedForward:
        gate = None if part.gate is None else reader(f"{path}.gate", part.gate, over)
        return replace(part, up=reader(f"{path}.up", part.up, over), gate=gate, down=writer(f"{path}.down", part.down))

    post = block.placing == "post"
    new: dict[str, Any] = {"attention_scale": None, "feed_forward_scale": None}
    if branch in {"attention", "both"}:
        a, over = block.attention, reading_norm(block, "attention")
        query_latent, asked = latent("attention.query_latent", a.query_latent, over)
        kv_latent, given = latent("attention.kv_latent", a.kv_latent, over)
        new["attention"] = replace(
            a,
            query=asked("attention.query", a.query),
            key=given("attention.key", a.key),
            value=given("attention.value", a.value),
            query_latent=query_latent,
            kv_latent=kv_latent,
            shared_key=None if a.shared_key is None else reader("attention.shared_key", a.shared_key, over),
            output=writer("attention.output", a.output),
            query_norm=bare("attention.query_norm", a.query_norm, True),
            key_norm=bare("attention.key_norm", a.key_norm, True),
            temperature=vector("attention.temperature", a.temperature),
            sink=vector("attention.sink", a.sink),
            relative=vector("attention.relative", a.relative),
        )
        new["attention_writing_norm"] = bare("attention_writing_norm", block.attention_writing_norm, True)
    if branch in {"feed_forward", "both"}:
        f, over = block.feed_forward, reading_norm(block, "feed_forward")
        if isinstance(f, Mixture):
            gate = None if f.shared_gate is None else reader("feed_forward.shared_gate", f.shared_gate, over)
            new["feed_forward"] = replace(
                f,
                router=reader("feed_forward.router", f.router, over),
                experts=tuple(network(f"feed_forward.experts.{e}", x, over) for e, x in enumerate(f.experts)),
                shared=None if f.shared is None else network("feed_forward.shared", f.shared, over),
                shared_gate=gate,
                choice_bias=vector("feed_forward.choice_bias", f.choice_bias),
            )
        else:
            new["feed_forward"] = network("feed_forward", f, over)
        new["feed_forward_writing_norm"] = bare("feed_forward_writing_norm", block.feed_forward_writing_norm, True)
    new["attention_norm"] = bare("attention_norm", block.attention_norm, post and branch == "attention")
    new["feed_forward_norm"] = bare("feed_forward_norm", block.feed_forward_norm, post and branch == "feed_forward")
    own = between is not None
    nothing = Map(1.0, None, (False, False))
    return Plain(replace(block, **new), branch, maps, vectors, stored, between or (nothing, nothing), centred[1], own)


def _matrix_and_bias(model: Model, part: Linear) -> tuple[np.ndarray, np.ndarray]:
    """W and b of a map, zero where it has no bias."""
    W = np.array(part.matrix(model.arrays[part.weight]), np.float64)
    return W, np.zeros(len(W)) if part.bias is None else np.array(part.offsets(model.arrays[part.bias]), np.float64)


def read_through(model: Model, part: Linear, over: Norm | None, between: Map | None, centred: bool) -> Affine:
    """A map that reads a norm, or the stream itself.

    Args:
        model: the model.
        part: the map.
        over: the norm that it reads; None: the stream.
        between: the map to its stream from the stream in whose basis the map is wanted; None: its own basis.
        centred: whether the first model's norm centres.

    Returns:
        The map; in another basis with γ and β of its norm already in it.
    """
    W, b = _matrix_and_bias(model, part)
    d = W.shape[1]
    gain = np.ones(d) if over is None or over.gain is None else over.offset + np.ravel(model.arrays[over.gain])
    shift = np.zeros(d) if over is None or over.bias is None else np.ravel(model.arrays[over.bias])
    folded = None
    if between is not None:
        folded = W @ shift
        b, W, gain, shift = b + folded, W * gain, np.ones(d), np.zeros(d)
        W = W if between.turn is None else W @ between.turn
        W = W if over is not None else W * between.scale
    return Affine(W, b, gain, shift, centred, (part.weight, part.bias), folded=folded)


def pair(before: Model, after: Model, i: int, branch: Branch, between: tuple[Map, Map]) -> tuple[Plain, Plain]:
    """A part of two models in the basis of the first."""
    one, other = comparable(before.stack.blocks[i], after.stack.blocks[i])
    over = reading_norm(one, "attention" if branch == "both" else branch)
    reads = over is not None and over.centres
    first, centred = plain(before, one, branch, None, (reads, before.centres)), (reads, after.centres)
    second = plain(after, other, branch, (entering(one, branch, between[0]), between[1]), centred)
    return first, second

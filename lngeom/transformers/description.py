r"""Descriptions of transformer stacks: which array plays which role.

A stack is a sum of branches on a residual stream: $x \leftarrow x + M(f(N(x)))$ with a reading norm N and a writing
norm M where there are any, or $x \leftarrow N(x + f(x))$ (post-norm). Arrays are named; a description holds no numbers
of theirs. Every role is stated here and nowhere else. `Stack.spaces` derives which linear maps and norms write to and
read from each space, in order. Predictions and rewrites depend on nothing else.

A linear map is $y = Wx + b$ with W [out, in]. d is the width of the stream, n and n_k the numbers of query heads and of
key/value heads, k and v their widths, f the number of hidden units.
"""

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from lngeom.transformers.parts import Part, shown


def check_power_of_two(block: int | None) -> None:
    """Refuses blocks of a Hadamard matrix that have another size than a power of two.

    Raises:
        ValueError: with the size.
    """
    if block is not None and block & (block - 1):
        raise ValueError(f"the blocks of a Hadamard matrix that acts at run time have a power of two rows; got {block}")


Activation = Literal["relu", "relu2", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh", "identity"]
NormKind = Literal["layer", "rms", "l2"]

INPUTS = ("token", "patch")
"""What tables of inputs have as their index."""

ARRAYS = (
    *("weight", "bias", "gain", "temperature", "sink", "relative", "choice_bias"),
    *("attention_scale", "feed_forward_scale"),
)
"""Fields of parts that name an array."""


@dataclass(frozen=True)
class Rows(Part):
    """Output rows of a fused matrix: `count` runs of `length` rows, the first at `start`, `stride` apart.

    >>> Rows(start=4, length=2, count=2, stride=12).indices()
    array([ 4,  5, 16, 17])
    """

    start: int
    length: int
    count: int = 1
    stride: int = 0

    positive, not_negative = ("length", "count"), ("start", "stride")

    def indices(self) -> np.ndarray:
        """Positions of the rows, in order."""
        return (self.start + self.stride * np.arange(self.count)[:, None] + np.arange(self.length)).reshape(-1)


@dataclass(frozen=True)
class Linear(Part):
    """A linear map y = Wx + b by the names of its arrays.

    Attributes:
        weight: name of the array that holds W.
        bias: name of the array that holds b, or None.
        layout: "oi" if output axes stand first, "io" if input axes do.
        rows: which outputs of a fused array; None: all.
        expert: position along a leading axis of experts; None: there is no such axis.
        input_axes: how many axes of the array are inputs; they are joined, as are the other axes.
        columns: which inputs of a fused array; None: all.
    """

    weight: str
    bias: str | None = None
    layout: Literal["oi", "io"] = "oi"
    rows: Rows | None = None
    expert: int | None = None
    input_axes: int = 1
    columns: Rows | None = None

    positive, not_negative = ("input_axes",), ("expert",)

    def sizes(self, stored: tuple[int, ...]) -> tuple[int, int]:
        """[out, in] of the map whose stored array has this shape."""
        shape = stored if self.expert is None else stored[1:]
        cut = len(shape) - self.input_axes if self.layout == "oi" else self.input_axes
        first, second = int(np.prod(shape[:cut])), int(np.prod(shape[cut:]))
        out, into = (first, second) if self.layout == "oi" else (second, first)
        return _taken(self.rows, out), _taken(self.columns, into)

    def of_expert(self, array: Any) -> Any:
        """The stored array, or this expert's part of it (a view where possible)."""
        return array if self.expert is None else array[self.expert]

    def matrix(self, array: Any) -> Any:
        """W [out, in] from the stored array (NumPy or JAX; a view where possible)."""
        stored = self.of_expert(array)
        if self.layout == "oi":
            found = stored.reshape(-1, int(np.prod(stored.shape[stored.ndim - self.input_axes :])))
        else:
            found = stored.reshape(int(np.prod(stored.shape[: self.input_axes])), -1).T
        found = found if self.rows is None else found[self.rows.indices()]
        return found if self.columns is None else found[:, self.columns.indices()]

    def offsets(self, array: Any) -> Any:
        """B [out] from the stored array of the bias."""
        found = self.of_expert(array).reshape(-1)
        return found if self.rows is None else found[self.rows.indices()]

    def assign(self, array: np.ndarray, matrix: np.ndarray) -> None:
        """Writes `matrix` [out, in] into this map's part of a contiguous stored array."""
        part = self.of_expert(array)
        if self.layout == "oi":
            view = part.reshape(-1, int(np.prod(part.shape[part.ndim - self.input_axes :])))
        else:
            view = part.reshape(int(np.prod(part.shape[: self.input_axes])), -1).T
        rows, columns = (
            np.arange(size) if some is None else some.indices()
            for some, size in zip((self.rows, self.columns), view.shape, strict=True)
        )
        view[rows[:, None], columns] = matrix

    def with_matrix(self, array: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """A copy of the stored array in which this map's part is `matrix` [out, in]."""
        new = np.array(array, order="C")
        self.assign(new, matrix)
        return new

    def with_offsets(self, array: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """A copy of the stored array of the bias in which this map's part is `offsets` [out]."""
        new = np.array(array, order="C")
        view = self.of_expert(new).reshape(-1)
        view[slice(None) if self.rows is None else self.rows.indices()] = offsets
        return new


def _taken(some: Rows | None, every: int) -> int:
    """How many outputs or inputs a map has, of those of its array."""
    return every if some is None else some.length * some.count


@dataclass(frozen=True)
class Norm(Part):
    r"""A norm: γ ⊙ n + β with $n = (x - \bar x)/\sqrt{\mathrm{var} + \varepsilon}$ and its relatives.

    Attributes:
        kind: "layer"; "rms", $x/\sqrt{\overline{x^2} + \varepsilon}$; "l2", $x/\sqrt{\sum x^2 + \varepsilon}$.
        gain: name of the array w with γ = offset + w, or None (γ = 1).
        bias: name of β, or None.
        offset: 1 where the array holds γ − 1 (Gemma), else 0.
        eps: ε, inside the root.
    """

    kind: NormKind
    gain: str | None = None
    bias: str | None = None
    offset: Literal[0, 1] = 0
    eps: float = 0.0

    not_negative = ("eps",)

    @property
    def centres(self) -> bool:
        """Whether it subtracts the mean: then columns along 1 of what writes to it are invisible."""
        return self.kind == "layer"


@dataclass(frozen=True)
class Rotary(Part):
    """Rotary positions: pairs of coordinates of queries and keys turn by position × frequency.

    Attributes:
        frequencies: angle per position of each pair; 2 · len(frequencies) coordinates of each head turn.
        pairing: "half": coordinate i with i + ρ/2 of the ρ rotated ones; "adjacent": 2i with 2i + 1.
        factor: factor on cosine and sine (YaRN's attention factor); 1 elsewhere.
        start: the first coordinate of each head that turns.
    """

    frequencies: tuple[float, ...]
    pairing: Literal["half", "adjacent"] = "half"
    factor: float = 1.0
    start: int = 0

    positive, not_negative = ("factor",), ("start",)

    @property
    def coordinates(self) -> int:
        """ρ, the number of coordinates that turn."""
        return 2 * len(self.frequencies)

    @property
    def turned(self) -> slice:
        """Where the coordinates that turn stand in a head."""
        return slice(self.start, self.start + self.coordinates)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Coordinates that turn together, a pair for each frequency."""
        m = len(self.frequencies)
        found = ((i, i + m) if self.pairing == "half" else (2 * i, 2 * i + 1) for i in range(m))
        return tuple((self.start + i, self.start + j) for i, j in found)


@dataclass(frozen=True)
class Latent(Part):
    """A latent, norm(Wx + b): what further linear maps read in place of the input x.

    Attributes:
        linear: d → width.
        norm: norm of its output.
        width: how many coordinates it has.
    """

    linear: Linear
    norm: Norm
    width: int

    positive = ("width",)


@dataclass(frozen=True)
class Buckets(Part):
    r"""Relative positions that share a row of a table, as of T5: half of the rows for each direction.

    With m = count / 2 rows a direction and e = m // 2, position j seen from i has the row |j − i| if that is below e,
    else $e + \lfloor (m - e) \log(|j - i| / e) / \log(L / e) \rfloor$, m − 1 at most; plus m if j is behind i. The
    logarithms are those of float32.

    Attributes:
        count: how many rows there are.
        largest: L; relative positions from here on share the last row.
    """

    count: int
    largest: int

    positive = ("count", "largest")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count < 4 or self.count % 2 or self.largest <= self.count // 4:
            raise ValueError(
                f"buckets must be an even number, at least 4, with a largest distance above a quarter of it; got "
                f"{self.count} and {self.largest}"
            )

    def rows(self, positions: int) -> np.ndarray:
        """The row [i, j] of each pair of so many positions."""
        return self.of(np.arange(positions)[None] - np.arange(positions)[:, None])

    def unread(self, positions: int | None = None) -> np.ndarray:
        """Rows that no pair of positions reads, of so many positions or of any number."""
        longest = self.largest if positions is None else positions - 1
        return np.setdiff1d(np.arange(self.count), self.of(np.arange(-longest, longest + 1)))

    @property
    def reach(self) -> int:
        """How many positions read every row that any number of them reads."""
        away = np.arange(self.largest + 1)
        return 1 + max(int(np.unique(self.of(sign * away), return_index=True)[1].max()) for sign in (-1, 1))

    def of(self, away: np.ndarray) -> np.ndarray:
        """The row of each relative position j − i."""
        half, exact = self.count // 2, self.count // 4
        far = np.maximum(np.abs(away), 1).astype(np.float32) / np.float32(exact)
        steps = np.log(far) / np.float32(np.log(self.largest / exact)) * np.float32(half - exact)
        coarse = np.minimum(exact + np.trunc(steps).astype(int), half - 1)
        return np.where(np.abs(away) < exact, np.abs(away), coarse) + half * (away > 0)


@dataclass(frozen=True)
class Attention(Part):
    r"""Attention with n query heads and n_k key/value heads; head h reads group h // (n / n_k).

    Scores are scale · q·k, after the norms of q and k and after rotary positions. Then come the cap
    $c \tanh(s/c)$, ALiBi, the relative table, the mask, and the softmax. Queries, or keys and values, may be read from
    a latent, and the last coordinates of all keys may be the same ones (multi-head latent attention, DeepSeek-V2).

    Attributes:
        query: d → n·k, heads in order; from the query latent where there is one.
        key: d → n_k·k; from the latent of keys and values where there is one, and less the shared part of each key.
        value: d → n_k·v; from the latent of keys and values where there is one.
        output: n·v → d.
        heads: n.
        kv_heads: n_k, a divisor of n.
        query_width: k.
        value_width: v.
        scale: factor of the scores; None: 1/√k.
        rotary: rotary positions, or None.
        query_norm: norm of queries, or None. Gains have k entries, or n·k where they differ by head.
        key_norm: norm of keys, or None. Both are normalized or neither.
        norm_over: "head": each head by itself; "all": all heads at once.
        rotary_first: whether rotary positions come before the norms.
        temperature: name of a factor of the scores by head [n], or None.
        cap: c of the soft cap of scores, or None.
        sink: name of an extra logit by head [n] in the softmax's denominator, or None.
        alibi: slopes by head (score −= slope · distance), or None.
        relative: name of a table [n, distances] added to the scores at |i − j|, or None. Blocks may share it.
        buckets: relative positions that share a row of that table, which is then [buckets, n]; None: see above.
        causal: whether a position sees only itself and earlier ones.
        window: how many positions back it sees, itself included; None: all.
        hadamard: size of the blocks of a Hadamard matrix H that turns queries and keys last, see `forward.hadamard`;
            scores do not see it, (Hq)·(Hk) = q·k. None: no such matrix.
        query_latent: what queries are read from; None: the input.
        kv_latent: what keys and values are read from; None: the input.
        shared_key: d → shared_width, the last coordinates of the keys of all heads; None: there are none.
        shared_width: how many coordinates these are.
    """

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    heads: int
    kv_heads: int
    query_width: int
    value_width: int
    scale: float | None = None
    rotary: Rotary | None = None
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    norm_over: Literal["head", "all"] = "head"
    rotary_first: bool = False
    temperature: str | None = None
    cap: float | None = None
    sink: str | None = None
    alibi: tuple[float, ...] | None = None
    relative: str | None = None
    causal: bool = True
    window: int | None = None
    hadamard: int | None = None
    query_latent: Latent | None = None
    kv_latent: Latent | None = None
    shared_key: Linear | None = None
    shared_width: int = 0
    buckets: Buckets | None = None

    positive = ("heads", "kv_heads", "query_width", "value_width", "cap", "window", "hadamard")
    not_negative = ("shared_width",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_power_of_two(self.hadamard)
        if self.hadamard is not None and self.query_width % self.hadamard:
            raise ValueError(f"blocks of {self.hadamard} must divide the head width {self.query_width}")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.kv_heads} key/value heads must divide {self.heads} query heads")
        if self.rotary is not None and self.rotary.turned.stop > self.query_width:
            raise ValueError(
                f"{self.rotary.coordinates} rotary coordinates from {self.rotary.start} on exceed the head width "
                f"{self.query_width}"
            )
        if (self.shared_key is None) != (self.shared_width == 0) or self.shared_width >= self.query_width:
            raise ValueError(
                f"shared_key and shared_width go together, and leave a head of width {self.query_width} a key of its "
                f"own; got {shown(self.shared_key)} and {self.shared_width}"
            )
        if self.shared_key is not None and self.key_norm is not None:
            raise ValueError("a norm of keys does not go with a part of them that all heads share")
        if self.buckets is not None and self.relative is None:
            raise ValueError("buckets are for attention with a relative table: name it")
        if (self.query_norm is None) != (self.key_norm is None):
            raise ValueError("queries and keys must both have a norm, or neither")
        if self.alibi is not None and len(self.alibi) != self.heads:
            raise ValueError(f"ALiBi needs one slope for each of {self.heads} heads; got {len(self.alibi)}")

    @property
    def group(self) -> int:
        """m = n / n_k, the query heads of a key/value head."""
        return self.heads // self.kv_heads

    @property
    def score_scale(self) -> float:
        """Factor of the scores."""
        return self.query_width**-0.5 if self.scale is None else self.scale

    @property
    def key_width(self) -> int:
        """Coordinates of each key that the heads do not share."""
        return self.query_width - self.shared_width

    def readers(self) -> "tuple[tuple[str, Linear], ...]":
        """Linear maps that read its input, with their names."""
        query = (("query", self.query),)
        both = (("key", self.key), ("value", self.value))
        if self.query_latent is not None:
            query = (("query_latent.linear", self.query_latent.linear),)
        if self.kv_latent is not None:
            both = (("kv_latent.linear", self.kv_latent.linear),)
        return (*query, *both, *(() if self.shared_key is None else (("shared_key", self.shared_key),)))

    def latents(self) -> "tuple[tuple[str, Latent, tuple[tuple[str, Linear], ...]], ...]":
        """Each latent with its name, and the linear maps that read it with theirs."""
        found = (
            ("query_latent", self.query_latent, (("query", self.query),)),
            ("kv_latent", self.kv_latent, (("key", self.key), ("value", self.value))),
        )
        return tuple((name, latent, readers) for name, latent, readers in found if latent is not None)

    def writers(self) -> "tuple[tuple[str, Linear], ...]":
        """Linear maps whose sum is its output, with their names."""
        return (("output", self.output),)


@dataclass(frozen=True)
class FeedForward(Part):
    """down(a(up x)), or down(a(gate x) ⊙ up x) where there is a gate.

    With a clamp c it is down(a(min(gate x, c)) ⊙ (max(−c, min(up x, c)) + 1)), as of GPT-OSS. With a Hadamard matrix
    it is down(H a(up x)).

    Attributes:
        up: d → f; the linear factor where there is a gate.
        down: f → d.
        gate: d → f, under the activation, or None.
        activation: a; "relu2" is the square of ReLU, "gelu" the exact one, "gelu_tanh" its tanh approximation.
        clamp: c, see above; None: no bound.
        hadamard: size of the blocks of H, see `forward.hadamard`; None: no such matrix.
    """

    up: Linear
    down: Linear
    gate: Linear | None = None
    activation: Activation = "gelu"
    clamp: float | None = None
    hadamard: int | None = None

    positive = ("clamp", "hadamard")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_power_of_two(self.hadamard)
        if self.clamp is not None and self.gate is None:
            raise ValueError("a clamp is for networks with a gate")

    def readers(self) -> tuple[tuple[str, Linear], ...]:
        """Linear maps that read its input, with their names."""
        return (("up", self.up), *([("gate", self.gate)] if self.gate is not None else []))

    def writers(self) -> tuple[tuple[str, Linear], ...]:
        """Linear maps whose sum is its output, with their names."""
        return (("down", self.down),)


@dataclass(frozen=True)
class Groups(Part):
    """Groups of experts, one after the other in the router's order: only experts of the best groups can be chosen.

    Attributes:
        count: how many groups there are.
        top: how many of them are the best.
        best: a group is as good as the sum of its so many largest scores.
    """

    count: int
    top: int
    best: int = 1

    positive = ("count", "top", "best")


@dataclass(frozen=True)
class Mixture(Part):
    """A mixture of experts: a sum of experts, weighted by a router.

    Attributes:
        router: d → number of experts.
        experts: the experts, in the order of the router's outputs.
        scores: "softmax" or "sigmoid" of the router's outputs.
        top: how many experts with the largest scores are used; None: all.
        renormalize: whether the weights of the experts in use are divided by their sum.
        shared: an expert that is always used, beside the others, or None.
        shared_gate: d → 1, whose sigmoid is the shared expert's weight; None: 1.
        choice_bias: name of a vector [experts] that is added to the scores where experts are chosen, and not to their
            weights; None: there is none.
        groups: groups in which experts are chosen, or None.
        factor: factor of the weights, but for that of the shared expert.
    """

    router: Linear
    experts: tuple[FeedForward, ...]
    scores: Literal["softmax", "sigmoid"] = "softmax"
    top: int | None = None
    renormalize: bool = True
    shared: FeedForward | None = None
    shared_gate: Linear | None = None
    choice_bias: str | None = None
    groups: Groups | None = None
    factor: float = 1.0

    positive = ("factor",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shared_gate is not None and self.shared is None:
            raise ValueError("a mixture with a shared_gate has no shared expert: name it, or leave the gate out")
        if self.top is not None and not 1 <= self.top <= len(self.experts):
            raise ValueError(f"top must be 1 to {len(self.experts)}, the number of experts; got {self.top}")
        if self.top is None and (self.choice_bias is not None or self.groups is not None):
            raise ValueError("choice_bias and groups are for mixtures that choose experts: give top")
        if (groups := self.groups) is not None:
            size, rest = divmod(len(self.experts), groups.count)
            if rest or groups.top > groups.count or groups.best > size or (self.top or 0) > groups.top * size:
                raise ValueError(
                    f"{len(self.experts)} experts must make {groups.count} equal groups of at least {groups.best}, of "
                    f"which the best {groups.top} hold the {self.top} experts in use"
                )

    def readers(self) -> tuple[tuple[str, Linear], ...]:
        """Linear maps that read its input, the router first, with their names."""
        gate = () if self.shared_gate is None else (("shared_gate", self.shared_gate),)
        return (
            ("router", self.router),
            *((f"{at}.{n}", m) for at, e in self.networks() for n, m in e.readers()),
            *gate,
        )

    def writers(self) -> tuple[tuple[str, Linear], ...]:
        """Linear maps whose weighted sum is its output, with their names."""
        return tuple((f"{at}.{n}", m) for at, e in self.networks() for n, m in e.writers())

    def networks(self) -> "tuple[tuple[str, FeedForward], ...]":
        """The experts, the shared one last, with their paths."""
        shared = () if self.shared is None else (("shared", self.shared),)
        return (*((f"experts.{i}", e) for i, e in enumerate(self.experts)), *shared)


@dataclass(frozen=True)
class Block(Part):
    """Attention and feed-forward network on the stream, and where the norms stand.

    Placing: "pre": reading norms; "sandwich": reading and writing norms; "outer": writing norms only, the branches read
    the stream itself; "post": each norm takes the sum of stream and branch, and its output is the new stream.

    Attributes:
        attention: the first branch.
        feed_forward: the second branch.
        placing: see above.
        attention_norm: norm before attention; of "post", the norm after its sum.
        feed_forward_norm: likewise of the second branch; None in a parallel block whose branches share one norm.
        attention_writing_norm: norm of attention's output ("sandwich", "outer").
        feed_forward_writing_norm: likewise of the second branch.
        parallel: whether both branches read the same stream, and their outputs are added together.
        factor: factor of what each branch adds to the stream ("pre" only).
        bare_attention: whether attention reads the stream itself, without a norm ("pre" only).
        attention_scale: name of a factor of each channel [d] of what attention adds to the stream (layer scale), or
            None ("pre" only, not parallel).
        feed_forward_scale: likewise of the second branch.
    """

    attention: Attention
    feed_forward: FeedForward | Mixture
    placing: Literal["pre", "sandwich", "outer", "post"] = "pre"
    attention_norm: Norm | None = None
    feed_forward_norm: Norm | None = None
    attention_writing_norm: Norm | None = None
    feed_forward_writing_norm: Norm | None = None
    parallel: bool = False
    factor: float = 1.0
    bare_attention: bool = False
    attention_scale: str | None = None
    feed_forward_scale: str | None = None

    positive = ("factor",)

    def __post_init__(self) -> None:
        super().__post_init__()
        shared = self.parallel and self.feed_forward_norm is None
        reading = (self.attention_norm is not None or self.bare_attention, self.feed_forward_norm is not None or shared)
        writing = (self.attention_writing_norm is not None, self.feed_forward_writing_norm is not None)
        wanted = {"pre": (1, 0), "sandwich": (1, 1), "outer": (0, 1), "post": (1, 0)}
        reads, writes = wanted[self.placing]
        if (self.placing == "post" or not reads) and self.parallel:
            raise ValueError(f"a parallel block has reading norms; placing is {self.placing!r}")
        if self.bare_attention and (self.placing != "pre" or self.parallel or self.attention_norm is not None):
            raise ValueError(
                "bare_attention is for blocks with placing 'pre', not parallel, without an attention_norm; got "
                f"{self.placing!r}, parallel={self.parallel}, {shown(self.attention_norm)}"
            )
        if self.factor != 1 and self.placing != "pre":
            raise ValueError(f"a factor of the branches is for placing 'pre'; placing is {self.placing!r}")
        scaled = self.attention_scale is not None or self.feed_forward_scale is not None
        if scaled and (self.placing != "pre" or self.parallel):
            raise ValueError(
                f"factors of channels are for blocks with placing 'pre', not parallel; got {self.placing!r}, "
                f"parallel={self.parallel}"
            )
        if reading != (bool(reads),) * 2 or writing != (bool(writes),) * 2:
            raise ValueError(
                f"placing {self.placing!r} needs {2 * reads} of attention_norm and feed_forward_norm and {2 * writes} "
                f"of the writing norms; got {sum(reading)} and {sum(writing)}"
            )

    @property
    def shared_norm(self) -> bool:
        """Whether both branches read one norm's output."""
        return self.parallel and self.feed_forward_norm is None


@dataclass(frozen=True)
class Table(Part):
    """A table whose rows are added to the stream.

    Attributes:
        weight: name of the array.
        index: "token": each input reads one row, by its number; "patch": each input is a vector, which weighs the rows,
            so that the table is a linear map of it; "input": one row, at every input; "type": one row at every input,
            by its type; "leading": rows that stand before the inputs, at positions of their own (class token);
            "position": one row at every position, those of the leading rows included.
        offset: the first position reads this row (OPT: 2).
        scale: factor of the rows (Gemma: √d).
        layout: "rows": the array is [rows, d]; "joined": [..., d], with any axes before the last one, which are joined;
            "columns": [d, ...], likewise.
    """

    weight: str
    index: Literal["token", "patch", "input", "type", "leading", "position"] = "token"
    offset: int = 0
    scale: float = 1.0
    layout: Literal["rows", "joined", "columns"] = "rows"

    not_negative = ("offset",)

    @property
    def linear(self) -> Linear:
        """The table as the map whose matrix has its rows."""
        return Linear(self.weight, layout="io" if self.layout == "columns" else "oi")

    def rows(self, stored: tuple[int, ...]) -> int:
        """How many rows the array of this shape has."""
        return self.linear.sizes(stored)[0]

    def width(self, stored: tuple[int, ...]) -> int:
        """How long a row is."""
        return self.linear.sizes(stored)[1]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale == 0:
            raise ValueError(f"scale of the table {self.weight!r} must not be 0")


@dataclass(frozen=True)
class Convolution(Part):
    """A layer over time: output t is a(Wx + b), of the w inputs around input s·t; beyond both ends they are zero.

    Attributes:
        linear: W and b; the array of W is [out, channels, w] with an odd w, so that `input_axes` is 2.
        stride: s.
        activation: a.
    """

    linear: Linear
    stride: int = 1
    activation: Activation = "gelu"

    positive = ("stride",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.linear != Linear(self.linear.weight, self.linear.bias, input_axes=2):
            raise ValueError(f"the map of a Convolution has input_axes=2, and is a whole array; got {self.linear}")


@dataclass(frozen=True)
class FrontEnd(Part):
    """What the stream begins with where the inputs are read by no table: convolutions of frames over time.

    The stream has one position for as many frames as the product of the strides; an input is these frames, joined. The
    last activation fixes the coordinates of the stream: a change of them does not go into the arrays before it.
    Therefore rewrites carry a front end along as it is.

    Attributes:
        layers: the convolutions, in order; the last one writes to the stream.
    """

    layers: tuple[Convolution, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.layers:
            raise ValueError("a FrontEnd has at least one layer")

    @property
    def frames(self) -> int:
        """How many frames an input has."""
        return math.prod(layer.stride for layer in self.layers)

    def reach(self, shape: Callable[[str], tuple[int, ...]]) -> int:
        """How many positions it takes that all entries of all windows meet an input, of shapes of arrays by name."""
        before, found = 1, 1
        for layer in self.layers:
            half = shape(layer.linear.weight)[2] // 2
            inputs = layer.stride * -(-half // layer.stride) + 1  # of this layer
            found = max(found, -(-inputs * before // self.frames))
            before *= layer.stride
        return found

    def sizes(self, shape: Callable[[str], tuple[int, ...]]) -> tuple[int, int]:
        """How many entries an input has, and the width of the stream, of the shapes of arrays by name."""
        return self.frames * shape(self.layers[0].linear.weight)[1], shape(self.layers[-1].linear.weight)[0]


@dataclass(frozen=True)
class Transform(Part):
    """A layer between the last block and the head, norm(a(Wx + b)), as of BERT.

    Attributes:
        linear: d → d.
        norm: norm of its output.
        activation: a.
    """

    linear: Linear
    norm: Norm
    activation: Activation = "gelu"


@dataclass(frozen=True)
class Head(Part):
    """The map from the last norm's output to logits; without one, that norm's outputs (hidden states) are the outputs.

    Attributes:
        linear: d → V. Its weight may be the table of tokens: then the head is tied. None: there are no logits.
        cap: c of the soft cap c · tanh(z/c) of the logits, or None.
        transform: layer before it, or None.
        untied: name that the matrix of a tied head gets when it becomes an array of its own.
        scale: factor of the logits, before the cap.
        reads: "each": there are logits at each position; "first": at the first one alone (class token).
        mean: d → V of the mean over all positions but the first, which is added to the logits of the first, or None.
    """

    linear: Linear | None
    cap: float | None = None
    transform: Transform | None = None
    untied: str = "lm_head.weight"
    scale: float = 1.0
    reads: Literal["each", "first"] = "each"
    mean: Linear | None = None

    positive = ("cap", "scale")

    def __post_init__(self) -> None:
        super().__post_init__()
        alone = (self.cap, self.transform, self.scale, self.reads, self.mean) == (None, None, 1.0, "each", None)
        if self.linear is None and not alone:
            raise ValueError("a head without a map has nothing else either: its outputs are the hidden states")
        if self.mean is not None and (self.reads != "first" or self.transform is not None or self.mean.bias):
            raise ValueError(
                "a map of the mean is for a head that reads the first position, without a transform; the bias is that "
                "of linear"
            )

    @property
    def map(self) -> Linear:
        """The map to logits, where there is one."""
        assert self.linear is not None
        return self.linear

    @property
    def maps(self) -> tuple[tuple[str, Linear], ...]:
        """The maps to logits, with their names."""
        both = (("linear", self.linear), ("mean", self.mean))
        return tuple((name, part) for name, part in both if part is not None)


@dataclass(frozen=True)
class Site:
    """A linear map, norm, table, front end or activation, and its path, such as `blocks.0.attention.query`."""

    path: str
    part: Any

    def __str__(self) -> str:
        """The path with the arrays' name."""
        name = (
            getattr(self.part, "weight", None) or getattr(self.part, "gain", None) or getattr(self.part, "bias", None)
        )
        return f"{self.path} ({name})" if name else self.path


@dataclass(frozen=True)
class Event:
    """A part writes to a space, or reads what was written before."""

    access: Literal["write", "read"]
    site: Site


@dataclass(frozen=True)
class Space:
    """A vector space that linear maps, tables and norms write to and read from, in order.

    Attributes:
        name: "stream" (of a post-norm stack "stream.0", "stream.1", …), or the path of the norm or branch whose output
            it is, or the path of a latent before its norm.
        events: who writes and reads, in order; a reader sees all earlier writers.
        width: how many coordinates it has; None: as many as the stream.
    """

    name: str
    events: tuple[Event, ...]
    width: int | None = None

    @property
    def residual(self) -> bool:
        """Whether it is the stream, or the sum of the tables before a norm."""
        return self.name.split(".")[0] in {"stream", "embedding"}

    @property
    def writers(self) -> tuple[Site, ...]:
        """Parts whose outputs are added up."""
        return tuple(e.site for e in self.events if e.access == "write")

    @property
    def readers(self) -> tuple[Site, ...]:
        """Parts that take the sum as their input."""
        return tuple(e.site for e in self.events if e.access == "read")

    def readers_after(self, writer: Site) -> tuple[Site, ...]:
        """Readers that see a writer's output."""
        position = self.events.index(Event("write", writer))
        return tuple(e.site for e in self.events[position:] if e.access == "read")

    def writers_before(self, reader: Site) -> tuple[Site, ...]:
        """Writers that a reader sees."""
        position = self.events.index(Event("read", reader))
        return tuple(e.site for e in self.events[:position] if e.access == "write")


@dataclass(frozen=True)
class Stack(Part):
    """A transformer: tables, blocks, final norm, head.

    Attributes:
        tables: tables that are added up; the first is that of the tokens, or the map of the patches. Beside a front end
            they are those of positions and types.
        blocks: the blocks, in order.
        final: norm before the head, or None (post-norm stacks).
        head: map to logits.
        embedding_norm: norm of the sum of the tables (BLOOM, BERT), or None.
        side: linear maps beside the head (poolers, second heads). They read what the head reads, or what the layer
            before it reads. Logits do not depend on them; a rewrite keeps their outputs too.
        front: what reads the inputs in place of a table, and writes to the stream, or None.

    Raises:
        ValueError: if the first table is not that of the inputs, or blocks of post-norm and others are mixed.
    """

    tables: tuple[Table, ...]
    blocks: tuple[Block, ...]
    head: Head
    final: Norm | None = None
    embedding_norm: Norm | None = None
    side: tuple[Linear, ...] = ()
    front: FrontEnd | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = [table.index for table in self.tables]
        if self.front is not None:
            if self.head.linear is not None and self.head.linear.weight in {table.weight for table in self.tables}:
                raise ValueError(
                    f"the head cannot be the table {self.head.linear.weight!r}: it is not that of the inputs"
                )
            if others := [kind for kind in kinds if kind not in {"position", "type"}]:
                raise ValueError(f"tables beside a front end have index 'position' or 'type'; got {others[0]!r}")
        elif not kinds or kinds[0] not in INPUTS or sum(kind in INPUTS for kind in kinds) != 1:
            raise ValueError("tables must begin with the one table that has index 'token' or 'patch'")
        if kinds.count("leading") > 1:
            raise ValueError("at most one table has index 'leading'")
        if self.hidden_states and self.final is None:
            raise ValueError("a stack whose outputs are hidden states has a final norm: they are its output")
        if len({b.placing == "post" for b in self.blocks}) > 1:
            raise ValueError("blocks must all be post-norm, or none")

    @property
    def tied(self) -> bool:
        """Whether the head's matrix is the table of tokens."""
        tokens = self.front is None and self.tables[0].weight
        return self.head.linear is not None and self.head.linear.weight == tokens

    @property
    def hidden_states(self) -> bool:
        """Whether the outputs are hidden states, those of the final norm, and not logits."""
        return self.head.linear is None

    @cached_property
    def spaces(self) -> tuple[Space, ...]:
        """Every space between writers and readers: the stream, each norm's output, branches and latents before a norm.

        Each norm but those of queries and keys writes to exactly one space and reads one.
        """
        return tuple(_spaces(self))

    @cached_property
    def norms(self) -> tuple[Site, ...]:
        """Every norm but those of queries and keys, in order."""
        return tuple(
            e.site for s in self.spaces for e in s.events if e.access == "write" and isinstance(e.site.part, Norm)
        )

    @property
    def inputs(self) -> Literal["token", "patch", "frame"]:
        """What the inputs are: numbers of rows ("token"), or vectors, of a patch or of frames."""
        if self.front is not None:
            return "frame"
        return "patch" if self.tables[0].index == "patch" else "token"

    @property
    def beginning(self) -> tuple[str, ...]:
        """Names of the arrays that make the stream before the first block, those that the inputs meet first."""
        layers = () if self.front is None else self.front.layers
        maps = [name for layer in layers for name in (layer.linear.weight, layer.linear.bias) if name is not None]
        return (*maps, *(table.weight for table in self.tables))

    @property
    def bucket_tables(self) -> dict[str, Buckets]:
        """Relative tables with rows that several relative positions share, each once."""
        found = (block.attention for block in self.blocks)
        return {a.relative: a.buckets for a in found if a.relative is not None and a.buckets is not None}

    def _check_table(self, weights: Mapping[str, Any], d: int) -> None:
        """Names what writes first, not what reads it, where it is not as wide as all else of the stream."""
        widths = {
            size
            for site in self.linears
            for size, wanted in zip(
                site.part.sizes(weights[site.part.weight].shape), _wanted(self, site.path, -1), strict=True
            )
            if wanted == -1
        }
        if len(widths) == 1 and d not in widths:
            if self.front is None:
                name, what = self.tables[0].weight, f"table {self.tables[0].weight!r} must have rows of"
            else:
                name = self.front.layers[-1].linear.weight
                what = f"{name!r} must give"
            raise ValueError(f"{what} {widths.pop()}, as wide as the stream; got {tuple(weights[name].shape)}")

    def width(self, weights: Mapping[str, Any]) -> int:
        """Width d of the stream, of arrays by name."""
        return self.ends(lambda name: tuple(weights[name].shape))[1]

    def ends(self, shape: Callable[[str], tuple[int, ...]]) -> tuple[int, int]:
        """How many entries an input has, or rows to choose from, and the width d, of the shapes of arrays by name."""
        if self.front is not None:
            return self.front.sizes(shape)
        table = self.tables[0]
        return table.rows(shape(table.weight)), table.width(shape(table.weight))

    def leading(self, weights: Mapping[str, Any]) -> int:
        """How many positions stand before the inputs, of arrays by name."""
        return sum(t.rows(tuple(weights[t.weight].shape)) for t in self.tables if t.index == "leading")

    def output_space(self, norm: Site) -> Space:
        """The space that a norm writes to."""
        return next(s for s in self.spaces if norm in s.writers)

    def input_space(self, norm: Site) -> Space:
        """The space that a norm reads."""
        return next(s for s in self.spaces if norm in s.readers)

    @cached_property
    def linears(self) -> tuple[Site, ...]:
        """Every linear map, the head's last."""
        found = [Site(path, part) for path, part in walk(self) if isinstance(part, Linear)]
        return tuple(sorted(found, key=lambda site: site.path.startswith("head")))

    @cached_property
    def arrays(self) -> tuple[str, ...]:
        """Names of all arrays, each once."""
        names: dict[str, None] = {}
        for _, part in walk(self):
            for key in ARRAYS:
                if isinstance(name := getattr(part, key, None), str):
                    names[name] = None
        return tuple(names)

    def check(self, weights: Mapping[str, Any]) -> None:
        """Checks that the arrays have the names and shapes of the description.

        Args:
            weights: arrays by name.

        Raises:
            TypeError: if they are no mapping, or one of them is no array of numbers.
            ValueError: naming the first array that is missing or has another shape.
        """
        if not isinstance(weights, Mapping):
            raise TypeError(f"arrays must be a dict from their names to arrays; got {shown(weights)}")
        missing = [name for name in self.arrays if name not in weights]
        if missing:
            near = difflib.get_close_matches(missing[0], list(weights), 1)
            guess = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(
                f"the description names {missing[0]!r} ({len(missing)} in all), which the weights lack{guess}"
            )
        for name in self.arrays:
            _check_array(name, weights[name])
        for table in self.tables:
            if not len(weights[table.weight].shape):
                raise ValueError(f"table {table.weight!r} must have rows; it is a single number")
        if self.front is not None:
            _check_front(self.front, weights)
        d = self.width(weights)
        self._check_table(weights, d)
        for site in self.linears:
            shape = site.part.sizes(weights[site.part.weight].shape)
            wanted = _wanted(self, site.path, d)
            if any(w is not None and w != s for w, s in zip(wanted, shape, strict=True)):
                raise ValueError(f"{site} must have [out, in] = {list(wanted)}; got {list(shape)}")
        for path, part in walk(self):
            if isinstance(part, FeedForward):
                _check_units(path, part, weights)
            if isinstance(part, FeedForward) and part.hadamard is not None:
                units = part.down.sizes(weights[part.down.weight].shape)[1]
                if units % part.hadamard:
                    raise ValueError(f"{path}: blocks of {part.hadamard} must divide its {units} hidden units")
            if isinstance(part, Attention) and part.buckets is not None and part.relative is not None:
                shape, wanted = tuple(weights[part.relative].shape), (part.buckets.count, part.heads)
                if shape != wanted:
                    raise ValueError(f"{part.relative!r} of {path} must have shape {wanted}; got {shape}")
            if isinstance(part, Mixture) and part.choice_bias is not None:
                shape, wanted = tuple(weights[part.choice_bias].shape), (len(part.experts),)
                if shape != wanted:
                    raise ValueError(f"{part.choice_bias!r} of {path} must have shape {wanted}; got {shape}")
        for site in self.norms:
            size = self.output_space(site).width or d
            for name in filter(None, (site.part.gain, site.part.bias)):
                if tuple(weights[name].shape) != (size,):
                    raise ValueError(
                        f"{name!r} of {site.path} must have shape ({size},); got {tuple(weights[name].shape)}"
                    )
        for i, block in enumerate(self.blocks):
            for key in ("attention_scale", "feed_forward_scale"):
                name = getattr(block, key)
                if name is not None and tuple(weights[name].shape) != (d,):
                    raise ValueError(
                        f"{name!r} of blocks.{i}.{key} must have shape ({d},); got {tuple(weights[name].shape)}"
                    )
        for table in self.tables:
            shape = tuple(weights[table.weight].shape)
            if table.width(shape) != d or (len(shape) != 2 and table.layout == "rows"):
                raise ValueError(f"table {table.weight!r} must have rows of {d}; got {shape}")
            if table.index == "input" and table.rows(shape) != 1:
                raise ValueError(f"table {table.weight!r} must have one row; got {shape}")


def _check_units(path: str, part: FeedForward, weights: Mapping[str, Any]) -> None:
    """Checks that the whole arrays of a network have the same hidden units; parts of arrays are those of the config.

    Raises:
        ValueError: naming an array with others.
    """
    maps = {name: linear for name in ("up", "gate", "down") if (linear := getattr(part, name)) is not None}
    units = {
        name: linear.sizes(weights[linear.weight].shape)[name == "down"]
        for name, linear in maps.items()
        if linear.rows is None
    }
    most = max(units.values(), key=list(units.values()).count, default=0)
    for name, found in units.items():
        if found != most:
            raise ValueError(f"{maps[name].weight!r} of {path}.{name} must have {most} hidden units; got {found}")


def _check_front(front: FrontEnd, weights: Mapping[str, Any]) -> None:
    """Checks that the layers of a front end fit together.

    Raises:
        ValueError: naming an array of another shape.
    """
    channels = None
    for layer in front.layers:
        shape = tuple(weights[layer.linear.weight].shape)
        if len(shape) != 3 or 0 in shape or not shape[2] % 2 or shape[1] != (channels or shape[1]):
            raise ValueError(
                f"{layer.linear.weight!r} must have shape [out, {channels or 'channels'}, an odd number]; got {shape}"
            )
        channels = shape[0]
        bias = layer.linear.bias
        if bias is not None and tuple(weights[bias].shape) != (channels,):
            raise ValueError(f"{bias!r} must have shape ({channels},); got {tuple(weights[bias].shape)}")


def check_stack(stack: Any) -> None:
    """Refuses what is no description.

    Raises:
        TypeError: naming what it is.
    """
    if not isinstance(stack, Stack):
        raise TypeError(f"a model must be described (lg.Stack); got {shown(stack)}")


def _check_array(name: str, value: Any) -> None:
    """Refuses what is no array of numbers.

    Raises:
        TypeError: naming the array, and how to make it one.
    """
    numbers = isinstance(getattr(value, "dtype", None), np.dtype) and value.dtype.kind not in "OSUTMmc"
    if numbers and not isinstance(value, np.ma.MaskedArray):
        return
    found, remedy = shown(value), "make it one with np.asarray"
    if type(value).__module__.startswith("torch"):
        remedy = "convert it with tensor.detach().numpy(), bfloat16 by way of tensor.float()"
    elif isinstance(value, np.ma.MaskedArray):
        remedy = "give what is masked a value with filled()"
    elif isinstance(getattr(value, "dtype", None), np.dtype):
        found, remedy = f"an array of dtype {value.dtype}", "give it a dtype of real numbers"
    raise TypeError(f"{name!r} must be a NumPy or JAX array of real numbers; got {found}: {remedy}")


def walk(part: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every part of a description with its path, from the outside in."""
    if isinstance(part, tuple):
        for i, inner in enumerate(part):
            if is_dataclass(inner):
                yield from walk(inner, f"{path}.{i}")
    elif is_dataclass(part):
        yield path, part
        for field in fields(part):
            inner = getattr(part, field.name)
            if is_dataclass(inner) or isinstance(inner, tuple):
                yield from walk(inner, f"{path}.{field.name}" if path else field.name)


def exchange(stack: Stack, new: Mapping[str, Part]) -> Stack:
    """The description with other parts at some paths.

    Args:
        stack: the description.
        new: parts by path, as in `walk`.

    Returns:
        The new description.
    """

    def rebuild(part: Any, path: str) -> Any:
        if path in new:
            return new[path]
        if isinstance(part, tuple):
            return tuple(rebuild(inner, f"{path}.{i}") for i, inner in enumerate(part))
        if not is_dataclass(part) or isinstance(part, type):
            return part
        changed = {f.name: rebuild(getattr(part, f.name), f"{path}.{f.name}" if path else f.name) for f in fields(part)}
        return replace(part, **changed)

    return rebuild(stack, "")


def _wanted(stack: Stack, path: str, d: int) -> tuple[int | None, int | None]:
    """[out, in] that a description asks of a linear map; None: anything."""
    steps = path.split(".")
    if steps[0] == "blocks":
        block = stack.blocks[int(steps[1])]
        a = block.attention
        if steps[-2] in {"query_latent", "kv_latent"}:
            return getattr(a, steps[-2]).width, d
        asked, given = (d if latent is None else latent.width for latent in (a.query_latent, a.kv_latent))
        sizes = {
            "query": (a.heads * a.query_width, asked),
            "key": (a.kv_heads * a.key_width, given),
            "value": (a.kv_heads * a.value_width, given),
            "shared_key": (a.shared_width, d),
            "output": (d, a.heads * a.value_width),
            "router": (len(getattr(block.feed_forward, "experts", ())), d),
            "shared_gate": (1, d),
            "down": (d, None),
        }
        return sizes.get(steps[-1], (None, d))
    if steps[0] == "front":
        return None, None
    return (d, d) if "transform" in steps else (None, d)


class _Spaces:
    """Collects the spaces of a stack while its parts are visited in order."""

    def __init__(self) -> None:
        self.streams: list[list[Event]] = [[]]
        self.others: list[Space] = []

    def write(self, site: Site) -> None:
        """A part writes to the stream."""
        self.streams[-1].append(Event("write", site))

    def read(self, site: Site) -> None:
        """A part reads the stream."""
        self.streams[-1].append(Event("read", site))

    def restart(self, norm: Site) -> None:
        """A norm reads the stream, and its output is a new stream."""
        self.read(norm)
        self.streams.append([Event("write", norm)])

    def inner(self, name: str, writers: Iterable[Site], readers: Iterable[Site], width: int | None = None) -> None:
        """A space beside the stream."""
        events = (*(Event("write", w) for w in writers), *(Event("read", r) for r in readers))
        self.others.append(Space(name, events, width))

    def latents(self, at: str, attention: Attention) -> None:
        """The spaces before and after the norm of each latent."""
        for name, latent, readers in attention.latents():
            norm = Site(f"{at}.{name}.norm", latent.norm)
            self.inner(f"{at}.{name}", [Site(f"{at}.{name}.linear", latent.linear)], [norm], latent.width)
            self.inner(norm.path, [norm], [Site(f"{at}.{inner}", part) for inner, part in readers], latent.width)

    def block(self, at: str, block: Block) -> None:
        """Both branches of a block, in order."""
        branches = (
            ("attention", block.attention, block.attention_norm, block.attention_writing_norm),
            ("feed_forward", block.feed_forward, block.feed_forward_norm, block.feed_forward_writing_norm),
        )

        def reads(which: int) -> None:
            name, branch, norm, _ = branches[which]
            inputs = [Site(f"{at}.{name}.{inner}", part) for inner, part in branch.readers()]
            if which and block.shared_norm:
                return
            if norm is None or block.placing == "post":
                for site in inputs:
                    self.read(site)
                return
            if block.shared_norm:
                inputs += [Site(f"{at}.{branches[1][0]}.{inner}", part) for inner, part in branches[1][1].readers()]
            site = Site(f"{at}.{name}_norm", norm)
            self.read(site)
            self.inner(site.path, [site], inputs)

        def writes(which: int) -> None:
            name, branch, norm, writing = branches[which]
            if branch is block.attention:
                self.latents(f"{at}.{name}", block.attention)
            outputs = [Site(f"{at}.{name}.{inner}", part) for inner, part in branch.writers()]
            if writing is not None:
                site = Site(f"{at}.{name}_writing_norm", writing)
                self.inner(f"{at}.{name}", outputs, [site])
                outputs = [site]
            for site in outputs:
                self.write(site)
            if block.placing == "post" and norm is not None:
                self.restart(Site(f"{at}.{name}_norm", norm))

        steps = ((reads, 0), (writes, 0), (reads, 1), (writes, 1))
        if block.parallel:
            steps = ((reads, 0), (reads, 1), (writes, 0), (writes, 1))
        for step, which in steps:
            step(which)


def _spaces(stack: Stack) -> Iterator[Space]:
    """The spaces of a stack, the stream first."""
    found = _Spaces()
    if stack.front is not None:
        found.write(Site("front", stack.front))
    for i, table in enumerate(stack.tables):
        found.write(Site(f"tables.{i}", table))
    if stack.embedding_norm is not None:
        found.restart(Site("embedding_norm", stack.embedding_norm))
    for i, block in enumerate(stack.blocks):
        found.block(f"blocks.{i}", block)
    last = Site("head", stack.head) if stack.head.linear is None else Site("head.linear", stack.head.linear)
    if (transform := stack.head.transform) is not None:
        norm = Site("head.transform.norm", transform.norm)
        found.inner("head.transform", [Site("head.transform.activation", transform.activation)], [norm])
        found.inner(norm.path, [norm], [last])
        last = Site("head.transform.linear", transform.linear)
    means = [] if stack.head.mean is None else [Site("head.mean", stack.head.mean)]
    ends = [last, *means, *(Site(f"side.{i}", part) for i, part in enumerate(stack.side))]
    if stack.final is not None:
        norm = Site("final", stack.final)
        found.read(norm)
        found.inner(norm.path, [norm], ends)
    else:
        for site in ends:
            found.read(site)
    post = any(b.placing == "post" for b in stack.blocks)
    for i, events in enumerate(found.streams):
        name = f"stream.{i}" if post else ("stream" if i == len(found.streams) - 1 else "embedding")
        yield Space(name, tuple(events))
    yield from found.others

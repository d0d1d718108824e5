r"""A canonical form of a stack's weights: one point of each orbit of the symmetry group.

Norms are folded, readers and writers centred, offsets moved to one place. The stream is turned to the eigenvectors of
$E^\top E$, E the table of tokens. Queries against keys and values against outputs are brought to balanced singular
vectors (under rotary positions: to balanced complex numbers), units to equal norms. What can be permuted is sorted.
The result depends continuously on the weights where eigenvalues and singular values are apart.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from lngeom.transformers.arrays import StackArrays
from lngeom.transformers.coverage import require_covered
from lngeom.transformers.description import Attention, Block, FeedForward, Linear, Mixture, Norm, Stack, check_stack
from lngeom.transformers.fields import can_turn_freely, centring, complement
from lngeom.transformers.readings import (
    Reader,
    Reading,
    absorbing,
    can_absorb,
    carries_values,
    keys_are_relative,
    output_heads,
    pairs_by_frequency,
    readings,
    summed_outputs,
    unsettled,
    value_carrier,
    weights_are_constant,
)

HOMOGENEOUS = {"relu": 1.0, "relu2": 2.0}
"""a(cx) = c^p a(x) for c > 0."""


@dataclass(frozen=True)
class Canonical:
    """A canonical form.

    Attributes:
        stack: the description, as given.
        weights: arrays by name in float64.
        gap: smallest relative distance of eigenvalues and singular values that fix a basis, or of a sign from being
            undefined. Rounding errors of the weights are multiplied by up to its inverse.
        narrowest: where that gap is.
    """

    stack: Stack
    weights: dict[str, np.ndarray]
    gap: float
    narrowest: str


def canonical(stack: Stack, weights: Mapping[str, Any]) -> Canonical:
    """The canonical form of the weights of a stack; its function is theirs.

    Weights that differ by a symmetry, discrete ones included, have one canonical form up to rounding.

    Args:
        stack: a pre-norm stack, not tied, without an embedding norm and without norms of queries and keys.
        weights: arrays by name.

    Returns:
        The canonical form, and how well it is conditioned.

    Raises:
        TypeError: if there is no description, or arrays are no arrays.
        ValueError: for other stacks, naming what is not covered.
    """
    form = Form(stack, weights)
    return Canonical(stack, form.values, form.gap, form.narrowest)


def require_canonical(stack: Stack, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuses stacks that have no canonical form here.

    Raises:
        ValueError: naming the part.
    """
    require_covered(stack, shapes)

    def refuse(what: str) -> None:
        raise ValueError(f"no canonical form for {what}; compare functions by their logits")

    if not can_turn_freely(stack):
        refuse(
            "a tied head (untie first)"
            if stack.tied
            else "an embedding norm"
            if stack.embedding_norm is not None
            else f"placing {stack.blocks[0].placing!r}"
        )
    if stack.head.transform is not None:
        refuse("a layer before the head")
    tables = [b.attention.relative for b in stack.blocks if b.attention.relative is not None]
    if len(set(tables)) < len(tables):
        refuse("a relative table that several blocks share")
    for i, block in enumerate(stack.blocks):
        a = block.attention
        if a.query_norm is not None:
            refuse(f"normalized queries and keys (blocks.{i}.attention)")
        if any(len(pairs) > 1 for pairs in pairs_by_frequency(a)[0]):
            refuse(f"rotary pairs of one frequency (blocks.{i}.attention)")
        network = block.feed_forward
        for e in network.experts if isinstance(network, Mixture) else (network,):
            if e.gate is not None and e.activation in {"identity", *HOMOGENEOUS}:
                refuse(f"a homogeneous activation under a gate (blocks.{i}.feed_forward)")


class Form(StackArrays):
    """Arrays in canonical form.

    Attributes:
        gap: see `Canonical`.
        narrowest: see `Canonical`.
        centred: whether every norm on the stream centres.
    """

    def __init__(self, stack: Stack, weights: Mapping[str, Any]):
        check_stack(stack)
        stack.check(weights)
        require_canonical(stack, {name: tuple(np.shape(weights[name])) for name in weights})
        super().__init__(stack, weights)
        self.values = {name: np.array(v, np.float64, order="C") for name, v in self.values.items()}
        self.gap, self.narrowest = np.inf, "nothing"
        self.centred = all(r.norm.centres for r in readings(self) if r.norm is not None)
        self._run()

    def put(self, part: Linear, matrix: np.ndarray) -> None:
        """Sets W."""
        self.values[part.weight].reshape(-1)[part.matrix(self.index(part.weight))] = matrix

    def put_offsets(self, part: Linear, offsets: np.ndarray) -> None:
        """Sets b, where there is one."""
        if part.bias is not None:
            self.values[part.bias].reshape(-1)[part.offsets(self.index(part.bias))] = offsets

    def put_norm(self, norm: Norm, gain: float, bias: np.ndarray) -> None:
        """Sets a constant gain and β."""
        if norm.gain is not None:
            self.values[norm.gain][...] = gain - norm.offset
        if norm.bias is not None:
            self.values[norm.bias][...] = bias.reshape(self.values[norm.bias].shape)

    def margin(self, value: float, where: str) -> None:
        """Records how far a sign or an angle is from being undefined."""
        if value < self.gap:
            self.gap, self.narrowest = float(value), where

    def note(self, values: Float[np.ndarray, " n"], where: str) -> None:
        """Records the gaps of values in falling order, and the distance of the last from zero."""
        if not len(values):
            return
        gaps = np.diff(np.append(values, 0.0)) * -1.0
        self.margin(float(np.min(gaps)) / float(values[0]) if values[0] > 0 else 0.0, where)

    def _run(self) -> None:
        """All steps."""
        for reading in readings(self):
            self.fold(reading)
        self.centre_writers()
        for block in self.stack.blocks:
            self.one_place(block)
        self.tables()
        self.softmaxes()
        self.turn()
        for i, block in enumerate(self.stack.blocks):
            at = f"blocks.{i}"
            self.temperature(block.attention)
            self.queries(block.attention, f"{at}.attention")
            self.outputs(block, f"{at}.attention")
            self.loose_values(block)
            self.networks(block.feed_forward)
            self.sort_heads(block.attention)
            self.sort_experts(block.feed_forward)

    # Norms, offsets and the stream.

    def fold(self, reading: Reading) -> None:
        """W ← WDP and b ← b + Wβ; where offsets have no bias, β stays, as 1 under centring and as β/γ elsewhere."""
        norm = reading.norm
        assert norm is not None
        d, gain, beta = self.width, self.gain(norm), self.bias(norm)
        P = centring(d, norm.centres)
        stuck = [r for r in reading.readers if norm.bias is not None and unsettled_alone(r).any()]
        lever = norm.centres and bool(stuck)
        if stuck and not norm.centres:
            rows = sum(int(unsettled_alone(r).sum()) for r in stuck)
            if rows < d:
                raise ValueError(f"no canonical form for a bias β ({norm.bias}) that {rows} rows of readers see")
            for r in reading.readers:
                self.put(r.part, self.matrix(r.part) * gain)
            self.put_norm(norm, 1.0, beta / gain)
            return
        for r in reading.readers:
            W = self.matrix(r.part)
            offset = W @ beta
            new = W * gain @ P
            if r.part.bias is not None:
                self.put_offsets(r.part, self.offsets(r.part) + offset)
            elif r.carrier is not None:
                self.carry(r.carrier, offset)
            elif lever:
                new = new + np.outer(np.where(r.hidden, 0, offset), np.ones(d) / d)
            self.put(r.part, new)
        self.put_norm(norm, 1.0, np.full(d, float(lever)))

    def shift_output(self, branch: Attention | FeedForward | Mixture, value: np.ndarray) -> None:
        """Adds a vector to a branch's output, through its biases."""
        for part in absorbing(branch):
            self.put_offsets(part, self.offsets(part) + value)

    def carry(self, block: Block, value: np.ndarray) -> None:
        """Moves an offset of values into an output bias."""
        self.shift_output(value_carrier(block), summed_outputs(self, block.attention) @ value)

    def centre_writers(self) -> None:
        """Columns along 1 of what writes to the stream, where every reader centres."""
        if not self.centred:
            return
        P = centring(self.width)
        for table in self.stack.tables:
            self.values[table.weight][...] = self.values[table.weight] @ P
        for part in self.writers():
            self.put(part, P @ self.matrix(part))
            self.put_offsets(part, P @ self.offsets(part))

    def writers(self) -> Iterator[Linear]:
        """Every map that writes to the stream."""
        for block in self.stack.blocks:
            for branch in (block.attention, block.feed_forward):
                yield from (part for _, part in branch.writers())

    def one_place(self, block: Block) -> None:
        """Moves offsets that nothing tells apart to one place."""
        a = block.attention
        if keys_are_relative(a) and a.key.bias is not None:
            new = self.offsets(a.key).reshape(a.kv_heads, -1)
            new[:, pairs_by_frequency(a)[1]] = 0
            self.put_offsets(a.key, new.reshape(-1))
        if carries_values(block) and a.value.bias is not None:
            self.carry(block, self.offsets(a.value))
            self.put_offsets(a.value, np.zeros(a.kv_heads * a.value_width))
        if a.relative is not None and a.sink is None:
            self.values[a.relative] -= self.values[a.relative].mean(1, keepdims=True)
        if block.parallel and can_absorb(a) and can_absorb(block.feed_forward):
            self.shift_output(block.feed_forward, self.offsets(a.output))
            self.put_offsets(a.output, np.zeros(self.width))

    def tables(self) -> None:
        """The mean of each further table goes to the table of tokens."""
        first, *rest = self.stack.tables
        for table in rest:
            rows = self.values[table.weight][table.offset :]
            mean = rows.mean(0)
            rows -= mean
            self.values[first.weight][first.offset :] += mean * table.scale / first.scale
        for table in self.stack.tables:
            self.values[table.weight][: table.offset] = 0

    def softmaxes(self) -> None:
        """Shifts of all logits, of the head and of routers, to zero."""
        head = self.stack.head
        parts = [head.map] if head.cap is None else []
        for block in self.stack.blocks:
            if isinstance(network := block.feed_forward, Mixture):
                if weights_are_constant(network):
                    self.put(network.router, 0 * self.matrix(network.router))
                    self.put_offsets(network.router, np.zeros(len(network.experts)))
                elif network.scores == "softmax":
                    parts.append(network.router)
        for part in parts:
            W, b = self.matrix(part), self.offsets(part)
            self.put(part, W - W.mean(0))
            self.put_offsets(part, b - b.mean())

    def turn(self) -> None:
        """The stream's basis: eigenvectors of EᵀE, on a fixed frame of the complement of 1 where readers centre."""
        d = self.width
        first = self.stack.tables[0]
        E = self.values[first.weight][first.offset :]
        values, vectors = np.linalg.eigh(E.T @ E)
        values, vectors = values[::-1], vectors[:, ::-1]
        kept = d - self.centred
        self.note(np.sqrt(np.maximum(values[:kept], 0)), "token table")
        vectors = vectors[:, :kept] * self.signs((E @ vectors[:, :kept]).T, "token table")
        frame = complement(d) if self.centred else np.eye(d)
        Q = frame @ vectors.T + self.centred * np.ones((d, d)) / d
        scale = 1.0
        if all(r.norm.eps == 0 for r in readings(self) if r.norm is not None):
            scale = np.sqrt(E.size) / np.linalg.norm(E)
        for table in self.stack.tables:
            self.values[table.weight][...] = scale * self.values[table.weight] @ Q.T
        for part in self.writers():
            self.put(part, scale * Q @ self.matrix(part))
            self.put_offsets(part, scale * Q @ self.offsets(part))
        for reading in readings(self):
            assert reading.norm is not None
            for r in reading.readers:
                self.put(r.part, self.matrix(r.part) @ Q.T)
            self.put_norm(reading.norm, 1.0, Q @ self.bias(reading.norm))

    # Attention.

    def temperature(self, a: Attention) -> None:
        """The factor of scores goes into the queries."""
        if a.temperature is not None:
            tau = self.values[a.temperature]
            self.on_heads(a.query, a.heads, np.eye(a.query_width) * tau.reshape(-1, 1, 1))
            tau[...] = 1

    def on_heads(self, part: Linear, heads: int, field: np.ndarray) -> None:
        """W^h ← X^h W^h, b^h ← X^h b^h."""
        W = self.matrix(part)
        self.put(part, (field @ W.reshape(heads, -1, W.shape[1])).reshape(W.shape))
        b = self.offsets(part).reshape(heads, -1, 1)
        self.put_offsets(part, (field @ b).reshape(-1))

    def shown(self, part: Linear, heads: int, offset: bool) -> np.ndarray:
        """W [heads k d(+1)], with the bias as a column."""
        W, b = self.matrix(part), self.offsets(part)
        joined = np.concatenate([W, b[:, None]], 1) if offset else W
        return joined.reshape(heads, -1, joined.shape[1])

    def queries(self, a: Attention, where: str) -> None:
        """Balanced singular vectors of QᵀK, or balanced complex numbers of rotary pairs."""
        queries = self.shown(a.query, a.heads, True).reshape(a.kv_heads, a.group, a.query_width, -1)
        keys = self.shown(a.key, a.kv_heads, not keys_are_relative(a) or a.rotary is not None)
        classes, still = pairs_by_frequency(a)
        fields = np.zeros((a.kv_heads, a.query_width, a.query_width))
        for g in range(a.kv_heads):
            Q, K = queries[g].transpose(1, 0, 2).reshape(a.query_width, -1), keys[g]
            for ((i, j),) in classes:
                fields[g][np.ix_((i, j), (i, j))] = self.balanced_pair(Q[[i, j]], K[[i, j]], where)
            if still:
                fields[g][np.ix_(still, still)] = self.balanced(K[still], Q[still], f"{where}, keys of group {g}")
        self.on_heads(a.key, a.kv_heads, fields)
        inverse = np.linalg.inv(fields).transpose(0, 2, 1)
        self.on_heads(a.query, a.heads, np.repeat(inverse, a.group, 0))

    def balanced_pair(self, queries: np.ndarray, keys: np.ndarray, where: str) -> np.ndarray:
        """The complex number, as a matrix [2 2], after which a pair of keys is as large as its queries, and turned."""
        z = keys[0] + 1j * keys[1]
        direction = np.sum(z * np.abs(z) ** 2)
        self.margin(abs(direction) / np.sum(np.abs(z) ** 3), f"{where}, angle")
        c = np.sqrt(np.linalg.norm(queries) / np.linalg.norm(keys)) * np.conj(direction) / abs(direction)
        return np.array([[c.real, -c.imag], [c.imag, c.real]])

    def signs(self, rows: np.ndarray, where: str) -> np.ndarray:
        """The sign of Σ x³ of each row, which no order of its entries changes."""
        cubes = np.sum(rows**3, axis=1)
        sizes = np.sum(np.abs(rows) ** 3, axis=1)
        self.margin(float(np.min(np.abs(cubes) / np.where(sizes > 0, sizes, 1), initial=1)), f"{where}, sign")
        return np.where(cubes < 0, -1.0, 1.0)

    def balanced(self, first: np.ndarray, second: np.ndarray, where: str) -> np.ndarray:
        """X for which X·first and X⁻ᵀ·second are singular vectors of firstᵀ·second, times √σ each."""
        q, r = np.linalg.qr(first.T)
        t = np.linalg.qr(second.T)[1]
        u, s, _ = np.linalg.svd(r @ t.T)
        k = len(first)
        s = np.concatenate([s, np.zeros(max(0, k - len(s)))])[:k]
        self.note(s, where)
        if r.shape[0] < k or s[-1] <= 1e-13 * s[0]:
            self.margin(0.0, where)
            return np.eye(k)
        new = np.sqrt(s)[:, None] * (q @ u).T
        new *= self.signs(new, where)[:, None]
        return new @ np.linalg.pinv(first)

    def outputs(self, block: Block, where: str) -> None:
        """Balanced singular vectors of the products of outputs and values."""
        a = block.attention
        n, m, v = a.kv_heads, a.group, a.value_width
        # An offset of values is left out: a part of it may be invisible.
        values = (self.matrix(a.value) @ centring(self.width, self.centred)).reshape(n, v, -1)
        O = output_heads(self, a).reshape(n, m * self.width, v)
        fields = np.array([self.balanced(values[g], O[g].T, f"{where}, values of group {g}") for g in range(n)])
        self.on_heads(a.value, n, fields)
        new = O @ np.linalg.inv(fields)
        self.put(a.output, new.reshape(a.heads, self.width, v).transpose(1, 0, 2).reshape(self.width, -1))

    def loose_values(self, block: Block) -> None:
        """Takes the part of the values' offset away that the output maps do not see."""
        a = block.attention
        reading = next(r for r in readings(self) if any(x.part is a.value for x in r.readers))
        reader = next(x for x in reading.readers if x.part is a.value)
        if a.sink is not None or carries_values(block) or unsettled(self, reading.norm, reader).any():
            return
        sums = centring(self.width, self.centred) @ summed_outputs(self, a)
        _, s, right = np.linalg.svd(sums)
        seen = right[: int(np.sum(s > 1e-10 * s[0]))]
        if a.value.bias is not None:
            self.put_offsets(a.value, seen.T @ (seen @ self.offsets(a.value)))
            return
        W = self.matrix(a.value)
        offset = W.sum(1)  # β is 1
        self.put(a.value, W + np.outer(seen.T @ (seen @ offset) - offset, np.ones(self.width) / self.width))

    def sort_heads(self, a: Attention) -> None:
        """Query heads inside their groups by the norm of their outputs, then groups by that of their values."""
        if a.alibi is not None and len(set(a.alibi)) > 1:
            return
        n, m = a.kv_heads, a.group
        keys = np.linalg.norm(output_heads(self, a), axis=(1, 2)).reshape(n, m)
        inside = np.argsort(-keys, axis=1, kind="stable")
        sizes = np.linalg.norm(self.matrix(a.value).reshape(n, -1), axis=1)
        self.permute_heads(a, np.argsort(-sizes, kind="stable"), inside)

    def permute_heads(self, a: Attention, groups: np.ndarray, inside: np.ndarray) -> None:
        """New order of groups [n_k], and of the heads inside the old groups [n_k m]."""
        heads = np.concatenate([g * a.group + inside[g] for g in groups])
        for part, order in ((a.query, heads), (a.key, groups), (a.value, groups)):
            W, b = self.matrix(part), self.offsets(part)
            self.put(part, W.reshape(len(order), -1, W.shape[1])[order].reshape(W.shape))
            self.put_offsets(part, b.reshape(len(order), -1)[order].reshape(-1))
        O = output_heads(self, a)[heads]
        self.put(a.output, O.transpose(1, 0, 2).reshape(self.width, -1))
        for name in (a.sink, a.temperature, a.relative):
            if name is not None:
                self.values[name][...] = self.values[name][heads]

    # Feed-forward networks.

    def networks(self, branch: FeedForward | Mixture) -> None:
        """Units balanced, with a sign where it is free, and sorted by the norm of their outputs."""
        for e in branch.experts if isinstance(branch, Mixture) else (branch,):
            up, down = self.shown(e.up, 1, True)[0], self.matrix(e.down)
            power = 1.0 if e.gate is not None else HOMOGENEOUS.get(e.activation)
            if power is not None:
                ratio = np.linalg.norm(down, axis=0) / np.linalg.norm(up, axis=1)
                c = ratio ** (1 / (1 + power)) * (self.signs(up, "units") if e.gate is not None else 1.0)
                self.put(e.up, self.matrix(e.up) * c[:, None])
                self.put_offsets(e.up, self.offsets(e.up) * c)
                self.put(e.down, down / c**power)
            self.permute_units(e, np.argsort(-np.linalg.norm(self.matrix(e.down), axis=0), kind="stable"))

    def permute_units(self, e: FeedForward, order: np.ndarray) -> None:
        """New order of the units of a network."""
        for part in (e.up, e.gate):
            if part is not None:
                self.put(part, self.matrix(part)[order])
                self.put_offsets(part, self.offsets(part)[order])
        self.put(e.down, self.matrix(e.down)[:, order])

    def sort_experts(self, branch: FeedForward | Mixture) -> None:
        """Experts by the norm of their outputs, with the router's rows."""
        if isinstance(branch, Mixture):
            norms = [np.linalg.norm(self.matrix(e.down)) for e in branch.experts]
            self.permute_experts(branch, np.argsort(-np.array(norms), kind="stable"))

    def permute_experts(self, branch: Mixture, order: np.ndarray) -> None:
        """New order of the experts of a mixture."""
        self.put(branch.router, self.matrix(branch.router)[order])
        self.put_offsets(branch.router, self.offsets(branch.router)[order])
        parts = [[m for _, m in (*e.readers(), *e.writers())] for e in branch.experts]
        old = [[(self.matrix(m).copy(), self.offsets(m).copy()) for m in maps] for maps in parts]
        for maps, k in zip(parts, order, strict=True):
            for part, (W, b) in zip(maps, old[k], strict=True):
                self.put(part, W)
                self.put_offsets(part, b)


def unsettled_alone(reader: Reader) -> np.ndarray:
    """Rows whose offset only the norm can carry."""
    return ~reader.hidden & (reader.part.bias is None and reader.carrier is None)

r"""The continuous symmetries of a transformer's parametrization, as tangent vectors, family by family.

Whatever stands between the writers and the readers of a space decides the group that acts on it: every invertible map
where nothing stands there, rotations under a norm, positive scales under a ReLU, and so on. Each function states the
tangents of one family; `families.FAMILIES` names them. Nothing here counts: the rank of the vectors does.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from lngeom.transformers.arrays import Change, StackArrays, contract
from lngeom.transformers.description import Attention, Block, FeedForward, Linear, Mixture, Norm, Table
from lngeom.transformers.fields import (
    Fields,
    TooManyUnknowns,
    can_turn_freely,
    centring,
    diagonals,
    reading_norms,
    skew,
    stream_fields,
    stream_scale,
    turn_stream,
)
from lngeom.transformers.readings import (
    Reader,
    Reading,
    absorb,
    attention_readers,
    can_absorb,
    carries_values,
    carry_values,
    head_norm,
    keys_are_relative,
    output_heads,
    pairs_by_frequency,
    readings,
    settle,
    summed_outputs,
    unseen_along_one,
    unsettled,
    value_carrier,
    weights_are_constant,
)


@dataclass(frozen=True)
class Generators:
    """Tangent vectors of one family, a linear function of coefficients.

    Attributes:
        code: of the family, see `families.FAMILIES`.
        shape: of the coefficients.
        tangents: coefficients [K *shape] → changes of the arrays, K at once.
    """

    code: str
    shape: tuple[int, ...]
    tangents: Callable[[Any], list[Change]]

    @property
    def count(self) -> int:
        """How many tangent vectors, which need not be independent."""
        return int(np.prod(self.shape))

    def columns(self, arrays: StackArrays) -> Float[np.ndarray, "P K"]:
        """All of them as columns."""
        return arrays.columns(self.tangents(np.eye(self.count).reshape(-1, *self.shape)), self.count)


def symmetries(arrays: StackArrays) -> Iterator[Generators]:
    """Every family of a stack, in no order."""
    yield from _unread(arrays)
    for reading in readings(arrays):
        yield from _gains(arrays, reading)
        yield from _rows(arrays, reading)
        yield from _norm_biases(arrays, reading)
    yield from _columns(arrays)
    yield from _segments(arrays)
    tables: dict[str, list[Attention]] = {}
    for i, block in enumerate(arrays.stack.blocks):
        yield from _key_biases(arrays, block)
        yield from _values(arrays, block, f"blocks.{i}.attention.output")
        yield from _parallel(arrays, block)
        yield from _query_key(arrays, block)
        yield from _value_output(arrays, block)
        yield from _units(arrays, block.feed_forward)
        yield from _router(arrays, block.feed_forward)
        yield from _branch_scales(arrays, block)
        if block.attention.relative is not None:
            tables.setdefault(block.attention.relative, []).append(block.attention)
    for name, users in tables.items():
        if all(a.sink is None for a in users):
            shape = arrays.values[name].shape
            by_row = users[0].buckets is None  # a row a head, or a column
            yield Generators(
                "a",
                (users[0].heads,),
                lambda c, n=name, s=shape, r=by_row: [
                    arrays.change_array(n, (c[:, :, None] if r else c[:, None]) * np.ones(s))
                ],
            )
    yield from _head(arrays)
    yield from _tables(arrays)
    yield from _stream(arrays)


def _stream(arrays: StackArrays) -> Iterator[Generators]:
    """Scales, rotations and shears of the stream."""
    if can_turn_freely(arrays.stack):
        d = arrays.width
        P = centring(d, any(n.centres for n in reading_norms(arrays.stack)))

        def rotation(c: Any) -> list[Change]:
            return turn_stream(arrays, contract("ij,Kjk,kl->Kil", P, c - contract("Kij->Kji", c), P))

        yield Generators("R", (d, d), rotation)
    else:
        try:
            for code, changes, count in stream_fields(arrays):
                yield Generators(code, (count,), lambda c, changes=changes: [_combined(c, x) for x in changes])
            return
        except TooManyUnknowns:  # at generic gains the scale is all there is
            pass
    if (changes := stream_scale(arrays)) is not None:
        yield Generators("c", (1,), lambda c: [_combined(c, change) for change in changes])


def _combined(c: Any, change: Change) -> Change:
    return change._replace(value=contract("Kk,k...->K...", c, change.value))


def _rows_of(mask: np.ndarray) -> Float[np.ndarray, "n out"]:
    """Unit vectors of the rows in a mask."""
    return np.eye(len(mask))[mask]


# Norms and their readers.


def _unread(arrays: StackArrays) -> Iterator[Generators]:
    for table in arrays.stack.tables:
        if table.offset:
            index = arrays.index(table.weight)[: table.offset]
            yield Generators("unread", index.shape, lambda c, t=table, index=index: [Change(t.weight, index, c)])
    for name, buckets in arrays.stack.bucket_tables.items():
        index = arrays.index(name)[buckets.unread()]
        yield Generators("unread", index.shape, lambda c, n=name, index=index: [Change(n, index, c)])


def _gains(arrays: StackArrays, reading: Reading) -> Iterator[Generators]:
    norm = reading.norm
    if reading.kind != "folds" or norm is None or norm.gain is None:
        return

    def tangents(c: Any) -> list[Change]:
        changes = [arrays.change_array(norm.gain, c * arrays.gain(norm)[None])]
        if norm.bias is not None:
            changes.append(arrays.change_array(norm.bias, c * arrays.bias(norm)[None]))
        return changes + [
            arrays.change_matrix(r.part, -contract("oi,Ki->Koi", arrays.matrix(r.part), c)) for r in reading.readers
        ]

    yield Generators("g", (arrays.width,), tangents)


def _rows(arrays: StackArrays, reading: Reading) -> Iterator[Generators]:
    norm = reading.norm
    if norm is None or not norm.centres or reading.kind == "tied":
        return
    inverse = 1 / arrays.gain(norm)
    lever = float(np.sum(arrays.bias(norm) * inverse))
    for reader in reading.readers:
        free = np.ones(len(reader.hidden), bool)
        if lever != 0 and reader.part.bias is None and reader.carrier is None:
            free = reader.hidden
        if not free.any():
            continue

        def tangents(c: Any, reader: Reader = reader, rows: np.ndarray = _rows_of(free)) -> list[Change]:
            c = c @ rows
            changes = [arrays.change_matrix(reader.part, contract("Ko,d->Kod", c, inverse))]
            if norm.bias is not None and reader.part.bias is not None:
                changes.append(arrays.change_offsets(reader.part, -lever * c))
            elif norm.bias is not None and reader.carrier is not None:
                changes += carry_values(arrays, reader.carrier, lever * c)
            return changes

        yield Generators("r", (int(free.sum()),), tangents)


def _shiftable(arrays: StackArrays, norm: Norm | None, readers: tuple[Reader, ...], along: np.ndarray) -> np.ndarray:
    """Combinations [q d] of directions [p d] of the readers' input for which every reader's offset can be settled."""
    fixed = [arrays.matrix(r.part)[unsettled(arrays, norm, r)] @ along.T for r in readers]
    seen = np.concatenate([*fixed, np.zeros((len(along), len(along)))])
    _, s, right = np.linalg.svd(seen, full_matrices=False)
    return right[s <= 1e-10 * max(s[0], 1e-300)] @ along if s[0] > 0 else along


def _settled(arrays: StackArrays, norm: Norm | None, readers: tuple[Reader, ...], shift: Any) -> list[Change]:
    """Settles the offsets of readers whose input is shifted by [K d]."""
    return [
        change
        for r in readers
        for change in settle(arrays, norm, r, contract("oi,Ki->Ko", arrays.matrix(r.part), shift))
    ]


def _norm_biases(arrays: StackArrays, reading: Reading) -> Iterator[Generators]:
    norm, d = reading.norm, arrays.width
    if norm is None or norm.bias is None:
        return
    if reading.kind == "tied":
        head = arrays.stack.head.map
        if head.bias is not None:
            yield Generators(
                "β",
                (d,),
                lambda c: [
                    arrays.change_array(norm.bias, c),
                    arrays.change_offsets(head, -contract("vd,Kd->Kv", arrays.matrix(head), c)),
                ],
            )
        return
    along = np.eye(d)
    branch = reading.branch if reading.branch is not None and can_absorb(reading.branch) else None
    if reading.kind == "residual" and branch is None:
        assert reading.after is not None
        along = np.ones((int(reading.after.centres), d))
    if not len(along) or not len(along := _shiftable(arrays, norm, reading.readers, along)):
        return

    def tangents(c: Any) -> list[Change]:
        shift = contract("Kq,qd->Kd", c, along)
        changes = [arrays.change_array(norm.bias, shift)]
        if branch is not None:
            changes += absorb(arrays, branch, -shift)
        return changes + _settled(arrays, norm, reading.readers, shift)

    yield Generators("β", (len(along),), tangents)


# Writers and the stream.


def _columns(arrays: StackArrays) -> Iterator[Generators]:
    stack, ones = arrays.stack, np.ones(arrays.width)
    for space in stack.spaces:
        for site in space.writers:
            part = site.part
            if not space.readers_after(site) or not unseen_along_one(stack, site.path):
                continue
            if isinstance(part, Linear):
                yield Generators(
                    "w",
                    (arrays.matrix(part).shape[1],),
                    lambda c, p=part: [arrays.change_matrix(p, contract("d,Ki->Kdi", ones, c))],
                )
                if part.bias is not None:
                    yield Generators(
                        "w", (1,), lambda c, p=part: [arrays.change_offsets(p, contract("Kq,d->Kd", c, ones))]
                    )
            elif isinstance(part, Norm) and part.bias is not None:
                yield Generators(
                    "w", (1,), lambda c, p=part: [arrays.change_array(p.bias, contract("Kq,d->Kd", c, ones))]
                )
            elif isinstance(part, Table):
                yield from _table_columns(arrays, part)


def _table_columns(arrays: StackArrays, table: Table) -> Iterator[Generators]:
    stack, d = arrays.stack, arrays.width
    rows = len(arrays.values[table.weight]) - table.offset
    norm = head_norm(stack)
    if not (stack.tied and table is stack.tables[0]):
        yield Generators("w", (rows,), lambda c: [arrays.change_rows(table, contract("Kn,d->Knd", c, np.ones(d)))])
        return
    if stack.head.cap is None:
        yield Generators(
            "s", (1,), lambda c: [arrays.change_rows(table, contract("Kq,nd->Knd", c, np.ones((rows, d))))]
        )
    if norm is None or not norm.centres or np.ptp(arrays.gain(norm)) > 0:
        return
    lever = float(arrays.bias(norm).sum())  # a row along 1 adds this to its own logit, and nothing that varies
    bias = stack.head.map.bias
    if norm.bias is not None and lever != 0 and bias is None:
        return

    def tangents(c: Any) -> list[Change]:
        changes = [arrays.change_rows(table, contract("Kn,d->Knd", c, np.ones(d)))]
        return changes if bias is None else [*changes, arrays.change_offsets(stack.head.map, -lever * c)]

    yield Generators("w", (rows,), tangents)


def _tables(arrays: StackArrays) -> Iterator[Generators]:
    stack = arrays.stack
    tables = stack.tables[1:] if stack.tied and stack.head.cap is not None else stack.tables
    for first, second in itertools.pairwise(tables):
        both = (first, 1.0), (second, -1.0)
        yield Generators(
            "t", (arrays.width,), lambda c, both=both: [_shift_table(arrays, table, sign * c) for table, sign in both]
        )


def _shift_table(arrays: StackArrays, table: Table, shift: Any) -> Change:
    rows = np.ones(len(arrays.values[table.weight]) - table.offset) / table.scale
    return arrays.change_rows(table, contract("n,Kd->Knd", rows, shift))


def _segments(arrays: StackArrays) -> Iterator[Generators]:
    """Shifts of a piece of the stream that is read directly, between what writes before and after its reading."""
    stack, d = arrays.stack, arrays.width
    direct = [r for r in readings(arrays) if r.kind == "direct"]
    for j, reading in enumerate(direct):
        before = None if j == 0 else direct[j - 1].after
        if before is not None and before.bias is None:
            continue
        if j == 0 and stack.tied and stack.head.cap is not None and len(stack.tables) == 1:
            continue
        table = stack.tables[-1] if stack.tied and stack.head.cap is not None else stack.tables[0]
        assert reading.after is not None
        assert reading.branch is not None
        outer = stack.blocks[0].placing == "outer"
        along = np.eye(d)
        if outer and reading.after.bias is None:
            continue
        if not outer and not can_absorb(reading.branch):
            along = np.ones((int(reading.after.centres), d))
        if not len(along) or not len(along := _shiftable(arrays, None, reading.readers, along)):
            continue

        def tangents(
            c: Any,
            r: Reading = reading,
            along: np.ndarray = along,
            outer: bool = outer,
            table: Table = table,
            before: Norm | None = before,
        ) -> list[Change]:
            shift = contract("Kq,qd->Kd", c, along)
            start = _shift_table(arrays, table, shift) if before is None else arrays.change_array(before.bias, shift)
            assert r.after is not None
            assert r.branch is not None
            end = [arrays.change_array(r.after.bias, -shift)] if outer else absorb(arrays, r.branch, -shift)
            return [start, *end, *_settled(arrays, None, r.readers, shift)]

        yield Generators("tE", (len(along),), tangents)


def _branch_scales(arrays: StackArrays, block: Block) -> Iterator[Generators]:
    for branch, norm in (
        (block.attention, block.attention_writing_norm),
        (block.feed_forward, block.feed_forward_writing_norm),
    ):
        if norm is not None and norm.eps == 0:

            def tangents(c: Any, branch: Attention | FeedForward | Mixture = branch) -> list[Change]:
                return [change for _, part in branch.writers() for change in _scaled(arrays, part, c)]

            yield Generators("cB", (1,), tangents)


def _scaled(arrays: StackArrays, part: Linear, c: Any) -> list[Change]:
    """DW = cW and db = cb, c [K 1]."""
    changes = [arrays.change_matrix(part, contract("Kq,oi->Koi", c, arrays.matrix(part)))]
    if part.bias is not None:
        changes.append(arrays.change_offsets(part, contract("Kq,o->Ko", c, arrays.offsets(part))))
    return changes


def _parallel(arrays: StackArrays, block: Block) -> Iterator[Generators]:
    if not block.parallel:
        return
    d = arrays.width
    first, second = block.attention_writing_norm, block.feed_forward_writing_norm
    if first is not None and second is not None:
        names = first.bias, second.bias
        if None not in names:
            yield Generators("p", (d,), lambda c: [arrays.change_array(names[0], c), arrays.change_array(names[1], -c)])
    elif can_absorb(block.attention) and can_absorb(block.feed_forward):
        yield Generators(
            "p",
            (d,),
            lambda c: [*absorb(arrays, block.attention, c), *absorb(arrays, block.feed_forward, -c)],
        )


# Attention.


def _key_biases(arrays: StackArrays, block: Block) -> Iterator[Generators]:
    reader = attention_readers(arrays, block)[1]
    if reader.part.bias is not None and reader.hidden.any():
        rows = _rows_of(reader.hidden)
        yield Generators("K", (len(rows),), lambda c: [arrays.change_offsets(reader.part, c @ rows)])


def _values(arrays: StackArrays, block: Block, path: str) -> Iterator[Generators]:
    a = block.attention
    if a.sink is not None:
        return
    if carries_values(block):
        if a.value.bias is not None:
            size = a.kv_heads * a.value_width
            yield Generators(
                "V", (size,), lambda c: [arrays.change_offsets(a.value, c), *carry_values(arrays, block, c)]
            )
        return
    reading = next(r for r in readings(arrays) if any(x.part is a.value for x in r.readers))
    norm, reader = reading.norm, next(x for x in reading.readers if x.part is a.value)
    if unsettled(arrays, norm, reader).any():
        return
    sums = summed_outputs(arrays, a)

    def offsets(c: Any) -> list[Change]:
        return settle(arrays, norm, reader, -c)

    left = centring(arrays.width, unseen_along_one(arrays.stack, path))
    _, s, right = np.linalg.svd(np.concatenate([left @ sums, np.zeros((sums.shape[1],) * 2)]), full_matrices=False)
    kernel = right[s <= 1e-10 * s[0]]
    if len(kernel):
        yield Generators("V′", (len(kernel),), lambda c: offsets(c @ kernel))
    stack = arrays.stack
    first = norm is None and stack.embedding_norm is None and stack.blocks[0] is block and block.placing == "post"
    if not first and not (reading.kind == "residual" and norm is not None and norm.bias is not None):
        return
    capped = stack.tied and stack.head.cap is not None
    if first and capped and len(stack.tables) == 1:
        return
    shifts = _shiftable(arrays, norm, reading.readers, -sums.T)
    combinations = shifts @ np.linalg.pinv(-sums.T)

    def tangents(c: Any) -> list[Change]:
        value = contract("Kq,qo->Ko", c, combinations)
        shift = -contract("do,Ko->Kd", sums, value)
        start = (
            _shift_table(arrays, stack.tables[-1] if capped else stack.tables[0], shift)
            if norm is None
            else arrays.change_array(norm.bias, shift)
        )
        return [start, *_settled(arrays, norm, reading.readers, shift), *offsets(value)]

    if len(combinations):
        yield Generators("V′", (len(combinations),), tangents)


def _on_heads(arrays: StackArrays, part: Linear, heads: int, field: Any) -> list[Change]:
    """DW^h = X^h W^h and db^h = X^h b^h, X [K heads k k]."""
    W = arrays.matrix(part)
    W = W.reshape(heads, -1, W.shape[1])
    new = contract("Khij,hjd->Khid", field, W)
    changes = [arrays.change_matrix(part, new.reshape(len(new), -1, W.shape[2]))]
    if part.bias is not None:
        moved = contract("Khij,hj->Khi", field, arrays.offsets(part).reshape(heads, -1))
        changes.append(arrays.change_offsets(part, moved.reshape(len(moved), -1)))
    return changes


def _plane(k: int, first: tuple[int, int], second: tuple[int, int], turn: bool) -> np.ndarray:
    """The map of one pair of coordinates to another: 1, or a quarter turn."""
    found = np.zeros((k, k))
    (i, j), (p, q) = first, second
    if turn:
        found[i, q], found[j, p] = -1, 1
    else:
        found[i, p], found[j, q] = 1, 1
    return found


def _commutant(a: Attention) -> list[np.ndarray]:
    """Maps [k k] of one head that commute with its rotary positions."""
    k = a.query_width
    classes, still = pairs_by_frequency(a)
    found = [_plane(k, x, y, turn) for pairs in classes for x in pairs for y in pairs for turn in (False, True)]
    for i in still:
        for j in still:
            found.append(np.eye(k)[:, [i]] @ np.eye(k)[[j]])
    return found


def _query_key(arrays: StackArrays, block: Block) -> Iterator[Generators]:
    a = block.attention
    norm = a.query_norm
    if norm is None:
        yield from _changes_of_basis(arrays, a, np.array(_commutant(a)))
        yield from _wide_heads(arrays, block)
    elif norm.gain is None and norm.bias is None:
        skews = np.array([X - X.T for X in _commutant(a)])
        skews = skews[np.abs(skews).max((1, 2)) > 0]
        if norm.centres:
            P = centring(a.query_width)
            skews = np.array([P @ X @ P for X in skews]) if a.rotary is None else np.zeros((0, 1, 1))
        if len(skews):
            yield from _changes_of_basis(arrays, a, skews)
    if norm is not None:
        yield from _normalized_scales(arrays, a)
        yield from _normalized_columns(arrays, a)
        yield from _normalized_gains(arrays, a)
        yield from _normalized_turns(arrays, a)
    yield from _temperature(arrays, a)


def _changes_of_basis(arrays: StackArrays, a: Attention, fields: np.ndarray) -> Iterator[Generators]:
    def tangents(c: Any) -> list[Change]:
        X = contract("Kng,gij->Knij", c, fields)
        queries = contract("Knij,nm->Knmij", X, np.ones((a.kv_heads, a.group))).reshape(-1, a.heads, *fields.shape[1:])
        return [
            *_on_heads(arrays, a.query, a.heads, queries),
            *_on_heads(arrays, a.key, a.kv_heads, -contract("Knij->Knji", X)),
        ]

    yield Generators("Q", (a.kv_heads, len(fields)), tangents)


def _seen(arrays: StackArrays, norm: Norm | None, part: Linear, offset: bool) -> np.ndarray:
    """What a reader shows [out e(+1)]: W D, centred where the norm centres, and its offset where that is seen."""
    W = arrays.matrix(part)
    if norm is None:
        columns, b = W, arrays.offsets(part)
    else:
        columns = W * arrays.gain(norm) @ centring(arrays.width, norm.centres)
        b = arrays.offsets(part) + W @ arrays.bias(norm)
    return np.concatenate([columns, b[:, None]], 1) if offset else columns


def _left_kernel(matrix: np.ndarray) -> Float[np.ndarray, "q n"]:
    u, s, _ = np.linalg.svd(matrix)
    return u[:, int(np.sum(s > 1e-10 * s[0])) :].T


def _wide_heads(arrays: StackArrays, block: Block) -> Iterator[Generators]:
    """Queries or keys along what the other side never shows, where heads are wider than what they read."""
    a = block.attention
    still = pairs_by_frequency(a)[1]
    norm = next(r.norm for r in readings(arrays) if any(x.part is a.query for x in r.readers))
    d, k = arrays.width, a.query_width
    keys = _seen(arrays, norm, a.key, not keys_are_relative(a)).reshape(a.kv_heads, k, -1)[:, still]
    queries = _seen(arrays, norm, a.query, True).reshape(a.kv_heads, a.group, k, -1)[:, :, still]
    for part, heads, other in (
        (a.query, a.heads, [keys[h // a.group] for h in range(a.heads)]),
        (a.key, a.kv_heads, [np.concatenate(list(queries[g]), 1) for g in range(a.kv_heads)]),
    ):
        for h in range(heads):
            kernel = _left_kernel(other[h]) if len(still) else np.zeros((0, 0))
            if not len(kernel):
                continue
            rows = np.zeros((len(kernel), heads * k))
            rows[:, h * k + np.array(still)] = kernel
            yield Generators(
                "Q",
                (len(kernel), d),
                lambda c, p=part, rows=rows: [arrays.change_matrix(p, contract("Kqd,qo->Kod", c, rows))],
            )
            if part.bias is not None:
                yield Generators("Q", (len(kernel),), lambda c, p=part, rows=rows: [arrays.change_offsets(p, c @ rows)])


def _normalized_scales(arrays: StackArrays, a: Attention) -> Iterator[Generators]:
    for part, heads, norm in ((a.query, a.heads, a.query_norm), (a.key, a.kv_heads, a.key_norm)):
        if norm is None or norm.eps != 0:
            continue
        count = 1 if a.norm_over == "all" else heads

        def tangents(c: Any, part: Linear = part, heads: int = heads, count: int = count) -> list[Change]:
            spread = np.ones((1, heads)) if count == 1 else np.eye(heads)
            return _on_heads(arrays, part, heads, contract("Kc,ch,ij->Khij", c, spread, np.eye(a.query_width)))

        yield Generators("cQ", (count,), tangents)


def _normalized_columns(arrays: StackArrays, a: Attention) -> Iterator[Generators]:
    for part, heads, norm in ((a.query, a.heads, a.query_norm), (a.key, a.kv_heads, a.key_norm)):
        if norm is None or not norm.centres:
            continue
        rows = np.repeat(np.eye(heads), a.query_width, 1)
        yield Generators(
            "h",
            (heads, arrays.width),
            lambda c, p=part, rows=rows: [arrays.change_matrix(p, contract("Khd,ho->Kod", c, rows))],
        )
        if part.bias is not None:
            yield Generators("h", (heads,), lambda c, p=part, rows=rows: [arrays.change_offsets(p, c @ rows)])


def _normalized_gains(arrays: StackArrays, a: Attention) -> Iterator[Generators]:
    query, key, k = a.query_norm, a.key_norm, a.query_width
    assert query is not None
    assert key is not None
    classes, still = pairs_by_frequency(a)
    if query.gain is not None and key.gain is not None:
        patterns = [np.eye(k)[i] + np.eye(k)[j] for pairs in classes for i, j in pairs] + [np.eye(k)[i] for i in still]
        by_head = arrays.values[query.gain].size > k and arrays.values[key.gain].size > k
        copies = a.kv_heads if by_head else 1

        def spread(norm: Norm, name: str, c: Any) -> Change:
            size = arrays.values[name].size
            values = arrays.gain(norm) if name == norm.gain else arrays.bias(norm)
            factor = contract("Knp,pi->Kni", c, np.array(patterns))
            factor = contract("Kni,nm->Knmi", factor, np.ones((copies, size // k // copies))).reshape(-1, size)
            return arrays.change_array(name, factor * values[None])

        def tangents(c: Any) -> list[Change]:
            names = [(query, query.gain, c), (key, key.gain, -c), (query, query.bias, c), (key, key.bias, -c)]
            return [spread(norm, name, v) for norm, name, v in names if name is not None]

        yield Generators("q", (copies, len(patterns)), tangents)
    if key.bias is not None and keys_are_relative(a) and still:
        rows = np.eye(k)[still]
        yield Generators("q′", (len(still),), lambda c: [arrays.change_array(key.bias, c @ rows)])
    if query.bias is not None and query.centres and not classes:
        along = 1 / arrays.gain(key, k)
        yield Generators("q′", (1,), lambda c: [arrays.change_array(query.bias, c * along[None])])


def _normalized_turns(arrays: StackArrays, a: Attention) -> Iterator[Generators]:
    """Rotations under norms with gains: those that commute with the gains, or that gains of the same spectrum undo.

    Normalized queries and keys may turn by skew S. Behind the gains, queries move by A and keys by −Aᵀ, where A
    commutes with rotary positions: A D_q = D_q S + diag(η_q), and likewise for keys.
    """
    query, key, k = a.query_norm, a.key_norm, a.query_width
    assert query is not None
    assert key is not None
    if query.gain is None or key.gain is None:
        return
    fields, right = Fields(k), centring(k, query.centres)
    eye, zero = np.eye(k), np.zeros((k, k - 1))
    commuting = np.array(_commutant(a))
    seen = np.diag(np.isin(np.arange(k), pairs_by_frequency(a)[1], invert=True).astype(float))
    sides = []
    for side, norm, heads, sign in (("query", query, a.heads, 1.0), ("key", key, a.kv_heads, -1.0)):
        gains = np.broadcast_to(arrays.gain(norm).reshape(-1, k), (heads, k))
        shared = arrays.values[norm.gain or ""].size == k
        for h in range(heads):
            g = h // (heads // a.kv_heads)
            A, eta = f"A {g}", f"η {side} {0 if shared else h}"
            if A not in fields.bases:
                fields.unknown(A, commuting)
            if eta not in fields.bases:
                fields.unknown(eta, diagonals(k, True))
            S = fields.unknown(f"S {side} {h}", skew(k, norm.centres))
            D = np.diag(gains[h])
            moved = (eta, -sign * eye, right, False), (S, -sign * D, right, False)
            fields.equation((A, eye, D @ right, side == "key"), *moved)
            if norm.bias is not None and g:  # β is shared, so that every head must move it alike
                column = np.concatenate([arrays.bias(norm, k)[:, None], zero], 1)
                left = seen if side == "key" and keys_are_relative(a) else eye
                terms = [(name, c * left, column, side == "key") for name, c in ((A, 1.0), ("A 0", -1.0))]
                fields.equation(*terms)
        sides.append((side, norm, heads, sign, shared))
    b = fields.bases
    names = {start: {n: v for n, v in b.items() if n[0] == start} for start in "AηS"}
    steps = [("q", names["A"] | names["η"]), ("Q", names["A"] | names["S"]), ("i", b)]
    for code, count, found in fields.families(steps):
        if code != "q":  # `_normalized_gains` gives these, for any size
            changes = [c for side in sides for c in _turned_heads(arrays, a, found, *side)]
            yield Generators(code, (count,), lambda c, changes=changes: [_combined(c, x) for x in changes])


def _turned_heads(
    arrays: StackArrays,
    a: Attention,
    found: dict[str, Any],
    side: str,
    norm: Norm,
    heads: int,
    sign: float,
    shared: bool,
) -> list[Change]:
    """Changes of queries or keys, and of their norm, for fields of `_normalized_turns`."""
    fields = np.stack([found[f"S {side} {h}"] for h in range(heads)], 1)
    changes = _on_heads(arrays, a.query if side == "query" else a.key, heads, fields)
    diagonals_ = [np.einsum("Kii->Ki", found[f"η {side} {h}"]) for h in ([0] if shared else range(heads))]
    changes.append(arrays.change_array(norm.gain, np.concatenate(diagonals_, 1)))
    if norm.bias is not None:
        A = found["A 0"] if side == "query" else found["A 0"].transpose(0, 2, 1)
        changes.append(arrays.change_array(norm.bias, sign * A @ arrays.bias(norm, a.query_width)))
    return changes


def _temperature(arrays: StackArrays, a: Attention) -> Iterator[Generators]:
    name = a.temperature
    if name is None:
        return
    tau, k = arrays.values[name].reshape(-1), a.query_width
    if a.query_norm is None:

        def heads(c: Any) -> list[Change]:
            scale = -contract("Kh,ij->Khij", c, np.eye(k))
            return [arrays.change_array(name, c * tau[None]), *_on_heads(arrays, a.query, a.heads, scale)]

        yield Generators("τ", (a.heads,), heads)
    elif (gain := a.query_norm.gain) is not None:
        values = arrays.gain(a.query_norm)
        count = a.heads if values.size > k else 1

        def gains(c: Any) -> list[Change]:
            changes = [arrays.change_array(name, contract("Kc,ch->Kh", c, _spread(count, a.heads)) * tau[None])]
            names = [(gain, values), (a.query_norm.bias, arrays.bias(a.query_norm, k))] if a.query_norm else []
            for array, old in names:
                if array is not None:
                    factor = contract("Kc,co->Ko", c, _spread(count, old.size))
                    changes.append(arrays.change_array(array, -factor * old[None]))
            return changes

        yield Generators("τ", (count,), gains)


def _spread(count: int, size: int) -> np.ndarray:
    return np.repeat(np.eye(count), size // count, 1)


def _value_output(arrays: StackArrays, block: Block) -> Iterator[Generators]:
    a = block.attention
    n, m, v = a.kv_heads, a.group, a.value_width
    O = output_heads(arrays, a).reshape(n, m, arrays.width, v)

    def tangents(c: Any) -> list[Change]:
        moved = -contract("nmdi,Knij->Kdnmj", O, c)
        return [
            *_on_heads(arrays, a.value, n, c),
            arrays.change_matrix(a.output, moved.reshape(len(moved), arrays.width, -1)),
        ]

    yield Generators("O", (n, v, v), tangents)
    reading = next(r for r in readings(arrays) if any(x.part is a.value for x in r.readers))
    shown = _seen(arrays, reading.norm, a.value, not carries_values(block)).reshape(n, v, -1)
    path = next(f"blocks.{i}.attention.output" for i, b in enumerate(arrays.stack.blocks) if b is block)
    left = centring(arrays.width, unseen_along_one(arrays.stack, path))
    for g in range(n):
        kernel = _left_kernel(shown[g])
        for h in range(g * m, (g + 1) * m) if len(kernel) else ():
            columns = np.zeros((len(kernel), a.heads * v))
            columns[:, h * v : (h + 1) * v] = kernel
            moved = kernel @ _seen(arrays, reading.norm, a.value, True)[g * v : (g + 1) * v, -1]

            def outputs(c: Any, x: np.ndarray = columns, moved: np.ndarray = moved) -> list[Change]:
                changes = [arrays.change_matrix(a.output, contract("Kqd,qo->Kdo", c, x))]
                if not carries_values(block):
                    return changes
                shift = -contract("Kqd,q->Kd", c, moved)
                return changes + absorb(arrays, value_carrier(block), shift)

            yield Generators("O", (len(kernel), arrays.width), outputs)
        kernel = _left_kernel((left @ O[g]).reshape(-1, v).T)
        if len(kernel):
            rows = np.zeros((len(kernel), n * v))
            rows[:, g * v : (g + 1) * v] = kernel
            yield Generators(
                "O",
                (len(kernel), arrays.width),
                lambda c, x=rows: [arrays.change_matrix(a.value, contract("Kqd,qo->Kod", c, x))],
            )
            if a.value.bias is not None:
                yield Generators("O", (len(kernel),), lambda c, x=rows: [arrays.change_offsets(a.value, c @ x)])


# Feed-forward networks.

_DEGREES = {"relu": 1.0, "relu2": 2.0, "identity": 1.0}
"""a(cx) = c^p a(x) for c > 0."""


def _units(arrays: StackArrays, branch: FeedForward | Mixture) -> Iterator[Generators]:
    for network in branch.experts if isinstance(branch, Mixture) else (branch,):
        sides: list[tuple[Linear, float]] = []
        if network.gate is not None:
            sides.append((network.up, 1.0))
        inner = network.up if network.gate is None else network.gate
        if network.activation in _DEGREES:
            sides.append((inner, _DEGREES[network.activation]))
        for part, degree in sides:

            def tangents(
                c: Any, part: Linear = part, degree: float = degree, down: Linear = network.down
            ) -> list[Change]:
                changes = [
                    arrays.change_matrix(part, contract("Kf,fd->Kfd", c, arrays.matrix(part))),
                    arrays.change_matrix(down, -degree * contract("Kf,df->Kdf", c, arrays.matrix(down))),
                ]
                if part.bias is not None:
                    changes.append(arrays.change_offsets(part, c * arrays.offsets(part)[None]))
                return changes

            yield Generators("u", (len(arrays.matrix(part)),), tangents)


def _router(arrays: StackArrays, branch: FeedForward | Mixture) -> Iterator[Generators]:
    if not isinstance(branch, Mixture):
        return
    rows, router = len(branch.experts), branch.router
    if weights_are_constant(branch):
        patterns = np.eye(rows)
    elif branch.scores == "softmax":
        patterns = np.ones((1, rows))
    else:
        return
    yield Generators(
        "s′",
        (len(patterns), arrays.width),
        lambda c: [arrays.change_matrix(router, contract("Kpd,po->Kod", c, patterns))],
    )
    if router.bias is not None:
        yield Generators("s′", (len(patterns),), lambda c: [arrays.change_offsets(router, c @ patterns)])


def _head(arrays: StackArrays) -> Iterator[Generators]:
    head = arrays.stack.head
    if head.cap is not None:
        return
    ones = np.ones(len(arrays.matrix(head.map)))
    if not arrays.stack.tied:
        yield Generators(
            "s", (arrays.width,), lambda c: [arrays.change_matrix(head.map, contract("o,Kd->Kod", ones, c))]
        )
    if head.map.bias is not None:
        yield Generators("s", (1,), lambda c: [arrays.change_offsets(head.map, contract("Kq,o->Ko", c, ones))])

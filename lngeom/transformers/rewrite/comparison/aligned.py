"""One part in the inner coordinates of another: heads, queries against keys, values against outputs, units, experts.

Each change keeps the part's function. Where nothing has to change, nothing is changed.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float, Int

from lngeom._core.draws import probe_generator
from lngeom.transformers.description import Attention, FeedForward, Mixture
from lngeom.transformers.readings import keys_are_relative, pairs_by_frequency
from lngeom.transformers.rewrite.canonical import HOMOGENEOUS
from lngeom.transformers.rewrite.comparison.plain import Affine, Maps, Plain

UNITS = 4096
"""Hidden units up to which units in another order are matched."""

CLOSE = 1e-3
"""Relative distance below which two rows are taken for one another."""


def far(a: np.ndarray, b: np.ndarray) -> float:
    """Distance relative to the first."""
    size = float(np.linalg.norm(a))
    gap = float(np.linalg.norm(a - b))
    return gap / size if size else gap


def settled(part: Plain) -> Plain:
    """The part with offsets that nothing tells apart in one place: of values in the output, of keys nowhere."""
    if "attention.query" not in part.maps:
        return part
    a, maps = part.block.attention, dict(part.maps)
    if (down := maps.get("feed_forward.down")) is not None:  # parallel branches
        output = maps["attention.output"]
        maps["attention.output"] = replace(output, bias=output.bias + down.bias)
        maps["feed_forward.down"] = replace(down, bias=0 * down.bias)
    if a.sink is None:
        value, output = maps["attention.value"], maps["attention.output"]
        offset = np.repeat(value.offset.reshape(a.kv_heads, -1), a.group, 0).reshape(-1)
        maps["attention.value"] = replace(value, bias=value.bias - value.offset)
        maps["attention.output"] = replace(output, bias=output.bias + output.weight @ offset)
    if keys_are_relative(a) and a.key_norm is None:
        key = maps["attention.key"]
        free = np.ones(a.query_width, bool)
        free[[c for pairs in pairs_by_frequency(a)[0] for pair in pairs for c in pair]] = False
        own = np.tile(free[: a.key_width], a.kv_heads)
        maps["attention.key"] = replace(key, bias=key.bias - np.where(own, key.offset, 0))
        if (shared := maps.get("attention.shared_key")) is not None:
            moved = np.where(free[a.key_width :], shared.offset, 0)
            maps["attention.shared_key"] = replace(shared, bias=shared.bias - moved)
    return replace(part, maps=maps)


def aligned(first: Plain, second: Plain) -> Plain:
    """The first part in the inner coordinates of the second."""
    maps = dict(first.maps)
    vectors = dict(first.vectors)
    if "attention.query" in maps and _sizes(first) == _sizes(second):
        a = first.block.attention
        _order_heads(a, maps, vectors, second.maps)
        _turn_queries(a, maps, second.maps)
        _turn_values(a, maps, second.maps)
    if "feed_forward.down" in maps:
        _order_units("feed_forward", first.block.feed_forward, maps, second.maps)
    if all("feed_forward.router" in some for some in (maps, second.maps)) and isinstance(
        network := first.block.feed_forward, Mixture
    ):
        _order_experts(network, maps, second.maps)
        for path, expert in network.networks():
            _order_units(f"feed_forward.{path}", expert, maps, second.maps)
    return replace(first, maps=maps, vectors=vectors)


def _sizes(part: Plain) -> tuple[Any, ...]:
    a = part.block.attention
    shapes = (part.maps[f"attention.{name}"].weight.shape for name in ("query", "key", "value"))
    return a.heads, a.kv_heads, a.query_width, a.value_width, a.shared_width, *shapes


def _by_head(part: Affine, heads: int) -> Float[np.ndarray, "h k d+1"]:
    joined = np.concatenate([part.matrix, part.offset[:, None]], 1)
    return joined.reshape(heads, -1, joined.shape[1])


def _on_heads(part: Affine, fields: Float[np.ndarray, "h k k"]) -> Affine:
    def change(rows: np.ndarray) -> np.ndarray:
        return (fields @ rows.reshape(len(fields), -1, rows.shape[1])).reshape(rows.shape)

    return part.on_rows(change)


def _order_heads(a: Attention, maps: Maps, vectors: dict[str, np.ndarray], other: Maps) -> None:
    """Query heads, and with them groups, by what their values do to the stream."""
    if a.heads == 1:
        return
    draw = probe_generator().standard_normal((maps["attention.value"].weight.shape[1], 3))

    def acts(some: Maps) -> np.ndarray:
        values = (some["attention.value"].matrix @ draw).reshape(a.kv_heads, a.value_width, -1)
        outputs = some["attention.output"].matrix.reshape(-1, a.heads, a.value_width)
        return np.einsum("dhv,hvj->hdj", outputs, np.repeat(values, a.group, 0)).reshape(a.heads, -1)

    x, y = acts(maps), acts(other)
    heads = _nearest(x, y)  # head i of the second is head heads[i] of the first
    if heads is None:
        return
    groups = heads.reshape(a.kv_heads, a.group) // a.group
    if np.any(groups != groups[:, :1]):
        return
    order = groups[:, 0]
    for name, where in (("query", heads), ("key", order), ("value", order)):
        part = maps[f"attention.{name}"]

        def change(rows: np.ndarray, where: Any = where) -> np.ndarray:
            return rows.reshape(len(where), -1, rows.shape[1])[where].reshape(rows.shape)

        maps[f"attention.{name}"] = part.on_rows(change)
    maps["attention.output"] = maps["attention.output"].on_columns(
        lambda W: W.reshape(-1, a.heads, a.value_width)[:, heads].reshape(W.shape)
    )
    for name in ("attention.sink", "attention.temperature", "attention.relative"):
        if name in vectors:
            vectors[name] = vectors[name][heads]


def _nearest(x: Float[np.ndarray, "n m"], y: Float[np.ndarray, "n m"]) -> Int[np.ndarray, " n"] | None:
    """For each row of y the row of x that is nearest, each once; None where the order that is there is as good."""
    here = np.sum((x - y) ** 2, 1)
    size = np.sum(x**2)
    if np.sum(here <= CLOSE**2 * np.sum(x**2, 1)) > len(x) / 2 or not size:
        return None
    squares = np.sum(y**2, 1)[:, None] + np.sum(x**2, 1)[None] - 2 * y @ x.T
    order = scipy.optimize.linear_sum_assignment(squares)[1]
    there = np.sum(squares[np.arange(len(x)), order])
    return order if there < np.sum(here) / 4 else None


def _turn_queries(a: Attention, maps: Maps, other: Maps) -> None:
    """The first keys X K nearest to the second's, and with them X⁻ᵀ of the queries; a part of all keys stays."""
    if a.query_norm is not None:
        return
    K, L = (_by_head(m["attention.key"], a.kv_heads) for m in (maps, other))
    Q, R = (_by_head(m["attention.query"], a.kv_heads) for m in (maps, other))  # all heads of a group together
    own = a.key_width
    Q, R = (v.reshape(a.kv_heads, a.group, a.query_width, -1)[:, :, :own] for v in (Q, R))
    Q, R = (v.transpose(0, 2, 1, 3).reshape(a.kv_heads, own, -1) for v in (Q, R))
    classes, still = pairs_by_frequency(a)
    classes = [pairs for pairs in classes if max(max(pair) for pair in pairs) < own]
    still = [i for i in still if i < own]
    alone = all(len(pairs) == 1 for pairs in classes)

    def fit(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if a.rotary is None:
            return _map(x, y)
        found = np.eye(own)
        if alone:
            for ((i, j),) in classes:
                z, w = x[i] + 1j * x[j], y[i] + 1j * y[j]
                c = np.vdot(z, w) / max(np.vdot(z, z).real, 1e-300)
                found[np.ix_((i, j), (i, j))] = [[c.real, -c.imag], [c.imag, c.real]]
        if still:
            found[np.ix_(still, still)] = _map(x[still], y[still])
        return found

    if (fields := _fields(fit, K, L, Q, R)) is None:
        return
    maps["attention.key"] = _on_heads(maps["attention.key"], fields)
    inverse = np.tile(np.eye(a.query_width), (a.heads, 1, 1))
    inverse[:, :own, :own] = np.repeat(np.linalg.inv(fields).transpose(0, 2, 1), a.group, 0)
    maps["attention.query"] = _on_heads(maps["attention.query"], inverse)


def _turn_values(a: Attention, maps: Maps, other: Maps) -> None:
    """The first values Y V nearest to the second's, and with them outputs O Y⁻¹."""
    V, U = (_by_head(m["attention.value"], a.kv_heads)[..., :-1] for m in (maps, other))

    def outputs(some: Maps) -> np.ndarray:
        O = some["attention.output"].matrix.reshape(-1, a.kv_heads, a.group, a.value_width)
        return O.transpose(1, 3, 2, 0).reshape(a.kv_heads, a.value_width, -1)

    O, R = outputs(maps), outputs(other)

    if (fields := _fields(_map, V, U, O, R)) is None:
        return
    maps["attention.value"] = _on_heads(maps["attention.value"], fields)
    inverse = np.repeat(np.linalg.inv(fields), a.group, 0)

    def change(W: np.ndarray) -> np.ndarray:
        blocks = W.reshape(-1, a.heads, a.value_width).transpose(1, 0, 2) @ inverse
        return blocks.transpose(1, 0, 2).reshape(W.shape)

    maps["attention.output"] = maps["attention.output"].on_columns(change)


def _fields(
    fit: Callable[[np.ndarray, np.ndarray], np.ndarray], x: np.ndarray, y: np.ndarray, z: np.ndarray, w: np.ndarray
) -> Float[np.ndarray, "h k k"] | None:
    """For each group the X for which Xx and X⁻ᵀz are y and w, fitted to one of them; None if all are the identity."""
    found = []
    for ours, theirs, beside, others in zip(x, y, z, w, strict=True):
        options = [np.eye(len(ours)), fit(ours, theirs)]
        if abs(np.linalg.det(inverse := fit(beside, others))) > 1e-12:
            options.append(np.linalg.inv(inverse).T)
        found.append(_best(options, ours, theirs, beside, others))
    fields = np.array(found)
    return None if np.array_equal(fields, np.broadcast_to(np.eye(fields.shape[-1]), fields.shape)) else fields


def _map(x: Float[np.ndarray, "k m"], y: Float[np.ndarray, "k m"]) -> Float[np.ndarray, "k k"]:
    """X that makes Xx nearest to y; the identity where x does not determine it."""
    if x.shape[1] <= x.shape[0]:
        return np.eye(len(x))
    found, _, rank, _ = np.linalg.lstsq(x.T, y.T, rcond=None)
    return found.T if rank == len(x) else np.eye(len(x))


def _best(fields: list[np.ndarray], x: np.ndarray, y: np.ndarray, z: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The field X for which Xx and X⁻ᵀz are y and w, or one of them is."""

    def score(field: np.ndarray) -> float:
        if not np.isfinite(field).all() or abs(np.linalg.det(field)) < 1e-12:
            return np.inf
        gaps = far(field @ x, y), far(np.linalg.inv(field).T @ z, w)
        return sum(float(np.log10(max(gap, 1e-9))) for gap in gaps)

    scores = [score(field) for field in fields]
    best = int(np.argmin(scores))
    return fields[best] if scores[best] < scores[0] - 1 else fields[0]


def _order_units(path: str, part: Any, maps: Maps, other: Maps) -> None:
    """Units in the order of the second's, with their factors."""
    if not isinstance(part, FeedForward) or f"{path}.up" not in other:
        return
    if maps[f"{path}.up"].weight.shape != other[f"{path}.up"].weight.shape:
        return
    gated = f"{path}.gate" in maps and f"{path}.gate" in other

    def directions(some: Maps) -> np.ndarray:
        rows = _by_head(some[f"{path}.gate" if gated else f"{path}.up"], 1)[0]
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)

    if maps[f"{path}.up"].weight.shape[0] <= UNITS:
        order = _nearest(directions(maps), directions(other))
        if order is not None:
            for name in ("up", "gate"):
                if f"{path}.{name}" in maps:
                    maps[f"{path}.{name}"] = maps[f"{path}.{name}"].on_rows(lambda rows: rows[order])
            maps[f"{path}.down"] = maps[f"{path}.down"].on_columns(lambda W: W[:, order])
    power = 1.0 if gated else HOMOGENEOUS.get(part.activation)
    if power is None or part.clamp is not None:
        return
    up, other_up = (_by_head(m[f"{path}.up"], 1)[0] for m in (maps, other))
    down, other_down = (m[f"{path}.down"].matrix for m in (maps, other))
    factors = np.sum(up * other_up, 1) / np.maximum(np.sum(up**2, 1), 1e-300)
    allowed = np.abs(factors) > 1e-6 if gated else factors > 1e-6
    inverse = np.sum(down * other_down, 0) / np.maximum(np.sum(down**2, 0), 1e-300)
    options = [np.ones(len(up)), np.where(allowed, factors, 1.0)]
    options.append(np.where(inverse > 1e-6, np.abs(inverse), 1.0) ** (-1 / power))

    def score(c: np.ndarray) -> np.ndarray:
        gaps = [
            np.linalg.norm(up * c[:, None] - other_up, axis=1) / np.maximum(np.linalg.norm(other_up, axis=1), 1e-300),
            np.linalg.norm(down / c**power - other_down, axis=0)
            / np.maximum(np.linalg.norm(other_down, axis=0), 1e-300),
        ]
        return np.sum(np.log10(np.maximum(gaps, 1e-9)), 0)

    scores = np.array([score(c) for c in options])
    scores[2] += 0.5  # of two that leave one side exact, always the same
    best = np.argmin(scores, 0)
    chosen = np.array(options)[best, np.arange(len(up))]
    factors = np.where(scores.min(0) < scores[0] - 1, chosen, 1.0)
    if np.all(factors == 1):
        return
    maps[f"{path}.up"] = maps[f"{path}.up"].on_rows(lambda rows: rows * factors[:, None])
    maps[f"{path}.down"] = maps[f"{path}.down"].on_columns(lambda W: W / factors**power)


def _order_experts(network: Mixture, maps: Maps, other: Maps) -> None:
    """Experts in the order of the second's, by their rows of the router."""
    x, y = (_by_head(m["feed_forward.router"], 1)[0] for m in (maps, other))
    if x.shape != y.shape or (order := _nearest(x, y)) is None:
        return
    old = dict(maps)
    maps["feed_forward.router"] = old["feed_forward.router"].on_rows(lambda rows: rows[order])
    for e, k in enumerate(order):
        for name in ("up", "gate", "down"):
            if (found := old.get(f"feed_forward.experts.{k}.{name}")) is not None:
                maps[f"feed_forward.experts.{e}.{name}"] = found

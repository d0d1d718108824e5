"""Why tables differ, or the head: mistakes made on the first model's rows, or undone."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from lngeom._core.text import counted
from lngeom.transformers.description import INPUTS, FrontEnd, Linear, Stack, exchange
from lngeom.transformers.rewrite.comparison.aligned import far
from lngeom.transformers.rewrite.comparison.causes import Cause
from lngeom.transformers.rewrite.comparison.mistakes import mistakes
from lngeom.transformers.rewrite.comparison.models import Model, apart, same_array
from lngeom.transformers.rewrite.comparison.options import options_of
from lngeom.transformers.rewrite.comparison.plain import Affine, pair, read_through, reads_latent
from lngeom.transformers.rewrite.comparison.stored import Changed, Differing, Role, differing, roles_of
from lngeom.transformers.rewrite.comparison.streams import (
    Map,
    fitted,
    nearest_rotation,
    seen,
    some_starts,
    spacing_of_tables,
)
from lngeom.transformers.rewrite.comparison.sweep import Local, Weights, compared, heads, path_of, pieces, streams

Rows = Float[np.ndarray, "n d"]


@dataclass(frozen=True)
class Tables:
    """The map between two models' streams, and what is wrong with the tables."""

    between: Map
    causes: tuple[Cause, ...] = ()


def tables_of(before: Model, after: Model, tokens: np.ndarray, allowed: float) -> Tables:
    """Fits the map between the streams; where the tables do not fit, tries known mistakes.

    Args:
        before: the first model.
        after: the second.
        tokens: the probes.
        allowed: relative distance of rows that rounding explains.

    Returns:
        The map that the blocks ask for, and the mistakes.
    """
    found = fitted(before, after)
    tables = tuple(table.weight for table in after.stack.tables)
    if after.stack.front is not None:  # no mistake is made on its rows
        return Tables(found)
    if found.residual > allowed:
        if (cause := _embedding_norm(before, after)) is not None:
            return Tables(Map(1.0, None, found.centred), (cause,))
        for sentence, change in _mistakes(before, after):
            again = fitted(change(before), after)
            if again.residual <= allowed:
                return Tables(again, (Cause(f"tables: {sentence}", tables, again.residual, True),))
        if (cause := _not_orthogonal(before, after, allowed, tables)) is not None:
            return Tables(found, (cause,))
        same = Map(1.0, None, found.centred, residual=found.residual)  # a change of all rows may look like a rotation
        if found.turn is not None and _first(before, after, same, tokens) < _first(before, after, found, tokens) / 10:
            return Tables(same)
        return Tables(found)
    if found.scale != 1 and found.turn is None:
        plain_map = replace(found, scale=1.0)
        if _first(before, after, plain_map, tokens) < _first(before, after, found, tokens) / 10:
            sentence = f"tables: the rows are multiplied by {found.scale:.6g}, and the blocks are not"
            return Tables(plain_map, (Cause(sentence, tables, found.residual, True),))
    if found.turn is None and (turned := _by_readers(before, after, found)) is not None:
        gaps = [_first(before, after, each, tokens) for each in (found, turned)]
        if gaps[1] < gaps[0] / 10:
            sentence = "tables: they are not rotated, and the blocks are"
            return Tables(turned, (Cause(sentence, tables, found.residual, True),))
    return Tables(found)


def _embedding_norm(before: Model, after: Model) -> Cause | None:
    """The norm after the tables, if its arrays differ and the tables do not."""
    a, b = before.stack.embedding_norm, after.stack.embedding_norm
    if a is None or b is None or [t.weight for t in before.stack.tables] != [t.weight for t in after.stack.tables]:
        return None
    if any(not np.array_equal(before.arrays[t.weight], after.arrays[t.weight]) for t in before.stack.tables):
        return None
    changed = [
        other
        for name, other in ((a.gain, b.gain), (a.bias, b.bias))
        if name is not None and other is not None and not np.array_equal(before.arrays[name], after.arrays[other])
    ]
    if not changed:
        return None
    return Cause("tables: the norm after them differs, and they do not", tuple(changed), 0.0, True)


def _mistakes(before: Model, after: Model) -> Iterator[tuple[str, Callable[[Model], Model]]]:
    """What may have been done to the tables, as changes of the first model."""
    stack = before.stack
    if not before.centres:
        sentence = "the rows are centred, and the norms (RMSNorm) do not centre"
        yield sentence, lambda model: _with_rows(model, lambda rows: seen(rows, True), every=True)
    norms = [("final norm", stack.final)]
    norms += [("blocks.0.attention_norm", block.attention_norm) for block in stack.blocks[:1]]
    for name, norm in norms:
        if norm is None or norm.gain is None:
            continue
        gain = norm.offset + np.ravel(before.arrays[norm.gain])
        if far(np.ones_like(gain), gain) < 1e-9:
            continue
        tied = ", which is the head too (it was not untied)" if name == "final norm" and after.stack.tied else ""
        yield (
            f"the gain of the {name} is folded into them{tied}",
            lambda model, g=gain: _with_rows(model, lambda rows: rows * g),
        )
        yield (
            f"the gain of the {name} divides them",
            lambda model, g=gain: _with_rows(model, lambda rows: rows / np.where(g, g, 1)),
        )


def _with_rows(model: Model, change: Callable[[Rows], Rows], every: bool = False) -> Model:
    """The model with changed rows of the table of tokens, or of every table."""
    arrays = model.arrays.copy()
    for table in model.stack.tables if every else model.stack.tables[:1]:
        arrays.edit(table.linear, "a mistake", lambda rows, _: change(rows), by_rows=True)
    return replace(model, arrays=arrays)


def _first(before: Model, after: Model, between: Map, tokens: np.ndarray) -> float:
    """How far the first block's first part is, by a map."""
    for i, branch, x in streams(before, tokens, 0, between):
        if branch == "head":
            return 0.0
        first, second = before.stack.blocks[i], after.stack.blocks[i]
        found, *_ = compared(first, second, branch, before.arrays, after.arrays, (), x, between, path_of(i, branch))
        return found.difference
    return 0.0


def _by_readers(before: Model, after: Model, between: Map) -> Map | None:
    """The rotation that the first block's readers ask for, if they ask for one."""
    if not before.stack.blocks:
        return None
    block = before.stack.blocks[0]
    branch = pieces(block)[0]
    maps = [part.maps for part in pair(before, after, 0, branch, (between, between))]
    names = [n for n, part in maps[0].items() if part.gain is not None and n in maps[1]]
    names = [n for n in names if not any(reads_latent(b, n) for b in (block, after.stack.blocks[0]))]
    shapes = [(maps[0][n].matrix.shape, maps[1][n].matrix.shape) for n in names]
    if not names or any(a != b for a, b in shapes):
        return None
    first, second = (np.concatenate([m[n].matrix for n in names]) for m in maps)
    if far(first, second) < 1e-3:
        return None
    turn, rank = nearest_rotation(second.T @ first)
    fits = far(first @ turn.T, second) < 1e-2
    return replace(between, turn=turn) if fits and rank >= before.width - 1 else None


def _not_orthogonal(before: Model, after: Model, allowed: float, tables: tuple[str, ...]) -> Cause | None:
    """A linear map of the rows that is no rotation."""
    X, Y = some_starts(before, after, 2 * before.width)
    n, d = X.shape
    if n < d + 2 or before.centres or before.stack.embedding_norm is not None or not (Y.any() and np.isfinite(Y).all()):
        return None
    found = np.linalg.lstsq(X, Y, rcond=None)[0]
    rest = apart(Y, X @ found)
    if rest > allowed:
        return None
    scale = np.sqrt(np.sum(found**2) / d)
    if float(np.abs(found - np.diag(np.diag(found))).max()) < allowed * scale:
        return Cause("tables: each coordinate is multiplied by a number of its own", tables, rest, True)
    off = float(np.linalg.norm(found.T @ found / scale**2 - np.eye(d), 2))
    sentence = f"tables: the stream is turned by a matrix R that is not orthogonal (‖RᵀR − 1‖ = {off:.2g})"
    return Cause(sentence, tables, rest, True)


def tables_at_fault(before: Model, after: Model, between: Map, found: Local) -> Cause:
    """The rows that differ, where no known mistake explains them."""
    if after.stack.front is not None:
        return _front_at_fault(before, after, found)
    names = [table.weight for table in after.stack.tables]
    kinds = {row.split()[0] for row in found.rows}
    some = [t.weight for t in after.stack.tables if t.index in kinds] or names
    if kinds & set(INPUTS):  # a row of another table is seen at every token
        some = names
    if between.turn is None and between.scale == 1:
        some = [name for name in some if not same_array(before, after, name)] or some
    rows = f"{counted(len(found.rows), 'row')} {'differs' if len(found.rows) == 1 else 'differ'}"
    return Cause(f"tables: {rows} from the first model's", tuple(some), found.difference, False)


def _front_at_fault(before: Model, after: Model, found: Local) -> Cause:
    """The option, or the stored array, of a front end or a table beside it, that explains the difference if undone."""
    first, second = before.stack, after.stack

    def rest(stack: Stack, undone: Sequence[Differing] = ()) -> float:
        arrays = after.arrays.copy()
        for wrong in undone:
            name = wrong.role.second
            arrays.set(name, wrong.role.write(np.array(arrays[name]), wrong.a), "undone")
        return fitted(before, replace(after, stack=stack, arrays=arrays)).residual

    allowed = max(8 * spacing_of_tables(model) for model in (before, after))
    layers = list(zip(*(() if stack.front is None else stack.front.layers for stack in (first, second)), strict=False))
    tables = list(zip(first.tables, second.tables, strict=False))
    options: list[tuple[str, str, Any]] = [
        (text, f"front.layers.{i}", layer)
        for i, (x, y) in enumerate(layers)
        for text, layer in options_of(x, y, f"front.layers.{i}", 1.0)
    ]
    options += [
        (f"tables.{i}: its rows are multiplied by {y.scale / x.scale:.6g}", f"tables.{i}", replace(y, scale=x.scale))
        for i, (x, y) in enumerate(tables)
        if x.scale != y.scale
    ]
    strides = [tuple(layer.stride for layer in each) for each in zip(*layers, strict=True)]
    if len(set(strides)) == 2:
        undone = FrontEnd(tuple(replace(y, stride=x.stride) for x, y in layers))
        options.append((f"front: strides are {strides[1]}, and were {strides[0]}", "front", undone))
    for text, path, part in options:
        if (left := rest(exchange(second, {path: part}))) <= allowed:
            return Cause(text, (), left, True)
    for i, (x, y) in enumerate(layers):
        if (x.linear.bias is None) != (y.linear.bias is None):
            has = "has no bias, and had one" if y.linear.bias is None else "has a bias, and had none"
            names = tuple(name for name in (x.linear.bias, y.linear.bias) if name is not None)
            return Cause(f"front.layers.{i} {has}", names, found.difference, False)
    pairs: list[tuple[str, Any, Any]] = [(f"front.layers.{i}", x.linear, y.linear) for i, (x, y) in enumerate(layers)]
    pairs += [(f"tables.{i}", x.linear, y.linear) for i, (x, y) in enumerate(tables)]
    pairs.append(("embedding_norm", first.embedding_norm, second.embedding_norm))
    wrong = differing(before, after, (role for each in pairs for role in roles_of(*each))) or []
    for each in wrong:
        if (left := rest(second, [each])) <= allowed:
            path, name, word = each.role.path, each.role.second, _word(each)
            if path.startswith("tables"):
                spacing = max(before.spacing(each.role.first), after.spacing(name))
                gaps, sizes = (np.linalg.norm(rows, axis=1) for rows in (each.a - each.b, each.a))
                rows = int(np.sum(gaps > 2 * spacing * sizes))
                word = f"{counted(rows, 'row')} {'differs' if rows == 1 else 'differ'} from the first model's"
            return Cause(f"{path}: {name}: {word}", (name,), left, True)
    names = tuple(each.role.second for each in wrong) or second.beginning
    return Cause("front: its outputs differ from the first model's", names, found.difference, False)


def head_causes(
    before: Model, after: Model, between: Map, found: Local, x: np.ndarray, shaken: Sequence[Weights]
) -> list[Cause]:
    """Why the head differs: options, the final norm, arrays; each is undone in the second model."""
    first, second = before.stack, after.stack

    def left(stack: Stack, weights: Weights) -> Local:
        return heads(before, replace(after, stack=stack), shaken, x, between, weights)

    options: list[tuple[str, Stack]] = []
    for name in ("cap", "scale"):
        a, b = getattr(first.head, name), getattr(second.head, name)
        if a != b:
            options.append(
                (f"head.{name} is {b}, and was {a}", replace(second, head=replace(second.head, **{name: a})))
            )
    if first.final is not None and second.final is not None:
        expected = first.final.eps * between.scale**2
        if not math.isclose(expected, second.final.eps, rel_tol=1e-2):
            new = replace(second, final=replace(second.final, eps=expected))
            options.append((f"final.eps is {second.final.eps:g}, and must be {expected:g}", new))
    for sentence, stack in options:
        if not (rest := left(stack, after.arrays)).differs:
            return [Cause(sentence, (), rest.difference, True)]
    if (stored := _stored(before, after, left)) is not None:
        return [stored]
    causes = [Cause(sentence, (), left(stack, after.arrays).difference, False) for sentence, stack in options]
    if first.head.transform is not None or second.head.transform is not None:
        return causes
    a, b = second.head.linear, second.head.mean
    if a is not None and b is not None:
        exchanged = replace(second.head, linear=replace(b, bias=a.bias), mean=replace(a, bias=None))
        if not (rest := left(replace(second, head=exchanged), after.arrays)).differs:
            sentence = "head: the maps of the first position and of the mean of the others are exchanged"
            return [Cause(sentence, tuple(dict.fromkeys((a.weight, b.weight))), rest.difference, True)]
    maps: list[Cause] = []
    for (name, one), (_, other) in zip(_heads(before, None), _heads(after, between), strict=False):
        where = "head" if name == "linear" else f"head.{name}"
        maps += _causes_of_map(where, before, after, between, found, one, other)
    if len(first.head.maps) != len(second.head.maps):
        maps.append(Cause("head: only one model reads the mean of the positions", (), found.difference, False))
    alone = not causes and len(maps) == 1
    return [*causes, *(replace(cause, explains=cause.explains and alone) for cause in maps)]


def _causes_of_map(
    name: str, before: Model, after: Model, between: Map, found: Local, a: Affine, b: Affine
) -> list[Cause]:
    """What was done to one of the maps to logits."""
    first, second, causes = before.stack, after.stack, list[Cause]()
    if a.matrix.shape != b.matrix.shape:
        return [Cause(f"{name}: its matrix has another size", b.stored, found.difference, False)]
    shift = first.head.cap is None and second.head.cap is None
    wanted, got = (seen(part.matrix.T, shift).T for part in (a, b))
    offsets = [seen(part.offset, shift) for part in (a, b)]
    eps = max(before.spacing(a.arrays[0]), after.spacing(b.arrays[0]))
    distance = far(wanted, got)
    if distance > max(2 * eps, 1e-10):
        text, rest = f"it is {distance:.2g} away, relative", distance
        for sentence, _, candidate in mistakes(a, between.turn, "the final norm", first.final):
            if (near := far(seen(candidate.T, shift).T, got)) < max(1e-3 * min(distance, 1.0), 2 * eps):
                text, rest = sentence, near
                break
        if second.tied and not first.tied:
            text += "; it is the table of tokens, and was not"
        causes.append(Cause(f"{name}: {text}", b.stored, rest, rest < distance))
    elif far(*offsets) > 2 * eps:
        text, rest = "its bias differs", far(*offsets)
        for sentence, candidate in (("the bias β of the final norm is not in it", a.bias), ("it is lost", 0 * a.bias)):
            if (near := far(offsets[1], seen(candidate, shift))) < 1e-3:
                text, rest = f"its bias: {sentence}", near
                break
        causes.append(Cause(f"{name}: {text}", b.stored, rest, rest < 1e-3))
    return causes


def _stored(before: Model, after: Model, left: Callable[[Stack, Weights], Local]) -> Cause | None:
    """The one stored array of the final norm, the head, or the layer before it, that explains the difference."""
    for wrong in differing(before, after, _roles(before.stack, after.stack)) or ():
        rest = left(after.stack, Changed(after, [wrong]))
        if not rest.differs:
            return Cause(f"head: {wrong.role.second}: {_word(wrong)}", (wrong.role.second,), rest.difference, True)
    return None


def _word(wrong: Differing) -> str:
    """What a stored array at the end of the model looks like."""
    _, a, b = wrong
    if not b.any():
        return "it is zero"
    if a.ndim == 1:
        return "it is 1" if np.allclose(b, 1) else f"it is {far(a, b):.2g} away, relative"
    rows = np.flatnonzero(np.linalg.norm(a - b, axis=1) > 1e-2 * np.linalg.norm(a, axis=1))
    if not 0 < len(rows) <= len(a) // 2:
        return f"it is {far(a, b):.2g} away, relative"
    return f"{len(rows)} of {len(a)} rows {'differs' if len(rows) == 1 else 'differ'} (first {int(rows[0])})"


def _roles(a: Stack, b: Stack) -> Iterator[Role]:
    """Arrays of the final norm, of the maps that read it, and of the layer before the head."""
    pairs: list[tuple[str, Any, Any]] = [("final", a.final, b.final), ("head.linear", a.head.linear, b.head.linear)]
    pairs.append(("head.mean", a.head.mean, b.head.mean))
    pairs += [(f"side.{k}", x, y) for k, (x, y) in enumerate(zip(a.side, b.side, strict=False))]
    if a.head.transform is not None and b.head.transform is not None:
        pairs.append(("head.transform.norm", a.head.transform.norm, b.head.transform.norm))
        pairs.append(("head.transform.linear", a.head.transform.linear, b.head.transform.linear))
    for path, x, y in pairs:
        yield from roles_of(path, x, y)


def _heads(model: Model, between: Map | None) -> list[tuple[str, Affine]]:
    """The maps of the head, with all offsets in the first one: they are added up."""
    found = {name: _head(model, part, between) for name, part in model.stack.head.maps}
    if "mean" in found:
        offset = found["mean"].offset
        found["mean"] = replace(found["mean"], bias=found["mean"].bias - offset)
        found["linear"] = replace(found["linear"], bias=found["linear"].bias + offset)
    return list(found.items())


def _head(model: Model, part: Linear, between: Map | None) -> Affine:
    """A map of the head, with the final norm's gain and bias, in the first model's basis."""
    over, scale = model.stack.final, model.stack.head.scale
    found = read_through(model, part, over, between, over is not None and over.centres)
    return replace(found, weight=scale * found.weight, bias=scale * found.bias)

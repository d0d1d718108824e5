"""Why tables differ, or the head: mistakes made on the first model's rows, or undone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from lngeom.transformers.description import Linear, Norm
from lngeom.transformers.rewrite.comparison.aligned import far
from lngeom.transformers.rewrite.comparison.causes import Cause, mistakes
from lngeom.transformers.rewrite.comparison.models import Model, apart
from lngeom.transformers.rewrite.comparison.plain import Affine, both
from lngeom.transformers.rewrite.comparison.streams import Map, fitted, nearest_rotation, seen, some_starts
from lngeom.transformers.rewrite.comparison.sweep import Local, compared, path_of, pieces, streams

Rows = Float[np.ndarray, "n d"]


@dataclass(frozen=True)
class Start:
    """The map between two models' streams, and what is wrong with the tables."""

    between: Map
    causes: tuple[Cause, ...] = ()


def start(before: Model, after: Model, tokens: np.ndarray, allowed: float) -> Start:
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
    if found.residual > allowed:
        for sentence, change in _mistakes(before, after):
            again = fitted(change(before), after)
            if again.residual <= allowed:
                return Start(again, (Cause(f"tables: {sentence}", tables, again.residual, True),))
        if (cause := _not_orthogonal(before, after, allowed, tables)) is not None:
            return Start(found, (cause,))
        return Start(found)
    if found.scale != 1 and found.turn is None:
        plain_map = replace(found, scale=1.0)
        if _first(before, after, plain_map, tokens) < _first(before, after, found, tokens) / 10:
            sentence = f"tables: the rows are multiplied by {found.scale:.6g}, and nothing else is"
            return Start(plain_map, (Cause(sentence, tables, found.residual, True),))
    if found.turn is None and (turned := _by_readers(before, after, found)) is not None:
        gaps = [_first(before, after, each, tokens) for each in (found, turned)]
        if gaps[1] < gaps[0] / 10:
            sentence = "tables: they are not rotated, and the blocks are"
            return Start(turned, (Cause(sentence, tables, found.residual, True),))
    return Start(found)


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
        arrays.edit(Linear(table.weight), "a mistake", lambda rows, _: change(rows), by_rows=True)
    return replace(model, arrays=arrays)


def _first(before: Model, after: Model, between: Map, tokens: np.ndarray) -> float:
    """How far the first block's first part is, by a map."""
    for i, branch, x in streams(before, tokens, 0):
        if branch == "head":
            return 0.0
        first, second = before.stack.blocks[i], after.stack.blocks[i]
        found, _ = compared(first, second, branch, before.arrays, after.arrays, None, x, between, path_of(i, branch))
        return found.difference
    return 0.0


def _by_readers(before: Model, after: Model, between: Map) -> Map | None:
    """The rotation that the first block's readers ask for, if they ask for one."""
    if not before.stack.blocks:
        return None
    block = before.stack.blocks[0]
    branch = pieces(block)[0]
    maps = [part.maps for part in both(before, after, 0, branch, (between, between))]
    names = [n for n, part in maps[0].items() if part.gain is not None]
    shapes = [(maps[0][n].matrix.shape, maps[1][n].matrix.shape) for n in names]
    if any(a != b for a, b in shapes):
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
    if n < d + 2 or before.centres:
        return None
    found = np.linalg.lstsq(X, Y, rcond=None)[0]
    rest = apart(Y, X @ found)
    if rest > allowed:
        return None
    scale = np.sqrt(np.sum(found**2) / d)
    if float(np.abs(found - np.diag(np.diag(found))).max()) < allowed * scale:
        return Cause("tables: each coordinate is multiplied by a number of its own", tables, rest, True)
    gap = float(np.linalg.norm(found.T @ found / scale**2 - np.eye(d), 2))
    sentence = f"tables: the stream is turned by a matrix R that is not orthogonal (‖RᵀR − 1‖ = {gap:.2g})"
    return Cause(sentence, tables, rest, True)


def tables_at_fault(before: Model, after: Model, found: Local) -> Cause:
    """The rows that differ, where no known mistake explains them."""
    names = [table.weight for table in after.stack.tables]
    kinds = {row.split()[0] for row in found.rows}
    some = [t.weight for t in after.stack.tables if t.index in kinds] or names
    if "token" in kinds:  # a row of another table is seen at every token
        some = names
    return Cause(f"tables: {len(found.rows)} rows differ from the first model's", tuple(some), found.difference, False)


def head_causes(before: Model, after: Model, between: Map, found: Local, x: np.ndarray) -> list[Cause]:
    """Why the head differs: the final norm, the matrix, options."""
    first, second = before.stack, after.stack
    causes: list[Cause] = []
    for name in ("cap", "scale"):
        if getattr(first.head, name) != getattr(second.head, name):
            sentence = f"head.{name} is {getattr(second.head, name)}, and was {getattr(first.head, name)}"
            causes.append(Cause(sentence, (), found.difference, False))
    if first.final is not None and second.final is not None:
        expected = first.final.eps * between.scale**2
        if abs(expected - second.final.eps) > 1e-3 * max(expected, second.final.eps):
            sentence = f"final.eps is {second.final.eps:g}, and must be {expected:g}"
            causes.append(Cause(sentence, (), found.difference, False))
    if first.head.transform is not None and second.head.transform is not None:
        return [*causes, *_transform_causes(before, after, found)]
    a, b = _head(before, None), _head(after, between)
    if a.matrix.shape != b.matrix.shape:
        return [*causes, Cause("head: its matrix has another size", b_arrays(b), found.difference, False)]
    shift = first.head.cap is None and second.head.cap is None
    wanted, got = (seen(part.matrix.T, shift).T for part in (a, b))
    offsets = [seen(part.offset, shift) for part in (a, b)]
    eps = max(float(jnp.finfo(m.arrays.dtype(p.arrays[0])).eps) for m, p in ((before, a), (after, b)))
    gap = far(wanted, got)
    if gap > max(2 * eps, 1e-10):
        text = f"it is {gap:.2g} away, relative"
        for sentence, _, candidate in mistakes(a, between.turn, "the final norm", first.final):
            if far(seen(candidate.T, shift).T, got) < 1e-3 * gap:
                text = sentence
                break
        moved = a.matrix - b.matrix
        moved = moved - np.median(moved, 0) if shift else moved  # softmax does not see what all rows share
        rows = np.flatnonzero(np.linalg.norm(moved, axis=1) > max(1e-3, 2 * eps) * np.linalg.norm(a.matrix, axis=1))
        if text.startswith("it is") and len(rows) <= len(wanted) // 4:
            text = f"{len(rows)} of {len(wanted)} rows differ (first {int(rows[0]) if len(rows) else 0})"
        elif second.tied and not first.tied:
            text += "; it is the table of tokens, and was not"
        causes.append(Cause(f"head: {text}", b_arrays(b), found.difference, not causes))
    elif float(np.linalg.norm(offsets[0] - offsets[1])) > 1e-6 * (1 + float(np.linalg.norm(offsets[0]))):
        text = "its bias differs"
        for sentence, candidate in (("the bias β of the final norm is not in it", a.bias), ("it is lost", 0 * a.bias)):
            if far(seen(candidate, shift), offsets[1]) < 1e-3:
                text = f"its bias: {sentence}"
                break
        causes.append(Cause(f"head: {text}", b_arrays(b), found.difference, not causes))
    return causes


def _transform_causes(before: Model, after: Model, found: Local) -> Iterator[Cause]:
    """Arrays of the layer before the head, and of the head, that differ as they are stored."""
    a, b = before.stack.head, after.stack.head
    t, u = a.transform, b.transform
    assert t is not None
    assert u is not None
    pairs = [(t.linear.weight, u.linear.weight), (t.linear.bias, u.linear.bias)]
    pairs += [(t.norm.gain, u.norm.gain), (t.norm.bias, u.norm.bias)]
    pairs += [(a.linear.weight, b.linear.weight), (a.linear.bias, b.linear.bias)]
    for one, other in pairs:
        if one is None or other is None:
            continue
        x, y = (np.asarray(m.arrays[name], np.float64) for m, name in ((before, one), (after, other)))
        if x.shape != y.shape:
            yield Cause(f"head: {other}: it has another size", (other,), found.difference, False)
        elif (gap := far(x, y)) > 2 * float(jnp.finfo(after.arrays.dtype(other)).eps):
            rows = np.flatnonzero(np.any(x != y, -1)) if x.ndim == 2 else np.zeros(0, int)
            text = f"it is {gap:.2g} away, relative"
            if len(rows):
                text = f"{len(rows)} of {len(x)} rows differ (first {int(rows[0])})"
            yield Cause(f"head: {other}: {text}", (other,), found.difference, False)


def b_arrays(part: Affine) -> tuple[str, ...]:
    """Names of a map's arrays."""
    return tuple(name for name in part.arrays if name is not None)


def _head(model: Model, between: Map | None) -> Affine:
    """The head's map, with the final norm's gain and bias, in the first model's basis."""
    stack, arrays = model.stack, model.arrays
    linear, over = stack.head.linear, stack.final
    W = np.array(linear.matrix(arrays[linear.weight]), np.float64)
    b = np.zeros(len(W)) if linear.bias is None else np.array(linear.offsets(arrays[linear.bias]), np.float64)
    gain, shift = _gain(model, over, W.shape[1])
    if between is not None:
        b, W, gain, shift = b + W @ shift, W * gain, np.ones(W.shape[1]), np.zeros(W.shape[1])
        W = W if between.turn is None else W @ between.turn
        W = W if over is not None else W * between.scale
    W, b = stack.head.scale * W, stack.head.scale * b
    return Affine(W, b, gain, shift, over is not None and over.centres, (linear.weight, linear.bias))


def _gain(model: Model, norm: Norm | None, d: int) -> tuple[np.ndarray, np.ndarray]:
    """γ and β."""
    gain = np.ones(d) if norm is None or norm.gain is None else norm.offset + np.ravel(model.arrays[norm.gain])
    shift = np.zeros(d) if norm is None or norm.bias is None else np.array(np.ravel(model.arrays[norm.bias]))
    return gain, shift

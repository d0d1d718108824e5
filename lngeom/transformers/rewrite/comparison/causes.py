"""Why a part of one model differs from the other's: known mistakes, each tested by undoing it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from lngeom.transformers.description import Attention, Block, Linear, Norm, walk
from lngeom.transformers.parts import Part
from lngeom.transformers.rewrite.comparison.aligned import aligned, far, settled
from lngeom.transformers.rewrite.comparison.models import Model, gap
from lngeom.transformers.rewrite.comparison.plain import Affine, Plain, both, reading_norm
from lngeom.transformers.rewrite.comparison.streams import Map
from lngeom.transformers.rewrite.comparison.sweep import (
    Branch,
    Local,
    Weights,
    comparable,
    entering,
    output,
    path_of,
    wide,
)

LEVELS = 256
"""Distinct values in a group up to which an array looks quantized."""


@dataclass(frozen=True)
class Cause:
    """A mistake that explains why a part differs.

    Attributes:
        sentence: what happened.
        arrays: names of the arrays at fault in the second model; none where an option of the description is.
        left: the part's difference after the mistake is undone, or the given model with the mistake made.
        explains: whether nothing but rounding is left.
    """

    sentence: str
    arrays: tuple[str, ...]
    left: float
    explains: bool


@dataclass(frozen=True)
class Judge:
    """Judges changed forms of the second model's part beside the first model's output.

    Attributes:
        before: the first model.
        after: the second.
        i: number of the block.
        branch: the part.
        between: maps of streams before and after the part.
        x: the first model's stream before it.
        shaken: the second model's arrays with random roundings.
    """

    before: Model
    after: Model
    i: int
    branch: Branch
    between: tuple[Map, Map]
    x: Float[np.ndarray, "N T d"]
    shaken: Sequence[Weights]

    @cached_property
    def blocks(self) -> tuple[Block, Block]:
        """The block of both models."""
        return comparable(self.before.stack.blocks[self.i], self.after.stack.blocks[self.i])

    @cached_property
    def wanted(self) -> np.ndarray:
        """The first model's output, in its own basis."""
        y = wide(output, self.blocks[0], self.branch, self.before.arrays, self.x)
        return self.between[1].back(self.between[1].forth(y))

    @cached_property
    def moved(self) -> list[np.ndarray]:
        """What roundings change in the second model's output."""
        return [self.of(weights) - self.of(self.after.arrays) for weights in self.shaken]

    def of(self, weights: Weights, block: Block | None = None) -> np.ndarray:
        """The second model's output with other arrays, or of another block, in the first model's basis."""
        mapped = entering(self.blocks[0], self.branch, self.between[0]).forth(self.x)
        return self.between[1].back(wide(output, block or self.blocks[1], self.branch, weights, mapped))

    def __call__(self, got: np.ndarray) -> Local:
        """How far an output in the first model's basis is."""
        return Local("", *gap(self.wanted, got, [got + each for each in self.moved]))


def causes_of(judge: Judge) -> list[Cause]:
    """Why a part of a block differs: the likeliest cause, or several that are all needed."""
    before, after, i, branch = judge.before, judge.after, judge.i, judge.branch
    block = judge.blocks[0]
    raw = both(before, after, i, branch, judge.between)
    first, second = (settled(part) for part in raw)

    def left(part: Plain) -> Local:
        return judge(part.output(judge.x))

    for j, other in enumerate(after.stack.blocks):
        if j == i or type(other.feed_forward) is not type(block.feed_forward) or other.placing != block.placing:
            continue
        if not (found := judge(judge.of(after.arrays, comparable(block, other)[1]))).differs:
            sentence = f"{path_of(i, branch)}: block {j} stands in the place of block {i}"
            return [Cause(sentence, (), found.difference, True)]
    if (exchanged := _exchanged(first, raw[1], left, i)) is not None:
        return [exchanged]
    options = list(options_of(first.block, second.block, f"blocks.{i}", judge.between[0].scale))
    for sentence, changed in options:
        if not (found := left(replace(second, block=changed))).differs:
            return [Cause(sentence, (), found.difference, True)]
    joined = replace(second, block=_all_of([changed for _, changed in options], second.block))
    found = left(joined)
    if len(options) > 1 and not found.differs:
        return [Cause(sentence, (), found.difference, True) for sentence, _ in options]
    if (stored := _stored(judge, first, second)) is not None:
        return stored
    helps = bool(options) and found.difference < left(second).difference / 2
    causes = [Cause(sentence, (), found.difference, False) for sentence, _ in options] if helps else []
    return [*causes, *_arrays(first, joined if helps else second, left, judge.between[0].turn, i, before, after)]


def _stored(judge: Judge, first: Plain, second: Plain) -> list[Cause] | None:
    """Arrays that differ as they are stored, where both models store most of them alike."""
    roles = list(_roles(*judge.blocks, judge.branch))
    wrong: dict[str, tuple[np.ndarray, np.ndarray, Callable[[np.ndarray], np.ndarray], str]] = {}
    for path, name, other, read, write in roles:
        a, b = read(judge.before.arrays[name], 0), read(judge.after.arrays[other], 1)
        if a.shape != b.shape:
            return None
        eps = max(float(jnp.finfo(m.arrays.dtype(n)).eps) for m, n in ((judge.before, name), (judge.after, other)))
        if far(a, b) > 2 * eps:
            wrong[path] = a, b, lambda value, w=write, o=other: w(judge.after.arrays[o], value), other
    if not wrong or len(wrong) > len(roles) / 2:
        return None

    def undone(paths: list[str]) -> Local:
        changed: dict[str, np.ndarray] = {}
        for path in paths:
            a, _, write, other = wrong[path]
            if other in changed:  # several parts of one array
                _, _, _, _, place = next(role for role in roles if role[0] == path)
                changed[other] = place(changed[other], a)
            else:
                changed[other] = write(a)
        return judge(judge.of(Changed(judge.after.arrays, changed)))

    alone = {path: undone([path]) for path in wrong}
    paths = [path for path, found in alone.items() if not found.differs][:1]
    if not paths and (len(wrong) > 2 or any(path in first.maps for path in wrong)):
        return None  # maps may have another basis
    paths = paths or list(wrong)
    found = undone(paths)
    if found.differs:
        return None
    words = []
    for path in paths:
        a, b, _, other = wrong[path]
        words.append(f"blocks.{judge.i}.{path}: {_stored_word(path, a, b, first, second, judge)}")
    shown = "; ".join(words[:4]) + (f"; and {len(words) - 4} more" if len(words) > 4 else "")
    arrays = tuple(dict.fromkeys(wrong[path][3] for path in paths))
    return [Cause(shown, arrays, found.difference, True)]


def _stored_word(path: str, a: np.ndarray, b: np.ndarray, first: Plain, second: Plain, judge: Judge) -> str:
    """What was done to a stored array."""
    rounding = 2 * max(
        float(jnp.finfo(m.arrays.dtype(m.stack.tables[0].weight)).eps) for m in (judge.before, judge.after)
    )
    if path in first.maps and path in second.maps:
        return _relation(path, first, second, judge.between[0].turn, judge.i, judge.before, judge.after).text
    for text, candidate in _vector_mistakes(path, a):
        if _fits(far(candidate, b), far(a, b), rounding):
            return text
    factor = float(np.sum(a * b)) / max(float(np.sum(a**2)), 1e-300)
    if factor and _fits(far(factor * a, b), far(a, b), rounding):
        return f"it is multiplied by {factor:.4g}"
    return f"it is {far(a, b):.2g} away, relative"


class Changed(Mapping[str, np.ndarray]):
    """Arrays, some of them others."""

    def __init__(self, arrays: Mapping[str, np.ndarray], changed: dict[str, np.ndarray]) -> None:
        self.arrays, self.changed = arrays, changed

    def __getitem__(self, name: str) -> np.ndarray:
        return self.changed[name] if name in self.changed else self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


Role = tuple[str, str, str, Callable[[np.ndarray, int], np.ndarray], Callable[[np.ndarray, np.ndarray], np.ndarray]]


def _roles(first: Block, second: Block, branch: Branch) -> Iterator[Role]:
    """Arrays of a part by role: path, both names, how the role is read from an array, and written into the second's."""
    pairs = {path: (a, b) for (path, a), (other, b) in zip(walk(first), walk(second), strict=False) if path == other}
    for path, (a, b) in pairs.items():
        top = path.split(".")[0]
        if top == "" or (branch != "both" and not top.startswith(branch) and not _reads(first, top, branch)):
            continue
        if isinstance(a, Linear) and isinstance(b, Linear):
            yield path, a.weight, b.weight, lambda v, k, p=(a, b): p[k].matrix(v), b.with_matrix
            if a.bias is not None and b.bias is not None:
                yield f"{path}.bias", a.bias, b.bias, lambda v, k, p=(a, b): p[k].offsets(v), b.with_offsets
        elif isinstance(a, Norm) and isinstance(b, Norm):
            if a.gain is not None and b.gain is not None:

                def effective(v: np.ndarray, k: int, p: tuple[Norm, Norm] = (a, b)) -> np.ndarray:
                    return p[k].offset + np.asarray(v)

                yield f"{path}.gain", a.gain, b.gain, effective, lambda old, v, n=b: (v - n.offset).reshape(old.shape)
            if a.bias is not None and b.bias is not None:
                yield f"{path}.bias", a.bias, b.bias, lambda v, k: np.asarray(v), lambda old, v: v.reshape(old.shape)
        elif isinstance(a, Attention) and isinstance(b, Attention):
            for name in ("temperature", "sink", "relative"):
                one, other = getattr(a, name), getattr(b, name)
                if one is not None and other is not None:
                    yield f"{path}.{name}", one, other, lambda v, k: np.asarray(v), lambda old, v: v.reshape(old.shape)


def _reads(block: Block, top: str, branch: Branch) -> bool:
    """Whether a norm of the block is the one that a branch reads."""
    return top == "attention_norm" and branch == "feed_forward" and block.shared_norm


NAMES = {"gain", "bias", "offset", "temperature", "sink", "relative", "untied"}
"""Fields that say how arrays are named and stored."""


TRADED = {"scale", "factor", "pairing"}
"""Options that arrays can make up for: factors of maps, and the order of rotary pairs."""


def options_of(
    first: Any,
    second: Any,
    path: str,
    scale: float,
    rebuild: Callable[[Any], Any] = lambda part: part,
    *,
    traded: bool = True,
) -> Iterator[tuple[str, Any]]:
    """Each option in which two parts differ, and the second part with the first one's.

    Args:
        first: the first part.
        second: the second.
        path: of both.
        scale: of the stream: it asks for another ε of the norms that read it.
        rebuild: makes the whole block of a changed part.
        traded: whether options count that arrays can make up for.

    Yields:
        What differs, and the changed block.
    """
    for f in fields(first):
        a: Any = getattr(first, f.name)
        b: Any = getattr(second, f.name)
        where = f"{path}.{f.name}"
        if isinstance(a, Linear) or f.name in NAMES or _alike(a, b) or (f.name in TRADED and not traded):
            continue
        if f.name == "experts":
            if len(a) == len(b) and a[0].activation != b[0].activation:
                experts = tuple(replace(e, activation=x.activation) for e, x in zip(b, a, strict=True))
                sentence = f"{path}.experts have activation {b[0].activation!r}, and had {a[0].activation!r}"
                yield sentence, rebuild(replace(second, experts=experts))
            continue
        sentence, expected = f"{where} is {_short(b)}, and was {_short(a)}", a
        if f.name == "eps":
            if path == "embedding_norm":
                continue  # tables may be scaled before it; they are compared after it
            if scale != 1 and path.endswith(("attention_norm", "feed_forward_norm", "final")):
                expected = a * scale**2
                sentence += f" (the stream is scaled by {scale:.3g}, so that it must be {expected:.3g})"
            if math.isclose(expected, b, rel_tol=1e-2 if scale != 1 else 1e-6):
                continue
        if isinstance(a, Part) and type(a) is type(b):

            def inner(part: Any, name: str = f.name) -> Any:
                return rebuild(replace(second, **{name: part}))

            yield from options_of(a, b, where, scale, inner, traded=traded)
            continue
        if isinstance(a, Part) or isinstance(b, Part):
            continue  # a part that the other has not, or another kind of part
        try:
            changed = replace(second, **{f.name: expected})
        except (TypeError, ValueError):  # it does not go with the others
            continue
        yield sentence, rebuild(changed)
    if scale != 1 and isinstance(first, Block):  # norms that are equal, and must not be
        for name in ("attention_norm", "feed_forward_norm"):
            a, b = getattr(first, name), getattr(second, name)
            if a is not None and b is not None and a.eps == b.eps and a.eps and first.placing != "post":
                expected = a.eps * scale**2
                sentence = (
                    f"{path}.{name}.eps is {_short(b.eps)} as before (the stream is scaled by {scale:.3g}, so that "
                )
                yield (
                    f"{sentence}it must be {expected:.3g})",
                    rebuild(replace(second, **{name: replace(b, eps=expected)})),
                )


def _alike(a: Any, b: Any) -> bool:
    """Whether two values are equal, numbers up to rounding of float32."""
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return all(map(_alike, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-6)
    return a == b


def _all_of(changed: list[Any], plain_part: Any) -> Any:
    """A part with all changes of several changed ones."""
    new: dict[str, Any] = {}
    for f in fields(plain_part):
        old: Any = getattr(plain_part, f.name)
        others = [value for each in changed if (value := getattr(each, f.name)) != old]
        if others:
            nested = isinstance(old, Part) and all(type(value) is type(old) for value in others)
            new[f.name] = _all_of(others, old) if nested else others[0]
    return replace(plain_part, **new)


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _arrays(
    first: Plain,
    second: Plain,
    left: Callable[[Plain], Local],
    turn: np.ndarray | None,
    i: int,
    before: Model,
    after: Model,
) -> list[Cause]:
    """Arrays that differ, and what was done to them."""
    here = aligned(first, second)
    wrong: dict[str, float] = {}
    for name, part in here.maps.items():
        if (other := second.maps.get(name)) is None or other.matrix.shape != part.matrix.shape:
            continue
        rounding = tolerance(part, before, after, other)
        gap = max(far(part.matrix, other.matrix), _offset_gap(part, other))
        if gap > rounding:
            wrong[name] = gap
    vectors: dict[str, float] = {}
    for name, value in here.vectors.items():
        if (other := second.vectors.get(name)) is not None and other.shape == value.shape:
            eps = float(jnp.finfo(after.arrays.dtype(second.stored[name])).eps)
            if (gap := far(value, other)) > max(2 * eps, 1e-10):
                vectors[name] = gap

    def with_arrays(names: list[str]) -> Plain:
        maps = second.maps | {n: here.maps[n] for n in names if n in wrong}
        return replace(second, maps=maps, vectors=second.vectors | {n: here.vectors[n] for n in names if n in vectors})

    names = [*wrong, *vectors]
    if not names:
        return [Cause("no single array of it differs from the first model's", (), left(second).difference, False)]
    alone = [name for name in names if not left(with_arrays([name])).differs]
    chosen = alone[:1] or names
    rest = left(with_arrays(chosen))
    words = [_relation(name, here, second, turn, i, before, after) for name in chosen]
    return [_merged(words, chosen, here, rest.difference, not rest.differs, i, after)]


def _pairs(first: Plain, second: Plain) -> Iterator[tuple[str, str]]:
    """Maps of one size whose roles may have been exchanged."""
    for name in first.maps:
        stem, _, last = name.rpartition(".")
        for other in {"gate": ("up",), "query": ("key", "value"), "key": ("value",)}.get(last, ()):
            found = f"{stem}.{other}"
            if all(n in m.maps for n in (name, found) for m in (first, second)):
                yield name, found


def _exchanged(first: Plain, raw: Plain, left: Callable[[Plain], Local], i: int) -> Cause | None:
    """Two maps that stand in each other's place, if that is all; the second part with its offsets as they are."""
    for name, other in _pairs(first, raw):
        one, two = raw.maps[name], raw.maps[other]
        if one.matrix.shape != two.matrix.shape:
            continue
        for new in ((two, one), (replace(one, weight=two.weight), replace(two, weight=one.weight))):  # without biases
            found = left(settled(replace(raw, maps=raw.maps | {name: new[0], other: new[1]})))
            if found.difference <= 3 * found.allowed:  # roundings were measured with the maps in the wrong places
                short = other.rpartition(".")[2]
                arrays = (one.arrays[0], two.arrays[0])
                return Cause(f"blocks.{i}.{name} and {short} are exchanged", arrays, found.difference, True)
    return None


def tolerance(part: Affine, before: Model, after: Model, other: Affine) -> float:
    """What rounding may do to a matrix, relative."""
    eps = [
        float(jnp.finfo(model.arrays.dtype(name)).eps)
        for model, names in ((before, part.arrays), (after, other.arrays))
        for name in names
        if name is not None
    ]
    return max(2 * max(eps), 1e-10)


def _offset_gap(part: Affine, other: Affine) -> float:
    """How far offsets are apart, in units of the outputs."""
    size = float(np.linalg.norm(part.offset)) + 1e-3 * float(np.linalg.norm(part.matrix))
    gap = float(np.linalg.norm(part.offset - other.offset))
    return gap / size if size else gap


@dataclass(frozen=True)
class _Word:
    """What was done to one map or vector: a short text, the arrays, and whether it speaks of the norm before it."""

    text: str
    arrays: tuple[str, ...]
    of_norm: bool = False


def _merged(
    words: list[_Word], names: list[str], here: Plain, rest: float, explains: bool, i: int, after: Model
) -> Cause:
    """One sentence for what was done to several arrays."""
    arrays = tuple(dict.fromkeys(array for word in words for array in word.arrays))
    texts = {word.text for word in words}
    readers = [n for n, part in here.maps.items() if part.gain is not None]
    if len(texts) == 1 and len(words) > 1:
        word, short = words[0], [n.rpartition(".")[2] for n in names]
        every = set(readers) <= set(names)
        if word.of_norm and every:
            gain = _gain_read(after, i, names[0])
            return Cause(f"blocks.{i}: {word.text}, in all that read it", gain or arrays, rest, explains)
        text = word.text.replace("its ", "their ").replace("it is ", "they are ")
        return Cause(f"blocks.{i}: {text}, in {', '.join(short)}", arrays, rest, explains)
    shown = "; ".join(f"blocks.{i}.{name}: {word.text}" for name, word in list(zip(names, words, strict=True))[:4])
    more = f"; and {len(names) - 4} more" if len(names) > 4 else ""
    return Cause(shown + more, arrays, rest, explains)


def _gain_read(model: Model, i: int, name: str) -> tuple[str, ...]:
    """The array of the gain that a map reads, if there is one."""
    over = reading_norm(model.stack.blocks[i], "attention" if name.startswith("attention") else "feed_forward")
    return () if over is None or over.gain is None else (over.gain,)


def _relation(
    name: str, here: Plain, second: Plain, turn: np.ndarray | None, i: int, before: Model, after: Model
) -> _Word:
    """What was done to one array."""
    if name in here.vectors:
        a, b = here.vectors[name], second.vectors[name]
        for text, candidate in _vector_mistakes(name, a):
            if _fits(far(candidate, b), far(a, b), 2 * float(jnp.finfo(after.arrays.dtype(second.stored[name])).eps)):
                return _Word(text, (second.stored[name],))
        return _Word(f"it is {far(a, b):.2g} away, relative", (second.stored[name],))
    a, b = here.maps[name], second.maps[name]
    rounding = tolerance(a, before, after, b)
    if not _offset_gap(a, b) or far(a.matrix, b.matrix) > rounding:
        block = before.stack.blocks[i]
        branch: Branch = "attention" if name.startswith("attention") else "feed_forward"
        over = reading_norm(block, branch)
        label = "attention_norm" if over is block.attention_norm else "feed_forward_norm"
        attention = here.block.attention if branch == "attention" else None
        for text, of_norm, candidate in mistakes(a, turn, label, over, name, attention):
            scale = float(np.linalg.norm(candidate))
            if scale and _fits(far(candidate, b.matrix), far(a.matrix, b.matrix), rounding):
                return _Word(text, (b.arrays[0],), of_norm)
        if not np.any(b.matrix):
            return _Word("it is zero", (b.arrays[0],))
        stored = [_linear(model, i, name) for model in (before, after)]
        return _Word(_noise(a, b, rounding, *stored), (b.arrays[0],))
    stored = b.arrays[1] or b.arrays[0]
    for text, candidate in _offset_mistakes(a):
        gap = float(np.linalg.norm(candidate - b.offset))
        size = float(np.linalg.norm(b.offset)) + 1e-3 * float(np.linalg.norm(b.matrix))
        if _fits(gap / size, float(np.linalg.norm(a.offset - b.offset)) / size, rounding):
            return _Word(text, (stored,))
    return _Word(f"its bias is {_offset_gap(a, b):.2g} away, relative", (stored,))


def mistakes(
    a: Affine,
    turn: np.ndarray | None,
    label: str,
    over: Norm | None,
    name: str = "",
    attention: Attention | None = None,
) -> Iterator[tuple[str, bool, np.ndarray]]:
    """Known mistakes: a text, whether it speaks of the norm before the map, and the matrix that it leaves."""
    M, W = a.matrix, a.weight
    if a.gain is not None:
        g = a.gain
        if far(np.ones_like(g), g) > 1e-9:
            yield f"the gain γ of {label} is left out", True, a.with_gain(np.ones_like(g))
            yield f"the gain γ of {label} is there twice", True, a.with_gain(g * g)
            yield f"γ − 1 stands for γ of {label}", True, a.with_gain(g - 1)
            yield f"1 + γ stands for γ of {label}", True, a.with_gain(g + 1)
            with np.errstate(divide="ignore", invalid="ignore"):
                inverse = np.where(g != 0, 1 / np.where(g != 0, g, 1), 0)
            yield f"1/γ stands for γ of {label}", True, a.with_gain(inverse)
        if over is not None and not a.centred:
            centred = W - W.mean(1, keepdims=True)
            yield f"its rows are centred, and {label} (RMSNorm) does not centre", False, centred * a.gain
            yield f"its rows are centred, and {label} (RMSNorm) does not centre", False, M - M.mean(1, keepdims=True)
        if turn is not None:
            yield "it is not rotated with the stream", False, M @ turn
            yield "it is rotated the other way than the stream", False, M @ turn @ turn
    else:
        centred = M - M.mean(0, keepdims=True)
        if a.centred:
            yield "it is not centred, and the new norms do not centre", False, W
            for part in [] if turn is None else [turn]:
                yield "it is not centred, and the new norms do not centre", False, part.T @ (part @ W)
        else:
            yield "its outputs are centred, and the norms (RMSNorm) do not centre", False, centred
        if turn is not None:
            yield "it is not rotated with the stream", False, turn.T @ M
            yield "it is rotated the other way than the stream", False, turn.T @ turn.T @ M
    if M.shape[0] == M.shape[1]:
        yield "it is transposed", False, replace(a, weight=W.T).matrix
    if name in {"attention.query", "attention.key"} and attention is not None and attention.rotary is not None:
        heads = attention.heads if name.endswith("query") else attention.kv_heads
        for text, order in _pair_orders(attention):
            yield text, False, M.reshape(heads, -1, M.shape[1])[:, order].reshape(M.shape)


def _pair_orders(a: Attention) -> Iterator[tuple[str, np.ndarray]]:
    """Rows of a head after a change of the order of rotary pairs."""
    assert a.rotary is not None
    turned = a.rotary.coordinates
    half = np.arange(turned).reshape(2, -1).T.reshape(-1)  # 0 m 1 m+1 …
    rest = np.arange(turned, a.query_width)
    text = "its rows are in the other order of rotary pairs (halves for neighbours)"
    yield text, np.concatenate([half, rest])
    yield text, np.concatenate([np.argsort(half), rest])


def _fits(gap: float, before: float, rounding: float) -> bool:
    """Whether a mistake leaves no more than rounding, and far less than was there."""
    return gap <= max(1e-3 * min(before, 1.0), rounding) and gap < before / 4


def _vector_mistakes(name: str, a: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    if name.endswith("gain"):
        yield "γ − 1 stands for γ", a - 1
        yield "1 + γ stands for γ", a + 1
        yield "it is 1", np.ones_like(a)
    yield "it is zero", np.zeros_like(a)
    yield "it has the other sign", -a


def _offset_mistakes(a: Affine) -> Iterator[tuple[str, np.ndarray]]:
    if a.shift is not None and np.any(a.shift):
        yield "the bias β of its norm is not in its bias", a.bias
        yield "the bias β of its norm is in its bias twice", a.bias + 2 * (a.weight @ a.shift)
        yield "its own bias is lost", a.weight @ a.shift
    yield "its bias is lost", np.zeros_like(a.offset)
    yield "its bias is there twice", 2 * a.offset
    if a.gain is None and a.centred:
        yield "its bias is not centred", a.bias


def _linear(model: Model, i: int, name: str) -> np.ndarray:
    """The matrix of a map of a block, as it is stored."""
    part = dict(walk(model.stack.blocks[i]))[name]
    return part.matrix(np.asarray(model.arrays.source[part.weight]))


def _noise(a: Affine, b: Affine, rounding: float, before: np.ndarray, after: np.ndarray) -> str:
    """How far a matrix is, and whether it looks scaled, permuted or quantized."""
    M, T = a.matrix, b.matrix
    size = float(np.sum(M**2))
    factor = float(np.sum(M * T)) / size if size else 0.0
    if factor and _fits(far(factor * M, T), far(M, T), rounding):
        return f"it is multiplied by {factor:.4g}"
    order = np.argsort(M @ np.cos(np.arange(M.shape[1])))
    other = np.argsort(T @ np.cos(np.arange(M.shape[1])))
    if _fits(far(M[order], T[other]), far(M, T), rounding):
        return f"its rows are in another order ({int(np.sum(order != other))} of {len(order)})"
    if size and _fits(far(np.abs(M), np.abs(T)), far(M, T), rounding):
        return "some of its entries have the other sign"
    rows = np.flatnonzero(np.linalg.norm(M - T, axis=1) > max(1e-3, rounding) * np.linalg.norm(M, axis=1))
    if 0 < len(rows) <= max(1, len(M) // 8):
        return f"{len(rows)} of its {len(M)} rows {'differs' if len(rows) == 1 else 'differ'} (first {int(rows[0])})"
    text = f"it is {far(M, T):.2g} away, relative"
    levels = _levels(before, after)
    return text if levels is None else f"{text}; it looks quantized ({levels})"


def _levels(first: Any, second: Any) -> str | None:
    """Whether a stored matrix has few distinct values along a row or column, or a group of them; the first has not."""
    for axis in (-1, 0):
        old, new = (np.moveaxis(np.asarray(v, np.float64), axis, -1) for v in (first, second))
        if new.ndim < 2 or old.shape != new.shape or new.size < 64:
            return None
        for group in (new.shape[-1], 128, 64, 32):
            if group > new.shape[-1] or new.shape[-1] % group:
                continue
            counts = [
                [len(np.unique(part)) for part in v.reshape(-1, v.shape[-1])[:64].reshape(-1, group)]
                for v in (old, new)
            ]
            if max(counts[1]) <= LEVELS and np.mean(counts[1]) <= 0.8 * np.mean(counts[0]):
                return f"at most {max(counts[1])} values along {group} entries"
    return None

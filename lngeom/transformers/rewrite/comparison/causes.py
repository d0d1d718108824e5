"""Why a part of one model differs from the other's: known mistakes, each tested by undoing it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float

from lngeom.transformers.description import Block, walk
from lngeom.transformers.rewrite.comparison.aligned import aligned, far, settled
from lngeom.transformers.rewrite.comparison.mistakes import (
    fits,
    looks,
    mistakes,
    multiplied,
    offset_mistakes,
    rows_reordered,
    vector_mistakes,
)
from lngeom.transformers.rewrite.comparison.models import Model, rows_and_columns
from lngeom.transformers.rewrite.comparison.options import all_of, only_in_one, options_of
from lngeom.transformers.rewrite.comparison.plain import Affine, Plain, pair, read_norm, reads_latent
from lngeom.transformers.rewrite.comparison.stored import Changed, Differing, Role, differing, roles_of
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
        return Local("", *rows_and_columns(self.wanted, got, [got + each for each in self.moved]))


def causes_of(judge: Judge) -> list[Cause]:
    """Why a part of a block differs: the likeliest cause, or several that are all needed."""
    before, after, i, branch = judge.before, judge.after, judge.i, judge.branch
    block = judge.blocks[0]
    raw = pair(before, after, i, branch, judge.between)
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
    options: list[tuple[str, Block]] = []
    sizes: list[Cause] = []
    for sentence, changed in options_of(first.block, second.block, f"blocks.{i}", judge.between[0].scale):
        try:
            found = left(replace(second, block=changed))
        except (TypeError, ValueError):  # the arrays have other sizes
            sizes.append(Cause(sentence, (), left(second).difference, False))
            continue
        if not found.differs:
            return [Cause(sentence, (), found.difference, True)]
        options.append((sentence, changed))
    apart = [
        Cause(sentence, (), left(second).difference, False)
        for sentence in only_in_one(first.block, second.block, f"blocks.{i}")
    ]
    if sizes:
        return [*apart, *sizes]
    joined = replace(second, block=all_of([changed for _, changed in options], second.block))
    found = left(joined)
    if len(options) > 1 and not found.differs:
        return [Cause(sentence, (), found.difference, True) for sentence, _ in options]
    if (stored := _stored(judge, first, second)) is not None:
        return stored
    helps = bool(options) and found.difference < left(second).difference / 2
    causes = [Cause(sentence, (), found.difference, False) for sentence, _ in options] if helps else []
    arrays = _arrays(first, joined if helps else second, left, judge.between[0].turn, i, before, after)
    return [*([] if arrays[0].explains else apart), *causes, *arrays]


def _stored(judge: Judge, first: Plain, second: Plain) -> list[Cause] | None:
    """Arrays that differ as they are stored, where both models store most of them alike."""
    roles = list(_roles(*judge.blocks, judge.branch))
    wrong = differing(judge.before, judge.after, roles)
    if not wrong or len(wrong) > len(roles) / 2:
        return None

    def undone(some: list[Differing]) -> Local:
        return judge(judge.of(Changed(judge.after, some)))

    chosen = [each for each in wrong if not undone([each]).differs][:1]
    if not chosen and (len(wrong) > 2 or any(each.role.path in first.maps for each in wrong)):
        return None  # maps may have another basis
    chosen = chosen or wrong
    found = undone(chosen)
    if found.differs:
        return None
    words = [f"blocks.{judge.i}.{each.role.path}: {_stored_word(each, first, second, judge)}" for each in chosen]
    arrays = tuple(dict.fromkeys(each.role.second for each in chosen))
    return [Cause("; ".join(words), arrays, found.difference, True)]


def _stored_word(wrong: Differing, first: Plain, second: Plain, judge: Judge) -> str:
    """What was done to a stored array."""
    role, a, b = wrong
    if role.path in first.maps and role.path in second.maps:
        return _relation(role.path, first, second, judge.between[0].turn, judge.i, judge.before, judge.after).text
    rounding = 2 * max(judge.before.spacing(role.first), judge.after.spacing(role.second))
    for text, candidate in vector_mistakes(role.path, a):
        if fits(far(candidate, b), far(a, b), rounding):
            return text
    if (order := rows_reordered(a, b, rounding)) is not None:
        return order
    factor = float(np.sum(a * b)) / max(float(np.sum(a**2)), 1e-300)
    if factor and fits(far(factor * a, b), far(a, b), rounding):
        return multiplied(factor)
    return f"it is {far(a, b):.2g} away, relative"


def _roles(first: Block, second: Block, branch: Branch) -> Iterator[Role]:
    """Arrays of a part, the norms that it reads and writes through and its factors of channels included."""
    for role in roles_of("", first, second):
        if branch == "both" or role.path.startswith(branch):
            yield role
    for (path, a), (other, b) in zip(walk(first), walk(second), strict=False):
        top = path.split(".")[0]
        shared = top == "attention_norm" and branch == "feed_forward" and first.shared_norm
        if path == other and top and (branch == "both" or top.startswith(branch) or shared):
            yield from roles_of(path, a, b)


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
        distance = max(far(part.matrix, other.matrix), _offset_gap(part, other))
        if distance > rounding:
            wrong[name] = distance
    vectors: dict[str, float] = {}
    for name, value in here.vectors.items():
        if (other := second.vectors.get(name)) is None or other.shape != value.shape:
            continue
        if (distance := far(value, other)) > max(2 * after.spacing(second.stored[name]), 1e-10):
            vectors[name] = distance

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
        without = []
        for a, b in ((one, two), (two, one)):  # without biases, but for that of the norm
            moved = 0.0 if a.folded is None or b.folded is None else b.folded - a.folded
            without.append(replace(a, weight=b.weight, bias=a.bias + moved))
        for new in ((two, one), tuple(without)):
            found = left(settled(replace(raw, maps=raw.maps | {name: new[0], other: new[1]})))
            if found.difference <= 3 * found.allowed:  # roundings were measured with the maps in the wrong places
                short = other.rpartition(".")[2]
                arrays = (one.arrays[0], two.arrays[0])
                return Cause(f"blocks.{i}.{name} and {short} are exchanged", arrays, found.difference, True)
    return None


def tolerance(part: Affine, before: Model, after: Model, other: Affine) -> float:
    """What rounding may do to a matrix, relative."""
    return max(2 * before.spacing(*part.arrays), 2 * after.spacing(*other.arrays), 1e-10)


def _offset_gap(part: Affine, other: Affine) -> float:
    """How far offsets are apart, in units of the outputs."""
    size = float(np.linalg.norm(part.offset)) + 1e-3 * float(np.linalg.norm(part.matrix))
    distance = float(np.linalg.norm(part.offset - other.offset))
    return distance / size if size else distance


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
    over = read_norm(here.block, names[0])[0]
    readers = [n for n, part in here.maps.items() if part.gain is not None and read_norm(here.block, n)[0] == over]
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
    over = read_norm(model.stack.blocks[i], name)[1]
    return () if over is None or over.gain is None else (over.gain,)


def _relation(
    name: str, here: Plain, second: Plain, turn: np.ndarray | None, i: int, before: Model, after: Model
) -> _Word:
    """What was done to one array."""
    if name in here.vectors:
        a, b = here.vectors[name], second.vectors[name]
        for text, candidate in vector_mistakes(name, a):
            if fits(far(candidate, b), far(a, b), 2 * after.spacing(second.stored[name])):
                return _Word(text, (second.stored[name],))
        return _Word(f"it is {far(a, b):.2g} away, relative", (second.stored[name],))
    a, b = here.maps[name], second.maps[name]
    rounding = tolerance(a, before, after, b)
    if not _offset_gap(a, b) or far(a.matrix, b.matrix) > rounding:
        label, over = read_norm(before.stack.blocks[i], name)
        attention = here.block.attention if name.startswith("attention") else None
        turns = None if reads_latent(before.stack.blocks[i], name) else turn
        for text, of_norm, candidate in mistakes(a, turns, label, over, name, attention):
            scale = float(np.linalg.norm(candidate))
            if scale and fits(far(candidate, b.matrix), far(a.matrix, b.matrix), rounding):
                return _Word(text, (b.arrays[0],), of_norm)
        if not np.any(b.matrix):
            return _Word("it is zero", (b.arrays[0],))
        stored = [_linear(model, i, name) for model in (before, after)]
        return _Word(looks(a, b, rounding, *stored), (b.arrays[0],))
    stored = b.arrays[1] or b.arrays[0]
    for text, candidate in offset_mistakes(a):
        distance = float(np.linalg.norm(candidate - b.offset))
        size = float(np.linalg.norm(b.offset)) + 1e-3 * float(np.linalg.norm(b.matrix))
        if fits(distance / size, float(np.linalg.norm(a.offset - b.offset)) / size, rounding):
            return _Word(text, (stored,))
    return _Word(f"its bias is {_offset_gap(a, b):.2g} away, relative", (stored,))


def _linear(model: Model, i: int, name: str) -> np.ndarray:
    """The matrix of a map of a block, as it is stored."""
    part = dict(walk(model.stack.blocks[i]))[name]
    return part.matrix(np.asarray(model.arrays.source[part.weight]))

"""Whether two models are one function, and where they part if not."""

import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import jax.numpy as jnp
import numpy as np

from lngeom._core.progress import watched
from lngeom.transformers.forward import embedded, head, norm
from lngeom.transformers.rewrite.certificate import TOLERANCE, difference, everything, log_softmax
from lngeom.transformers.rewrite.comparison.actions import Place, actions_of
from lngeom.transformers.rewrite.comparison.aligned import aligned, far, settled
from lngeom.transformers.rewrite.comparison.causes import Cause, Judge, causes_of, tolerance
from lngeom.transformers.rewrite.comparison.choices import other_choice
from lngeom.transformers.rewrite.comparison.ends import head_causes, tables_at_fault, tables_of
from lngeom.transformers.rewrite.comparison.models import EXACT, Model, Shaken, opened, rounding_dtypes, tokens_for
from lngeom.transformers.rewrite.comparison.options import options_of
from lngeom.transformers.rewrite.comparison.plain import pair
from lngeom.transformers.rewrite.comparison.streams import Map, coarsest_of_tables, spacing_of_tables
from lngeom.transformers.rewrite.comparison.sweep import (
    RANDOM,
    ROUNDINGS,
    Branch,
    Local,
    entering,
    output,
    pieces,
    sweep,
    wide,
)
from lngeom.transformers.rewrite.comparison.verdict import Comparison, Word
from lngeom.transformers.rewrite.folders import Checkpoint

PROBES = (4, 32)
"""Sequences and positions on which models are compared."""

IMPOSSIBLE = -100.0
"""Log-probabilities below this are all alike."""

AGAIN = 8
"""Random roundings of both models, for a part that is near to what two of the second model explain."""

SMALL = 1 << 26
"""Numbers in a model up to which all parts are taken apart, not the first one that differs alone."""


def certify(
    before: Any,
    after: Any,
    *,
    probes: tuple[int, int] = PROBES,
    seed: int = 0,
    ignore: Iterable[str] = (),
    stage: Callable[[str], None] | None = None,
) -> Comparison:
    r"""Whether two transformers are the same function, and if not, the first part that differs and why.

    Both run in float64 on random tokens. Then every part of the second model (tables, each branch of each block, head)
    runs on the stream of the first one, taken to the second model's coordinates: $x' = s\,G\,x$, with an orthogonal G
    and a scale s that are fitted to the tables. Its output must be the first model's output in these coordinates. What
    random roundings of the second model's arrays change is measured beside each difference, and near the bound what
    those of both models' change; a part differs if it is more than `ROUNDINGS` times as far. The first part that
    differs is taken apart: known mistakes are made or undone, and one is named as the cause if nothing but rounding is
    left.

    Args:
        before: a folder with a checkpoint, a pair of a description and arrays (`lg.rewrite.load`), or a model of the
            transformers package.
        after: another one, possibly with other names, layouts and dtypes.
        probes: numbers of sequences and of positions; more positions where tables of relative positions need them.
        seed: of tokens, random streams and roundings.
        ignore: options of config.json that no code reads.
        stage: is told what is being done.

    Returns:
        The verdict with its evidence.

    Raises:
        TypeError: if a model is none of these.
        ValueError: naming what is not covered, arrays that hold NaN or infinity, or probes that are none.
    """
    probes, seed = _checked_probes(probes), _checked_seed(seed)
    with watched() as watch:
        told = stage or watch
        told("reading")
        first, second = opened(before, "before", ignore, after), opened(after, "after", ignore, before)
        tokens = tokens_for(first, second, probes, seed)
        told("running both models")
        return _compared(first, second, tokens, seed, told)


def _checked_probes(probes: Any) -> tuple[int, int]:
    try:
        N, T = (operator.index(n) for n in probes)
    except (TypeError, ValueError):
        N = T = 0
    if N < 1 or T < 2:
        raise ValueError(
            f"probes must be two positive integers, sequences and positions, and two positions at least: with one "
            f"there is no attention; got {probes!r}"
        )
    return N, T


def _checked_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise ValueError(f"seed must be an integer, zero or more; got {seed!r}")
    return int(seed)


def _compared(first: Model, second: Model, tokens: np.ndarray, seed: int, told: Callable[[str], None]) -> Comparison:
    count = min(first.outputs, second.outputs)
    beside = len(first.stack.side) == len(second.stack.side)

    def run(model: Model, arrays: Any) -> tuple[np.ndarray, ...]:
        stack = model.stack if beside else replace(model.stack, side=())
        logits, *others = everything(stack, arrays, tokens)
        return logits[..., :count], *others

    outputs = [run(model, model.arrays) for model in (first, second)]
    for model, found in zip((first, second), outputs, strict=True):
        if not all(np.isfinite(values).all() for values in found):
            raise ValueError(f"{model.word}: its outputs are not finite; there is nothing to compare")
    dtypes = rounding_dtypes(first, second)
    shaken = [Shaken(second, dtypes, seed + k) for k in range(2)]
    stored = [second.arrays.dtype(name) for name in second.stack.arrays]
    found = Comparison(
        "different",
        (tokens.shape[0], tokens.shape[1]),
        max(dtypes.values() or stored, key=lambda d: jnp.finfo(d).eps).name,
        moved(*outputs),
        difference(outputs[0][0], outputs[1][0]).relative,
        max(moved(outputs[1], run(second, each)) for each in shaken),
    )
    if reasons := tuple(_other_outputs(first, second)):
        return replace(found, reasons=reasons)
    if reasons := tuple(_unlike(first, second)):
        close = found.log_probabilities <= max(ROUNDINGS * found.rounding, TOLERANCE)
        if close:
            reasons = (*reasons, "the probes agree, and the parts cannot be compared one by one")
        return replace(found, verdict="undecided" if close else "different", reasons=reasons)
    told("comparing part by part")
    return _by_parts(first, second, tokens, shaken, found, told)


def _by_parts(
    first: Model,
    second: Model,
    tokens: np.ndarray,
    shaken: Sequence[Shaken],
    found: Comparison,
    told: Callable[[str], None],
) -> Comparison:
    small = sum(math.prod(first.arrays.shape(name)) for name in first.stack.arrays) <= SMALL
    rounding = max(spacing_of_tables(first), spacing_of_tables(second)) / 2
    begun = tables_of(first, second, tokens, max(ROUNDINGS * rounding, EXACT / 2))
    if not begun.between.determined:
        text = "the tables have too few independent rows to tell how the stream was turned: parts were not compared"
        close = found.log_probabilities <= max(ROUNDINGS * found.rounding, TOLERANCE)
        return replace(found, verdict="undecided" if close else "different", reasons=(text,))
    sites: list[Place] = []
    causes = list(begun.causes)
    before = begun.between
    least = None if before.turn is None else coarsest_of_tables(first, second)
    if least is not None:
        dtypes = rounding_dtypes(first, second, least)
        shaken = [Shaken(second, dtypes, each.seed) for each in shaken]
    again = functools.cache(lambda: _shaken(first, second, shaken[0].seed + len(shaken), least))
    parts = sweep(first, second, before, tokens, shaken, again)
    for where, (local, after_part, x) in zip(_places(first), parts, strict=True):
        fault = where and other_choice(first, second, *where, (before, after_part))
        if fault:
            causes = causes or [Cause(fault.sentence, fault.arrays, local.difference, not local.differs)]
            local = replace(local, difference=max(local.difference, fault.difference), rounding=0.0)
        site = Place(where, local, before, after_part)
        if local.differs and not causes:
            told(f"looking for the cause in {local.path}")
            causes = _causes(first, second, site, x, shaken)
        if local.differs and (small or not any(other.local.differs for other in sites)):
            site = replace(site, effect=effect(first, second, site, x, tokens))
        sites.append(site)
        before = after_part
    wrong = [site for site in sites if site.local.differs]
    options = tuple(_options_changed(first, second, begun.between))
    verdict, doubts = _verdict(found, [site.local for site in wrong], options)
    one = verdict in {"same", "rounding"}
    return replace(
        found,
        verdict=verdict,
        parts=tuple(replace(site.local, alone=site.effect) for site in sites),
        causes=() if one else tuple(causes),
        actions=tuple(actions_of(first, second, begun.between, found, sites, small)) if one else (),
        arrays=tuple(_array_errors(first, second, wrong)) if small and not one else (),
        reasons=(*doubts, *_not_compared(first, second)),
    )


def _shaken(first: Model, second: Model, seed: int, least: np.dtype | None) -> tuple[list[Shaken], list[Shaken]]:
    """Arrays of both models with random roundings, as many as a second look takes."""
    pairs = (first, rounding_dtypes(second, first, least)), (second, rounding_dtypes(first, second, least))
    own, others = ([Shaken(model, dtypes, seed + k) for k in range(AGAIN)] for model, dtypes in pairs)
    return own, others


def moved(a: tuple[np.ndarray, ...], b: tuple[np.ndarray, ...]) -> float:
    """Largest difference of log-probabilities, relative to the largest, or of the outputs beside the head.

    Log-probabilities below −100 count as −100, so that tokens which are masked hide nothing.
    """
    found = [np.maximum(log_softmax(v[0]), IMPOSSIBLE) for v in (a, b)]
    return max(_largest(x, y) for x, y in zip((found[0], *a[1:]), (found[1], *b[1:]), strict=True))


def _largest(a: np.ndarray, b: np.ndarray) -> float:
    size, apart = float(np.max(np.abs(a), initial=0.0)), float(np.max(np.abs(a - b), initial=0.0))
    return apart / size if size else apart


def _verdict(found: Comparison, wrong: list[Local], options: tuple[str, ...]) -> tuple[Word, tuple[str, ...]]:
    """The verdict, and doubts about it."""
    distance = found.log_probabilities
    if distance <= TOLERANCE:
        if wrong:
            text = f"the probes agree, and a part differs ({wrong[0].path}): on inputs that they do not reach"
            return "undecided", (f"{text}, or another part makes up for it",)
        if options:
            return "undecided", tuple(f"{text}; the probes do not show what it changes" for text in options)
        return "same", ()
    if distance <= ROUNDINGS * found.rounding and not wrong:
        if options:
            return "different", tuple(f"{text}; rounding of the arrays hides what it changes" for text in options)
        return "rounding", ()
    return "different", ()


def _other_outputs(first: Model, second: Model) -> Iterator[str]:
    """Reasons why two models cannot be the same, whatever they compute."""
    if first.vocabulary != second.vocabulary:
        fewer = min(first.vocabulary, second.vocabulary)
        yield (
            f"the vocabularies have {first.vocabulary} and {second.vocabulary} tokens; the numbers below are about the "
            f"first {fewer}"
        )
    elif first.outputs != second.outputs:
        fewer = min(first.outputs, second.outputs)
        yield f"they have {first.outputs} and {second.outputs} logits; the numbers below are about the first {fewer}"
    if first.positions != second.positions:
        counts = ["no limit of" if m.positions is None else f"{m.positions}" for m in (first, second)]
        yield f"they have {counts[0]} positions and {counts[1]} positions; the numbers below are about those of both"
    folders = [m.arrays.source for m in (first, second) if isinstance(m.arrays.source, Checkpoint)]
    if len(folders) == 2:
        rest = [
            {n for n in folder.stored if n not in model.stack.arrays and n not in folder.second}
            for folder, model in zip(folders, (first, second), strict=True)
        ]
        for name in sorted(rest[0] & rest[1]):
            if not _same_numbers(*(np.asarray(folder.stored[name]) for folder in folders)):
                yield f"{name}, which no output that is compared depends on, differs"


def _same_numbers(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays hold the same numbers; of other dtypes, numbers as near as rounding to both leaves them."""
    x, y = (v.astype(np.float64) for v in (a, b))
    if a.shape != b.shape or a.dtype == b.dtype or not all(jnp.issubdtype(v.dtype, jnp.floating) for v in (a, b)):
        return np.array_equal(x, y, equal_nan=True)
    size = np.maximum(np.abs(x), np.abs(y))
    steps = [float(info.eps) * size + float(info.smallest_subnormal) for info in map(jnp.finfo, (a.dtype, b.dtype))]
    return bool(np.all((np.abs(x - y) <= sum(steps) / 2) | (np.isnan(x) & np.isnan(y))))


def _not_compared(first: Model, second: Model) -> Iterator[str]:
    """What one of both models has and the other has not, beside its logits."""
    counts = [len(model.stack.side) for model in (first, second)]
    if counts[0] != counts[1]:
        yield f"they have {counts[0]} and {counts[1]} maps beside the head, which were not compared"


def _causes(first: Model, second: Model, site: Place, x: np.ndarray | None, shaken: Sequence[Shaken]) -> list[Cause]:
    if x is None:
        return [tables_at_fault(first, second, site.before, site.local)]
    if site.where is None:
        return head_causes(first, second, site.before, site.local, x, shaken)
    return causes_of(Judge(first, second, *site.where, (site.before, site.after), x, shaken))


def effect(first: Model, second: Model, site: Place, x: np.ndarray | None, tokens: np.ndarray) -> float:
    """What one part of the second model changes in the first model's log-probabilities, in its place."""
    blocks = first.stack.blocks
    start_at: list[tuple[int, Branch]] = [(i, branch) for i, block in enumerate(blocks) for branch in pieces(block)]
    if x is None:
        old, new = (wide(embedded, m.stack, m.arrays, tokens) for m in (first, second))
        streams_of = [old, site.before.back(new)]
        rest = start_at
    else:
        x = x[:-RANDOM]
        if site.where is None:
            a = wide(_ended, first, x)
            b = wide(_ended, second, site.before.forth(x))
            count = min(a.shape[-1], b.shape[-1])
            return moved((a[..., :count],), (b[..., :count],))
        i, branch = site.where
        old = wide(output, blocks[i], branch, first.arrays, x)
        mapped = entering(blocks[i], branch, site.before).forth(x)
        new = site.after.back(wide(output, second.stack.blocks[i], branch, second.arrays, mapped))
        streams_of = [old, new] if blocks[i].placing == "post" else [x + old, x + new]
        rest = start_at[start_at.index(site.where) + 1 :]
    for i, branch in rest:
        ys = [wide(output, blocks[i], branch, first.arrays, s) for s in streams_of]
        streams_of = ys if blocks[i].placing == "post" else [s + y for s, y in zip(streams_of, ys, strict=True)]
    return moved(*((wide(_ended, first, s),) for s in streams_of))


def _ended(model: Model, x: Any) -> Any:
    """Logits from the stream after the last block."""
    final = model.stack.final
    x = jnp.asarray(x) if final is None else norm(final, model.arrays, jnp.asarray(x))
    return head(model.stack, model.arrays, x)


def _array_errors(first: Model, second: Model, wrong: list[Place]) -> Iterator[tuple[str, float]]:
    """Arrays of parts that differ, and how far they are from the first model's, relative, the farthest first."""
    errors: dict[str, float] = {}
    for site in wrong:
        if site.where is not None:
            one, other = (settled(part) for part in pair(first, second, *site.where, (site.before, site.after)))
            here = aligned(one, other)
            for name, part in here.maps.items():
                if name in other.maps and part.matrix.shape == other.maps[name].matrix.shape:
                    found, distance = other.maps[name], far(part.matrix, other.maps[name].matrix)
                    if distance > tolerance(part, first, second, found):
                        errors[found.arrays[0]] = max(errors.get(found.arrays[0], 0.0), distance)
    yield from sorted(errors.items(), key=lambda item: -item[1])


def _options_changed(first: Model, second: Model, between: Map) -> Iterator[str]:
    """Options in which the models differ, and which no rewrite has to change."""
    centring = between.centred[0] != between.centred[1]
    pairs = [(f"blocks.{i}", *pair) for i, pair in enumerate(zip(first.stack.blocks, second.stack.blocks, strict=True))]
    if (a := first.stack.front) is not None and (b := second.stack.front) is not None:
        pairs += [(f"front.layers.{i}", x, y) for i, (x, y) in enumerate(zip(a.layers, b.layers, strict=False))]
    for name in ("final", "embedding_norm", "head"):
        a, b = getattr(first.stack, name), getattr(second.stack, name)
        if a is not None and b is not None:
            pairs.append((name, a, b))
    for path, a, b in pairs:
        for text, _ in options_of(a, b, path, between.scale, traded=False):
            if not (centring and ".kind is " in text):
                yield text


def _unlike(first: Model, second: Model) -> Iterator[str]:
    """Differences of two descriptions that end a comparison part by part."""
    a, b = first.stack, second.stack
    if first.width != second.width:
        yield f"the streams are {first.width} and {second.width} wide"
    if len(a.blocks) != len(b.blocks):
        yield f"there are {len(a.blocks)} and {len(b.blocks)} blocks"
        return
    for i, (x, y) in enumerate(zip(a.blocks, b.blocks, strict=True)):
        for name in ("placing", "parallel", "shared_norm"):
            if getattr(x, name) != getattr(y, name):
                yield f"blocks.{i}: {name} is {getattr(y, name)!r}, and was {getattr(x, name)!r}"
                return
    if [t.index for t in a.tables] != [t.index for t in b.tables]:
        yield "the tables are " + " and ".join(", ".join(t.index for t in s.tables) for s in (a, b))
    layers = [0 if s.front is None else len(s.front.layers) for s in (a, b)]
    if layers[0] != layers[1]:
        yield f"the front ends have {layers[0]} and {layers[1]} layers"


def _places(model: Model) -> Iterator[tuple[int, Branch] | None]:
    """The place of each part in the order of the comparison; None for tables and head."""
    yield None
    for i, block in enumerate(model.stack.blocks):
        for branch in pieces(block):
            yield i, branch
    yield None

"""Whether two models are one function, and where they part if not."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from lngeom._core.progress import watched
from lngeom.transformers.forward import embedded, head, norm
from lngeom.transformers.rewrite.certificate import TOLERANCE, compare, difference, everything
from lngeom.transformers.rewrite.comparison.aligned import aligned, far, settled
from lngeom.transformers.rewrite.comparison.causes import Cause, causes_of, options_of, tolerance
from lngeom.transformers.rewrite.comparison.ends import head_causes, start, tables_at_fault
from lngeom.transformers.rewrite.comparison.models import Model, Shaken, opened, rounding_dtypes, tokens_for
from lngeom.transformers.rewrite.comparison.plain import both
from lngeom.transformers.rewrite.comparison.streams import EXACT, Map
from lngeom.transformers.rewrite.comparison.sweep import RANDOM, ROUNDINGS, Branch, Local, output, pieces, sweep, wide
from lngeom.transformers.rewrite.comparison.verdict import Comparison, Word

PROBES = (4, 32)
"""Sequences and positions on which models are compared."""

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
    random roundings of the second model's arrays change is measured beside each difference; a part differs if it is
    more than `ROUNDINGS` times as far. The first part that differs is taken apart: known mistakes are made or undone,
    and one is named as the cause if nothing but rounding is left.

    Args:
        before: a folder with a checkpoint, a pair of a description and arrays (`lg.rewrite.load`), or a model of the
            transformers package.
        after: another one, possibly with other names, layouts and dtypes.
        probes: numbers of sequences and of positions.
        seed: of tokens, random streams and roundings.
        ignore: options of config.json that no code reads.
        stage: is told what is being done.

    Returns:
        The verdict with its evidence.

    Raises:
        TypeError: if a model is none of these.
        ValueError: naming what is not covered, arrays that hold NaN or infinity, or probes that are none.
    """
    if len(probes) != 2 or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in probes):
        raise ValueError(f"probes must be two positive integers, sequences and positions; got {probes!r}")
    with watched() as watch:
        told = stage or watch
        told("reading")
        first, second = opened(before, "before", ignore), opened(after, "after", ignore)
        tokens = tokens_for(first, second, probes, seed)
        told("running both models")
        return _compared(first, second, tokens, seed, told)


def _compared(first: Model, second: Model, tokens: np.ndarray, seed: int, told: Callable[[str], None]) -> Comparison:
    count = min(first.vocabulary, second.vocabulary)
    beside = len(first.stack.side) == len(second.stack.side)

    def run(model: Model, arrays: Any) -> tuple[np.ndarray, ...]:
        stack = model.stack if beside else replace(model.stack, side=())
        logits, *others = everything(stack, arrays, tokens)
        return logits[..., :count], *others

    outputs = [run(model, model.arrays) for model in (first, second)]
    for model, found in zip((first, second), outputs, strict=True):
        if not all(np.isfinite(values).all() for values in found):
            raise ValueError(f"{model.word}: its outputs are not finite; there is nothing to compare")
    moved = compare(*outputs)
    shaken = [Shaken(second, rounding_dtypes(first, second), seed + k) for k in range(2)]
    noise = max(compare(outputs[1], run(second, each)).residual(True) for each in shaken)
    dtype = max((m.coarsest for m in (first, second)), key=lambda d: jnp.finfo(d).eps)
    found = Comparison(
        "different",
        tokens.shape,
        str(dtype),
        moved.residual(True),
        moved.relative,
        noise,
        reasons=tuple(_unlike(first, second)),
    )
    if found.reasons:
        return found
    told("comparing part by part")
    small = sum(math.prod(first.arrays.shape(name)) for name in first.stack.arrays) <= SMALL
    begun = start(first, second, tokens, max(ROUNDINGS * _row_noise(second, first), EXACT))
    if not begun.between.determined:
        text = "the tables have too few independent rows to tell how the stream was turned: parts were not compared"
        return replace(found, verdict=_verdict(found, [])[0], reasons=(text,))
    sites, causes = [], list(begun.causes)
    before = begun.between
    for where, (local, after_part, x) in zip(_places(first), sweep(first, second, before, tokens, seed), strict=True):
        sites.append(Place(where, local, before, after_part))
        if local.differs and not causes:
            told(f"looking for the cause in {local.path}")
            causes = _causes(first, second, sites[-1], x)
        if local.differs and (small or not found.parts):
            found = replace(found, parts=(local,))
            sites[-1] = replace(sites[-1], effect=effect(first, second, sites[-1], x, tokens))
        before = after_part
    verdict, doubts = _verdict(found, [site.local for site in sites])
    if not beside:
        counts = [len(model.stack.side) for model in (first, second)]
        doubts += (f"they have {counts[0]} and {counts[1]} maps beside the head, which were not compared",)
    if verdict == "rounding":
        changed = _options_changed(first, second, begun.between)
        doubts += tuple(f"{text}; rounding hides what it changes" for text in changed)
    one = verdict in {"same", "rounding"}
    wrong = [site for site in sites if site.local.differs and not one]
    return replace(
        found,
        verdict=verdict,
        parts=tuple(replace(site.local, alone=site.effect) for site in sites),
        causes=() if one else tuple(causes),
        actions=tuple(_actions(first, second, begun.between, found, sites, small)) if one else (),
        arrays=tuple(_array_errors(first, second, wrong)) if small else (),
        reasons=doubts,
    )


@dataclass(frozen=True)
class Place:
    """A part, where it stands, and the maps of streams before and after it.

    Attributes:
        where: block and branch; None of tables and head.
        local: how far it is.
        before: the map of streams before it.
        after: the map after it.
        effect: what it alone changes in log-probabilities.
    """

    where: tuple[int, Branch] | None
    local: Local
    before: Map
    after: Map
    effect: float | None = None


def _causes(first: Model, second: Model, site: Place, x: np.ndarray | None) -> list[Cause]:
    if x is None:
        return [tables_at_fault(first, second, site.local)]
    if site.where is None:
        return head_causes(first, second, site.before, site.local, x)
    return causes_of(first, second, *site.where, (site.before, site.after), x, site.local)


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
            return difference(a[..., :count], b[..., :count]).relative_log_probabilities
        i, branch = site.where
        old = wide(output, blocks[i], branch, first.arrays, x)
        new = site.after.back(wide(output, second.stack.blocks[i], branch, second.arrays, site.before.forth(x)))
        streams_of = [old, new] if blocks[i].placing == "post" else [x + old, x + new]
        rest = start_at[start_at.index(site.where) + 1 :]
    for i, branch in rest:
        ys = [wide(output, blocks[i], branch, first.arrays, s) for s in streams_of]
        streams_of = ys if blocks[i].placing == "post" else [s + y for s, y in zip(streams_of, ys, strict=True)]
    return difference(*(wide(_ended, first, s) for s in streams_of)).relative_log_probabilities


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
            one, other = (settled(part) for part in both(first, second, *site.where, (site.before, site.after)))
            here = aligned(one, other)
            for name, part in here.maps.items():
                if name in other.maps and part.matrix.shape == other.maps[name].matrix.shape:
                    stored = other.maps[name].arrays[0]
                    if far(part.matrix, other.maps[name].matrix) <= tolerance(part, first, second, other.maps[name]):
                        continue
                    errors[stored] = max(errors.get(stored, 0.0), far(part.matrix, other.maps[name].matrix))
    yield from sorted(((name, gap) for name, gap in errors.items()), key=lambda pair: -pair[1])


def _verdict(found: Comparison, parts: list[Local]) -> tuple[Word, tuple[str, ...]]:
    """The verdict, and doubts about it."""
    wrong = [part for part in parts if part.differs]
    moved = found.log_probabilities
    if moved <= TOLERANCE:
        ends = [part for part in wrong if part.path.startswith(("tables", "head", "side"))]
        unseen = ends or [part for part in wrong if not part.on_probes > part.allowed]
        if unseen:
            return "undecided", (f"the probes agree, and {unseen[0].path} differs on inputs that they do not reach",)
        if not wrong:
            return "same", ()
        return "same", (f"{wrong[0].path} and others differ, and the function does not: they make up for one another",)
    if moved <= ROUNDINGS * found.rounding and not wrong:
        return "rounding", ()
    return "different", ()


def _options_changed(first: Model, second: Model, between: Map) -> Iterator[str]:
    """Options in which blocks differ, and which no rewrite has to change."""
    centring = between.centred[0] and not between.centred[1]
    for i, (a, b) in enumerate(zip(first.stack.blocks, second.stack.blocks, strict=True)):
        for text, _ in options_of(a, b, f"blocks.{i}", between.scale):
            if not (centring and ".kind is 'rms'" in text):
                yield text


def _row_noise(second: Model, first: Model) -> float:
    """What rounding may do to a row of a table, relative."""
    return max(float(jnp.finfo(model.coarsest).eps) for model in (first, second)) / 2


def _unlike(first: Model, second: Model) -> Iterator[str]:
    """Differences of two descriptions that end a comparison part by part."""
    a, b = first.stack, second.stack
    if first.vocabulary != second.vocabulary:
        yield f"the vocabularies have {first.vocabulary} and {second.vocabulary} tokens"
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
        if type(x.feed_forward) is not type(y.feed_forward):
            yield f"blocks.{i}: one has a {type(x.feed_forward).__name__}, the other a {type(y.feed_forward).__name__}"
            return
    if [t.index for t in a.tables] != [t.index for t in b.tables]:
        yield "the tables are " + " and ".join(", ".join(t.index for t in s.tables) for s in (a, b))


def _places(model: Model) -> Iterator[tuple[int, Branch] | None]:
    """The place of each part in the order of the comparison; None for tables and head."""
    yield None
    for i, block in enumerate(model.stack.blocks):
        for branch in pieces(block):
            yield i, branch
    yield None


def _actions(
    first: Model, second: Model, between: Map, found: Comparison, sites: list[Place], small: bool
) -> list[str]:
    """What was done to the first model, read off."""
    a, b = first.stack, second.stack
    actions = []
    if a.tied != b.tied:
        actions.append("the head was untied" if a.tied else "the head was tied")
    kinds = [(x.part, y.part) for x, y in zip(a.norms, b.norms, strict=False)]
    if count := sum(x.kind == "layer" and y.kind == "rms" for x, y in kinds):
        actions.append(f"{count} LayerNorms became RMSNorms, after their input was centred")

    def bare(model: Model, norm: Any) -> bool:
        return norm.gain is None or bool(np.all(norm.offset + np.asarray(model.arrays[norm.gain]) == 1))

    if count := sum(bare(second, y) and not bare(first, x) for x, y in kinds):
        actions.append(f"the gains of {count} of {len(kinds)} norms were folded into their readers")
    if between.scale != 1 and abs(between.scale - 1) > 1e-9:
        actions.append(f"the stream was scaled by {between.scale:.6g}")
    if between.turn is not None:
        entries = np.abs(between.turn)
        shuffled = np.allclose(entries.max(0), 1, atol=1e-6)
        actions.append(
            "the stream's coordinates were permuted or changed sign" if shuffled else "the stream was rotated"
        )
    if small:
        actions += _inner(first, second, sites)
    if found.logits > max(ROUNDINGS * found.log_probabilities, TOLERANCE):
        actions.append("all logits of a position moved together, which softmax does not see")
    return actions


INNER = {
    "query": "queries and keys have another basis",
    "key": "queries and keys have another basis",
    "value": "values and outputs have another basis",
    "output": "values and outputs have another basis",
    "up": "hidden units were scaled or reordered",
    "gate": "hidden units were scaled or reordered",
    "down": "hidden units were scaled or reordered",
    "router": "experts were reordered",
}


def _inner(first: Model, second: Model, sites: list[Place]) -> list[str]:
    """Changes inside of the parts."""
    counts: dict[str, int] = {}
    places = [site for site in sites if site.where is not None]
    for site in places:
        assert site.where is not None
        one, other = (settled(part) for part in both(first, second, *site.where, (site.before, site.after)))
        here = aligned(one, other)
        changed = {
            INNER[name.rpartition(".")[2]]
            for name, part in one.maps.items()
            if name in other.maps
            and part.matrix.shape == other.maps[name].matrix.shape
            and far(part.matrix, here.maps[name].matrix) > 1e-6
        }
        for text in changed:
            counts[text] = counts.get(text, 0) + 1
    return [f"{text} ({count} of {len(places)} parts)" for text, count in sorted(counts.items())]

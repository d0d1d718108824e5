"""Part by part: the second model's part on the first model's stream, and the first model's output of it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lngeom.transformers.description import Block, Mixture
from lngeom.transformers.forward import attention_branch, embedded, feed_forward_branch, head, norm, side
from lngeom.transformers.rewrite.certificate import log_softmax
from lngeom.transformers.rewrite.comparison.models import Model, Shaken, apart, rounding_dtypes
from lngeom.transformers.rewrite.comparison.streams import EXACT, Map, seen, starts

ROUNDINGS = 4.0
"""A part differs if it is this many times as far away as random roundings take it.

Exact rewrites of 15 families, rounded once to float32 or bfloat16, were at most 1.6 times as far away, and their
log-probabilities 2.8 times (`python -m analysis certified`).
"""

RANDOM = 2
"""Sequences of random streams beside those of the probes."""

Weights = Mapping[str, Any]


@dataclass(frozen=True)
class Local:
    """How far one part of the second model is from the first model's, given the same stream.

    Attributes:
        path: the part, as in descriptions; "tables" for all tables together.
        difference: largest distance of outputs, relative to the root mean square of the first model's.
        rounding: what random roundings of the second model's arrays change, in the same measure.
        on_probes: the difference on the streams of the probes alone; random streams reach what no token reaches.
        rows: of tables, the rows that differ, as "token 17"; else nothing.
        alone: what this part alone, in the first model's place of it, changes in log-probabilities, relative to the
            largest; None where it was not asked for.
    """

    path: str
    difference: float
    rounding: float
    on_probes: float
    rows: tuple[str, ...] = ()
    alone: float | None = None

    @property
    def allowed(self) -> float:
        """The difference that rounding explains."""
        return max(ROUNDINGS * self.rounding, EXACT)

    @property
    def differs(self) -> bool:
        """Whether rounding does not explain the difference."""
        return not self.difference <= self.allowed


Branch = Literal["attention", "feed_forward", "both"]


def pieces(block: Block) -> tuple[Branch, ...]:
    """What of a block reads one stream: the branches, or both where they are parallel."""
    return ("both",) if block.parallel else ("attention", "feed_forward")


def comparable(first: Block, second: Block) -> tuple[Block, Block]:
    """Two blocks whose mixtures, if they choose experts alike, use all of them.

    A choice among nearly equal experts is not continuous, and experts that are not chosen are not seen.
    """
    a, b = first.feed_forward, second.feed_forward
    if not (isinstance(a, Mixture) and isinstance(b, Mixture)) or (a.top, len(a.experts)) != (b.top, len(b.experts)):
        return first, second
    return replace(first, feed_forward=replace(a, top=None)), replace(second, feed_forward=replace(b, top=None))


def path_of(i: int, branch: Branch) -> str:
    """The path of a part."""
    return f"blocks.{i}" if branch == "both" else f"blocks.{i}.{branch}"


def output(block: Block, branch: Branch, weights: Weights, x: Array) -> Array:
    """What a part adds to the stream; of a post-norm block, the stream after it."""
    if branch == "both":
        return attention_branch(block, weights, x) + feed_forward_branch(block, weights, x)
    y = (attention_branch if branch == "attention" else feed_forward_branch)(block, weights, x)
    if block.placing != "post":
        return y
    after = block.attention_norm if branch == "attention" else block.feed_forward_norm
    assert after is not None
    return norm(after, weights, x + y)


def wide(function: Callable[..., Any], *arguments: Any) -> np.ndarray:
    """A function's result in float64."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        return np.asarray(function(*arguments))


def streams(model: Model, tokens: np.ndarray, seed: int) -> Iterator[tuple[int, Branch | Literal["head"], np.ndarray]]:
    """The stream before each part of a model, and before the head.

    `RANDOM` sequences are added whose streams are random numbers: they reach what no token reaches.
    """
    x = wide(embedded, model.stack, model.arrays, tokens)
    random = np.random.default_rng(seed).standard_normal((RANDOM, *x.shape[1:])) * np.sqrt(np.mean(x**2))
    x = np.concatenate([x, random])
    for i, block in enumerate(model.stack.blocks):
        for branch in pieces(block):
            yield i, branch, x
            y = wide(output, block, branch, model.arrays, x)
            x = y if block.placing == "post" else x + y
    yield len(model.stack.blocks), "head", x


def sweep(
    before: Model, after: Model, between: Map, tokens: Float[np.ndarray, "N T"], seed: int = 0
) -> Iterator[tuple[Local, Map, np.ndarray | None]]:
    """Compares part by part.

    Args:
        before: the first model.
        after: the second, with as many blocks of the same kind.
        between: the map between their streams.
        tokens: the probes.
        seed: of random streams and roundings.

    Yields:
        Each part's comparison, with the map of streams there, and the first model's stream before it.
    """
    shaken = Shaken(after, rounding_dtypes(before, after), seed)
    yield _tables(before, after, shaken, between), between, None
    for i, branch, x in streams(before, tokens, seed):
        if branch == "head":
            break
        first, second = before.stack.blocks[i], after.stack.blocks[i]
        found, between = compared(
            first, second, branch, before.arrays, after.arrays, shaken, x, between, path_of(i, branch)
        )
        yield found, between, x
    mapped = between.forth(x)
    yield _heads(before, after, shaken, x, mapped), between, x


def compared(
    first: Block,
    second: Block,
    branch: Branch,
    weights: Weights,
    others: Weights,
    shaken: Weights | None,
    x: np.ndarray,
    between: Map,
    path: str,
) -> tuple[Local, Map]:
    """One part's comparison, and the map of streams after it (another scale after a norm of a post-norm block)."""
    first, second = comparable(first, second)
    mapped = between.forth(x)
    y = wide(output, first, branch, weights, x)
    z = seen(wide(output, second, branch, others, mapped), between.centred[1])
    noise = 0.0
    if shaken is not None:
        noise = apart(z, seen(wide(output, second, branch, shaken, mapped), between.centred[1]))

    def local(by: Map) -> Local:
        wanted = by.forth(y)
        return Local(path, apart(wanted, z), noise, apart(wanted[:-RANDOM], z[:-RANDOM]))

    found = local(between)
    if first.placing == "post" and found.differs:
        size = float(np.sum(between.forth(y) ** 2))
        scaled = replace(between, scale=between.scale * float(np.sum(between.forth(y) * z)) / max(size, 1e-300))
        again = local(scaled) if scaled.scale else found
        if not again.differs:
            return again, scaled
    return found, between


def _tables(before: Model, after: Model, shaken: Shaken, between: Map) -> Local:
    """All rows of all tables."""
    gaps: list[tuple[float, str]] = []
    total = count = noise = 0.0
    for (kind, at, x), (_, also, y), (_, _, z) in zip(
        starts(before), starts(after), starts(after, None, shaken), strict=False
    ):
        n = min(len(at), len(also))
        mapped, y, z = between.forth(x[:n]), *(seen(v[:n], between.centred[1]) for v in (y, z))
        total, count = total + float(np.sum(mapped**2)), count + n
        noise = max(noise, float(np.max(np.sum((y - z) ** 2, -1), initial=0)))
        gaps += [(float(g), f"{kind} {k}") for g, k in zip(np.sum((mapped - y) ** 2, -1), at[:n], strict=True)]
    size = total / max(count, 1) or 1.0
    worst = float(np.sqrt(max(g for g, _ in gaps) / size))
    found = Local("tables", worst, float(np.sqrt(noise / size)), worst)
    if not found.differs:
        return found
    rows = sorted(
        ((g, k) for g, k in gaps if replace(found, difference=float(np.sqrt(g / size))).differs), reverse=True
    )
    return replace(found, rows=tuple(k for _, k in rows))


def _heads(before: Model, after: Model, shaken: Shaken, x: np.ndarray, mapped: np.ndarray) -> Local:
    """Final norm and head: log-probabilities, and the outputs beside the head."""

    def outputs(model: Model, weights: Weights, stream: np.ndarray) -> list[Array]:
        final, x = model.stack.final, jnp.asarray(stream)
        x = x if final is None else norm(final, weights, x)
        beside = side(model.stack, weights, x) if len(before.stack.side) == len(after.stack.side) else ()
        return [head(model.stack, weights, x), *beside]

    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        a, b, c = (
            [np.asarray(v) for v in outputs(*arguments)]
            for arguments in ((before, before.arrays, x), (after, after.arrays, mapped), (after, shaken, mapped))
        )
    count = min(before.vocabulary, after.vocabulary)
    for found in (a, b, c):
        found[0] = log_softmax(found[0][..., :count])
    gaps = [_largest(u, v) for u, v in zip(a, b, strict=True)]
    noise = [_largest(u, v) for u, v in zip(b, c, strict=True)]
    worst = int(np.argmax(gaps))
    probed = [_largest(u[:-RANDOM], v[:-RANDOM]) for u, v in zip(a, b, strict=True)]
    return Local("head" if worst == 0 else f"side.{worst - 1}", gaps[worst], max(noise), probed[worst])


def _largest(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference of entries, relative to the largest entry."""
    return float(np.max(np.abs(a - b)) / np.max(np.abs(a)))

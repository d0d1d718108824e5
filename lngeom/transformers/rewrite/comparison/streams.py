r"""The map between the streams of two models.

Where one model is the other with its stream rotated and scaled, $x' = s\,G\,x$ with an orthogonal G at every point of
the stream, up to multiples of 1 where all readers centre. It is fitted to the tables: to the streams of all tokens at
the first position, and of one token at all positions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from lngeom._core.draws import probe_generator
from lngeom.transformers.description import INPUTS
from lngeom.transformers.forward import embedded
from lngeom.transformers.rewrite.certificate import reach
from lngeom.transformers.rewrite.comparison.models import Model

ROWS = 1024
"""Rows of tables that are compared at a time, and of what a front end writes."""

IN_A_ROW = 4
"""Fewest positions of the sequences on which front ends are compared."""

LOUD = 30.0
"""Size of the largest inputs of front ends that are compared."""


@dataclass(frozen=True)
class Map:
    """The map of streams of one model to those of another.

    Attributes:
        scale: s.
        turn: G [d, d]; None: the identity.
        centred: whether the streams of the first model, and of the second, are seen without their mean.
        determined: whether the tables determine G.
        residual: largest distance of a mapped row from the other model's, relative.
    """

    scale: float
    turn: Float[np.ndarray, "d d"] | None
    centred: tuple[bool, bool]
    determined: bool = True
    residual: float = 0.0

    def forth(self, x: np.ndarray) -> np.ndarray:
        """A stream of the first model as the second model's."""
        x = self.scale * seen(x, self.centred[0])
        x = x if self.turn is None else x @ self.turn.T
        return seen(x, self.centred[1])

    def back(self, x: np.ndarray) -> np.ndarray:
        """A stream of the second model as the first model's."""
        x = seen(x, self.centred[1]) / self.scale
        return x if self.turn is None else x @ self.turn


def seen(x: np.ndarray, centred: bool) -> np.ndarray:
    """A stream as its readers see it."""
    return x - x.mean(-1, keepdims=True) if centred else x


def starts(
    model: Model, length: int, tokens: np.ndarray | None = None, weights: Mapping[str, Any] | None = None
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Streams before the first block: kind of row, their indices and the rows, some at a time.

    Front ends are compared on sequences of a given length (see `in_a_row`).
    """
    arrays = model.arrays if weights is None else weights
    every = np.arange(model.vocabulary) if tokens is None else tokens
    first_input = model.leading
    inputs = model.stack.inputs
    kinds: list[tuple[str, np.ndarray]] = [(inputs, np.arange(ROWS) if inputs == "frame" else every)]
    kinds += [("input", np.arange(1))] if inputs == "patch" else []  # a patch of zeros: what all patches share
    kinds += [("leading", np.arange(first_input))] if first_input else []
    if (count := model.positions) is not None:
        kinds.append(("position", np.arange(1, count)))
    types = [table for table in model.stack.tables if table.index == "type"]
    kinds += [("type", np.arange(1, t.rows(model.arrays.shape(t.weight)) - t.offset)) for t in types]
    for kind, rows in kinds:
        for first in range(0, len(rows), ROWS):
            some = rows[first : first + ROWS]
            with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
                if kind in INPUTS:
                    found = embedded(model.stack, arrays, jnp.asarray(some[:, None]))[:, first_input]
                elif kind == "frame":
                    found = embedded(model.stack, arrays, jnp.asarray(_frames(model, length))).reshape(-1, model.width)[
                        some
                    ]
                elif kind == "input":
                    found = embedded(model.stack, arrays, jnp.zeros((1, 1, model.vocabulary)))[:, first_input]
                elif kind == "leading":
                    found = embedded(model.stack, arrays, jnp.zeros((1, 1), int))[0, some]
                elif kind == "position":
                    found = embedded(model.stack, arrays, jnp.zeros((1, some[-1] + 1), int))[0, first_input + some]
                else:
                    first_tokens = jnp.zeros((len(some), 1), int)
                    found = embedded(model.stack, arrays, first_tokens, jnp.asarray(some[:, None]))[:, first_input]
            yield kind, some, np.asarray(found)


def in_a_row(*models: Model) -> int:
    """Positions of the sequences on which front ends are compared: as many as their windows reach."""
    length = max(IN_A_ROW, *(reach(model.stack, model.arrays.shape) for model in models))
    return min(length, *(model.positions or length for model in models))


def _frames(model: Model, length: int) -> Float[np.ndarray, "N T e"]:
    """Random inputs of a front end, for `ROWS` rows: single entries that are 1 do not tell it, for it is not linear.

    Every fourth sequence is `LOUD` times as large: it opens units that the others leave shut.
    """
    found = probe_generator().standard_normal((-(-ROWS // length), length, model.vocabulary))
    found[::4] *= LOUD
    return found


def fitted(before: Model, after: Model) -> Map:
    """The rotation and scale that take the first model's tables nearest to the second's.

    Args:
        before: the first model.
        after: the second.

    Returns:
        The simplest map that fits: nothing, a scale, or a rotation with a scale; where none does, the nearest one.
    """
    found = _fitted(before, after, 2 * before.width)
    return found if found.determined else _fitted(before, after, 8 * before.width)


def _fitted(before: Model, after: Model, rows: int) -> Map:
    """The map that fits this many tokens, or all of them. It reads `ROWS` of them at a time, and again for each map."""
    d, centred = before.width, (before.centres, after.centres)
    allowed = 8 * max(spacing_of_tables(model) for model in (before, after))

    def residual(between: Map) -> float:
        return _residual(_pairs(before, after, rows), between)

    if (nothing := residual(Map(1.0, None, (False, False)))) <= allowed:
        return Map(1.0, None, centred, residual=nothing)
    same = Map(1.0, None, centred)
    if (nothing := residual(same)) <= allowed or not np.isfinite(nothing):
        return replace(same, residual=nothing)
    products, first, second, kept = np.zeros((d, d)), 0.0, 0.0, 0.0
    for x, y in _pairs(before, after, rows):
        x, y = seen(x, centred[0]), seen(y, centred[1])
        products += y.T @ x
        first, second, kept = first + np.sum(x**2), second + np.sum(y**2), kept + np.sum(same.forth(x) ** 2)
    if not (first and second):
        return replace(same, residual=nothing)
    scaled = replace(same, scale=float(np.trace(products) / max(kept, 1e-300)))
    if scaled.scale and (found := residual(scaled)) <= allowed:
        return replace(scaled, residual=found)
    turn, rank = nearest_rotation(products)
    factor = float(np.sum(turn * products) / first)
    factor = 1.0 if abs(factor - 1) <= allowed or not factor else factor
    turned = Map(factor, turn, centred, rank >= d - any(centred))
    turned = replace(turned, residual=residual(turned))
    return turned if turned.residual < nothing / 2 else replace(same, residual=nothing)


def _residual(pairs: Iterator[tuple[np.ndarray, np.ndarray]], between: Map) -> float:
    """Largest distance of a mapped stream from the second model's, relative to the root mean square of the latter."""
    farthest, squares, count = 0.0, 0.0, 0
    for x, y in pairs:
        y = seen(y, between.centred[1])
        with np.errstate(over="ignore", invalid="ignore"):
            distances = np.sum((y - between.forth(x)) ** 2, -1)
            farthest = max(farthest, float(np.max(np.where(np.isfinite(distances), distances, np.inf))))
            squares, count = squares + float(np.sum(y**2)), count + len(y)
    size = np.sqrt(squares / count) or 1.0
    return float(np.sqrt(farthest) / size) if np.isfinite(size) else np.inf


def _pairs(before: Model, after: Model, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Streams before the first block of both models, at some tokens and every position, some at a time."""
    count = min(before.vocabulary, after.vocabulary)
    tokens = np.sort(probe_generator().choice(count, min(count, rows), replace=False))
    length = in_a_row(before, after)
    for (kind, at, x), (other, also, y) in zip(
        *(starts(model, length, tokens) for model in (before, after)), strict=False
    ):
        if kind == other and np.array_equal(at, also):
            yield x, y


def some_starts(before: Model, after: Model, rows: int) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "n d"]]:
    """Streams before the first block of both models, at some tokens and every position."""
    first, second = zip(*_pairs(before, after, rows), strict=True)
    return np.concatenate(first), np.concatenate(second)


def nearest_rotation(products: Float[np.ndarray, "d d"]) -> tuple[Float[np.ndarray, "d d"], int]:
    """The orthogonal G that makes tr(GᵀM) largest, and M's rank; where M leaves G free, the G nearest to 1."""
    u, s, v = np.linalg.svd(products)
    rank = int(np.sum(s > 1e-9 * s[0])) if s[0] else 0
    left, right = u[:, rank:], v[rank:]
    inner, _, outer = np.linalg.svd(left.T @ right.T)
    return u[:, :rank] @ v[:rank] + left @ (inner @ outer) @ right, rank


def spacing_of_tables(model: Model) -> float:
    """Spacing at 1 of the dtypes of tables, or of a front end."""
    return model.spacing(*model.stack.beginning)


def coarsest_of_tables(*models: Model) -> np.dtype:
    """The coarsest dtype of what writes first: a rotation that is fitted to it is known up to its roundings."""
    dtypes = [model.arrays.dtype(name) for model in models for name in model.stack.beginning]
    return max(dtypes, key=lambda dtype: float(jnp.finfo(dtype).eps))

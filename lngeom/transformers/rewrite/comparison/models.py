"""The two models of a comparison: arrays in float64, and arrays with random roundings."""

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from lngeom.transformers.description import Norm, Stack, check_stack
from lngeom.transformers.parts import shown
from lngeom.transformers.rewrite.array_files import check_floats
from lngeom.transformers.rewrite.certificate import Rounded, not_finite
from lngeom.transformers.rewrite.draft import Draft
from lngeom.transformers.rewrite.folders import load
from lngeom.transformers.rewrite.layouts import describe


@dataclass(frozen=True)
class Model:
    """A described model.

    Attributes:
        word: "before" or "after".
        stack: the description.
        arrays: its arrays, in float64 when they are read.
    """

    word: str
    stack: Stack
    arrays: Draft

    @property
    def width(self) -> int:
        """Width d of the stream."""
        return self.arrays.shape(self.stack.tables[0].weight)[1]

    @property
    def vocabulary(self) -> int:
        """Rows of the table of tokens."""
        return self.arrays.shape(self.stack.tables[0].weight)[0] - self.stack.tables[0].offset

    @property
    def positions(self) -> int | None:
        """Positions that its tables hold; None: as many as one likes."""
        found = [self.arrays.shape(t.weight)[0] - t.offset for t in self.stack.tables if t.index == "position"]
        for block in self.stack.blocks:
            if (name := block.attention.relative) is not None:
                found.append(self.arrays.shape(name)[1])
        return min(found) if found else None

    @property
    def centres(self) -> bool:
        """Whether all that reads the stream subtracts its mean, so that the stream's mean is invisible."""
        readers = [
            site
            for space in self.stack.spaces
            if space.residual and space.name != "embedding"
            for site in space.readers
        ]
        return all(isinstance(site.part, Norm) and site.part.centres for site in readers)

    @property
    def coarsest(self) -> np.dtype:
        """The dtype with the fewest digits among those of its arrays."""
        return max((self.arrays.dtype(name) for name in self.stack.arrays), key=lambda d: jnp.finfo(d).eps)


def opened(given: Any, word: str, ignore: Iterable[str] = ()) -> Model:
    """A model from a folder, a pair of a description and arrays, or a module of the transformers package.

    Raises:
        TypeError: if it is none of these.
        ValueError: naming what is not covered, or not finite.
    """
    weights: Any
    if isinstance(given, str | Path):
        stack, weights = load(given, ignore=ignore)
    elif isinstance(given, tuple) and len(given) == 2:
        stack, weights = given
        check_stack(stack)
        stack.check(weights)
        check_floats(stack.arrays, weights)
    elif hasattr(given, "state_dict") and hasattr(config := getattr(given, "config", None), "to_dict"):
        weights = _arrays_of(given)
        stack = describe(config.to_dict(), weights)  # pyright: ignore[reportOptionalMemberAccess]
        stack.check(weights)
    else:
        raise TypeError(
            f"{word} must be a folder, a pair of description and arrays as of lg.rewrite.load, or a model of the "
            f"transformers package; got {shown(given)}"
        )
    model = Model(word, stack, Draft(weights))
    if faults := not_finite(stack.arrays, Rounded(model.arrays.copy())):
        raise ValueError(f"{word}: {faults[0]} ({len(faults)} in all): there is nothing to compare")
    return model


def _arrays_of(module: Any) -> dict[str, np.ndarray]:
    """The arrays of a torch module; bfloat16, which NumPy lacks, by way of float32."""
    found = {}
    for name, value in module.state_dict().items():
        tensor = value.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":
            found[name] = tensor.float().numpy().astype(jnp.bfloat16)
        else:
            found[name] = tensor.numpy()
    return found


class Shaken(Mapping[str, np.ndarray]):
    r"""The arrays of a model with one random rounding of every entry.

    Each entry moves by at most half a unit in the last place: by $u |w| \xi$ with $u$ half of the dtype's spacing at 1
    and ξ uniform in [−1, 1], and by at least half of the smallest subnormal number.

    Args:
        model: the arrays.
        dtype: the coarsest dtype; an array that is coarser itself moves by its own.
        seed: of ξ.
    """

    def __init__(self, model: Model, dtypes: Mapping[str, np.dtype], seed: int) -> None:
        self.model, self.dtypes, self.seed = model, dtypes, seed

    def __getitem__(self, name: str) -> np.ndarray:
        return self._shaken(name, self.model.arrays[name], 0)

    def rows(self, name: str, index: Any) -> np.ndarray:
        """Rows along the first axis."""
        return self._shaken(name, self.model.arrays.rows(name, index), 0)

    def pieces(self, name: str) -> Iterator[tuple[slice, np.ndarray]]:
        """All rows, some at a time."""
        for index, piece in self.model.arrays.pieces(name):
            yield index, self._shaken(name, piece, index.start)

    def __iter__(self) -> Iterator[str]:
        return iter(self.model.arrays)

    def __len__(self) -> int:
        return len(self.model.arrays)

    def _shaken(self, name: str, values: np.ndarray, start: int) -> np.ndarray:
        info = jnp.finfo(self.dtypes[name])
        draw = np.random.default_rng([self.seed, start, zlib.crc32(name.encode())])
        step = np.maximum(np.abs(values) * float(info.eps) / 2, float(info.smallest_subnormal) / 2)
        return values + step * draw.uniform(-1, 1, values.shape)


def rounding_dtypes(before: Model, after: Model) -> dict[str, np.dtype]:
    """The dtype by which each array of `after` may be rounded: its own, or the coarsest of `before`."""
    other = before.coarsest
    found = {}
    for name in after.stack.arrays:
        own = after.arrays.dtype(name)
        found[name] = own if jnp.finfo(own).eps >= jnp.finfo(other).eps else other
    return found


def tokens_for(before: Model, after: Model, probes: tuple[int, int], seed: int) -> np.ndarray:
    """Random tokens that both models know, but those of padding.

    Raises:
        ValueError: if there is none.
    """
    N, T = probes
    for model in (before, after):
        T = min(T, model.positions or T)
    paddings = set().union(*(getattr(m.arrays.source, "paddings", ()) for m in (before, after)))
    left = np.setdiff1d(np.arange(min(before.vocabulary, after.vocabulary)), list(paddings))
    if not left.size or min(N, T) < 1:
        raise ValueError(f"there are no probes: {len(left)} token ids in use, {N} × {T} positions")
    return left[np.random.default_rng(seed).integers(0, len(left), (N, T))]


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """Largest distance of two vectors along the last axis, in units of the root mean square of the first ones'."""
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.inf
    gap = np.sqrt(np.max(np.sum((a - b) ** 2, -1), initial=0.0))
    size = np.sqrt(np.mean(np.sum(a**2, -1))) if a.size else 0.0
    return float(gap / size) if size else float(gap)

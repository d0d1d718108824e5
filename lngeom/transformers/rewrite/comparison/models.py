"""The two models of a comparison: arrays in float64, and arrays with random roundings."""

import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from lngeom._core.draws import probe_generator
from lngeom.transformers.description import Norm, Stack, check_stack
from lngeom.transformers.parts import shown
from lngeom.transformers.rewrite.array_files import check_floats, read_json
from lngeom.transformers.rewrite.certificate import Rounded, not_finite, positions, probe_tokens, reach
from lngeom.transformers.rewrite.draft import Draft
from lngeom.transformers.rewrite.folders import as_folder, as_texts, load
from lngeom.transformers.rewrite.layouts import LABELS, REMEDIES, describe, family_of
from lngeom.transformers.rewrite.online import TurnBack, turned


@dataclass(frozen=True)
class Model:
    """A described model.

    Attributes:
        word: "before" or "after".
        stack: the description.
        arrays: its arrays, in float64 when they are read.
        turned: what matrices turn when it runs, as of `online`. They are taken back into the arrays.
    """

    word: str
    stack: Stack
    arrays: Draft
    turned: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Width d of the stream."""
        return self.stack.ends(self.arrays.shape)[1]

    @property
    def vocabulary(self) -> int:
        """Rows of the table of tokens, or entries of an input."""
        before = self.stack.tables[0].offset if self.stack.front is None else 0
        return self.stack.ends(self.arrays.shape)[0] - before

    @property
    def outputs(self) -> int:
        """How many logits there are, or coordinates of hidden states."""
        part = self.stack.head.linear
        return self.width if part is None else part.sizes(self.arrays.shape(part.weight))[0]

    @property
    def leading(self) -> int:
        """How many positions stand before the inputs."""
        tables = [table for table in self.stack.tables if table.index == "leading"]
        return sum(table.rows(self.arrays.shape(table.weight)) for table in tables)

    @property
    def positions(self) -> int | None:
        """Positions that its tables hold; None: as many as one likes."""
        return positions(self.stack, self.arrays.shape)

    def spacing(self, *names: str | None) -> float:
        """The largest spacing at 1 among the dtypes of some arrays."""
        return max(float(jnp.finfo(self.arrays.dtype(name)).eps) for name in names if name is not None)

    @property
    def bare(self) -> bool:
        """Whether the first block's attention reads the stream without a norm."""
        return bool(self.stack.blocks) and self.stack.blocks[0].bare_attention

    @property
    def centres(self) -> bool:
        """Whether all that reads the stream subtracts its mean, so that the stream's mean is invisible.

        Attention without a norm in the first block reads what the tables give, before any block has written.
        """
        readers = [
            site
            for space in self.stack.spaces
            if space.residual and space.name != "embedding"
            for site in space.readers
            if not (self.bare and site.path.startswith("blocks.0.attention."))
        ]
        return all(isinstance(site.part, Norm) and site.part.centres for site in readers)


def opened(given: Any, word: str, ignore: Iterable[str] = (), other: Any = None) -> Model:
    """A model from a folder, a pair of a description and arrays, or a module of the transformers package.

    Args:
        given: the model.
        word: what it is called.
        ignore: options of the config that no code reads; those that only the other model's config has are left out.
        other: the other model, as it was given.

    Returns:
        The model.

    Raises:
        TypeError: if it is none of these.
        ValueError: naming what is not covered, or not finite.
    """
    weights: Any
    if isinstance(given, str | os.PathLike):
        stack, weights = load(as_folder(given), ignore=_ignored(given, ignore, other))
    elif isinstance(given, tuple) and len(given) == 2:
        stack, weights = given
        check_stack(stack)
        stack.check(weights)
        check_floats(stack.arrays, weights)
    elif hasattr(given, "state_dict") and hasattr(config := getattr(given, "config", None), "to_dict"):
        weights = _arrays_of(given)
        options = {k: v for k, v in config.to_dict().items() if k not in as_texts("ignore", ignore)}  # pyright: ignore[reportOptionalMemberAccess]
        classes = LABELS.get(family_of(options)[1])
        if classes is not None and type(given).__name__ not in classes:
            remedy = REMEDIES.get(family_of(options)[1], "")
            raise ValueError(f"{word} is a {type(given).__name__}, which is not covered ({', '.join(classes)}){remedy}")
        stack = describe(options, weights)
        if fused := [name for name in weights if name.endswith("experts.gate_up_proj") and name not in stack.arrays]:
            raise ValueError(
                f"{word} holds the experts of a block in one array ({fused[0]!r}), as the transformers package does in "
                "memory: save it with save_pretrained, and give the folder"
            )
        stack.check(weights)
    else:
        raise TypeError(
            f"{word} must be a folder, a pair of description and arrays as of lg.rewrite.load, or a model of the "
            f"transformers package; got {shown(given)}"
        )
    arrays = Draft(weights)
    model = Model(word, TurnBack().run(stack, arrays), arrays, turned(stack))
    if faults := not_finite(model.stack.arrays, Rounded(model.arrays.copy())):
        raise ValueError(f"{word}: {faults[0]} ({len(faults)} in all): there is nothing to compare")
    return model


def _ignored(folder: Any, ignore: Iterable[str], other: Any) -> tuple[str, ...]:
    """Options to ignore that this folder's config has, or neither config."""
    keys = as_texts("ignore", ignore)
    if not keys or not isinstance(other, str | os.PathLike):
        return keys
    mine, others = (read_json(p) if (p := as_folder(f) / "config.json").is_file() else {} for f in (folder, other))
    return tuple(key for key in keys if key in mine or key not in others)


def _arrays_of(module: Any) -> dict[str, np.ndarray]:
    """The arrays of a torch module; bfloat16, which NumPy lacks, by way of float32."""
    found = {}
    for name, value in module.state_dict().items():
        if not hasattr(value, "detach") or not value.is_floating_point():
            continue  # a buffer, or packed numbers; what the description names and is missing is said
        if value.is_meta:
            raise ValueError(f"{name!r} of the module is on the device 'meta': it has a shape and no numbers")
        tensor = value.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":
            found[name] = tensor.float().numpy().astype(jnp.bfloat16)
        else:
            found[name] = tensor.numpy()
    return found


class Shaken(Mapping[str, np.ndarray]):
    r"""The arrays of a model with one random rounding of every entry.

    An entry w moves by $\xi \max(u |w|, t)$, with u half of the dtype's spacing at 1, t half of its smallest subnormal
    number, and ξ uniform in [−1, 1].

    Args:
        model: the arrays.
        dtypes: the dtype that each array is rounded to; others are left as they are.
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
        if name not in self.dtypes:
            return values
        info = jnp.finfo(self.dtypes[name])
        draw = probe_generator(self.seed, start, zlib.crc32(name.encode()))
        step = np.maximum(np.abs(values) * float(info.eps) / 2, float(info.smallest_subnormal) / 2)
        return values + step * draw.uniform(-1, 1, values.shape)


def rounding_dtypes(before: Model, after: Model, least: np.dtype | None = None) -> dict[str, np.dtype]:
    """The dtype by which each array of `after` may be rounded: the coarser one of both models; none if nothing was.

    An array that holds the same numbers in both was not rounded. Where the first model has no array of this name and
    shape, the dtype of most of its numbers counts. Where a coarser one is given, that one counts for all.
    """
    sizes: dict[np.dtype, int] = {}
    for name in before.stack.arrays:
        dtype = before.arrays.dtype(name)
        sizes[dtype] = sizes.get(dtype, 0) + math.prod(before.arrays.shape(name))
    usual = max(sizes, key=lambda dtype: sizes[dtype])
    found = {}
    for name in after.stack.arrays:
        own, other = after.arrays.dtype(name), usual
        if same_array(before, after, name):
            continue
        if name in before.arrays and before.arrays.shape(name) == after.arrays.shape(name):
            other = before.arrays.dtype(name)
        found[name] = max(own, other, least or own, key=lambda dtype: jnp.finfo(dtype).eps)
    return found


def same_array(before: Model, after: Model, name: str) -> bool:
    """Whether both models have an array of this name, with the same numbers."""
    if name not in before.arrays or before.arrays.shape(name) != after.arrays.shape(name):
        return False
    if not before.arrays.shape(name):
        return bool(before.arrays[name] == after.arrays[name])
    pairs = zip(before.arrays.pieces(name), after.arrays.pieces(name), strict=True)
    return all(np.array_equal(a, b) for (_, a), (_, b) in pairs)


def tokens_for(before: Model, after: Model, probes: tuple[int, int], seed: int) -> np.ndarray:
    """Random tokens that both models know, but those of padding, at positions that both have.

    There are as many positions as it takes to read all rows of tables of relative positions, if not more.

    Raises:
        ValueError: if there is none, or the models read other inputs.
    """
    first, second = (m.stack.inputs for m in (before, after))
    if first != second:
        raise ValueError(
            f"before reads inputs of kind {first!r}, after of kind {second!r}: there is nothing to compare"
        )
    for what, a, b in (
        ("outputs are {}", *("hidden states" if m.stack.hidden_states else "logits" for m in (before, after))),
        ("the head reads {!r}", before.stack.head.reads, after.stack.head.reads),
        ("{} positions stand before the inputs", before.leading, after.leading),
    ):
        if a != b:
            raise ValueError(f"before: {what.format(a)}; after: {what.format(b)}: there is nothing to compare")
    if first != "token" and before.vocabulary != after.vocabulary:
        what = "patches" if first == "patch" else "inputs"
        raise ValueError(
            f"before reads {what} of {before.vocabulary} entries, after of {after.vocabulary}: there is nothing to "
            "compare"
        )
    fewer, other = sorted((before, after), key=lambda model: model.vocabulary)
    length = max(probes[1], *(reach(model.stack, model.arrays.shape) for model in (before, after)))
    length = min(length, other.positions or length)
    return probe_tokens(
        fewer.stack, fewer.arrays, (probes[0], length), seed, getattr(other.arrays.source, "paddings", ())
    )


EXACT = 1e-11
"""Relative difference of one part in float64 that counts as none."""


class Gap(NamedTuple):
    """How far vectors are apart, and what rounding explains of it, both relative to the size of the first ones.

    Attributes:
        difference: of the row, or the column, for which rounding explains least.
        rounding: what random roundings change there.
    """

    difference: float
    rounding: float

    @property
    def roundings(self) -> float:
        """The difference, in units of what rounding explains."""
        return self.difference / max(self.rounding, EXACT)


def rows_and_columns(wanted: np.ndarray, got: np.ndarray, noises: Sequence[np.ndarray], *, columns: bool = True) -> Gap:
    """Compares rows (the last axis), each by itself, and columns over all rows, each by itself.

    A row or column that is much larger than the others hides nothing in them.
    """
    if wanted.shape != got.shape or not (np.isfinite(wanted).all() and np.isfinite(got).all()):
        return Gap(math.inf, 0.0)
    d = wanted.shape[-1]
    a, delta, *others = (v.reshape(-1, d) for v in (wanted, got - wanted, *(noise - got for noise in noises)))
    every = float(np.sqrt(np.mean(np.sum(a**2, 1)))) if a.size else 0.0

    def norms(axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        over = np.mean if axis == 0 else np.sum
        with np.errstate(over="ignore", invalid="ignore"):
            sizes, gaps = (finite(np.sqrt(over(v**2, axis=axis)), np.inf) for v in (a, delta))
            noise = np.sqrt(np.mean([over(v**2, axis=axis) for v in others], 0)) if others else 0 * gaps
        return sizes, gaps, finite(noise, 0.0)

    sizes, gaps, noise = norms(1)
    sizes = np.maximum(sizes, 1e-6 * every) if every else np.ones_like(sizes)
    noise = np.maximum(noise, sizes * np.median(noise / sizes))
    found = worst(gaps / sizes, noise / sizes)
    if columns and every:
        _, gaps, noise = norms(0)
        noise = np.maximum(noise, np.median(noise))
        found = max(found, worst(gaps / every, noise / every), key=lambda gap: gap.roundings)
    return found


def finite(values: np.ndarray, other: float) -> np.ndarray:
    """Numbers, those that are not finite replaced."""
    return np.where(np.isfinite(values), values, other)


def worst(gaps: np.ndarray, noise: np.ndarray) -> Gap:
    """The gap that is largest beside its noise."""
    where = int(np.argmax(gaps / np.maximum(noise, EXACT)))
    return Gap(float(gaps[where]), float(noise[where]))


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """Largest distance of two vectors along the last axis, in units of the root mean square of the first ones'."""
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.inf
    with np.errstate(over="ignore", invalid="ignore"):
        distance = np.sqrt(np.max(np.sum((a - b) ** 2, -1), initial=0.0))
        size = np.sqrt(np.mean(np.sum(a**2, -1))) if a.size else 0.0
        found = float(distance / size) if size else float(distance)
    return found if math.isfinite(found) else math.inf

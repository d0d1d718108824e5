"""Certificates: what a rewrite changed, why it may, and how far the outputs moved on probes."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from lngeom._core.numerics import WITNESS
from lngeom._core.text import counted
from lngeom.transformers.description import Linear, Stack
from lngeom.transformers.forward import head, hidden, side
from lngeom.transformers.rewrite.draft import Draft

SHOWN = 3
"""Faults that are printed."""

TOLERANCE = 1e-12
"""Largest relative difference in float64 that counts as exact."""


class Difference(NamedTuple):
    """How far outputs are apart on the probes.

    Attributes:
        logits: max |Δ| of the logits.
        relative: that, divided by the largest logit.
        log_probabilities: max |Δ| of the log-probabilities.
        relative_log_probabilities: that, divided by the largest log-probability.
        side: max |Δ| of the outputs beside the head (poolers, second heads), divided by the largest; 0 without any.
    """

    logits: float
    relative: float
    log_probabilities: float
    relative_log_probabilities: float
    side: float = 0.0

    def residual(self, moves_logits: bool) -> float:
        """The relative difference that decides."""
        return max(self.relative_log_probabilities if moves_logits else self.relative, self.side)


class Spread(NamedTuple):
    r"""How far the entries of the changed matrices spread, each as stored: what makes them hard to quantize.

    Attributes:
        largest: the largest absolute value of an entry.
        largest_in: the array that holds it.
        kurtosis: the largest of the arrays' kurtoses, $E[(w - \mu)^4] / \sigma^4$, 3 for normal numbers.
        kurtosis_in: the array that has it.
        channels: how far the ranges of input channels differ, $\max_j a_j / \mathrm{median}_j\, a_j$ with
            $a_j = \max_i |W_{ij}|$ for W [out, in]: the largest of all arrays.
        channels_in: the array that has it.
    """

    largest: float
    largest_in: str
    kurtosis: float
    kurtosis_in: str
    channels: float
    channels_in: str


@dataclass(frozen=True)
class Certificate:
    """The evidence that a rewrite did not change the function.

    Attributes:
        reasons: of each step its name and the identity that makes it exact.
        probes: numbers of sequences and of positions.
        dtype: in which the arrays are stored.
        exact: rewritten arrays before rounding, against the original, both in float64.
        rounded: rewritten arrays as stored, run in the stored dtype, against the original in float64.
        original: original arrays, run in the stored dtype, against the original in float64.
        control: what was left out to see whether the probes notice, and the relative difference that it made.
        changed: what was done to each array, by name.
        moves_logits: whether a step moves logits, so that only log-probabilities count.
        faults: arrays and outputs that hold numbers which are not finite, a sentence each.
        folder: the written folder, read again and run in the stored dtype, against the original in float64, read again
            too; None: nothing was written.
        spread: of the changed matrices, before and after; None where no matrix was changed.
    """

    reasons: tuple[tuple[str, str], ...]
    probes: tuple[int, int]
    dtype: str
    exact: Difference
    rounded: Difference
    original: Difference
    control: tuple[str, float]
    changed: dict[str, tuple[str, ...]]
    moves_logits: bool = False
    faults: tuple[str, ...] = ()
    folder: Difference | None = None
    spread: tuple[Spread, Spread] | None = None

    @property
    def passed(self) -> bool:
        """Whether the outputs are those of the original.

        In float64 they agree within `TOLERANCE`. In the stored dtype they are at most ten times as far from the
        original in float64 as the original itself is, and so are those of the folder. The control differs by more than
        1e-3. A number that is not finite, in an array or in an output, before or after, passes nothing.
        """
        differences = (self.exact, self.original, self.rounded, *([] if self.folder is None else [self.folder]))
        exact, original, *stored = (d.residual(self.moves_logits) for d in differences)
        return (
            not self.faults
            and all(map(math.isfinite, (exact, original, *stored, self.control[1])))
            and exact <= TOLERANCE
            and max(stored) <= max(10 * original, TOLERANCE)
            and self.control[1] > WITNESS
        )

    def to_json(self) -> dict[str, Any]:
        """All numbers, as JSON takes them; a number that is not finite is None."""
        return {"passed": self.passed, **plain({f: getattr(self, f) for f in self.__dataclass_fields__})}

    def __str__(self) -> str:
        """A few lines for people."""
        kind = "log-probabilities" if self.moves_logits else "logits"
        rows = [
            f"certificate: {'passed' if self.passed else 'FAILED'}, {self.probes[0]} × {self.probes[1]} probe tokens",
            *(f"  {name}: {identity}" for name, identity in self.reasons),
            f"  {counted(len(self.changed), 'array')} changed",
        ]
        if self.spread is not None:
            (a, b), words = self.spread, "  {}: {:.3g} ({}) → {:.3g} ({})"
            rows.append(words.format("largest weight of these", a.largest, a.largest_in, b.largest, b.largest_in))
            rows.append(words.format("largest kurtosis", a.kurtosis, a.kurtosis_in, b.kurtosis, b.kurtosis_in))
            ranges = "largest range of an input channel by the median one"
            rows.append(words.format(ranges, a.channels, a.channels_in, b.channels, b.channels_in))
        cases = (
            ("rewritten, float64, before rounding", self.exact),
            (f"rewritten, stored and run in {self.dtype}", self.rounded),
            (f"original, run in {self.dtype}", self.original),
            *([] if self.folder is None else [(f"folder, read again and run in {self.dtype}", self.folder)]),
        )
        rows += [
            f"  {name}: max |Δ| of {kind} {d.log_probabilities if self.moves_logits else d.logits:.1e}, "
            f"relative {d.residual(self.moves_logits):.1e}"
            for name, d in cases
        ]
        rows += [f"  {fault}" for fault in self.faults[:SHOWN]]
        if len(self.faults) > SHOWN:
            more = counted(len(self.faults) - SHOWN, "more array or output holds", "more arrays or outputs hold")
            rows.append(f"  {more} numbers that are not finite")
        return "\n".join([*rows, f"  control ({self.control[0]}): relative {self.control[1]:.1e}"])


def plain(value: Any) -> Any:
    """A value as JSON takes it: named tuples as objects, a number that is not finite as None."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def everything(
    stack: Stack, weights: Mapping[str, Any], tokens: Int[np.ndarray, "N T"]
) -> tuple[Float[np.ndarray, "N T o"], ...]:
    """Logits, and the outputs beside the head, as float64 arrays.

    Hidden states that are the outputs come twice: softmaxes of logits ignore a shift, and these do not.
    """
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        x = hidden(stack, weights, jnp.asarray(tokens))
        beside = (x,) if stack.hidden_states else ()
        found = (head(stack, weights, x), *beside, *side(stack, weights, x))
        return tuple(np.asarray(values).astype(np.float64) for values in found)


def outputs(stack: Stack, weights: Mapping[str, Any], tokens: Int[np.ndarray, "N T"]) -> Float[np.ndarray, "N T V"]:
    """Logits as a float64 array."""
    return everything(replace(stack, side=()), weights, tokens)[0]


def compare(a: tuple[np.ndarray, ...], b: tuple[np.ndarray, ...]) -> Difference:
    """How far the outputs b are from a, those beside the head too."""
    found = difference(a[0], b[0])
    beside = [difference(x, y).relative for x, y in zip(a[1:], b[1:], strict=True)]
    return found._replace(side=max(beside, default=0.0))


def difference(a: Float[np.ndarray, "N T V"], b: Float[np.ndarray, "N T V"]) -> Difference:
    """How far b is from a; infinite where a number is not finite."""

    def apart(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
        if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
            return float("inf"), float("inf")
        gap, scale = float(np.abs(a - b).max()), float(np.abs(a).max())
        return gap, gap / scale if scale else gap

    return Difference(*apart(a, b), *apart(log_softmax(a), log_softmax(b)))


def log_softmax(z: np.ndarray) -> np.ndarray:
    """Log-probabilities of the last axis; not finite where a number is not."""
    with np.errstate(invalid="ignore", over="ignore"):
        z = z - z.max(-1, keepdims=True)
        return z - np.log(np.exp(z).sum(-1, keepdims=True))


class Rounded(Mapping[str, np.ndarray]):
    """The arrays of a draft as they are stored, computed when they are read.

    Args:
        draft: the arrays.
        dtype: dtype to give them all; None: each keeps its own.
    """

    def __init__(self, draft: Draft, dtype: np.dtype | None = None) -> None:
        self.draft, self._dtype = draft, dtype

    def __getitem__(self, name: str) -> np.ndarray:
        found = np.empty(self.draft.shape(name), self.draft.dtype(name))
        start = 0
        for piece in self.draft.rounded(name):
            place = slice(start, start + len(piece)) if found.ndim else ...
            found[place] = piece
            start += len(piece) if found.ndim else 0
        return self._cast(found)

    def rows(self, name: str, index: Any) -> np.ndarray:
        """Rows along the first axis, as stored."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self._cast(self.draft.rows(name, index).astype(self.draft.dtype(name)))

    def pieces(self, name: str) -> Any:
        """All rows, some at a time, with their positions."""
        start = 0
        for piece in self.draft.rounded(name):
            yield slice(start, start + len(piece)), self._cast(piece)
            start += len(piece)

    def __iter__(self) -> Any:
        return iter(self.draft)

    def __len__(self) -> int:
        return len(self.draft)

    def _cast(self, array: np.ndarray) -> np.ndarray:
        if self._dtype is None or array.dtype == self._dtype:
            return array
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found and named
            return array.astype(self._dtype)


def positions(stack: Stack, shape: Callable[[str], tuple[int, ...]]) -> int | None:
    """Inputs for which tables hold positions, of the shapes of arrays by name; None: as many as one likes."""
    before = sum(table.rows(shape(table.weight)) for table in stack.tables if table.index == "leading")
    tables = [table for table in stack.tables if table.index == "position"]
    found = [table.rows(shape(table.weight)) - table.offset for table in tables]
    attentions = [block.attention for block in stack.blocks]
    found += [shape(a.relative)[1] for a in attentions if a.relative is not None and a.buckets is None]
    return min(found) - before if found else None


def reach(stack: Stack, shape: Callable[[str], tuple[int, ...]]) -> int:
    """How many positions read all of the tables of relative positions and of a front end, of the shapes of arrays."""
    found = [1 if stack.front is None else stack.front.reach(shape)]
    for block in stack.blocks:
        if block.attention.relative is not None:
            rows = shape(block.attention.relative)[-1]
            found.append(block.attention.buckets.reach if block.attention.buckets else rows)
    return max(found)


def probe_tokens(
    stack: Stack, draft: Draft, probes: tuple[int, int], seed: int = 0, exclude: Collection[int] = ()
) -> np.ndarray:
    """Random tokens, no longer than the tables of positions; random vectors where these are the inputs.

    Args:
        stack: the description.
        draft: the arrays.
        probes: numbers of sequences and of positions.
        seed: of the tokens.
        exclude: ids to leave out, beside the padding of the checkpoint's config.

    Returns:
        The tokens, or vectors [N, T, entries] with standard normal entries.

    Raises:
        ValueError: if no id is left.
    """
    N, T = probes
    T = min(T, positions(stack, draft.shape) or T)
    entries = stack.ends(draft.shape)[0]
    if stack.inputs != "token" and N >= 1 and T >= 1:
        return np.random.default_rng(seed).standard_normal((N, T, entries))
    ids = np.arange(entries)
    left = np.setdiff1d(ids, [*exclude, *getattr(draft.source, "paddings", ())])
    if not left.size or N < 1 or T < 1:
        raise ValueError(f"there are no probes: {len(ids)} token ids, {len(left)} of them in use, {N} × {T} positions")
    return left[np.random.default_rng(seed).integers(0, len(left), (N, T))]


def running_dtype(stack: Stack, draft: Draft) -> np.dtype:
    """The dtype in which the model runs: as stored, or as it is loaded where that is less precise."""
    stored, loaded = draft.dtype(stack.beginning[0]), getattr(draft.source, "dtype", None)
    if loaded is None:
        return stored
    a, b = jnp.finfo(stored), jnp.finfo(loaded)
    return stored if b.eps <= a.eps and b.max >= a.max else loaded


def not_finite(names: Collection[str], weights: Rounded) -> list[str]:
    """Arrays that hold numbers which are not finite, a sentence each."""
    found = []
    for name in names:
        for index, piece in weights.pieces(name):
            wrong = ~np.isfinite(piece.astype(np.float64))
            if wrong.any():
                row = int(np.argmax(wrong.reshape(len(wrong), -1).any(1)))
                word = "NaN" if np.isnan(piece[row].astype(np.float64)).any() else "infinity"
                found.append(f"{name} holds {word} in {'row' if piece.ndim > 1 else 'entry'} {index.start + row}")
                break
    return found


def spread(names: Collection[str], weights: Rounded, transposed: Collection[str] = ()) -> Spread | None:
    """How far the entries of matrices spread; None where none of the arrays is a matrix of more than one value.

    Args:
        names: of the arrays.
        weights: the arrays.
        transposed: names of those whose rows are the input channels; of others the columns are.
    """
    found, uneven = [], []
    for name in names:
        if weights.draft.shape(name)[1:]:
            count, largest, sums = 0, 0.0, np.zeros(5)
            ranges: list[np.ndarray] = []
            for _, piece in weights.pieces(name):
                sizes = np.abs(np.asarray(piece, np.float64)).reshape(-1, piece.shape[-1])
                ranges.append(sizes.max(1) if name in transposed else sizes.max(0, keepdims=True))
                values = np.asarray(piece, np.float64).ravel()
                largest = max(largest, float(sizes.max(initial=0.0)))
                count += values.size
                sums[1:] += [np.sum(values**k) for k in range(1, 5)]
            a = np.concatenate(ranges) if name in transposed else np.concatenate(ranges).max(0)
            if (middle := np.median(a)) > 0:
                uneven.append((float(a.max() / middle), name))
            _, m, m2, m3, m4 = sums / max(count, 1)
            variance = m2 - m * m
            if variance > 0:
                found.append((largest, (m4 - 4 * m * m3 + 6 * m * m * m2 - 3 * m**4) / variance**2, name))
    if not found:
        return None
    (largest, _, at), (_, kurtosis, of) = max(found), max(found, key=lambda row: row[1])
    channels, channels_in = max(uneven, default=(float("inf"), at))
    return Spread(largest, at, float(kurtosis), of, channels, channels_in)


def certify(
    before: tuple[Stack, Draft],
    after: tuple[Stack, Draft],
    reasons: tuple[tuple[str, str], ...],
    tokens: Int[np.ndarray, "N T"],
    moves_logits: bool,
) -> Certificate:
    """Compares a rewritten model with its original.

    Args:
        before: description and arrays of the original.
        after: those of the rewritten model.
        reasons: of each step its name and identity.
        tokens: the probes.
        moves_logits: whether only log-probabilities count.

    Returns:
        The certificate.
    """
    dtype = running_dtype(*after)
    reference = everything(before[0], before[1].copy(), tokens)  # a copy keeps no array when it is done
    exact = compare(reference, everything(after[0], after[1].copy(), tokens))
    stored = [(stack, Rounded(draft.copy(), dtype)) for stack, draft in (before, after)]
    if dtype == np.float64:
        original = compare(reference, reference)
    else:
        original = compare(reference, everything(*stored[0], tokens))
    rounded = compare(reference, everything(*stored[1], tokens))
    faults = not_finite(before[0].arrays, stored[0][1])
    known = {fault.split(" holds ")[0] for fault in faults}
    new = [name for name in after[0].arrays if name not in known]
    faults += [f"{fault}, after the rewrite, in {dtype.name}" for fault in not_finite(new, stored[1][1])]
    for name, found in (("the original", original), ("the rewritten model", rounded)):
        if not faults and not math.isfinite(found.residual(moves_logits)):
            faults.append(f"outputs of {name}, run in {dtype.name}, are not finite")
    control = ("nothing", float("nan"))
    for name, planted in _controls(*after):
        found = compare(reference, everything(after[0], planted, tokens)).residual(moves_logits)
        if math.isfinite(found) and not found <= control[1]:
            control = (name, found)
        if control[1] > WITNESS:
            break
    labels = after[1].labels
    changed = [name for name in labels if name in before[0].arrays and name in after[0].arrays]
    transposed = {site.part.weight for site in after[0].linears if site.part.layout == "io"}
    spreads = [spread(changed, Rounded(draft.copy()), transposed) for _, draft in (before, after)]
    return Certificate(
        reasons,
        (tokens.shape[0], tokens.shape[1]),
        dtype.name,
        exact,
        rounded,
        original,
        control,
        labels,
        moves_logits,
        tuple(faults),
        spread=None if spreads[0] is None or spreads[1] is None else (spreads[0], spreads[1]),
    )


def _controls(stack: Stack, draft: Draft) -> list[tuple[str, Draft]]:
    """Faults that the probes must notice: a reader left out of the rewrite, or a missing branch where that is exact."""
    readers = [
        site.part.weight
        for space in stack.spaces
        for site in space.readers
        if isinstance(site.part, Linear) and draft.changed(site.part.weight) and site.part.weight in draft.source
    ]
    some = dict.fromkeys([*readers[:1], *readers[len(readers) // 2 :][:1], *readers[-1:]])
    found = [(f"{name} left out", draft.without(name)) for name in some]
    for block in stack.blocks[-1:]:
        name, missing = block.attention.output.weight, draft.copy()
        missing.set(name, np.zeros(draft.shape(name)), "control")
        found.append((f"{name} set to zero", missing))
    return found

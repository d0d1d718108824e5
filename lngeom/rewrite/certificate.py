"""Certificates: what a rewrite changed, why it may, and how far the outputs moved on probes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from lngeom.numerics import WITNESS
from lngeom.rewrite.draft import Draft
from lngeom.stacks.description import Linear, Stack
from lngeom.stacks.forward import logits

TOLERANCE = 1e-12
"""Largest relative difference in float64 that counts as exact."""


class Difference(NamedTuple):
    """How far outputs are apart on the probes.

    Attributes:
        logits: max |Δ| of the logits.
        relative: that, divided by the largest logit.
        log_probabilities: max |Δ| of the log-probabilities.
        relative_log_probabilities: that, divided by the largest log-probability.
    """

    logits: float
    relative: float
    log_probabilities: float
    relative_log_probabilities: float

    def residual(self, moves_logits: bool) -> float:
        """The relative difference that decides."""
        return self.relative_log_probabilities if moves_logits else self.relative


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

    @property
    def passed(self) -> bool:
        """Whether the outputs are those of the original.

        In float64 they agree within `TOLERANCE`. In the stored dtype they are at most ten times as far from the
        original in float64 as the original itself is. The control differs by more than 1e-3. A number that is not
        finite passes nothing.
        """
        exact, rounded, original = (d.residual(self.moves_logits) for d in (self.exact, self.rounded, self.original))
        return (
            exact <= TOLERANCE
            and rounded <= max(10 * original, TOLERANCE)
            and math.isfinite(self.control[1])
            and self.control[1] > WITNESS
        )

    def to_json(self) -> dict[str, Any]:
        """All numbers, as JSON takes them; a number that is not finite is None."""

        def plain(value: Any) -> Any:
            if isinstance(value, Difference):
                return plain(value._asdict())
            if isinstance(value, dict):
                return {k: plain(v) for k, v in value.items()}
            if isinstance(value, list | tuple):
                return [plain(v) for v in value]
            return None if isinstance(value, float) and not math.isfinite(value) else value

        return {"passed": self.passed, **plain({f: getattr(self, f) for f in self.__dataclass_fields__})}

    def __str__(self) -> str:
        """A few lines for people."""
        kind = "log-probabilities" if self.moves_logits else "logits"
        rows = [
            f"certificate: {'passed' if self.passed else 'FAILED'}, {self.probes[0]} × {self.probes[1]} probe tokens",
            *(f"  {name}: {identity}" for name, identity in self.reasons),
            f"  {len(self.changed)} arrays changed",
        ]
        cases = (
            ("rewritten, float64, before rounding", self.exact),
            (f"rewritten, stored and run in {self.dtype}", self.rounded),
            (f"original, run in {self.dtype}", self.original),
        )
        rows += [
            f"  {name}: max |Δ| of {kind} {d.log_probabilities if self.moves_logits else d.logits:.1e}, "
            f"relative {d.residual(self.moves_logits):.1e}"
            for name, d in cases
        ]
        return "\n".join([*rows, f"  control ({self.control[0]}): relative {self.control[1]:.1e}"])


def outputs(stack: Stack, weights: Mapping[str, Any], tokens: Int[np.ndarray, "N T"]) -> Float[np.ndarray, "N T V"]:
    """Logits as a float64 array."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        return np.asarray(logits(stack, weights, jnp.asarray(tokens))).astype(np.float64)


def difference(a: Float[np.ndarray, "N T V"], b: Float[np.ndarray, "N T V"]) -> Difference:
    """How far b is from a; infinite where a number is not finite."""

    def apart(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
        if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
            return float("inf"), float("inf")
        gap, scale = float(np.abs(a - b).max()), float(np.abs(a).max())
        return gap, gap / scale if scale else gap

    return Difference(*apart(a, b), *apart(_log_softmax(a), _log_softmax(b)))


def _log_softmax(z: np.ndarray) -> np.ndarray:
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
        return array if self._dtype is None or array.dtype == self._dtype else array.astype(self._dtype)


def probe_tokens(stack: Stack, draft: Draft, probes: tuple[int, int], seed: int = 0) -> Int[np.ndarray, "N T"]:
    """Random tokens, no longer than the tables of positions."""
    N, T = probes
    for table in stack.tables:
        if table.index == "position":
            T = min(T, draft.shape(table.weight)[0] - table.offset)
    return np.random.default_rng(seed).integers(0, draft.shape(stack.tables[0].weight)[0], (N, T))


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
    dtype = after[1].dtype(after[0].tables[0].weight)
    reference = outputs(before[0], before[1].copy(), tokens)  # a copy keeps no array when it is done
    exact = difference(reference, outputs(after[0], after[1].copy(), tokens))
    if dtype == np.float64:
        original = difference(reference, reference)
    else:
        original = difference(reference, outputs(before[0], Rounded(before[1].copy(), dtype), tokens))
    rounded = difference(reference, outputs(after[0], Rounded(after[1].copy(), dtype), tokens))
    control = ("nothing", float("nan"))
    for name, planted in _controls(*after):
        found = difference(reference, outputs(after[0], planted, tokens)).residual(moves_logits)
        if math.isfinite(found) and not found <= control[1]:
            control = (name, found)
        if control[1] > WITNESS:
            break
    labels = after[1].labels
    return Certificate(reasons, tokens.shape, dtype.name, exact, rounded, original, control, labels, moves_logits)


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

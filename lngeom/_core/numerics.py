"""The tolerance policy: agreement and difference of numbers, and the rank of a factor, numerical and effective."""

from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

MARGIN = 1e3
"""Allowed rounding errors in units in the last place, for products of sums over thousands of terms."""

WITNESS = 1e-3
"""Relative difference from which two results differ. It is far above rounding in every dtype but bfloat16."""


class ConvergenceError(RuntimeError):
    """Iterations stopped before they reached their tolerance. The message gives the residual."""


class Agreement(NamedTuple):
    """How far two arrays are apart.

    Attributes:
        residual: max |a − b| divided by the larger of max |a| and max |b| (0 where both are zero).
        tolerance: residual up to which they agree.
        scale: the larger of max |a| and max |b|.
        count: number of entries compared.
        undefined: number of entries that are NaN or infinite in either array; they are neither equal nor different.
        rounding: largest residual that rounding alone may cause, where it is known; zero where it is not.
    """

    residual: float
    tolerance: float
    scale: float
    count: int
    undefined: int = 0
    rounding: float = 0.0

    @property
    def witness(self) -> float:
        """Residual from which the two differ: far above the tolerance, and above their own rounding."""
        return max(WITNESS, 1e3 * self.tolerance, 10 * self.rounding)

    @property
    def agrees(self) -> bool:
        """Whether at least one entry was compared, all were finite, and the residual is within the tolerance.

        Nothing agrees where rounding alone may reach the size of a witness.
        """
        return self._defined and self.rounding < WITNESS and self.residual <= self.tolerance

    @property
    def differs(self) -> bool:
        """Whether all entries were finite, and differ by far more than rounding: a witness that they are not equal."""
        return self._defined and self.residual >= self.witness

    @property
    def lost_to_rounding(self) -> bool:
        """Whether rounding may exceed the tolerance and may explain the whole residual."""
        return self.rounding > self.tolerance and self.residual < 10 * self.rounding and not self.agrees

    @property
    def _defined(self) -> bool:
        return self.count > 0 and not self.undefined


def tolerance(dtype: jax.typing.DTypeLike, margin: float = MARGIN) -> float:
    """Relative tolerance for computations in a dtype: `margin` units in the last place."""
    return margin * float(jnp.finfo(dtype).eps)


def agreement(a: jax.typing.ArrayLike, b: jax.typing.ArrayLike, tol: float | None = None) -> Agreement:
    """Compares two arrays of one shape on the scale of their largest entry.

    Args:
        a: one result.
        b: the other.
        tol: relative tolerance; by default that of the less precise dtype.

    Returns:
        The agreement. If an entry is NaN or infinite, `residual` is infinite and the arrays neither agree nor differ.

    Raises:
        ValueError: if the shapes differ.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        raise ValueError(f"arrays to compare must have one shape; got {a.shape} and {b.shape}")
    if tol is None:
        floats = [v.dtype if jnp.issubdtype(v.dtype, jnp.floating) else np.dtype(float) for v in (a, b)]
        tol = max(tolerance(d) for d in floats)
    wide = np.longdouble if np.longdouble in {a.dtype.type, b.dtype.type} else np.float64
    a, b = a.astype(wide), b.astype(wide)
    if a.size == 0:
        return Agreement(0.0, tol, 0.0, 0)
    scale = float(max(np.max(np.abs(a)), np.max(np.abs(b))))
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(a - b)
    if undefined := int(np.sum(~np.isfinite(gap))):
        return Agreement(float("inf"), tol, scale, a.size, undefined)
    gap = float(np.max(gap))
    return Agreement(gap / scale if scale else 0.0, tol, scale, a.size)


CLEAR_GAP = 10.0
"""A cut between singular values is clear if the smallest kept one is this much larger than the largest dropped one."""

DECISIVE_GAP = 1e5
"""A cut below which values of some units in the last place are rounding errors, and not small signals.

In float32 a signal of 2 units in the last place was seen behind a gap of 3e4.
"""


class RankDecision(NamedTuple):
    """The numerical rank of a factor and its certainty (arrays where the singular values are traced).

    Attributes:
        rank: number of singular values above the threshold.
        gap: ratio of the smallest kept to the largest dropped singular value (infinite if nothing was dropped).
        threshold: the value that separates them.
        fewest: smallest rank that the singular values allow.
        most: largest rank that the singular values allow.
    """

    rank: int
    gap: float
    threshold: float
    fewest: int
    most: int

    @property
    def certain(self) -> bool:
        """Whether one gap alone separates the singular values from rounding errors."""
        return self.fewest == self.most


class Rank(int):
    """A numerical rank: an integer that says how sure it is.

    Attributes:
        decision: how the rank was decided.
    """

    decision: RankDecision

    def __new__(cls, decision: RankDecision):
        """The integer of a decision."""
        rank = super().__new__(cls, decision.rank)
        rank.decision = decision
        return rank

    @property
    def certain(self) -> bool:
        """Whether one gap alone separates the singular values from rounding errors."""
        return self.decision.certain

    @property
    def interval(self) -> tuple[int, int]:
        """Smallest and largest rank that the singular values allow."""
        return self.decision.fewest, self.decision.most


def decide_rank(
    singular_values: jax.typing.ArrayLike,
    rows: int,
    columns: int,
    scale: float | Array = 0.0,
    *,
    eps: float | None = None,
    bound: int | None = None,
) -> RankDecision:
    r"""Rank from the singular values of a factor $\sqrt\Lambda J$ (never from eigenvalues of the Fisher matrix).

    The singular values of a factor resolve small values that are lost to rounding in the eigenvalues of its square.
    With $s = \max(s_1, \text{scale})$ and
    $t = \min(10 \max(\text{rows}, \text{columns})\, \text{eps}, \sqrt{\text{eps}})\, s$:

    - Values above the ceiling $\min(10^3 t, \sqrt{\text{eps}}\, s)$ are signal.
    - Values below the floor eps · s are noise, and so are those beyond `bound`.
    - The cut goes to the widest gap at or below the ceiling. Values below the floor count as the floor. No cut is made
      where every value is above t.
    - The rank is certain if this gap is at least 10 and no other gap rivals it. A rival is at least 10, and within a
      factor of 10 of the widest or between values above t.
    - What is dropped must be explained by rounding: values above the floor may be signal, or above max(rows, columns)
      times the floor where the gap is at least 10⁵.

    Args:
        singular_values: in descending order; may be traced.
        rows: rows of the factor.
        columns: columns of the factor.
        scale: size of the terms that cancelled when the factor was computed, if larger than the factor itself.
        eps: relative rounding error of the factor's entries; that of the dtype of the singular values where None.
        bound: largest rank possible, where theory gives one.

    Returns:
        Rank, gap, threshold and the interval of possible ranks.
    """
    traced = isinstance(singular_values, jax.core.Tracer) or isinstance(scale, jax.core.Tracer)
    xp: Any = jnp if traced else np
    s = xp.asarray(singular_values)
    count = s.size
    if not count:
        return RankDecision(0, float("inf"), 0.0, 0, 0)
    bound = count if bound is None else min(bound, count)
    eps = float(jnp.finfo(s.dtype).eps) if eps is None else eps
    size = xp.maximum(s[0], xp.asarray(scale, s.dtype))
    floor = xp.maximum(eps * size, s[bound] if bound < count else 0)
    floor = xp.where(floor > 0, floor, 1).astype(s.dtype)
    threshold = min(10 * max(rows, columns) * eps, eps**0.5) * size
    ceiling = xp.maximum(xp.minimum(1e3 * threshold, eps**0.5 * size), floor)
    ranks = xp.arange(count + 1)
    kept = xp.concatenate([xp.reshape(size, 1), s])  # of each rank the last value kept, and the first one dropped
    dropped = xp.concatenate([s, xp.zeros(1, s.dtype)])
    allowed = (dropped <= ceiling) & (ranks <= bound)

    def widths_above(least: Any) -> Any:
        return xp.where(allowed, xp.maximum(kept, least) / xp.maximum(dropped, least), 0)

    widths = widths_above(floor)
    widest = xp.where(allowed & (ranks == count) & (s[-1] > threshold), xp.inf, widths)
    rank = xp.argmax(widest)
    rivals = (widths >= CLEAR_GAP) & (
        (widest >= xp.max(widest) / CLEAR_GAP)
        | (widths_above(xp.maximum(threshold, floor)) >= CLEAR_GAP)
        | (ranks == rank)
    )
    clear = rivals[rank]
    fewest = xp.where(clear, xp.argmax(rivals), xp.minimum(xp.sum(s > ceiling), bound))
    most = xp.where(clear, count - xp.argmax(rivals[::-1]), xp.minimum(xp.sum(s > floor), bound))
    explained = xp.where(xp.max(widest) >= DECISIVE_GAP, max(rows, columns), 1) * floor
    most = xp.maximum(most, xp.minimum(xp.sum(s > explained), bound))
    low = dropped[rank]
    gap = xp.where((rank > 0) & (low > 0), kept[rank] / xp.where(low > 0, low, 1), xp.inf)
    fewest, most = xp.minimum(fewest, rank), xp.maximum(most, rank)
    found = (rank, gap, xp.where(s[0] > 0, xp.maximum(low, floor), 0), fewest, most)
    if not traced:
        return RankDecision(int(rank), float(gap), float(found[2]), int(fewest), int(most))
    return RankDecision(*found)


def effective_rank(singular_values: Float[Array, " k"]) -> Float[Array, ""]:
    """Exponential of the entropy of the normalized eigenvalues: how many directions carry the information."""
    p = jnp.square(singular_values)
    p = p / jnp.sum(p)
    return jnp.exp(-jnp.sum(jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1)), 0)))

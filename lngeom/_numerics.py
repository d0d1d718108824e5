"""The one tolerance policy: when two numbers agree, when they differ, and what rank a factor has."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

MARGIN = 1e3
"""Rounding errors allowed beyond one: sums over thousands of terms, a few factors deep, in the dtype at hand."""

WITNESS = 1e-3
"""Relative difference from which two results are said to differ; far above rounding, in any dtype but bfloat16."""


class ConvergenceError(RuntimeError):
    """Iterations that stopped before they reached their tolerance; the message says how far they came."""


class Agreement(NamedTuple):
    """How far two arrays are apart.

    Attributes:
        residual: max |a − b| divided by the larger of max |a| and max |b| (0 where both are zero).
        tolerance: residual up to which they agree.
        scale: the larger of max |a| and max |b|.
        count: number of entries compared.
        undefined: number of entries that are NaN or infinite in either array; they are neither equal nor different.
        rounding: how large a residual rounding alone may cause, where that is known; zero claims nothing.
    """

    residual: float
    tolerance: float
    scale: float
    count: int
    undefined: int = 0
    rounding: float = 0.0

    @property
    def witness(self) -> float:
        """Residual from which the two are said to differ: far above the tolerance, and above their own rounding."""
        return max(WITNESS, 1e3 * self.tolerance, 10 * self.rounding)

    @property
    def agrees(self) -> bool:
        """Whether at least one entry was compared, all were finite, and the residual is within the tolerance.

        Rounding hides agreements and hardly feigns them. Where it reaches the size of a witness, nothing agrees.
        """
        return self._defined and self.rounding < WITNESS and self.residual <= self.tolerance

    @property
    def differs(self) -> bool:
        """Whether all entries were finite, and differ by far more than rounding: a witness that they are not equal."""
        return self._defined and self.residual >= self.witness

    @property
    def lost_to_rounding(self) -> bool:
        """Whether rounding may exceed the tolerance, and may be all that the residual is."""
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
        The agreement; its `residual` is infinite where an entry is NaN or infinite, and it neither agrees nor differs.

    Raises:
        ValueError: if the shapes differ.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        raise ValueError(f"can compare only arrays of one shape; got {a.shape} and {b.shape}")
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


class RankDecision(NamedTuple):
    """The numerical rank of a factor, and how sure it is.

    Attributes:
        rank: number of singular values above the threshold.
        gap: ratio of the smallest kept to the largest dropped singular value (infinite if nothing was dropped).
        threshold: the value that separates them.
    """

    rank: int
    gap: float
    threshold: float


def decide_rank(singular_values: jax.typing.ArrayLike, rows: int, columns: int, scale: float = 0.0) -> RankDecision:
    r"""Rank from the singular values of a factor $\sqrt\Lambda J$ (never from eigenvalues of the Fisher matrix).

    The threshold is 10 · max(rows, columns) · eps · max(s_max, scale). The singular values of a factor see a null
    direction some ten decades down, where the eigenvalues of its square are noise. Values above it, by
    less than a thousand times and below sqrt(eps) · s_max, are doubtful: noise reaches there where single samples
    are badly conditioned (σ ≪ |a|). The cut goes to the widest gap above, among or below them.

    Args:
        singular_values: in descending order.
        rows: rows of the factor.
        columns: columns of the factor.
        scale: size of what cancelled when the factor was computed, if that is larger than the factor itself.

    Returns:
        Rank, gap and threshold.
    """
    s = np.asarray(singular_values)
    if s.size == 0 or not s[0] > 0:
        return RankDecision(0, float("inf"), 0.0)
    threshold = 10 * max(rows, columns) * float(jnp.finfo(s.dtype).eps) * max(float(s[0]), scale)
    clear = max(threshold, min(1e3 * threshold, float(jnp.finfo(s.dtype).eps) ** 0.5 * float(s[0])))

    def gap(rank: int) -> float:
        return float(s[rank - 1] / s[rank]) if 0 < rank < s.size and s[rank] > 0 else float("inf")

    kept = int(np.sum(s > threshold))
    rank = max(range(int(np.sum(s > clear)), kept + 1), key=gap)
    return RankDecision(rank, gap(rank), float(s[rank]) if rank < kept else threshold)

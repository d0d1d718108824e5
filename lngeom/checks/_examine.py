r"""One layer under one transformation: invariant, up to $\epsilon$, lost to rounding, or not.

The mathematics is read off in the widest dtype the layer follows, the range in the dtype asked for.

- *Up to ε.* With the data scaled by s, the deviation under a fixed transformation falls as $s^{-2}$, as
  $|1 - \sqrt{(1 + \epsilon/\sigma^2)/(1 + \epsilon/\delta^2\sigma^2)}|$ does. What saturates falls otherwise, and a
  constant added before the normalization as $s^{-1}$.
- *Lost to rounding.* Along the orbit from the identity to the transformation a deviation that is real grows
  smoothly, one that is rounding jumps: its mean square successive difference is twice its variance (von Neumann 1941),
  where that of a smooth curve is near zero.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from lngeom._numerics import agreement
from lngeom.checks._orbits import Data, Move, Orbit, Point, draw, orbit, walk
from lngeom.checks._report import Curve, Result, Verdict
from lngeom.checks._subject import Subject, computes_in_float64, layer_tolerance

DRAWS = 3
"""Members of a column's group that are tried."""

Output = Float[np.ndarray, "N *T H"]


def deviation(before: Output, after: Output) -> float:
    """Largest difference on the scale of the larger output; infinite where one is not finite."""
    return agreement(np.asarray(before), np.asarray(after), tol=0.0).residual


@dataclass(frozen=True)
class Law:
    r"""How $\epsilon$ shows: outputs $y_\infty/\sqrt{1 + \rho/s^2}$ for data scaled by s.

    Attributes:
        limit: outputs for large data.
        ratio: $\rho = \epsilon/\sigma^2$ of each output.
        moved: which outputs the transformation moves.
    """

    limit: Output
    ratio: Output
    moved: np.ndarray

    def predicts(self, magnitudes: tuple[float, ...]) -> tuple[float, ...]:
        """Deviations along the orbit."""
        before = self.limit / np.sqrt(1 + self.ratio)
        size = np.max(np.abs(before))
        result = []
        for magnitude in magnitudes:
            after = np.where(self.moved, self.limit / np.sqrt(1 + self.ratio / magnitude**2), before)
            result.append(float(np.max(np.abs(after - before)) / max(size, np.max(np.abs(after)))))
        return tuple(result)


class Examination:
    """One layer on one set of data, with what every transformation is compared with.

    Attributes:
        subject: the layer.
        data: W and X.
        dtype: in which ranges are measured.
        wide: the widest dtype the layer computes in, in which the mathematics is read off.
    """

    def __init__(self, subject: Subject, data: Data, dtype: jax.typing.DTypeLike):
        self.subject, self.data, self.dtype = subject, data, np.dtype(dtype)
        self.wide = np.dtype("float64" if computes_in_float64(subject, data) else "float32")
        self.base = {d: subject(*data, d) for d in {self.dtype, self.wide}}

    def under(self, move: Move, dtype: np.dtype, sign: int = 1) -> float:
        """Deviation from what is expected under a move, or from its negative."""
        expected = move.expected(sign * np.asarray(self.base[dtype], np.float64))
        moved = np.asarray(self.subject(*move.apply(self.data), dtype), np.float64)
        rows = slice(None) if move.rows is None else list(move.rows)
        return deviation(expected[rows], moved[rows])

    def examine(self, column: Any) -> Result:
        """Finds what the layer does under a column's transformations.

        Args:
            column: the column, or group of matrices.

        Returns:
            The result, without a counterexample.
        """
        result = Result(
            column.name, column.title, column.formula, Verdict.UNKNOWN, math.inf, layer_tolerance(self.dtype)
        )
        if not all(np.all(np.isfinite(base)) for base in self.base.values()):
            return replace(result, note="the outputs are not finite to begin with")
        try:
            draws = [draw(column, self.data, seed) for seed in range(DRAWS)]
            result = replace(result, tolerance=result.tolerance * max(t.condition for t in draws))
            return self._verdict(result, draws, orbit(draws[0]))
        except Exception as error:  # whatever a layer raises is something found
            return replace(result, note=f"{type(error).__name__}: {error}".splitlines()[0])

    def _verdict(self, result: Result, draws: list[Move], along: Orbit | None) -> Result:
        mild = max(self.under(t, self.dtype) for t in draws)
        verdict, note, law = self._mathematics(draws, along)
        result = replace(result, verdict=verdict, note=note, deviation=mild)
        if verdict in {Verdict.NOT, Verdict.FLIPS} or along is None:
            if verdict is Verdict.INVARIANT and mild > result.tolerance:
                return replace(result, verdict=Verdict.LOST)
            return result
        points = list(walk(along, self.data, self.dtype))
        curve = self._curve(points, self.dtype, along.scales)
        worst = max([mild, *curve.deviations])
        holds = _holds(curve, result.tolerance) if mild <= result.tolerance or law else None
        result = replace(result, curve=curve, deviation=worst, holds=holds)
        if law:
            result = replace(result, eps_ratio=float(law.ratio.max()))
            if not along.uniform:
                return replace(result, note="it holds for δσ ≫ √ε")
            curve = replace(curve, predicted=law.predicts(curve.magnitudes))
            return replace(result, curve=curve, note=_eps_note(curve, law, result))
        if verdict is Verdict.INVARIANT and worst > result.tolerance:
            return replace(result, verdict=Verdict.LOST, note=_rounding_note(curve, self.dtype))
        return result

    def _mathematics(self, draws: list[Move], along: Orbit | None) -> tuple[Verdict, str, Law | None]:
        """Verdict in exact arithmetic, as far as the wide dtype shows it, why, and the law of ε where it holds."""
        tolerance = layer_tolerance(self.wide) * max(t.condition for t in draws)
        mild = max(self.under(t, self.wide) for t in draws)
        clean = mild <= tolerance
        if clean and along and along.scales:
            points = list(walk(along, self.data, self.wide, step=4))
            clean = max(self._curve(points, self.wide, True).deviations) <= tolerance
        if clean:
            return Verdict.INVARIANT, "", None
        if all(self.under(t, self.wide, sign=-1) <= tolerance for t in draws):
            return Verdict.FLIPS, "g → −g repairs it", None
        note = ""
        if along and along.scales:
            law, note = self._epsilon(along)
            if law:
                return Verdict.UP_TO_EPS, "", law
        if mild <= tolerance:
            return Verdict.INVARIANT, note, None
        if along and self._is_rounding(along):
            return Verdict.LOST, "the deviation jumps along the orbit as rounding does", None
        return Verdict.NOT, note, None

    def _curve(self, points: list[Point], dtype: np.dtype, scales: bool) -> Curve:
        found = [deviation(self.base[dtype], self.subject(*p.data, dtype)) for p in points]
        return Curve(tuple(p.magnitude for p in points), tuple(found), tuple(p.condition for p in points), scales)

    def _epsilon(self, along: Orbit) -> tuple[Law | None, str]:
        """The law of ε, if the deviation under a fixed transformation falls as the square of the data's size."""
        acts = along.transformation
        scales = [float(np.any(np.asarray(a.scale) != 1)) for a in (acts.weights, acts.inputs)]
        moved = along.at(3.0).apply(self.data)

        def scaled(data: Data, k: int) -> Output:
            grown = Data(*(v * 2.0 ** (k * s) for v, s in zip(data, scales, strict=True)))
            return self.subject(*grown, self.wide)

        top, floor = (24, 1e3 * float(np.finfo(self.wide).eps)) if self.wide == np.float64 else (12, 1e-4)
        if deviation(scaled(self.data, top), scaled(moved, top)) > 1e-3:
            return None, ""
        sizes, deviations = [], []
        for k in range(top, -31, -1):
            found = deviation(scaled(self.data, k), scaled(moved, k))
            if found > 0.05:
                break
            if found > floor:
                sizes.append(k)
                deviations.append(found)
        ratios = np.divide(deviations[1:], deviations[:-1])
        if len(ratios) >= 2 and np.all(np.abs(ratios / 2 - 1) < 0.2):
            return None, "what is added before the normalization (a bias?) does not scale with the data"
        if len(ratios) < 2 or not np.all(np.abs(ratios / 4 - 1) < 0.2):
            return None, ""
        k = sizes[len(sizes) // 2]
        limit = scaled(self.data, top)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = (np.square(limit / scaled(self.data, k)) - 1) * 4.0**k
        ratio = np.where(np.abs(limit) > 1e-3 * np.max(np.abs(limit)), np.maximum(ratio, 0), 0)
        changed = np.abs(self.subject(*moved, self.wide) - self.base[self.wide]) > 0
        return Law(limit, ratio, changed), ""

    def _is_rounding(self, along: Orbit) -> bool:
        """Whether outputs jump along the orbit from the identity to the draw, rather than move smoothly."""
        steps = np.linspace(0, 1, 17)
        places = along.size**steps if along.scales else along.size * steps
        values = np.stack([self.subject(*along.at(p).apply(self.data), self.wide) for p in places]).astype(np.float64)
        spread = np.sum(np.square(values - values.mean(0)))
        return bool(np.sum(np.square(np.diff(values, axis=0))) > spread)


def _holds(curve: Curve, tolerance: float) -> tuple[float, float] | None:
    """The range of magnitudes around the identity over which deviations stay within tolerance."""
    start = int(np.argmin(np.abs(np.log(curve.magnitudes)))) if curve.scales else 0
    within = np.asarray(curve.deviations) <= tolerance
    if not curve.magnitudes or not within[start]:
        return None
    low, high = start, start
    while low > 0 and within[low - 1]:
        low -= 1
    while high < len(within) - 1 and within[high + 1]:
        high += 1
    return curve.magnitudes[low], curve.magnitudes[high]


def _first(curve: Curve, when: Callable[[float, float], bool]) -> float | None:
    found = [m for m, d in zip(curve.magnitudes, curve.deviations, strict=True) if when(m, d)]
    return min(found, key=lambda m: abs(math.log(m))) if found else None


def _eps_note(curve: Curve, law: Law, result: Result) -> str:
    small = [abs(p - d) for m, d, p in zip(curve.magnitudes, curve.deviations, curve.predicted, strict=True) if m < 1]
    fit = "as measured" if max(small) < 0.02 else f"up to {max(small):.1g} from what is measured"
    note = (
        f"ε/σ² = {law.ratio.max():.1e}; |1 − √((1 + ε/σ²)/(1 + ε/δ²σ²))| predicts the deviation for δ < 1 {fit}, "
        "so it holds for δσ ≫ √ε"
    )
    lost = _first(curve, lambda m, d: m > 1 and d > max(result.tolerance, 2 * law.predicts((m,))[0]))
    return note + (f"; squares overflow from δ = {lost:.0e}" if lost else "")


def _rounding_note(curve: Curve, dtype: np.dtype) -> str:
    tolerance = layer_tolerance(dtype)
    if curve.scales:
        large = _first(curve, lambda m, d: m > 1 and d > tolerance)
        small = _first(curve, lambda m, d: m < 1 and d > tolerance)
        notes = [f"squares overflow from δ = {large:.0e}"] if large else []
        notes += [f"squares underflow from δ = {small:.0e}"] if small else []
        return "; ".join(notes)
    unit = float(jnp.finfo(dtype).eps) / 2
    points = zip(curve.conditions, curve.deviations, strict=True)
    seen = [(math.log(k), math.log(d)) for k, d in points if 20 * unit < d < 0.3]
    if len(seen) < 3:
        return ""
    slope = np.polyfit([k for k, _ in seen], [d for _, d in seen], 1)[0]
    if slope > 1.5:
        return "the deviation grows as κ²u, κ = offset/spread: the variance is taken as E[a²] − E[a]²"
    return "the deviation grows as κu, κ = offset/spread: the mean is rounded once"

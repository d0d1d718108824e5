r"""One layer under one transformation: invariant, up to $\epsilon$, lost to rounding, or not.

The verdict uses the widest dtype in which the layer computes. The range uses the dtype of the report. Outputs that are
not finite in that dtype are no evidence, and their transformations are left out.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lngeom.checks._epsilon import Law, find_law
from lngeom.checks._orbits import Data, Move, Orbit, Point, draw, orbit, walk
from lngeom.checks._rounding import is_rounding
from lngeom.checks.findings import Curve, Result, Verdict
from lngeom.checks.subject import Output, Subject, computes_in_float64, deviation, is_elementwise, layer_tolerance

DRAWS = 3
"""Members of a column's group that are tried."""

ONE_PASS = 64.0
"""Deviation in units of κu above which a mean that is rounded does not explain it: E[a²] − E[a]² loses κ²u."""

ORDINARY = 10
"""Octaves of scale, up and down, within which no power of ordinary data overflows or underflows."""

NOT_FINITE = "outputs are not finite {when}: that is no evidence; try another --seed (seed=), or look at the layer"


class Examination:
    """One layer on one set of data, with its outputs before any transformation.

    Attributes:
        subject: the layer.
        data: W and X.
        dtype: dtype for measured ranges.
        wide: widest dtype in which the layer computes, for verdicts.
    """

    def __init__(self, subject: Subject, data: Data, dtype: jax.typing.DTypeLike):
        self.subject, self.data, self.dtype = subject, data, np.dtype(dtype)
        self.wide = np.dtype("float64" if computes_in_float64(subject, data) else "float32")
        self.base = {d: subject(*data, d) for d in {self.dtype, self.wide}}

    def under(self, move: Move, dtype: np.dtype, sign: int = 1) -> float:
        """Deviation from the expected outputs under a move, or from their negative."""
        expected = move.expected(sign * np.asarray(self.base[dtype], np.float64))
        moved = np.asarray(self.subject(*move.apply(self.data), dtype), np.float64)
        rows = slice(None) if move.rows is None else list(move.rows)
        return deviation(expected[rows], moved[rows])

    def examine(self, column: Any) -> Result:
        """Finds the layer's behaviour under a column's transformations.

        Args:
            column: the column, or group of matrices.

        Returns:
            The result, without a counterexample.
        """
        result = Result(
            column.name, column.title, column.formula, Verdict.UNKNOWN, math.inf, layer_tolerance(self.dtype)
        )
        if not all(np.all(np.isfinite(base)) for base in self.base.values()):
            return replace(result, note=NOT_FINITE.format(when="to begin with"))
        try:
            draws = [draw(column, self.data, seed) for seed in range(DRAWS)]
            result = replace(result, tolerance=result.tolerance * max(t.condition for t in draws))
            finite = [t for t in draws if math.isfinite(self.under(t, self.wide))]
            if not finite:
                return replace(result, note=NOT_FINITE.format(when="after each of the transformations tried"))
            return self._verdict(result, finite, orbit(draws[0]))
        except Exception as error:  # any error of a layer is a result
            return replace(result, note=f"{type(error).__name__}: {error}".splitlines()[0])

    def _verdict(self, result: Result, draws: list[Move], along: Orbit | None) -> Result:
        mild = max(self.under(t, self.dtype) for t in draws)
        verdict, note, law = self._mathematics(draws, along)
        result = replace(result, verdict=verdict, note=note, deviation=mild)
        hidden = verdict is Verdict.NOT and mild <= result.tolerance  # it shows further out on the orbit
        if (verdict in {Verdict.NOT, Verdict.FLIPS} and not hidden) or along is None:
            if verdict is Verdict.INVARIANT and mild > result.tolerance:
                return replace(result, verdict=Verdict.LOST)
            return result
        points = list(walk(along, self.data, self.dtype))
        curve = self._curve(points, self.dtype, along.scales)
        worst = max([mild, *curve.deviations])
        holds = _holds(curve, result.tolerance) if mild <= result.tolerance or law else None
        result = replace(result, curve=curve, deviation=worst, holds=holds)
        if law:
            result = replace(result, eps_ratio=law.ratio, eps_power=law.power)
            curve = replace(curve, predicted=law.predicts(curve.magnitudes) if along.uniform else ())
            return replace(result, curve=curve, note=_eps_note(curve, law, result))
        if verdict is Verdict.INVARIANT and worst > result.tolerance:
            return replace(result, verdict=Verdict.LOST, note=_rounding_note(curve, self.dtype))
        return result

    def _mathematics(self, draws: list[Move], along: Orbit | None) -> tuple[Verdict, str, Law | None]:
        """Verdict in exact arithmetic, as far as the wide dtype shows it, why, and the law of ε where it holds."""
        tolerance = layer_tolerance(self.wide) * max(t.condition for t in draws)
        mild = max(self.under(t, self.wide) for t in draws)
        far: list[tuple[float, float]] = []
        if mild <= tolerance and along and along.scales:
            points = list(walk(along, self.data, self.wide, step=4))
            curve = self._curve(points, self.wide, True)
            far = [(m, d) for m, d in zip(curve.magnitudes, curve.deviations, strict=True) if d > tolerance]
        if mild <= tolerance and not far:
            return Verdict.INVARIANT, "", None
        if all(self.under(t, self.wide, sign=-1) <= tolerance for t in draws):
            return Verdict.FLIPS, "g → −g repairs it", None
        note = ""
        if along and along.scales:
            law, note = self._epsilon(along)
            if law:
                return Verdict.UP_TO_EPS, "", law
        if mild <= tolerance:
            beyond = all(abs(math.log2(m)) > ORDINARY or math.isinf(d) for m, d in far)
            return (Verdict.INVARIANT, "", None) if beyond and not note else (Verdict.NOT, note, None)
        if along and self._is_rounding(along):
            return Verdict.LOST, "the deviation jumps along the orbit as rounding does", None
        return Verdict.NOT, note, None

    def _curve(self, points: list[Point], dtype: np.dtype, scales: bool) -> Curve:
        found = [deviation(self.base[dtype], self.subject(*p.data, dtype)) for p in points]
        return Curve(tuple(p.magnitude for p in points), tuple(found), tuple(p.condition for p in points), scales)

    def _epsilon(self, along: Orbit) -> tuple[Law | None, str]:
        """The law of ε in how the deviation under a fixed transformation depends on the data's size."""
        acts = along.transformation
        scales = [float(np.any(np.asarray(a.scale) != 1)) for a in (acts.weights, acts.inputs)]

        def scaled(data: Data, k: float) -> Data:
            return Data(*(v * 2.0 ** (k * s) for v, s in zip(data, scales, strict=True)))

        def path(data: Data) -> Callable[[float], Output]:
            return functools.cache(lambda k: np.asarray(self.subject(*scaled(data, k), self.wide), np.float64))

        def elementwise(k: float) -> bool:
            return is_elementwise(self.subject, scaled(self.data, k), self.wide)

        moved = along.at(3.0).apply(self.data)
        return find_law(path(self.data), path(moved), self.wide == np.float64, elementwise)

    def _is_rounding(self, along: Orbit) -> bool:
        """Whether outputs change along the orbit, from the identity to the draw, as rounding makes them."""

        def path(t: float) -> Output:
            return self.subject(
                *along.at(along.size**t if along.scales else along.size * t).apply(self.data), self.wide
            )

        return is_rounding(path, 2.0**-40 if self.wide == np.float64 else 2.0**-20)


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
    """The law, how well it predicts what is measured, and where the invariance holds."""
    q = law.power
    over = "σ" if math.isinf(q) or q == 1 else f"σ^{q:g}" if q != 2 else "σ²"
    notes = [f"ε/{over} = {law.ratio:.1e}"] if law.ratio is not None else []
    notes.append(law.place)
    pairs = list(zip(curve.magnitudes, curve.deviations, curve.predicted, strict=True)) if curve.predicted else []
    small = [abs(p - d) for m, d, p in pairs if m < 1]
    if small:
        formula = (
            "|1 − √((1 + ε/σ²)/(1 + ε/δ²σ²))|" if q == 2 and law.damping and law.damping.degree == 1 else "the law"
        )
        fit = "as measured" if max(small) < 0.02 else f"up to {max(small):.1g} from what is measured"
        notes.append(f"{formula} predicts the deviation for δ < 1 {fit}")
    root = "ε" if math.isinf(q) or q == 1 else "√ε" if q == 2 else f"ε^(1/{q:g})"
    notes.append(f"so it holds for δσ {'>' if math.isinf(q) else '≫'} {root}")
    if small:
        predicted = dict(zip(curve.magnitudes, curve.predicted, strict=True))
        lost = _first(curve, lambda m, d: m > 1 and d > max(result.tolerance, 2 * predicted[m]))
        notes += [f"squares overflow from δ = {lost:.0e}"] if lost else []
    return "; ".join(notes)


def _rounding_note(curve: Curve, dtype: np.dtype) -> str:
    tolerance = layer_tolerance(dtype)
    if curve.scales:
        inside = _first(curve, lambda m, d: abs(math.log2(m)) <= ORDINARY and math.isinf(d))
        if inside:
            return f"the outputs are not finite from δ = {inside:.0e}, which is no evidence"
        large = _first(curve, lambda m, d: m > 1 and d > tolerance)
        small = _first(curve, lambda m, d: m < 1 and d > tolerance)
        notes = [f"squares overflow from δ = {large:.0e}"] if large else []
        notes += [f"squares underflow from δ = {small:.0e}"] if small else []
        return "; ".join(notes)
    unit = float(jnp.finfo(dtype).eps) / 2
    points = zip(curve.conditions, curve.deviations, strict=True)
    seen = [(k, d) for k, d in points if 20 * unit < d < 0.3]
    squared = [k for k, d in seen if d > ONE_PASS * k * unit]
    if len(squared) >= 2:
        return "the deviation grows as κ²u, κ = offset/spread: the variance is taken as E[a²] − E[a]²"
    if len(seen) < 3 or squared:
        return ""
    slope = np.polyfit([math.log(k) for k, _ in seen], [math.log(d) for _, d in seen], 1)[0]
    return "the deviation grows as κu, κ = offset/spread: the mean is rounded once" if slope < 1.5 else ""

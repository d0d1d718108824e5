r"""Whether a layer's outputs are those of a row of the table, up to a gain and a bias for each unit.

Invariances do not depend on a constant factor or on the size of $\epsilon$. The outputs do. The comparison has three
steps:

- On data so large that no $\epsilon$ matters, $g_i\,n_i + b_i$ is fitted to the outputs, where n are the outputs of the
  row. The fit is tested on other data.
- A gain is a constant of the layer. If it changes with the number of samples, units or inputs, the layer has another
  denominator than the row, such as a variance with ddof = 1.
- With this gain and bias, a difference that remains on ordinary data is due to $\epsilon$.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from lngeom._core.programs import QUICKLY
from lngeom.checks._orbits import Data, example
from lngeom.checks.findings import Finding, Result, Verdict
from lngeom.checks.rows import Row
from lngeom.checks.subject import Output, Subject, as_elsewhere, deviation
from lngeom.methods.page import named
from lngeom.methods.table import in_words

ALIKE = 1e-3
"""Largest difference, relative to the outputs, at which outputs count as those of the row."""

LARGE = 5e-3
"""Change of the outputs on ordinary data from which an ε counts as a difference, as of ε ≥ 0.01 σ² in a root."""


DDOF, FACTOR = "ddof = 1", "factor"
"""Names of findings: a variance that divides by one less than its number of values, and a factor of unknown cause."""


@dataclass(frozen=True)
class Comparison:
    """A layer compared with a row.

    Attributes:
        differences: transformations under which layer and row differ, with the cell of the row.
        sizes: differences of the outputs, where invariances agree.
        note: why outputs could not be compared; empty where they were.
        removed: titles of the transformations that agree with the row only after gain and bias are removed.
        matched: whether outputs are those of the row, up to gain, bias, `sizes` and an ε.
        traits: what else the outputs show, in a few words each, such as "ddof = 1".
    """

    differences: tuple[tuple[str, str], ...] = ()
    sizes: tuple[Finding, ...] = ()
    note: str = ""
    removed: tuple[str, ...] = ()
    matched: bool = False
    traits: tuple[str, ...] = ()


class Fit(NamedTuple):
    """Outputs as g·n + b for each unit.

    Attributes:
        gain: g; NaN for a unit whose n does not vary.
        bias: b.
        gap: largest difference, on the scale of the outputs.
    """

    gain: Float[np.ndarray, " K"]
    bias: Float[np.ndarray, " K"]
    gap: float

    def off(self, outputs: Output, reference: Output) -> float:
        """Relative difference between outputs and the fit g·n + b."""
        return deviation(outputs, np.nan_to_num(self.gain) * reference + self.bias)

    @property
    def common(self) -> float | None:
        """The gain, where it is the same for every unit."""
        known = self.gain[np.isfinite(self.gain)]
        return float(known.mean()) if _spread(known) <= 1e-4 else None

    @property
    def plain(self) -> bool:
        """Whether there is no gain that differs between units, and no bias."""
        return self.common is not None and self.common > 0 and bool(np.max(np.abs(self.bias)) <= 1e-6)

    def traits(self) -> Iterator[str]:
        """Whether units have gains and biases of their own."""
        if self.common is None:
            yield "a gain for each unit"
        if np.max(np.abs(self.bias)) > 1e-6 * max(1.0, float(np.nanmax(np.abs(self.gain), initial=0.0))):
            yield "a bias"

    def undo(self, subject: Subject) -> Subject | None:
        """The layer without gain and bias; None where they are unknown, or there are none."""
        if self.plain or self.gap > ALIKE or not np.all(np.abs(self.gain) > 1e-6 * np.max(np.abs(self.gain))):
            return None

        def function(*arrays: np.ndarray) -> np.ndarray:
            outputs = np.asarray(subject.function(*arrays))
            return ((outputs.astype(np.float64) - self.bias) / self.gain).astype(outputs.dtype)

        return replace(subject, function=function, units=len(self.gain), rebuild=None, after_call=None)


def _spread(values: np.ndarray) -> float:
    return float(np.ptp(values) / np.max(np.abs(values))) if values.size and np.any(values) else math.inf


def fit(outputs: Output, reference: Output) -> Fit:
    """Gain and bias of each unit by least squares.

    Args:
        outputs: of the layer.
        reference: of the row, of the same shape.

    Returns:
        The fit.
    """
    y, n = (v.reshape(-1, v.shape[-1]).astype(np.float64) for v in (outputs, reference))
    centred = n - n.mean(0)
    variance = np.mean(centred**2, 0)
    varies = variance > 1e-12 * max(float(variance.max(initial=0.0)), 1e-300)
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.where(varies, np.mean(centred * y, 0) / variance, np.nan)
    bias = y.mean(0) - np.where(varies, gain, 0) * n.mean(0)
    found = Fit(gain, bias, 0.0)
    return found._replace(gap=found.off(outputs, reference))


class _Beside:
    """A layer and a row, on data scaled as far as the row's invariance allows."""

    def __init__(self, subject: Subject, like: str, row: Row, wide: np.dtype):
        self.subject, self.wide = subject, wide
        self.make = make = named(like).make
        self.reference, self.groups = jax.jit(lambda W, X: make(W, X)(W, X), compiler_options=QUICKLY), row.groups
        scaled = [row.cells.get(name) == "I" for name in ("weight_matrix_rescaling", "dataset_rescaling")]
        octaves = (40 if wide == np.float64 else 10) / max(sum(scaled), 1)
        self.factors = tuple(2.0 ** (octaves * s) for s in scaled)

    @property
    def scales(self) -> bool:
        """Whether the row is invariant under a scale of the weights or of the data."""
        return max(self.factors) > 1

    def pools_units(self, data: Data) -> bool:
        """Whether the row's statistics are over units."""
        with as_elsewhere():
            return self.make(*(jnp.asarray(v, jnp.float64) for v in data)).couples_units

    def fixed(self, data: Data) -> int | None:
        """H where the row's statistics are over units and the layer has one number of them; else None."""
        units = len(data.weights)
        return units if self.subject.with_units(2 * units).units == units and self.pools_units(data) else None

    def both(self, subject: Subject, data: Data, *, large: bool) -> tuple[Output, Output]:
        """Outputs of the layer and of the row."""
        factors = self.factors if large else (1.0, 1.0)
        moved = Data(*(f * v for f, v in zip(factors, data, strict=True)))
        with as_elsewhere():
            weights, inputs = (jnp.asarray(v, jnp.float64) for v in moved)
            reference = np.asarray(self.reference(weights, inputs))
        outputs = np.asarray(subject(*moved, self.wide), np.float64)
        if outputs.shape != reference.shape:
            raise ValueError(f"they have shape {list(outputs.shape)}, those of the row {list(reference.shape)}")
        if not (np.all(np.isfinite(outputs)) and np.all(np.isfinite(reference))):
            raise ValueError("they are not all finite, which is no evidence")
        return outputs, reference

    def fresh(self, data: Data) -> Data:
        """Other data of the same size."""
        return example(self.subject, samples=len(data.inputs), features=data.inputs.shape[-1], grid=8, seed=1)

    def others(self, data: Data) -> Iterator[tuple[str, int, int, Subject, Data]]:
        """The layer on data with more samples, units or inputs, with the numbers before and after."""
        units, features, samples = len(data.weights), data.inputs.shape[-1], len(data.inputs)
        options = {"samples": samples, "features": features, "grid": 8, "seed": 1}
        larger = self.subject.with_units(2 * units)
        if larger.units == 2 * units:
            yield "H", units, 2 * units, larger, example(larger, **options)
        yield (
            "N",
            samples,
            2 * samples + 1,
            self.subject,
            example(self.subject, **options | {"samples": 2 * samples + 1}),
        )
        if self.subject.takes_weights and not self.subject.square:
            more = options | {"features": 2 * features - 1}
            yield "D", features, 2 * features - 1, self.subject, example(self.subject, **more)


def compare(
    subject: Subject,
    data: Data,
    like: str,
    row: Row,
    wide: np.dtype,
    results: Sequence[Result],
    checked: Callable[[Subject], Sequence[Result]],
) -> Comparison:
    """Compares invariances and outputs with those of a row.

    Args:
        subject: the layer.
        data: W and X.
        like: name of the row.
        row: row of the table.
        wide: widest dtype in which the layer computes.
        results: results for the layer.
        checked: results for the layer without gain and bias, where the layer's own differ from the row.

    Returns:
        The differences, or the reason why a comparison was impossible.
    """

    def others(results: Sequence[Result]) -> list[Result]:
        return [r for r in results if r.name in row.cells and not r.as_expected(row.cells[r.name])]

    def named(results: Sequence[Result]) -> tuple[tuple[str, str], ...]:
        return tuple((r.name, row.cells[r.name]) for r in results)

    differing = others(results)
    beside, like = _Beside(subject, like, row, wide), in_words(like)
    try:
        found = fit(*beside.both(subject, data, large=True))
        found = found._replace(gap=max(found.gap, found.off(*beside.both(subject, beside.fresh(data), large=True))))
        ordinary = beside.both(subject, data, large=False)
    except Exception as error:
        return Comparison(named(differing), note=f"could not be compared: {error}".splitlines()[0])
    undone = found.undo(subject) if differing else None
    bare = {r.name for r in others(checked(undone))} if undone else {r.name for r in differing}
    removed = tuple(r.title for r in differing if r.name not in bare)
    differing = [r for r in differing if r.name in bare]
    if differing:
        return Comparison(named(differing), note="not compared, as the invariances differ", removed=removed)
    if found.gap > ALIKE:
        return Comparison(
            note=f"could not be compared: no gain and bias maps those of {like} to them (off by {found.gap:.1g}): "
            "another layer with the same invariances, or one of few digits"
        )
    if not beside.scales:
        return Comparison(removed=removed, matched=True, traits=tuple(found.traits()))
    differences, note = _counts(beside, data, like, found)
    differences += list(_epsilon(found, *ordinary, like, results))
    traits = [f.name for f in differences if f.name != FACTOR] or list(_times(found, beside.fixed(data)))
    return Comparison((), tuple(differences), note, removed, True, (*traits, *found.traits()))


def _epsilon(found: Fit, outputs: Output, reference: Output, like: str, results: Sequence[Result]) -> Iterator[Finding]:
    gap = found.off(outputs, reference)
    if gap <= LARGE:
        return
    laws = [r for r in results if r.verdict is Verdict.UP_TO_EPS and r.eps_ratio is not None]
    law = max(laws, key=lambda r: r.eps_ratio or 0.0, default=None)
    size = f" ({law.note.split(';')[0]})" if law else ""
    yield Finding(
        "large ε",
        f"on ordinary data outputs are up to {gap:.1%} from those of {like}, to which they tend on large data: "
        f"a large ε{size}",
    )


def _counts(beside: _Beside, data: Data, like: str, found: Fit) -> tuple[list[Finding], str]:
    """Differences of the gain between data of other sizes, and open questions.

    A layer with a fixed number of units is suspected if its common gain is that of ddof = 1. If its gains differ
    between units, no conclusion is possible.
    """
    positions = data.inputs.shape[1] if data.inputs.ndim == 3 else 1
    differences, seen = [], set()
    for what, before, after, subject, other in beside.others(data):
        try:
            again = fit(*beside.both(subject, other, large=True))
        except Exception:  # a layer may refuse a size
            continue
        if again.gap > ALIKE:
            continue
        seen.add(what)
        ratio = _ratio(found, again)
        if ratio is None or abs(ratio - 1) <= ALIKE:
            continue
        counts = {(before * k, after * k) for k in (1, positions, 1 / beside.groups, positions / beside.groups)}
        name, cause = _cause(what, ratio, counts)
        differences.append(Finding(name, _said(like, what, before, after, found, again, ratio, cause)))
    if "H" in seen or not beside.pools_units(data):
        return differences, ""
    if found.common is None:
        return differences, "a factor (as of ddof = 1) cannot be told from a gain if the number of units is fixed"
    for count in {len(data.weights), len(data.weights) // beside.groups} - {0, 1}:
        if abs(found.common**2 - (1 - 1 / count)) <= 1e-4:
            said = f"outputs are {found.common:.4g} = √(1 − 1/{count}) times those of {like}"
            differences.append(Finding(DDOF, f"{said}: a variance that divides by {count} − 1 (ddof = 1)?"))
    return differences, ""


def _times(found: Fit, fixed: int | None) -> Iterator[str]:
    """A factor that all outputs have in common, and what it may come from.

    Args:
        found: gain and bias.
        fixed: H where the row's statistics are over units and the layer has one number of them; else None.
    """
    common = found.common
    if common is None or abs(common - 1) <= 1e-3:
        return
    cause = ""
    if fixed:
        of_sum = abs(abs(common) * math.sqrt(fixed) - 1) <= 1e-3
        cause = f" = 1/√{fixed}, a gain or a sum in place of a mean" if of_sum else ", a gain or another constant"
    yield f"outputs {common:.4g} times as large{cause}"


def _ratio(found: Fit, again: Fit) -> float | None:
    """Factor of the gain; None if it differs between units."""
    if found.gain.shape == again.gain.shape:
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = again.gain / found.gain
        ratios = ratios[np.isfinite(ratios)]
        return float(ratios.mean()) if _spread(ratios) <= ALIKE else None
    return again.common / found.common if found.common and again.common else None


def _cause(what: str, ratio: float, counts: set[tuple[float, float]]) -> tuple[str, str]:
    """Name and description of what multiplies the outputs."""
    for m, n in counts:
        if min(m, n) > 1 and abs(ratio**2 / ((1 - 1 / n) / (1 - 1 / m)) - 1) <= 1e-4:
            return DDOF, f"a variance divides by one less than its number of values (ddof = 1), which grows with {what}"
    m, n = next(iter(counts))
    power = math.log(ratio) / math.log(n / m) if ratio > 0 else math.nan
    if any(abs(power - p) <= 1e-2 for p in (-1, -0.5, 0.5, 1)):
        return (
            "a sum in place of a mean",
            f"it grows as {what}^{round(2 * power) / 2:g}, as with a sum instead of a mean",
        )
    return FACTOR, "no gain does that"


def _said(like: str, what: str, before: int, after: int, found: Fit, again: Fit, ratio: float, cause: str) -> str:
    if found.common is not None and again.common is not None:
        at = f"{found.common:.4g} times those of {like} for {what} = {before} and {again.common:.4g} times for {after}"
        return f"outputs are {at}: {cause}"
    return f"from {what} = {before} to {after}, outputs grow {ratio:.4g} times as much as those of {like}: {cause}"

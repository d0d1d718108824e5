"""Results of a check, as data and as text."""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

SEE = "see the findings"
"""Note of a result that a finding made impossible."""


class Verdict(enum.Enum):
    """Behaviour of a layer under a transformation."""

    INVARIANT = "invariant"
    FLIPS = "flips the sign"
    UP_TO_EPS = "invariant up to ε"
    LOST = "invariant, lost to rounding"
    NOT = "not invariant"
    UNKNOWN = "could not be checked"


@dataclass(frozen=True)
class Curve:
    r"""Deviation along an orbit.

    Attributes:
        magnitudes: factors δ; or largest shifts, in standard deviations of what is shifted.
        deviations: largest change of the output on the scale of the output; infinite where it is not finite.
        conditions: κ, the largest summed input over their least spread.
        scales: whether the orbit scales; otherwise it shifts.
        predicted: what the law of ε predicts; empty where ε plays no part.
    """

    magnitudes: tuple[float, ...]
    deviations: tuple[float, ...]
    conditions: tuple[float, ...]
    scales: bool
    predicted: tuple[float, ...] = ()


@dataclass(frozen=True)
class Counterexample:
    """Small weights and inputs, before and after a transformation, on which the outputs differ.

    Attributes:
        weights: W before.
        inputs: X before.
        moved_weights: W after.
        moved_inputs: X after.
        before: the layer's outputs before.
        after: its outputs after.
        deviation: their difference on the scale of the larger.
        code: Python which fails where the layer does, to paste into a test.
    """

    weights: Float[np.ndarray, "H D"]
    inputs: Float[np.ndarray, "N *T D"]
    moved_weights: Float[np.ndarray, "H D"]
    moved_inputs: Float[np.ndarray, "N *T D"]
    before: Float[np.ndarray, "N *T H"]
    after: Float[np.ndarray, "N *T H"]
    deviation: float
    code: str


@dataclass(frozen=True)
class Result:
    r"""One transformation.

    Attributes:
        name: of the column, as in `lngeom.transformations`.
        title: its heading.
        formula: its action, LaTeX.
        verdict: the verdict.
        deviation: largest deviation over draws and orbit, in the dtype of the report.
        tolerance: largest deviation at which the output counts as unchanged.
        holds: range of magnitudes within tolerance; None where the invariance fails or has no orbit.
        curve: deviation along the orbit, where the layer is invariant in exact arithmetic.
        eps_ratio: largest $\epsilon/\sigma^q$ by the law ($\epsilon/\sigma$ for a clamp), where the layer is invariant
            up to ε; None where only the decay of the change is known.
        eps_power: q, the power with which the change decays as the data grow: 1 for ε added to the scale, 2 for ε in
            the root, infinite for a clamp.
        note: the reason, in words.
        counterexample: where the layer is not invariant, or the invariance is lost to rounding.
    """

    name: str
    title: str
    formula: str
    verdict: Verdict
    deviation: float
    tolerance: float
    holds: tuple[float, float] | None = None
    curve: Curve | None = None
    eps_ratio: float | None = None
    eps_power: float | None = None
    note: str = ""
    counterexample: Counterexample | None = None

    def as_expected(self, expected: str) -> bool:
        """Whether this agrees with a cell "I", "no" or "±" of a table.

        Invariance up to ε agrees with "no", since it is not exact. It also agrees with "I", since the table assumes
        ε = 0. An invariance lost to rounding agrees with "I" if it holds to tolerance for moderate transformations.
        """
        allowed = {
            "I": {Verdict.INVARIANT, Verdict.UP_TO_EPS},
            "no": {Verdict.NOT, Verdict.FLIPS, Verdict.UP_TO_EPS},
            "±": {Verdict.FLIPS},
        }[expected]
        held = self.verdict is Verdict.LOST and self.holds is not None and expected == "I"
        return self.verdict in allowed or held


@dataclass(frozen=True)
class Finding:
    """A defect other than a missing invariance, such as an error, NaN, a wrong shape, or writing to the input.

    Attributes:
        name: kind of defect.
        message: description.
        code: Python that shows it; empty where none is needed.
    """

    name: str
    message: str
    code: str = ""


@dataclass(frozen=True)
class Report:
    """The report of `check_invariances`.

    Attributes:
        layer: name of the layer.
        dtype: dtype of the computation.
        results: one for each transformation.
        findings: other defects.
        like: name of the row for comparison.
        differences: transformations that differ from that row, with the row's cells.
        output_differences: differences of the outputs from those of that row, up to a gain and a bias for each unit.
        output_note: why the outputs could not be compared; empty where they were.
        affine: titles of the transformations that agree with the row only after gain and bias are removed.
    """

    layer: str
    dtype: str
    results: tuple[Result, ...]
    findings: tuple[Finding, ...] = ()
    like: str | None = None
    differences: tuple[tuple[str, str], ...] = ()
    output_differences: tuple[Finding, ...] = ()
    output_note: str = ""
    affine: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether invariances or outputs differ from those of the row."""
        return bool(self.differences or self.output_differences)

    @property
    def unchecked(self) -> str:
        """Why nothing could be checked; empty where something was."""
        if any(r.verdict is not Verdict.UNKNOWN for r in self.results):
            return ""
        said = list(dict.fromkeys(r.note for r in self.results))
        if said == [SEE]:
            return f"{self.findings[0].name}: {self.findings[0].message}"
        return "; ".join(note for note in said if note)

    def __getitem__(self, name: str) -> Result:
        """The result for a transformation, by its name."""
        for result in self.results:
            if result.name == name:
                return result
        raise KeyError(f"no transformation {name!r}; there are {', '.join(r.name for r in self.results)}")

    @property
    def verdicts(self) -> Mapping[str, Verdict]:
        """Verdict of each transformation."""
        return {r.name: r.verdict for r in self.results}

    def __str__(self) -> str:
        """A table, findings, counterexamples (with a row for comparison, only of differences), and differences."""
        rows = [("transformation", "verdict", "worst", "holds to tolerance for")]
        rows += [(r.title, r.verdict.value, _number(r.deviation), _range(r)) for r in self.results]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = [f"{self.layer}, {self.dtype}", ""]
        for i, row in enumerate(rows):
            lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
            if i == 0:
                lines.append("─" * (sum(widths) + 6))
        tolerances = sorted({_number(r.tolerance) for r in self.results})
        lines += ["", "worst: largest change of an output on the scale of the outputs; tolerance "]
        lines[-1] += ", ".join(tolerances) + "; σ: standard deviation of what is shifted."
        said: dict[str, list[str]] = {}
        for r in self.results:
            said.setdefault(r.note, []).append(r.title)
        notes = [f"  {', '.join(titles)}: {note}" for note, titles in said.items() if note]
        lines += ["", "Notes", *notes] if notes else []
        if self.findings:
            lines += ["", "Findings"]
            for finding in self.findings:
                lines.append(f"  {finding.name}: {finding.message}")
                lines += [f"    {line}" for line in finding.code.splitlines()]
        differing = dict(self.differences)
        shown = [r for r in self.results if r.counterexample and (self.like is None or r.name in differing)]
        for result in shown:
            lines += ["", f"# {result.title}: {result.verdict.value}", result.counterexample.code.rstrip()]  # type: ignore[union-attr]
        lines += self._compared() if self.like else []
        return "\n".join(lines)

    def _compared(self) -> list[str]:
        """Lines that describe the differences from the row."""
        if self.unchecked:
            return ["", f"Not compared with {self.like}: nothing could be checked."]
        lines = []
        if self.differences:
            says = {"I": "is invariant", "no": "is not", "±": "flips the sign"}
            lines += ["", f"Differs from {self.like}:"]
            lines += [f"  {self[n].title}: {self[n].verdict.value}; it {says[s]}" for n, s in self.differences]
        if self.output_differences:
            lines += ["", f"Outputs differ from those of {self.like}, up to a gain and a bias for each unit:"]
            lines += [f"  {f.name}: {f.message}" for f in self.output_differences]
        if self.affine:
            lines += ["", f"As {self.like} without gain and bias: {', '.join(self.affine)}."]
        if self.output_note:
            lines += ["", f"Outputs: {self.output_note}."]
        return lines if self.differs else [*lines, "", f"As {self.like}."]


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else "0" if value == 0 else f"{value:.1e}"


def _range(result: Result) -> str:
    if result.holds is None or result.curve is None:
        return "–" if result.verdict in {Verdict.NOT, Verdict.LOST, Verdict.UNKNOWN} else ""
    low, high = result.holds
    whole = (low, high) == (result.curve.magnitudes[0], result.curve.magnitudes[-1])
    text = f"{low:.0e} ≤ δ ≤ {high:.0e}" if result.curve.scales else f"|shift| ≤ {high:.0e} σ"
    return text + (" (all)" if whole else "")

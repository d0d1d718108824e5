"""Results of a check, as data and as text."""

import enum
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Float

from lngeom._core.text import counted, table, terminal_width, wrapped
from lngeom.checks.derivatives.report import Derivatives
from lngeom.methods.table import in_words

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
class Diagnosis:
    """What a layer is, as far as the table of invariances and its outputs tell.

    Attributes:
        closest: name of the row of the table that behaves most like it; "" where nothing could be checked.
        sentence: in words, such as "RMS norm, ε outside the root, ddof = 1".
        differences: transformations that differ from that row, with the row's cells.
    """

    closest: str = ""
    sentence: str = ""
    differences: tuple[tuple[str, str], ...] = ()


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
        diagnosis: the closest row of the table, whatever `like` says, and what the layer does otherwise.
        differentiate: checks the derivatives of the same layer; see `derivatives`.
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
    diagnosis: Diagnosis = Diagnosis()
    differentiate: Callable[[], Derivatives] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def derivatives(self) -> Derivatives:
        """The report of `check_derivatives` on the same layer, in the same dtype and mode, with the same seed.

        It is made when it is first asked for, since that takes as long as all else, and kept.

        Raises:
            ValueError: as `check_derivatives` does, such as for a layer of NumPy.
        """
        if self.differentiate is None:
            raise ValueError("this report was not made by check_invariances: call check_derivatives with the layer")
        return self.differentiate()

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
        return self.to_text()

    def to_text(self, width: int | None = None, *, counterexamples: bool = False) -> str:
        """The diagnosis, what differs, findings, a table and notes.

        Args:
            width: columns, at least 40; those of the terminal by default. Code is not wrapped.
            counterexamples: whether code follows that shows findings and counterexamples; with a row for comparison,
                those of differences alone.

        Returns:
            Lines of text.
        """
        width = terminal_width() if width is None else width
        blocks = [self._headline(), self._compared() if self.like else self._beside(), self._found()]
        parts = [[row for line in block for row in wrapped(line, width)] for block in blocks]
        parts += [self._table(width), [row for line in self._notes() for row in wrapped(line, width)]]
        code = list(self._code())
        if counterexamples:
            parts += code
        elif code:
            pointer = (
                f"{counted(len(code), 'counterexample')}, as code: --counterexamples, or to_text(counterexamples=True)."
            )
            parts.append(wrapped(pointer, width))
        return "\n\n".join("\n".join(part) for part in parts if part)

    def _headline(self) -> list[str]:
        """What the layer is, and the number of transformations of each verdict and of defects."""
        counts = {v: sum(r.verdict is v for r in self.results) for v in Verdict}
        parts = [f"{count} {verdict.value}" for verdict, count in counts.items() if count]
        parts += [counted(len(self.findings), "finding")] if self.findings else []
        compared = "In"
        if self.like and not self.unchecked:
            compared = f"{'Differs from' if self.differs else 'As'} {in_words(self.like)}, in"
        said = self.diagnosis.sentence or ("nothing could be checked" if self.unchecked else "")
        return [f"{self.layer}: {said}." if said else self.layer, f"{compared} {self.dtype}: {'; '.join(parts)}."]

    def _found(self) -> list[str]:
        return ["Findings", *(f"  {f.name}: {f.message}" for f in self.findings)] if self.findings else []

    def _table(self, width: int) -> list[str]:
        """A row for each transformation."""
        rows = [("transformation", "verdict", "worst", "holds for")]
        rows += [
            (r.title, _SHORT.get(r.verdict, r.verdict.value), _number(r.deviation), _range(r)) for r in self.results
        ]
        return table(rows, width, [(0, 30), (1, 14), (0, 12), (1, 9), (3, 6)])

    def _notes(self) -> list[str]:
        """What the table's numbers are, then the notes of results."""
        tolerances = ", ".join(sorted({_number(r.tolerance) for r in self.results}))
        lines = [
            f"worst: largest change of an output on the scale of the outputs; tolerance {tolerances}. holds for: "
            "factors δ, or shifts in standard deviations σ of what is shifted."
        ]
        said: dict[str, list[str]] = {}
        for r in self.results:
            said.setdefault(r.note, []).append(r.title)
        notes = [f"  {', '.join(titles)}: {note}" for note, titles in said.items() if note]
        return [*lines, "Notes", *notes] if notes else lines

    def _code(self) -> Iterator[list[str]]:
        """Code that shows findings and counterexamples; with a row for comparison, only those of differences."""
        differing = dict(self.differences)
        yield from ([f"# {f.name}", *f.code.splitlines()] for f in self.findings if f.code)
        for r in self.results:
            if r.counterexample and (self.like is None or r.name in differing):
                yield [f"# {r.title}: {r.verdict.value}", *r.counterexample.code.rstrip().splitlines()]

    def _beside(self) -> list[str]:
        """Lines that describe the differences from the closest row."""
        return [self._difference(self.diagnosis.closest, *pair) for pair in self.diagnosis.differences]

    def _difference(self, like: str, name: str, cell: str) -> str:
        says = {"I": "invariant", "no": "not invariant", "±": "flips the sign"}[cell]
        return f"  {self[name].title}: yours: {self[name].verdict.value}; {in_words(like)}: {says}"

    def _compared(self) -> list[str]:
        """Lines that describe the differences from the row."""
        if self.unchecked or self.like is None:
            return [f"Not compared with {self.like}: nothing could be checked."]
        title = in_words(self.like)
        lines = [self._difference(self.like, *pair) for pair in self.differences]
        if self.output_differences:
            lines += [f"Outputs differ from those of {title}, up to a gain and a bias for each unit:"]
            lines += [f"  {f.name}: {f.message}" for f in self.output_differences]
        if self.affine:
            lines += [f"As {title} without gain and bias: {', '.join(self.affine)}."]
        if self.output_note:
            lines += [f"Outputs: {self.output_note}."]
        return lines


_SHORT = {Verdict.UP_TO_EPS: "up to ε", Verdict.LOST: "lost to rounding"}
"""Verdicts in fewer words, for a column of a table."""


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else "0" if value == 0 else f"{value:.1e}"


def _range(result: Result) -> str:
    if result.holds is None or result.curve is None:
        return "–" if result.verdict in {Verdict.NOT, Verdict.LOST, Verdict.UNKNOWN} else ""
    low, high = result.holds
    if (low, high) == (result.curve.magnitudes[0], result.curve.magnitudes[-1]):
        return f"all, to {high:.0e}" + ("" if result.curve.scales else " σ")
    return f"{low:.0e} ≤ δ ≤ {high:.0e}" if result.curve.scales else f"|shift| ≤ {high:.0e} σ"

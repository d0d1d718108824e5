"""What a comparison of two models found."""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from lngeom._core.text import counted
from lngeom.transformers.rewrite.certificate import plain
from lngeom.transformers.rewrite.comparison.causes import Cause
from lngeom.transformers.rewrite.comparison.sweep import Local

SHOWN = 8
"""Parts that differ, and rows of tables, that are printed."""

Word = Literal["same", "rounding", "different", "undecided"]

SAYS: dict[str, str] = {
    "same": "the same function",
    "rounding": "the same function up to rounding",
    "different": "different functions",
    "undecided": "undecided",
}


@dataclass(frozen=True)
class Comparison:
    """Whether two models are one function, and where they part if not.

    Attributes:
        verdict: "same": log-probabilities agree to the digits of float64, and every part does. "rounding": they differ
            by no more than what random roundings of the stored dtype change. "different". "undecided": the probes
            agree, and a part or an option differs, or parts cannot be compared.
        probes: numbers of sequences and of positions.
        dtype: the coarsest stored dtype, by which arrays may be rounded.
        log_probabilities: largest difference of log-probabilities, relative to the largest; or that of the outputs
            beside the head, if it is larger.
        logits: the same of logits.
        rounding: what random roundings of the second model's arrays change in its log-probabilities, in this measure.
        actions: what was done to the first model, where it can be read off.
        parts: every part that was compared, in order; empty where the descriptions cannot be compared part by part.
        causes: why the first part that differs does.
        arrays: of models of up to 67 million numbers, arrays of parts that differ, with their distance from the first
            model's, relative, in the first model's coordinates; the farthest first.
        reasons: differences of the descriptions that end the comparison, or doubts about it.
    """

    verdict: Word
    probes: tuple[int, int]
    dtype: str
    log_probabilities: float
    logits: float
    rounding: float
    actions: tuple[str, ...] = ()
    parts: tuple[Local, ...] = ()
    causes: tuple[Cause, ...] = ()
    arrays: tuple[tuple[str, float], ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether both are one function, up to rounding of what is stored."""
        return self.verdict in {"same", "rounding"}

    @property
    def different(self) -> tuple[Local, ...]:
        """Parts that differ by more than rounding, in order."""
        return tuple(part for part in self.parts if part.differs)

    @property
    def first(self) -> Local | None:
        """The first part that differs."""
        return next(iter(self.different), None)

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON takes it; a number that is not finite is None."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        found["parts"] = [asdict(part) | {"differs": part.differs} for part in self.parts]
        found["causes"] = [asdict(cause) for cause in self.causes]
        return {"schema": "lngeom.certify/1", "same": self.same, **plain(found)}

    def __str__(self) -> str:
        """Some lines for people."""
        rows = [f"{self.verdict}: {SAYS[self.verdict]}" + (f" to {self.dtype}" if self.verdict == "rounding" else "")]
        rows += [f"  {reason}" for reason in self.reasons]
        if math.isfinite(self.log_probabilities):
            rows.append(
                f"  log-probabilities differ by {self.log_probabilities:.1e}, logits by {self.logits:.1e} (relative, "
                f"{self.probes[0]} × {self.probes[1]} tokens, float64)"
            )
        if math.isfinite(self.rounding):
            rows.append(
                f"  random roundings of the arrays to {self.dtype} change log-probabilities by {self.rounding:.1e}"
            )
        if self.actions:
            rows.append("  what was done: " + "; ".join(self.actions))
        if self.parts:
            wrong = self.different
            rows.append(
                f"  {counted(len(self.parts), 'part')} compared, each on the first model's stream: "
                + (f"{len(wrong)} {'differs' if len(wrong) == 1 else 'differ'}" if wrong else "all agree")
            )
            for part in wrong[:SHOWN]:
                where = ""
                if part.rows:
                    few = len(part.rows) <= SHOWN
                    where = f" ({', '.join(part.rows)})" if few else f" ({len(part.rows)} rows)"
                mark = "first  " if part is wrong[0] else "       "
                alone = "" if part.alone is None else f"; alone it moves log-probabilities by {part.alone:.1e}"
                rounding = f"rounding explains {part.rounding:.1e}"
                rows.append(f"    {mark}{part.path}{where}: {part.difference:.1e} ({rounding}){alone}")
            if len(wrong) > SHOWN:
                rows.append(f"           and {len(wrong) - SHOWN} more")
        for cause in self.causes:
            rows.append(f"  {'cause' if cause.explains else 'found'}: {cause.sentence}")
            if cause.arrays:
                rows.append(f"    in {', '.join(cause.arrays[:SHOWN])}{', …' if len(cause.arrays) > SHOWN else ''}")
            if cause.explains:
                rows.append(f"    undone, the part is {cause.left:.1e} away")
            elif self.first is not None and cause.left < self.first.difference / 2:
                rows.append(f"    undone, the part is {cause.left:.1e} away: this is not all")
        if len(self.arrays) > 1:
            some = ", ".join(f"{name} {gap:.1e}" for name, gap in self.arrays[:3])
            rows.append(f"  maps that differ, with the gains of their norms: {len(self.arrays)}, the farthest {some}")
        return "\n".join(rows)

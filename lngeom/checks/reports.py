"""The report of the norms of a model, as data and as text."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lngeom._core.text import counted
from lngeom.checks.derivatives.report import Derivatives
from lngeom.checks.findings import Finding, Result, Verdict
from lngeom.methods import METHODS

HOLD = {Verdict.INVARIANT, Verdict.UP_TO_EPS, Verdict.FLIPS}
"""Verdicts of transformations under which outputs stay, up to ε or sign."""


@dataclass(frozen=True)
class NormReport:
    """One norm of a model, or one layer with the norm that follows it.

    Attributes:
        path: its place in the model.
        kind: name of its class; "A → B" for a layer and the norm after it.
        units: H; 0 where nothing could be checked.
        axis: axes of its inputs that are units.
        statistics: what its statistics are taken over.
        like: the expected row of the invariance table; None where there is none.
        results: one for each transformation.
        differences: names of the transformations under which it differs from the row.
        findings: other defects.
        eps_share: median share of ε in σ² + ε on the inputs that reach it, the largest of its calls; NaN where it has
            no such denominator.
        note: why nothing could be checked, or what else was measured.
        calls: number of its calls in the forward pass.
        derivatives: those at its inputs, or those of a norm of the same kind, whose path is in `derivatives.layer`;
            None where they were not asked for or could not be checked.
    """

    path: str
    kind: str
    units: int = 0
    axis: tuple[int, ...] = ()
    statistics: str = ""
    like: str | None = None
    results: tuple[Result, ...] = ()
    differences: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    eps_share: float = math.nan
    note: str = ""
    calls: int = 1
    derivatives: Derivatives | None = None

    @property
    def holds(self) -> tuple[str, ...]:
        """Names of the transformations under which its outputs stay, up to ε and the sign."""
        return tuple(r.name for r in self.results if r.verdict in HOLD)

    @property
    def checked(self) -> bool:
        """Whether any transformation has a verdict."""
        return any(r.verdict is not Verdict.UNKNOWN for r in self.results)


@dataclass(frozen=True)
class ModelReport:
    """The report of `check_model`.

    Attributes:
        model: its name.
        norms: one for each norm, and for each layer with the norm that follows it.
    """

    model: str
    norms: tuple[NormReport, ...]

    def __getitem__(self, path: str) -> NormReport:
        found = [n for n in self.norms if n.path == path]
        if not found:
            raise KeyError(f"no norm {path!r}; there are {', '.join(n.path for n in self.norms)}")
        return found[0]

    @property
    def differs(self) -> bool:
        """Whether a norm differs from its row, has another defect, or a wrong derivative."""
        return any(n.differences or n.findings or (n.derivatives and n.derivatives.wrong) for n in self.norms)

    @property
    def unchecked(self) -> tuple[NormReport, ...]:
        """The norms of which nothing could be checked."""
        return tuple(n for n in self.norms if not n.checked)

    def rows(self) -> list[dict[str, Any]]:
        """The table as a list of dicts, such as `pandas.DataFrame` takes."""
        return [
            {
                "path": n.path or "(model)",
                "kind": n.kind,
                "units": n.units or None,
                "axis": ", ".join(map(str, n.axis)),
                "statistics": n.statistics,
                "holds": list(n.holds),
                "row": n.like,
                "differs": list(n.differences),
                "findings": [f.name for f in n.findings],
                "calls": n.calls,
                "eps_share": None if math.isnan(n.eps_share) else n.eps_share,
                "note": n.note,
                "derivatives": None if n.derivatives is None else n.derivatives.to_dict(),
            }
            for n in self.norms
        ]

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self) -> str:
        """One table; below it, what differs and what could not be checked."""
        if not self.norms:
            return f"{self.model}: no norm was found, and no code that divides values by the root of a sum over them."
        lines = [("path", "kind", "units", "axis", "statistics over", "invariances", "ε share")]
        for n, line in zip(self.norms, self.rows(), strict=True):
            title = METHODS[n.like].title if n.like in METHODS else "no row"
            held = counted(len(n.holds), "holds", "hold")
            compared = f"differs from {title}" if n.differences else f"{held}, as {title}"
            share = "" if math.isnan(n.eps_share) else f"{n.eps_share:.1e}"
            shown = compared if n.checked and n.like else held if n.checked else "not checked"
            lines.append((line["path"], n.kind, str(n.units or ""), line["axis"], n.statistics, shown, share))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ["  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip() for cells in lines]
        table.insert(1, "─" * (sum(widths) + 2 * len(widths) - 2))
        left = len(self.unchecked)
        checked = f"{len(self.norms) - left} checked in place{f', {left} not checked' if left else ''}"
        return "\n".join([f"{self.model}: {checked}.", "", *table, *self._below(), "", *self._derivatives()])

    def _below(self) -> Iterator[str]:
        for n in self.norms:
            place = n.path or "(model)"
            if n.differences:
                verdicts = ", ".join(f"{r.title}: {r.verdict.value}" for r in n.results if r.name in n.differences)
                yield f"  {place} differs: {verdicts}"
            yield from (f"  {place}: {f.name}: {f.message}" for f in n.findings)
            if n.note:
                yield f"  {place}: {n.note}"

    def _derivatives(self) -> Iterator[str]:
        """What is wrong with derivatives, said once for all norms of a kind."""
        kinds: dict[int, tuple[Derivatives, list[str]]] = {}
        for n in self.norms:
            if n.derivatives is not None:
                kinds.setdefault(id(n.derivatives), (n.derivatives, []))[1].append(n.path or "(model)")
        if not kinds:
            yield "No derivatives were checked; check_model(..., derivatives=True) checks them."
            return
        checked, wrong = (
            sum(len(getattr(found, what)) for found, _ in kinds.values()) for what in ("checked", "wrong")
        )
        norms = f"{counted(sum(len(paths) for _, paths in kinds.values()), 'norm')} of {counted(len(kinds), 'kind')}"
        told = (
            f"{wrong} of {checked} are not those of the outputs" if wrong else f"all {checked} are those of the outputs"
        )
        yield f"Derivatives at inputs in the model, {norms}: {told}."
        for found, paths in kinds.values():
            if found.wrong:
                more = f" and {len(paths) - 1} more of its kind" if len(paths) > 1 else ""
                yield f"  {paths[0]}{more}: {' '.join(found.diagnosis)}"

"""Evidence for a claim, and the verdict it amounts to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from lngeom._core.numerics import Agreement, agreement, tolerance
from lngeom._core.text import verb


class Verdict(StrEnum):
    """What the evidence says of a statement.

    A slip, of notation alone, is wrong as printed, and what its authors mean is clear and right. An experiment at
    another setting than the paper's refutes nothing: its result is not reproduced here. A clash is no answer about the
    statement: a number contradicts what is proved or stated, so that the proof, the record or the code is wrong.
    """

    HOLDS = "holds"
    CONDITIONAL = "conditional"
    REFUTED = "refuted"
    SLIP = "slip"
    NOT_REPRODUCED = "not reproduced"
    UNDECIDED = "undecided"
    CLASH = "clash"


class Strength(StrEnum):
    """What a verdict rests on.

    A proof for all sizes, or for the sizes it lists; one exact counterexample; numbers; or a training experiment.
    """

    PROOF = "proof"
    PROOF_AT_SIZES = "proof at sizes"
    COUNTEREXAMPLE = "counterexample"
    NUMERIC = "numeric"
    EXPERIMENT = "experiment"

    @property
    def exact(self) -> bool:
        """Whether it is a proof or an exact counterexample."""
        return self not in {Strength.NUMERIC, Strength.EXPERIMENT}


class Kind(StrEnum):
    """What a piece of evidence is."""

    PROOF = "proof"
    AGREEMENT = "agreement"
    COUNTEREXAMPLE = "counterexample"
    EXPERIMENT = "experiment"


class Reach(StrEnum):
    """What a proof covers."""

    ALL = "all sizes"
    SIZES = "the sizes listed"
    INSTANCE = "one exact instance"


class Role(StrEnum):
    """What a piece of evidence, if it passes, says of the statement."""

    SUPPORTS = "supports"
    FAILS_WITHOUT_CONDITION = "fails without the condition"
    REFUTES = "refutes as printed"
    MISPRINT = "shows a slip in the print"
    CORRECTS = "supports the correction"


class NoEvidence(ValueError):
    """Raised by a check that cannot be made on the data at hand; the message says why."""


class Comparison(NamedTuple):
    """What numbers rest on.

    Attributes:
        found: how far the arrays are apart.
        arrays: the two that were compared, or the one that was held against zero.
    """

    found: Agreement
    arrays: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Evidence:
    """One check and how it came out.

    Attributes:
        kind: what it is.
        role: what it says of the statement when it passes.
        description: one line a person can read.
        passed: whether it came out as its role says.
        vacuous: whether it could not have failed (nothing compared, or everything zero); never a pass.
        contradicts: whether it shows the opposite of its role, far beyond rounding.
        residual: relative deviation measured.
        tolerance: what the residual was held against.
        samples: number of values compared.
        matrices: named arrays worth showing.
        curves: named pairs of arrays (x, y).
        statement: LaTeX of what a proof proves, or of what an exact counterexample is one to.
        steps: steps of a proof, each with "part" ("given", "instance", "change" or "step"), "text" and "latex"; a step
            also with "checked", LaTeX of all that was checked, where the formula is shorter; a change, of a matrix,
            also with "names", "before", "after" and "differs".
        reach: what a proof covers.
        sizes: the sizes it covers, where these are not all.
        no_evidence: why the numbers say nothing, neither for nor against; empty where they say something. Numbers that
            are not finite always say nothing.
        rounding: how large a residual rounding alone may cause, where that is known.
        comparison: what the numbers rest on, kept until `lngeom.claims.run` has weighed them.
    """

    kind: Kind
    role: Role
    description: str
    passed: bool
    vacuous: bool = False
    contradicts: bool = False
    residual: float | None = None
    tolerance: float | None = None
    samples: int = 0
    matrices: Mapping[str, np.ndarray] = field(default_factory=dict)
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    statement: str = ""
    steps: Sequence[Mapping[str, Any]] = ()
    reach: Reach = Reach.ALL
    sizes: str = ""
    no_evidence: str = ""
    rounding: float | None = None
    comparison: Comparison | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Sets aside numbers that are not finite, whoever made the evidence; its flags become Python's."""
        reason = self.no_evidence
        if not reason and self.residual is not None and not np.isfinite(self.residual):
            reason = f"the residual is {self.residual}"
        if not reason and self.vacuous:
            reason = "nothing was compared, or everything is zero"
        if self.passed and self.contradicts:
            raise ValueError(f"evidence that passed cannot show the opposite too: {self.description!r}")
        flags = {"passed": self.passed and not reason, "contradicts": self.contradicts and not reason}
        for name, value in {**flags, "vacuous": self.vacuous}.items():
            object.__setattr__(self, name, bool(value))
        object.__setattr__(self, "no_evidence", reason)

    @property
    def reason(self) -> str:
        """Why it did not pass; empty where it did."""
        if self.passed:
            return ""
        if self.no_evidence:
            return f"no evidence: {self.no_evidence}"
        if self.residual is None or self.tolerance is None:
            return "it failed"
        if self.kind is Kind.EXPERIMENT:
            return f"the runs {'show the opposite' if self.contradicts else 'decide nothing'} at this size"
        held = f"the residual {self.residual:.1e} is not {_SIDE[self.kind]} {self.tolerance:.1e}"
        return f"it shows the opposite: {held}" if self.contradicts else f"it decides nothing: {held}"


_SIDE = {Kind.PROOF: "within", Kind.AGREEMENT: "within", Kind.COUNTEREXAMPLE: "above", Kind.EXPERIMENT: "within"}


def _measured(kind: Kind, role: Role, description: str, found: Agreement, *arrays: np.ndarray, **more) -> Evidence:
    """Evidence from a comparison. That no difference is seen refutes no difference: it is only no witness."""
    silence = ""
    if found.undefined:
        silence = f"{found.undefined} of {found.count} entries {verb(found.undefined)} NaN or infinite"
    elif not found.count:
        silence = "nothing was compared"
    elif not found.scale:
        silence = "everything is zero"
    elif found.lost_to_rounding:
        silence = f"rounding alone may cause {found.rounding:.0e}, and {found.residual:.0e} was measured"
    elif kind is Kind.COUNTEREXAMPLE and not found.differs:
        silence = f"the difference, {found.residual:.1e}, is too small to count: less than {found.witness:.0e}"
    equality = kind is Kind.AGREEMENT
    return Evidence(
        kind,
        role,
        description,
        passed=found.agrees if equality else found.differs,
        vacuous=not found.undefined and (not found.count or not found.scale),
        contradicts=equality and found.differs,
        residual=found.residual,
        tolerance=found.tolerance if equality else found.witness,
        samples=found.count,
        no_evidence=silence,
        rounding=found.rounding or None,
        comparison=Comparison(found, arrays),
        **more,
    )


def agree(
    description: str,
    a,
    b,
    *,
    tol: float | None = None,
    rounding: float = 0.0,
    role: Role = Role.SUPPORTS,
    **more,
) -> Evidence:
    """Evidence that two arrays are equal up to rounding. Two arrays of zeros say nothing, and count as vacuous."""
    a, b = np.asarray(a), np.asarray(b)
    found = agreement(a, b, tol)._replace(rounding=rounding)
    return _measured(Kind.AGREEMENT, role, description, found, a, b, **more)


def differ(description: str, a, b, *, rounding: float = 0.0, role: Role = Role.SUPPORTS, **more) -> Evidence:
    """Evidence that two arrays are not equal, by far more than rounding."""
    a, b = np.asarray(a), np.asarray(b)
    found = agreement(a, b)._replace(rounding=rounding)
    return _measured(Kind.COUNTEREXAMPLE, role, description, found, a, b, **more)


def vanishes(
    description: str,
    a,
    *,
    scale: float,
    tol: float | None = None,
    rounding: float = 0.0,
    role: Role = Role.SUPPORTS,
    **more,
) -> Evidence:
    """Evidence that an array is zero, against the size it would have if it were not."""
    a = np.asarray(a, np.float64)
    tol = tolerance(np.float64) if tol is None else tol
    undefined = a.size if not np.isfinite(scale) else int(np.sum(~np.isfinite(a)))
    largest = float(np.max(np.abs(a), initial=0.0))
    residual = float("inf") if undefined else largest / scale if scale > 0 else 0.0
    found = Agreement(residual, tol, max(scale, 0.0), a.size, undefined, rounding)
    return _measured(Kind.AGREEMENT, role, description, found, a, **more)


def same_integer(
    description: str, a: float, b: float, *, uncertain: str = "", role: Role = Role.SUPPORTS, **more
) -> Evidence:
    """Evidence that two counts, found in two ways, are the same.

    Args:
        description: what was counted.
        a: one count.
        b: the other.
        uncertain: why unequal counts would say nothing, where that is so.
        role: what equal counts say of the statement.
        **more: other attributes of the evidence.

    Returns:
        The evidence.
    """
    return Evidence(
        Kind.AGREEMENT,
        role,
        f"{description}: {a} and {b}",
        passed=a == b,
        contradicts=a != b,
        residual=float(abs(a - b)),
        tolerance=0.0,
        samples=1,
        no_evidence=uncertain if a != b else "",
        **more,
    )


def weighed(evidence: Evidence, rounding: float) -> Evidence:
    """The same comparison, judged in the knowledge of what rounding alone may cause.

    Args:
        evidence: what `agree`, `differ` or `vanishes` found.
        rounding: bound of the residual that rounding may cause.

    Returns:
        Evidence: the same numbers. What passed or contradicted may now be no evidence.
    """
    if evidence.comparison is None:
        return evidence
    found, arrays = evidence.comparison
    found = found._replace(rounding=max(rounding, found.rounding))
    judged = _measured(evidence.kind, evidence.role, evidence.description, found, *arrays)
    names = ("passed", "contradicts", "tolerance", "no_evidence", "rounding", "comparison")
    return replace(evidence, **{name: getattr(judged, name) for name in names})


def strength_of(verdict: Verdict, evidence: Sequence[Evidence]) -> Strength:
    """What a verdict rests on.

    Args:
        verdict: what the evidence amounts to.
        evidence: all of it.

    Returns:
        Its strength: that of the proofs and exact counterexamples that have the verdict's role, where there are any;
        that of a conditional claim is its proof's under the condition. A correction's proof does not count.
    """
    role = _ROLE.get(verdict, Role.SUPPORTS)
    found = {e.reach for e in evidence if e.kind is Kind.PROOF and e.passed and e.role is role}
    for reach, strength in _STRENGTH.items():
        if reach in found:
            return strength
    experiment = any(e.kind is Kind.EXPERIMENT for e in evidence)
    return Strength.EXPERIMENT if experiment else Strength.NUMERIC


_ROLE = {Verdict.REFUTED: Role.REFUTES, Verdict.SLIP: Role.MISPRINT}
"""The role of the evidence that a verdict rests on, where it is not support."""

# The first that is found counts: a proof for some sizes only limits the verdict, whatever stands beside it.
_STRENGTH = {
    Reach.SIZES: Strength.PROOF_AT_SIZES,
    Reach.ALL: Strength.PROOF,
    Reach.INSTANCE: Strength.COUNTEREXAMPLE,
}


def decide(evidence: Sequence[Evidence]) -> Verdict:
    """The verdict that a body of evidence amounts to.

    1. A number that contradicts a proof is a clash, whatever else was found: the opposite of its role beside a proof
       of that role, or a refutation beside a proof of the statement. So are two proofs, one of the statement and one
       against it. A number never overrides a proof.
    2. A number that shows the opposite of what should support the statement is a clash too, where no proof supports
       it: an error of the code looks the same as a false statement. An experiment that shows the opposite is not
       reproduced here.
    3. Numbers that are no evidence speak neither for nor against. Where a proof has their role they are set aside, and
       the proof carries the verdict alone. Where none has, the verdict is undecided.
    4. All that is left must pass. Refuted then takes a refutation *and* a correction, with no support; a slip takes a
       misprint *and* a correction, likewise; conditional takes support under the condition *and* a failure without it.
       Anything missing or in between is undecided.

    The exit code of `lngeom verify` follows the verdicts: 0 where all are the recorded ones. So a proof without
    numbers counts on the user's own data. On the data that comes with lngeom all numbers must be evidence.

    Args:
        evidence: all that was found.

    Returns:
        The verdict.
    """
    proved = {e.role for e in evidence if e.kind is Kind.PROOF and e.passed}
    numbers = [e for e in evidence if e.kind is not Kind.PROOF]
    if any(e.contradicts and e.role in proved for e in numbers):
        return Verdict.CLASH
    if Role.SUPPORTS in proved and {Role.REFUTES, Role.MISPRINT} & proved:
        return Verdict.CLASH
    if Role.SUPPORTS in proved and any(e.passed and e.role in {Role.REFUTES, Role.MISPRINT} for e in numbers):
        return Verdict.CLASH
    opposite = {e.kind for e in numbers if e.contradicts and e.role is Role.SUPPORTS}
    if opposite - {Kind.EXPERIMENT}:
        return Verdict.CLASH
    if opposite and Role.REFUTES not in proved:
        return Verdict.NOT_REPRODUCED
    if any(e.no_evidence and e.role not in proved for e in numbers):
        return Verdict.UNDECIDED
    left = [e for e in evidence if not e.no_evidence]
    if not all(e.passed for e in left):
        return Verdict.UNDECIDED
    roles = {e.role for e in left}
    against = roles & {Role.REFUTES, Role.MISPRINT}
    if against:
        if len(against) > 1 or Role.CORRECTS not in roles or Role.SUPPORTS in roles:
            return Verdict.UNDECIDED
        if all(e.kind is Kind.EXPERIMENT for e in left if e.role in against):
            return Verdict.NOT_REPRODUCED
        return Verdict.REFUTED if Role.REFUTES in against else Verdict.SLIP
    if Role.SUPPORTS in roles:
        return Verdict.CONDITIONAL if Role.FAILS_WITHOUT_CONDITION in roles else Verdict.HOLDS
    return Verdict.UNDECIDED

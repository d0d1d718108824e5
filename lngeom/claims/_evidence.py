"""Evidence for a claim, and the verdict it amounts to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from lngeom._numerics import WITNESS, agreement, tolerance


class Verdict(StrEnum):
    """What the evidence says of a statement."""

    HOLDS = "holds"
    CONDITIONAL = "conditional"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


class Strength(StrEnum):
    """What a verdict rests on: algebra for all sizes, numbers, or a training experiment."""

    PROOF = "proof"
    NUMERIC = "numeric"
    EXPERIMENT = "experiment"


class Kind(StrEnum):
    """What a piece of evidence is."""

    PROOF = "proof"
    AGREEMENT = "agreement"
    COUNTEREXAMPLE = "counterexample"
    EXPERIMENT = "experiment"


class Role(StrEnum):
    """What a piece of evidence, if it passes, says of the statement."""

    SUPPORTS = "supports"
    FAILS_WITHOUT_CONDITION = "fails without the condition"
    REFUTES = "refutes as printed"
    CORRECTS = "supports the correction"


@dataclass(frozen=True)
class Evidence:
    """One check and how it came out.

    Attributes:
        kind: what it is.
        role: what it says of the statement when it passes.
        description: one line a person can read.
        passed: whether it came out as its role says.
        vacuous: whether it could not have failed (nothing compared, or everything zero); never a pass.
        contradicts: for evidence that should support a statement: whether it shows the opposite, far beyond rounding.
        residual: relative deviation measured.
        tolerance: what the residual was held against.
        samples: number of values compared.
        matrices: named arrays worth showing.
        curves: named pairs of arrays (x, y).
        statement: LaTeX of what a proof proves, or of what an exact counterexample is one to.
        steps: steps of a proof, each with "part" ("given", "instance" or "step"), "text" and "latex".
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
    steps: Sequence[Mapping[str, str]] = ()


def agree(description: str, a, b, *, tol: float | None = None, role: Role = Role.SUPPORTS, **more) -> Evidence:
    """Evidence that two arrays are equal up to rounding. Two arrays of zeros say nothing, and count as vacuous."""
    a, b = np.asarray(a), np.asarray(b)
    found = agreement(a, b, tol)
    return Evidence(
        Kind.AGREEMENT,
        role,
        description,
        passed=found.agrees and found.scale > 0,
        vacuous=found.count == 0 or found.scale == 0,
        contradicts=found.differs,
        residual=found.residual,
        tolerance=found.tolerance,
        samples=found.count,
        **more,
    )


def differ(description: str, a, b, *, role: Role = Role.SUPPORTS, **more) -> Evidence:
    """Evidence that two arrays are not equal, by far more than rounding."""
    found = agreement(a, b)
    return Evidence(
        Kind.COUNTEREXAMPLE,
        role,
        description,
        passed=found.differs,
        vacuous=found.count == 0 or found.scale == 0,
        contradicts=found.agrees,
        residual=found.residual,
        tolerance=WITNESS,
        samples=found.count,
        **more,
    )


def vanishes(
    description: str, a, *, scale: float, tol: float | None = None, role: Role = Role.SUPPORTS, **more
) -> Evidence:
    """Evidence that an array is zero, against the size it would have if it were not."""
    a = np.asarray(a, np.float64)
    tol = tolerance(np.float64) if tol is None else tol
    residual = float(np.max(np.abs(a), initial=0.0) / scale) if scale > 0 else float("inf")
    residual = residual if np.isfinite(residual) else float("inf")
    return Evidence(
        Kind.AGREEMENT,
        role,
        description,
        passed=a.size > 0 and residual <= tol,
        vacuous=a.size == 0 or not scale > 0,
        contradicts=residual >= WITNESS,
        residual=residual,
        tolerance=tol,
        samples=a.size,
        **more,
    )


def same_integer(description: str, a: int, b: int, *, role: Role = Role.SUPPORTS, **more) -> Evidence:
    """Evidence that two counts, found in two ways, are the same."""
    return Evidence(
        Kind.AGREEMENT,
        role,
        f"{description}: {a} and {b}",
        passed=a == b,
        contradicts=a != b,
        residual=float(abs(a - b)),
        tolerance=0.0,
        samples=1,
        **more,
    )


def decide(evidence: Sequence[Evidence]) -> Verdict:
    """The verdict that a body of evidence amounts to.

    Refuted takes a passing refutation *and* a passing correction; conditional takes support under the condition *and*
    a failure without it. Evidence which should support but shows the opposite refutes. Anything vacuous, missing or
    in between is undecided.

    Args:
        evidence: all that was found.

    Returns:
        The verdict.
    """
    if not evidence or any(e.vacuous for e in evidence):
        return Verdict.UNDECIDED
    by_role = {role: [e for e in evidence if e.role is role] for role in Role}
    supports, breaks = by_role[Role.SUPPORTS], by_role[Role.FAILS_WITHOUT_CONDITION]
    refutes, corrects = by_role[Role.REFUTES], by_role[Role.CORRECTS]
    if any(e.contradicts for e in supports):
        return Verdict.REFUTED
    if not all(e.passed for e in evidence):
        return Verdict.UNDECIDED
    if refutes:
        return Verdict.REFUTED if corrects and not supports else Verdict.UNDECIDED
    if supports:
        return Verdict.CONDITIONAL if breaks else Verdict.HOLDS
    return Verdict.UNDECIDED

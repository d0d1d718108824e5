"""How far rounding may move the numbers of a check: the check is made again on data that differ in their last digits.

A rounded sum of products is the exact sum for inputs that differ from the given ones by a few units in the last place.
So what a check's numbers change by, when the inputs change by as much, is what rounding may do to them. It is little on
ordinary data, and much where the data have an offset (σ ≪ |a|) or a long run of training amplifies it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from lngeom.claims.evidence import Evidence, NoEvidence, weighed
from lngeom.claims.problem import Problem

DRAWS = 2
MARGIN = 16.0
"""Bound of the residual over the change that was seen: sums have many terms, and the draws are few."""

LARGE = 1e-6
"""Rounding on the data from which it may reach the size of a witness, so that even what passes is weighed."""

Check = Callable[[Problem], Iterable[Evidence]]


def weigh(evidence: Sequence[Evidence], check: Check, problem: Problem) -> list[Evidence]:
    """Judges evidence in the knowledge of what rounding may do to it.

    The check is made again only where that matters: where numbers that should agree do not, and always on data that
    amplify rounding very much.

    Args:
        evidence: of the check on the problem.
        check: made again.
        problem: data and seed.

    Returns:
        The evidence, without the arrays that were compared.
    """
    found = list(evidence)
    compared = [e for e in found if e.comparison]
    failed = any(not e.passed and not e.no_evidence for e in compared)
    if failed or (compared and problem.rounding > LARGE):
        runs = [_again(check, problem.with_other_last_digits(draw)) for draw in range(DRAWS)]
        found = [weighed(e, MARGIN * max(_change(i, found, run) for run in runs)) for i, e in enumerate(found)]
    return [replace(e, comparison=None) for e in found]


def _again(check: Check, problem: Problem) -> list[Evidence]:
    try:
        return list(check(problem))
    except NoEvidence:
        return []


def _change(position: int, before: Sequence[Evidence], after: Sequence[Evidence]) -> float:
    """Change of what was compared, on the scale of its residual; infinite where the check took another course."""
    first = before[position].comparison
    if first is None or first.found.undefined or not first.found.scale:
        return 0.0
    second = after[position].comparison if len(after) == len(before) else None
    if second is None or [v.shape for v in first.arrays] != [v.shape for v in second.arrays]:
        return float("inf")
    pairs = zip(first.arrays, second.arrays, strict=True)
    with np.errstate(invalid="ignore", over="ignore"):
        change = max(float(np.max(np.abs(np.subtract(a, b, dtype=np.float64)), initial=0.0)) for a, b in pairs)
    return change / first.found.scale if np.isfinite(change) else float("inf")

r"""Which row of the invariance table a layer is, and how its formula differs: the place of ε, ddof, gain and bias.

Everything is measured. Rows are ranked by the number of transformations under which the layer behaves otherwise; gain
and bias change the sign flip and the mixing of units, which therefore count less. Of the rows at the front the first is
taken whose outputs, up to gain and bias, are those of the layer.
"""

import math
from collections.abc import Callable, Iterator, Sequence

from lngeom._core.text import counted
from lngeom.checks._outputs import Comparison
from lngeom.checks.findings import Diagnosis, Result, Verdict
from lngeom.checks.rows import Row, row
from lngeom.checks.subject import Subject
from lngeom.methods import METHODS
from lngeom.methods.table import in_words
from lngeom.methods.transformations.columns import WEIGHT_SIGN_FLIP
from lngeom.methods.transformations.matrices import EQUIVARIANCES

COMPARED = 4
"""Most rows whose outputs are compared with those of the layer."""

SECONDARY = {WEIGHT_SIGN_FLIP.name, *(group.name for group in EQUIVARIANCES)}
"""Transformations whose effect a gain or a bias of each unit changes."""

PLACES = {1.0: "ε outside the root", 2.0: "ε inside the root", math.inf: "the scale clamped at ε"}
"""Where ε stands, by the power with which its effect decays."""


def diagnose(
    subject: Subject, results: Sequence[Result], beside: Callable[[str], Comparison], like: str | None = None
) -> Diagnosis:
    """The closest row of the table, and what the layer does otherwise.

    Args:
        subject: the layer.
        results: for each transformation.
        beside: compares the layer with a row.
        like: a row to take where the layer is as this row says.

    Returns:
        The diagnosis; without a row where nothing could be checked.
    """
    if all(r.verdict is Verdict.UNKNOWN for r in results):
        return Diagnosis()
    if like is not None and not beside(like).differences and not beside(like).note:
        return _said(like, row(like), results, beside(like))
    known = {name: found for name in METHODS if _fits(subject, found := row(name))}
    ranked = sorted(known, key=lambda name: _distance(known[name], results))
    front = [name for name in ranked if _distance(known[name], results)[0] == _distance(known[ranked[0]], results)[0]]
    best = min(front[:COMPARED], key=lambda name: _disagreement(beside(name)))
    return _said(best, known[best], results, beside(best))


def _fits(subject: Subject, found: Row) -> bool:
    """Whether a row is about layers of this kind."""
    return (
        found.positions == bool(subject.positions)
        and found.square <= subject.square
        and found.groups == subject.groups
        and subject.outputs_are_units == (EQUIVARIANCES[0].name in found.cells)
    )


def _distance(found: Row, results: Sequence[Result]) -> tuple[int, int]:
    """Numbers of transformations that differ: those which gain and bias do not touch, and the others."""
    wrong = [r.name for r in results if r.name in found.cells and _differs(r, found)]
    secondary = sum(name in SECONDARY for name in wrong)
    return len(wrong) - secondary, secondary


def _differs(result: Result, found: Row) -> bool:
    return result.verdict is not Verdict.UNKNOWN and not result.as_expected(found.cells[result.name])


def _disagreement(found: Comparison) -> tuple[int, bool, int]:
    return len(found.differences), not found.matched, len(found.sizes)


def _said(name: str, found: Row, results: Sequence[Result], compared: Comparison) -> Diagnosis:
    title, verdicts = in_words(name), {r.name: r.verdict for r in results}
    differences = tuple((n, cell) for n, cell in compared.differences if verdicts[n] is not Verdict.UNKNOWN)
    if differences:
        of = counted(sum(r.name in found.cells for r in results), "transformation")
        sentence = f"no row of the table; closest is {title}, from which it differs in {len(differences)} of {of}"
        return Diagnosis(name, sentence, differences)
    if not compared.matched:
        if any(r.verdict is Verdict.UP_TO_EPS and found.cells.get(r.name) == "no" for r in results):
            where = ", where invariant up to ε counts as no"
            sentence = f"no row of the table; its answers are those of {title}{where}, but its outputs are not"
            return Diagnosis(name, sentence)
        return Diagnosis(name, f"invariant as {title} is, but its outputs are not those of {title}")
    return Diagnosis(name, ", ".join([title, *_epsilon(found, results), *compared.traits]))


def _epsilon(found: Row, results: Sequence[Result]) -> Iterator[str]:
    """Where ε stands."""
    powers = sorted({r.eps_power for r in results if r.verdict is Verdict.UP_TO_EPS and r.eps_power is not None})
    yield from (PLACES.get(q, f"ε added to the scale to the power {q:g}") for q in powers)
    scales = [r for r in results if r.name.endswith("rescaling") and found.cells.get(r.name) == "I"]
    if scales and all(r.verdict is Verdict.INVARIANT for r in scales):
        yield "no ε"

"""Proofs and exact refutations of claims by their ids, and as evidence."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from lngeom._core.text import counted
from lngeom.claims.evidence import Evidence, Kind, Reach, Role
from lngeom.claims.papers import find
from lngeom.claims.registry import _PROVERS, load

if TYPE_CHECKING:
    from lngeom.claims.registry import Prover
    from lngeom.symbolic.proof import Counterexample, Proof

LEMMA = "lemma."
"""How names of lemmas begin, which are no claims."""
_FALSE = {"refuted": Role.REFUTES, "slip": Role.MISPRINT}
"""What a counterexample shows, by the verdict that it establishes."""


@cache
def proof_of(claim_id: str) -> Proof | Counterexample | None:
    """The proof or exact refutation of a claim, checked as it is made; None where there is none.

    Args:
        claim_id: id of the claim, such as ``"table1.ln.weight_matrix_rescaling"``.

    Returns:
        Proof or counterexample, whose `establishes` says what it shows.

    Raises:
        ProofError: if a step fails, or if the proof is not of the kind that it is said to be.
    """
    from lngeom.symbolic.proof import Counterexample, ProofError, labelled

    if claim_id not in _PROVERS:
        load()
    if claim_id not in _PROVERS:
        return None
    establishes, prover = _PROVERS[claim_id]
    found = labelled(prover(), claim_id, establishes)
    if establishes in _FALSE and not (isinstance(found, Counterexample) and found.correction):
        raise ProofError(f"{claim_id}: a refutation needs an exact counterexample and a proof of the correction")
    if establishes == "conditional" and not any(a.when_dropped for a in getattr(found, "assumptions", ())):
        raise ProofError(f"{claim_id}: a conditional proof needs a counterexample for a dropped assumption")
    return found


def provable() -> tuple[str, ...]:
    """Ids of the lemmas, and of the claims that have a proof or an exact refutation, in order of registration."""
    load()
    return tuple(_PROVERS)


def prover_of(claim_id: str) -> Prover | None:
    """The function that makes the proof or exact refutation of a claim; None where there is none."""
    load()
    return _PROVERS[claim_id][1] if claim_id in _PROVERS else None


def proof_evidence(id: str, *, steps: bool = True, paper: str = "") -> tuple[Evidence, ...]:
    """Makes, and so checks, the proof or exact refutation of a claim.

    Args:
        id: the claim's id.
        steps: whether the evidence has the formulas of the steps, which take time to write.
        paper: what the claim's paper is found by, where that is not lngeom's own (`lngeom.claims.papers.find`).

    Returns:
        Evidence: a proof, its lemmas, one counterexample for each condition that it drops, and a correction where the
        claim is refuted. A proof that fails to check is evidence that did not pass. Empty where there is no proof.
    """
    from lngeom.symbolic.proof import Proof, ProofError

    if paper:
        find(paper)
    try:
        found = proof_of(id)
    except ProofError as error:
        return (Evidence(Kind.PROOF, Role.SUPPORTS, f"the proof does not check: {error}", passed=False),)
    if found is None:
        return ()
    if isinstance(found, Proof):
        return (_proof(found, Role.SUPPORTS, steps), *_lemmas(found, steps), *_dropped(found))
    role = _FALSE.get(found.establishes, Role.SUPPORTS)
    evidence = [_counterexample(found, "exact counterexample", role)]
    if found.correction:
        evidence.append(_proof(found.correction, Role.SUPPORTS if role is Role.SUPPORTS else Role.CORRECTS, steps))
    return tuple(evidence)


def _lemmas(proof, written: bool) -> list[Evidence]:
    """Those of the lemmas that are no claims, which are shown by themselves."""
    lemmas = [lemma for lemma in proof.lemmas if lemma.name.startswith(LEMMA)]
    return [
        replace(_proof(one, Role.SUPPORTS, written), description=f"{one.name}, {counted(len(one.steps), 'step')}")
        for one in lemmas
    ]


def _proof(proof, role: Role, written: bool) -> Evidence:
    steps = [{"part": "given", "text": a.text, "latex": a.latex} for a in proof.assumptions if written]
    steps += [{"part": "step", **s.as_dict()} for s in proof.steps if written]
    what = "proof" if role is Role.SUPPORTS else "proof of the correction"
    at = f", at {proof.sizes}" if proof.sizes else ""
    return Evidence(
        Kind.PROOF,
        role,
        f"{what}, {counted(len(proof.steps), 'step')}{at}",
        passed=True,
        samples=len(proof.steps),
        statement=proof.statement,
        steps=steps,
        reach=Reach.SIZES if proof.sizes else Reach.ALL,
        sizes=proof.sizes,
    )


def _dropped(proof) -> list[Evidence]:
    return [
        _counterexample(a.when_dropped, f"exact counterexample without: {a.text}", Role.FAILS_WITHOUT_CONDITION)
        for a in proof.assumptions
        if a.when_dropped and proof.establishes == "conditional"
    ]


def _counterexample(example, description: str, role: Role) -> Evidence:
    values = _instance(example)
    steps = [{"part": "instance", "text": f"{name} =", "latex": latex} for name, latex in values.items()]
    changes = example.changes(example.instance) if example.changes else ()
    steps += [{"part": "change", "text": " → ".join(c.names), **c.as_dict()} for c in changes]
    steps.append({"part": "step", "text": example.text, "latex": _sides(example)})
    return Evidence(
        Kind.PROOF,
        role,
        description,
        passed=True,
        samples=len(values),
        statement=example.statement,
        steps=steps,
        reach=Reach.INSTANCE,
    )


def _instance(example) -> dict[str, str]:
    import sympy

    return {name: sympy.latex(value) for name, value in example.instance.items()}


def _sides(example) -> str:
    import sympy

    return rf"{sympy.latex(example.left)} \neq {sympy.latex(example.right)}"

"""Which claims have a proof or an exact refutation, and how to get it."""

from collections.abc import Callable
from functools import cache

from lngeom.symbolic.proof import Counterexample, Establishes, Proof, ProofError, establishing

Evidence = Proof | Counterexample

_PROVERS: dict[str, tuple[Establishes, Callable[[], Evidence]]] = {}


def proves(
    claim_id: str, establishes: Establishes = "holds"
) -> Callable[[Callable[[], Evidence]], Callable[[], Evidence]]:
    """Registers a function that makes the evidence for a claim.

    Args:
        claim_id: permanent id of the claim.
        establishes: what the evidence says about it.

    Returns:
        A decorator, which leaves the function as it is.

    Raises:
        ValueError: if the claim has evidence already.
    """
    if claim_id in _PROVERS:
        raise ValueError(f"claim {claim_id!r} already has a proof; claim ids are unique")

    def register(prover: Callable[[], Evidence]) -> Callable[[], Evidence]:
        _PROVERS[claim_id] = (establishes, prover)
        return prover

    return register


@cache
def proof_of(claim_id: str) -> Evidence | None:
    """The proof or exact refutation of a claim, checked as it is made; None where there is none.

    Args:
        claim_id: id of the claim, such as ``"table1.ln.weight_matrix_rescaling"``.

    Returns:
        Evidence whose `establishes` says what it shows.

    Raises:
        ProofError: if a step fails, or if the evidence is not of the kind that it is said to be.
    """
    if claim_id not in _PROVERS:
        return None
    establishes, prover = _PROVERS[claim_id]
    evidence = establishing(prover(), establishes)
    if establishes == "refuted" and not (isinstance(evidence, Counterexample) and evidence.correction):
        raise ProofError(f"{claim_id}: a refutation needs an exact counterexample and a proof of the correction")
    if establishes == "conditional" and not any(a.when_dropped for a in getattr(evidence, "assumptions", ())):
        raise ProofError(f"{claim_id}: a conditional proof needs a counterexample for a dropped assumption")
    return evidence


def provable() -> tuple[str, ...]:
    """Ids of the claims that have a proof or an exact refutation, in order of registration."""
    return tuple(_PROVERS)

"""Proofs and exact refutations as evidence, looked up by a claim's id."""

from collections.abc import Sequence

from lngeom.claims._evidence import Evidence, Kind, Role


def provable() -> tuple[str, ...]:
    """Ids of the claims for which `lngeom.symbolic` has a proof or an exact refutation."""
    from lngeom import symbolic

    return symbolic.provable()


def proof_evidence(id: str) -> tuple[Evidence, ...]:
    """Makes, and so checks, the proof or exact refutation of a claim.

    Args:
        id: the claim's id.

    Returns:
        Evidence: a proof, one counterexample for each condition that it drops, and a correction where the claim is
        refuted. A proof that fails to check is evidence that did not pass. Empty where there is no proof.
    """
    from lngeom import symbolic

    try:
        found = symbolic.proof_of(id)
    except symbolic.ProofError as error:
        return (Evidence(Kind.PROOF, Role.SUPPORTS, f"the proof does not check: {error}", passed=False),)
    if found is None:
        return ()
    if isinstance(found, symbolic.Proof):
        return (_proof(found, Role.SUPPORTS), *_dropped(found))
    role = Role.REFUTES if found.establishes == "refuted" else Role.SUPPORTS
    evidence = [_counterexample(found, "exact counterexample", role)]
    if found.correction:
        evidence.append(_proof(found.correction, Role.CORRECTS if role is Role.REFUTES else Role.SUPPORTS))
    return tuple(evidence)


def _proof(proof, role: Role) -> Evidence:
    steps = [{"part": "given", "text": a.text, "latex": a.latex} for a in proof.assumptions]
    steps += [{"part": "step", "text": s.text, "latex": s.latex} for s in proof.steps]
    what = "proof" if role is Role.SUPPORTS else "proof of the correction"
    return Evidence(
        Kind.PROOF,
        role,
        f"{what}, {_count(proof.steps, 'step')}",
        passed=True,
        samples=len(proof.steps),
        statement=proof.statement,
        steps=steps,
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
    steps.append({"part": "step", "text": example.text, "latex": _sides(example)})
    return Evidence(
        Kind.PROOF,
        role,
        description,
        passed=True,
        samples=len(values),
        statement=example.statement,
        steps=steps,
    )


def _instance(example) -> dict[str, str]:
    import sympy

    return {name: sympy.latex(value) for name, value in example.instance.items()}


def _sides(example) -> str:
    import sympy

    return rf"{sympy.latex(example.left)} \neq {sympy.latex(example.right)}"


def _count(items: Sequence, noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"

"""What a process in a copy does: it checks claims and writes their verdicts.

It reads a request from standard input and writes one line of JSON for every claim. The data are small and fixed.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

SHAPE = 100, 6
"""Rows and columns of the data, standard normal; those of the tests of claims."""


def differs(verdict: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether a claim notices: another verdict, or an error that was not there.

    Args:
        verdict: of the claim, as `verdicts` writes it.
        expected: the same on code without a fault.

    Returns:
        Whether they differ.
    """
    return verdict["verdict"] != expected["verdict"] or bool(verdict["error"]) > bool(expected["error"])


def main() -> None:
    """Checks the claims of the request in their order, up to the first that differs from what is expected."""
    request, answers = json.load(sys.stdin), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what claims print is no answer

    def answer(**values: Any) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    import jax
    import lngeom
    from threadpoolctl import threadpool_limits

    if (where := Path(lngeom.__file__).resolve().parents[1]) != Path.cwd().resolve():
        sys.exit(f"lngeom is imported from {where}, not from the copy in {Path.cwd()}")
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)

    from lngeom.claims import Problem, registry
    from lngeom.claims.proofs import proof_evidence

    claims = {claim.id: claim for claim in registry.all_claims("all")}
    answer(ready=True)
    expected = request["expected"]
    with threadpool_limits(1, user_api="blas"):
        problem = Problem(jax.random.normal(jax.random.key(9), SHAPE), seed=1)
        for id in request["claims"]:
            outcome = registry.run(claims[id], problem, proof_evidence if request["proofs"] else None)
            found = {"verdict": outcome.verdict.value, "error": outcome.error}
            answer(id=id, seconds=round(outcome.seconds, 2), **found)
            if expected and differs(found, expected[id]):
                return

"""The engine of the audit: statements with their numeric checks, proofs and verdicts.

The claims themselves stand in `papers`. They are loaded when they are first asked for.

It may import `_core`, `families`, `information`, `methods`, `symbolic`.
"""

from lngeom.claims.context import Read
from lngeom.claims.evidence import NoEvidence, Role, Verdict, agree, decide, differ, same_integer, vanishes
from lngeom.claims.papers import Paper
from lngeom.claims.problem import Problem
from lngeom.claims.registry import all_claims, claim, proves, run

__all__ = [
    "NoEvidence",
    "Paper",
    "Problem",
    "Read",
    "Role",
    "Verdict",
    "agree",
    "all_claims",
    "claim",
    "decide",
    "differ",
    "proves",
    "run",
    "same_integer",
    "vanishes",
]

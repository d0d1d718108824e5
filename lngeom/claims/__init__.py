"""Claims of papers, each with its numeric check and, where there is one, its proof: `all_claims`, `run`.

The claims stand in one folder a paper, one file a topic; they are loaded when they are first asked for.
"""

from lngeom.claims.context import Read
from lngeom.claims.evidence import NoEvidence, Role, Verdict, agree, decide, differ, same_integer, vanishes
from lngeom.claims.papers import Paper
from lngeom.claims.problem import Problem
from lngeom.claims.proofs import proves
from lngeom.claims.registry import all_claims, claim, run

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

"""Claims of papers, each with its numeric check and, where there is one, its proof: `all_claims`, `run`.

The claims stand in one folder a paper, one file a topic; they are loaded when they are first asked for.
"""

from lngeom.claims._comparison import TrainingStatement as TrainingStatement
from lngeom.claims._evidence import (
    Evidence as Evidence,
    Kind as Kind,
    NoEvidence as NoEvidence,
    Role as Role,
    Strength as Strength,
    Verdict as Verdict,
    agree as agree,
    decide as decide,
    differ as differ,
    same_integer as same_integer,
    vanishes as vanishes,
)
from lngeom.claims._problem import NORMALIZERS as NORMALIZERS, TITLES as TITLES, Case as Case, Problem as Problem
from lngeom.claims._proofs import (
    proof_evidence as proof_evidence,
    proof_of as proof_of,
    provable as provable,
    proves as proves,
)
from lngeom.claims._registry import (
    ON_REQUEST as ON_REQUEST,
    Claim as Claim,
    Outcome as Outcome,
    all_claims as all_claims,
    claim as claim,
    register as register,
    run as run,
)
from lngeom.claims._results import NoResults as NoResults, read_curves as read_curves

"""The claims of *Layer Normalization* (2016), each with a check: `all_claims`, `run`."""

from lngeom.claims._comparison import TrainingStatement as TrainingStatement
from lngeom.claims._evidence import (
    Evidence as Evidence,
    Kind as Kind,
    NoEvidence as NoEvidence,
    Role as Role,
    Strength as Strength,
    Verdict as Verdict,
    decide as decide,
)
from lngeom.claims._problem import Problem as Problem
from lngeom.claims._proofs import proof_evidence as proof_evidence, provable as provable
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

# Topics register their claims on import, and are listed in this order.
# isort: off
from lngeom.claims import invariance as invariance
from lngeom.claims import fisher as fisher
from lngeom.claims import nullspace as nullspace
from lngeom.claims import scaling as scaling
from lngeom.claims import metric as metric
from lngeom.claims import statements as statements
from lngeom.claims import recurrent as recurrent
from lngeom.claims import dynamics as dynamics
from lngeom.claims import learning_rate as learning_rate
from lngeom.claims import trajectories as trajectories
from lngeom.claims import effective_rate as effective_rate
from lngeom.claims import equilibria as equilibria
from lngeom.claims import experiments as experiments
from lngeom.claims import extended as extended
# isort: on

"""The claims of *Layer Normalization* (2016), each with a check: `all_claims`, `run`."""

from lngeom.claims import (  # registers their claims, in this order
    invariance as invariance,
    fisher as fisher,
    nullspace as nullspace,
    scaling as scaling,
    metric as metric,
    statements as statements,
    reserved as reserved,
)
from lngeom.claims._evidence import (
    Evidence as Evidence,
    Kind as Kind,
    Role as Role,
    Strength as Strength,
    Verdict as Verdict,
    decide as decide,
)
from lngeom.claims._problem import Problem as Problem
from lngeom.claims._registry import (
    Claim as Claim,
    Outcome as Outcome,
    all_claims as all_claims,
    claim as claim,
    register as register,
    reserve as reserve,
    run as run,
)

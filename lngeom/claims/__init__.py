"""The claims of *Layer Normalization* (2016), each with a check: `all_claims`, `run`."""

from lngeom.claims import (
    fisher as fisher,
)
from lngeom.claims import (  # registers their claims, in this order
    invariance as invariance,
)
from lngeom.claims import (
    metric as metric,
)
from lngeom.claims import (
    nullspace as nullspace,
)
from lngeom.claims import (
    reserved as reserved,
)
from lngeom.claims import (
    scaling as scaling,
)
from lngeom.claims import (
    statements as statements,
)
from lngeom.claims._evidence import (
    Evidence as Evidence,
)
from lngeom.claims._evidence import (
    Kind as Kind,
)
from lngeom.claims._evidence import (
    Role as Role,
)
from lngeom.claims._evidence import (
    Strength as Strength,
)
from lngeom.claims._evidence import (
    Verdict as Verdict,
)
from lngeom.claims._evidence import (
    decide as decide,
)
from lngeom.claims._problem import Problem as Problem
from lngeom.claims._registry import (
    Claim as Claim,
)
from lngeom.claims._registry import (
    Outcome as Outcome,
)
from lngeom.claims._registry import (
    all_claims as all_claims,
)
from lngeom.claims._registry import (
    claim as claim,
)
from lngeom.claims._registry import (
    register as register,
)
from lngeom.claims._registry import (
    reserve as reserve,
)
from lngeom.claims._registry import (
    run as run,
)

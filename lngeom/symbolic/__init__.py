"""Proofs and exact counterexamples by computer algebra: what is settled for all sizes, without rounding."""

from lngeom.symbolic import (
    completeness as completeness,
)
from lngeom.symbolic import (
    dynamics as dynamics,
)
from lngeom.symbolic import (
    fisher_blocks as fisher_blocks,
)
from lngeom.symbolic import (
    glm as glm,
)
from lngeom.symbolic import (
    growth as growth,
)
from lngeom.symbolic import (
    invariance as invariance,
)
from lngeom.symbolic import (
    magnitude as magnitude,
)
from lngeom.symbolic import (
    nullspaces as nullspaces,
)
from lngeom.symbolic import (
    optimizers as optimizers,
)
from lngeom.symbolic import (
    statements as statements,
)
from lngeom.symbolic.proof import (
    Assumption as Assumption,
)
from lngeom.symbolic.proof import (
    Counterexample as Counterexample,
)
from lngeom.symbolic.proof import (
    Proof as Proof,
)
from lngeom.symbolic.proof import (
    ProofError as ProofError,
)
from lngeom.symbolic.proof import (
    Step as Step,
)
from lngeom.symbolic.registry import proof_of as proof_of
from lngeom.symbolic.registry import provable as provable
from lngeom.symbolic.registry import proves as proves
from lngeom.symbolic.table import prove as prove

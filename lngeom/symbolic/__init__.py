"""Proofs and exact counterexamples by computer algebra: what is settled for all sizes, without rounding."""

from lngeom.symbolic import (
    completeness as completeness,
    dynamics as dynamics,
    exceptions as exceptions,
    extended as extended,
    fisher_blocks as fisher_blocks,
    glm as glm,
    growth as growth,
    invariance as invariance,
    magnitude as magnitude,
    nullspaces as nullspaces,
    optimizers as optimizers,
    statements as statements,
)
from lngeom.symbolic.proof import (
    Assumption as Assumption,
    Counterexample as Counterexample,
    Proof as Proof,
    ProofError as ProofError,
    Step as Step,
)
from lngeom.symbolic.registry import proof_of as proof_of, provable as provable, proves as proves
from lngeom.symbolic.table import prove as prove

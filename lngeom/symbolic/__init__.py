"""Proofs and exact counterexamples by computer algebra: what is settled for all sizes, without rounding."""

from lngeom.symbolic.proof import (
    Assumption as Assumption,
    Counterexample as Counterexample,
    Proof as Proof,
    ProofError as ProofError,
    Step as Step,
    equality as equality,
)
from lngeom.symbolic.table import prove as prove

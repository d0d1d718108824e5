"""Proofs and exact counterexamples by computer algebra: what is settled for all sizes, without rounding.

It may import `methods`.
"""

from lngeom.symbolic.own import method
from lngeom.symbolic.proof import Counterexample, Proof, equality
from lngeom.symbolic.table import prove

__all__ = ["Counterexample", "Proof", "equality", "method", "prove"]

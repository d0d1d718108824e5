"""Claims about the effective learning rate of normalized networks, on a network small enough to audit."""

# isort: off
from lngeom.claims.training import learning_rate as learning_rate
from lngeom.claims.training import equivalence as equivalence
from lngeom.claims.training import exponential as exponential
from lngeom.claims.training import effective_rate as effective_rate
from lngeom.claims.training import equilibria as equilibria
# isort: on

"""Claims about the effective learning rate of normalized networks, on a network small enough to audit."""

# isort: off
from lngeom.papers.training import learning_rate as learning_rate
from lngeom.papers.training import equivalence as equivalence
from lngeom.papers.training import exponential as exponential
from lngeom.papers.training import effective_rate as effective_rate
from lngeom.papers.training import equilibria as equilibria
# isort: on

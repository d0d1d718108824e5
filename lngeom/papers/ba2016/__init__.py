"""The claims of *Layer Normalization* (Ba, Kiros and Hinton, 2016), one file a topic, in the order they are listed."""

# isort: off
from lngeom.papers.ba2016 import table1 as table1
from lngeom.papers.ba2016 import rescaling as rescaling
from lngeom.papers.ba2016 import prenorm as prenorm
from lngeom.papers.ba2016 import exceptions as exceptions
from lngeom.papers.ba2016 import kl_metric as kl_metric
from lngeom.papers.ba2016 import score as score
from lngeom.papers.ba2016 import riemannian as riemannian
from lngeom.papers.ba2016 import glm as glm
from lngeom.papers.ba2016 import fisher as fisher
from lngeom.papers.ba2016 import nullspace as nullspace
from lngeom.papers.ba2016 import nullspace_points as nullspace_points
from lngeom.papers.ba2016 import stacks as stacks
from lngeom.papers.ba2016 import scaling as scaling
from lngeom.papers.ba2016 import metric as metric
from lngeom.papers.ba2016 import statements as statements
from lngeom.papers.ba2016 import sentences as sentences
from lngeom.papers.ba2016 import recurrent as recurrent
from lngeom.papers.ba2016 import hidden_dynamics as hidden_dynamics
# isort: on

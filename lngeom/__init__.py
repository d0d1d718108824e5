"""The geometry of normalization layers: invariances, Fisher matrices, null spaces, effective learning rates."""

from lngeom import families as families
from lngeom import normalizers as normalizers
from lngeom import transformations as transformations
from lngeom._types import GLMParameters as GLMParameters
from lngeom.glm import NormalizedGLM as NormalizedGLM
from lngeom.information import (
    from_paper_order as from_paper_order,
)
from lngeom.information import (
    predicted_nullspace as predicted_nullspace,
)
from lngeom.information import (
    to_paper_order as to_paper_order,
)

__version__ = "0.1.0"

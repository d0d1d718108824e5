"""The geometry of normalization layers: invariances, Fisher matrices, null spaces, effective learning rates."""

from lngeom import families as families, normalizers as normalizers, transformations as transformations
from lngeom._types import GLMParameters as GLMParameters
from lngeom.glm import NormalizedGLM as NormalizedGLM
from lngeom.information import (
    FisherOperator as FisherOperator,
    fisher as fisher,
    from_paper_order as from_paper_order,
    predicted_nullspace as predicted_nullspace,
    to_paper_order as to_paper_order,
)

__version__ = "0.1.0"

"""The geometry of normalization layers: invariances, Fisher matrices, null spaces, effective learning rates."""

from lngeom import families as families, normalizers as normalizers, transformations as transformations
from lngeom._types import GLMParameters as GLMParameters
from lngeom.glm import NormalizedGLM as NormalizedGLM

__version__ = "0.1.0"

"""The geometry of normalization layers: invariances, Fisher matrices, null spaces, effective learning rates."""

import importlib

from lngeom import (
    families as families,
    metric as metric,
    normalizers as normalizers,
    transformations as transformations,
)
from lngeom._types import GLMParameters as GLMParameters
from lngeom.glm import NormalizedGLM as NormalizedGLM
from lngeom.information import (
    FisherOperator as FisherOperator,
    fisher as fisher,
    from_paper_order as from_paper_order,
    to_paper_order as to_paper_order,
)
from lngeom.nullspace import predicted_nullspace as predicted_nullspace

__version__ = "0.1.0"

_LAZY = ("checks", "claims", "discovery", "nn", "plots", "report", "strategies", "studies", "symbolic", "training")
_NAMES = {"check_invariances": "checks", "discover_symmetries": "discovery"}


def __getattr__(name: str):
    """Imports heavy subpackages lazily."""
    if name in _LAZY:
        return importlib.import_module(f"lngeom.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"lngeom.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'lngeom' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Every public name, including those that are imported lazily."""
    return sorted([*(n for n in globals() if not n.startswith("_")), *_LAZY, *_NAMES])

"""The geometry of normalization layers: invariances, Fisher matrices, null spaces, effective learning rates."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lngeom import (
        families as families,
        metric as metric,
        normalizers as normalizers,
        transformations as transformations,
    )
    from lngeom._types import GLMParameters as GLMParameters
    from lngeom.glm import NormalizedGLM as NormalizedGLM
    from lngeom.information import FisherOperator as FisherOperator, fisher as fisher
    from lngeom.information.reference import from_paper_order as from_paper_order, to_paper_order as to_paper_order
    from lngeom.nullspace import predicted_nullspace as predicted_nullspace

__version__ = "0.1.0"

_MODULES = (
    *("checks", "claims", "discovery", "families", "information", "metric", "nn", "normalizers", "plots", "report"),
    *("strategies", "studies", "symbolic", "training", "transformations"),
)
_NAMES = {
    "GLMParameters": "_types",
    "NormalizedGLM": "glm",
    "FisherOperator": "information",
    "fisher": "information",
    "from_paper_order": "information",
    "to_paper_order": "information",
    "predicted_nullspace": "nullspace",
    "check_invariances": "checks",
    "discover_symmetries": "discovery",
}


def __getattr__(name: str) -> Any:
    """Imports subpackages, and the functions they give to the top, when they are first asked for."""
    if name in _MODULES:
        return importlib.import_module(f"lngeom.{name}")
    if name not in _NAMES:
        raise AttributeError(f"module 'lngeom' has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module(f"lngeom.{_NAMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    """Every public name, including those that are imported lazily."""
    return sorted({*(n for n in globals() if not n.startswith("_")), *_MODULES, *_NAMES})

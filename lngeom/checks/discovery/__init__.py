"""Discovery of the affine symmetries of any layer, in its weights and in its inputs."""

from lngeom.checks.discovery._discover import discover_symmetries
from lngeom.checks.discovery._discrete import discrete_symmetries

__all__ = ["discover_symmetries", "discrete_symmetries"]

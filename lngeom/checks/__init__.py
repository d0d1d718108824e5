"""Checks of a layer's invariances, their precision, and the scales at which they hold."""

from lngeom.checks.adapters import adapt
from lngeom.checks.model import check_model
from lngeom.checks.suite import check_invariances, generate_checks, parametrize_with_invariances

__all__ = ["adapt", "check_invariances", "check_model", "generate_checks", "parametrize_with_invariances"]

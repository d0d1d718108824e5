"""Checks of a layer's invariances, their precision, and the scales at which they hold."""

from lngeom.checks._suite import check_invariances, generate_checks, parametrize_with_invariances
from lngeom.checks.adapters import adapt

__all__ = ["adapt", "check_invariances", "generate_checks", "parametrize_with_invariances"]

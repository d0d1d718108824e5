"""What a layer or a model really does: its invariances and their precision, lint, symmetries nobody named.

It may import `_core`, `families`, `information`, `methods`, `nn`.
"""

from lngeom.checks.adapters import adapt
from lngeom.checks.derivatives.check import check_derivatives, parametrize_with_derivatives
from lngeom.checks.model import check_model
from lngeom.checks.suite import check_invariances, generate_checks, parametrize_with_invariances

__all__ = [
    "adapt",
    "check_derivatives",
    "check_invariances",
    "check_model",
    "generate_checks",
    "parametrize_with_derivatives",
    "parametrize_with_invariances",
]

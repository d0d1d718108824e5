"""Known mistakes around norms, found in a model by what they do to its activations."""

from lngeom.checks.linting.engine import lint

__all__ = ["lint"]

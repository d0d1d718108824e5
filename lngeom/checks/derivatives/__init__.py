"""Whether the derivatives of a layer are those of its outputs, in every mode of differentiation.

`lngeom.checks.check_derivatives` is the door, in `check`. A layer becomes a function of one `vector`; `differences` of
its values are the reference; `routes` are the modes and how they nest; `examine` compares, `diagnosis` says what is
wrong and why, `program` shows it.
"""

from lngeom.checks.derivatives.report import Answer, Derivative, Derivatives

__all__ = ["Answer", "Derivative", "Derivatives"]

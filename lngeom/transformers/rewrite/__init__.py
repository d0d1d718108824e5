"""Exact rewrites of transformers, each with a certificate; the steps are in `steps`."""

from lngeom.transformers.rewrite import steps as steps
from lngeom.transformers.rewrite.canonical import canonical as canonical
from lngeom.transformers.rewrite.certificate import Certificate as Certificate
from lngeom.transformers.rewrite.checkpoints import save as save
from lngeom.transformers.rewrite.comparison.certifying import certify as certify
from lngeom.transformers.rewrite.comparison.verdict import Comparison as Comparison
from lngeom.transformers.rewrite.folders import load as load
from lngeom.transformers.rewrite.rewriting import (
    Rewritten as Rewritten,
    apply as apply,
    check_description as check_description,
)
from lngeom.transformers.rewrite.step import Refused as Refused

__all__ = [
    "Certificate",
    "Comparison",
    "Refused",
    "Rewritten",
    "apply",
    "canonical",
    "certify",
    "check_description",
    "load",
    "save",
    "steps",
]

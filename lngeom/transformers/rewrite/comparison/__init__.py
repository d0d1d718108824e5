"""Comparing two transformers: whether they are one function, and the first part that differs, with its cause."""

from lngeom.transformers.rewrite.comparison.causes import Cause as Cause
from lngeom.transformers.rewrite.comparison.certifying import certify as certify
from lngeom.transformers.rewrite.comparison.sweep import Local as Local
from lngeom.transformers.rewrite.comparison.verdict import Comparison as Comparison

__all__ = ["Cause", "Comparison", "Local", "certify"]

"""Verdicts as text, as JSON and as a web page."""

from lngeom.report.document import write

__all__ = ["write"]

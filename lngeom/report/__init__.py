"""Verdicts as text, as JSON and as a web page.

It may import `_core`, `claims`, `families`, `information`, `methods`, `papers`, `symbolic`, `training`.
"""

from lngeom.report.document import write

__all__ = ["write"]

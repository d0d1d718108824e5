"""Verdicts as text, as JSON and as a web page. Nothing here computes."""

from lngeom.report._document import SCHEMA as SCHEMA
from lngeom.report._document import document as document
from lngeom.report._document import dumps as dumps
from lngeom.report._document import write as write
from lngeom.report._page import page as page
from lngeom.report._terminal import (
    claims_table as claims_table,
)
from lngeom.report._terminal import (
    errata as errata,
)
from lngeom.report._terminal import (
    listing as listing,
)
from lngeom.report._terminal import (
    summary as summary,
)
from lngeom.report._terminal import (
    table1 as table1,
)

"""Verdicts as text, as JSON and as a web page."""

from lngeom.report._document import SCHEMA as SCHEMA, document as document, dumps as dumps, write as write
from lngeom.report._fisher import fisher as fisher
from lngeom.report._page import page as page
from lngeom.report._tables import tables as tables
from lngeom.report._terminal import (
    claims_table as claims_table,
    clashes as clashes,
    errata as errata,
    extended as extended,
    listing as listing,
    notices as notices,
    numbers_alone as numbers_alone,
    problems as problems,
    remarks as remarks,
    summary as summary,
    table1 as table1,
)

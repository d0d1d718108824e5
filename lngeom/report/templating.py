"""The templates of this package, and the digests by which pages name their scripts."""

import base64
import hashlib

import jinja2

from lngeom.claims import palette
from lngeom.report import errata


def digest(text: str) -> str:
    """Base64 of the SHA-256 of a script or a style sheet, as a content-security policy names it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def environment(*, pages: bool = True) -> jinja2.Environment:
    """The templates, strict about missing values.

    Args:
        pages: whether they are pages, in which text is escaped and blocks leave no lines; else files of other kinds.

    Returns:
        The environment.
    """
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("lngeom.report", "templates"),
        autoescape=pages,
        undefined=jinja2.StrictUndefined,
        trim_blocks=pages,
        lstrip_blocks=pages,
        keep_trailing_newline=not pages,
    )
    found.filters["digest"] = digest
    found.filters["heading"] = errata.heading
    found.globals |= {
        "colours": palette.colours(),
        "looks": [palette.css_name(verdict.value) for verdict in palette.VERDICTS],
        "grounds": [palette.css_name(answer) for answer in palette.ANSWERS],
    }
    found.policies["json.dumps_kwargs"] = {"sort_keys": False}  # rows and columns keep their order
    return found

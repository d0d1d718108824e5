"""The report as one self-contained web page: it renders the JSON document and adds nothing."""

from collections.abc import Mapping
from typing import Any

import jinja2
import markupsafe
from latex2mathml.converter import convert


def page(document: Mapping[str, Any]) -> str:
    """Renders a report document as HTML which needs no network.

    Args:
        document: what `document` returns.

    Returns:
        The page's text.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lngeom.report", "templates"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["mathml"] = lambda latex: markupsafe.Markup(convert(latex, display="block"))
    return environment.get_template("report.html.j2").render(report=document)

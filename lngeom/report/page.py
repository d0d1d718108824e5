"""The JSON document as one self-contained web page."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from lngeom.claims import Read, names, registry
from lngeom.report import errata, explorer, marks, second_check
from lngeom.report.mathml import lines, mathml, prose, typeset
from lngeom.report.templating import digest, environment
from lngeom.symbolic.notation import from_latex, notation

STRENGTHS = {
    "proof": "proved",
    "proof at sizes": "proved at some sizes",
    "counterexample": "exact counterexample",
    "numeric": "supported",
    "experiment": "measured",
}
SOFTWARE = "lngeom: the geometry of normalization layers"
"""The title under which lngeom is cited, as in CITATION.cff."""

LARGEST_TABLE = 8
"""Rows and columns up to which a matrix is shown as numbers; a larger one is a picture."""


class Searched(NamedTuple):
    """By what the page's search finds a claim.

    Attributes:
        ids: its id, and those of claims that were merged into it.
        keys: as `lngeom.claims.names.Tokens`.
        words: likewise.
    """

    ids: tuple[str, ...]
    keys: tuple[str, ...]
    words: str


def searched(record: Mapping[str, Any]) -> Searched:
    """By what the page's search finds the claim of a record.

    Args:
        record: of the claim, in the document.
    """
    ids = (record["id"], *registry.former_ids(record["id"]))
    found = names.tokens(*sum(names.texts({**record, "formerly": ids[1:]}), ()))
    return Searched(ids, tuple(sorted(found.keys)), found.words)


def page(document: Mapping[str, Any], around: Mapping[str, str] | None = None) -> str:
    """Renders a report document as HTML which needs no network and runs no script but its own.

    Args:
        document: result of `document`.
        around: title → address of other pages of the same site.

    Returns:
        The page's text.
    """
    templates = environment()
    templates.filters |= {
        "mathml": mathml,
        "lines": lines,
        "prose": prose,
        "scientific": marks.scientific,
        "plain": from_latex,
        "small": lambda rows: len(rows) <= LARGEST_TABLE and all(len(row) <= LARGEST_TABLE for row in rows),
    }
    templates.globals |= {
        "rules": names.rules(),
        "searched": searched,
        "symbols": marks.SYMBOLS,
        "read": Read,
        "strengths": STRENGTHS,
        "second_check": second_check.checked,
        "software": SOFTWARE,
        "legend": typeset(notation()),
        "headline": errata.headline,
        "errors": errata.errors,
        "origins": errata.origins,
        "tally": errata.tally,
        "printed": errata.printed,
        "residual_bar": marks.residual_bar,
        "residual_strip": marks.residual_strip,
        "heat_map": marks.heat_map,
        "curve": marks.curve,
    }
    script = templates.get_template("report.js").render()
    style = templates.get_template("report.css").render()
    content = explorer.content() if document["tables"] else None  # its cells lead to the claims of Table 1
    if content:
        script, style = script + explorer.script(content), style + explorer.style()
    return templates.get_template("report.html.j2").render(
        report=document, around=around or {}, script=script, style=style, script_digest=digest(script), content=content
    )

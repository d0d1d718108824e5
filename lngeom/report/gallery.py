"""The index of audited papers: papers × verdicts, and what was found in them, the most consequential first."""

from collections.abc import Mapping
from typing import Any

from lngeom.claims.erratum import Consequence
from lngeom.report import errata, marks
from lngeom.report.mathml import prose
from lngeom.report.templating import digest, environment

SCHEMA = "lngeom.papers/1"


def index(documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The index as plain data.

    Args:
        documents: id of a paper → its report (`lngeom.report.document.document`).

    Returns:
        A dictionary for `json.dumps`.
    """
    papers = [
        report["paper"] | {"verdicts": report["summary"]["verdicts"], "differ": report["summary"]["differ"]}
        for report in documents.values()
    ]
    first = next(iter(documents.values()))
    return {
        "schema": SCHEMA,
        "versions": first["versions"],
        "data": first["data"],
        "seed": first["seed"],
        "papers": papers,
        "errors": {rank.value: _errors(documents, rank) for rank in Consequence},
    }


def _errors(documents: Mapping[str, Mapping[str, Any]], rank: Consequence) -> list[dict[str, str]]:
    """The errors of one rank in all papers."""
    return [
        {"paper": id, "claim": claim["id"], "verdict": claim["verdict"], "source": claim["source"]}
        | {"title": claim["erratum"]["title"]}
        for id, report in documents.items()
        for claim in errata.errors(report["claims"]).get(rank.value, [])
    ]


def page(index: Mapping[str, Any], around: Mapping[str, str] | None = None) -> str:
    """The index as one self-contained web page, beside whose folder the reports of the papers stand.

    Args:
        index: result of `index`.
        around: title → address of other pages of the same site.

    Returns:
        The page's text.
    """
    templates = environment()
    templates.filters["prose"] = prose
    style = templates.get_template("report.css").render()
    script = templates.get_template("theme.js").render()
    shown = [v for v in marks.SYMBOLS if any(paper["verdicts"].get(v) for paper in index["papers"])]
    return templates.get_template("gallery.html.j2").render(
        index=index,
        around=around or {},
        verdicts=shown,
        symbols=marks.SYMBOLS,
        style=style,
        script=script,
        script_digest=digest(script),
    )

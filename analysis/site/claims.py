"""The pages of the claims, from the registry: no audit is run."""

import re
from collections.abc import Iterable
from functools import cache
from html import escape

from lngeom.claims import all_claims, palette
from lngeom.claims.registry import Claim
from lngeom.report.mathml import mathml, prose

SECTIONS = {
    "1": "Introduction",
    "2": "Background",
    "3": "Layer normalization",
    "3.1": "Recurrent networks",
    "4": "Related work",
    "5": "Analysis",
    "5.1": "Invariance under transformations of weights and data",
    "5.2": "Geometry of the parameter space",
    "5.2.1": "Riemannian metric",
    "5.2.2": "Normalized generalized linear models",
    "6.1": "Order-embeddings",
    "6.2": "Attentive reader",
    "6.3": "Skip-thought vectors",
    "6.4": "DRAW",
    "6.5": "Handwriting",
    "6.6": "Permutation invariant MNIST",
    "6.7": "Convolutional networks",
    "7": "Conclusion",
    "Supplement": "",
    "Beyond the paper": "",
}
"""Sections of the paper with claims, in its order."""

LAST_EQUATIONS = {"2": 2, "3": 3, "3.1": 4, "5.1": 7, "5.2.1": 9, "5.2.2": 14, "Supplement": 35}
"""Section → its last numbered equation."""

FLOATS = {"Table 1": "5.1", "Table 3": "6.3", "Figure 6": "6.6"}
"""Tables and figures of the paper that claims name → their sections."""

EXTENDED = "Table 1, extended"


def section_of(source: str) -> str:
    """The section of the paper that a claim's source names first.

    Args:
        source: of a claim, such as "Eq. 6" or "Section 5.2.2; Appendix".

    Returns:
        A key of `SECTIONS`.

    Raises:
        ValueError: if the source names no section, equation, table or figure that is known.
    """
    if source.startswith("Supplement"):
        return "Supplement"
    if source == "beyond the paper":
        return "Beyond the paper"
    if found := re.match(r"(?:beyond )?Sections? ([\d.]*\d)", source):
        return found[1]
    if found := re.match(r"Eqs?\. (\d+)", source):
        return next(section for section, last in LAST_EQUATIONS.items() if int(found[1]) <= last)
    if found := re.match(r"(?:Table|Figure) \d+", source):
        return FLOATS[found[0]]
    raise ValueError(f"the source {source!r} names no section of the paper")


@cache
def page_of() -> dict[str, str]:
    """Claim id → address of its page."""
    return {c.id: f"claims/{'extended' if c.source == EXTENDED else 'index'}.html" for c in all_claims("all")}


def pages() -> dict[str, str]:
    """The list by section, and the list of the extended table.

    Returns:
        Path → Markdown.
    """
    claims = all_claims("all")
    sections: dict[str, list[Claim]] = {section: [] for section in SECTIONS}
    extended = [c for c in claims if c.source == EXTENDED]
    for claim in claims:
        if claim.source != EXTENDED:
            sections[section_of(claim.source)].append(claim)
    return {"claims/index.md": _by_section(sections), "claims/extended.md": _extended(extended)}


def style() -> str:
    """The style sheet of the marks of verdicts: white text on the colours of the palette."""
    looks = ((palette.css_name(verdict.value), look.light) for verdict, look in palette.VERDICTS.items())
    return "".join(f".verdict.{name} {{ background: {colour}; }}\n" for name, colour in looks)


def _by_section(sections: dict[str, list[Claim]]) -> str:
    parts = [
        "# Claims by section of the paper",
        "A verdict here is the recorded one. `lngeom verify` derives each again from its evidence on your data, and "
        "`lngeom verify --claim ID` derives one. `lngeom prove ID` prints the proof of a claim that has one. Cells of "
        "the [extended table](extended.md) are on a page of their own.",
    ]
    for section, claims in sections.items():
        if claims:
            title = f"Section {section}: {SECTIONS[section]}" if SECTIONS[section] else section
            parts += [f"## {title}", _list(claims)]
    return "\n\n".join(parts)


def _extended(claims: list[Claim]) -> str:
    columns: dict[str, list[Claim]] = {}
    for claim in claims:
        columns.setdefault(claim.id.rpartition(".")[2], []).append(claim)
    parts = [
        "# Claims of the extended table",
        "`lngeom verify --topic extended` derives these verdicts again. The other claims are listed "
        "[by section of the paper](index.md).",
    ]
    for column, rows in columns.items():
        parts += [f"## {column.replace('_', ' ').capitalize()}", _list(rows)]
    return "\n\n".join(parts)


def _list(claims: Iterable[Claim]) -> str:
    return '<div class="claims">\n' + "\n".join(map(_entry, claims)) + "\n</div>"


def _entry(claim: Claim) -> str:
    """One claim: verdict, id as its anchor, source, statement, formula, conditions and correction."""
    look = palette.VERDICTS[claim.expected]
    verdict = (
        f'<span class="verdict {palette.css_name(claim.expected.value)}">{look.sign} {claim.expected.value}</span>'
    )
    rows = [
        f'<p class="about">{verdict} '
        f'<a href="#{claim.id}"><code>{claim.id}</code></a> <span class="source">{escape(claim.source)}</span></p>',
        f"<p>{prose(claim.statement)}</p>",
    ]
    if claim.formula:
        rows.append(f'<p class="formula" tabindex="0">{mathml(claim.formula, "inline")}</p>')
    if claim.assumptions:
        rows.append(f"<p><b>Conditions:</b> {'; '.join(map(prose, claim.assumptions))}</p>")
    if claim.correction:
        rows.append(f"<p><b>Correction:</b> {prose(claim.correction)}</p>")
    return f'<div class="claim" id="{claim.id}">{"".join(rows)}</div>'

"""Small inline SVG drawings of numbers, coloured by the page's style sheet, and numbers as text."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from markupsafe import Markup

from lngeom.claims import palette

SYMBOLS = {verdict.value: look.sign for verdict, look in palette.VERDICTS.items()}
"""The mark of each verdict."""

LOWEST, HIGHEST = -18.0, 2.0
"""Decades of the axis of residuals."""

BINS = 44
"""Blocks along a side that a large matrix is drawn with, each by its largest entry."""

SMALL = 480
"""Width below which a drawing is for narrow pages."""

LEVELS = 5
DECADES = 2.5


def scientific(value: Any, digits: int = 1) -> str:
    """A number as text.

    Args:
        value: a number, or the text of a number that is not finite.
        digits: digits after the point.

    Returns:
        Text.

    Example:
        >>> scientific(2.36e-15), scientific(0.0), scientific("inf"), scientific(None)
        ('2.4×10⁻¹⁵', '0', 'inf', '–')
    """
    if value is None or isinstance(value, str):
        return value or "–"
    if value == 0 or 0.01 <= abs(value) < 1000:
        return f"{value:.3g}"
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{power}" if mantissa == "1" else f"{mantissa}×10{power}"


def _decade(value: float) -> float:
    exponent = math.log10(value) if value > 0 else LOWEST
    return (min(max(exponent, LOWEST), HIGHEST) - LOWEST) / (HIGHEST - LOWEST)


def residual_bar(evidence: Mapping[str, Any], width: int = 180, height: int = 14) -> Markup:
    """A residual on a logarithmic axis, with the passing range and the tolerance.

    Args:
        evidence: a record of the document.
        width: pixels.
        height: pixels.

    Returns:
        An SVG, hidden from screen readers since the page also shows the numbers. Empty where there is no number.
    """
    residual, tolerance = evidence["residual"], evidence["tolerance"]
    if not isinstance(residual, (int, float)) or not isinstance(tolerance, (int, float)):
        return Markup()
    inner = width - 2 * height
    at, limit = (height + inner * _decade(v) for v in (residual, tolerance))
    start, end = (limit, width) if evidence["kind"] == "counterexample" else (0, limit)
    good = "none" if evidence["no_evidence"] else "ok" if evidence["passed"] else "bad"
    middle = height / 2
    return Markup(
        f'<svg class="bar" width="{width}" height="{height}" viewBox="0 0 {width} {height}" aria-hidden="true">'
        f'<rect class="axis" y="{middle - 1:g}" width="{width}" height="2"/>'
        f'<rect class="range" x="{start:.1f}" y="3" width="{max(end - start, 2):.1f}" height="{height - 6}"/>'
        f'<rect class="limit" x="{limit - 1:.1f}" width="2" height="{height}"/>'
        f'<circle class="{good}" cx="{at:.1f}" cy="{middle:g}" r="4.5"/></svg>'
    )


def residual_strip(claims: Sequence[Mapping[str, Any]], width: int = 960, height: int = 190) -> Markup:
    """Every residual of the audit on one logarithmic axis: what should agree above, what should differ below.

    Args:
        claims: records of the document.
        width: of the drawing's own units.
        height: of the drawing's own units.

    Returns:
        An SVG that scales with the page; of the class "small" if it is for a narrow one.
    """
    left, right, bands = 92, 12, {"agreement": (14, 64), "counterexample": (92, 64)}
    names = {"agreement": "should agree", "counterexample": "should differ"}

    def place(value: float) -> float:
        return left + (width - left - right) * _decade(value)

    parts, counts = [], dict.fromkeys(bands, 0)
    for power in range(int(LOWEST), int(HIGHEST) + 1, 4):
        x = place(10.0**power)
        label = ("≤ " if power == LOWEST else "") + scientific(10.0**power, 0)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="8" y2="{height - 26}"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 10}" text-anchor="middle">{label}</text>')
    for kind, (top, size) in bands.items():
        parts.append(f'<text x="0" y="{top + size / 2 + 4:g}">{names[kind]}</text>')
    for claim in claims:
        for e in claim["evidence"]:
            exact = e["kind"] == "counterexample" and not e["tolerance"]  # the text says what is seen, not the number
            if e["kind"] not in bands or not isinstance(e["residual"], (int, float)) or exact:
                continue
            top, size = bands[e["kind"]]
            y = top + 5 + (counts[e["kind"]] * 0.618034 % 1) * (size - 10)  # golden ratio: spread without chance
            counts[e["kind"]] += 1
            title = escape(f"{claim['id']}: {e['description']}, {scientific(e['residual'])}")
            style = "none" if e["no_evidence"] else e["kind"] if e["passed"] else "bad"
            parts.append(
                f'<circle class="{style}" cx="{place(e["residual"]):.1f}" cy="{y:.1f}" r="4"><title>{title}</title>'
                "</circle>"
            )
    label = f"{counts['agreement']} residuals of what should agree, {counts['counterexample']} of what should differ"
    style = "strip small" if width < SMALL else "strip"
    return Markup(
        f'<svg class="{style}" viewBox="0 0 {width} {height}" role="img" aria-label="{label}, on a logarithmic axis">'
        f"{''.join(parts)}</svg>"
    )


def heat_map(rows: Sequence[Sequence[Any]], name: str, size: int = 264) -> Markup:
    """A matrix as a picture: blue positive, orange negative, darker by the decade; large ones in blocks.

    Args:
        rows: entries.
        name: what the matrix is.
        size: pixels of the longer side.

    Returns:
        An SVG.
    """
    height, width = len(rows), len(rows[0]) if rows else 0
    values = [[v if isinstance(v, (int, float)) else math.nan for v in row] for row in rows]
    step = max(1, math.ceil(max(height, width) / BINS))
    largest = max((abs(v) for row in values for v in row if v == v), default=0.0)
    runs: dict[str, list[str]] = {}
    for top in range(0, height, step):
        line = [_block(values, top, left, step, largest) for left in range(0, width, step)]
        start = 0
        for end in range(1, len(line) + 1):
            if end == len(line) or line[end] != line[start]:
                runs.setdefault(line[start], []).append(f"M{start} {top // step}h{end - start}v1h{start - end}z")
                start = end
    across, down = math.ceil(width / step), math.ceil(height / step)
    scale = size / max(across, down, 1)
    blocks = "".join(f'<path class="{level}" d="{"".join(d)}"/>' for level, d in runs.items() if level)
    text = f"{name}: {height} by {width}, largest entry {scientific(largest, 2)}"
    return Markup(
        f'<svg class="heat" width="{across * scale:.0f}" height="{down * scale:.0f}" viewBox="0 0 {across} {down}" '
        f'role="img" aria-label="{escape(text)}" shape-rendering="crispEdges">'
        f'<rect class="ground" width="{across}" height="{down}"/>{blocks}</svg>'
    )


def _block(values, top: int, left: int, step: int, largest: float) -> str:
    """Style of a block: sign and decade of its largest entry, or nothing where it is zero."""
    entries = [v for row in values[top : top + step] for v in row[left : left + step] if v == v]
    extreme = max(entries, key=abs, default=0.0)
    if not largest or abs(extreme) <= largest * 10**-DECADES:
        return ""
    level = math.ceil(LEVELS * (1 + math.log10(abs(extreme) / largest) / DECADES))
    return ("p" if extreme > 0 else "n") + str(max(level, 1))


def curve(xs: Sequence[float], ys: Sequence[float], name: str, width: int = 300, height: int = 180) -> Markup:
    """A curve with a mark at every value, on logarithmic axes where everything is positive.

    Args:
        xs: abscissas.
        ys: ordinates.
        name: what the curve is.
        width: pixels.
        height: pixels.

    Returns:
        An SVG; nothing where there is nothing finite.
    """
    points = [
        (x, y) for x, y in zip(xs, ys, strict=True) if isinstance(x, (int, float)) and isinstance(y, (int, float))
    ]
    if not points:
        return Markup()
    boxes = ((56, width - 14), (height - 30, 12))
    places, ticks = zip(*(_axis(v, *box) for v, box in zip(zip(*points, strict=True), boxes, strict=True)), strict=True)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(*places, strict=True))
    marks = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in zip(*places, strict=True))
    labels = "".join(f'<text x="{p:.1f}" y="{height - 12}" text-anchor="middle">{t}</text>' for p, t in ticks[0])
    labels += "".join(f'<text x="50" y="{p + 4:.1f}" text-anchor="end">{t}</text>' for p, t in ticks[1])
    return Markup(
        f'<svg class="curve" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(name)}, {len(points)} values"><path class="frame" d="M56 12V{height - 30}H{width - 14}"/>'
        f'<polyline points="{path}"/>{marks}{labels}</svg>'
    )


def _axis(values: Sequence[float], start: float, end: float):
    """Places of values on an axis, and the places and labels of its two ends."""
    logarithmic = min(values) > 0
    scaled = [math.log10(v) if logarithmic else v for v in values]
    low, high = min(scaled), max(scaled)
    span = high - low or 1.0
    places = [start + (end - start) * (v - low) / span for v in scaled]
    ends = dict.fromkeys((min(values), max(values)))
    return places, [(start + (end - start) * (i if len(ends) > 1 else 0), scientific(v)) for i, v in enumerate(ends)]

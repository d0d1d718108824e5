"""One palette of verdicts and answers: report, explorer, site, figures and terminal read it, and it can be read."""

import re
from pathlib import Path

import lngeom.report
import pytest
from analysis.site import claims as site_claims
from lngeom.claims import Verdict, palette
from lngeom.claims.evidence import Verdict as Kind
from lngeom.methods.page import Cell
from lngeom.plots import style
from lngeom.report import explorer, marks
from lngeom.report.templating import environment
from lngeom.report.terminal_tables import CELL_STYLES, STYLES

TEMPLATES = Path(lngeom.report.__file__).parent / "templates"
SITE = Path(site_claims.__file__).parent / "pages" / "assets" / "site.css"
HEX = re.compile(r"#[0-9a-fA-F]{3,8}\b")
GROUND, INK = ("#ffffff", "#14171c"), ("#1a1d21", "#e6e8eb")


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def sheets() -> dict[str, str]:
    templates = environment()
    return {
        "report": templates.get_template("report.css").render(),
        "explorer": templates.get_template("explorer.page.css").render() + explorer.style(),
        "site": site_claims.style(),
    }


def test_every_verdict_and_answer_has_a_look():
    assert set(palette.VERDICTS) == set(Verdict) == set(Kind)
    assert set(palette.ANSWERS) == {"invariant", "no", "up to sign", "unknown"}
    assert len({look.sign for look in palette.VERDICTS.values()}) == len(palette.VERDICTS)


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_verdict_is_readable_on_both_grounds(verdict):
    look = palette.VERDICTS[verdict]
    assert contrast(look.light, GROUND[0]) >= 4.5
    assert contrast(look.dark, GROUND[1]) >= 4.5


@pytest.mark.parametrize("answer", palette.ANSWERS)
def test_text_is_readable_on_the_ground_of_a_cell(answer):
    look = palette.ANSWERS[answer]
    assert contrast(look.light, INK[0]) >= 7
    assert contrast(look.dark, INK[1]) >= 7


def test_invariant_and_no_differ_without_colours():
    greys = [luminance(palette.ANSWERS[answer].light) for answer in ("invariant", "no")]
    assert greys[1] - greys[0] > 0.2


def test_style_sheets_have_the_colours_of_the_palette():
    found = sheets()
    for name, (light, dark) in palette.colours().items():
        assert f"--{name}: light-dark({light}, {dark});" in found["report"], name
        assert f"--{name}: light-dark({light}, {dark});" in found["explorer"], name
    for verdict, look in palette.VERDICTS.items():
        name = palette.css_name(verdict.value)
        assert f".{name} {{ color: var(--{name}); }}" in found["report"]
        assert f".verdict.{name} {{ background: {look.light}; }}" in found["site"]
    for answer in map(palette.css_name, palette.ANSWERS):
        assert f".cell-{answer} {{ background: var(--cell-{answer}); }}" in found["report"]


def written_by_hand() -> dict[str, set[str]]:
    """Colours of the palette that stand in a template, and so would not follow it."""
    own = {colour.lower() for pair in palette.colours().values() for colour in pair}
    files = [*TEMPLATES.glob("*.css"), *TEMPLATES.glob("*.js"), *TEMPLATES.glob("*.j2"), SITE]
    found = {p.name: {c.lower() for c in HEX.findall(p.read_text("utf-8"))} & own for p in files}
    return {name: colours for name, colours in found.items() if colours}


def test_no_file_repeats_a_colour_of_the_palette(monkeypatch):
    assert not written_by_hand()
    monkeypatch.setattr(palette, "BLUE", ("#565d66", "#56b4e9"))  # the grey of quiet text, which a sheet has by hand
    assert "palette.css" in written_by_hand()


def test_no_verdict_is_coloured_by_hand():
    names = "|".join(palette.css_name(verdict.value) for verdict in Verdict)
    files = [*TEMPLATES.glob("*.css"), SITE]
    assert not [p.name for p in files if re.search(rf"(?:--|\.)(?:{names})\s*[:{{][^}};]*#", p.read_text("utf-8"))]


def test_pages_figures_and_terminal_read_the_palette():
    for verdict, look in palette.VERDICTS.items():
        assert marks.SYMBOLS[verdict.value] == look.sign
        assert STYLES[verdict] == look.terminal
    assert {answer: look.light for answer, look in palette.ANSWERS.items()} == style.ANSWERS
    for cell, answer in ((Cell.INVARIANT, "invariant"), (Cell.SIGN, "up to sign"), (Cell.CHANGED, "no")):
        assert CELL_STYLES[cell] == palette.ANSWERS[answer].terminal

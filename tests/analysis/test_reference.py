"""The API reference shows formulas as mathematics and every exported name."""

import lngeom
import lngeom.information
from analysis.reference import documented, with_mathml
from lngeom.information import reference


def test_formulas_become_mathml_and_the_rest_is_left_to_markdown():
    seen = []
    html = with_mathml(lambda text: seen.append(text) or text)(r"so $w_i$ of `$HOME` and $$a \_b$$ end")
    assert html.startswith('so <math display="inline"><msub>')
    assert '<math display="block">' in html
    assert "`$HOME`" in html
    assert "w_i" not in seen[0]


def test_a_package_shows_what_it_exports_and_its_public_modules():
    modules = (lngeom, lngeom.information, reference)
    assert {"fisher", "information"} <= set(documented(lngeom, modules))
    assert set(documented(lngeom.information, modules)) == {*lngeom.information.__all__, "reference"}

"""The API reference shows formulas as mathematics and every exported name."""

from analysis.reference import exported, with_mathml


def test_formulas_become_mathml_and_the_rest_is_left_to_markdown():
    seen = []
    html = with_mathml(lambda text: seen.append(text) or text)(r"so $w_i$ of `$HOME` and $$a \_b$$ end")
    assert html.startswith('so <math display="inline"><msub>')
    assert '<math display="block">' in html
    assert "`$HOME`" in html
    assert "w_i" not in seen[0]


def test_exported_names_are_those_imported_under_their_own_name():
    assert exported("from a import b as b, c as d, e\nimport f as f") == ["b"]

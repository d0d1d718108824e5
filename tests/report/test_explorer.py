"""The explorer: one small file with the numbers of the library, in a real browser where there is one."""

import html
import json
import re
import urllib.parse
import webbrowser
import xml.etree.ElementTree as ET

import jax
import lngeom as lg
import numpy as np
import pytest
from lngeom.claims import paper
from lngeom.claims.proofs import provable
from lngeom.claims.registry import all_claims
from lngeom.cli import programs
from lngeom.cli.commands import app
from lngeom.report import explorer, templating
from lngeom.report.page import page as build_report
from typer.testing import CliRunner

from tests import cases
from tests.report import test_page

browser = test_page.browser  # the fixture: Chromium, or a skip
opened_report, document, text = test_page.opened, test_page.document, test_page.text
LIMIT = 40_000


@pytest.fixture(scope="module")
def page():
    return explorer.page()


@pytest.fixture(scope="module")
def given():
    return json.loads(json.dumps(explorer.content()))


def run(monkeypatch, tmp_path, *args):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(programs, "compile_sparingly", lambda: None)
    return CliRunner().invoke(app, ["explore", *args])


@pytest.mark.thorough
def test_the_command_writes_one_small_file_and_opens_it_if_asked(monkeypatch, tmp_path, page):
    seen = []
    monkeypatch.setattr(webbrowser, "open", lambda address: seen.append(address) or True)
    result = run(monkeypatch, tmp_path, "--out", "new/page.html")
    assert (result.exit_code, seen) == (0, []), result.output
    written = tmp_path / "new/page.html"
    assert written.read_text(encoding="utf-8") == page
    assert [p.name for p in written.parent.iterdir()] == ["page.html"]
    assert 20_000 < written.stat().st_size <= LIMIT
    assert run(monkeypatch, tmp_path, "--open").exit_code == 0
    assert seen == [(tmp_path / "explorer.html").as_uri()]
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    assert "open explorer.html yourself" in run(monkeypatch, tmp_path, "--open").output


def test_a_page_is_written_to_html_alone(monkeypatch, tmp_path):
    result = run(monkeypatch, tmp_path, "--out", "page.txt")
    assert result.exit_code == 2
    assert "name it with .html, such as page.html" in " ".join(result.output.split())
    assert not (tmp_path / "page.txt").exists()


@pytest.mark.parametrize("out", ["file/page.html", "folder"])
def test_a_place_that_cannot_be_written_is_one_clear_error(monkeypatch, tmp_path, out):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(explorer, "page", lambda: pytest.fail("worked before it checked"))
    result = run(monkeypatch, tmp_path, "--out", out)
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1, result.output
    assert "--out" in result.output
    assert not list((tmp_path / "folder").iterdir())


def test_only_the_page_s_own_script_and_style_may_run_and_nothing_is_fetched(page):
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1])
    (script,), (style,) = (re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL) for tag in ("script", "style"))
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert f"script-src 'sha256-{templating.digest(script)}'" in policy
    assert f"style-src 'sha256-{templating.digest(style)}'" in policy
    assert set(re.findall(r"https?://[^\"' ]*", page)) == {"http://www.w3.org/2000/svg"}  # a name in a saved drawing
    assert not re.search(r"\b(src|action)=|\bfetch\(|XMLHttpRequest|import\(|@import|url\(|eval\(", page)
    assert not re.search(r'\bstyle="|\son\w+="', page)


def test_the_values_are_those_of_the_library_and_of_textbook_formulas(given):
    """The second route is NumPy's: formulas of the norms, and a Jacobian of its own."""
    found = dict(given["values"])
    assert found == explorer.values()
    assert len(found) == 20
    assert all(value and np.isfinite(value) for value in found.values()), "a relative difference needs a value"
    W, X, g, b = (np.array(given["layer"][name]) for name in "WXgb")
    assert (len(W), *X.shape[::-1]) == explorer.SHAPE

    def factor(units, weights, norm="ln"):
        model = lg.NormalizedGLM(MODELS[norm], lg.families.Bernoulli())
        params = lg.GLMParameters(*map(jax.numpy.asarray, (weights, b[:units], g[:units])))
        return cases.numpy_factor(model, params, X[:, :2])[0] / len(X) ** 0.5

    A = factor(4, W[:4, :2])
    F, squares = A.T @ A, np.linalg.svd(A)[1] ** 2
    a = X[:7, :2] @ W[:3, :2].T
    outputs = {
        "bn": (a - a.mean(0)) / a.std(0),
        "wn": a / np.linalg.norm(W[:3, :2], axis=1),
        "ln": (a - a.mean(1, keepdims=True)) / a.std(1, keepdims=True),
    }
    expected = {f"output, {norm}": (n * g[:3] + b[:3])[2, 1] for norm, n in outputs.items()} | {
        "exact F, Frobenius norm": np.linalg.norm(F),
        "exact F, entry 1, 2": F[0, 1],
        "exact F, largest eigenvalue": squares[0],
        "exact F, smallest positive eigenvalue": squares[12],
        "nullity, H = 4, D = 2": np.sum(squares < 1e-20),
        "nullity, H = 8, D = 2": np.sum(np.linalg.svd(factor(8, W[:, :2]))[1] < 1e-10),
    }
    doubled = W[:4, :2] * np.array([2, 1, 1, 1])[:, None]
    for name, B, size in (
        ("block of w₁ at 2 w₁, bn", factor(4, doubled, "bn"), 2),
        ("block of w₁ at 2 w₁, wn", factor(4, doubled, "wn"), 2),
        ("block of W at 2 W, ln", factor(4, 2 * W[:4, :2]), 8),
    ):
        expected[name] = np.linalg.norm((B.T @ B)[:size, :size])
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-11), name


MODELS = {"bn": lg.normalizers.BatchNorm(), "wn": lg.normalizers.WeightNorm(), "ln": lg.normalizers.LayerNorm()}


def test_the_report_has_the_explorer_on_top_where_it_has_a_table(document):
    with_table, without = build_report(document), build_report(document | {"tables": []})
    assert with_table.count('id="explore"') == 1
    assert with_table.index('id="explore"') < with_table.index('id="summary"')
    assert "explore" not in without


def start(browser, tmp_path, page, fragment="", **options):
    """The page in a fresh window, what it said or asked for, and its address."""
    path = tmp_path / "explorer.html"
    path.write_text(page, encoding="utf-8")
    window = browser.new_context(**({"viewport": {"width": 1440, "height": 900}} | options)).new_page()
    said = []
    window.on("console", lambda message: said.append(message.text))
    window.on("pageerror", lambda error: said.append(str(error)))
    window.on("request", lambda r: said.append(r.url) if r.url.split("#")[0] != path.as_uri() else None)
    window.goto(path.as_uri() + fragment)
    return window, said


@pytest.fixture
def window(browser, tmp_path, page):
    window, said = start(browser, tmp_path, page)
    yield window
    assert said == []
    window.context.close()


def slide(window, name, value):
    script = (
        "(e, v) => { e.value = v; for (const n of ['input', 'change']) e.dispatchEvent(new Event(n, {bubbles: true})) }"
    )
    window.eval_on_selector(f"input[name={name}]", script, str(value))


def choose(window, name, value):
    window.check(f"input[name={name}][value='{value}']")


def shown(window, name):
    return window.text_content(f"#explore-{name}")


def test_all_values_agree_in_the_browser(window):
    assert shown(window, "check") == f"20 of 20 values agree with lngeom {lg.__version__} to 10⁻¹²."
    assert not window.query_selector("#explore .alarm")


@pytest.mark.parametrize("position", [0, 6, 15, 19])
def test_a_wrong_value_is_loud(browser, tmp_path, given, position):
    name, value = given["values"][position]
    values = [*given["values"][:position], [name, value * (1 + 1e-11)], *given["values"][position + 1 :]]
    window, _ = start(browser, tmp_path, explorer.page(given | {"values": values}))
    assert shown(window, "check").startswith("19 of 20 values agree")
    assert f"Do not trust this page. {name}: " in shown(window, "check")
    assert window.is_visible("#explore-check.alarm")
    window.context.close()


def test_every_cell_says_what_the_paper_says_and_names_its_claim(window):
    assert shown(window, "count") == "18 of 18 cells are as in the paper's Table 1."
    for norm, row in paper.TABLE1.items():
        for name, invariant in row.items():
            choose(window, "cell", f"{norm}.{name}")
            assert shown(window, f"{norm}-{name}") == ("Invariant" if invariant else "No")
            for size in (-3, 0.5, 3):
                slide(window, "size", size)
                words = "outputs stay;" if invariant else "outputs move;"
                assert words in shown(window, "table"), (norm, name, size)
            assert shown(window, "table").endswith(f"Claim: lngeom prove table1.{norm}.{name}")
    slide(window, "size", 0)
    assert "Nothing is changed yet" in shown(window, "table")


def test_a_cell_that_is_not_the_paper_s_is_loud(browser, tmp_path, given):
    wrong = given["paper"] | {"ln": given["paper"]["ln"] | {"dataset_rescaling": False}}
    window, _ = start(browser, tmp_path, explorer.page(given | {"paper": wrong}))
    assert shown(window, "count").startswith("17 of 18")
    assert window.is_visible("#explore-count.alarm")
    window.context.close()


def test_blocks_follow_the_square_except_where_the_output_moves(window):
    for norm in MODELS:
        for rows in ("one", "all"):
            choose(window, "of", norm)
            choose(window, "rows", rows)
            for power in (-3, -0.5, 1, 3):
                slide(window, "factor", power)
                words = shown(window, "half")
                block, printed, law = (float(x) for x in re.findall(r"(?:is|gives|c⁻²) ([\d.]*\d)", words))
                assert (printed, law) == pytest.approx((2**-power, 4**-power), rel=5e-3)
                assert (block == law) is not (norm == "ln" and rows == "one"), words


def test_null_spaces_have_the_dimension_that_the_library_predicts(window):
    for units in range(3, 9):
        for inputs in range(2, 5):
            slide(window, "units", units)
            slide(window, "inputs", inputs)
            words = shown(window, "fisher")
            found, theory = (int(x) for x in re.findall(r"(?:^|gives )(\d+)", words))
            assert f"of {units * (inputs + 2)} eigenvalues of the exact matrix are zero, 0 of the printed one" in words
            assert found == theory, words
            if (units, inputs) in {(3, 2), (5, 4), (8, 2), (8, 3)}:
                model = lg.NormalizedGLM(lg.normalizers.LayerNorm(), lg.families.Bernoulli())
                predicted = lg.predicted_nullspace(model, *explorer.layer(units, inputs, explorer.SHAPE[2]))
                assert predicted.exact
                assert found == predicted.dimension


def test_walks_along_null_directions_leave_the_outputs(window):
    null = {("ln", "scale"), ("ln", "shift"), ("bn", "scale"), ("bn", "row"), ("wn", "scale"), ("wn", "row")}
    for norm in MODELS:
        for name in ("scale", "shift", "row", "other"):
            choose(window, "with", norm)
            choose(window, "along", name)
            slide(window, "step", 1.5)
            words = shown(window, "null")
            stays = (norm, name) in null
            assert words.startswith("A null direction" if stays else "Not a null direction"), words
            assert ("the outputs stay;" in words) is stays, words


def test_the_norm_settles_where_the_library_predicts(window):
    for rate, decay in ((-0.7, -1.3), (-0.3, -0.5), (0, -0.5)):
        slide(window, "rate", rate)
        slide(window, "decay", decay)
        words = shown(window, "rate-words")
        eta, weight_decay = (float(f"{10**x:.2g}") for x in (rate, decay))
        turn = lg.training.predict_equilibrium("sgd", eta, weight_decay).angle
        now, settles = (float(x) for x in re.findall(r"(?:by|at) ([\d.]*\d)(?: rad|,)", words)[:2])
        assert settles == pytest.approx(turn, rel=5e-3)
        assert now == pytest.approx(turn, rel=1e-2)


def test_claims_that_the_page_names_exist_and_those_to_prove_have_a_proof(window):
    named = set()
    for norm in MODELS:
        for rows in ("one", "all"):
            choose(window, "of", norm)
            choose(window, "rows", rows)
            choose(window, "with", norm)
            named |= set(window.eval_on_selector_all("#explore code", "all => all.map(e => e.textContent)"))
    assert len(named) >= 11
    known, proved = {claim.id for claim in all_claims("all")}, set(provable())
    for command in named:
        *words, id = command.split(" ")
        assert id in known
        assert words == (["lngeom", "prove"] if id in proved else ["lngeom", "verify", "--claim"]), id


def test_the_page_can_be_used_with_the_keyboard_alone(window):
    window.focus("input[name=cell]:checked")
    before = shown(window, "table")
    window.keyboard.press("ArrowDown")
    assert shown(window, "table") != before
    window.focus("input[name=size]")
    window.keyboard.press("ArrowRight")
    assert "δ = 2.07" in shown(window, "size")
    assert window.get_attribute("input[name=size]", "aria-valuetext") == "δ = 2.07"
    stops = set()
    window.evaluate("document.activeElement.blur()")
    for _ in range(60):
        window.keyboard.press("Tab")
        stops.add(window.evaluate("document.activeElement.name || document.activeElement.textContent"))
    wanted = ["cell", "size", "of", "rows", "factor", "units", "inputs", "with", "along", "step", "rate", "decay"]
    assert {*wanted, "Save SVG", "Copy TikZ"} <= stops


def test_the_state_stands_in_the_address_and_comes_back(browser, window, tmp_path, page):
    choose(window, "cell", "bn.dataset_recentering")
    choose(window, "along", "row")
    slide(window, "size", -1.5)
    slide(window, "inputs", 3)
    fragment = window.evaluate("location.hash")
    again, said = start(browser, tmp_path, page, fragment)
    for name in ("table", "half", "fisher", "null", "rate-words"):
        assert shown(again, name) == shown(window, name)
    assert "Batch norm, X+γ, γ × -1.5" in shown(again, "table")
    assert said == []
    hostile = urllib.parse.urlencode({"size": "99", "cell": "<img src=x>", "along": "toString", "nothing": "1"})
    again.evaluate("hash => { location.hash = hash }", f"explore&{hostile}")
    test_page.until(again, "document.querySelector('#explore-size').textContent === 'γ × 3'")
    assert "Batch norm, X+γ, γ × 3" in shown(again, "table")
    assert said == []
    again.context.close()


def test_drawings_can_be_taken_along(browser, tmp_path, page):
    window, said = start(browser, tmp_path, page)
    ids = window.eval_on_selector_all("#explore figure", "all => all.map(f => f.dataset.id)")
    assert len(ids) == 10
    window.context.grant_permissions(["clipboard-read", "clipboard-write"])
    copy = window.locator(f"button[data-of={ids[0]}] >> nth=1")
    copy.click()
    test_page.until(window, "e => e.textContent === 'Copied'", copy.element_handle())
    copied = window.evaluate("navigator.clipboard.readText()")
    window.evaluate("void (navigator.clipboard.writeText = () => Promise.reject(new Error('refused')))")
    for id in ids:
        with window.expect_download() as download:
            window.click(f"button[data-of={id}] >> nth=0")
        assert download.value.suggested_filename == f"lngeom-{id}.svg"
        drawing = ET.fromstring(download.value.path().read_text(encoding="utf-8"))
        parts = [part for part in drawing if part.tag.split("}")[1] != "rect" or part.get("width") != "100%"]
        assert all(re.fullmatch("#[0-9a-f]{6}", part.get("color")) for part in parts)
        window.click(f"button[data-of={id}] >> nth=1")
        window.wait_for_selector(f"#explore-{id}-tikz")
        code = window.input_value(f"#explore-{id}-tikz")
        assert (code == copied) is (id == ids[0])
        assert re.search(r"\\begin\{tikzpicture\}.*\\end\{tikzpicture\}\n$", code, re.DOTALL)
        assert len(re.findall(r"^\\(?:draw|fill|node)\[", code, re.MULTILINE)) == len(parts)
        assert code.count("{") == code.count("}")
        assert code.count("$") % 2 == 0
        assert "NaN" not in code + str(parts)
    assert [s for s in said if not s.startswith("blob:")] == []
    window.context.close()


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_nothing_is_wider_than_the_window(window, width):
    window.set_viewport_size({"width": width, "height": 800})
    assert window.evaluate("document.documentElement.scrollWidth") <= width
    assert window.evaluate(test_page.WIDER) == []
    window.evaluate("document.styleSheets[0].insertRule('h2 { width: 200vw }')")
    assert window.evaluate("document.documentElement.scrollWidth") > width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(browser, tmp_path, page, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the `browser` extra").Axe()
    window, _ = start(browser, tmp_path, page, color_scheme=scheme, bypass_csp=True)
    found = axe.run(window)
    assert found.violations_count == 0, found.generate_report()
    window.evaluate("document.querySelector('td input').removeAttribute('aria-label')")
    window.evaluate("document.querySelector('td span').textContent = ''")
    assert [v["id"] for v in axe.run(window, options={"runOnly": ["label"]}).response["violations"]] == ["label"]
    window.context.close()


def test_in_the_report_cells_lead_to_their_claims(browser, tmp_path, text):
    window, said = start(browser, tmp_path, text)
    assert not window.is_visible("#explore")
    window.click("text=Explore")
    assert shown(window, "check").startswith("20 of 20 values agree")
    choose(window, "cell", "ln.dataset_rescaling")
    window.click("#explore-table a")
    test_page.until(window, "document.getElementById('table1.ln.dataset_rescaling').open")
    choose(window, "cell", "bn.dataset_rescaling")
    assert shown(window, "table").endswith("Claim: lngeom prove table1.bn.dataset_rescaling")
    assert window.evaluate("location.hash").startswith("#explore&")
    assert said == []
    window.context.close()

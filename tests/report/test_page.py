"""The report page, in a real browser where there is one: safe, reachable, readable at every width."""

import base64
import dataclasses
import hashlib
import html
import io
import json
import re
import shutil
import time

import numpy as np
import pytest
from lngeom.claims import Role, Verdict
from lngeom.claims.data import Dataset
from lngeom.claims.erratum import Consequence, Erratum
from lngeom.claims.evidence import Evidence, Kind, strength_of
from lngeom.claims.registry import Claim, Outcome
from lngeom.report import terminal
from lngeom.report.document import document as build_document, dumps
from lngeom.report.marks import heat_map, residual_bar
from lngeom.report.mathml import mathml, prose
from lngeom.report.page import page as build_page
from lngeom.report.tables import tables
from rich.console import Console

HOSTILE = "\"'><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">{{ 7 * 7 }}"
LONG = r"\frac{" + "+".join(f"a_{{{i}}}" for i in range(60)) + r"}{\left[\begin{matrix}1 & 2\\3 & 4\end{matrix}\right]}"


def proof(role=Role.SUPPORTS, text="by the definition of w_i"):
    steps = (
        {"part": "given", "text": "positive scale", "latex": r"\sigma > 0"},
        {"part": "step", "text": text, "latex": LONG},
    )
    return Evidence(Kind.PROOF, role, "proof, 1 step", True, samples=1, statement=r"z'=z", steps=steps)


def counterexample(role):
    steps = (
        {"part": "instance", "text": "W =", "latex": r"\left[\begin{matrix}1 & 0\\0 & 1\end{matrix}\right]"},
        {
            "part": "change",
            "text": "A → A'",
            "latex": "A, A'",
            "names": ("A", "A'"),
            "before": [["1", HOSTILE]],
            "after": [["2", HOSTILE]],
            "differs": [[True, False]],
        },
        {"part": "step", "text": "two sides", "latex": r"1 \neq 2"},
    )
    return Evidence(Kind.PROOF, role, "exact counterexample", True, samples=1, statement="z'=z", steps=steps)


def measured(kind, residual, role=Role.SUPPORTS, passed=True, **more):
    limit = 1e-3 if kind is Kind.COUNTEREXAMPLE else 1e-13
    return Evidence(kind, role, "measured", passed, residual=residual, tolerance=limit, samples=10, **more)


def outcome(id, topic, verdict, *evidence, expected=None, error="", **fields):
    correction = "True is w_i." if (expected or verdict) is Verdict.REFUTED else ""
    fields = {"statement": f"The statement of {id}.", "source": "Eq. 1", "correction": correction} | fields
    claim = Claim(id, topic=topic, expected=expected or verdict, **fields)
    return Outcome(claim, verdict, strength_of(verdict, evidence), evidence, 0.1, error)


def small_document():
    """A document with every kind of claim and evidence, and text that tries to be markup wherever text can stand."""
    same, other = measured(Kind.AGREEMENT, 3e-16), measured(Kind.COUNTEREXAMPLE, 0.4)
    large = np.subtract.outer(np.arange(60.0), np.arange(60.0))
    shown = {HOSTILE: np.eye(3), "large": large}
    curves = {HOSTILE: (np.array([1.0, 2.0, 4.0]), np.array([1.0, 0.25, 0.0625]))}
    outcomes = [
        outcome("table1.ln.dataset_rescaling", "invariance", Verdict.HOLDS, same, proof()),
        outcome("table1.ln.dataset_recentering", "invariance", Verdict.HOLDS, other, counterexample(Role.SUPPORTS)),
        outcome("extended.rms.weight_sign_flip", "extended", Verdict.HOLDS, other, same, formula=r"\frac{a}{b}"),
        outcome("extended.rms.dataset_rescaling", "extended", Verdict.HOLDS, same, formula=LONG),
        outcome(
            "equation.1",
            "fisher",
            Verdict.CONDITIONAL,
            same,
            counterexample(Role.FAILS_WITHOUT_CONDITION),
            assumptions=(HOSTILE, "ε = 0"),
        ),
        outcome(
            "equation.2",
            "fisher",
            Verdict.REFUTED,
            measured(Kind.COUNTEREXAMPLE, 0.3, Role.REFUTES, matrices=shown, curves=curves),
            proof(Role.CORRECTS, HOSTILE),
            statement=HOSTILE,
            source=HOSTILE,
            erratum=Erratum(Consequence.CONCLUSION, HOSTILE),
            formula=r"\text{" + HOSTILE + "}",
        ),
        outcome("equation.3", "other", Verdict.UNDECIDED, expected=Verdict.HOLDS, error=HOSTILE, why_numeric="zebra"),
    ]
    data = Dataset(
        inputs=np.ones((4, 2)), name=f"{HOSTILE}.npy", shape=(4, 2), rank=1, fingerprint="0" * 64, notes=(HOSTILE,)
    )
    return build_document(outcomes, data, 0)


@pytest.fixture(scope="module")
def document():
    return json.loads(dumps(small_document()))


@pytest.fixture(scope="module")
def text(document):
    return build_page(document)


SILENT = dataclasses.replace(measured(Kind.AGREEMENT, 2e-9), no_evidence="rounding alone may cause 1e-08", passed=False)
NAN = measured(Kind.COUNTEREXAMPLE, float("inf"), no_evidence="12 of 300 entries are NaN or infinite")
NOTHING = Evidence(Kind.AGREEMENT, Role.SUPPORTS, "numbers on this data", False, no_evidence="compared nothing")
OPPOSITE = measured(Kind.AGREEMENT, 0.5, passed=False, contradicts=True)
OWN = Dataset(inputs=np.ones((4, 2)), name="own.npy", shape=(4, 2), rank=1, fingerprint="0" * 64, notes=())


def troubled():
    """A proof that stands alone, a number against a proof, and a check that compared nothing."""
    return [
        outcome("table1.ln.dataset_rescaling", "invariance", Verdict.HOLDS, SILENT, proof()),
        outcome("table1.ln.dataset_recentering", "invariance", Verdict.HOLDS, NAN, counterexample(Role.SUPPORTS)),
        outcome("equation.1", "fisher", Verdict.CLASH, OPPOSITE, proof(), expected=Verdict.HOLDS),
        outcome("equation.2", "fisher", Verdict.UNDECIDED, NOTHING, expected=Verdict.HOLDS),
    ]


def test_numbers_that_are_no_evidence_and_clashes_are_in_the_document():
    found = json.loads(dumps(build_document(troubled(), OWN, 0)))
    summary, claims = found["summary"], found["claims"]
    assert summary["clash"] == ["equation.1"]
    assert summary["no_evidence"] == ["table1.ln.dataset_rescaling", "table1.ln.dataset_recentering", "equation.2"]
    assert summary["differ"] == ["equation.1", "equation.2"]
    assert claims[0]["evidence"][0]["no_evidence"] == "rounding alone may cause 1e-08"
    assert claims[1]["evidence"][0]["residual"] == "inf"
    assert not claims[1]["evidence"][0]["passed"]
    assert claims[2]["evidence"][0]["contradicts"]
    assert "it shows the opposite" in claims[2]["reasons"][0]
    assert claims[3]["reasons"] == ["numbers on this data: no evidence: compared nothing"]
    assert [c["deviation"] for c in found["tables"][0]["rows"][0]["cells"]] == [None, None]
    assert [c["says"] for c in found["tables"][0]["rows"][0]["cells"]] == ["invariant", "no"]


def test_flags_that_are_numpy_s_can_be_written():
    yes, no = np.bool_(True), np.bool_(False)
    mixed = Evidence(Kind.AGREEMENT, Role.SUPPORTS, "x", yes, vacuous=no, contradicts=no, residual=np.float64(1e-16))
    written = json.loads(dumps(build_document([outcome("equation.1", "t", Verdict.HOLDS, mixed)], OWN, 0)))
    assert written["claims"][0]["evidence"][0]["passed"] is True
    assert written["claims"][0]["evidence"][0]["contradicts"] is False


@pytest.mark.thorough
def test_the_page_gives_the_reasons_and_is_loud_about_a_clash(text):
    page = html.unescape(build_page(json.loads(dumps(build_document(troubled(), OWN, 0)))))
    assert "no evidence: rounding alone may cause 1e-08" in page
    assert "no evidence: 12 of 300 entries are NaN or infinite" in page
    assert "Clash: a number contradicts a proof or a recorded statement." in page
    assert "a number against it" in page
    assert "shows the opposite" in page
    assert "no evidence: compared nothing" in page
    assert "Clash: a number" not in text
    assert 'value="clash"' not in text


def test_a_narrow_terminal_keeps_all_that_is_said_of_a_claim():
    console = Console(width=40, record=True, file=io.StringIO())
    fine = outcome("equation.3", "fisher", Verdict.HOLDS, measured(Kind.AGREEMENT, 1e-16))
    console.print(terminal.short(fine))
    text = console.export_text()
    assert all(shown in text for shown in ("equation.3", "HOLDS numerically", "1 agreement", "= 1.0e-16"))
    assert max(map(len, text.splitlines())) <= 40
    assert "…" not in text


def test_the_terminal_gives_the_reasons_and_is_loud_about_a_clash():
    def printed(part):
        console = Console(width=200, record=True, file=io.StringIO())
        console.print(part)
        return console.export_text()

    outcomes = troubled()
    claims = "".join(printed(terminal.short(outcome)) for outcome in outcomes)
    remarks = printed(terminal.remarks(outcomes))
    for shown in (claims, remarks):
        assert "rounding alone may cause" in shown
        assert "12 of 300 entries" in shown
        assert "compared nothing" in shown
        assert "CLASH" in shown
    assert "CLASH in 1 claim" in printed(terminal.clashes(outcomes))
    found, fine = (
        "".join(map(printed, terminal.overview(o, build_document(o, OWN, 0)))) for o in (outcomes, outcomes[:2])
    )
    assert "Clash: a number contradicts a proof or a statement" in found
    assert terminal.clashes(outcomes[:2]) is None
    assert "clash" not in fine.lower()
    fine = [outcome("equation.3", "fisher", Verdict.HOLDS, measured(Kind.AGREEMENT, 1e-16))]
    assert terminal.remarks(fine) is None
    assert terminal.problems(fine, OWN) == terminal.notices(fine, OWN) == []


def test_a_proof_alone_is_enough_on_data_of_the_user_s_own_and_not_on_the_digits():
    alone = troubled()[:2]
    assert terminal.problems(alone, OWN) == []
    assert "2 of 2 claims have numbers that do not count as evidence" in terminal.notices(alone, OWN)[0]
    digits = dataclasses.replace(OWN, name="digits")
    assert terminal.problems(alone, digits)[0].startswith(
        "numbers that do not count as evidence: table1.ln.dataset_rescaling"
    )
    assert terminal.notices(alone, digits) == []
    assert "CLASH, a number contradicts a proof or a recorded statement: equation.1" in terminal.problems(
        troubled(), OWN
    )


def test_hostile_text_stays_text(text):
    assert text.count("<script") == 1
    assert "<img" not in text
    assert "{{ 7 * 7 }}" in text
    assert html.unescape(text).count(HOSTILE) >= 10


def test_only_the_page_s_own_script_may_run_and_nothing_is_fetched(text):
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1])
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy
    assert not re.search(r"""(src|action)=["'](https?:)?//|<(link|base)[^>]*href=["'](?!data:)""", text)
    assert set(re.findall(r'<a href="(\w+:[^"]*)"', text)) == {"https://arxiv.org/abs/1607.06450"}


@pytest.mark.parametrize(
    "latex",
    [
        r"\text{<img src=x onerror=alert(1)>}",
        r"\text{<script>alert(1)</script>}",
        r"\text{<img src='x' onerror='alert(1)'></img>}",
        r"\href{javascript:alert(1)}{x}",
        r"\style{background:url(x)}{y}",
        r"\color{red\" onload=\"alert(1)}{y}",
        r"\frac{",
    ],
)
def test_formulas_bring_no_markup_of_their_own(latex):
    found = mathml(latex)
    assert not re.search(r"<(?!/?(m[a-z]+|code)\b)|<[^>]*\b(href|style|class|on\w+|src)\b[^>]*=", found), found


def test_formulas_keep_their_meaning():
    assert mathml(r"\mathbf x_{i}", "inline") == (
        '<math display="inline"><msub><mi mathvariant="bold">x</mi><mi>i</mi></msub></math>'
    )
    assert prose("(Π)_ij of g_k² < a_name") == "(Π)<sub>ij</sub> of g<sub>k</sub>² &lt; a_name"


def test_marks_show_which_side_of_its_tolerance_a_residual_is_on(document):
    claim = document["claims"][0]["evidence"][0]
    below, above = residual_bar(claim), residual_bar(claim | {"residual": 1e-3, "passed": False})
    limit = float(re.search(r'"limit" x="([\d.]+)"', below)[1])
    assert float(re.search(r'class="ok" cx="([\d.]+)"', below)[1]) < limit
    assert float(re.search(r'class="bad" cx="([\d.]+)"', above)[1]) > limit
    assert residual_bar(claim | {"residual": "inf"}) == ""
    assert 'class="none"' in residual_bar(claim | {"no_evidence": "lost to rounding", "passed": False})


def test_a_matrix_picture_has_the_signs_of_its_entries():
    picture = heat_map([[1.0, 0.0], [-1.0, 1e-9]], "m")
    assert '<path class="p5" d="M0 0h1v1h-1z"/>' in picture
    assert '<path class="n5" d="M0 1h1v1h-1z"/>' in picture
    assert picture.count("<path") == 2


def test_tables_say_what_their_cells_rest_on(document):
    first, second = document["tables"]
    assert [c["says"] for c in first["rows"][0]["cells"]] == ["invariant", "no"]
    assert [c["says"] for c in second["rows"][0]["cells"]] == ["up to sign", "invariant"]
    other, same = measured(Kind.COUNTEREXAMPLE, 0.4), measured(Kind.AGREEMENT, 3e-16)
    checked = outcome("table1.ln.dataset_recentering", "invariance", Verdict.HOLDS, other, same)
    assert [c["says"] for c in tables([checked])[0]["rows"][0]["cells"]] == ["no"]
    assert first["columns"][0]["title"] == "Dataset re-scaling"
    assert first["rows"][0]["cells"][1]["deviation"] == 0.4


def test_the_notation_is_explained_once(text):
    assert text.count("<strong>Notation.</strong>") == 1
    assert "a<sub>ni</sub> = (W x<sub>n</sub>)<sub>i</sub>" in text


@pytest.fixture(scope="module")
def browser():
    driver = pytest.importorskip("playwright.sync_api", reason="the browser tests need the `browser` extra")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("the browser tests need Chromium on the path")
    with driver.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def address(text, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def opened(browser, address):
    """The page in a fresh window, and what it said or asked for."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    window = context.new_page()
    said = []
    window.on("console", lambda message: said.append(message.text))
    window.on("pageerror", lambda error: said.append(str(error)))
    window.on("request", lambda request: said.append(request.url) if request.url != address else None)
    window.on("dialog", lambda dialog: said.append(dialog.message))
    window.goto(address)
    yield window, said
    context.close()


def until(window, condition, *arguments):
    """Waits until an expression is true. The page's policy forbids the driver's own waiting, which evaluates text."""
    end = time.monotonic() + 30
    while not window.evaluate(condition, *arguments):
        assert time.monotonic() < end, condition
        window.wait_for_timeout(50)


def visible(window):
    return [claim.get_attribute("id") for claim in window.query_selector_all("details.claim") if claim.is_visible()]


def test_the_page_loads_silently_and_every_claim_can_be_reached(opened, document):
    window, said = opened
    ids = [claim["id"] for claim in document["claims"]]
    assert visible(window) == [id for id in ids if not id.startswith(("table1.", "extended."))]
    window.eval_on_selector_all("details.group", "d => d.forEach(x => x.open = true)")
    assert visible(window) == ids
    hashes = window.eval_on_selector_all("main a[href^='#']", "a => a.map(x => decodeURIComponent(x.hash.slice(1)))")
    targets = [hash.split("&")[0] for hash in hashes]
    assert set(ids) <= set(targets)
    assert all(window.evaluate("id => !!document.getElementById(id)", target) for target in targets)
    window.click(".grid td a >> nth=1")
    until(window, "document.getElementById('table1.ln.dataset_recentering').open")
    window.click("#open")
    assert all(window.eval_on_selector_all("details.claim", "d => d.map(x => x.open)"))
    assert window.title() == "Layer Normalization: an audit by lngeom"
    assert said == []


def test_search_and_filters_choose_claims(opened):
    window, said = opened
    window.fill("#search", "equation 2")
    assert visible(window) == ["equation.2"]
    window.fill("#search", "no such thing")
    assert visible(window) == []
    assert window.is_visible("#none")
    window.click("#reset")
    assert window.text_content("#shown") == "7 of 7 claims shown"
    window.select_option("#topic", "fisher")
    assert visible(window) == ["equation.1", "equation.2"]
    window.uncheck("#verdicts input[value=refuted]")
    assert visible(window) == ["equation.1"]
    assert window.text_content("#shown") == "1 of 7 claims shown"
    window.evaluate("location.hash = '#equation.2'")
    until(window, "document.getElementById('equation.2').open")
    assert window.text_content("#shown") == "7 of 7 claims shown"
    assert said == []


def test_the_page_can_be_used_with_the_keyboard_alone(opened):
    window, _ = opened
    window.keyboard.press("/")
    window.keyboard.type("equation.1")
    assert visible(window) == ["equation.1"]
    window.focus("details.claim:not([hidden]) > summary")
    window.keyboard.press("Enter")
    assert window.evaluate("document.getElementById('equation.1').open")


def test_mathematics_is_laid_out_by_the_browser(opened):
    window, _ = opened
    window.eval_on_selector_all("details", "d => d.forEach(x => x.open = true)")
    sizes = window.eval_on_selector_all(
        "main math", "m => m.map(x => [x.getBoundingClientRect().width, x.getBoundingClientRect().height])"
    )
    assert len(sizes) > 10
    assert all(width > 0 and height > 5 for width, height in sizes)
    fraction = window.evaluate(
        "(() => { const [a, b] = document.querySelector('mfrac').children; "
        "return b.getBoundingClientRect().top - a.getBoundingClientRect().top })()"
    )
    assert fraction > 5


WIDER = (
    "() => [...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, .skip, svg, pre') && "
    "e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
)


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_nothing_is_wider_than_the_window(opened, width):
    window, _ = opened
    window.set_viewport_size({"width": width, "height": 800})
    window.eval_on_selector_all("details", "d => d.forEach(x => x.open = true)")
    assert window.evaluate("document.documentElement.scrollWidth") <= width
    assert window.evaluate(WIDER) == []
    window.evaluate("document.querySelector('h2').style.cssText = 'width: 200vw'")
    assert window.evaluate("document.documentElement.scrollWidth") > width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(opened, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the `browser` extra").Axe()
    window, _ = opened
    window.emulate_media(color_scheme=scheme)
    window.eval_on_selector_all("details", "d => d.forEach(x => x.open = true)")
    found = axe.run(window)
    assert found.violations_count == 0, found.generate_report()
    window.evaluate("document.querySelector('#search').removeAttribute('aria-label')")
    window.evaluate("document.querySelector('#search').removeAttribute('placeholder')")
    assert [v["id"] for v in axe.run(window, options={"runOnly": ["label"]}).response["violations"]] == ["label"]

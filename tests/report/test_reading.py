"""What a reader finds on the page: findings first, claims by search, matrices side by side, all of it at any width."""

import json

import pytest
from lngeom.claims import Role, Verdict, all_claims
from lngeom.claims.erratum import Consequence, Erratum
from lngeom.claims.evidence import Kind, strength_of
from lngeom.claims.paper import TABLE1
from lngeom.claims.proofs import proof_evidence
from lngeom.claims.registry import Outcome
from lngeom.report.document import document as build_document, dumps
from lngeom.report.page import page as build_page

from tests.report import test_page
from tests.report.test_page import OWN, measured, outcome, until, visible

browser, address, opened = test_page.browser, test_page.address, test_page.opened
PROVED = (
    "equation.6",
    "equation.12",
    "table1.exception.ln_dataset_recentering",
    "text.bias_before_norm",
    "text.factor_half",
    "text.feature_shifting",
    "equation.20",
    "equation.13_14.bn",
    "nullspace.completeness",
    "nullspace.ln",
)
"""Claims with the widest formulas, conditions and counterexamples."""

CELLS = tuple(f"table1.{method}.{column}" for method, row in TABLE1.items() for column in row)
WIDTHS = (360, 768, 1440)
PAGE_WIDTH = 688  # of A4 between margins of 14 mm, in pixels
WIDER = """limit => [...document.querySelectorAll('body *')]
    .filter(e => !e.closest('.skip, svg, .explore, [tabindex="0"]')
    && !(e.closest('.scroll:has(.grid)') && !matchMedia('print').matches)
    && (e.getBoundingClientRect().right > limit + 1
        || (e.matches('.scroll') && e.getClientRects().length && e.scrollWidth > e.clientWidth + 1)))
    .map(e => [e.closest('.claim')?.id, e.dataset.label, e.scrollWidth, e.outerHTML.slice(0, 80)])"""
"""What ends beyond the limit, or is wider than its place and cannot be scrolled there by keyboard."""
SCROLLED = """() => [...document.querySelectorAll('.scroll[tabindex="0"]:not(:has(.grid))')]
    .map(e => [e.closest('.claim')?.id, e.dataset.label])"""
SMALL = """() => [...document.querySelectorAll('.scroll > *')].filter(e => parseFloat(e.style.fontSize || 1) < 0.7)
    .map(e => [e.closest('.claim')?.id, e.style.fontSize])"""
"""Formulas and matrices that can be scrolled, and those that are too small to be read."""


def outcomes():
    """Cells of Table 1 with numbers and proofs, claims with the widest formulas, and equations named in ranges."""
    for id in (*CELLS, *PROVED):
        claim, proofs = all_claims(id=id)[0], proof_evidence(id)
        same = claim.expected is not Verdict.HOLDS or any(e.reach.value != "one exact instance" for e in proofs)
        number = measured(Kind.AGREEMENT, 3e-16) if same else measured(Kind.COUNTEREXAMPLE, 0.4)
        yield Outcome(claim, claim.expected, strength_of(claim.expected, proofs), (number, *proofs), 0.1)
    refuting = measured(Kind.COUNTEREXAMPLE, 0.3, Role.REFUTES)
    reach = Erratum(Consequence.CONCLUSION, "It is not so.")
    yield outcome(
        "some.pair", "made up", Verdict.REFUTED, refuting, source="Eqs. 13, 14", statement="A pair.", erratum=reach
    )
    yield outcome("some.range", "made up", Verdict.CONDITIONAL, refuting, source="Eqs. 41–44", statement="A range.")
    yield outcome("some.other", "made up", Verdict.HOLDS, refuting, source="Eq. 130", statement="It holds: 13.")


@pytest.fixture(scope="module")
def document():
    return json.loads(dumps(build_document(list(outcomes()), OWN, 0)))


@pytest.fixture(scope="module")
def text(document):
    return build_page(document)


def open_all(window):
    """Opens every claim and fold, and waits until formulas have been fitted to their places."""
    window.eval_on_selector_all("details", "d => d.forEach(x => x.open = true)")
    until(window, "places.every(p => !p.clientWidth || widths.get(p) === p.clientWidth)")


def listed(window):
    """Ids of the claims that the filters leave, also those within a closed fold."""
    return window.eval_on_selector_all("details.claim:not([hidden])", "d => d.map(x => x.id)")


def searched(window, words):
    window.fill("#search", words)
    return listed(window)


def test_the_first_screen_says_what_was_found(opened, document):
    window, said = opened
    first = "e => e.getBoundingClientRect().bottom <= innerHeight"
    for what in (".headline", ".found > div:first-child li:last-child"):
        assert window.eval_on_selector(what, first), what
    groups = window.eval_on_selector_all(
        ".found > div", "d => d.map(x => [x.querySelector('h3').textContent, x.querySelectorAll('li').length])"
    )
    assert groups == [["Error that changes a conclusion 1", 1], ["Wrong sentence 1", 1]]
    assert "18 of 18 as printed" in window.text_content("main > section")
    assert said == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("Eq. 13", {"equation.13_14.bn", "some.pair", "text.factor_half"}),
        ("eqs 13", {"equation.13_14.bn", "some.pair", "text.factor_half"}),
        ("Eq. 43", {"some.range"}),
        ("Eqs. 43, 44", {"some.range"}),
        ("Eq. 41 range", {"some.range"}),
        ("Eq. 45", set()),
        ("Eq. 130", {"some.other"}),
    ],
)
def test_search_finds_equations_within_lists_and_ranges(opened, words, found):
    window, _ = opened
    assert set(searched(window, words)) == found
    window.evaluate("records.forEach(record => record.keys.clear())")
    assert searched(window, words) == []


@pytest.mark.parametrize("verdict", ["holds", "conditional", "refuted"])
def test_search_finds_verdicts_by_their_words(opened, document, verdict):
    window, _ = opened
    meant = [claim["id"] for claim in document["claims"] if claim["verdict"] == verdict]
    assert sorted(searched(window, verdict)) == sorted(meant)
    window.evaluate("records[0].verdict = 'undecided'; records.at(-1).verdict = 'refuted'")
    assert (sorted(searched(window, verdict)) == sorted(meant)) == (verdict == "conditional")


def test_filters_stand_in_the_address_and_come_back(opened, address):
    window, said = opened
    window.fill("#search", "Eq. 13")
    window.uncheck("#verdicts input[value=holds]")
    window.select_option("#origin", "paper")
    assert (
        window.evaluate("location.hash")
        == "#claims&search=Eq.+13&origin=paper&verdict=conditional%2Crefuted%2Cundecided"
    )
    assert sorted(listed(window)) == ["some.pair", "text.factor_half"]
    window.reload()
    assert window.input_value("#search") == "Eq. 13"
    assert sorted(listed(window)) == ["some.pair", "text.factor_half"]
    window.click("#reset")
    assert window.evaluate("location.hash") == "#claims"
    window.evaluate("history.replaceState = () => {}")
    window.fill("#search", "range")
    window.reload()
    assert len(listed(window)) == len(CELLS) + len(PROVED) + 3
    assert said == []


def test_counts_lead_to_their_claims(opened, document):
    window, _ = opened
    for link in window.query_selector_all(".found ~ p a[href^='#claims']"):
        link.click()
        until(window, "location.hash.startsWith('#claims&')")
        wanted = int(link.text_content().split()[0])
        until(window, "n => document.querySelectorAll('details.claim:not([hidden])').length === n", wanted)
        chosen = window.evaluate("Object.fromEntries(new URLSearchParams(location.hash.slice(8)))")
        assert all(document_claim[key] == value for document_claim in document["claims"]
                   if document_claim["id"] in listed(window) for key, value in chosen.items())  # fmt: skip


def test_an_address_of_the_explorer_stays_the_explorer_s(opened, address):
    window, _ = opened
    window.goto(address + "#explore&cell=wn.dataset_rescaling")
    window.reload()
    assert window.is_visible("#explore")
    assert window.input_value("#search") == ""


def test_the_cells_of_table_1_are_in_one_fold(opened):
    window, _ = opened
    inside = window.eval_on_selector_all("details.group details.claim", "d => d.map(x => x.id)")
    assert inside == list(CELLS)
    assert not set(CELLS) & set(visible(window))
    assert searched(window, "table1.wn.dataset_rescaling") == ["table1.wn.dataset_rescaling"]
    assert visible(window) == ["table1.wn.dataset_rescaling"]


def test_nothing_that_is_jumped_to_hides_under_the_bar(opened):
    window, _ = opened
    covered = """ids => ids.filter(id => {
        const claim = document.getElementById(id);
        claim.scrollIntoView();
        return claim.getBoundingClientRect().top < document.querySelector('#controls').getBoundingClientRect().bottom;
    })"""
    window.set_viewport_size({"width": 800, "height": 900})
    open_all(window)
    assert window.evaluate("getComputedStyle(document.querySelector('#controls')).position") == "sticky"
    assert window.evaluate(covered, list(PROVED)) == []
    window.evaluate("document.documentElement.style.scrollPaddingTop = '0'")
    assert len(window.evaluate(covered, list(PROVED))) == len(PROVED)


def test_a_table_that_is_cut_off_says_so(opened):
    window, _ = opened
    window.set_viewport_size({"width": 360, "height": 800})
    window.wait_for_timeout(500)
    assert not window.is_visible(".cue")  # Table 1 stands upright on a phone
    window.eval_on_selector(".cue + .scroll table", "table => table.style.width = '900px'")
    window.set_viewport_size({"width": 340, "height": 800})
    window.wait_for_selector(".cue", state="visible")
    assert "all 6 columns" in window.text_content(".cue")


def test_counterexamples_are_matrices_with_the_entries_that_differ_marked(opened, document):
    window, _ = opened
    open_all(window)
    changes = [s for c in document["claims"] for e in c["evidence"] for s in e["steps"] if s["part"] == "change"]
    marked = window.eval_on_selector_all("figure.change", "f => f.map(x => x.querySelectorAll('mark').length)")
    assert sorted(marked) == sorted(2 * sum(map(sum, s["differs"])) for s in changes)
    half = window.query_selector("[id='text.factor_half'] figure.change")
    assert "what differs, 4 of 4 entries" in half.text_content()
    style = "([mark, cell]) => [getComputedStyle(mark).fontWeight, getComputedStyle(mark).backgroundColor]"
    weight, ground = half.eval_on_selector("mark", f"m => ({style})([m])")
    assert int(weight) >= 700
    assert ground != "rgba(0, 0, 0, 0)"


def kind(claim):
    """What decides how a claim is shown: its verdict, what it rests on, and the parts of its evidence."""
    parts = {step["part"] for evidence in claim["evidence"] for step in evidence["steps"]}
    return claim["verdict"], claim["strength"], frozenset(parts), "erratum" in claim, "context" in claim


def test_claims_of_each_kind_are_accessible(opened, document):
    """All rules of axe on a page with one open claim of each kind; the whole report differs in the number of claims."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the `browser` extra").Axe()
    window, _ = opened
    chosen = {kind(claim): claim["id"] for claim in document["claims"]}
    assert {verdict for verdict, *_ in chosen} == {"holds", "conditional", "refuted"}
    assert {"given", "instance", "change", "step"} <= set().union(*(parts for _, _, parts, *_ in chosen))
    assert len(chosen) >= 8
    for id in chosen.values():
        window.evaluate(
            "id => { for (let e = document.getElementById(id); e; e = e.parentElement) e.open = true; "
            "document.getElementById(id).querySelectorAll('details').forEach(d => d.open = true); }",
            id,
        )
    found = axe.run(window)
    assert found.violations_count == 0, found.generate_report()
    one = f"[id='{id}']"
    window.eval_on_selector(f"{one} dt", "e => e.style.color = '#bbb'")
    contrast = axe.run(window, context=one, options={"runOnly": ["color-contrast"]})
    assert [v["id"] for v in contrast.response["violations"]] == ["color-contrast"]


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_its_place_with_everything_open(opened, width):
    window, said = opened
    window.set_viewport_size({"width": width, "height": 900})
    open_all(window)
    assert window.evaluate("document.documentElement.scrollWidth") <= width
    assert window.evaluate(WIDER, width) == []
    assert window.evaluate(SMALL) == []
    assert len(window.evaluate(SCROLLED)) <= (2 if width == 360 else 0)
    small = window.evaluate(f"() => {{ fit(places, .2); return ({SMALL})() }}")  # at once: a late resize fits again
    assert bool(small) == (width == 360)
    window.evaluate("fit(places, SMALLEST)")
    window.eval_on_selector_all(".formula, .formula math", "f => f.forEach(x => x.style.whiteSpace = 'nowrap')")
    window.eval_on_selector_all(".formula wbr", "w => w.forEach(x => x.remove())")
    assert window.evaluate(WIDER, width)
    assert said == []


def test_nothing_is_wider_than_the_paper(opened):
    window, said = opened
    window.evaluate("dispatchEvent(new Event('beforeprint'))")
    window.emulate_media(media="print")
    window.set_viewport_size({"width": PAGE_WIDTH, "height": 1000})
    assert window.evaluate("[...document.querySelectorAll('details:not(.checked)')].every(d => d.open)")
    assert window.evaluate(WIDER, PAGE_WIDTH) == []
    window.eval_on_selector("figure.change .pair", "p => p.style.width = '60em'")
    assert window.evaluate(WIDER, PAGE_WIDTH)
    window.emulate_media(media="screen")
    window.evaluate("dispatchEvent(new Event('afterprint'))")
    assert not window.evaluate("document.body.classList.contains('paper')")
    assert window.pdf(format="A4").startswith(b"%PDF")
    assert said == []

"""The index of papers: counts, errors by rank, links, and no request."""

import io
import re
import shutil

import pytest
from lngeom.claims.data import load
from lngeom.claims.papers import find
from lngeom.claims.registry import recorded
from lngeom.report import gallery, terminal, terminal_tables
from lngeom.report.document import document
from rich.console import Console


@pytest.fixture(scope="module")
def documents():
    data = load("digits", 0)
    papers = [find(id) for id in ("ba2016", "zhang2019", "sun2025")]
    return {p.id: document([recorded(c) for c in p.claims], data, 0, p) for p in papers}


@pytest.fixture(scope="module")
def index(documents):
    return gallery.index(documents)


def test_counts_are_those_of_the_reports(index, documents):
    assert [p["id"] for p in index["papers"]] == ["ba2016", "zhang2019", "sun2025"]
    for paper in index["papers"]:
        assert paper["verdicts"] == documents[paper["id"]]["summary"]["verdicts"]
        assert sum(paper["verdicts"].values()) == len(find(paper["id"]).claims)


def test_errors_are_ranked_and_lead_to_their_claims(index):
    found = index["errors"]
    assert list(found) == ["changes a conclusion", "wrong sentence", "slip of notation"]
    assert {e["claim"] for e in found["changes a conclusion"]} >= {"equation.13_14.ln"}


def test_the_page_is_complete_and_asks_for_nothing(index):
    page = gallery.page(index)
    for paper in index["papers"]:
        assert f'href="{paper["id"]}/report.html"' in page
    assert "{{" not in page
    assert page.count("A branch of a Pre-LN block reads") == 1
    assert not re.search(r'(?:src|href)="(?:https?:)?//(?!arxiv\.org)', page)


def test_no_column_of_the_papers_is_narrower_than_a_word(index, tmp_path):
    driver = pytest.importorskip("playwright.sync_api", reason="the browser tests need the `browser` extra")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("the browser tests need Chromium on the path")
    page = tmp_path / "index.html"
    page.write_text(gallery.page(index), encoding="utf-8")
    with driver.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        window = launched.new_page(viewport={"width": 360, "height": 740})
        window.goto(page.as_uri())
        widths = "[...document.querySelector('.papers tbody tr').cells].map(c => c.getBoundingClientRect().width)"
        first, *_, last = window.evaluate(widths)
        assert min(first, last) > 130
        assert window.evaluate("document.documentElement.scrollWidth <= innerWidth")
        launched.close()


def test_the_terminal_lists_counts_and_findings():
    paper = find("zhang2019")
    table = terminal_tables.papers_table([(paper, [recorded(c) for c in paper.claims])])
    assert table.title == "1 paper, 8 claims"
    assert [next(iter(c.cells)) for c in table.columns] == ["zhang2019", "7", "1"]
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(terminal.papers_found([paper]))
    first, *rest = console.export_text().splitlines()
    assert first == "zhang2019  7 hold, 1 conditional"
    assert paper.finding in " ".join(line.strip() for line in rest)
    assert max(map(len, rest)) <= 60

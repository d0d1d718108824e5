"""The documentation site needs no network, names everything public, and shows what runs."""

import html
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pytest
from analysis.__main__ import discover
from analysis.figures import redraw as figures
from analysis.site import claims, documents, gallery, tutorials
from analysis.site.__main__ import audit
from lngeom.claims import all_claims
from lngeom.report import gallery as papers, write
from lngeom.report.document import dumps

from tests.report import test_page

ROOT = Path(__file__).parents[2]
EXTERNAL = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc\s*=\s*["']?(?:https?:)?//"""
    r"""|<link\b(?=[^>]*\brel\s*=\s*["']?(?:stylesheet|preconnect|preload|icon|shortcut|dns-prefetch|manifest))"""
    r"""[^>]*\bhref\s*=\s*["']?(?:https?:)?//"""
    r"""|\burl\(\s*["']?(?:https?:)?//|@import\s+["']?(?:https?:)?//""",
    re.IGNORECASE,
)
"""A request to another host, in HTML or CSS."""

LATEX = re.compile(r"\\[a-zA-Z]{2,}|\\\(|\\\[|\$\$|\$[^$\s][^$\n]{0,80}\$")
"""LaTeX that a reader would see."""


def visible(page: str) -> str:
    """The text of a page without code, scripts and mathematics."""
    body = page[page.index("<body") :]
    for tag in ("script", "style", "code", "pre", "math"):
        body = re.sub(rf"<{tag}\b.*?</{tag}>", " ", body, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", " ", body))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="needs the packages of the `docs` extra")
    pytest.importorskip("mkdocstrings", reason="needs the packages of the `docs` extra")
    from analysis.site.__main__ import build

    made = tmp_path_factory.mktemp("audit")
    report = test_page.small_document()
    for folder in (made, made / report["paper"]["id"]):
        write(folder, {"report.json": dumps(report)})
    write(made, {"index.json": dumps(papers.index({report["paper"]["id"]: report}))})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tutorials, "subprocess", SimpleNamespace(run=stand_in))
        return build(tmp_path_factory.mktemp("site"), audit(made, made)).parent  # a warning raises


def stand_in(command, **options):
    """For the run of a tutorial, which takes minutes and which `test_tutorials` tests: any output and any figure."""
    module, folder = command[-2:]
    assert importlib.util.find_spec(module)
    for suffix in (".json", ".svg"):
        shutil.copy(ROOT / "figures" / f"bench_fisher{suffix}", Path(folder) / f"{module.rpartition('.')[2]}{suffix}")
    return subprocess.CompletedProcess(command, 0, f"output of {module}\n", "")


browser = test_page.browser


def pages(site: Path) -> dict[str, str]:
    return {str(p.relative_to(site)): p.read_text(encoding="utf-8") for p in sorted(site.rglob("*.html"))}


def requests(site: Path) -> list[str]:
    """What pages and styles ask of other hosts; mermaid is what the theme's script would fetch."""
    found = [
        f"{p.name}: {m[0]}"
        for p in [*site.rglob("*.html"), *site.rglob("*.css")]
        for m in EXTERNAL.finditer(p.read_text("utf-8"))
    ]
    return found + [name for name, page in pages(site).items() if 'class="mermaid"' in page]


@pytest.mark.thorough
def test_no_page_asks_another_host_for_anything(site, tmp_path):
    assert requests(site) == []
    assert (site / "assets" / "iframe-worker.js").is_file()


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible_and_fit_a_phone(site, browser, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the `browser` extra").Axe()
    context = browser.new_context(color_scheme=scheme, viewport={"width": 360, "height": 800})
    window = context.new_page()
    rules = {"rules": {"landmark-unique": {"enabled": False}}}  # the theme's script adds navigation without a name
    for name in ("index.html", "claims/index.html", "figures/index.html", "api/methods.html"):
        window.goto((site / name).as_uri())
        found = axe.run(window, options=rules)
        assert found.violations_count == 0, found.generate_report()
        assert window.evaluate("document.documentElement.scrollWidth") <= 360
    window.evaluate("document.querySelector('[role=dialog]').removeAttribute('aria-label')")
    assert [v["id"] for v in axe.run(window, options=rules).response["violations"]] == ["aria-dialog-name"]
    context.close()


@pytest.mark.parametrize(
    "planted",
    [
        '<script async src="https://cdn.example/x.js"></script>',
        '<link href="https://fonts.example/css" rel="stylesheet">',
        "<img alt='' src=//example.com/x.png>",
        "<style>@font-face { src: url(https://x/y.woff) }</style>",
        '<pre class="mermaid">a</pre>',
    ],
)
def test_a_planted_request_is_seen(planted, tmp_path):
    (tmp_path / "x.html").write_text(f"<body>{planted}</body>")
    assert requests(tmp_path)


@pytest.mark.thorough
def test_every_public_name_has_an_entry(site):
    from analysis.site.api import public_names

    ids = {
        i for name, page in pages(site).items() if name.startswith("api/") for i in re.findall(r'\bid="([^"]+)"', page)
    }
    names = [f"{package}.{name}" for package, exported in public_names().items() for name in exported]
    assert len(names) >= 100
    assert [name for name in names if name not in ids] == []
    assert [i for i in ids if i.startswith("lngeom.") and re.search(r"\._[a-z]\w*$", i)] == []  # internals are hidden


@pytest.mark.thorough
def test_examples_are_code_and_constructors_are_shown(site):
    assert [name for name, page in pages(site).items() if '<details class="example"' in page] == []
    text = re.sub(r"<[^>]+>", "", (site / "api" / "methods.html").read_text(encoding="utf-8"))
    assert re.search(r"GroupNorm\(\s*groups: int", html.unescape(text))
    operator = re.sub(r"<[^>]+>", "", (site / "api" / "information.html").read_text(encoding="utf-8"))
    assert "FisherOperator(" not in operator  # made by `fisher`, not by users


@pytest.mark.thorough
def test_every_tutorial_shows_its_code_its_output_and_a_figure(site):
    files = sorted(ROOT.glob("analysis/tutorials/[a-z]*.py"))
    assert files
    for path in files:
        page = (site / "tutorials" / f"{path.stem}.html").read_text(encoding="utf-8")
        output = re.search(r'id="output".*?<code>(.*?)</code>', page, re.DOTALL)
        assert output, path.stem
        assert re.sub(r"<[^>]+>", "", output[1]).strip(), path.stem
        images = re.findall(r'<figure>.*?<img src="([^"]+)" alt="[^"]+"', page)
        assert images, path.stem
        assert all((site / "tutorials" / image).read_text(encoding="utf-8").count("<path") > 5 for image in images)


def test_a_tutorial_is_run_in_a_process_of_its_own(tmp_path, monkeypatch):
    written = tmp_path / "analysis" / "tutorials" / "small.py"
    written.parent.mkdir(parents=True)
    for folder in (written.parent, written.parents[1]):
        (folder / "__init__.py").touch()
    figure = """(f := pathlib.Path(sys.argv[1]) / "one.json").write_text('{"caption": "c"}')"""
    source = f'"""Title.\n\nText."""\nimport pathlib, sys\n{figure}\nf.with_suffix(".svg").write_text("<svg/>")\n'
    written.write_text(f"{source}print('seen')\n")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    found = tutorials.run(written, tmp_path)
    assert (found.title, found.text, found.output, found.figures) == (
        "Title.",
        "Text.",
        "seen",
        {"one": ("c", "<svg/>")},
    )
    for broken in (source, f"{source}print('seen'); sys.exit(1)\n", '"""Title."""\nprint("no figure")\n'):
        written.write_text(broken)
        with pytest.raises(RuntimeError, match=r"small\.py failed, or gave no output or no figure"):
            tutorials.run(written, tmp_path)


@pytest.mark.thorough
def test_no_latex_is_left_in_the_text(site):
    found = {name: LATEX.findall(visible(page)) for name, page in pages(site).items()}
    assert {name: seen for name, seen in found.items() if seen} == {}
    assert "<math" in (site / "api" / "information.html").read_text(encoding="utf-8")


def test_planted_latex_is_seen():
    assert LATEX.search(visible(r"<body><p>so \(\mu_i\) is</p></body>"))
    assert LATEX.search(visible("<body><p>so $x_i$ is</p></body>"))
    assert not LATEX.search(visible(r"<body><code>\mu $x$</code> costs $5</body>"))


@pytest.mark.thorough
def test_every_claim_is_an_anchor_and_links_lead_to_it(site):
    for id, page in claims.page_of().items():
        assert f'id="{id}"' in (site / page).read_text(encoding="utf-8"), id
    links = [
        link for page in pages(site).values() for link in re.findall(r'href="[./]*(claims/\w+\.html#[\w.]+)"', page)
    ]
    anchors = {f"{page}#{id}" for id, page in claims.page_of().items()}
    assert links
    assert set(links) <= anchors


@pytest.mark.parametrize(
    ("source", "section"),
    [
        ("Eq. 3", "3"),
        ("Eqs. 13, 14", "5.2.2"),
        ("Eq. 32", "Supplement"),
        ("Section 5.2.2; arXiv 2006.08217", "5.2.2"),
        ("Sections 1, 3.1", "1"),
        ("beyond Section 6.6", "6.6"),
        ("Table 1 (exception)", "5.1"),
        ("Supplement, after Eqs. 22, 28, 31", "Supplement"),
    ],
)
def test_a_source_is_of_a_section(source, section):
    assert claims.section_of(source) == section


def test_every_claim_is_of_a_section_and_listed_with_its_verdict():
    listed = "\n".join(claims.pages().values())
    with pytest.raises(ValueError, match="names no section"):
        claims.section_of("hearsay")
    for claim in all_claims("all"):
        assert claim.source == claims.EXTENDED or claims.section_of(claim.source) in claims.SECTIONS
        name = claim.expected.value.replace(" ", "-")
        assert f'id="{claim.id}"><p class="about"><span class="verdict {name}">' in listed


def test_every_figure_has_a_caption_and_a_command_that_exists():
    shown, known = gallery.captions(ROOT / "figures"), discover()
    assert {"table1", "lr_growth", "mnist"} <= set(shown)
    assert shown["table1"].startswith("All 18 cells of the paper's Table 1 hold. ")
    assert "bench_tracker" not in shown  # measurements without a figure
    for name in shown:
        assert shown[name]
        assert name in gallery.COMMANDS or gallery.program(name) in known, name


def test_formulas_become_mathml_and_claims_become_links():
    hooks = importlib.import_module("analysis.site.hooks")
    inline = hooks.with_mathml(r'<span class="arithmatex">\(a &lt; b\)</span>')
    assert inline.startswith('<math display="inline">')
    assert "<mo>&lt;</mo>" in inline
    assert 'display="block"' in hooks.with_mathml('<div class="arithmatex">\\[\na\n\\]</div>')
    text = (
        '<p title="Eq. 6">Eq. 6, Eq. 600, <code>equation.7</code> <code>equation.600</code> <a href="x">Eq. 6</a></p>'
    )
    assert hooks.link_claims(text, "api/nn.html") == (
        '<p title="Eq. 6"><a href="../claims/index.html#equation.6">Eq. 6</a>, Eq. 600, '
        '<a href="../claims/index.html#equation.7"><code>equation.7</code></a> <code>equation.600</code> '
        '<a href="x">Eq. 6</a></p>'
    )


@pytest.mark.thorough
def test_the_first_page_is_the_readme(site):
    home = visible((site / "index.html").read_text(encoding="utf-8"))
    said = " ".join(home.split())
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    findings = re.findall(r"^\d\. (.*?)(?=^\d\. |^$)", readme, re.MULTILINE | re.DOTALL)
    assert len(findings) == 8
    assert [f for f in findings if " ".join(f.split()) not in said] == []
    assert all(title in home for title in re.findall(r"^## (.+)$", readme, re.MULTILINE))


def dangling(site: Path) -> list[str]:
    """Links of pages to files of the site that are not there, or to a place on a page that it has not."""
    texts = pages(site)
    found = []
    for name, text in texts.items():
        if name == "404.html":  # its addresses begin at the root of a server
            continue
        shown = re.sub(r"<script\b.*?</script>", "", text, flags=re.DOTALL)
        for address in re.findall(r"""<(?:a|img|link)\b[^>]*?\b(?:href|src)=["']([^"']+)""", shown):
            path, _, anchor = html.unescape(address).partition("#")
            if re.match(r"\w+:", path) or anchor.startswith("claims&"):
                continue
            target = Path(os.path.normpath(site / name / ".." / unquote(path))) if path else site / name
            if not target.exists():
                found.append(f"{name}: {address}")
            elif anchor and target.suffix == ".html":
                known = texts[str(target.relative_to(site))]
                if f'id="{html.escape(unquote(anchor))}"' not in known and f'name="{anchor}"' not in known:
                    found.append(f"{name}: {address}")
    return found


@pytest.mark.thorough
def test_all_parts_of_the_site_lead_to_each_other(site):
    assert dangling(site) == []
    first = {"index.html", "report/report.html", "papers/index.html", "explorer.html"}
    for name in first:
        text = (site / name).read_text(encoding="utf-8")
        linked = {os.path.normpath(Path(name).parent / a) for a in re.findall(r'<a href="([^"#:]+)"', text)}
        assert first - {name} <= linked, name
    report = next((site / "papers").glob("*/report.html"))
    assert '<a href="../../index.html">Documentation</a>' in report.read_text(encoding="utf-8")
    (site / "planted.html").write_text('<body><a href="nowhere.html">x</a> <a href="index.html#no-such">y</a>')
    found = dangling(site)
    (site / "planted.html").unlink()
    assert found == ["planted.html: nowhere.html", "planted.html: index.html#no-such"]


@pytest.mark.thorough
def test_a_caption_stands_once(site, tmp_path):
    """As text beneath the picture, and not in the picture; a picture of a tutorial has it, and no text beneath."""
    page = (site / "figures" / "index.html").read_text(encoding="utf-8")
    assert page.count("<figcaption>") == len(gallery.captions(ROOT / "figures"))
    shutil.copy(ROOT / "figures" / "table1.json", tmp_path)
    figures.redraw("table1", tmp_path)
    drawn = (tmp_path / "table1.svg").read_text(encoding="utf-8")
    shown = (site / "figures" / "table1.svg").read_text(encoding="utf-8")
    assert shown.count("<use ") < drawn.count("<use ") - 100  # letters of the caption
    for name in ("plan_a_training", "add_a_claim"):
        assert "<figcaption>" not in (site / "tutorials" / f"{name}.html").read_text(encoding="utf-8")


def test_links_of_the_repository_lead_to_pages():
    drawn = {"table1"}
    moved = documents.rewritten(
        "![T](../figures/table1.png) [b](BENCHMARKS.md#x) [l](../LICENSE) [w](https://x.y)",
        "analysis/README.md",
        drawn,
    )
    assert moved == "![T](../figures/table1.svg) [b](../more/benchmarks.md) l [w](https://x.y)"
    assert documents.resolved("analysis/README.md", "../figures/a.png") == "figures/a.png"


def test_a_folder_without_a_report_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"report\.json is no file of a report"):
        audit(tmp_path, tmp_path)

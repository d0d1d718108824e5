"""What mkdocs calls while it builds: it adds the generated pages, formulas as MathML, and links to claims."""

import html as entities
import re
from pathlib import Path

from lngeom.report.mathml import mathml

from analysis.site import api, claims, documents, gallery, tutorials

ROOT = Path(__file__).parents[2]
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.+?)\\[)\]]</\1>', re.DOTALL)
NAMED = re.compile(
    r"<(a|pre|h\d)\b.*?</\1>|<code>(?:&quot;|\")?(?P<id>[\w.]+)(?:&quot;|\")?</code>|<code>.*?</code>|<[^>]+>"
    r"|\bEq\. (?P<equation>\d+)\b",
    re.DOTALL,
)
"""The id of a claim in code type, or an equation; links, code, headings and tags are passed over."""


def on_config(config):
    """Adds the pages of the API to the navigation."""
    config.nav.append({"API": api.navigation()})
    return config


def on_files(files, config):
    """Adds the pages that are made from the library and the repository, the audit, and the figures."""
    from mkdocs.structure.files import File

    folder = ROOT / "figures"
    figures = set(gallery.captions(folder))
    pages = {**claims.pages(), **gallery.pages(folder), **api.pages(), **tutorials.pages(ROOT)}
    pages |= documents.pages(ROOT, figures) | {"assets/verdicts.css": claims.style()} | config.extra["audit"]
    pages |= {f"figures/{name}.svg": picture for name, picture in gallery.pictures(folder).items()}
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    for path, source in documents.pictures(ROOT, figures).items():
        files.append(File.generated(config, path, abs_src_path=str(source)))
    return files


def on_page_content(html, page, config, files):
    """Formulas become MathML, and claims that the text names become links."""
    return link_claims(with_mathml(html), page.url)


def on_post_page(output, page, config):
    """Names the theme's search dialog for readers of the screen."""
    return output.replace('role="dialog">', 'role="dialog" aria-label="Search">')


def with_mathml(html: str) -> str:
    """A page whose formulas are MathML.

    Args:
        html: a page with formulas as LaTeX, in elements of the class `arithmatex`.

    Returns:
        The page.
    """

    def convert(match: re.Match) -> str:
        display = "inline" if match[2] == "(" else "block"
        return mathml(" ".join(entities.unescape(match[3]).split()), display)

    return FORMULA.sub(convert, html)


def link_claims(html: str, url: str) -> str:
    """A page on which ids of claims in code type, and equations with a claim, lead to the claims.

    Args:
        html: the page; pages of the claims stay as they are.
        url: its address in the site.

    Returns:
        The page.
    """
    if url.startswith("claims/"):
        return html
    pages = claims.page_of()
    up = "../" * url.count("/")

    def link(match: re.Match) -> str:
        id = match["id"] or f"equation.{match['equation']}"
        return f'<a href="{up}{pages[id]}#{id}">{match[0]}</a>' if id in pages else match[0]

    return NAMED.sub(link, html)

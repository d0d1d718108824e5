"""What mkdocs calls while it builds: it adds the generated pages, formulas as MathML, and links to claims."""

import html as entities
import re
from pathlib import Path

from lngeom.report.mathml import mathml

from analysis.site import api, claims, gallery, tutorials

ROOT = Path(__file__).parents[2]
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.+?)\\[)\]]</\1>', re.DOTALL)
CODE = re.compile(r"(?<!>)<code>(?:&quot;|\")?([\w.]+)(?:&quot;|\")?</code>")


def on_config(config):
    """Adds the pages of the API to the navigation."""
    config.nav.append({"API": api.navigation()})
    return config


def on_files(files, config):
    """Adds the pages that are made from the library, and the figures."""
    from mkdocs.structure.files import File

    pages = {**claims.pages(), **gallery.pages(ROOT / "figures"), **api.pages(), **tutorials.pages(ROOT)}
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    for path in gallery.images(ROOT / "figures"):
        files.append(File.generated(config, f"figures/{path.name}", abs_src_path=str(path)))
    return files


def on_page_content(html, page, config, files):
    """Formulas become MathML, and claims that the text names become links."""
    return link_claims(with_mathml(html), page.url)


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
    """A page on which ids of claims in code type lead to the claims; on the pages of the claims they stay.

    Args:
        html: the page.
        url: its address in the site.

    Returns:
        The page.
    """
    pages = claims.page_of()
    if url.startswith("claims/"):
        return html
    up = "../" * url.count("/")

    def link(match: re.Match) -> str:
        page = pages.get(match[1])
        return f'<a href="{up}{page}#{match[1]}">{match[0]}</a>' if page else match[0]

    return CODE.sub(link, html)

"""One folder that any static host can serve, and that needs no network: documentation, report, explorer, papers.

`python -m analysis site [--out FOLDER] [--report FOLDER] [--papers FOLDER]`. The folders are those that
`lngeom verify` and `lngeom verify --paper all` wrote; without them both audits are made.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lngeom.report import explorer, gallery
from lngeom.report.document import dumps
from lngeom.report.page import page

NEEDED = ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers")


def audit(report: Path, papers: Path) -> dict[str, str]:
    """The pages of the audit: the report, the explorer, and the papers with their index, which lead to each other.

    Args:
        report: a folder that `lngeom verify` wrote.
        papers: a folder that `lngeom verify --paper all` wrote.

    Returns:
        Path in the site → text.

    Raises:
        ValueError: if a file is missing, or is not a report.
    """

    def read(path: Path) -> dict[str, Any]:
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} is no file of a report ({error}): run lngeom verify again") from error

    document, index = read(report / "report.json"), read(papers / "index.json")
    found = {"report/report.html": page(document, around=around(1, "report")), "report/report.json": dumps(document)}
    found["explorer.html"] = explorer.page(around=around(0, "explorer"))
    for paper in index["papers"]:
        one = read(papers / paper["id"] / "report.json")
        found[f"papers/{paper['id']}/report.html"] = page(one, around=around(2, ""))
        found[f"papers/{paper['id']}/report.json"] = dumps(one)
    found["papers/index.html"] = gallery.page(index, around=around(1, "papers"))
    return found | {"papers/index.json": dumps(index)}


PLACES = {
    "documentation": ("Documentation", "index.html"),
    "report": ("Layer Normalization, audited", "report/report.html"),
    "papers": ("More papers", "papers/index.html"),
    "explorer": ("Explorer", "explorer.html"),
}
"""Part of the site → its title and first page."""


def around(depth: int, here: str) -> dict[str, str]:
    """The other parts of the site, as links of a page.

    Args:
        depth: folders between the page and the top.
        here: its own part.

    Returns:
        Title → address.
    """
    return {title: "../" * depth + address for part, (title, address) in PLACES.items() if part != here}


def build(out: Path, pages: Mapping[str, str]) -> Path:
    """Builds the site; a warning ends the build.

    Args:
        out: folder of the site.
        pages: of the audit, as `audit` makes them.

    Returns:
        The first page.

    Raises:
        RuntimeError: if the build gave warnings; they are on standard error.
    """
    from mkdocs.commands.build import build as build_site
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    settings = str(Path(__file__).with_name("mkdocs.yml"))
    config = load_config(settings, site_dir=str(out.resolve()), strict=True)
    config.extra["audit"] = dict(pages)
    config.plugins.run_event("startup", command="build", dirty=False)
    try:
        build_site(config)
    except Abort as error:
        raise RuntimeError(str(error)) from error
    finally:
        config.plugins.run_event("shutdown")
    return out / "index.html"


def main() -> None:
    """Builds the site and says where it is."""
    import logging

    parser = argparse.ArgumentParser(prog="python -m analysis site", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("site"), help="folder of the pages; its contents are replaced")
    parser.add_argument("--report", type=Path, help="folder of a report; without it, lngeom verify writes one")
    parser.add_argument("--papers", type=Path, help="folder of lngeom verify --paper all; without it, it is written")
    chosen = parser.parse_args()
    out = chosen.out
    if any(importlib.util.find_spec(name) is None for name in NEEDED):
        parser.error("needs mkdocs-material: python -m pip install -c constraints.txt -e '.[docs]'")
    if out.exists() and not (out / "objects.inv").is_file() and any(out.iterdir()):
        parser.error(f"{out} has other contents, which a build would remove: name another folder")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    with tempfile.TemporaryDirectory() as folder:
        report = chosen.report or verified(Path(folder) / "report")
        papers = chosen.papers or verified(Path(folder) / "papers", "--paper", "all")
        try:
            first = build(out, audit(report, papers))
        except (RuntimeError, ValueError) as error:
            sys.exit(f"error: {error}")
    print(f"Written: {len(list(out.rglob('*.html')))} pages; open {first}, or serve {out}/")


def verified(folder: Path, *arguments: str) -> Path:
    """Makes an audit into a folder; its verdicts are on the pages, whether as recorded or not.

    Args:
        folder: of the report.
        *arguments: of `lngeom verify`.

    Returns:
        The folder.
    """
    print(f"Audit: lngeom verify {' '.join(arguments)}".strip())
    subprocess.run([sys.executable, "-m", "lngeom", "verify", *arguments, "--out", str(folder)], check=False)
    return folder


if __name__ == "__main__":
    main()

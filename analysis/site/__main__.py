"""The documentation as web pages that need no network: `python -m analysis site [--out FOLDER]`."""

import argparse
import importlib.util
import sys
from pathlib import Path

NEEDED = ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers")


def build(out: Path) -> Path:
    """Builds the site; a warning ends the build.

    Args:
        out: folder of the site.

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
    out = parser.parse_args().out
    if any(importlib.util.find_spec(name) is None for name in NEEDED):
        parser.error("needs mkdocs-material: python -m pip install -c constraints.txt -e '.[docs]'")
    if out.exists() and not (out / "objects.inv").is_file() and any(out.iterdir()):
        parser.error(f"{out} has other contents, which a build would remove: name another folder")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        page = build(out)
    except RuntimeError as error:
        sys.exit(f"error: {error}")
    print(f"Written: {len(list(out.rglob('*.html')))} pages; open {page}")


if __name__ == "__main__":
    main()

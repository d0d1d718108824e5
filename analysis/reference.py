"""The API reference as web pages that need no network: `python -m analysis reference [--out FOLDER]`."""

import argparse
import importlib.util
import pkgutil
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import lngeom
from lngeom.report.mathml import mathml

MATH = re.compile(r"\$\$(.+?)\$\$|(?<![\\$\w`])\$([^$`]{1,300}?)\$", re.DOTALL)


def documented(module: ModuleType, modules: Sequence[ModuleType]) -> list[str]:
    """Names on the page of a package: those it exports, and its public modules.

    Args:
        module: the package.
        modules: all public modules.

    Returns:
        The names.
    """
    inside = [m.__name__.rpartition(".")[2] for m in modules if m.__name__.rpartition(".")[0] == module.__name__]
    return list(dict.fromkeys([*getattr(module, "__all__", ()), *inside]))


def with_mathml(to_html: Callable[[str], str]) -> Callable[[str], str]:
    """A conversion of Markdown to HTML, with formulas between dollar signs as MathML.

    Args:
        to_html: the conversion without formulas.

    Returns:
        The conversion with them.
    """

    def convert(markdown: str) -> str:
        formulas: list[str] = []

        def keep(match: re.Match) -> str:
            display = "block" if match[1] else "inline"
            formulas.append(mathml((match[1] or match[2]).replace("\n", " "), display))
            return f"§{len(formulas) - 1}§"

        html = to_html(MATH.sub(keep, markdown))
        found = type(html)(re.sub(r"§(\d+)§", lambda match: formulas[int(match[1])], html))
        if hasattr(html, "__dict__"):  # markdown2's text carries its table of contents
            vars(found).update(vars(html))
        return found

    return convert


def write(out: Path) -> list[Path]:
    """Renders the reference of every public module.

    Args:
        out: folder.

    Returns:
        The pages written.
    """
    import pdoc
    from pdoc import render, render_helpers

    modules = [lngeom]
    for found in pkgutil.walk_packages(lngeom.__path__, "lngeom."):
        if not any(part.startswith("_") for part in found.name.split(".")):
            modules.append(importlib.import_module(found.name))
    for module in modules:
        if hasattr(module, "__path__"):
            module.__all__ = documented(module, modules)
    render.configure(docformat="google", show_source=False, footer_text=f"lngeom {lngeom.__version__}")
    render.env.filters["to_html"] = with_mathml(render_helpers.to_html)
    pdoc.pdoc("lngeom", output_directory=out)
    return sorted(out.rglob("*.html"))


def main() -> None:
    """Writes the reference and says where it is."""
    parser = argparse.ArgumentParser(prog="python -m analysis reference", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("reference"), help="folder of the pages")
    out = parser.parse_args().out
    if importlib.util.find_spec("pdoc") is None:
        parser.error("needs pdoc: python -m pip install -c constraints.txt -e '.[docs]'")
    print(f"Written: {len(write(out))} pages; open {out / 'index.html'}")


if __name__ == "__main__":
    main()

"""The pages of the tutorials: each file of `analysis/tutorials/` as it is, with its output and its figure."""

import ast
import json
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path
from typing import NamedTuple


class Tutorial(NamedTuple):
    """A tutorial that has run.

    Attributes:
        name: of its module.
        title: first sentence of its docstring.
        text: the rest of the docstring.
        code: the source without its docstring.
        output: what it printed.
        figures: caption and SVG of each figure that it drew, by name.
    """

    name: str
    title: str
    text: str
    code: str
    output: str
    figures: dict[str, tuple[str, str]]


def run(path: Path, root: Path) -> Tutorial:
    """Runs a tutorial as a reader does, in a process of its own.

    Args:
        path: its file.
        root: folder of the checkout.

    Returns:
        The tutorial with its output.

    Raises:
        RuntimeError: if it fails, prints nothing, or draws nothing.
    """
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    title, _, text = (ast.get_docstring(tree) or "").partition("\n\n")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", f"analysis.tutorials.{path.stem}", folder]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        drawn = {
            p.stem: (json.loads(p.read_text(encoding="utf-8"))["caption"], p.with_suffix(".svg").read_text("utf-8"))
            for p in sorted(Path(folder).glob("*.json"))
        }
    if done.returncode or not done.stdout.strip() or not drawn:
        raise RuntimeError(f"{path.name} failed, or gave no output or no figure:\n{done.stdout}{done.stderr}")
    code = "\n".join(source.splitlines()[tree.body[0].end_lineno :]).strip()
    return Tutorial(path.stem, title.replace("\n", " "), text, code, done.stdout.rstrip(), drawn)


def pages(root: Path) -> dict[str, str]:
    """The pages of all tutorials, with their figures, and a list of them.

    Args:
        root: folder of the checkout.

    Returns:
        Path → Markdown, or SVG.
    """
    found = [run(path, root) for path in sorted((root / "analysis" / "tutorials").glob("[a-z]*.py"))]
    listed = "\n".join(f"- [{_heading(t.name)}]({t.name}.md). {t.title}" for t in found)
    result = {"tutorials/index.md": f"# Tutorials\n\nEach page is a program, with its output.\n\n{listed}\n"}
    for tutorial in found:
        result[f"tutorials/{tutorial.name}.md"] = _page(tutorial)
        for name, (_, svg) in tutorial.figures.items():
            result[f"tutorials/{name}.svg"] = svg
    return result


def _heading(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _page(tutorial: Tutorial) -> str:
    figures = [
        f'<figure><a href="{name}.svg"><img src="{name}.svg" alt="{escape(caption)}"></a></figure>'
        for name, (caption, _) in tutorial.figures.items()
    ]
    parts = [
        f"# {_heading(tutorial.name)}",
        tutorial.title,
        tutorial.text,
        f"```python\n{tutorial.code}\n```",
        "## Output",
        f"```text\n{tutorial.output}\n```",
        *figures,
    ]
    return "\n\n".join(parts)

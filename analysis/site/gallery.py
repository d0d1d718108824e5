"""The gallery: every figure that has its data beside it, with its caption and the command that draws it."""

import json
import shutil
import tempfile
from html import escape
from pathlib import Path

from lngeom.plots import studies
from lngeom.plots.style import options

PROGRAMS = {"lr_": "learning_rate", "gpu_": "gpu"}
"""Beginning of a figure's name → the program that draws it, where that has another name."""

COMMANDS = {
    "table1": "lngeom figures",
    "extended": "lngeom verify --topic extended && lngeom figures",
    **{study.__name__: "lngeom figures" for study in studies.ALL},
}
"""Figures of the audit → their command."""

GROUPS = {
    "The audit": lambda command: command.startswith("lngeom"),
    "Learning rates": lambda command: command.endswith(" learning_rate"),
    "Benchmarks": lambda command: " bench_" in command or command.endswith((" gpu", " fisher_growth")),
    "Experiments": lambda command: True,
}
"""Heading → whether it takes a figure in, by its command; the first that does."""


def program(name: str) -> str:
    """The name under which `python -m analysis` draws a figure.

    Args:
        name: of the figure.

    Returns:
        The name of the program or experiment.
    """
    return next((known for start, known in PROGRAMS.items() if name.startswith(start)), name)


def command(name: str) -> str:
    """The command that draws a figure.

    Args:
        name: of the figure.

    Returns:
        The command.
    """
    return COMMANDS.get(name) or f"python -m analysis {program(name)}"


def captions(folder: Path) -> dict[str, str]:
    """Figures whose data are stored.

    Args:
        folder: of the figures.

    Returns:
        Name → finding and caption.
    """
    found = {}
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if "caption" in document:
            found[path.stem] = ". ".join(filter(None, (document.get("title"), document["caption"])))
    return found


def pictures(folder: Path) -> dict[str, str]:
    """The pictures of the gallery, drawn again from their data without captions, which stand beneath them as text.

    Args:
        folder: of the figures; nothing in it changes.

    Returns:
        Name → SVG.
    """
    from analysis.figures import redraw as figures

    with tempfile.TemporaryDirectory() as place, options(captions=False):
        copy = Path(place) / "figures"
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.png", "*.svg", "*.md"))
        for name in captions(folder):
            figures.redraw(name, copy)
        return {name: (copy / f"{name}.svg").read_text(encoding="utf-8") for name in captions(folder)}


def pages(folder: Path) -> dict[str, str]:
    """The gallery.

    Args:
        folder: of the figures.

    Returns:
        Path → Markdown.
    """
    groups: dict[str, list[str]] = {title: [] for title in GROUPS}
    for name, caption in captions(folder).items():
        title = next(title for title, takes in GROUPS.items() if takes(command(name)))
        groups[title].append(_entry(name, caption))
    parts = [
        "# Figures",
        "A click shows a figure at full size. The numbers in it are in the JSON file of the same name in `figures/`.",
    ]
    for title, entries in groups.items():
        parts += [f"## {title}", *entries]
    return {"figures/index.md": "\n\n".join(parts)}


def _entry(name: str, caption: str) -> str:
    text = escape(caption)
    image = f'<a href="{name}.svg"><img src="{name}.svg" alt="{text}" loading="lazy"></a>'
    return (
        f"### {name.replace('_', ' ')} {{#{name}}}\n\n<figure>{image}<figcaption>{text}</figcaption></figure>\n\n"
        f"```sh\n{command(name)}\n```"
    )

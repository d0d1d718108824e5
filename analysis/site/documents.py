"""Pages from the Markdown files of the repository: the README is the first page, and links lead to their pages here."""

import re
from pathlib import Path, PurePosixPath

PAGES = {
    "README.md": "index.md",
    "analysis/README.md": "more/experiments.md",
    "analysis/BENCHMARKS.md": "more/benchmarks.md",
    "analysis/REWRITES.md": "more/rewrites.md",
    "analysis/OPTIMIZERS.md": "more/optimizers.md",
    "analysis/PROTOCOL.md": "more/protocol.md",
    "CONTRIBUTING.md": "more/contributing.md",
}
"""File of the repository → page of the site."""

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
SECTION = """## Here

[The audit of *Layer Normalization*](report/report.html): each claim with its verdict, proof or counterexample.
[A page to play with](explorer.html). [19 more papers, audited](papers/index.html). [Tutorials](tutorials/index.md),
[claims](claims/index.md), [figures](figures/index.md), [API](api/index.md).

"""
"""What the first page of the site has that the README does not."""


def pages(root: Path, figures: set[str]) -> dict[str, str]:
    """The pages, and what they show beside the figures of the gallery.

    Args:
        root: folder of the checkout.
        figures: names of the figures of the gallery.

    Returns:
        Path → Markdown.
    """
    return {page: rewritten((root / file).read_text(encoding="utf-8"), file, figures) for file, page in PAGES.items()}


def pictures(root: Path, figures: set[str]) -> dict[str, Path]:
    """Pictures and files that the pages lead to, and the gallery does not have.

    Args:
        root: folder of the checkout.
        figures: names of the figures of the gallery.

    Returns:
        Path in the site → file.
    """
    found = {}
    for file in PAGES:
        for _, _, address in LINK.findall((root / file).read_text(encoding="utf-8")):
            target = resolved(file, address)
            if target is None:
                continue
            place = where(target, figures)
            drawn = place in {f"figures/{name}.svg" for name in figures}
            if place and target == place and not drawn and (root / target).is_file():
                found[place] = root / target
    return found


def resolved(file: str, address: str) -> str | None:
    """The file of the repository that an address in one of its files names; None if it is no file of it."""
    if re.match(r"\w+:|#", address):
        return None
    parts: list[str] = []
    for part in (*PurePosixPath(file).parent.parts, *PurePosixPath(address.partition("#")[0]).parts):
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def where(target: str, figures: set[str]) -> str:
    """Where the site has a file of the repository; empty if it has not.

    Example:
        >>> where("figures/table1.png", {"table1"}), where("analysis/tutorials/x.py", set()), where("LICENSE", set())
        ('figures/table1.svg', 'tutorials/x.md', '')
    """
    path = PurePosixPath(target)
    if target in PAGES:
        return PAGES[target]
    if target == "analysis/tutorials":
        return "tutorials/index.md"
    if path.parent == PurePosixPath("analysis/tutorials") and path.suffix == ".py":
        return f"tutorials/{path.stem}.md"
    if path.suffix in {".png", ".svg"} and path.parts[0] == "figures":
        return f"figures/{path.stem}.svg" if path.stem in figures and len(path.parts) == 2 else target
    return target if target == "CITATION.cff" else ""


def rewritten(text: str, file: str, figures: set[str]) -> str:
    """A file as a page: links lead to pages, examples are consoles, and what the site has not is text.

    Args:
        text: of the file.
        file: its path in the repository.
        figures: names of the figures of the gallery.

    Returns:
        Markdown.
    """
    up = "../" * PAGES[file].count("/")

    def moved(match: re.Match) -> str:
        image, words, address = match.groups()
        target = resolved(file, address)
        if target is None:
            return match[0]
        place = where(target, figures)
        return f"{image}[{words}]({up}{place})" if place else words

    page = LINK.sub(moved, text)
    page = re.sub(r"^```python\n(?=>>>)", "```pycon\n", page, flags=re.MULTILINE)
    return page.replace("## Install\n", f"{SECTION}## Install\n", 1) if file == "README.md" else page

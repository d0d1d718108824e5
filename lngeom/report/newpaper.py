"""The files of a new paper: one worked claim with its proof, its test, and a way to install it."""

from lngeom.claims.papers import PaperError, ids
from lngeom.report.templating import environment

FILES = {
    "__init__.py": "new_paper.py.j2",
    "test_{name}.py": "new_paper_test.py.j2",
    "pyproject.toml": "new_paper.toml.j2",
}


def files(name: str) -> dict[str, str]:
    """The files of a paper to begin with.

    Args:
        name: of the paper; its folder and its package.

    Returns:
        Name of a file → its text.

    Raises:
        PaperError: if the name is no name of a Python package, or is taken.
    """
    if not name.isidentifier() or name != name.lower():
        raise PaperError(f"a paper needs a name of small letters, digits and _, such as doe2027; got {name!r}")
    if name in ids():
        raise PaperError(f"the paper {name!r} exists already: choose another name")
    templates = environment(pages=False)
    return {
        file.format(name=name): templates.get_template(template).render(name=name) for file, template in FILES.items()
    }

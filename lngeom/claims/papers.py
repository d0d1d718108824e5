"""Papers: a paper is a module or a package of claims, in lngeom, in another distribution, or in a folder of one's own.

A module is a paper's if it makes a `Paper`. Its claims are registered with that paper's `claim`:

    PAPER = Paper("doe2027", "On norms", ("Jane Doe",), 2027, arxiv="2701.00001", finding="…")

    @PAPER.claim("doe2027.mean", source="Eq. 3", statement="…", expected=Verdict.HOLDS)
    def mean(problem): ...
"""

import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from lngeom._core.named import near, plain
from lngeom.claims import names, paper
from lngeom.claims.registry import BA2016, Claim, all_claims, claim

gallery = importlib.import_module("lngeom.papers.gallery")  # names of the modules: the papers stand on top of `claims`

GROUP = "lngeom.papers"
"""The group of entry points under which a distribution announces the modules of its papers."""


@dataclass(frozen=True)
class Paper:
    """A paper whose statements are claims.

    Attributes:
        id: permanent identifier, such as "karakida2019"; the ids of its claims begin with it.
        title: its title.
        authors: their names.
        year: of the version that was read.
        arxiv: its number there; empty where it has none.
        finding: what the audit found that a reader would not expect, in one sentence.
        explanation: why that is so, in a paragraph; empty where the sentence is enough.
    """

    id: str
    title: str
    authors: tuple[str, ...]
    year: int
    arxiv: str = ""
    finding: str = ""
    explanation: str = ""

    @property
    def claim(self) -> Callable:
        """The decorator `lngeom.claims.claim` for claims of this paper."""
        return partial(claim, topic=self.id, paper=self.id)

    @property
    def claims(self) -> list[Claim]:
        """Its claims, in order; those of the paper of 2016 without the topics on request."""
        return all_claims() if self.id == BA2016 else all_claims(paper=self.id)


LAYER_NORMALIZATION = Paper(
    BA2016,
    paper.TITLE,
    paper.AUTHORS,
    paper.YEAR,
    paper.ARXIV,
    "Eqs. 13 and 14 are the Fisher matrix of batch and weight norm, and not of layer norm.",
)
"""The paper that lngeom audits by default."""


class PaperError(ValueError):
    """A paper that cannot be found or read."""


@functools.cache
def _announced() -> dict[str, str]:
    """Ids of the papers that installed distributions announce, and their modules."""
    return {point.name: point.value for point in entry_points(group=GROUP)}


def ids() -> tuple[str, ...]:
    """Ids of all papers at hand: that of 2016, the gallery's, and those of other distributions."""
    return (BA2016, *gallery.PAPERS, *sorted(set(_announced()) - set(gallery.PAPERS)))


def home(claim: str | None) -> str:
    """Id of the paper that a claim's id begins with; that of 2016 where it begins with none."""
    first = (claim or "").partition(".")[0]
    return first if first in ids() else BA2016


_REFERENCE = r"\s*([^\W\d_]+)(?:\s+et\s+al\b\.?)?[\s,(]*(\d{4})?(?!\w)\)?[\s,.:;]*(.*)"
"""An author, perhaps "et al." and a year, and what follows."""

_JOINED = {"et", "al", "and"}
"""Words between the names of authors."""


def _cited(name: str) -> tuple[str, str] | None:
    """The paper by whose first author a name begins, and the rest of it: "Xiong et al. (2020), Lemma 3"."""
    match = re.fullmatch(_REFERENCE, name, re.IGNORECASE)
    if not match:
        return None
    author, year, rest = match[1].lower(), match[2] or "", match[3]
    found = [id for id in ids() if re.fullmatch(rf"{author}(\d*)", id) and id.endswith(year)]
    return (found[0], rest) if len(found) == 1 else None


def _words(reference: str) -> list[str]:
    return [word for word in re.findall(r"\w+", reference.lower()) if word not in _JOINED]


def _written_by(reference: str) -> list[str]:
    """Ids of the papers among whose authors all words of a reference are: "Kiros and Hinton"."""
    words = set(_words(reference))
    known = map(find, ids())
    return [p.id for p in known if words and words <= {*_words(" ".join(p.authors)), str(p.year)}]


def _is_paper(name: str) -> bool:
    """Whether a name is a title, a number on arXiv, or that of authors, and nothing else."""
    number, title = name.removeprefix("arXiv:"), plain(name)
    known = map(find, ids())
    return any(number == p.arxiv or title == plain(p.title) for p in known) or bool(_written_by(name))


def claims(name: str, paper: str | None = None, *, every: bool = False) -> list[Claim]:
    """The claims that a name means (`lngeom.claims.names`), in all topics; those of a paper that it names.

    Args:
        name: an id, "Eq. 13", "table1", words of a statement, "Xiong et al.", "Xiong et al. (2020), Lemma 3".
        paper: id of the paper; by default that of which the name is, else that of 2016, else every paper at hand.
        every: whether to take in also those that are found by their statements, or by what is said about them.

    Returns:
        Those that the name means most directly, several where it means several; or every one, the nearest first.

    Raises:
        UnknownClaim: if no claim has this name; it has those of names near it.
        PaperError: if it is the name of an author of several papers.
    """
    cited, rest = (None if paper else _cited(name)) or (None, name)
    if cited and not rest:
        return find(cited).claims
    own = paper or cited or home(name)
    find(own)
    known = all_claims("all", paper=own)
    found = names.ranked(rest if cited == BA2016 else name, known)  # ids of other claims begin with the paper's
    if not found and not paper and own == BA2016:
        found = names.ranked(name, [claim for id in ids() if id != BA2016 for claim in find(id).claims])
    if not found and not paper and name.strip() and _is_paper(name):
        return find(name).claims
    if not found:
        raise names.UnknownClaim(name, known)
    return [claim for rank, claim in found if every or rank == found[0][0]]


def _named(reference: str) -> str:
    """The id of the paper that a reference cites, or in whose id, authors or title it stands.

    Raises:
        PaperError: if it is none, or several.
    """
    cited, rest = _cited(reference) or ("", "")
    word = plain(reference)
    found = [cited] if cited and not rest else [id for id in ids() if word and word in plain(id)]
    found = found or _written_by(reference)
    if not found and word:
        known = map(find, ids())
        found = [p.id for p in known if any(word in plain(text) for text in (p.title, *p.authors))]
    if len(found) == 1:
        return found[0]
    close = found or near(reference, ids())
    listed = "".join(f"\n  {id}  {find(id).title} ({find(id).year})" for id in close)
    if found:
        raise PaperError(f"{len(found)} papers are called {reference!r}; name one by its id:{listed}")
    known = f"did you mean{listed}\nOr" if close else f"there are {', '.join(ids())}, or"
    raise PaperError(f"no paper {reference!r}; {known} give a number on arXiv, 'all', or the path of a folder")


def find(reference: str) -> Paper:
    """Imports a paper, which registers its claims and proofs.

    Args:
        reference: its id, "Xiong et al.", a word of its id, title or authors that no other has, its number on arXiv,
            or the path of a folder with `__init__.py` or of a Python file.

    Returns:
        The paper.

    Raises:
        PaperError: if there is none, a word stands for several, or its module makes none or more than one.
    """
    if reference in {BA2016, paper.ARXIV}:
        return LAYER_NORMALIZATION
    path = Path(reference)
    if path.suffix == ".py" or path.is_dir() or len(path.parts) > 1:
        return _paper_of(_from_path(path), str(path))
    by_number = {number: id for id, number in gallery.PAPERS.items()}
    id = by_number.get(reference.removeprefix("arXiv:"), reference)
    if id in gallery.PAPERS:
        return _paper_of(importlib.import_module(f"{gallery.__name__}.{id}"), id)
    announced = _announced()
    if id not in announced:
        return find(_named(reference))
    try:
        return _paper_of(importlib.import_module(announced[id]), id)
    except ImportError as error:
        raise PaperError(f"the paper {id!r} is announced by a distribution but cannot be imported: {error}") from error


def _from_path(path: Path) -> ModuleType:
    """The module at a path; one that was imported before is not imported again."""
    file = path / "__init__.py" if path.is_dir() else path
    if not file.is_file():
        what = "no such folder" if not path.exists() else "it has no __init__.py"
        raise PaperError(f"{path} is no paper: {what}; `lngeom new-paper NAME` writes one to begin with")
    file = file.resolve()
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(file):
            return module
    name = file.parent.name if path.is_dir() else file.stem
    if not name.isidentifier() or importlib.util.find_spec(name) is not None:
        name = f"lngeom_paper_{''.join(c if c.isalnum() else '_' for c in name)}"
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[str(file.parent)] if path.is_dir() else None
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise PaperError(f"{file} ends in an error: {type(error).__name__}: {error}") from error
    return module


def _paper_of(module: ModuleType, reference: str) -> Paper:
    found = list({value.id: value for value in vars(module).values() if isinstance(value, Paper)}.values())
    if len(found) != 1:
        raise PaperError(f"{reference} must make one lngeom.claims.Paper; it makes {len(found)}")
    return found[0]

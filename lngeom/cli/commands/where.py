"""Print the file and line at which a claim, its proof, a method, a step, a rule or a public name is written."""

import difflib
import functools
import inspect
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console

import lngeom
from lngeom.cli.asked import FEW
from lngeom.cli.console import refusing
from lngeom.cli.names import KINDS, Exported, Named


def run(
    name: Annotated[
        str,
        typer.Argument(
            help="Id of a claim or the beginning of several (table1.ln), a method by any of its names, a lint rule, "
            "the word of a rewriting step, a command, or a public name.",
            metavar="ID",
        ),
    ],
) -> None:
    with refusing(ValueError):
        found = find(name)
    for place in found:
        Console().print(f"{place.file}:{place.line}  {place.what}", highlight=False, markup=False, soft_wrap=True)


class Place(NamedTuple):
    """Where something is written.

    Attributes:
        what: kind and name.
        file: path relative to the folder that holds the package, or absolute where it is elsewhere.
        line: number of its first line.
    """

    what: str
    file: Path
    line: int


def find(name: str) -> list[Place]:
    """Places of a name.

    Args:
        name: id of a claim ("equation.13_14.ln"), the beginning of several ("equation.13") or a pattern ("table1.*"); a
            method by any of its names ("ln", "layer", "LayerNorm", "Layer norm"); a rule of `lngeom lint`; the word of
            a step of `lngeom rewrite`; a command; a module; or a public name ("fisher", "FisherOperator.solve").

    Raises:
        ValueError: if nothing has this name; the message shows names near it.
    """
    bare = re.sub(r"^(lg|lngeom)[.]", "", name)
    known = [(kind, own, value) for kind, named in (KINDS | {"command": _commands}).items() for own, value in named()]
    for agrees in (
        lambda own: fnmatchcase(own, bare),
        lambda own: _plain(own) == _plain(bare) or fnmatchcase(own, f"{bare}[._]*"),
    ):
        if found := [_place(f"{kind} {own}", value) for kind, own, value in known if agrees(own)]:
            return list(dict.fromkeys(found))
    if claims := _claims(name):
        return claims
    near = difflib.get_close_matches(bare, {own for _, own, _ in known}, 5)
    hint = f"did you mean {', '.join(near)}?" if near else "`lngeom verify --list --topic all` lists claims"
    raise ValueError(f"nothing is called {name!r}; {hint}")


def _claims(name: str) -> list[Place]:
    """Places of the claims, and their proofs, that a name means: "Eq. 13"; none where it means none or too many."""
    from lngeom.claims import names, papers, proofs

    try:
        found = papers.claims(name)
    except names.UnknownClaim:
        return []
    if len(found) > FEW:
        listed = ", ".join(claim.id for claim in found[:FEW])
        raise ValueError(f"{name!r} means {len(found)} claims, such as {listed}: name one of them")
    places = [_place(f"claim {claim.id}", claim.check) for claim in found]
    return places + [_place(f"proof {c.id}", p) for c in found if (p := proofs.prover_of(c.id))]


def _commands() -> Named:
    from lngeom.cli import commands

    return ((name.replace("_", "-"), getattr(commands, name)) for name in commands.NAMES)


def _plain(name: str) -> str:
    """A name without what its spellings differ in: "RMSNorm", "rms_norm" and "RMS norm" are one."""
    return re.sub(r"[\s_-]", "", name).lower()


def _place(what: str, value: Any) -> Place:
    if isinstance(value, Exported):
        return _assignment(what, value)
    while isinstance(value, functools.partial):
        value = value.func
    value = inspect.unwrap(getattr(value, "__func__", value))
    file, (_, line) = Path(inspect.getsourcefile(value) or ""), inspect.getsourcelines(value)
    return Place(what, _relative(file), max(line, 1))  # the line of a module is 0


def _assignment(what: str, exported: Exported) -> Place:
    """The line `NAME = …` or `def NAME` in a module, or in the modules of a package."""
    file = Path(exported.module.__file__ or "")
    begins = re.compile(rf"(def {exported.name}\b|{exported.name}\b[^=(]*=)")
    for path in (file, *sorted(file.parent.glob("*.py"))):
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if begins.match(text):
                return Place(what, _relative(path), line)
    raise ValueError(f"{what} is assigned nowhere in {file.parent}")


def _relative(file: Path) -> Path:
    root = Path(lngeom.__file__).parents[1]
    return file.relative_to(root) if file.is_relative_to(root) else file

"""Names as people spell them, and modules that are asked for their objects by name: `lg.normalizers["qk_l2"]`."""

import difflib
import re
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any


class UnknownName(KeyError, ValueError):
    """Nothing has this name; the message shows names near it."""

    def __str__(self) -> str:
        """The message as it is: a `KeyError` quotes it."""
        return str(self.args[0])


def plain(name: str) -> str:
    """A name without what its spellings differ in: "LayerNorm", "layer norm", "Layer normalisation" are one."""
    bare = re.sub(r"[\s_.,()-]", "", name).lower()
    return re.sub(r"norm(ed|ali[sz](ed|ation))$", "norm", bare)


def near(name: str, known: Iterable[str], count: int = 3, cutoff: float = 0.5) -> list[str]:
    """Known names whose spelling is near to one, the nearest first."""
    names = {plain(other): other for other in reversed(list(known))}
    return [names[found] for found in difflib.get_close_matches(plain(name), list(names), count, cutoff)]


def spelled(name: str, names: Mapping[str, Iterable[str]], what: str) -> str:
    """The name that is meant.

    Args:
        name: as it was written.
        names: every name, and its other spellings. Of two names with one spelling the first is meant.
        what: a thing of that name is, for the message where there is none.

    Returns:
        A key of `names`.

    Raises:
        UnknownName: if nothing has this name.
    """
    if name in names:
        return name
    known: dict[str, str] = {}
    for own, others in names.items():
        for label in (own, *others):
            known.setdefault(plain(label), own)
    if plain(name) in known:
        return known[plain(name)]
    labels = [label for own, others in names.items() for label in (own, *others)]
    close = list({known[plain(label)]: label for label in reversed(near(name, labels))}.values())[::-1]
    hint = f"did you mean {', '.join(close)}?" if close else f"there are {', '.join(names)}"
    raise UnknownName(f"no {what} {name!r}: {hint}")


def subscripted(
    module: str, objects: Mapping[str, Any], what: str, spellings: Mapping[str, Iterable[str]] | None = None
) -> None:
    """Lets a module be subscripted with the names of objects, which are looked up when they are asked for.

    Args:
        module: name of the module.
        objects: by name.
        what: an object is, for the message where there is none of that name.
        spellings: further names of an object.
    """

    class Named(ModuleType):
        def __getitem__(self, name: str) -> Any:
            return objects[spelled(str(name), {own: (spellings or {}).get(own, ()) for own in objects}, what)]

    sys.modules[module].__class__ = Named

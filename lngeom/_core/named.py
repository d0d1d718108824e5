"""Modules that are asked for their objects by name: `lg.normalizers["qk_l2"]`."""

import difflib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any


def subscripted(module: str, objects: Mapping[str, Any], what: str) -> None:
    """Lets a module be subscripted with the names of objects, which are looked up when they are asked for.

    Args:
        module: name of the module.
        objects: by name.
        what: an object is, for the message where there is none of that name.
    """

    class Named(ModuleType):
        def __getitem__(self, name: str) -> Any:
            if name in objects:
                return objects[name]
            near = difflib.get_close_matches(str(name), list(objects), 3, 0.5)
            hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(objects)}"
            raise KeyError(f"no {what} {name!r}: {hint}")

    sys.modules[module].__class__ = Named

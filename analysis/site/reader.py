"""What a reader of the source alone cannot see: constructors of dataclasses; and this project's heading of examples."""

import dataclasses
import importlib
import inspect
import re

import griffe

from analysis.site.api import public_names


class Reader(griffe.Extension):
    """Gives each public dataclass without an `__init__` the one that Python made, and examples their heading."""

    def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
        """Called for each object that was read: "Example:" is no section for the reader, "Examples:" is.

        Args:
            obj: the object.
            **kwargs: not used.
        """
        if obj.docstring:
            obj.docstring.value = re.sub(r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)

    def on_package(self, *, pkg: griffe.Module, **kwargs) -> None:
        """Called when the package has been read.

        Args:
            pkg: the package.
            **kwargs: not used.
        """
        for package, names in public_names().items():
            for name in names:
                value = getattr(importlib.import_module(package), name)
                if inspect.isclass(value) and dataclasses.is_dataclass(value) and has_public_constructor(value):
                    add(pkg[f"{value.__module__}.{value.__qualname__}".removeprefix("lngeom.")], value)


def has_public_constructor(value: type) -> bool:
    """Whether users may call a class: it is not abstract, and takes no object of an internal type.

    Args:
        value: a dataclass.

    Returns:
        Whether they may.
    """
    public = {id(getattr(importlib.import_module(p), name)) for p, names in public_names().items() for name in names}
    types = [p.annotation for p in inspect.signature(value).parameters.values() if isinstance(p.annotation, type)]
    internal = [t for t in types if t.__module__.startswith("lngeom.") and "._" in t.__module__ and id(t) not in public]
    return not (inspect.isabstract(value) or value.__name__.startswith("Abstract") or internal)


def add(found: griffe.Class, value: type) -> None:
    """Adds the constructor to what was read.

    Args:
        found: the class as it was read.
        value: the class itself.
    """
    if "__init__" in found.members:
        return
    parameters = [
        griffe.Parameter(
            p.name,
            annotation=_written(p.annotation),
            kind=griffe.ParameterKind.keyword_only
            if p.kind is p.KEYWORD_ONLY
            else griffe.ParameterKind.positional_or_keyword,
            default=None if p.default is p.empty else repr(p.default),
        )
        for p in inspect.signature(value).parameters.values()
    ]
    itself = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    init = griffe.Function("__init__", parameters=griffe.Parameters(itself, *parameters), returns="None", parent=found)
    found.set_member("__init__", init)


def _written(annotation) -> str | None:
    """An annotation as it is written, without the modules of its names."""
    if annotation is inspect.Parameter.empty:
        return None
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")

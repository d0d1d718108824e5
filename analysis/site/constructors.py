"""Constructors of dataclasses that a reader of the source alone cannot see, such as equinox modules."""

import dataclasses
import importlib
import inspect

import griffe

from analysis.site.api import public_names


class Constructors(griffe.Extension):
    """Gives each public dataclass without an `__init__` in its source the one that Python made."""

    def on_package(self, *, pkg: griffe.Module, **kwargs) -> None:
        """Called when the package has been read.

        Args:
            pkg: the package.
            **kwargs: not used.
        """
        for package, names in public_names().items():
            for name in names:
                value = getattr(importlib.import_module(package), name)
                if inspect.isclass(value) and dataclasses.is_dataclass(value):
                    add(pkg[f"{value.__module__}.{value.__qualname__}".removeprefix("lngeom.")], value)


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

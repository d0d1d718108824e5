"""The pages of the API: the public names of each package, and the modules whose public names all count."""

import importlib
import pkgutil
from functools import cache

import lngeom

MODULES = ("information.metric", "information.reference", "information.conventions", "_core.numerics")
"""Public modules without a list of names."""


@cache
def public_names() -> dict[str, tuple[str, ...]]:
    """Public package → the names that it exports."""
    found = (m.name for m in pkgutil.walk_packages(lngeom.__path__, "lngeom.") if m.ispkg)
    packages = [name for name in found if hasattr(importlib.import_module(name), "__all__")]
    return {name: tuple(importlib.import_module(name).__all__) for name in ("lngeom", *sorted(set(packages)))}


def home(package: str, name: str) -> str:
    """The package on whose page a name is documented: the first below the top that exports the same object.

    Args:
        package: a package that exports it.
        name: the name.

    Returns:
        The package; `package` itself where no other has it.
    """
    value = getattr(importlib.import_module(package), name)
    module = getattr(value, "__module__", "")
    own = module if module.removeprefix("lngeom.") in MODULES else package
    below = [p for p, names in public_names().items() if p != "lngeom" and name in names]
    same = [p for p in below if getattr(importlib.import_module(p), name) is value]
    return next(iter(same), own) if package == "lngeom" else package


def navigation() -> list[str]:
    """Paths of the pages, in the order of the navigation."""
    return [_path(name) for name in (*public_names(), *(f"lngeom.{module}" for module in MODULES))]


def pages() -> dict[str, str]:
    """A page for each public package and module.

    Returns:
        Path → Markdown.
    """
    result = {_path(package): _package(package, names) for package, names in public_names().items()}
    for module in MODULES:
        result[_path(f"lngeom.{module}")] = _module(f"lngeom.{module}")
    return result


def _path(name: str) -> str:
    return "api/index.md" if name == "lngeom" else f"api/{name.removeprefix('lngeom.')}.md"


def _docstring(name: str) -> str:
    return (importlib.import_module(name).__doc__ or "").strip()


def _package(package: str, names: tuple[str, ...]) -> str:
    parts = [f"# {package} {{#{package}}}"]
    if package == "lngeom":
        parts += [_docstring(package).partition("\n\n")[0], _contents()]
    else:
        parts.append(_docstring(package))
    for name in names:
        place = home(package, name)
        if place == package:
            parts.append(f"::: {package}.{name}")
        else:
            parts.append(f"## {name} {{#{package}.{name}}}\n\nSee [`{place}.{name}`][{place}.{name}].")
    return "\n\n".join(parts)


def _contents() -> str:
    rows = [
        f"| [`{name}`]({_path(name).removeprefix('api/')}) | {_docstring(name).partition(chr(10))[0]} |"
        for name in (*public_names(), *(f"lngeom.{module}" for module in MODULES))
        if name != "lngeom"
    ]
    return "\n".join(["| package or module | |", "|---|---|", *rows])


def _module(name: str) -> str:
    return f"# {name} {{#{name}}}\n\n::: {name}\n    options:\n      show_root_heading: false\n"

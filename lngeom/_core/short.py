"""Short names of modules in import statements: `from lngeom.rewrite import load` imports `lngeom.transformers.rewrite`.

There is one module of each: a short name in `sys.modules` is the same object.
"""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Short(MetaPathFinder, Loader):
    """Finds modules by short names, and what lies in them.

    Attributes:
        names: by short name the module, both below the package.
        package: the package.
    """

    def __init__(self, names: Mapping[str, str], package: str):
        self.names, self.package = dict(names), package

    def full(self, name: str) -> str | None:
        """The name of the module itself, or None where the name is not short."""
        package, _, rest = name.partition(".")
        first, dot, below = rest.partition(".")
        return f"{package}.{self.names[first]}{dot}{below}" if package == self.package and first in self.names else None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Asked by the import system."""
        full = self.full(fullname)
        if full is None or importlib.util.find_spec(full) is None:
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> Any:
        """The module itself; its own `__spec__` is kept for `exec_module`."""
        full = self.full(spec.name)
        assert full is not None
        module = importlib.import_module(full)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has run; the import system has replaced its `__spec__`."""
        spec = module.__spec__
        assert spec is not None
        module.__spec__ = spec.loader_state


def install(names: Mapping[str, str], package: str) -> None:
    """Lets import statements find the short names."""
    if not any(isinstance(finder, Short) and finder.package == package for finder in sys.meta_path):
        sys.meta_path.insert(0, Short(names, package))

"""Names that `lngeom where` finds: of claims, methods, steps, rules, modules and what they export."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import lngeom


class Exported(NamedTuple):
    """A public value whose line Python does not know: no class, and no function of a module.

    Attributes:
        name: its name.
        module: the module or package that exports it.
    """

    name: str
    module: ModuleType


Named = Iterator[tuple[str, Any]]


def _claims() -> Named:
    from lngeom.claims import papers, registry

    claims = [*registry.all_claims("all"), *(c for id in papers.ids() for c in papers.find(id).claims)]
    return ((claim.id, claim.check) for claim in claims)


def _proofs() -> Named:
    from lngeom.claims import proofs

    return ((id, proofs.prover_of(id)) for id in proofs.provable())


def _methods() -> Named:
    from lngeom.methods import METHODS

    for method in METHODS.values():
        names = (method.name, method.alias, method.title, method.kind.__name__)
        yield from ((name, method.kind) for name in names if name)


def _steps() -> Named:
    from lngeom.transformers.rewrite.steps import STEPS

    yield from STEPS.items()


def _rules() -> Named:
    from lngeom.checks.linting.rules import RULES

    return ((id, rule.look) for id, rule in RULES.items())


def _modules() -> Named:
    return ((name, getattr(lngeom, name)) for name in (*lngeom._PACKAGES, *lngeom._SHORT))


def _public() -> Named:
    for package, module in (("", lngeom), *_modules()):
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if inspect.ismodule(value):
                yield f"{package}.{name}", value
                continue
            code = getattr(value, "__code__", None)
            if not callable(value) or (code and not Path(code.co_filename).is_file()):  # a decorator has compiled it
                value = Exported(name, module)
            yield name, value
            yield f"{package}.{name}", value
            if inspect.isclass(value):
                members = inspect.getmembers(value, inspect.isfunction)
                yield from ((f"{name}.{own}", member) for own, member in members if own[0] != "_")


KINDS: dict[str, Callable[[], Named]] = {
    "claim": _claims,
    "proof": _proofs,
    "method": _methods,
    "step": _steps,
    "rule": _rules,
    "module": _modules,
    "name": _public,
}
"""Kinds of names, and how all of one kind are found."""

"""Print the file and line at which a claim, its proof, a method, a step, a rule or a public name is written."""

import difflib
import functools
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console

import lngeom
from lngeom.cli.console import refusing


def run(
    name: Annotated[
        str,
        typer.Argument(
            help="Id of a claim, method or lint rule, the word of a rewriting step, or a public name.", metavar="ID"
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
        name: id of a claim ("equation.13_14.ln"), of a method ("ln"), of a rule of `lngeom lint`, the word of a step of
            `lngeom rewrite`, or a public name ("LayerNorm", "fisher").

    Raises:
        ValueError: if nothing has this name; the message shows names near it.
    """
    known = {kind: named() for kind, named in KINDS.items()}
    found = [_place(f"{kind} {name}", objects[name]) for kind, objects in known.items() if name in objects]
    if not found:
        near = difflib.get_close_matches(name, {n for objects in known.values() for n in objects}, 5, 0.5)
        hint = f"near it: {', '.join(near)}" if near else "`lngeom verify --list --topic all` lists claims"
        raise ValueError(f"nothing is called {name!r}; {hint}")
    return list(dict.fromkeys(found))


def _claims() -> dict[str, Any]:
    from lngeom.claims import papers, registry

    claims = [*registry.all_claims("all"), *(c for id in papers.ids() for c in papers.find(id).claims)]
    return {claim.id: claim.check for claim in claims}


def _proofs() -> dict[str, Any]:
    from lngeom.claims import proofs

    return {id: proofs.prover_of(id) for id in proofs.provable()}


def _methods() -> dict[str, Any]:
    import jax.numpy as jnp

    from lngeom.methods import METHODS

    square = jnp.eye(4)
    classes = {name: type(method.make(square, square)) for name, method in METHODS.items()}
    return classes | {method.alias: classes[name] for name, method in METHODS.items() if method.alias}


def _steps() -> dict[str, Any]:
    from lngeom.transformers.rewrite.steps import STEPS

    return dict(STEPS)


def _rules() -> dict[str, Any]:
    from lngeom.checks.linting.rules import RULES

    return {id: rule.look for id, rule in RULES.items()}


def _public() -> dict[str, Any]:
    modules = [lngeom, *(importlib.import_module(f"lngeom.{package}") for package in PACKAGES)]
    names = {name: getattr(module, name) for module in reversed(modules) for name in module.__all__}
    return {name: value for name, value in names.items() if inspect.isclass(value) or callable(value)}


PACKAGES = ("methods", "families", "information", "checks", "nn", "transformers", "training", "claims", "symbolic")
"""Packages whose public names are found."""

KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "claim": _claims,
    "proof": _proofs,
    "method": _methods,
    "step": _steps,
    "rule": _rules,
    "name": _public,
}
"""Kinds of names, and how all of one kind are found."""


def _place(what: str, value: Any) -> Place:
    while isinstance(value, functools.partial):
        value = value.func
    value = inspect.unwrap(getattr(value, "__func__", value))
    file, (_, line) = Path(inspect.getsourcefile(value) or ""), inspect.getsourcelines(value)
    root = Path(lngeom.__file__).parents[1]
    return Place(what, file.relative_to(root) if file.is_relative_to(root) else file, line)

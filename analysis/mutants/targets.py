"""Where faults are planted: files of `lngeom`, and how many mutants of each.

Which claims, relations and tests ought to notice is not written here. Those are asked that run the function.
"""

import ast
import hashlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from analysis.mutants.mutator import Definition, Mutant, definitions, sites

SEED = "1607.06450"
"""Begins every text whose hash decides what is drawn."""

LEAST = 3
"""Changes that a function must offer; one with fewer computes nothing."""

LARGE = 10
"""Changes that a table of a module must offer, a dictionary such as that of the optimizers' laws."""

TALKING = ("to_text", "describe", "described", "__repr__", "__str__", "to_json", "legend")
"""Methods and functions that only write; so do those that begin with `_print`, `_warn`, `check_` or `require_`."""

MANY = 20
"""Mutants of each file among which fresh ones are drawn."""

MATHEMATICS = ("methods", "families", "information", "symbolic", "training", "nn")
"""Areas whose faults the claims and the relations ought to notice."""


class Target(NamedTuple):
    """A file in which faults are planted.

    Attributes:
        area: a package of `lngeom`.
        file: path below `lngeom/`.
        number: of its mutants. No function has a second one before every function has one.
    """

    area: str
    file: str
    number: int


def _of(area: str, folder: str, numbers: str) -> Iterator[Target]:
    """Targets from names of files, each with its number."""
    words = numbers.split()
    for name, number in zip(words[::2], words[1::2], strict=True):
        yield Target(area, f"{folder}/{name}.py", int(number))


TARGETS = (
    *_of("methods", "methods", "base 2 batch 5 composed 2 formulas 3 inputs 2 layer 7 linearization 3 pointwise 1"),
    *_of("methods", "methods", "query_key 2 readings 3 spatial 3 weight 4"),
    *_of("methods", "methods/transformations", "actions 4 matrices 2"),
    *_of("families", "families", "exponential 16 _family 5 _distribution 3 _outputs 5 _sampling 3"),
    *_of("information", "information", "_closed_form 4 _derivative 3 _matrix 5 _diagonal 3 _products 2 _sharding 1"),
    *_of("information", "information", "_solve 4 _spectrum 3 _krylov 2 _operator 3 _nullspace 2 _coupled 2"),
    *_of("information", "information", "predicted 5 nullspace_theorem 3 metric 3 glm 2 reference 2 groups 2"),
    *_of("information", "information", "_vocabulary 2 posterior 2 layers 1 candidates 1 _problem 1 _agreement 1"),
    *_of("information", "information", "conventions 1 orders 1 spaces 2 _elsewhere 1"),
    *_of("information", "information/approximations", "approximate 2 operator 2"),
    *_of("symbolic", "symbolic", "sums 5 proof 3 table 3 search 2 modular 3 jacobian 2 layers 2 actions 2"),
    *_of("symbolic", "symbolic", "equivariance 2 evaluation 1 scale_free 1"),
    *_of("training", "training", "laws 3 equivalence 5 equilibrium 4 _recursions 3 _record 3 tracker 2 _detect 2"),
    *_of("training", "training", "_consequences 2 _present 1 advisor 1 natural 1"),
    *_of("nn", "nn", "_rows 6 functional 6 gated 5 recurrent 3 dynamics 3 fused 2 modules 2"),
    *_of("core", "_core", "numerics 5 subspaces 1 sums 1 decompositions 1 trees 1"),
    *_of("claims", "claims", "evidence 4 comparison 2 judge 3 numpy_reference 3 distributions 3"),
    *_of("transformers", "transformers", "symmetries 3 nullspace 2 forward 3 counts 2 fields 2"),
    *_of("transformers", "transformers/rewrite", "steps 3 canonical 2 orthogonal 1"),
    *_of("transformers", "transformers/rewrite/comparison", "aligned 1 causes 1 certifying 1 ends 1"),
    *_of("checks", "checks/derivatives", "differences 1 examine 2 routes 1 vector 1"),
    *_of("papers", "papers/ba2016", "fisher 2 metric 1 hidden_dynamics 1 kl_metric 1 nullspace_bound 2 scaling 1"),
    *_of("papers", "papers", "lab 2 training/equivalence 1 training/exponential 1 training/learning_rate 1"),
    *_of("papers", "papers/gallery", "arora2018 1 brody2023 1 chun2026 2 dong2025 2 jiang2023 2 joudaki2023 2"),
    *_of("papers", "papers/gallery", "karakida2019 2 salimans2016 2 santurkar2018 2 sun2025 2 vanlaarhoven2017 1"),
    *_of("papers", "papers/gallery", "wang2026 2 wen2026 2 xiong2020 2 xu2019 2 yang2019 2 zhang2019 2 zhu2025 2"),
    *_of("papers", "papers/gallery", "ziomek2025 2"),
)
"""All targets, by area."""

AREAS = tuple(dict.fromkeys(target.area for target in TARGETS))
"""The areas, in the order of the table."""


def _drawn(*words: object) -> float:
    """A number between 0 and 1 that these words decide."""
    text = "\0".join(map(str, (SEED, *words)))
    return (int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") + 1) / (2**56 + 1)


def _computes(name: str, definition: Definition) -> bool:
    """Whether a definition computes: a function that is no writer and no check of arguments or a claim, or a table."""
    last = name.rpartition(".")[2].partition("#")[0]
    if not isinstance(definition, ast.FunctionDef):
        return last.isupper() and isinstance(definition.value, ast.Dict) and len(sites(definition)) >= LARGE
    if last in TALKING or last.lstrip("_").startswith(("print", "warn", "check_", "require_")):
        return False
    registers = (d for d in definition.decorator_list if isinstance(d, ast.Call))
    names = {getattr(d.func, "attr", getattr(d.func, "id", "")) for d in registers}
    return not names & {"claim", "proof", "proves"} and len(sites(definition)) >= LEAST


def draw(target: Target, source: str, number: int | None = None) -> list[Mutant]:
    """Draws mutants of a file: the same ones each time, as long as their functions stay.

    Functions come in an order that is drawn, larger ones earlier. Of a function an operator is drawn among those that
    have a place in it, then a place; its next mutant has another operator.

    Args:
        target: the file.
        source: its text.
        number: of mutants, in place of the target's.

    Returns:
        Mutants, in the order they are drawn; fewer than asked for where the file offers no more.
    """
    places: dict[str, list[Mutant]] = {}
    for name, definition in definitions(ast.parse(source)).items():
        if _computes(name, definition):
            found = [Mutant(target.file, name, s.operator, s.position) for s in sites(definition)]
            places[name] = _in_turn(found)
    order = sorted(places, key=lambda name: -(_drawn(target.file, name) ** (1 / len(places[name]))))
    rounds = max((len(found) for found in places.values()), default=0)
    turns = [places[name][k] for k in range(rounds) for name in order if k < len(places[name])]
    return turns[: target.number if number is None else number]


def _in_turn(found: list[Mutant]) -> list[Mutant]:
    """Mutants of a function in an order that is drawn, each operator once before any comes again."""
    by_operator: dict[str, list[Mutant]] = {}
    for mutant in sorted(found, key=lambda m: _drawn(m.id)):
        by_operator.setdefault(mutant.operator, []).append(mutant)
    operators = sorted(by_operator, key=lambda o: _drawn(found[0].file, found[0].name, o))
    rounds = max(map(len, by_operator.values()))
    return [by_operator[o][k] for k in range(rounds) for o in operators if k < len(by_operator[o])]


def all_mutants(root: Path, number: int | None = None) -> dict[str, tuple[Mutant, str]]:
    """The mutants of all targets.

    Args:
        root: the checkout.
        number: of mutants of each target, in place of its own.

    Returns:
        Each mutant and its area, by id, in the order of the targets.
    """
    found = {}
    for target in TARGETS:
        source = (root / "lngeom" / target.file).read_text(encoding="utf-8")
        found |= {m.id: (m, target.area) for m in draw(target, source, number)}
    return found


def fresh_mutants(root: Path, number: int, listed: Collection[str]) -> dict[str, tuple[Mutant, str]]:
    """Mutants of the mathematics that are not listed.

    Args:
        root: the checkout.
        number: how many.
        listed: ids of others.

    Returns:
        Each mutant and its area, by id, in an order of chance that is always the same.
    """
    found = {id: m for id, m in all_mutants(root, MANY).items() if m[1] in MATHEMATICS and id not in listed}
    drawn = sorted(found, key=lambda id: hashlib.sha256(f"{SEED} fresh {id}".encode()).digest())
    return {id: found[id] for id in drawn[:number]}

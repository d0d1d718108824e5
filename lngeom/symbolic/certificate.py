"""Proofs as plain data, for a second program to check: `analysis/check_certificate.py`.

A certificate has the hypotheses and steps of a proof. With each step stands what it rests on: an identity as two trees,
a counterexample as an exact instance with both sides, the matrix of a rank. A step with none rests on words, or on
lngeom alone.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import sympy as sp
from sympy import Expr, Indexed, KroneckerDelta

from lngeom.symbolic import modular, sums
from lngeom.symbolic.proof import Counterexample, Equation, Proof, Step

SCHEMA = "lngeom.certificate/1"
SIZES = {sums.H, sums.D, sums.N, sums.G, sums.M, sums.T}
ENTRIES = 20
"""Entries that an instance may have for its sides to be written as formulas."""

Tree = int | str | list[Any]


class NotPlain(ValueError):
    """A formula that certificates have no data for."""


class Trees:
    """Formulas of one identity as trees.

    Attributes:
        positive: names of symbols and families that are positive, or not negative.
        indices: free indices, each with the size that it runs to.
        nonzero: what is divided by, or stands under a root.
    """

    def __init__(self):
        self.positive: set[str] = set()
        self.indices: dict[str, str] = {}
        self.nonzero: list[Tree] = []
        self._names: dict[Any, str] = {}
        self._bound: dict[sp.Dummy, str] = {}

    def tree(self, expr: Any) -> Tree:
        """A formula: 3, ["/", 1, 2], "delta", ["at", "W", "i", 1], ["+", …], ["^", base, a, b] for a power a/b.

        Raises:
            NotPlain: if it has another operation.
        """
        if expr.is_Rational:
            return int(expr.p) if expr.q == 1 else ["/", int(expr.p), int(expr.q)]
        if expr in SIZES:
            return ["size", expr.name]
        if expr is sp.E:
            return ["exp", 1]
        if expr.is_Symbol:
            return self._named("symbol", expr.name, bool(expr.is_nonnegative))
        if isinstance(expr, Indexed):
            name = self._named("family", expr.base.name, bool(expr.is_nonnegative))
            return ["at", name, *map(self._index, expr.indices)]
        if isinstance(expr, KroneckerDelta):
            return ["same", *map(self._index, expr.args)]
        if isinstance(expr, sp.Sum):
            body = expr.function
            for _, first, last in expr.limits:
                if first != 1 or last not in SIZES:
                    raise NotPlain(f"a sum from {first} to {last}")
            tree = self.tree(body)
            for index, _, last in expr.limits:
                tree = ["sum", self._index(index), last.name, tree]
            return tree
        if isinstance(expr, sp.Pow):
            return self._power(expr)
        if isinstance(expr, sp.Add | sp.Mul):
            return ["+" if isinstance(expr, sp.Add) else "*", *map(self.tree, expr.args)]
        if isinstance(expr, sp.exp | sp.log):
            return [type(expr).__name__, self.tree(expr.args[0])]
        if isinstance(expr, sp.tanh):
            return self.tree(1 - 2 / (sp.exp(2 * expr.args[0]) + 1))
        raise NotPlain(type(expr).__name__)

    def _power(self, expr: Expr) -> Tree:
        base, exponent = expr.args
        if not exponent.is_Rational or exponent.q > 2:  # pyright: ignore
            raise NotPlain(f"the power {exponent}")
        tree = self.tree(base)
        if (exponent.p < 0 or exponent.q == 2) and not (base.is_Rational or base in SIZES):  # pyright: ignore
            self.nonzero.append(tree)
        return ["^", tree, int(exponent.p), int(exponent.q)]  # pyright: ignore

    def _named(self, kind: str, name: str, positive: bool) -> str:
        """A name of its own for each symbol: two of one name may differ in kind or sign."""
        key = kind, name, positive
        if key not in self._names:
            while name in self._names.values():
                name += "′"
            self._names[key] = name
            if positive:
                self.positive.add(name)
        return self._names[key]

    def _index(self, index: Any) -> int | str:
        """An index: a number, a free index by its name, or one that is summed over, with a name of its own."""
        if index.is_Integer:
            return int(index)
        if index in sums.FREE_INDICES:
            self.indices[index.name] = sums.FREE_INDICES[index].name
            return index.name
        if not isinstance(index, sp.Dummy):
            raise NotPlain(f"the index {index}")
        return self._bound.setdefault(index, f"{index.name}{len(self._bound) + 1}")


def certificate(claim: str, found: Proof | Counterexample) -> dict[str, Any]:
    """What a proof, or an exact refutation, rests on, as plain data (`lngeom.certificate/1`).

    Args:
        claim: id of the claim.
        found: its proof or refutation.

    Returns:
        JSON-able data.
    """
    proof = found if isinstance(found, Proof) else found.correction
    return {
        "schema": SCHEMA,
        "claim": claim,
        "establishes": found.establishes,
        "statement": found.statement,
        "counterexample": None if isinstance(found, Proof) else _counterexample(found),
        "proof": _proof(proof) if proof else None,
        "lemmas": {lemma.name: _proof(lemma) for lemma in _all_lemmas(proof)} if proof else {},
    }


def _all_lemmas(proof: Proof) -> Iterator[Proof]:
    """The lemmas of a proof and of its lemmas, those that others cite first."""
    for lemma in proof.lemmas:
        yield from _all_lemmas(lemma)
        yield lemma


def _proof(proof: Proof) -> dict[str, Any]:
    return {
        "statement": proof.statement,
        "establishes": proof.establishes,
        "hypotheses": [
            {"text": a.text, "latex": a.latex, "without": _counterexample(a.when_dropped) if a.when_dropped else None}
            for a in proof.assumptions
        ],
        "steps": [{"text": s.text, "latex": s.latex, "checks": list(_checks(s))} for s in proof.steps],
    }


def _checks(step: Step) -> Iterator[dict[str, Any]]:
    """What a step rests on; a formula that certificates have no data for is left out."""
    if step.lemma:
        yield {"kind": "lemma", "name": step.lemma.name}
    for part in step.rests:
        try:
            yield _identity(part) if isinstance(part, Equation) else {"kind": "counterexample", **_counterexample(part)}
        except NotPlain:
            continue
    if not step.rests and not step.lemma:
        with modular.recorded() as ranks:
            step.verify()
        yield from ({"kind": "rank", **found} for found in ranks)


def _identity(equation: Equation) -> dict[str, Any]:
    trees = Trees()
    left, right = (trees.tree(side) for side in equation.written)
    return {
        "kind": "identity",
        "left": left,
        "right": right,
        "indices": trees.indices,
        "positive": sorted(trees.positive),
        "nonzero": trees.nonzero,
    }


def _counterexample(example: Counterexample) -> dict[str, Any]:
    trees = Trees()
    instance = dict(_entries(example.instance))
    left, right = trees.tree(example.left), trees.tree(example.right)
    found = {
        "text": example.text,
        "statement": example.statement,
        "instance": {name: trees.tree(value) for name, value in instance.items()},
        "left": left,
        "right": right,
    }
    formulas = _formulas(example, trees, instance)
    return found | ({"formulas": formulas} if formulas else {})


def _entries(instance: Mapping[str, Any]) -> Iterator[tuple[str, Expr]]:
    """Numbers of an instance by name; those of a matrix with their row and column."""
    for name, value in instance.items():
        if isinstance(value, sp.MatrixBase):
            rows, columns = value.shape
            yield from ((f"{name}[{r + 1},{c + 1}]", value[r, c]) for r in range(rows) for c in range(columns))
        else:
            yield name, value


def _formulas(example: Counterexample, trees: Trees, instance: dict[str, Expr]) -> list[Tree] | None:
    """Both sides as formulas of the instance; None where they cannot be computed from symbols."""
    if len(instance) > ENTRIES:
        return None
    symbol = lambda name: sp.Symbol(name, real=True)
    general = {
        name: sp.ImmutableMatrix(*value.shape, lambda r, c, name=name: symbol(f"{name}[{r + 1},{c + 1}]"))
        if isinstance(value, sp.MatrixBase)
        else symbol(name)
        for name, value in example.instance.items()
    }
    try:
        sides = [sp.sympify(side) for side in example.sides(general)]
        at = {symbol(name): value for name, value in instance.items()}
        if any(
            sp.N(side.subs(at) - value, 30, chop=1e-20) != 0
            for side, value in zip(sides, (example.left, example.right), strict=True)
        ):
            return None
        return [trees.tree(side) for side in sides]
    except Exception:  # a side that branches on its numbers, or needs them
        return None

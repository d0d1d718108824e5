"""The smallest exact instance at which a transformation changes the output of a method."""

import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import sympy as sp
from sympy import Expr

from lngeom.methods.transformations.actions import Column
from lngeom.symbolic.actions import concretely
from lngeom.symbolic.layers import Method
from lngeom.symbolic.notation import from_latex
from lngeom.symbolic.proof import Change, Counterexample, Proof, ProofError, certified_nonzero

ANOTHER_SCALE = Fraction(2)
SEARCH_WEIGHT = 9
"""Largest sum of entries searched for a counterexample."""


def counterexample(
    name: str,
    method: Method,
    column: Column,
    *,
    delta: Fraction = ANOTHER_SCALE,
    eps: Expr = sp.S.Zero,
    units: int | None = None,
    correction: Proof | None = None,
) -> Counterexample:
    r"""The smallest W and X of non-negative integers, by their sum, at which a transformation changes the output.

    Args:
        name: identifier.
        method: the normalization method.
        column: the transformation.
        delta: δ.
        eps: ε.
        units: H; the smallest non-degenerate one where None.
        correction: a proof of what is true instead.

    Returns:
        The counterexample, with δ or γ = (1, 0, …) where the transformation has them.

    Raises:
        ProofError: if there is none of small entries.
    """
    gamma = [1, *[0] * (method.smallest[1] - 1)]
    for W, X in _candidates(method, column, units):
        place = _first_change(method, column, W, X, delta, gamma, _fraction(eps))
        if place is not None:
            break
    else:
        raise ProofError(f"{name}: no proof, and no counterexample with entries of total size {SEARCH_WEIGHT}")
    sample, unit = place

    def changes(values) -> tuple[Change, ...]:
        before = values["W"], values["X"]
        moves = values.get(r"\delta", 1), list(values.get(r"\gamma", [0]))
        after = tuple(map(sp.ImmutableMatrix, concretely(column, *(A.tolist() for A in before), *moves, method)))
        outputs = (method.exactly(*pair, values[r"\epsilon"]) for pair in (before, after))
        moved = "WX".index("W" if column.acts_on == "weights" else "X")
        name = "WX"[moved]
        return (
            Change((name, f"{name}'"), before[moved], after[moved]),
            Change(("n(W, X)", "n(W', X')"), *outputs),
        )

    def sides(values) -> tuple[Expr, Expr]:
        outputs = changes(values)[-1]
        return outputs.before[sample, unit], outputs.after[sample, unit]

    instance: dict[str, Any] = {"W": sp.ImmutableMatrix(W), "X": sp.ImmutableMatrix(X), r"\epsilon": eps}
    if isinstance(column.scale, str):
        instance[r"\delta"] = sp.Rational(delta.numerator, delta.denominator)
    if isinstance(column.shift, str):
        instance[r"\gamma"] = sp.ImmutableMatrix([gamma])
    return Counterexample(
        name,
        rf"n\left(W', X'\right) = n(W, X)\quad\text{{for}}\quad {column.action}",
        instance,
        sides,
        f"n of unit {unit + 1} and sample {sample + 1} before (left) and after {from_latex(column.action)} (right).",
        correction,
        changes=changes,
    )


def changes_somewhere(method: Method, column: Column, eps: Expr, delta: Fraction = ANOTHER_SCALE) -> bool:
    """Whether a few random exact instances refute invariance, so that no proof need be looked for."""
    gamma, draws = [1, *range(method.smallest[1] - 1)], (draw(method, column, seed) for seed in range(4))
    return any(_first_change(method, column, W, X, delta, gamma, _fraction(eps)) is not None for W, X in draws)


def _candidates(method: Method, column: Column, units: int | None) -> Iterator[tuple[list[list[int]], list[list[int]]]]:
    """W and X of small non-negative integers, the smallest first; random ones where the arithmetic is slow."""
    if method.irrational:
        for entries in (1, 2, 3):
            yield from (draw(method, column, seed, entries) for seed in range(20))
        return
    H, D, N = method.smallest
    H = units // method.groups if units else H
    N = max(N, 2) * method.positions if column.compares_first else N * method.positions
    for entries in small_integers(H * D + N * D):
        rows = [list(entries[start : start + D]) for start in range(0, len(entries), D)]
        yield rows[:H] * (method.groups if units else copies(method, column)), rows[H:]


def draw(method: Method, column: Column, seed: int, entries: int = 3) -> tuple[list[list[int]], list[list[int]]]:
    """Random W and X of small non-negative integers."""
    numbers = random.Random(seed)
    units, inputs, samples = method.smallest
    matrix = lambda rows: [[numbers.randint(0, entries) for _ in range(inputs)] for _ in range(rows)]
    return matrix(units * copies(method, column)), matrix(max(samples, 2) * method.positions)


def copies(method: Method, column: Column) -> int:
    """How often the rows of the smallest W are repeated: once a group, and so that actions on groups apply."""
    count = method.groups
    while column.grouped and method.smallest[0] * count % method.blocks:
        count += method.groups
    return count


def compared(method: Method, column: Column, *rows: list[list[Any]]) -> Iterator[tuple[Any, ...]]:
    """Rows of the outputs that are to stay, side by side."""
    return zip(*(r[: method.positions] if column.compares_first else r for r in rows), strict=True)


def _first_change(method, column, W, X, delta, gamma, eps) -> tuple[int, int] | None:
    """First (sample, unit) whose output changes, or None; everything must be defined on both sides."""
    if not any(any(row) for row in W) or not any(any(row) for row in X):
        return None
    before = defined_rows(method, W, X, eps)
    after = before and defined_rows(method, *concretely(column, W, X, delta, gamma, method), eps)
    if not before or not after:
        return None
    pairs = compared(method, column, before, after)
    for sample, (old_row, new_row) in enumerate(pairs):
        for unit, (old, new) in enumerate(zip(old_row, new_row, strict=True)):
            if not equal(old, new):
                return sample, unit
    return None


def defined_rows(method: Method, W: Any, X: Any, eps: Fraction) -> list[list[tuple[Any, Any]]] | None:
    """Numerators and squares of all outputs, or None where one is undefined."""
    try:
        rows = method.rows(_exact(W), _exact(X), eps)
    except ZeroDivisionError:
        return None
    return rows if all(_defined(*pair) for row in rows for pair in row) else None


def _defined(numerator: Any, square: Any) -> bool:
    if isinstance(numerator, Expr) and numerator.has(sp.zoo, sp.nan, sp.oo):
        return False
    return bool(square > 0)


def equal(old: tuple[Any, Any], new: tuple[Any, Any], sign: int = 1) -> bool:
    """Whether two ratios, of a number and the root of another, are the same, or opposite for a sign of −1.

    The numbers are rational, or sums of roots of rational numbers, which vanish only where their expansions do.
    """
    if any(isinstance(v, Expr) for v in (*old, *new)):
        (a, u), (b, v) = (tuple(map(sp.sympify, pair)) for pair in (old, new))
        gap, agree = sp.expand(a**2 * v - b**2 * u), sp.N(sign * a * b, 30) >= 0
        return bool(agree) and (gap == 0 or (bool(abs(sp.N(gap, 30)) < 1e-20) and not certified_nonzero(gap)))
    return sign * _signed_square(*old) == _signed_square(*new)


def _exact(A: Any) -> list[list[Fraction]]:
    return [[Fraction(v) for v in row] for row in A]


def _fraction(value: Expr) -> Fraction:
    return Fraction(int(value.p), int(value.q))  # pyright: ignore


def _signed_square(numerator: Fraction, square: Fraction) -> Fraction:
    """sign(n) n², which is rational and grows with n."""
    return numerator * abs(numerator) / square


def small_integers(length: int) -> Iterator[tuple[int, ...]]:
    """Vectors of non-negative integers in order of their sum."""

    def of_weight(length: int, weight: int) -> Iterator[tuple[int, ...]]:
        if length == 1:
            yield (weight,)
            return
        for head in range(weight, -1, -1):
            for tail in of_weight(length - 1, weight - head):
                yield (head, *tail)

    for weight in range(1, SEARCH_WEIGHT + 1):
        yield from of_weight(length, weight)

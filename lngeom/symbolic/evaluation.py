"""Numbers for expressions in indexed sums: by explicit loops to 50 digits, and compiled for arrays."""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mpmath
import numpy as np
import sympy as sp
from sympy import Add, Expr, Indexed, KroneckerDelta, Mul, Pow, Sum

from lngeom.symbolic import sums

SMALL_SIZES = {sums.H: 4, sums.D: 2, sums.N: 3, sums.G: 2, sums.M: 3, sums.T: 2}
LARGER_SIZES = {sums.D: 3}
"""Used where a variance is zero at `SMALL_SIZES`: two standardized numbers are signs."""
DIGITS = 50


def numerical_value(expr: Any, values: Mapping[Any, Any]) -> Any:
    """Value by explicit loops over every sum, given values of symbols and a default for indexed symbols.

    Args:
        expr: a closed expression once the symbols have their values.
        values: values of sizes, free indices and parameters; entries of indexed symbols are stored here too.

    Returns:
        The value to mpmath's working precision.

    Raises:
        KeyError: if a symbol has no value.
        NotImplementedError: if a function is not known.
    """
    evaluate = numerical_value
    if expr.is_Symbol:
        return values[expr]
    if expr.is_Rational:
        return mpmath.mpf(expr.p) / expr.q
    if isinstance(expr, Indexed):
        entry = (expr.base.name, *(int(evaluate(index, values)) for index in expr.indices))
        return values["entries"](entry, bool(expr.is_positive))  # pyright: ignore
    if isinstance(expr, Sum):
        *outer, (index, _, high) = expr.limits
        body = Sum(expr.function, *outer) if outer else expr.function
        steps = range(1, int(evaluate(high, values)) + 1)
        return mpmath.fsum(evaluate(body, {**values, index: step}) for step in steps)
    if isinstance(expr, sums.Largest):
        body, index, size = expr.args
        return max(evaluate(body, {**values, index: k}) for k in range(1, int(evaluate(size, values)) + 1))
    if isinstance(expr, KroneckerDelta):
        first, second = (evaluate(arg, values) for arg in expr.args)
        return mpmath.mpf(int(first == second))
    arguments = [evaluate(arg, values) for arg in expr.args]
    if isinstance(expr, Add):
        return mpmath.fsum(arguments)
    if isinstance(expr, Mul):
        return mpmath.fprod(arguments)
    if isinstance(expr, Pow):
        return mpmath.power(*arguments)
    if hasattr(expr, "numerically"):
        return expr.numerically(*arguments)  # pyright: ignore
    name = {"Abs": "fabs", "log": "log"}.get(type(expr).__name__, type(expr).__name__)
    if not hasattr(mpmath, name) or isinstance(expr, sp.core.function.AppliedUndef):
        raise NotImplementedError(f"no numerical rule for {type(expr).__name__}")
    return getattr(mpmath, name)(*arguments)


def agrees_at_small_sizes(left: Expr, right: Expr, sizes: Mapping[Expr, int] | None = None) -> bool:
    """Whether both sides have the same value, to 40 digits, at a random point of a small instance.

    Args:
        left: an expression in indexed sums.
        right: another.
        sizes: sizes other than `SMALL_SIZES`.

    Returns:
        Whether they agree.
    """
    draw = random.Random(2016)
    entries: dict[Any, Any] = {}

    def entry(key: tuple, positive: bool) -> Any:
        if key not in entries:
            entries[key] = mpmath.mpf(draw.randint(1, 99)) / 16 * (1 if positive else draw.choice((-1, 1)))
        return entries[key]

    values: dict[Any, Any] = {**SMALL_SIZES, **(sizes or {}), "entries": entry}
    free = left.free_symbols | right.free_symbols
    for symbol in sorted((s for s in free if isinstance(s, sp.Symbol) and s not in values), key=str):
        if symbol in sums.FREE_INDICES:
            values[symbol] = draw.randint(1, values[sums.FREE_INDICES[symbol]])
        else:
            values[symbol] = mpmath.mpf(draw.randint(1, 99)) / 16 * (1 if symbol.is_positive else -1)
    with mpmath.workdps(DIGITS):
        try:
            first, second = (numerical_value(side, values) for side in (left, right))
        except ZeroDivisionError:
            if sizes:
                raise
            return agrees_at_small_sizes(left, right, LARGER_SIZES)
        return bool(abs(first - second) <= mpmath.mpf(10) ** -40 * (1 + abs(first) + abs(second)))


def compiled(
    entry: Callable[..., Expr],
    ranges: Sequence[int],
    sizes: Mapping[Expr, int],
    parameters: Sequence[sp.Symbol] = (),
) -> Callable[..., np.ndarray]:
    """A NumPy function for an array of expressions, at given sizes.

    Args:
        entry: the expression at indices that run from 1.
        ranges: how far each index runs: the shape of the result.
        sizes: value of each size.
        parameters: symbols whose values are given by name.

    Returns:
        A function of one array for each indexed family, and one number for each parameter, by name.
    """
    indices = [sp.Dummy(integer=True, positive=True) for _ in ranges]
    general = entry(*indices).subs(sizes).doit()
    places = itertools.product(*(map(sp.Integer, range(1, stop + 1)) for stop in ranges))
    explicit = [general.xreplace(dict(zip(indices, place, strict=True))) for place in places]
    entries = sorted(set().union(*(e.atoms(Indexed) for e in explicit)), key=str)
    names = {indexed: sp.Dummy() for indexed in entries}
    function = sp.lambdify([*names.values(), *parameters], [e.xreplace(names) for e in explicit], "numpy", cse=True)

    def evaluate(**arrays: Any) -> np.ndarray:
        values = [arrays[e.base.name][tuple(int(index) - 1 for index in e.indices)] for e in entries]
        return np.array(function(*values, *(arrays[s.name] for s in parameters)), float).reshape(ranges)

    return evaluate

"""`prove`: every cell of the invariance table is proved for all sizes or refuted by the smallest exact instance."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import sympy as sp
from sympy import Expr, sqrt
from sympy.polys.rings import PolyElement

from lngeom.methods import AbstractNormalizer
from lngeom.methods.page import FORMULAS, Cell, named
from lngeom.methods.transformations import columns
from lngeom.methods.transformations.actions import Column
from lngeom.symbolic.actions import DELTA, common_factor, concretely, moved, summed
from lngeom.symbolic.evaluation import agrees_at_small_sizes
from lngeom.symbolic.layers import EPSILON, Layer, Method, read
from lngeom.symbolic.notation import plain
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, ProofError, Step, equality, fact
from lngeom.symbolic.search import (
    ANOTHER_SCALE,
    changes_somewhere,
    compared,
    copies,
    counterexample,
    defined_rows,
    draw,
    equal,
)
from lngeom.symbolic.sums import normal_form, vanishes


def prove(
    normalizer: AbstractNormalizer | type[AbstractNormalizer] | Method | str,
    transformation: Column | str,
    *,
    units: int | None = None,
) -> Proof | Counterexample:
    """Settles one cell of the invariance table by algebra.

    Args:
        normalizer: a normalizer, its class (then ε = 0) or any of its names, such as "layer norm"; or a `method` of
            one's own.
        transformation: a column of the table, or its name or title.
        units: number of units H of the counterexample looked for; the smallest non-degenerate one where None.

    Returns:
        A proof that the normalized summed inputs do not change, for all sizes, or an exact instance at which they do.

    Raises:
        ValueError: if a name is unknown, the pair is not supported, or the method is undefined for so many units.
        ProofError: if neither a proof nor a counterexample is found.

    Example:
        >>> import lngeom as lg
        >>> from lngeom.symbolic import prove
        >>> type(prove(lg.normalizers.LayerNorm(), lg.transformations.WEIGHT_MATRIX_RECENTERING)).__name__
        'Proof'
    """
    method, eps = _method_of(normalizer)
    column = _column_of(transformation)
    _check_units(method, units, eps)
    name = f"{method.name}.{column.name}"
    proof = None if changes_somewhere(method, column, eps) else _proof(name, method, column, eps)
    if proof is not None:
        return proof
    return counterexample(name, method, column, eps=eps, units=units, correction=_sign_correction(method, column))


def settled(evidence: Proof | Counterexample) -> Cell:
    """What a proof or a counterexample says of a cell."""
    if isinstance(evidence, Proof):
        return Cell.INVARIANT
    return Cell.SIGN if evidence.correction else Cell.CHANGED


def prove_recorded(normalizer: AbstractNormalizer, transformation: Column, recorded: Cell) -> Proof | Counterexample:
    """The proof or exact counterexample of a cell, which says what is recorded of it.

    Args:
        normalizer: a normalizer.
        transformation: a column of the table.
        recorded: what the cell should say.

    Returns:
        The evidence.

    Raises:
        ProofError: if algebra settles the cell otherwise.
    """
    evidence = prove(normalizer, transformation)
    if settled(evidence) is not recorded:
        cell = f"{type(normalizer).__name__}, {transformation.name}"
        raise ProofError(f"{cell}: recorded as {recorded.value!r}, but algebra says {settled(evidence).value!r}")
    return evidence


def _method_of(normalizer: Any) -> tuple[Method, Expr]:
    if isinstance(normalizer, Method):
        return normalizer, sp.S.Zero
    known = {kind.__name__: kind for kind in FORMULAS}
    kind = normalizer if isinstance(normalizer, str | type) else type(normalizer)
    if isinstance(kind, str):
        kind = known[kind] if kind in known else named(kind).kind
    if kind not in FORMULAS:
        name = kind.__name__
        full = f"{kind.__module__}.{name}" if name in known else name
        raise ValueError(
            f"no symbolic definition of the normalizer {full!r}; known are {', '.join(known)} of lngeom.normalizers: "
            "state one with lg.symbolic.method"
        )
    eps = sp.Rational(str(normalizer.eps)) if isinstance(normalizer, AbstractNormalizer) else sp.S.Zero
    groups = getattr(normalizer, "groups", None)
    method = read(kind, FORMULAS[kind])
    return (replace(method, groups=groups, blocks=groups) if isinstance(groups, int) else method), eps


def _column_of(transformation: Column | str) -> Column:
    if isinstance(transformation, Column):
        return transformation
    return columns.named(transformation)


def _check_units(method: Method, units: int | None, eps: Expr) -> None:
    if units is None:
        return
    if units < 1 or units % method.groups:
        raise ValueError(f"units must be a positive multiple of groups = {method.groups}; got {units}")
    least = method.least_units * method.groups
    if units < least and eps == 0:
        raise ValueError(
            f"{method.name} of H = {units} is undefined: the variance of one unit is always zero; "
            f"use H ≥ {least}, or eps > 0"
        )


def _proof(name: str, method: Method, column: Column, eps: Expr) -> Proof | None:
    """The general proof, with ε > 0 arbitrary if it goes through with it, else with ε = 0 if the method has that."""
    for symbol in (EPSILON, sp.S.Zero) if eps == 0 else (EPSILON,):
        if symbol is EPSILON and changes_somewhere(method, column, sp.S.One):
            continue
        factor = _common_factor(method, column, symbol)
        if factor is not None:
            general = own_steps if method.own else general_steps
            steps = (*general(method, column, factor, symbol), expansion(method, column))
            statement = rf"n\left(W', X'\right) = n(W, X)\quad\text{{for}}\quad {column.action}"
            return Proof(statement, steps, _assumptions(name, method, column, symbol), name=name)
    return None


def _common_factor(method: Method, column: Column, eps: Expr) -> Expr | None:
    r"""The c with numerator' = c · numerator and square' = c² · square, if there is one."""
    old, new = (
        tuple(map(normal_form, method.fraction(layer, method.sample, method.unit, eps)))
        for layer in (Layer(), moved(column, Layer()))
    )
    scale = common_factor(column, method.sample, method.unit)
    for factor in dict.fromkeys((sp.S.One, scale, scale**2)):
        if vanishes(new[0] - factor * old[0]) and vanishes(new[1] - factor**2 * old[1]):
            return factor
    return None


def general_steps(method: Method, column: Column, factor: Expr, eps: Expr) -> tuple[Step, ...]:
    """Numerator and square scale alike, so their ratio stays: for all sizes.

    Args:
        method: the normalization method.
        column: the transformation.
        factor: by which the numerator changes.
        eps: ε, a symbol or zero.

    Returns:
        Steps from the summed inputs to the normalized ones.
    """
    before, after, n, unit = Layer(), moved(column, Layer()), method.sample, method.unit
    steps = []
    summed_inputs = summed(column, before, n, unit)
    if summed_inputs is not None:
        steps.append(equality("The summed inputs become", after.a(n, unit), summed_inputs, f"a'{method.indices}"))
    words = "do not change" if factor == 1 else f"change by the factor {plain(factor)}"
    squared = "does not change" if factor == 1 else f"changes by the factor {plain(factor**2)}"
    old, new = (method.fraction(layer, n, unit, eps) for layer in (before, after))
    steps += [
        _changed(f"The centred summed inputs {words}", new[0], factor, r"(a-\mu)", method.indices, old[0]),
        _changed(f"The square of the scale {squared}", new[1], factor**2, r"\sigma", "^2", old[1]),
        _changed("So their ratio stays", new[0] / sqrt(new[1]), 1, "n", method.indices, old[0] / sqrt(old[1])),
    ]
    return tuple(steps)


def own_steps(method: Method, column: Column, factor: Expr, eps: Expr) -> tuple[Step, ...]:
    """The outputs of a method of one's own stay the same, by normal form and by explicit loops (as `general_steps`)."""
    old, new = (method.numerator(layer, eps=eps) for layer in (Layer(), moved(column, Layer())))
    return (
        fact("The outputs stay the same, by normal form", "n' = n", lambda: vanishes(new - factor * old)),
        fact("The same by explicit loops at small sizes", "n' = n", lambda: agrees_at_small_sizes(new, factor * old)),
    )


def _changed(text: str, new: Expr, factor: Expr | int, name: str, indices: str, old: Expr) -> Step:
    """The step new = factor · old, where a name with its indices stands for old and a prime marks new."""
    here = name + indices
    return equality(text, new, factor * sp.Symbol(here), f"{name}'{indices}", long={here: sp.sympify(old)})


def expansion(method: Method, column: Column, eps: Any = 0, flipped: bool = False) -> Step:
    """The second, independent proof: polynomials expanded entry by entry at one small size.

    Args:
        method: the normalization method.
        column: the transformation.
        eps: ε.
        flipped: whether the sign is to change.

    Returns:
        The step.
    """
    if method.irrational:
        return _instances(method, column, flipped)
    units, inputs, samples = method.smallest
    units *= copies(method, column)
    samples, inputs = max(samples, 2), max(inputs, 2)

    def verify() -> bool:
        shapes = (units, inputs), (samples * method.positions, inputs), (1, inputs)
        _, delta, *free = sp.ring([DELTA, *sp.symbols(f"z:{sum(map(math.prod, shapes))}")], sp.QQ)
        W, X, (gamma,) = ([[free.pop() for _ in range(columns)] for _ in range(rows)] for rows, columns in shapes)
        after = concretely(column, W, X, delta, gamma, method)
        pairs = compared(method, column, method.rows(W, X, eps), method.rows(*after, eps))
        return all(
            _same_ratio(old, new, flipped)
            for old_row, new_row in pairs
            for old, new in zip(old_row, new_row, strict=True)
        )

    text = f"The same by expansion of every entry at H = {units}, D = {inputs}, N = {samples}"
    sign = "-" if flipped else ""
    latex = rf"\frac{{(a-\mu)'}}{{\sigma'}} - \frac{{{sign}(a-\mu)}}{{\sigma}} = 0"
    return fact(text, latex, verify, "n' + n = 0" if flipped else "n' − n = 0")


def _instances(method: Method, column: Column, flipped: bool) -> Step:
    """The second proof of a method with roots within: exact arithmetic at a few instances."""

    def verify() -> bool:
        sign, checked = -1 if flipped else 1, 0
        for seed in range(20):
            W, X = draw(method, column, seed)
            changed = concretely(column, W, X, ANOTHER_SCALE, [1, *range(len(W[0]) - 1)], method)
            before, after = (defined_rows(method, *pair, Fraction(0)) for pair in ((W, X), changed))
            if not before or not after:
                continue
            for rows in compared(method, column, before, after):
                if not all(equal(old, new, sign) for old, new in zip(*rows, strict=True)):
                    return False
            checked += 1
            if checked == 2:
                return True
        return False

    formula = "n' = -n" if flipped else "n' = n"
    return fact("The same in exact arithmetic at two random instances", formula, verify, formula)


def _same_ratio(old: tuple[PolyElement, Any], new: tuple[PolyElement, Any], flipped: bool) -> bool:
    """Whether num'/√sq' = ± num/√sq of polynomials: num' = c num and sq' = c² sq with c of the right sign."""
    factor, rest = divmod(new[0], old[0])
    expression = factor.as_expr()
    right_sign = expression.is_negative if flipped else expression.is_positive
    return rest == 0 and bool(right_sign) and new[1] == factor**2 * old[1]


def _assumptions(name: str, method: Method, column: Column, eps: Expr) -> tuple[Assumption, ...]:
    assumptions = [Assumption("the scale is not zero", r"\sigma > 0")]
    if column.positive:
        needed = changes_somewhere(method, column, sp.S.Zero, Fraction(-2))
        negative = lambda: counterexample(f"{name} with δ < 0", method, column, delta=Fraction(-2))
        dropped = _or_none(negative) if needed else None
        assumptions.append(Assumption("positive factors", r"\delta > 0", dropped))
    if eps == 0 and column.positive:
        dropped = _or_none(lambda: counterexample(f"{name} with ε = 1", method, column, eps=sp.S.One))
        assumptions.append(Assumption("no constant added to the variance", r"\epsilon = 0", dropped))
    return tuple(assumptions)


def _or_none(make: Any) -> Any:
    try:
        return make()
    except ProofError:
        return None


def _sign_correction(method: Method, column: Column) -> Proof | None:
    """For a sign flip: n' = −n, which g → −g repairs."""
    if column.name != "weight_sign_flip":
        return None
    before, after = Layer(), moved(column, Layer())
    if not vanishes(method(after, eps=EPSILON) + method(before, eps=EPSILON)):
        return None
    words = "The sign of n changes, which g → −g undoes"
    step = _changed(words, method(after), -1, "n", method.indices, method(before))
    return Proof(
        r"n(-W, X) = -n(W, X)",
        (step, expansion(method, column, flipped=True)),
        name="the correction",
    )

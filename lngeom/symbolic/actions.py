"""The columns of the invariance tables as substitutions: for all sizes, and on exact matrices."""

from dataclasses import replace
from typing import Any

import numpy as np
import sympy as sp
from sympy import Expr, KroneckerDelta

from lngeom.methods.transformations.actions import Column
from lngeom.symbolic.layers import Layer, Matrix, Method
from lngeom.symbolic.sums import D, Field, Index, field, n as this, total

DELTA = sp.Symbol("delta", positive=True)
SCALE, SHIFT, CONSTANT = field("delta", positive=True), field("gamma"), field("c")


def _coefficients(column: Column, row: Index, d: Index) -> tuple[Expr, Expr]:
    """s and t of the entry at a row, a unit or a case, and an input: symbols with the indices that the column names."""
    first, rest = (row[0], row[1:]) if isinstance(row, tuple) else (row, ())
    places = {"i": row, "n": first, "g": first, "t": rest, "d": d}

    def symbol(indices: str | int, family: Field, plain: Expr) -> Expr:
        if not isinstance(indices, str):
            return sp.Integer(indices)
        return family(*(places[index] for index in indices)) if indices else plain

    scale = symbol(column.scale, SCALE, DELTA)
    shift = symbol(column.shift, SHIFT if "d" in str(column.shift) else CONSTANT, sp.S.Zero)
    return scale, shift * (1 - KroneckerDelta(first, this)) if column.compares_first else shift


def moved(column: Column, L: Layer) -> Layer:
    """The transformed layer, for all sizes."""

    def entries(value: Field) -> Field:
        def entry(row: Index, d: Index) -> Expr:
            scale, shift = _coefficients(column, row, d)
            return scale * value(row, d) + shift

        return entry

    return Layer(entries(L.W), L.X) if column.acts_on == "weights" else Layer(L.W, entries(L.X))


def common_factor(column: Column, sample: Index, unit: Index) -> Expr:
    """The positive factor of the summed inputs of a sample and a unit; 1 where there is none."""
    if not column.positive or "d" in str(column.scale):
        return sp.S.One
    return _coefficients(column, unit if column.acts_on == "weights" else sample, sp.S.One)[0]


def summed(column: Column, L: Layer, sample: Index, unit: Index) -> Expr | None:
    """What the summed inputs become: s times them, plus the sum of t times the other factor; None if s depends on d."""
    if "d" in str(column.scale):
        return None
    row, other = (unit, lambda d: L.X(sample, d)) if column.acts_on == "weights" else (sample, lambda d: L.W(unit, d))
    scaled = _coefficients(column, row, sp.S.One)[0] * L.a(sample, unit)
    return scaled + total(lambda d: _coefficients(column, row, d)[1] * other(d), D) if column.shift else scaled


def concretely(column: Column, W: Matrix, X: Matrix, delta: Any, gamma: Any, method: Method) -> tuple[Matrix, Matrix]:
    """The transformed matrices, for a scale δ and a vector γ, on the first unit, group, case or input that may change.

    Args:
        column: the transformation.
        W: weights [H D].
        X: inputs [N·T D], T rows a sample.
        delta: δ.
        gamma: γ, whose first entry is a constant shift.
        method: the method, for its positions and groups.

    Returns:
        W and X after it.
    """

    def scales(shape: tuple[int, ...]) -> np.ndarray:
        found = np.full(shape, 1, object)
        found.flat[0] = delta
        return found

    def shifts(shape: tuple[int, ...]) -> np.ndarray:
        found = np.full(shape, 0, object)
        found[0] = gamma if "d" in str(column.shift) else gamma[0]
        return found

    column = replace(column, groups=method.blocks) if column.grouped else column
    weights = column.acts_on == "weights"
    value = np.array(W if weights else X, object)
    rows = value if weights else value.reshape(-1, *([method.positions] if method.positions > 1 else []), len(X[0]))
    changed = column.member(rows, scales, shifts, lambda count: 0)(rows).reshape(value.shape).tolist()
    return (changed, X) if weights else (W, changed)

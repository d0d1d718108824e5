"""Exact ranks of Jacobians: index formulas over a prime field, with derivatives.

The field is that of Gaussian integers a + bi modulo a prime that is 3 modulo 4, in which every integer has a square
root. A number carries its derivatives in some directions along its last axis: the first entry is its value.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Complex128, Int

from lngeom.methods.formulas import IndexFormula
from lngeom.methods.readings import Arithmetic, Arrays

PRIME = 1_000_003
"""A prime that is 3 modulo 4, so small that products of two numbers are exact in floats of 64 bits."""

_RECORD: ContextVar[list[dict[str, Any]] | None] = ContextVar("_RECORD", default=None)

Numbers = Complex128[np.ndarray, "..."]


class NotInFieldError(ArithmeticError):
    """A formula needs what the field does not have."""


def reduced(values: Numbers) -> Numbers:
    """Real and imaginary parts modulo PRIME."""
    return np.mod(values.real, PRIME) + 1j * np.mod(values.imag, PRIME)


def _power(values: Int[np.ndarray, "..."], exponent: int) -> Int[np.ndarray, "..."]:
    result, square = np.ones_like(values), values % PRIME
    while exponent:
        if exponent & 1:
            result = result * square % PRIME
        square, exponent = square * square % PRIME, exponent >> 1
    return result


def inverse(values: Numbers) -> Numbers:
    """1/z, the conjugate over the norm.

    Raises:
        ZeroDivisionError: if a value is zero.
    """
    z = reduced(np.asarray(values, complex))
    norm = np.mod(z.real**2 + z.imag**2, PRIME).astype(np.int64)
    if not norm.all():
        raise ZeroDivisionError("zero has no inverse")
    return reduced(np.conj(z) * _power(norm, PRIME - 2))


def square_root(values: Numbers) -> Numbers:
    """A root of integers: r^((p + 1)/4) where that is one, and i times it otherwise, as −r is a square then.

    Raises:
        NotInFieldError: if a value is no integer.
    """
    z = reduced(np.asarray(values, complex))
    if z.imag.any():
        raise NotInFieldError("only integers have a root here: the formula takes a root of what holds one")
    integers = z.real.astype(np.int64)
    roots = _power(integers, (PRIME + 1) // 4)
    return np.where(roots * roots % PRIME == integers, roots, 1j * roots)


class PrimeField(Arithmetic):
    """The arithmetic of such numbers: their last axis holds the value and its derivatives."""

    extra: ClassVar[int] = 1

    def number(self, value: Any) -> Numbers:
        """An integer or a number of the field, without derivatives."""
        return np.asarray(value, complex)[..., None]

    def add(self, a: Numbers, b: Numbers) -> Numbers:
        """a + b; a constant has one entry, its value, and is taken to have derivatives 0."""
        a, b = _alike(a, b)
        return reduced(a + b)

    def multiply(self, a: Numbers, b: Numbers) -> Numbers:
        """(ab, a b' + a' b)."""
        a, b = _alike(a, b)
        product = reduced(a[..., :1] * b)
        return np.concatenate([product[..., :1], reduced(product[..., 1:] + a[..., 1:] * b[..., :1])], -1)

    def divide(self, a: Numbers, b: Numbers) -> Numbers:
        """a · (1/b, −b'/b²)."""
        one = inverse(b[..., :1])
        slope = reduced(-reduced(one * one) * b[..., 1:])
        return self.multiply(a, np.concatenate([one, slope], -1))

    def root(self, a: Numbers) -> Numbers:
        """(√a, a'/(2√a))."""
        value = square_root(a[..., :1])
        return np.concatenate([value, reduced(a[..., 1:] * inverse(2 * value))], -1)

    def total(self, a: Numbers, axis: int) -> Numbers:
        """The sum over an axis."""
        return reduced(a.sum(axis))

    def inner(self, a: Numbers, b: Numbers) -> Numbers:
        """Inner products over the last axis but one of both."""
        a = a.reshape(*a.shape[:-2], *(1,) * (b.ndim - 2), *a.shape[-2:])
        return self.total(self.multiply(a, b), -2)

    def absolute(self, a: Numbers) -> Numbers:
        """None: a prime field has no order."""
        raise NotInFieldError("a prime field has no absolute values")

    def tanh(self, a: Numbers) -> Numbers:
        """None: a prime field has sums, products and roots alone."""
        raise NotInFieldError("a prime field has no hyperbolic tangent")

    def largest_squared_singular_value(self, W: Numbers) -> Numbers:
        """None: a prime field has no order."""
        raise NotInFieldError("a prime field has no largest singular value")


def _alike(a: Numbers, b: Numbers) -> tuple[Numbers, Numbers]:
    """Both with as many derivatives."""
    count = max(a.shape[-1], b.shape[-1])
    grown = lambda v: np.concatenate([v, np.zeros((*v.shape[:-1], count - v.shape[-1]))], -1)
    return tuple(v if v.shape[-1] == count else grown(v) for v in (a, b))  # pyright: ignore


@dataclass(frozen=True)
class FieldLayer:
    """A layer over the prime field.

    Attributes:
        formula: of the method.
        weights: W, [H D].
        inputs: X, [N D].
        gain: g, [H].
        seed: of stored parameters, which are random.
        eps: ε.
    """

    formula: IndexFormula
    weights: Int[np.ndarray, "H D"]
    inputs: Int[np.ndarray, "N D"]
    gain: Int[np.ndarray, " H"]
    seed: int = 0
    eps: int = 0

    def stored(self, name: str, each: bool) -> Numbers:
        """A stored parameter, a constant, of each unit or of all."""
        draw = random.Random(f"{name} {self.seed}")
        values = [draw.randrange(1, PRIME) for _ in self.weights]
        return PrimeField().number(values if each else values[0])


def random_layer(
    formula: IndexFormula,
    units: int,
    inputs: int,
    cases: int,
    draw: random.Random,
    *,
    eps: int = 0,
    fixed: tuple[int, ...] = (),
) -> FieldLayer:
    """A random layer over the field.

    Args:
        formula: of the method.
        units: H.
        inputs: D.
        cases: N.
        draw: source of random numbers.
        eps: ε.
        fixed: numbers that the last inputs are, in every case.

    Returns:
        The layer.
    """
    matrix = lambda rows, columns: np.array([[draw.randrange(1, PRIME) for _ in range(columns)] for _ in range(rows)])
    W, X, g = matrix(units, inputs), matrix(cases, inputs), matrix(1, units)[0]
    if fixed:
        X[:, -len(fixed) :] = fixed
    return FieldLayer(formula, W, X, g, draw.randrange(PRIME), eps)


def jacobian_rows(layer: FieldLayer, *, softmax: bool = False) -> Complex128[np.ndarray, "R P"]:
    """Rows ∂z_ni/∂(W, b, g) of every case and unit; for a softmax, of z less its last unit.

    Raises:
        ZeroDivisionError: if a σ is zero.
        NotInFieldError: if the formula needs what the field does not have.
    """
    field = PrimeField()
    H, D = layer.weights.shape
    moving = np.concatenate([layer.weights[..., None], np.eye(H * D).reshape(H, D, H * D)], -1).astype(complex)
    arrays = Arrays(moving, field.number(layer.inputs), layer.formula, layer.stored, field)
    n = arrays.outputs(layer.eps)
    by_weights = reduced(layer.gain[None, :, None] * n[..., 1:])
    by_bias = np.broadcast_to(np.eye(H), (len(n), H, H))
    by_gain = n[..., :1] * np.eye(H)
    rows = np.concatenate([by_weights, by_bias, by_gain], -1)
    if softmax:
        rows = reduced(rows[:, :-1] - rows[:, -1:])
    return rows.reshape(-1, H * (D + 2))


@contextmanager
def recorded() -> Iterator[list[dict[str, Any]]]:
    """The matrices whose ranks are taken meanwhile, with their pivots: entries are pairs a, b of a + bi."""
    ranks: list[dict[str, Any]] = []
    token = _RECORD.set(ranks)
    try:
        yield ranks
    finally:
        _RECORD.reset(token)


def rank(rows: Any) -> int:
    """Rank over the field, by elimination."""
    given = rows = reduced(np.array(rows, complex))
    pivots = _pivots(rows.copy())
    if (record := _RECORD.get()) is not None:
        entries = [[[int(v.real), int(v.imag)] for v in row] for row in given]
        record.append({"prime": PRIME, "rows": entries, "rank": len(pivots), "pivots": pivots})
    return len(pivots)


def _pivots(rows: Complex128[np.ndarray, "R P"]) -> list[int]:
    """The columns of the pivots; changes the rows."""
    pivots: list[int] = []
    for column in range(rows.shape[1]):
        found = len(pivots)
        below = np.flatnonzero(rows[found:, column])
        if not len(below):
            continue
        rows[[found, found + below[0]]] = rows[[found + below[0], found]]
        top = reduced(rows[found] * inverse(rows[found, column]))
        rows[found + 1 :] = reduced(rows[found + 1 :] - reduced(rows[found + 1 :, column, None] * top))
        pivots.append(column)
        if len(pivots) == len(rows):
            break
    return pivots

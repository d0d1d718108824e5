r"""Derivatives of outputs that are sums, products or chains, as formulas in their parts, for all sizes and every ε ≥ 0.

The formulas are those of a method's `Composite`. Sums and products are differentiated whole. Of a chain, weight
standardization and then group norm, each link is differentiated alone. The largest singular value is no index formula:
its derivatives follow from the equation that defines it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy as sp
from sympy import Expr, KroneckerDelta, Symbol

from lngeom.methods.composites import SIGMA as SCALE_NAME, Chain, Composite
from lngeom.methods.formulas import Place
from lngeom.methods.page import METHODS as ROWS
from lngeom.methods.weight import SPECTRAL, spectral
from lngeom.symbolic.derivatives import Order, Summed, derivative, flat, names_in, subscripted
from lngeom.symbolic.jacobian import LAYER, SIGMA
from lngeom.symbolic.layers import EPSILON, METHODS, Layer, Method
from lngeom.symbolic.notation import from_latex, latex
from lngeom.symbolic.proof import Assumption, Counterexample, Names, Proof, Step, cited, equality, labelled, matrix
from lngeom.symbolic.sums import D, Field, H, M, d, derivative as derivative_at_0, e, field, h, j, k, o, total

PLACES = {"H": (j, k), "M": (h, o), "D": (d, e)}
"""Indices of two arguments, by the size to which they run."""
_V, _U, _Z, _ANY = field("V"), field("U"), field("Z"), field("S")


@dataclass(frozen=True)
class Pieces:
    """An output of a method and its parts, for all sizes: `Parts` that are names, which `names` writes out.

    Attributes:
        method: the method.
        composite: its derivatives in parts.
    """

    method: Method
    composite: Composite

    def __call__(self, name: str, *at: Any) -> Expr:
        """A part: a symbol, or an entry of a family."""
        return field(name)(*at) if at else Symbol(name)

    @property
    def unit(self) -> Expr:
        """The index of the output's unit, in its group."""
        return flat(self.method.unit)[-1]

    def same(self, y: Any, z: Any) -> Expr:
        """A delta."""
        return KroneckerDelta(y, z)

    def total(self, body: Callable[[Any], Any], size: str) -> Expr:
        """A sum."""
        return LAYER.total(body, size)

    def size(self, size: str) -> Expr:
        """A size."""
        return LAYER.size(size)

    @cached_property
    def places(self) -> tuple[Place, Place]:
        """Those of two arguments."""
        first, second = zip(*(PLACES[size] for size in self.composite.runs), strict=True)
        return (first, second) if first[1:] else (first[0], second[0])

    @cached_property
    def layer(self) -> Layer:
        """The layer of the output."""
        return LAYER if self.composite.by_weights else Summed()

    @cached_property
    def names(self) -> dict[str, Any]:
        """What the names stand for."""
        at = self.layer, self.method.sample, self.method.unit, EPSILON
        return {name: part.value(*at) for name, part in self.composite.parts.items()}

    def argument(self, letter: str, place: Place) -> tuple[Expr, ...]:
        """All indices of the argument at a place."""
        return tuple(map(sp.sympify, flat(*self.composite.by[letter](self.method.sample, self.method.unit, place))))

    def only(self, letter: str, place: Place) -> Field:
        """1 for that argument, 0 for all others."""
        return lambda *at: sp.Mul(*map(KroneckerDelta, flat(*at), self.argument(letter, place)))

    def elsewhere(self) -> Field:
        """Any change of arguments that are at no place."""
        free = flat(self.places[0])

        def inside(letter: str, at: tuple[Expr, ...]) -> Expr:
            wanted = self.argument(letter, self.places[0])
            return sp.Mul(*(KroneckerDelta(a, w) for a, w in zip(at, wanted, strict=True) if w not in free))

        return lambda *at: _V(*at) * (1 - sum(inside(letter, flat(*at)) for letter in self.composite.by))

    def derivative(self, *changes: Field) -> Expr:
        """The mixed derivative of the output along changes of its arguments."""
        numbers = [sp.Dummy(real=True) for _ in changes]
        moves = list(zip(numbers, changes, strict=True))
        layer = self.layer
        added = lambda value, *at: value + sum(number * change(*at) for number, change in moves)
        moved = (
            Layer(lambda row, d: added(layer.W(row, d), row, d))
            if self.composite.by_weights
            else Summed(values=lambda sample, unit: added(layer.a(sample, unit), sample, unit))
        )
        value = sp.diff(self.method(moved, eps=EPSILON), *numbers)
        return value.xreplace(dict.fromkeys(numbers, sp.S.Zero))

    def equal(self, text: str, left: Expr, right: Any, name: str) -> Step:
        """The step left = right, where the right side uses names."""
        right = sp.sympify(right)
        return equality(text, left, right, name, {n: part for n, part in self.names.items() if n in names_in(right)})

    @property
    def output(self) -> str:
        """LaTeX of the output."""
        return "n" if self.method.logits or self.composite.runs == ("H", "D") else subscripted("n", (self.unit,))

    def by(self, letters: str) -> str:
        """LaTeX of the derivative of the output by arguments: of a summed input, its unit tells which."""
        power = f"^{len(letters)}" if len(letters) > 1 else ""
        at = [self.argument(*argument) for argument in zip(letters, self.places, strict=False)]
        shown = [indices if self.composite.by_weights else indices[-1:] for indices in at]
        below = (rf"\partial {subscripted(letter, place)}" for letter, place in zip(letters, shown, strict=True))
        return rf"\partial{power} {self.output}/{''.join(below)}"

    def formulas(self, order: Order) -> dict[str, Expr]:
        """The derivatives of an order, by the letters of their arguments."""
        y, z = self.places
        if order == "first":
            return {letter: sp.sympify(f(self, y)) for letter, f in self.composite.first.items()}
        return {letters: sp.sympify(f(self, y, z)) for letters, f in self.composite.second.items()}

    def statement(self, order: Order) -> str:
        """The derivatives of an order as LaTeX, with what their names stand for."""
        found = self.formulas(order)
        used = set().union(*map(names_in, found.values()))
        meanings = {name: part.meaning for name, part in self.composite.parts.items()} | {**self.composite.meanings}
        lines = [f"{self.by(letters)} = {latex(formula)}" for letters, formula in found.items()]
        return r",\quad ".join((*lines, *(text for name, text in meanings.items() if text and name in used)))


def whole(P: Pieces) -> Step:
    """The output in its parts."""
    return P.equal("The output is", P.method(P.layer, eps=EPSILON), P.composite.whole(P), P.output)


def nothing_else(P: Pieces) -> Step:
    """Arguments at no place do not move it."""
    return P.equal(
        "Along a change V of all other arguments it stays", P.derivative(P.elsewhere()), 0, f"d{P.output}[V]"
    )


def differentiated(P: Pieces, order: Order) -> tuple[Step, ...]:
    """The steps for a sum or product, which is differentiated whole."""
    steps = [whole(P), nothing_else(P)] if order == "first" else [whole(P)]
    for letters, formula in P.formulas(order).items():
        left = P.derivative(*(P.only(*argument) for argument in zip(letters, P.places, strict=False)))
        text = f"So its {order} derivative by {' and '.join(dict.fromkeys(letters))} is"
        steps.append(P.equal(text, left, formula, P.by(letters)))
    return tuple(steps)


def chained(P: Pieces, chain: Chain, order: Order) -> tuple[Step, ...]:
    """The steps for a chain: its outer link along any curve of summed inputs, its inner link, and the chain rule."""
    outer, output = chain.slopes[0], chain.output(P)
    slope = lambda change: total(lambda q: outer.first(output, q) * change(q), M)
    bend = lambda change, other: total(
        lambda q: total(lambda r: outer.second(output, q, r) * change(q) * other(r), M), M
    )
    (y, z), (letters,) = P.places, P.formulas(order)
    inner = lambda place: chain.slopes[1].first(chain.summed(P, place[0]), place[1])
    one, other = (lambda q, at=at: KroneckerDelta(q, at[0]) * inner(at) for at in (y, z))
    if order == "first":
        link = _along(P, chain, r"\hat a + sV", slope(_V), _V)
        moved = slope(one)
    else:
        second = chain.slopes[1].second(chain.summed(P, y[0]), y[1], z[1])
        both = lambda q: KroneckerDelta(q, y[0]) * KroneckerDelta(q, z[0]) * second
        link = _along(P, chain, r"\hat a + sV + tU + stZ", bend(_V, _U) + slope(_Z), _V, _U, _Z)
        moved = bend(one, other) + slope(both)
    orders: tuple[Order, ...] = ("first",) if order == "first" else ("first", "second")
    cites = (
        cited(f"The {one} derivative of a summed input â with standardized weights", _lemma(chain, one))
        for one in orders
    )
    last = equality(f"So by the chain rule the {order} derivative is", moved, P.formulas(order)[letters], P.by(letters))
    return whole(P), nothing_else(P), link, *cites, last


def _along(P: Pieces, chain: Chain, curve: str, right: Expr, *changes: Field) -> Step:
    """How the outer link moves along a curve of summed inputs: the derivative by all its numbers at 0."""
    outer, summed = METHODS[chain.outer.__name__], field(r"\hat a")
    s, t = (sp.Dummy(real=True) for _ in "st")
    numbers, by = (s, t, s * t)[: len(changes)], (s, t)[: len(changes)]
    added = lambda q: sum(number * change(q) for number, change in zip(numbers, changes, strict=True))
    moved = Summed(values=lambda sample, unit: summed(unit[1]) + added(unit[1]))
    still = Summed(values=lambda sample, unit: summed(unit[1]))
    value = sp.diff(outer(moved, eps=EPSILON), *by).xreplace({s: sp.S.Zero, t: sp.S.Zero})
    names: Names = {
        "n": lambda q: outer(still, P.method.sample, (P.method.unit[0], q), EPSILON),
        SCALE_NAME: sp.sqrt(outer.square(still, eps=EPSILON)),
    }
    left = rf"\partial_s {P.output}" if len(by) == 1 else rf"\partial_s\partial_t {P.output}"
    return equality(f"Along {from_latex(curve)}, at 0, it moves by", value, right, left, names)


def _lemma(chain: Chain, order: Order) -> Proof:
    """The derivative of the inner link."""
    row = next(row for row in ROWS.values() if row.kind is chain.inner)
    proof = derivative(METHODS[chain.inner.__name__], chain.slopes[1], order)
    return labelled(proof, f"derivative.{row.name}.{order}", "holds")


def _kink(instance: Mapping[str, Any]) -> tuple[Expr, Expr]:
    """Slopes of the largest singular value of W + tV at t = 0, from the right and from the left."""
    W, V, t = instance["W"], instance["V"], sp.Symbol("t", real=True)
    moved = Layer(lambda i, d: W[i - 1, d - 1] + t * V[i - 1, d - 1], sizes={"H": 2, "D": 2})
    largest = sp.sqrt(sp.expand(moved.largest_squared_singular_value()))
    right, left = (sp.limit((largest - largest.subs(t, 0)) / t, t, 0, side) for side in "+-")
    return right, left


SIMPLE = Assumption(
    "the largest singular value is simple",
    r"s > \sigma_2(W)",
    Counterexample(
        "the slope of a double singular value",
        r"\text{the largest singular value has one slope along } V",
        {"W": matrix([[1, 0], [0, 1]]), "V": matrix([[1, 0], [0, -1]])},
        _kink,
        "Its slopes along V from the right and from the left.",
    ),
)
"""Where it holds s, ℓ and v are smooth functions of W, by the implicit function theorem, and R exists."""

_v, _DOT_V = field("v"), field(r"\dot v")
_HALF_SLOPE = Symbol("r")


def _times(W: Field, vector: Field) -> Field:
    """The entries of Wv."""
    return lambda i: total(lambda d: W(i, d) * vector(d), D)


def _back(W: Field, vector: Field) -> Field:
    """The entries of Wᵀu."""
    return lambda d: total(lambda i: W(i, d) * vector(i), H)


def _dot(left: Field, right: Field, size: Expr) -> Expr:
    return total(lambda at: left(at) * right(at), size)


def _product_change(V: Field) -> Field:
    """The entries of (WᵀV + VᵀW)v."""
    return lambda d: _back(LAYER.W, _times(V, _v))(d) + _back(V, _times(LAYER.W, _v))(d)


def _eigen(t: Expr) -> Field:
    """E = WᵀWv − s²v, along the curve on which W, v and s² move by tV, t times the change of v, and 2tr."""
    W = lambda i, d: LAYER.W(i, d) + t * _V(i, d)
    v = lambda d: _v(d) + t * _DOT_V(d)
    return lambda d: _back(W, _times(W, v))(d) - (Symbol("s") ** 2 + 2 * t * _HALF_SLOPE) * v(d)


def spectral_steps(P: Pieces, order: Order) -> tuple[Step, ...]:
    """The steps for spectral norm: the equation of s² and v stays true along a curve of weights."""
    (y, z), s, output = P.places, P("s"), spectral(P)
    moved_equation = lambda d: derivative_at_0(lambda t: _eigen(t)(d))
    left_vector: Names = {r"\ell": lambda i: _times(LAYER.W, _v)(i) / s}
    if order == "first":
        at = P.only("W", y)
        start = (
            whole(P),
            equality(
                "E = WᵀWv − s²v stays 0 where W moves along V and s² by 2r",
                _dot(_v, moved_equation, D) - _dot(_eigen(sp.S.Zero), _DOT_V, D),
                2 * _dot(_times(LAYER.W, _v), _times(_V, _v), H) - 2 * _HALF_SLOPE * _dot(_v, _v, D),
                r"v\cdot\dot E - E\cdot\dot v",
            ),
            equality(
                "As |v| = 1 and Wv = sℓ, half the slope of s² by a weight is",
                _dot(_times(LAYER.W, _v), _times(at, _v), H),
                output.sigma * SPECTRAL.scale(output, y),
                r"\tfrac12\partial s^2/\partial W_{jd}",
                left_vector,
            ),
        )
    else:
        R = lambda f: field("R")(d, f)
        start = (
            cited(
                "The first derivative",
                labelled(derivative_in_parts(P.method, P.composite, "first"), "derivative.sn.first", "holds"),
            ),
            equality(
                "As Ė = 0, Rv = 0, v·v̇ = 0 and G = 1 − vvᵀ − R(s² − WᵀW) = 0, with C = (WᵀV + VᵀW)v, v moves by RC",
                _DOT_V(d) - _dot(R, field("C"), D),
                _dot(lambda f: field("G")(d, f), _DOT_V, D)
                + _v(d) * _dot(_v, _DOT_V, D)
                - _dot(R, field(r"\dot E"), D)
                - 2 * _HALF_SLOPE * _dot(R, _v, D),
                r"\dot v_d - (RC)_d",
                {"C": _product_change(_V), r"\dot E": moved_equation, "G": _gap},
            ),
            equality(
                "Where W moves along U and v with it, half the slope of s² along V moves by",
                derivative_at_0(_half_slope_moved),
                _dot(_times(_U, _v), _times(_V, _v), H) + _dot(field("C"), _DOT_V, D),
                r"d(Wv\cdot Vv)[U]",
                {"C": _product_change(_V)},
            ),
            equality(
                "So half the second derivative of s² by two weights is",
                _second_of_square(P),
                SPECTRAL.square(output, y, z),
                r"\tfrac12\partial^2 s^2/\partial W_{jd}\partial W_{ke}",
                {**left_vector, **_INVERSE},
            ),
        )
    return (*start, _quotient_step(P, order))


def _gap(d: Expr, f: Expr) -> Expr:
    """The entries of 1 − vvᵀ − R(s² − WᵀW)."""
    R, s = field("R"), Symbol("s")
    product = lambda g, f: total(lambda i: LAYER.W(i, g) * LAYER.W(i, f), H)
    inverse = total(lambda g: R(d, g) * (s**2 * KroneckerDelta(g, f) - product(g, f)), D)
    return KroneckerDelta(d, f) - _v(d) * _v(f) - inverse


def _half_slope_moved(t: Expr) -> Expr:
    """(Wv)·(Vv), where W moves by tU and v by t times its change."""
    v = lambda d: _v(d) + t * _DOT_V(d)
    W = lambda i, d: LAYER.W(i, d) + t * _U(i, d)
    return _dot(_times(W, v), _times(_V, v), H)


def _inverse(d: Expr, e: Expr) -> Expr:
    """The entries of R, a symmetric matrix."""
    return (_ANY(d, e) + _ANY(e, d)) / 2


def _inverse_of_row(j: Expr, e: Expr) -> Expr:
    """The entries of K = WR."""
    return total(lambda f: LAYER.W(j, f) * _inverse(f, e), D)


_INVERSE: Names = {
    "R": _inverse,
    "K": _inverse_of_row,
    "Q": lambda j, k: total(lambda f: _inverse_of_row(j, f) * LAYER.W(k, f), D),
}
"""R, WR and WRWᵀ, for any symmetric R."""


def _second_of_square(P: Pieces) -> Expr:
    """(Uv)·(Vv) + C(V)ᵀ R C(U), for V and U of one weight each."""
    V, U = (P.only("W", place) for place in P.places)
    first, second = map(_product_change, (V, U))
    bent = total(lambda f: total(lambda g: first(f) * _inverse(f, g) * second(g), D), D)
    return _dot(_times(U, _v), _times(V, _v), H) + bent


def _quotient_step(P: Pieces, order: Order) -> Step:
    """The derivative of n = a/σ, where s² moves as shown."""
    (y, z), output, numbers = P.places, spectral(P), [sp.Dummy(real=True) for _ in "st"]
    one, other = numbers if order == "second" else (numbers[0], sp.S.Zero)
    changes = [(one, P.only("W", y)), (other, P.only("W", z))]
    moved = Layer(lambda i, d: LAYER.W(i, d) + sum(number * change(i, d) for number, change in changes))
    slopes = [P(SCALE_NAME) * SPECTRAL.scale(output, place) for place in P.places]
    square = P("s") ** 2 + 2 * one * slopes[0] + 2 * other * slopes[1]
    square += 2 * one * other * SPECTRAL.square(output, y, z)
    a = lambda layer: layer.a(P.method.sample, P.method.unit)
    value = sp.diff(a(moved) / sp.sqrt(square + EPSILON), *(n for n in (one, other) if n != 0))
    scale = sp.sqrt(P("s") ** 2 + EPSILON)
    names = {**P.names, "n": a(LAYER) / scale, SCALE_NAME: scale}
    ((letters, formula),) = P.formulas(order).items()
    used = {name: names[name] for name in names if name in names_in(formula)}
    value = value.xreplace(dict.fromkeys(numbers, sp.S.Zero))
    return equality(f"So the {order} derivative of n = a/σ is", value, formula, P.by(letters), used)


def derivative_in_parts(method: Method, composite: Composite, order: Order) -> Proof:
    """The proof of the derivatives of an order.

    Args:
        method: the method.
        composite: its derivatives in parts.
        order: "first" or "second".

    Returns:
        The proof.

    Raises:
        ProofError: if a formula is not the derivative of the index formula.
    """
    P = Pieces(method, composite)
    assumed = (SIGMA,)
    if method.name == "SpectralNorm":
        steps, assumed = spectral_steps(P, order), (SIGMA, SIMPLE)
    elif composite.chain:
        steps = chained(P, composite.chain, order)
    else:
        steps = differentiated(P, order)
    return Proof(P.statement(order), steps, assumed)

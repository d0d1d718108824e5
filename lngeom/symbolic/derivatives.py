r"""First and second derivatives of methods as formulas in n and σ, for all sizes and every ε ≥ 0.

The formulas are those of a method's `Slopes`. A proof differentiates its index formula, by summed inputs that are
symbols of their own or by weights, and shows that the result is the formula with n and σ written out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import sympy as sp
from sympy import Expr, Indexed, KroneckerDelta, Symbol

from lngeom.methods.formulas import Place, Slopes, centred
from lngeom.symbolic.jacobian import LAYER, SIGMA
from lngeom.symbolic.layers import EPSILON, Layer, Method
from lngeom.symbolic.notation import from_latex, latex
from lngeom.symbolic.proof import Names, Proof, Step, equality
from lngeom.symbolic.sums import FREE_INDICES, D, Field, d, e, field, h, i, j, k, l, m, n, o, q, s, t, total, u

Order = Literal["first", "second"]

OTHERS: Mapping[Expr, tuple[Expr, Expr]] = {i: (j, k), n: (m, l), q: (h, o), t: (s, u)}
"""The index of an output, and those of two arguments."""
SCALE = Symbol(r"\sigma")
_SUMMED, _ANY = field("a"), field("V")
_W_NAME, _K = r"\hat w", Symbol("K")
_N, _X, _W, _C = field("n"), field("x"), field(_W_NAME), field("c")


@dataclass(frozen=True)
class Summed(Layer):
    """A layer whose summed inputs are symbols of their own.

    Attributes:
        values: summed inputs of a sample and a unit.
    """

    values: Field = _SUMMED

    @property
    def a(self) -> Field:
        """Summed inputs."""
        return self.values


def flat(*indices: Any) -> tuple[Expr, ...]:
    """Indices, some of which are tuples of indices."""
    return tuple(part for index in indices for part in (index if isinstance(index, tuple) else (index,)))


@dataclass(frozen=True)
class Symbolic:
    """An output of a method, for all sizes: n, σ, c, w and x are names, which `names` writes out.

    Attributes:
        method: the method.
        slopes: how its numerator and scale move.
        sigma: σ.
    """

    method: Method
    slopes: Slopes
    sigma: Expr = SCALE

    @property
    def outer(self) -> str:
        """The function of the ratio."""
        return self.method.outer

    @cached_property
    def indices(self) -> tuple[Expr, ...]:
        """The indices of an argument: of a summed input those of the output, of a weight the unit's and the input's."""
        return flat(self.method.sample, self.method.unit) if self.slopes.by == "a" else flat(self.method.unit, d)

    @cached_property
    def _runs(self) -> tuple[Expr, ...]:
        """Those that run."""
        return tuple(index for index in self.indices if str(FREE_INDICES[index]) in self.slopes.runs)  # pyright: ignore

    @cached_property
    def place(self) -> Place:
        """The output's own; none among the weights."""
        return self._runs if self.slopes.by == "a" else ()

    @cached_property
    def places(self) -> tuple[Place, Place]:
        """Those of two arguments."""
        if self.slopes.by == "W":
            return (d,), (e,)
        first, second = zip(*(OTHERS[index] for index in self._runs), strict=True)
        return first, second

    def _at(self, place: Place) -> dict[Expr, Expr]:
        return dict(zip(self._runs, place, strict=True))

    def moved(self, *changes: tuple[Expr, Field]) -> Layer:
        """The layer of the output, with numbers times fields added to its arguments."""
        added = lambda value, *at: value + sum(number * change(*at) for number, change in changes)
        if self.slopes.by == "W":
            return Layer(lambda row, d: added(LAYER.W(row, d), row, d))
        return Summed(values=lambda sample, unit: added(_SUMMED(sample, unit), sample, unit))

    def only(self, place: Place) -> Field:
        """1 for the argument at a place, 0 for all others."""
        wanted = tuple(self._at(place).get(index, index) for index in self.indices)
        return lambda *at: sp.Mul(*map(KroneckerDelta, flat(*at), wanted))

    def elsewhere(self) -> Field:
        """Any change of arguments that are at no place."""
        fixed = [number for number, index in enumerate(self.indices) if index not in self._runs]
        inside = lambda at: sp.Mul(*(KroneckerDelta(at[number], self.indices[number]) for number in fixed))
        return lambda *at: _ANY(*at) * (1 - inside(flat(*at)))

    def derivative(self, of: Callable[[Layer], Expr], *changes: Field) -> Expr:
        """The mixed derivative of a function of the layer along changes of the arguments."""
        numbers = [sp.Dummy(real=True) for _ in changes]
        value = sp.diff(of(self.moved(*zip(numbers, changes, strict=True))), *numbers)
        return value.xreplace(dict.fromkeys(numbers, sp.S.Zero))

    def numerator(self, layer: Layer) -> Expr:
        """The numerator u."""
        return self.method.numerator(layer, eps=EPSILON)

    def square(self, layer: Layer) -> Expr:
        """The square σ²."""
        return sp.sympify(self.method.square(layer, eps=EPSILON))

    def scale(self, layer: Layer) -> Expr:
        """The scale σ."""
        return sp.sqrt(self.square(layer))

    def output(self, layer: Layer) -> Expr:
        """The output n."""
        return self.method(layer, eps=EPSILON)

    @property
    def count(self) -> Expr:
        """The number of places: a size, or K, the product of several."""
        return self.counted if self.counted.is_Symbol else _K

    @cached_property
    def counted(self) -> Expr:
        """The same, written out."""
        return sp.Mul(*map(LAYER.size, self.slopes.runs))

    def n(self, y: Place) -> Expr:
        """The output at a place."""
        return _N(*y) if y else Symbol("n")

    def same(self, y: Place, z: Place) -> Expr:
        """A product of deltas."""
        return sp.Mul(*map(KroneckerDelta, y, z))

    def centring(self, y: Place, z: Place) -> Expr:
        """c of two places."""
        return _C(*y, *z)

    def w(self, y: Place) -> Expr:
        """A weight over σ."""
        return _W(*y)

    def x(self, y: Place) -> Expr:
        """An input."""
        return _X(*y)

    def squared_length(self) -> Expr:
        """‖x‖²."""
        return total(lambda d: _X(d) ** 2, D)

    def stored(self, name: str) -> Expr:
        """A parameter of the method."""
        return LAYER.stored(name, None)

    @cached_property
    def names(self) -> dict[str, Expr | Field]:
        """What the names stand for."""
        layer, half = self.moved(), len(self._runs)
        vector = lambda values: centred(LAYER, values, D) if self.slopes.centred else values
        row, case = vector(LAYER.row(self.method.unit)), vector(LAYER.case(self.method.sample))
        output, sigma = self.output(layer), self.scale(layer)
        return {
            SCALE.name: sigma,
            "n": (lambda *y: output.xreplace(self._at(y))) if self.place else output,
            _K.name: self.counted,
            "c": lambda *both: self.centred(both[:half], both[half:]),
            "x": case,
            _W_NAME: lambda d: row(d) / sigma,
        }

    def centred(self, y: Place, z: Place) -> Expr:
        """What c of two places stands for."""
        return self.same(y, z) - 1 / self.counted

    def equal(self, text: str, left: Expr, right: Expr | int, name: str) -> Step:
        """The step left = right, where the right side uses names."""
        right = sp.sympify(right)
        short: Names = {name: part for name, part in self.names.items() if name in names_in(right)}
        return equality(text, left, right, name, short)

    def where(self, right: Expr) -> tuple[str, ...]:
        """LaTeX of what c, K, w and x in a formula are."""
        used = names_in(right)
        ones = "".join(f"[{a}={b}]" for a, b in zip(*self.places, strict=True))
        x, w = "x_{nd}", "W_{id}"
        if self.slopes.centred:
            x, w = r"x_{nd} - \tfrac1D\sum_e x_{ne}", r"(W_{id} - \tfrac1D\sum_e W_{ie})"
        texts = {
            "c": f"{subscripted('c', flat(*self.places))} = {ones} - 1/{self.count}",
            _K.name: f"K = {' '.join(self.slopes.runs)}",
            "x": f"x_d = {x}",
            _W_NAME: rf"\hat w_d = {w}/\sigma",
        }
        return tuple(text for name, text in texts.items() if name in used)

    def by(self, what: str, *places: Place) -> str:
        """LaTeX of the derivative of something by the arguments at places."""
        letter, power = self.slopes.by.lower(), f"^{len(places)}" if len(places) > 1 else ""
        below = "".join(rf"\partial {subscripted(letter, place)}" for place in places)
        return rf"\partial{power} {what}/{below}"

    def named(self, letter: str) -> str:
        """LaTeX of n or u, with the indices of the output's place."""
        return subscripted(letter, self.place)


def names_in(formula: Expr) -> set[str]:
    """The names in a formula, indices aside."""
    entries = {entry.base.name for entry in formula.atoms(Indexed)}
    return entries | {symbol.name for symbol in formula.atoms(Symbol) if symbol not in FREE_INDICES}


def subscripted(letter: str, place: Place) -> str:
    """LaTeX of a letter with the indices of a place."""
    return rf"{letter}_{{{''.join(map(str, place))}}}" if place else letter


class Expanded(Symbolic):
    """The same with c and K written out."""

    @property
    def count(self) -> Expr:
        """The number of places."""
        return self.counted

    def centring(self, y: Place, z: Place) -> Expr:
        """The same less 1/count."""
        return self.centred(y, z)


def first_steps(P: Symbolic) -> tuple[Step, ...]:
    """How numerator and scale move, and that nothing else moves n."""
    (y, _), slopes = P.places, P.slopes
    moved = P.only(y)
    slope = slopes.share(P) * slopes.scale(P, y)
    outside = "summed inputs outside its statistics" if slopes.by == "a" else "weights of other units"
    return (
        P.equal(
            f"Along a change V of {outside} n stays", P.derivative(P.output, P.elsewhere()), 0, P.named("dn") + "[V]"
        ),
        P.equal(
            "The numerator u moves by", P.derivative(P.numerator, moved), slopes.numerator(P, y), P.by(P.named("u"), y)
        ),
        P.equal("The scale moves by", P.derivative(P.scale, moved), slope, P.by(SCALE.name, y)),
    )


def second_steps(P: Symbolic) -> tuple[Step, ...]:
    """Numerator and square have these second derivatives."""
    (y, z), slopes = P.places, P.slopes
    both = P.only(y), P.only(z)
    bend = slopes.share(P) * slopes.square(P, y, z)
    return (
        P.equal("The numerator u is linear", P.derivative(P.numerator, *both), 0, P.by(P.named("u"), y, z)),
        P.equal(
            "The square is quadratic", P.derivative(P.square, *both) / 2, bend, r"\tfrac12" + P.by(r"\sigma^2", y, z)
        ),
    )


def written(method: Method, slopes: Slopes, order: Order) -> tuple[Symbolic, tuple[Place, ...], Expr]:
    """The output, the places of the arguments, and the formula of its derivative by them.

    The second derivative has names for c and K, the first has them written out.
    """
    if order == "first":
        full = Expanded(method, slopes)
        return full, full.places[:1], sp.sympify(slopes.first(full, full.places[0]))
    P = Symbolic(method, slopes)
    return P, P.places, sp.sympify(slopes.second(P, *P.places))


def statement(method: Method, slopes: Slopes, order: Order) -> str:
    """A derivative as LaTeX, with what its names stand for."""
    P, places, formula = written(method, slopes, order)
    return r",\quad ".join((f"{P.by(P.named('n'), *places)} = {latex(formula)}", *P.where(formula)))


def derivative(method: Method, slopes: Slopes, order: Order) -> Proof:
    """The proof of a derivative.

    Args:
        method: the method.
        slopes: how its numerator and scale move.
        order: "first" or "second".

    Returns:
        The proof.

    Raises:
        ProofError: if the formula is not the derivative of the index formula.
    """
    P, places, formula = written(method, slopes, order)
    steps = (first_steps if order == "first" else second_steps)(Expanded(method, slopes))
    where = P.where(formula)
    given = f"with {', '.join(map(from_latex, where))}, " if where else ""
    left = P.derivative(P.output, *map(P.only, places))
    last = P.equal(f"So {given}the {order} derivative of n is", left, formula, P.by(P.named("n"), *places))
    return Proof(statement(method, slopes, order), (*steps, last), (SIGMA,))

r"""Identities between sums over an unspecified number of units, inputs and samples, decided by a normal form.

An expression is built from indexed symbols ($W_{id}$, $x_{nd}$, …), sums $\sum_{i=1}^{H}$ with symbolic bounds,
Kronecker deltas, field operations and square roots. `normal_form` distributes every sum over its terms, moves
factors that do not depend on an index out of its sum, contracts deltas, splits products of sums into connected
components and names bound indices canonically, so that two polynomials in sums are equal for all sizes when their
normal forms are. `vanishes` clears denominators and reduces $\sqrt{v}^2 = v$ on top of it.

`lngeom.symbolic.evaluation` evaluates the same expressions at given sizes and shares no code with the normal form;
every identity is put through both.
"""

import functools
import itertools
from collections.abc import Callable

import sympy as sp
from sympy import Add, Dummy, Expr, IndexedBase, KroneckerDelta, Mul, Pow, Rational, Symbol
from sympy.core.cache import cacheit

H, D, N = sp.symbols("H D N", integer=True, positive=True)
G, M = sp.symbols("G M", integer=True, positive=True)
T = sp.Symbol("T", integer=True, positive=True)
"""Sizes: H units, D inputs, N samples; G groups of M units; T positions."""

i, j, k = sp.symbols("i j k", integer=True, positive=True)
d, e = sp.symbols("d e", integer=True, positive=True)
n, m, l = sp.symbols("n m l", integer=True, positive=True)
p, q, h, o = sp.symbols("p q h o", integer=True, positive=True)
s, t, u = sp.symbols("s t u", integer=True, positive=True)
FREE_INDICES: dict[Symbol, Symbol] = {
    **dict.fromkeys((i, j, k), H),
    **dict.fromkeys((d, e), D),
    **dict.fromkeys((n, m, l), N),
    p: G,
    **dict.fromkeys((q, h, o), M),
    **dict.fromkeys((s, t, u), T),
}
"""Indices that may stand free in a statement, and the size each runs to."""

_LETTERS = {H: "ijkl", D: "def", N: "nml", G: "pr", M: "qrsl", T: "tsuv"}

Index = Expr | tuple[Expr, ...]
Field = Callable[..., Expr]


class Indexed(sp.Indexed):
    """An indexed symbol, made once for its base and indices: SymPy deduces what each new one is, and that takes long.

    SymPy orders by the name of the class.
    """

    __new__ = cacheit(sp.Indexed.__new__)


class Sum(sp.Sum):
    """A sum over indices from 1 to a positive size, whose free symbols are looked up once: they decide most steps.

    SymPy sets brackets by the name of the class.
    """

    # SymPy asks whether each factor of a product is zero, and searches all terms of a sum for an answer. None ends the
    # search: normal forms decide what is zero.
    is_zero = is_integer = is_noninteger = is_even = is_odd = is_prime = is_composite = None
    is_rational = is_irrational = is_algebraic = is_transcendental = None

    @functools.cached_property
    def free_symbols(self) -> set[Symbol]:  # pyright: ignore
        """Symbols other than its indices."""
        indices = {limit[0] for limit in self.limits}
        return self.function.free_symbols - indices | {s for limit in self.limits for s in limit[2].free_symbols}

    def _eval_is_infinite(self) -> bool | None:
        """A sum of finite terms is finite."""
        return False if self.function.is_finite else None


class Largest(sp.Expr):
    """The largest value of a body over an index from 1 to a positive size."""

    is_commutative = True
    is_extended_real = True
    is_real = True

    @classmethod
    def over(cls, body: Callable[[Expr], Expr], size: Expr) -> "Largest":
        """The largest body(i), with an index of its own."""
        index = Dummy(_LETTERS.get(size, "i")[0], integer=True, positive=True)
        return cls(body(index), index, size)

    @property
    def free_symbols(self) -> set[Symbol]:  # pyright: ignore
        """Symbols other than its index."""
        body, index, size = self.args
        return (body.free_symbols - {index}) | size.free_symbols

    @property
    def bound_symbols(self) -> list[Expr]:
        """Its index."""
        return [self.args[1]]


def field(name: str, *, positive: bool = False) -> Field:
    """An indexed family of real numbers: ``field("W")(i, d)`` is $W_{id}$; an index may be a tuple (group, unit)."""
    base = IndexedBase(name, real=True, positive=True) if positive else IndexedBase(name, real=True)

    def entry(*indices: Index) -> Expr:
        flat = [part for index in indices for part in (index if isinstance(index, tuple) else (index,))]
        return Indexed(base, *flat)

    return entry


def total(body: Callable[[Expr], Expr], size: Expr) -> Expr:
    r"""$\sum_{i=1}^{\text{size}} \text{body}(i)$ with an index of its own."""
    index = Dummy(_LETTERS.get(size, "i")[0], integer=True, positive=True)
    return Sum(body(index), (index, 1, size))


def mean(body: Callable[[Expr], Expr], size: Expr) -> Expr:
    r"""$\frac{1}{\text{size}} \sum_{i=1}^{\text{size}} \text{body}(i)$."""
    return total(body, size) / size


def derivative(curve: Callable[[Expr], Expr]) -> Expr:
    r"""$\frac{d}{dt} \text{curve}(t) \big|_{t=0}$, for directional derivatives."""
    t = Dummy("t", real=True)
    return sp.diff(curve(t), t).subs(t, 0)


def _expand(expr: Expr) -> Expr:
    return sp.expand(expr, deep=False, power_base=False, power_exp=False, log=False, basic=False)


@functools.lru_cache(2**14)  # steps of a proof share most of their parts
def normal_form(expr: Expr) -> Expr:
    """The normal form: a polynomial in canonically named sums, indexed symbols and opaque powers."""
    expr = sp.sympify(expr)
    if expr.is_Atom or isinstance(expr, sp.Indexed):
        return expr
    if isinstance(expr, sp.Sum):
        body = normal_form(expr.function)
        for index, low, high in expr.limits:
            if low != 1:
                raise ValueError(f"sums must start at 1; got {expr.limits}")
            body = _summed(body, index, high)
        return body
    if isinstance(expr, Add):
        return Add(*map(normal_form, expr.args))
    if isinstance(expr, Mul):
        product = sp.Integer(1)
        for factor in expr.args:
            product = _expand(product * normal_form(factor))
        return product
    if isinstance(expr, Pow):
        base, exponent = normal_form(expr.base), expr.exp
        if exponent.is_Integer and exponent > 0:
            return _expand(base**exponent)
        return _power(base, exponent) if exponent.is_Rational else Pow(base, normal_form(exponent))
    if isinstance(expr, Largest):
        return _largest(*expr.args)
    if isinstance(expr, sp.Abs):
        factor, rest = _positive_factor(normal_form(expr.args[0]))
        return factor * sp.Abs(min(rest, _expand(-rest), key=_order))
    return expr.func(*(normal_form(arg) if isinstance(arg, Expr) else arg for arg in expr.args))


def _order(form: Expr) -> str:
    """A key that does not depend on which dummies stand for indices."""
    return str(form.xreplace({dummy: Symbol(f"{dummy.name}_", integer=True) for dummy in form.atoms(Dummy)}))


def _largest(body: Expr, index: Symbol, size: Expr) -> Expr:
    """Terms without the index, and positive factors without it, leave a maximum."""
    outside, inside = _expand(normal_form(body)).as_independent(index, as_Add=True)
    if inside == 0:
        return outside
    factor, rest = _positive_factor(inside, index)
    name = Symbol(f"{size}_{_depth(rest)}_0", integer=True, positive=True)
    return _expand(outside + factor * Largest(rest.xreplace({index: name}), name, size))


def _positive_factor(form: Expr, index: Symbol | None = None) -> tuple[Expr, Expr]:
    """A positive factor that all terms of a normal form share, without the index, and the rest."""
    terms = [term.as_powers_dict() for term in Add.make_args(form)]
    factor = sp.Integer(1)
    for base in {base for term in terms for base in term}:
        if base.is_positive and not base.is_Number and (index is None or index not in base.free_symbols):
            factor *= base ** min((term.get(base, 0) for term in terms), key=lambda power: power)
    return factor, _expand(form / factor) if factor != 1 else form


def _summed(body: Expr, index: Symbol, size: Expr) -> Expr:
    """Normal form of the sum over one index of a body in normal form."""
    return Add(*(_summed_term(term, index, size) for term in Add.make_args(_expand(body))))


def _summed_term(term: Expr, index: Symbol, size: Expr) -> Expr:
    outside, inside = term.as_independent(index, as_Add=False)
    if inside == 1:
        return outside * size
    factors = list(Mul.make_args(inside))
    for factor in factors:
        if isinstance(factor, KroneckerDelta):
            (other,) = [arg for arg in factor.args if arg != index]
            rest = Mul(*(f for f in factors if f is not factor))
            return _expand(outside * normal_form(rest.xreplace({index: other})))
    bound, flat = {index: size}, []
    for factor in factors:
        base, exponent = factor.as_base_exp()
        if isinstance(base, sp.Sum) and exponent.is_Integer and exponent > 0:
            for _ in range(int(exponent)):
                fresh = {limit[0]: Dummy(integer=True, positive=True) for limit in base.limits}
                bound |= {fresh[limit[0]]: limit[2] for limit in base.limits}
                flat += Mul.make_args(base.function.xreplace(fresh))
        else:
            flat.append(factor)
    return outside * _components(flat, bound)


def _components(factors: list[Expr], bound: dict[Symbol, Expr]) -> Expr:
    """Product of the sums over each connected component of factors that share bound indices."""
    result, remaining = sp.Integer(1), list(bound)
    while remaining:
        members, frontier = set(), {remaining[0]}
        while frontier:
            members |= frontier
            touching = [f for f in factors if f.free_symbols & members]
            frontier = {s for f in touching for s in f.free_symbols if s in bound} - members
        result *= _canonical([f for f in factors if f.free_symbols & members], {s: bound[s] for s in members})
        remaining = [s for s in remaining if s not in members]
    return result * Mul(*(f for f in factors if not f.free_symbols & set(bound)))


def _depth(expr: Expr) -> int:
    """How deeply sums are nested inside opaque factors: keeps names of inner and outer indices apart."""
    names = [s.name for total_ in expr.atoms(sp.Sum, Largest) for s in total_.bound_symbols]
    return max((int(name.split("_")[1]) + 1 for name in names if name.count("_") == 2), default=0)


def _canonical(factors: list[Expr], bound: dict[Symbol, Expr]) -> Expr:
    product = Mul(*factors)
    depth = _depth(product)
    sizes = sorted(set(bound.values()), key=str)
    groups = [[s for s, size in bound.items() if size == wanted] for wanted in sizes]
    names = [
        [Symbol(f"{size}_{depth}_{place}", integer=True, positive=True) for place in range(len(group))]
        for size, group in zip(sizes, groups, strict=True)
    ]
    arrangements = itertools.product(*(itertools.permutations(group) for group in groups))
    candidates = (
        product.xreplace(
            {s: name for old, new in zip(order, names, strict=True) for s, name in zip(old, new, strict=True)}
        )
        for order in arrangements
    )
    first, *others = candidates
    body = min((first, *others), key=str) if others else first
    limits = [(name, 1, size) for size, new in zip(sizes, names, strict=True) for name in new]
    return Sum(body, *limits)


def _generators(expr: Expr) -> set[Expr]:
    """The indeterminates of a rational function: everything that is not +, ·, an integer power or a number."""
    if expr.is_Number:
        return set()
    if isinstance(expr, (Add, Mul)) or (isinstance(expr, Pow) and expr.exp.is_Integer):
        return set().union(*(_generators(arg) for arg in expr.args))
    return {expr}


@functools.lru_cache(2**12)  # proofs share most of their roots, too
def _power(base: Expr, exponent: Rational) -> Expr:
    """Base in normal form to a negative or fractional power, with squares of positive factors taken out of roots."""
    names = {g: Dummy(positive=True) if g.is_positive else Dummy(real=True) for g in _generators(base)}
    originals = {name: g for g, name in names.items()}
    numerator, denominator = sp.fraction(sp.together(base.xreplace(names)))
    if exponent.is_Integer:
        top, bottom = (sp.factor(part).xreplace(originals) for part in (denominator, numerator))
        return (
            top**-exponent * bottom**exponent
            if bottom.is_Mul
            else _expand(top**-exponent * _expand(bottom) ** exponent)
        )
    content, factors = sp.factor_list(sp.expand(numerator * denominator))
    outside, inside = sp.Integer(1), sp.sign(content)
    for factor, multiplicity in [(abs(content), 1), *factors]:
        whole, odd = divmod(multiplicity, 2)
        outside *= (factor if factor.is_positive or whole % 2 == 0 else sp.Abs(factor)) ** whole
        if factor.is_positive and odd:
            outside *= factor ** Rational(1, 2)
        else:
            inside *= factor**odd
    outside, inside = outside.xreplace(originals), sp.expand(inside).xreplace(originals)
    denominator = denominator if denominator.is_positive else sp.Abs(sp.expand(denominator))
    twice = 2 * exponent
    scale = outside**twice * Pow(denominator.xreplace(originals), -twice)
    return scale if inside == 1 else scale * Pow(inside, exponent)


def vanishes(expr: Expr) -> bool:
    """Whether an expression is zero for all sizes and all values at which it is defined."""
    form = _merge_deltas(normal_form(expr))
    if form == 0:
        return True
    names, squares = {}, {}
    for g in sorted(_generators(form), key=str):
        base, exponent = g.as_base_exp()
        if isinstance(g, Pow) and exponent.is_Rational and exponent.q == 2:
            root = squares.setdefault(base, Dummy(positive=True))
            names[g] = root**exponent.p
        else:
            names[g] = Dummy()
    for base in squares:
        names |= {g: Dummy() for g in _generators(base) if g not in names}
    numerator = sp.expand(sp.fraction(sp.together(form.xreplace(names)))[0])
    for base, root in squares.items():
        square = base.xreplace(names)
        powers = sp.Poly(numerator, root).terms()
        numerator = sp.expand(Add(*(c * square ** (power // 2) * root ** (power % 2) for (power,), c in powers)))
    return numerator == 0


def _merge_deltas(form: Expr) -> Expr:
    r"""Writes $\delta_{ik} f_k$ as $\delta_{ik} f_i$ for free indices."""
    terms = []
    for term in Add.make_args(form):
        for delta in [f for f in Mul.make_args(term) if isinstance(f, KroneckerDelta)]:
            first, second = sorted(delta.args, key=str)
            term = _expand(delta * normal_form((term / delta).xreplace({second: first})))
        terms.append(term)
    return Add(*terms)


def displayed(expr: Expr) -> Expr:
    """The same expression with bound indices named i, j, d, n, … for reading."""

    def rename(node: Expr, taken: frozenset[str]) -> Expr:
        if not isinstance(node, Expr) or not node.has(sp.Sum):
            return node
        if not isinstance(node, sp.Sum):
            return node.func(*(rename(arg, taken) for arg in node.args))
        body, limits = node.function, []
        for index, low, high in node.limits:
            letters = (*_LETTERS.get(high, "ijkl"), *(f"i_{c}" for c in range(9)))
            name = next(letter for letter in letters if letter not in taken)
            letter = Symbol(name, integer=True, positive=True)
            taken |= {name}
            body, limits = body.xreplace({index: letter}), [*limits, (letter, low, high)]
        return Sum(rename(body, taken), *limits)

    return rename(sp.sympify(expr), frozenset(str(s) for s in expr.free_symbols))

r"""The null-space theorem of groups of units, for all sizes: named directions are null, and there are no others.

`lngeom.information.nullspace_theorem` states it. A direction is (dW, db, dg), written with $e_i = dg_i/g_i$ and
$\beta_i = db_i/g_i$. At an input x, u is the numerator of the layer (PWx of layer norm, Wx of RMS norm), v the same of
dW (P dW x, dW x), $q = |u|^2/H$ and $s = u^\top v/H$. The output of unit i stands still where
$$(q + \epsilon)(v_i + e_i u_i) - u_i s + \beta_i \sigma^3 = 0.$$
The steps solve this equation for all x of an open set. What is left are linear equations for e, one for each
coefficient of Σ e u and of Σ e u². Their rank is the largest possible for almost all W, because it is for one W.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations
from typing import Any

import sympy as sp
from sympy import Expr, sqrt

from lngeom.information.nullspace_theorem import Cell
from lngeom.symbolic.actions import SHIFT
from lngeom.symbolic.jacobian import GAIN, LAYER, along
from lngeom.symbolic.layers import BATCH_NORM, EPSILON, RMS_NORM, Layer, Method
from lngeom.symbolic.modular import PRIME, rank
from lngeom.symbolic.proof import Assumption, Names, Proof, Step, cited, equality, fact
from lngeom.symbolic.sums import D, Field, H, M, N, derivative, field, j as j_index, mean, n, p, total

V, TILT, BIAS, KAPPA, FORM = field("V"), field("e"), field("beta"), field("kappa"), field("t")
FORMS = field("l")
U_, V_ = field("u"), field("v")
Q, S, SIGMA = sp.symbols(r"q s \sigma")
"""The letters of the steps; `Grouped.names` says what they stand for."""
ONE_NUMBER = sp.Symbol("c", real=True)
REFLECTED = Layer(LAYER.W, lambda n, d: -LAYER.X(n, d))
"""The same layer at the inputs −x."""
LARGEST = 6
"""Ranks r up to which the equations for e are solved in exact arithmetic, besides the argument for all r."""

SPAN = Assumption(
    "outputs have positive variance, inputs span and fill an open set, gains are not zero",
    r"\Lambda \succ 0,\ g_i \neq 0,\ \sigma > 0,\ \epsilon = 0",
)
GENERIC = Assumption("almost all weights", r"W \notin \{\text{minors} = 0\}")
GENERIC_GAINS = Assumption("almost all weights and gains", r"(W, g) \notin \{\text{minors} = 0\}")
SOFTMAX = Assumption(
    "one softmax with inputs that span and fill an open set, gains are not zero",
    r"\ker\Lambda = \mathbf{1},\ g_i \neq 0,\ \sigma > 0",
)
TWO_DIRECTIONS = Assumption(
    "the (centred) weights have rank 2 or more in each group", r"\mathrm{rank}\,PW \geq 2,\ D \geq 2"
)


def cubic(unit: Any) -> Expr:
    """q (v_i + e_i u_i) − u_i s."""
    return Q * (V_(unit) + TILT(unit) * U_(unit)) - U_(unit) * S


class Grouped:
    """Numerators and means of layer, RMS and group norm at one input, in the letters of this module."""

    def __init__(self, method: Method, layer: Layer = LAYER, eps: Expr = sp.S.Zero):
        self.method, self.layer, self.eps = method, layer, eps
        self.unit = method.unit
        self.sigma = sqrt(method.square(layer, eps=eps))
        self.q = self.mean(lambda j: self.u(j) ** 2)
        self.s = self.mean(lambda j: self.u(j) * self.v(j))

    def mean(self, body: Callable[[Any], Expr]) -> Expr:
        """The mean over the units of one group."""
        return mean(lambda j: body((p, j)), M) if self.method.grouped else mean(body, H)

    def centred(self, rows: Field) -> Field:
        """Rows minus their mean over the group, where the method subtracts it."""
        if self.method is RMS_NORM:
            return rows
        return lambda j, d: rows(j, d) - self.mean(lambda l: rows(l, d))

    def u(self, j: Any) -> Expr:
        """The numerator of a unit."""
        return self.method.numerator(self.layer, n, j)

    def v(self, j: Any) -> Expr:
        """How it moves with dW."""
        return total(lambda d: self.centred(V)(j, d) * self.layer.X(n, d), D)

    def moved(self, direction: Field = V) -> Expr:
        """dz_i/g_i."""
        slope = derivative(lambda t: self.method(self.layer.towards(direction, t), eps=self.eps))
        return slope + TILT(self.unit) * self.method(self.layer, eps=self.eps) + BIAS(self.unit)

    def names(self, *letters: str) -> Names:
        """What the letters of this module stand for."""
        unit = lambda place: place if len(place) > 1 else place[0]
        meanings: Names = {
            "u": lambda *place: self.u(unit(place)),
            "v": lambda *place: self.v(unit(place)),
            "q": self.q,
            "s": self.s,
            r"\sigma": self.sigma,
        }
        return {letter: meanings[letter] for letter in letters}


def _biases_step(method: Method) -> Step:
    """Of the equation at x and at −x only the biases are left."""
    here, back = Grouped(method), Grouped(method, REFLECTED)
    return equality(
        "The equation is analytic in x where σ ≠ 0, a connected set as rank PW ≥ 2; so it holds at −x too. The sum of "
        "both leaves the biases alone: β = 0",
        here.sigma**3 * (here.moved() + back.moved()),
        2 * BIAS(method.unit) * SIGMA**3,
        r"\sigma^3 (dz_i(x) + dz_i(-x))/g_i",
        here.names(r"\sigma"),
    )


def _equation_step(method: Method) -> Step:
    group = Grouped(method)
    return equality(
        "With u = PWx, v = P dW x (RMS norm: P = I), q = |u|²/H, s = uᵀv/H, e = dg/g, β = db/g: output i stands still "
        "where this is 0",
        group.sigma**3 * group.moved(),
        cubic(method.unit) + BIAS(method.unit) * SIGMA**3,
        r"\sigma^3 dz_i/g_i",
        group.names("u", "v", "q", "s", r"\sigma"),
    )


@cache
def proportional() -> Proof:
    """The lemma that q w = s h for all x makes w a multiple of h, if q is a mean of squares that h does not divide."""
    first, other, forms, point, weight = (field(name) for name in ("h", "y", "U", "x", "w"))
    at = lambda rows, vector: total(lambda d: rows(d) * vector(d), D)
    share = at(first, point) / at(first, other)
    moved: Field = lambda d: point(d) - share * other(d)
    square = mean(lambda j: total(lambda d: forms(j, d) * moved(d), D) ** 2, H)
    s_there = sp.Symbol("s(x')")
    return Proof(
        r"q\,w = s\,h\ \forall x,\ q = \operatorname{mean}_j U_j^2 \Rightarrow w = c\,h,\ s = c\,q",
        (
            equality(
                "Take y with h(y) ≠ 0. At x' = x − h(x)/h(y) y the form h is 0",
                at(first, moved),
                0,
                r"h(x')",
            ),
            equality(
                "So there q w = s h says q w = 0",
                square * at(weight, moved) - s_there * at(first, moved),
                sp.Symbol("q(x')") * at(weight, moved),
                r"q(x')\,w(x') - s(x')\,h(x')",
                {"q(x')": square},
            ),
            equality(
                "But q is not 0 there for almost all x: U_j(x') is a linear form in x, and 0 only if U_j is a multiple "
                "of h, as not all are. So w(x') = 0",
                total(lambda d: forms(j_index, d) * moved(d), D),
                total(lambda d: forms(j_index, d) * point(d), D)
                - share * total(lambda d: forms(j_index, d) * other(d), D),
                r"U_j(x')",
            ),
            equality(
                "and w(x) is the number c = w(y)/h(y) times h(x); then s h = c q h gives s = c q",
                at(weight, point),
                at(weight, other) / at(first, other) * at(first, point) + sp.Symbol("w(x')"),
                r"w(x)",
                {"w(x')": at(weight, moved)},
            ),
        ),
        (Assumption("some U_j is no multiple of h", r"\mathrm{rank} \geq 2,\ h \neq 0"),),
        name="lemma.proportional",
    )


def _solution_steps(method: Method, softmax: bool) -> tuple[Step, ...]:
    """From w = v + e u, which is c u for units with a gain (and t/g beside it), to Σ v = 0 and s = c q as equations."""
    group = Grouped(method)
    letter = "t(x)" if softmax else "l"
    form = lambda j: total(lambda d: _forms_of(j, softmax)(d) * group.layer.X(n, d), D)
    solved = lambda j: (ONE_NUMBER - TILT(j)) * group.u(j) + form(j)
    first = group.mean(lambda j: TILT(j) * group.u(j) - form(j))
    second = group.mean(lambda j: group.u(j) * (TILT(j) * group.u(j) - form(j)))
    what = "t/g_i" if softmax else "l_i, which is 0 for a unit with a gain"
    names = {"S_{1}": first, "S_{2}": second, "q": group.q}
    one, two = sp.symbols("S_{1} S_{2}")
    text = (
        f"With v_i = (c − e_i) u_i + {what}: S_2 = mean u (e u − {letter if not softmax else 't/g'}) is 0, as s = c q"
    )
    steps = [
        equality(
            text,
            group.mean(lambda j: group.u(j) * solved(j)),
            ONE_NUMBER * Q - two,
            r"s",
            {"S_{2}": names["S_{2}"], "q": names["q"]},
        )
    ]
    if method is not RMS_NORM:
        steps.append(
            equality(
                f"and S_1 = mean (e u − {'t/g' if softmax else 'l'}), as v is centred",
                group.mean(solved),
                -one,
                r"\operatorname{mean}_i v_i",
                {"S_{1}": names["S_{1}"]},
            )
        )
    return tuple(steps)


def _forms_of(j: Any, softmax: bool) -> Field:
    """The form that unit j has besides (c − e) u: t/g under a softmax."""
    return (lambda d: FORM(d) / GAIN(j)) if softmax else (lambda d: FORMS(j, d))


def trade_step(method: Method, softmax: bool = False) -> Step:
    """How the outputs move along dW = (c − diag(e)) PW + L + 1γᵀ, dg = e⊙g: by L alone where S_1 = 0 and S_2 = 0."""
    group = Grouped(method, eps=EPSILON)
    form = lambda j: total(lambda d: _forms_of(j, softmax)(d) * group.layer.X(n, d), D)

    def direction(j: Any, d: Any) -> Expr:
        own = (ONE_NUMBER - TILT(j)) * group.centred(LAYER.W)(j, d) + _forms_of(j, softmax)(d)
        return own if method is RMS_NORM else own + SHIFT(d)

    sums: Names = {
        "S_{1}": group.mean(lambda j: TILT(j) * group.u(j) - form(j)),
        "S_{2}": group.mean(lambda j: group.u(j) * (TILT(j) * group.u(j) - form(j))),
    }
    first, second = sp.symbols("S_{1} S_{2}")
    right = form(method.unit) / SIGMA + U_(method.unit) * (second + ONE_NUMBER * EPSILON) / SIGMA**3
    if method is RMS_NORM:
        del sums["S_{1}"]
    else:
        right += first / SIGMA
    own = "t/g_i" if softmax else "l_i"
    return equality(
        f"{method.name}, any ε: along dW_i = (c − e_i) PW_i + {own} (+ a shift), dg = e⊙g, this is left. So it is null "
        + (
            "before a softmax, all outputs moving by t/σ, "
            if softmax
            else "if l_i = 0 for units with a gain, and for any l_k of zero gain, "
        )
        + ("where S_2 + cε = 0" if method is RMS_NORM else "where S_1 = 0 and S_2 + cε = 0")
        + " on all x",
        group.moved(direction) - BIAS(method.unit),
        right,
        r"dz_i/g_i",
        {**group.names("u", r"\sigma"), **sums},
    )


@cache
def null_directions(method: Method, name: str) -> Proof:
    """The lemma of layer, RMS or group norm at ε = 0: dW = cW − diag(e)PW + 𝟏γᵀ, dg = e⊙g, db = 0 are all.

    Rows of units with zero gain have forms l besides, and dg = 0.

    Args:
        method: the method.
        name: its short name.

    Returns:
        The proof; of group norm, for each group.
    """
    direction, equations = r"cW - \mathrm{diag}(e)PW + \mathbf{1}\gamma^\top", r"\sum e u = \sum e u^2 = 0"
    if method is RMS_NORM:
        direction, equations = r"cW - \mathrm{diag}(e)W", r"\sum e u^2 = 0"
    return Proof(
        rf"dW = {direction},\ dg = e\odot g,\ db = 0,\ {equations}\ \forall x",
        (
            _equation_step(method),
            _biases_step(method),
            cited(
                "With w_i = v_i + e_i u_i the rest says q w_i = s u_i. So w_i = c u_i and s = c q, with one c for all "
                "units with a gain",
                proportional(),
            ),
            *_solution_steps(method, softmax=False),
            trade_step(method),
        ),
        (SPAN, TWO_DIRECTIONS),
        name=f"lemma.null_directions.{name}",
    )


def every_softmax_direction_steps(method: Method) -> tuple[Step, ...]:
    """Layer or RMS norm before a softmax: dW = cW − diag(e)PW + t(x)/g + 𝟏γᵀ, dg = e⊙g, db = β1."""
    group, unit = Grouped(method), method.unit
    other = sp.Symbol("k", integer=True, positive=True)
    back = Grouped(method, REFLECTED)
    moved = lambda g, j: GAIN(j) * (g.moved().subs(unit, j) if j != unit else g.moved())
    linear = lambda j: V_(j) + TILT(j) * U_(j)
    difference = moved(group, unit) - moved(group, other) + moved(back, unit) - moved(back, other)
    return (
        _equation_step(method),
        equality(
            "A softmax sees differences of outputs alone. They are analytic where σ ≠ 0, as the outputs are, and so "
            "known at −x too. The sum of both leaves the biases alone: db_i = db_k",
            group.sigma**3 * difference,
            2 * (GAIN(unit) * BIAS(unit) - GAIN(other) * BIAS(other)) * SIGMA**3,
            r"\sigma^3 (dz_i - dz_k)(x) + \sigma^3 (dz_i - dz_k)(-x)",
            group.names(r"\sigma"),
        ),
        equality(
            "Units i and k leave q times the form g_i w_i − g_k w_k minus s times g_i u_i − g_k u_k, w = v + e u; not "
            "all of the last are 0, as the rank is 2",
            GAIN(unit) * cubic(unit) - GAIN(other) * cubic(other),
            Q * (GAIN(unit) * linear(unit) - GAIN(other) * linear(other))
            - S * (GAIN(unit) * U_(unit) - GAIN(other) * U_(other)),
            short=group.names("u", "v", "q", "s"),
        ),
        cited(
            "So g_i w_i − g_k w_k = c (g_i u_i − g_k u_k) and s = c q: g_i (w_i − c u_i) is one form t", proportional()
        ),
        *_solution_steps(method, softmax=True),
        trade_step(method, softmax=True),
    )


def every_direction_with_eps_step(method: Method) -> Step:
    """Layer or RMS norm at ε > 0: the scale of W is lost, and the rest stays."""
    group, unit = Grouped(method, eps=EPSILON), method.unit
    return equality(
        f"{method.name}: the equation has one term more, linear in x. It is analytic for all x, so β = 0 and each "
        "degree in x vanishes: w_i = v_i + e_i u_i = 0, and then s = 0, so that c = 0. Before a softmax this is so of "
        "differences: g_i w_i is one form t, and s (g_i u_i − g_k u_k) = 0",
        group.sigma**3 * group.moved(),
        EPSILON * (V_(unit) + TILT(unit) * U_(unit)) + cubic(unit) + BIAS(unit) * SIGMA**3,
        r"\sigma^3 dz_i/g_i",
        group.names("u", "v", "q", "s", r"\sigma"),
    )


def every_row_steps(method: Method, offset: Expr | int = 0, eps: Expr = sp.S.Zero) -> tuple[Step, ...]:
    """Batch norm, weight norm, no norm, stored statistics: one null direction for each unit, at any size.

    Args:
        method: the method.
        offset: what the numerator subtracts from w·x, where that is a constant.
        eps: ε.
    """
    i = method.unit
    sigma, numerator = sqrt(method.square(LAYER, eps=eps)), method.numerator(LAYER)
    moved = sigma * (along(method, V, eps) + TILT(i) * method(LAYER, eps=eps) + BIAS(i))
    scaled: Field = lambda i, d: KAPPA(i) * LAYER.W(i, d)
    if method is BATCH_NORM:
        own = lambda m: total(lambda d: V(i, d) * LAYER.X(m, d), D)
        spread, v = lambda m: own(m) - mean(own, N), field("v")
        s = mean(lambda m: method.numerator(LAYER, m) * spread(m), N)
        left_over = TILT(i) + KAPPA(i) * eps / sigma**2
        return (
            equality(
                "With v = w·(x − E x) of dW and s = mean u v, the output of a unit stands still where this is 0",
                moved,
                v(n, i) + (TILT(i) - sp.Symbol("s_{i}") / sigma**2) * numerator + BIAS(i) * sigma,
                r"\sigma\,dz_{ni}/g_i",
                {"v": lambda m, _: spread(m), "s_{i}": s},
            ),
            equality(
                "Its mean over the samples leaves the bias: β = 0. Then v·(x − E x) = κ w·(x − E x) on all samples",
                mean(lambda m: moved.subs(n, m), N),
                BIAS(i) * sigma,
                r"\operatorname{mean}_n\,\sigma\,dz_{ni}/g_i",
            ),
            equality(
                "Of that only e is left: e = 0, while κ and what no sample sees are free"
                if eps == 0
                else "Of that e + κε/σ² is left: κ alone is free",
                sigma * (along(method, scaled, eps) + TILT(i) * method(LAYER, eps=eps)),
                left_over * numerator,
                r"\sigma\,dz_{ni}/g_i",
            ),
        )
    v = total(lambda d: V(i, d) * LAYER.X(n, d), D)
    inner = total(lambda d: LAYER.W(i, d) * V(i, d), D)
    norm = total(lambda d: LAYER.W(i, d) ** 2, D)
    slope = inner / norm if method.name == "WeightNorm" else 0
    steps = [
        equality(
            "The output of a unit stands still where this is 0: an affine function of x",
            moved,
            v + (TILT(i) - slope) * numerator + BIAS(i) * sigma,
            r"\sigma\,dz_{ni}/g_i",
        )
    ]
    if method.name == "WeightNorm":
        left = sigma * (along(method, scaled) + TILT(i) * method(LAYER))
        steps.append(
            equality(
                "so β = 0 and dw = κw. Of that only e is left: e = 0", left, TILT(i) * numerator, r"\sigma\,dz_{ni}/g_i"
            )
        )
    else:
        opposite: Field = lambda i, d: -TILT(i) * LAYER.W(i, d)
        left = sigma * (along(method, opposite) + TILT(i) * method(LAYER))
        steps.append(equality("so dw = −e w, and β is given by e", left, -TILT(i) * offset, r"\sigma\,dz_{ni}/g_i"))
    return tuple(steps)


def _pairs(r: int) -> list[tuple[int, int]]:
    """Pairs of axes; last those of a triangle and a path from it to all other axes."""
    last = [(0, 1), (1, 2), (0, 2), *((k - 1, k) for k in range(3, r))] if r > 2 else []
    return [pair for pair in combinations(range(r), 2) if pair not in last] + last


def _row(axes: Sequence[int], value: Fraction, r: int) -> list[Fraction]:
    return [value if a in axes else Fraction(0) for a in range(r)]


def centred_rows(H: int, r: int) -> list[list[Fraction]]:
    """H rows of sum 0 in r dimensions: −1, α_a e_a, then some −(e_a + e_b)/2, then some −e_a, then zeros."""
    more = [_row(pair, -Fraction(1, 2), r) for pair in _pairs(r)] + [_row((a,), Fraction(-1), r) for a in range(r)]
    extra = more[: min(H - r - 1, len(more) - 1)]
    scales = [1 - sum(row[a] for row in extra) for a in range(r)]
    rows = [[Fraction(-1)] * r, *(_row((a,), scales[a], r) for a in range(r)), *extra]
    return rows + [[Fraction(0)] * r for _ in range(H - len(rows))]


def plain_rows(H: int, r: int) -> list[list[Fraction]]:
    """H rows of sum 1 in r dimensions: α_a e_a, then some −(e_a + e_b), then zeros."""
    pairs = _pairs(r)[: max(0, H - r)]
    scales = [Fraction(1 + sum(a in pair for pair in pairs)) for a in range(r)]
    rows = [_row((a,), scales[a], r) for a in range(r)] + [_row(pair, Fraction(-1), r) for pair in pairs]
    return rows + [[Fraction(0)] * r for _ in range(H - len(rows))]


def _forms(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """Coefficients of the quadratic form (first·x)(second·x)."""
    r = len(first)
    return [first[a] * second[b] + (first[b] * second[a] if a != b else 0) for a in range(r) for b in range(a, r)]


def equations_rank(rows: Sequence[Sequence[Fraction]], *, linear: bool, form: bool) -> int:
    """Rank of the equations for e: Σ e u² = 0; with `linear` also Σ e u = 0; with `form` also a form t times Σ u."""
    r = len(rows[0])
    table = [[*(row if linear else []), *_forms(row, row)] for row in rows]
    if form:
        everything = [sum(row[a] for row in rows) for a in range(r)]
        table += [_forms([int(k == a) for k in range(r)], everything) for a in range(r)]
    return rank([[x.numerator * pow(x.denominator, -1, PRIME) for x in map(Fraction, row)] for row in table])


def _all_pairs_leave_no_combination() -> bool:
    """With all pairs: the entries of an axis a without −e_a force the weight f of the row −1 to be 0, for all r."""
    r, f, own = sp.symbols("r f own")
    pair, alpha = -4 * f, (r + 1) / 2  # an entry ab: f + pair/4 = 0; α_a makes the sum of the rows 0
    linear = -f + alpha * own - (r - 1) * pair / 2
    square = f + alpha**2 * own + (r - 1) * pair / 4
    left = sp.expand(2 * sp.cancel((alpha * linear - square) / f))
    return left == 2 * r**2 + r - 7 and not sp.Poly(left).ground_roots()


_CENTRED = (
    "Take W with rows −1, α_a e_a with sum 0, then −(e_a + e_b)/2 for some pairs, then −e_a for some axes, then 0. In "
    "a combination of their forms with weights f that is 0, a pair without a row gives f = 0 for the row −1"
)
ARGUMENTS = {
    (True, False): f"{_CENTRED}, and the other weights follow one by one",
    (True, True): f"{_CENTRED}, and the other weights follow one by one; g = 1, where Σ e u = t Σ 1/g gives t",
    (False, False): "Take W with rows α_a e_a, then −(e_a + e_b) for some pairs, then 0, whose squares are independent",
    (False, True): (
        "Take W with rows α_a e_a, then −(e_a + e_b) for some pairs, then 0, with sum 1, and g = 1. Their squares are "
        "independent. The products of t with the sum add the incidence matrix (entries 0 and 1) of the graph of the "
        "other pairs, which has full rank where that is a triangle with a path, a part of it, or more"
    ),
}
"""Why the equations for e are independent at one W of every size, by (centred, before a softmax)."""
LEMMAS = {
    (True, False): ("ln", r"\sum e u = \sum e u^2 = 0", r"\min(H, \tfrac{r(r+3)}{2})"),
    (True, True): ("softmax_ln", "S_1 = S_2 = 0", r"\min(H, \tfrac{r(r+1)}{2})"),
    (False, False): ("rms", r"\sum e u^2 = 0", r"\min(H, \tfrac{r(r+1)}{2})"),
    (False, True): ("softmax_rms", "S_2 = 0", r"\min(H + r, \tfrac{r(r+1)}{2})"),
}
"""Name of the lemma, its equations for all x, and their rank, by the same."""


def _numbers(H: int, r: int, *, centred: bool, softmax: bool) -> tuple[int, int]:
    """Numbers of unknowns, e and for RMS norm before a softmax t, and of equations at rank r."""
    return H + (r if softmax and not centred else 0), r * (r + 1) // 2 + (r if centred and not softmax else 0)


def _sizes(centred: bool) -> list[tuple[int, int]]:
    return [(H, r) for r in range(2, LARGEST + 1) for H in range(r + centred, r * (r + 3) // 2 + 3)]


@cache
def independent_equations(*, centred: bool, softmax: bool = False) -> Proof:
    """The lemma that the equations for e have the largest rank they can have, for almost all W (and g).

    Args:
        centred: whether rows are centred, as in layer norm.
        softmax: whether a softmax follows.

    Returns:
        The proof.
    """
    linear, form = centred and not softmax, softmax and not centred

    def full(H: int, r: int) -> bool:
        rows = centred_rows(H, r) if centred else plain_rows(H, r)
        balanced = not centred or all(sum(row[a] for row in rows) == 0 for a in range(r))
        numbers = _numbers(H, r, centred=centred, softmax=softmax)
        return balanced and equations_rank(rows, linear=linear, form=form) == min(numbers)

    name, equations, rank_latex = LEMMAS[centred, softmax]
    steps = [
        fact(
            f"{ARGUMENTS[centred, softmax]}. A minor that is not 0 at one W is not 0 at almost all. Computed in exact "
            f"arithmetic for r = 2 … {LARGEST}, argued in words for all r",
            rf"\mathrm{{rank}} = {rank_latex}",
            lambda: all(full(*size) for size in _sizes(centred)),
        )
    ]
    if linear:
        steps.append(
            fact(
                "With all pairs, an axis without −e_a gives this equation for the weight f of the row −1, of which no "
                "r is a root",
                r"f\,(2r^2 + r - 7) = 0 \Rightarrow f = 0",
                _all_pairs_leave_no_combination,
            )
        )
    return Proof(
        rf"\mathrm{{rank}}\{{{equations}\ \forall x\}} = {rank_latex}",
        tuple(steps),
        (TWO_DIRECTIONS, GENERIC_GAINS if softmax else GENERIC),
        name=f"lemma.equations.{name}",
    )


def dimension_step(cell: Cell, of: str = "") -> Step:
    """The step from the rank of the equations for e to the dimension of the null space, as its cell has it.

    Args:
        cell: of the theorem.
        of: what it is about, in a proof about several.

    Returns:
        The step.
    """

    def stated(H: int, r: int) -> bool:
        unknowns, equations = _numbers(H, r, centred=cell.centred, softmax=cell.softmax)
        inputs = (r, r + 1, r + 4) if r + cell.centred == H else (r,)
        others = lambda D: cell.centred * D + (not cell.eps) + cell.softmax
        return all(cell.dimension(H, D) == others(D) + unknowns - min(unknowns, equations) for D in inputs)

    text = f"{of}: so the dimension is" if of else "So the dimension is"
    return fact(text, rf"\dim\ker F = {cell.latex}", lambda: all(stated(*size) for size in _sizes(cell.centred)))


def common_function_step(method: Method) -> Step:
    """Batch norm, weight norm or none before a softmax: all units may add one affine function of x to their outputs."""
    i, alpha = method.unit, field("alpha")
    sigma, numerator = sqrt(method.square(LAYER)), method.numerator(LAYER)
    rows: Field = lambda l, d: alpha(d) * sigma / GAIN(l)
    of = lambda row: total(lambda d: alpha(d) * row(d), D)
    here = of(lambda d: LAYER.X(n, d))
    if method is BATCH_NORM:
        centre = mean(lambda m: of(lambda d: LAYER.X(m, d)), N)
        product = mean(lambda m: method.numerator(LAYER, m) * of(lambda d: LAYER.X(m, d)), N)
        tilt, function = product / (sigma * GAIN(i)), here - centre
    else:
        inner = of(lambda d: LAYER.W(i, d))
        tilt = sigma * inner / (GAIN(i) * sigma**2) if method.name == "WeightNorm" else sp.S.Zero
        function = here
    return equality(
        f"{method.name}: the rows ασ_i/g_i, with what the gain makes good, move all outputs by one function of x",
        GAIN(i) * along(method, rows) + GAIN(i) * tilt * numerator / sigma,
        function,
        r"dz_{ni}",
    )

r"""The equivariance theorem: what follows where a group acts on parameters and outputs do not change.

Let $f_{g\theta} = f_\theta$ at every θ. With Dg the derivative of gθ by θ, ξθ that of $g_t\theta$ by t at the identity,
F the Fisher matrix and L a loss of the outputs:

$$Dg^\top F(g\theta)\,Dg = F(\theta),\quad F\,\xi\theta = 0,\quad Dg^\top\nabla L(g\theta) = \nabla L(\theta),\quad
\langle\xi\theta,\nabla L\rangle = 0,\quad \nabla^2L\,\xi\theta = -(D\xi)^\top\nabla L.$$

If gθ is affine, g maps gradient descent with the rate η to gradient descent with the rate $\eta\,Dg\,Dg^\top$, and
natural gradient with damping ρI to natural gradient with damping $\rho\,Dg^{-\top}Dg^{-1}$. If A = Dξ is symmetric and
ξθ = Aθ, gradient flow conserves $Q = \tfrac12\langle\theta,A\theta\rangle$.

A derivative in a direction, or in two, is one along a line or in a plane. So the loss is an arbitrary smooth function
of two or three numbers, however many parameters there are. Sums over parameters are decided by normal forms, for all
sizes. A claim that follows names its action (`Symmetry`), shows that outputs do not change under it, and cites the
theorem. `lg.equivariance` measures the same consequences for any model.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import sympy as sp
from sympy import Expr, Function, Symbol

from lngeom.symbolic.actions import SHIFT as GAMMA
from lngeom.symbolic.jacobian import LAYER
from lngeom.symbolic.layers import Layer, Method
from lngeom.symbolic.proof import Assumption, Proof, Step, Written, cited, equality, expanded, jointly, together
from lngeom.symbolic.sums import D, Field, H, KroneckerDelta, N, d, derivative, e, field, i, j, mean, total

WEIGHT_FACTOR = Symbol("c", positive=True)
"""What the weights are multiplied by."""

RATE = Symbol("eta", positive=True)
SHORT = {"BatchNorm": "BN", "WeightNorm": "WN", "LayerNorm": "LN", "RMSNorm": "RMS"}


class smooth(Function):
    """A partial derivative ∂ᵃ_s ∂ᵇ_r F(s, r) of an arbitrary smooth function, as smooth(s, r, a, b); so of three."""

    nargs = (4, 6)

    def fdiff(self, argindex: int = 1) -> Expr:
        """The next derivative by one of the first arguments."""
        orders = list(self.args)
        orders[argindex - 1 + len(orders) // 2] += 1
        return smooth(*orders)


OUTPUTS_STAY = Assumption("outputs are the same along orbits, at every θ", r"f_{g\theta} = f_\theta")

NAME = "lemma.equivariance"
CONSEQUENCES = {
    "fisher": r"F(\theta) = Dg^\top F(g\theta)\,Dg",
    "null": r"J\,\xi\theta = 0",
    "gradient": r"\nabla L(\theta) = Dg^\top\nabla L(g\theta)",
    "orthogonality": r"\langle\xi\theta,\nabla L\rangle = 0",
    "hessian": r"\nabla^2L\,\xi\theta = -(D\xi)^\top\nabla L",
}
"""What the theorem says, by the names of `lg.equivariance`."""

_A, _K, _F, _LAMBDA = field("A"), field(r"\tilde J"), field(r"\tilde F"), field(r"\Lambda")
_THETA, _SLOPE, _BUFFER, _S = field(r"\theta"), field(r"\tilde p"), field(r"\tilde b"), field("s")


def _metric(J: Callable[..., Expr]) -> Callable[[Expr, Expr], Expr]:
    """Entries of F, the mean over samples of JᵀΛJ."""

    def entry(row: Expr, column: Expr) -> Expr:
        of = lambda n: total(lambda i: total(lambda j: J(n, i, row) * _LAMBDA(n, i, j) * J(n, j, column), H), H)
        return mean(of, N)

    return entry


def _pushed(v: Field) -> Field:
    """(Dg v)_e."""
    return lambda e: total(lambda d: _A(e, d) * v(d), D)


def _pulled(v: Field) -> Field:
    """(Dgᵀ v)_d."""
    return lambda d: total(lambda e: _A(e, d) * v(e), D)


def first_order_steps(slope: Expr | int = 1) -> tuple[Step, ...]:
    """Derivatives along the orbit, and of f at gθ.

    Args:
        slope: of the orbit along ξθ; 1, or else the steps are false.

    Returns:
        The steps.
    """
    t, a, b = sp.symbols("t a b", real=True)
    along = smooth(slope * t + a * t**2, b * t**2, 0, 0).diff(t).subs(t, 0) - smooth(0, 0, 1, 0)
    return (
        expanded(
            "Outputs are constant along g_tθ = θ + tξθ + O(t²), so their derivative along ξθ is zero",
            r"0 = \partial_tf(g_t\theta) = J\,\xi\theta",
            along,
        ),
        expanded(
            "They are the same at g(θ + tV) = gθ + t Dg V + O(t²) as at θ + tV, so derivatives are",
            r"J(g\theta)\,Dg\,V = J(\theta)\,V",
            along,
        ),
    )


def second_order_step(crossed: Expr | int = 1) -> Step:
    """The Hessian along the orbit.

    Args:
        crossed: factor of tr(Dξ)V in g_t(θ + rV); 1, or else the step is false.

    Returns:
        The step.
    """
    t, r, a = sp.symbols("t r a", real=True)
    loss = smooth(t, r, crossed * t * r + a * t**2, 0, 0, 0)
    mixed = loss.diff(t, r).subs({t: 0, r: 0})
    return expanded(
        "L is constant in t at g_t(θ + rV) = θ + tξθ + rV + tr(Dξ)V + O(t²), and ∂_t∂_r gives",
        r"0 = \langle V,\nabla^2L\,\xi\theta\rangle + \langle(D\xi)V,\nabla L\rangle",
        mixed - smooth(0, 0, 0, 1, 1, 0) - smooth(0, 0, 0, 0, 0, 1),
    )


def sum_steps(power: int = 1) -> tuple[Step, ...]:
    """What the derivatives say of F and ∇L, for all numbers of parameters, outputs and samples.

    Args:
        power: of Dg on the left of F(gθ); 1, or else the first step is false.

    Returns:
        The steps.
    """
    left = lambda e, d: _A(e, d) ** power
    J = lambda n, i, d: total(lambda e: _K(n, i, e) * _A(e, d), D)
    xi, loss, moved = field(r"\xi"), field(r"\ell"), field(r"\dot f")
    along = lambda n, j: total(lambda e: _K(n, j, e) * xi(e), D)
    weighed = lambda n, d: total(lambda i: total(lambda j: _K(n, i, d) * _LAMBDA(n, i, j) * moved(n, j), H), H)
    slope = lambda e: mean(lambda n: total(lambda i: loss(n, i) * _K(n, i, e), H), N)
    return (
        equality(
            "Λ is a function of the outputs, so with J = J̃ Dg, where ~ is at gθ",
            _metric(J)(d, e),
            total(lambda k: total(lambda m: left(k, d) * _F(k, m) * _A(m, e), D), D),
            r"F_{de}",
            {r"\tilde F": _metric(_K)},
        ),
        equality(
            "F ξ is made of ḟ = Jξ, which is zero",
            total(lambda e: _metric(_K)(d, e) * xi(e), D),
            mean(lambda n: weighed(n, d), N),
            r"(F\xi)_d",
            {r"\dot f": along},
        ),
        equality(
            "The gradient p is made of J, so it is Dgᵀp̃",
            mean(lambda n: total(lambda i: loss(n, i) * J(n, i, d), H), N),
            _pulled(_SLOPE)(d),
            r"p_d",
            {r"\tilde p": slope},
        ),
        equality(
            "and ⟨ξ, p⟩ is made of ḟ, which is zero",
            total(lambda d: xi(d) * slope(d), D),
            mean(lambda n: total(lambda i: loss(n, i) * moved(n, i), H), N),
            r"\langle\xi,p\rangle",
            {r"\dot f": along},
        ),
    )


def descent_steps(rate: Expr | int = 1) -> tuple[Step, ...]:
    """Steps of optimizers from θ and from gθ, where gθ = Aθ.

    Args:
        rate: factor of η from gθ beside DgDgᵀ; 1, or else the first step is false.

    Returns:
        The steps.
    """
    beta, damping = sp.symbols("beta rho", positive=True)
    slope = _pulled(_SLOPE)
    here = lambda d, e: total(lambda k: total(lambda m: _A(k, d) * _F(k, m) * _A(m, e), D), D)
    return (
        equality(
            "If gθ = Aθ, a step of gradient descent along p = Aᵀp̃ is mapped to one with rate ηAAᵀ",
            _pushed(lambda d: _THETA(d) - RATE * slope(d))(e),
            _pushed(_THETA)(e) - rate * RATE * _pushed(slope)(e),
            r"(A(\theta-\eta p))_e",
        ),
        equality(
            "and momenta stay Aᵀ times those from gθ",
            beta * _pulled(_BUFFER)(d) + slope(d),
            _pulled(lambda e: beta * _BUFFER(e) + _SLOPE(e))(d),
            r"\beta(A^\top\tilde b)_d + p_d",
        ),
        equality(
            "If s solves (F + ρI)s = p, then As solves (F̃ + ρA⁻ᵀA⁻¹)As = p̃, here times Aᵀ",
            total(lambda e: here(d, e) * _S(e), D) + damping * _S(d),
            _pulled(lambda k: total(lambda m: _F(k, m) * _pushed(_S)(m), D))(d) + damping * _S(d),
            r"((F + \rho I)s)_d",
            {r"\tilde F": _metric(_K)},
        ),
    )


def norm_step(share: Expr = sp.Rational(1, 2)) -> Step:
    """What a step of gradient descent adds to Q = ½⟨θ, Aθ⟩, A symmetric.

    Args:
        share: factor of η²⟨p, Ap⟩; ½, or else the step is false.

    Returns:
        The step.
    """
    B, p = field("B"), field("p")
    form = lambda u, v: total(lambda d: u(d) * total(lambda e: _A(d, e) * v(e), D), D)
    after = lambda d: _THETA(d) - RATE * p(d)
    return equality(
        "If ξθ = Aθ, A symmetric, a step adds −η⟨ξθ, p⟩, which is zero, and ½η²⟨p, Ap⟩; the flow nothing",
        form(after, after) / 2,
        form(_THETA, _THETA) / 2 - RATE * form(p, _THETA) + share * RATE**2 * form(p, p),
        r"Q(\theta-\eta p)",
        {"A": lambda d, e: B(d, e) + B(e, d)},
    )


@functools.cache
def theorem() -> Proof:
    """F, the gradient, the Hessian, optimizers and norms, from f_{gθ} = f_θ by differentiation."""
    steps = (*first_order_steps(), *sum_steps(), second_order_step(), *descent_steps(), norm_step())
    statement = r"f_{g\theta} = f_\theta \Rightarrow " + r",\quad ".join(CONSEQUENCES.values())
    return Proof(statement, steps, (OUTPUTS_STAY,), name=NAME)


@dataclass(frozen=True)
class Symmetry:
    """A group action on weights.

    Attributes:
        text: the action, in words.
        latex: of gW.
        family: gW, of g and W.
        element: any g.
        curve: elements near the identity, of t: the identity at t = 0.
    """

    text: str
    latex: str
    family: Callable[[Field, Field], Field]
    element: Field
    curve: Callable[[Expr], Field]

    def acts(self, W: Field) -> Field:
        """The weights gW."""
        return self.family(self.element, W)

    @property
    def layer(self) -> Layer:
        """The layer at gW."""
        return Layer(self.acts(LAYER.W), LAYER.X)

    def generator(self, W: Field) -> Field:
        """The weights ξW."""
        return lambda l, d: derivative(lambda t: self.family(self.curve(t), W)(l, d))


def _scaled(factor: Field, W: Field) -> Field:
    return lambda l, d: factor(l) * W(l, d)


def _shifted(shift: Field, W: Field) -> Field:
    return lambda l, d: W(l, d) + shift(d)


_FACTORS, _RATES = field("c", positive=True), field("s")
SCALING = Symmetry("W → cW", "cW", _scaled, lambda l: WEIGHT_FACTOR, lambda t: lambda l: 1 + t)
ROWS = Symmetry("w_i → c_i w_i", r"c\odot W", _scaled, _FACTORS, lambda t: lambda l: 1 + t * _RATES(l))
SHIFT = Symmetry("W → W + 𝟏γᵀ", r"W + \mathbf{1}\gamma^\top", _shifted, GAMMA, lambda t: lambda d: t * GAMMA(d))


def generator_step(symmetry: Symmetry, generator: Field) -> Step:
    """The step that ξW are these weights."""
    text = f"{symmetry.text} has this generator"
    return equality(text, symmetry.generator(LAYER.W)(i, d), generator(i, d), r"(\xi W)_{id}")


def tangent_step(symmetry: Symmetry, V: Field, image: Field) -> Step:
    """The step that (Dξ)V, the derivative of ξW when W moves along V, are these weights."""
    moved = lambda t: symmetry.generator(LAYER.towards(V, t).W)(i, d)
    return equality(f"{symmetry.text} has this derivative", derivative(moved), image(i, d), r"((D\xi)V)_{id}")


def invariance(symmetry: Symmetry, *methods: Method) -> Step:
    """The step that outputs of methods do not change, at any W: the theorem's hypothesis."""
    output, moved = Symbol("n_{ni}"), rf"n_{{ni}}({symmetry.latex})"
    names = ", ".join(SHORT.get(method.name, method.name) for method in methods)
    text = f"{names}: {symmetry.text} keeps outputs"
    short = lambda method: {output.name: method(LAYER)}
    return jointly(text, [equality(text, m(symmetry.layer), output, moved, short(m)) for m in methods])


def follows(consequence: str, what: str = "so, by the equivariance theorem") -> Step:
    """The step that cites the theorem.

    Args:
        consequence: one of `CONSEQUENCES`.
        what: the step in words.

    Returns:
        The step, whose formula is the consequence.
    """
    return replace(cited(what, theorem()), formula=Written(CONSEQUENCES[consequence]))


_JW, _JR = field(r"\tilde J"), field(r"\tilde R")


def _form(first: Callable[..., Expr], second: Callable[..., Expr]) -> Expr:
    """The Fisher form of two directions, of what outputs (n, i) move by along them."""
    return mean(lambda n: total(lambda i: total(lambda j: first(n, i) * _LAMBDA(n, i, j) * second(n, j), H), H), N)


def _along_weights(V: Field) -> Callable[..., Expr]:
    return lambda n, i: total(lambda l: total(lambda d: _JW(n, i, l, d) * V(l, d), D), H)


def block_step(text: str, symmetry: Symmetry, single: bool = False) -> Step:
    """The step that F(θ) = DgᵀF(gθ)Dg multiplies blocks of F: of weights with weights, and with other parameters.

    Args:
        text: the claim in words.
        symmetry: a scaling.
        single: whether blocks are those of the rows i and j.

    Returns:
        The step.
    """
    U, V, r = field("U"), field("V"), field("r")
    row = lambda F, at: (lambda l, d: KroneckerDelta(l, at) * F(l, d)) if single else F
    first, second = row(U, i), row(V, j)
    rest = lambda n, i: total(lambda l: _JR(n, i, l) * r(l), H)
    factor = lambda at: symmetry.acts(lambda l, d: sp.S.One)(at, d)
    names = ("F_{ij}", "F_{ib}") if single else ("F_{ww}", "F_{wb}")
    push = lambda F: _along_weights(symmetry.acts(F))
    both, mixed = _form(_along_weights(first), _along_weights(second)), _form(_along_weights(first), rest)
    there = [Symbol(rf"\tilde {name}") for name in names]
    return together(
        text,
        equality(
            "", _form(push(first), push(second)), factor(i) * factor(j) * there[0], names[0], {there[0].name: both}
        ),
        equality("", _form(push(first), rest), factor(i) * there[1], names[1], {there[1].name: mixed}),
    )

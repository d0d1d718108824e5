r"""Learning dynamics of normalized layers: orthogonality, curvature, norm growth, angles.

A loss is an arbitrary function of the outputs, so its derivative in a direction V is $\sum_{n,i} \ell_{ni}\,dz_{ni}[V]$
with arbitrary $\ell$: where every $dz_{ni}[V]$ is zero, so is the derivative. Scale invariance is used as an identity
between outputs; what follows for gradients and Hessians is the chain rule, applied to an arbitrary smooth function.
"""

import itertools

import sympy as sp
from sympy import Expr, Function, sqrt

from lngeom.symbolic.actions import DELTA
from lngeom.symbolic.fisher_blocks import scaled
from lngeom.symbolic.glm import expanded
from lngeom.symbolic.layers import BATCH_NORM, LAYER_NORM, RMS_NORM, WEIGHT_NORM, Method
from lngeom.symbolic.nullspaces import GAIN, LAYER, RADIAL, SHIFTS, along, null_step, rows_alone
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, fact, matrix, refutation
from lngeom.symbolic.registry import proves
from lngeom.symbolic.sums import Field, H, derivative, field, i, mean, n, total


class smooth(Function):
    """A partial derivative ∂ᵃ_s ∂ᵇ_r F(s, r) of an arbitrary smooth function, as smooth(s, r, a, b)."""

    nargs = 4

    def fdiff(self, argindex: int = 1) -> Expr:
        """The next derivative by one of the first two arguments."""
        orders = list(self.args)
        orders[argindex + 1] += 1
        return smooth(*orders)


INVARIANT = (BATCH_NORM, WEIGHT_NORM, LAYER_NORM, RMS_NORM)
RATE, BETA, DECAY = sp.symbols("eta beta lambda", positive=True)
EPS = sp.Symbol("epsilon", positive=True)
LOSS = field("ell")
SCALE_FREE = Assumption("the loss depends on W through a normalizer with ε = 0, σ > 0", r"L(cW) = L(W),\ c > 0")


def slope_at(method: Method, W, V, X) -> sp.ImmutableMatrix:
    """Exact derivative of the outputs [N H] at W in the direction V."""
    t = sp.Symbol("t", real=True)
    return method.exactly(W + t * V, X).diff(t).subs(t, 0)


def _moves(name: str, statement: str, text: str, method: Method, W, V, X) -> Counterexample:
    """A direction along which the first output does move."""
    return Counterexample(
        name,
        statement,
        {"W": W, "V": V, "X": X},
        lambda v: (slope_at(method, v["W"], v["V"], v["X"])[0], sp.S.Zero),
        text,
    )


def radial_steps() -> list[Step]:
    """The derivative along W is zero, for every method that ignores the scale of W."""
    return [null_step(f"{m.name}: no output moves along W, so ⟨W, ∇L⟩ = 0", m, RADIAL) for m in INVARIANT]


@proves("dynamics.orthogonality")
def orthogonality() -> Proof:
    """⟨W, ∇L⟩ = 0; row by row for batch and weight norm; 1ᵀ∇L = 0 for layer norm. And where not."""
    own = rows_alone(field("s"))
    row = _moves(
        "dynamics.orthogonality of layer norm by rows",
        r"\langle w_1, \nabla_{w_1}L\rangle = 0",
        "Derivative of the first output (left) along the first row of W.",
        LAYER_NORM,
        matrix([[1], [1], [-2]]),
        matrix([[1], [0], [0]]),
        matrix([[1]]),
    )
    shift = _moves(
        "dynamics.orthogonality of batch norm to shifts",
        r"\mathbf{1}^\top\nabla_WL = 0",
        "Derivative of the first output (left) along 1γᵀ.",
        BATCH_NORM,
        matrix([[1, 0]]),
        matrix([[0, 1]]),
        matrix([[0, 1], [1, 0], [2, 0]]),
    )
    return Proof(
        "dynamics.orthogonality",
        r"\langle W,\nabla_WL\rangle = 0;\quad "
        r"\langle w_i,\nabla_{w_i}L\rangle = 0\ (BN, WN);\quad \mathbf{1}^\top\nabla_WL = 0\ (LN)",
        (
            *radial_steps(),
            null_step("Batch norm: nor along any row by itself", BATCH_NORM, own),
            null_step("Weight norm: nor along any row by itself", WEIGHT_NORM, own),
            null_step("Layer norm: nor along any shift 1γᵀ", LAYER_NORM, SHIFTS),
            refutation("Layer norm does move along a single row", row),
            refutation("Batch norm does move along a shift", shift),
        ),
        (SCALE_FREE,),
    )


def gradient_scaling() -> tuple[Step, ...]:
    """∇L(cW) = ∇L(W)/c, from n(cW + tV) = n(W + (t/c)V)."""
    V, t = field("V"), sp.Symbol("t", real=True)
    s, c = sp.Symbol("s", real=True), DELTA
    at_scaled = smooth(s / c, 0, 0, 0).diff(s).subs(s, 0)
    return (
        *(
            equality(
                f"{m.name}: n(cW + tV) = n(W + (t/c)V)",
                m(scaled().towards(V, t)),
                m(LAYER.towards(V, t / DELTA)),
            )
            for m in INVARIANT
        ),
        expanded(
            "so L(cW + sV) = f(s/c), whose slope is f'(0)/c",
            r"\nabla L(cW) = c^{-1}\nabla L(W)",
            at_scaled - smooth(0, 0, 1, 0) / c,
        ),
    )


@proves("dynamics.hessian")
def hessian() -> Proof:
    """H(W)·W = −∇L, H(cW) = c⁻²H(W); for layer norm H·(1γᵀ) = 0."""
    V, s, r, c = field("V"), *sp.symbols("s r", real=True), DELTA
    U = field("U")
    two = [
        m(scaled().towards(V, s).towards(U, r)) - m(LAYER.towards(V, s / c).towards(U, r / c))
        for m in (LAYER_NORM, WEIGHT_NORM)
    ]
    mixed = smooth(s / c, r / c, 0, 0).diff(s, r).subs({s: 0, r: 0}) - smooth(0, 0, 1, 1) / c**2
    slope = smooth(0, 0, 1, 0)
    return Proof(
        "dynamics.hessian",
        r"\nabla^2L(W)\cdot W = -\nabla L,\quad \nabla^2L(cW) = c^{-2}\nabla^2L(W),\quad "
        r"\nabla^2L\cdot(\mathbf{1}\gamma^\top) = 0\ (LN)",
        (
            *gradient_scaling(),
            expanded(
                "Differentiating ∇L(cW) = ∇L(W)/c by c at 1",
                r"\nabla^2L(W)\cdot W = -\nabla L(W)",
                (slope / c).diff(c).subs(c, 1) + slope,
            ),
            equality("Two directions scale alike (layer norm)", two[0], 0),
            equality("(and weight norm)", two[1], 0),
            expanded(
                "so the mixed second derivative of F(s/c, r/c) has c⁻²",
                r"\nabla^2L(cW) = c^{-2}\nabla^2L(W)",
                mixed,
            ),
            equality(
                "Layer norm: a shift is not seen together with any direction, so it is a null vector of the Hessian",
                LAYER_NORM(LAYER.towards(V, s).towards(SHIFTS, r)),
                LAYER_NORM(LAYER.towards(V, s)),
            ),
            fact(
                "The same at three units and two inputs, a quadratic loss, all second derivatives",
                r"\nabla^2L\cdot W + \nabla L = 0",
                _hessian_by_expansion,
            ),
        ),
        (SCALE_FREE,),
    )


def _hessian_by_expansion() -> bool:
    """H·W + ∇L and H·(1γᵀ) at a rational W, coordinate by coordinate, for a quadratic loss of n, rational in W."""
    s, t = sp.symbols("s t", real=True)
    W, shift, x = sp.Matrix([[1, 0], [2, 1], [-1, 1]]), sp.Matrix([[1, -2]] * 3), sp.Matrix([[1, 2]])

    def loss(weights) -> Expr:
        (pairs,) = LAYER_NORM.rows(weights.tolist(), x.tolist(), sp.S.Zero)
        (first, square), (second, _), (third, _) = pairs
        return (first**2 + 3 * second**2 + first * third) / square

    slopes = []
    for row, column in itertools.product(range(3), range(2)):
        unit = sp.zeros(3, 2)
        unit[row, column] = 1
        slope = loss(W + t * unit).diff(t).subs(t, 0)
        by_radial, by_shift = (loss(W + t * unit + s * V).diff(t, s).subs({s: 0, t: 0}) for V in (W, shift))
        if by_radial + slope != 0 or by_shift != 0:
            return False
        slopes.append(slope)
    return any(slopes)


@proves("dynamics.epsilon")
def epsilon() -> Proof:
    """⟨W, ∇L⟩ = −2ε ∂L/∂ε: outputs are homogeneous of degree zero in (W, √ε)."""
    steps = (
        equality(
            f"{m.name}: the derivative along W is −2ε times that by ε, at every output",
            LOSS(n, i) * GAIN(i) * along(m, RADIAL, EPS),
            -2 * EPS * LOSS(n, i) * GAIN(i) * m(LAYER, eps=EPS).diff(EPS),
        )
        for m in INVARIANT
    )
    return Proof(
        "dynamics.epsilon",
        r"\langle W,\nabla_WL\rangle = -2\epsilon\,\partial L/\partial\epsilon",
        tuple(steps),
    )


@proves("dynamics.ln_backward")
def layer_norm_backward() -> Proof:
    """The backward pass of layer norm is a projection over σ, and its length follows."""
    a, da, delta = field("a"), field("v"), field("delta")
    u = lambda l: a(l) - mean(a, H)
    sigma = sqrt(mean(lambda l: u(l) ** 2, H))
    output = lambda l: u(l) / sigma
    moved = lambda l: derivative(lambda t: _normalized(lambda j: a(j) + t * da(j), l))
    back = lambda l: (delta(l) - mean(delta, H) - output(l) * mean(lambda j: output(j) * delta(j), H)) / sigma
    norm = total(lambda l: back(l) ** 2, H)
    stated = (
        total(lambda l: delta(l) ** 2, H) - total(delta, H) ** 2 / H - total(lambda l: output(l) * delta(l), H) ** 2 / H
    ) / sigma**2
    return Proof(
        "dynamics.ln_backward",
        r"\|\partial L/\partial a\|^2 = "
        r"\sigma^{-2}\left(\|\delta\|^2 - (\mathbf{1}^\top\delta)^2/H - (n^\top\delta)^2/H\right),\ "
        r"\delta = g\odot\partial L/\partial z",
        (
            equality(
                "⟨δ, dn[v]⟩ = ⟨∂L/∂a, v⟩ gives the backward pass",
                total(lambda l: delta(l) * moved(l), H),
                total(lambda l: back(l) * da(l), H),
            ),
            equality("and its squared length", norm, stated),
        ),
        (Assumption("positive scale", r"\sigma > 0,\ \epsilon = 0"),),
    )


def _normalized(a: Field, l) -> Expr:
    return (a(l) - mean(a, H)) / sqrt(mean(lambda j: (a(j) - mean(a, H)) ** 2, H))

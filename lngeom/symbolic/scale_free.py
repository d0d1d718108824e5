"""Losses that do not see the scale of the weights: their gradients, and steps along them.

A loss is an arbitrary function of the outputs. So its derivative in a direction V is zero where every output's is.
Scale invariance is used as an identity between outputs. What follows for gradients and Hessians is the chain rule,
applied to an arbitrary smooth function.
"""

import sympy as sp
from sympy import Expr, Function

from lngeom.symbolic.jacobian import LAYER, RADIAL, along, null_step
from lngeom.symbolic.layers import BATCH_NORM, LAYER_NORM, RMS_NORM, WEIGHT_NORM, Layer, Method
from lngeom.symbolic.proof import Assumption, Step, equality, expanded
from lngeom.symbolic.sums import D, Field, derivative, field, total


class smooth(Function):
    """A partial derivative ∂ᵃ_s ∂ᵇ_r F(s, r) of an arbitrary smooth function, as smooth(s, r, a, b)."""

    nargs = 4

    def fdiff(self, argindex: int = 1) -> Expr:
        """The next derivative by one of the first two arguments."""
        orders = list(self.args)
        orders[argindex + 1] += 1
        return smooth(*orders)


WEIGHT_FACTOR = sp.Symbol("c", positive=True)
"""What the weights are multiplied by."""
INVARIANT_METHODS = (BATCH_NORM, WEIGHT_NORM, LAYER_NORM, RMS_NORM)
SHORT = {"BatchNorm": "BN", "WeightNorm": "WN", "LayerNorm": "LN", "RMSNorm": "RMS"}
RATE, BETA, DECAY = sp.symbols("eta beta lambda", positive=True)
SCALE_FREE = Assumption("the loss depends on W through a normalizer with ε = 0, σ > 0", r"L(cW) = L(W),\ c > 0")


def scaled_layer(c: Expr = WEIGHT_FACTOR) -> Layer:
    """The layer with weights cW."""
    return Layer(lambda l, d: c * LAYER.W(l, d), LAYER.X)


def matrix_scaling(method: Method) -> tuple[Step, ...]:
    """All of W → cW: outputs stay, derivatives with respect to W are divided by c, those to b and g stay."""
    V = field("V")
    at_scaled = derivative(lambda t: method(scaled_layer().towards(V, t)))
    J, output = along(method, V), sp.Symbol("n_{ni}")
    short = {"J": J}
    return (
        equality("W → cW keeps outputs", method(scaled_layer()), output, "n'_{ni}", {output.name: method(LAYER)}),
        equality("J = dn is divided by c", at_scaled, J / WEIGHT_FACTOR, r"J(cW)", short),
        equality("so blocks ww are divided by c²", at_scaled**2, J**2 / WEIGHT_FACTOR**2, r"J(cW)^2", short),
        equality(
            "and wb, wg by c",
            at_scaled * method(scaled_layer()),
            J * output / WEIGHT_FACTOR,
            r"J(cW)\,n'_{ni}",
            {**short, output.name: method(LAYER)},
        ),
    )


def radial_steps() -> list[Step]:
    """The derivative along W is zero, for every method that ignores the scale of W."""
    text = "no output moves along W, so ⟨W, ∇L⟩ = 0"
    return [null_step(f"{m.name}: {text}", m, RADIAL, moving="W", of=SHORT[m.name]) for m in INVARIANT_METHODS]


def gradient_scaling() -> tuple[Step, ...]:
    """∇L(cW) = ∇L(W)/c, from n(cW + tV) = n(W + (t/c)V)."""
    V, t = field("V"), sp.Symbol("t", real=True)
    s, c = sp.Symbol("s", real=True), WEIGHT_FACTOR
    at_scaled = smooth(s / c, 0, 0, 0).diff(s).subs(s, 0)
    return (
        *(
            equality(
                f"{m.name}: n(cW + tV) = n(W + (t/c)V)",
                m(scaled_layer().towards(V, t)),
                m(LAYER.towards(V, t / WEIGHT_FACTOR)),
            )
            for m in INVARIANT_METHODS
        ),
        expanded(
            "so L(cW + sV) = f(s/c), whose slope is f'(0)/c",
            r"\nabla L(cW) = c^{-1}\nabla L(W)",
            at_scaled - smooth(0, 0, 1, 0) / c,
        ),
    )


def dot(u: Field, v: Field) -> Expr:
    """⟨u, v⟩ over the entries of a weight vector (or of all of W, flattened)."""
    return total(lambda d: u(d) * v(d), D)


def perpendicular(v: Field, w: Field) -> Field:
    """The part of an arbitrary vector orthogonal to w: what a gradient of a scale-invariant loss is."""
    return lambda d: v(d) - dot(v, w) / dot(w, w) * w(d)


def minus(u: Field, c: Expr, v: Field) -> Field:
    """U − cv."""
    return lambda d: u(d) - c * v(d)


def squared_tangent(w: Field, gradient: Field, rate: Expr) -> Expr:
    """Squared tangent of the angle between w and w − η∇L."""
    after = minus(w, rate, gradient)
    return dot(w, w) * dot(after, after) / dot(w, after) ** 2 - 1

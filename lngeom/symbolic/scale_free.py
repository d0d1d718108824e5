"""Losses that do not see the scale of the weights: their gradients, and steps along them.

The equivariance theorem for W → cW: outputs, and so a loss, do not change.
"""

import sympy as sp
from sympy import Expr

from lngeom.symbolic.equivariance import (
    RATE as RATE,
    ROWS,
    SCALING,
    SHORT as SHORT,
    WEIGHT_FACTOR as WEIGHT_FACTOR,
    block_step,
    follows,
    generator_step,
    invariance,
    smooth as smooth,
)
from lngeom.symbolic.jacobian import LAYER
from lngeom.symbolic.layers import BATCH_NORM, LAYER_NORM, RMS_NORM, WEIGHT_NORM, Layer, Method
from lngeom.symbolic.proof import Assumption, Step, equality
from lngeom.symbolic.sums import D, Field, H, field, total

INVARIANT_METHODS = (BATCH_NORM, WEIGHT_NORM, LAYER_NORM, RMS_NORM)
BETA, DECAY = sp.symbols("beta lambda", positive=True)
SCALE_FREE = Assumption("the loss depends on W through a normalizer with ε = 0, σ > 0", r"L(cW) = L(W),\ c > 0")


def scaled_layer(c: Expr = WEIGHT_FACTOR) -> Layer:
    """The layer with weights cW."""
    return Layer(lambda l, d: c * LAYER.W(l, d), LAYER.X)


def matrix_scaling(*methods: Method) -> tuple[Step, ...]:
    """All of W → cW: outputs stay, and so blocks ww of F are divided by c², wb and wg by c."""
    text = "so at cW ww has c⁻², wb, wg c⁻¹"
    return invariance(SCALING, *methods), block_step(text, SCALING)


def unit_scaling(*methods: Method) -> tuple[Step, ...]:
    """Each w_i → c_i w_i: outputs stay, and so the block ij of F is divided by c_i c_j."""
    text = "so block ij has c_i⁻¹c_j⁻¹, wb c_i⁻¹"
    return invariance(ROWS, *methods), block_step(text, ROWS, single=True)


def radial_steps(consequence: str = "orthogonality") -> tuple[Step, ...]:
    """The derivative along ξW = W is zero, for every method that ignores the scale of W."""
    return invariance(SCALING, *INVARIANT_METHODS), generator_step(SCALING, LAYER.W), follows(consequence)


def gradient_scaling() -> tuple[Step, ...]:
    """∇L(cW) = ∇L(W)/c, since Dg = c."""
    P, V = field("P"), field("V")
    inner = lambda A, B: total(lambda l: total(lambda d: A(l, d) * B(l, d), D), H)
    return (
        invariance(SCALING, *INVARIANT_METHODS),
        follows("gradient"),
        equality(
            "where Dgᵀ = c, so ∇L(cW) = ∇L(W)/c",
            inner(P, SCALING.acts(V)),
            inner(lambda l, d: WEIGHT_FACTOR * P(l, d), V),
            r"\langle P, Dg\,V\rangle",
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

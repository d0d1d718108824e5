r"""Learning dynamics of the weights themselves: norm growth, row means, angles, DyT."""

import sympy as sp
from sympy import Expr, sqrt

from lngeom.symbolic.actions import DELTA
from lngeom.symbolic.dynamics import (
    BETA,
    DECAY,
    LOSS,
    RATE,
    SCALE_FREE,
    gradient_scaling,
    radial_steps,
    slope_at,
)
from lngeom.symbolic.glm import expanded
from lngeom.symbolic.layers import LAYER_NORM, Layer
from lngeom.symbolic.nullspaces import LAYER, RADIAL, SHIFTS, null_step
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, equality, fact, matrix, refutation
from lngeom.symbolic.registry import proves
from lngeom.symbolic.sums import D, Field, H, d, derivative, field, i, mean, n, total


def dot(u: Field, v: Field) -> Expr:
    """⟨u, v⟩ over the entries of a weight vector (or of all of W, flattened)."""
    return total(lambda d: u(d) * v(d), D)


def perpendicular(v: Field, w: Field) -> Field:
    """The part of an arbitrary vector orthogonal to w: what a gradient of a scale-invariant loss is."""
    return lambda d: v(d) - dot(v, w) / dot(w, w) * w(d)


def minus(u: Field, c: Expr, v: Field) -> Field:
    """U − cv."""
    return lambda d: u(d) - c * v(d)


@proves("dynamics.sgd_norm_growth")
def sgd_norm_growth() -> Proof:
    """A gradient step lengthens the weights by Pythagoras."""
    w, v = field("w"), field("v")
    gradient = perpendicular(v, w)
    after = minus(w, RATE, gradient)
    return Proof(
        "dynamics.sgd_norm_growth",
        r"w^+ = w - \eta\nabla L \Rightarrow \|w^+\|^2 = \|w\|^2 + \eta^2\|\nabla L\|^2",
        (
            *radial_steps(),
            equality(
                "An arbitrary vector less its radial part is orthogonal to w",
                dot(w, gradient),
                0,
                r"\langle w,\nabla L\rangle",
            ),
            equality(
                "so the squared norm grows by that of the step",
                dot(after, after),
                dot(w, w) + RATE**2 * dot(gradient, gradient),
            ),
        ),
        (SCALE_FREE,),
    )


@proves("dynamics.momentum_norm_growth")
def momentum_norm_growth() -> Proof:
    """Momentum lengthens the weights faster: the buffer leans outwards."""
    w, p_, v = field("w"), field("p"), field("v")
    now = minus(w, RATE, p_)
    gradient = perpendicular(v, now)
    buffer = lambda d: BETA * p_(d) + gradient(d)
    u, b = field("u"), field("b")
    following, S = minus(u, RATE, b), sp.Symbol("S")
    inner = sp.Symbol("s")

    def unrolled() -> bool:
        """S_t = Σ_{k<t} β^(t−k) q_k satisfies S_t = β(S_{t−1} + q_{t−1}), S_0 = 0: term by term, and for t ≤ 6."""
        t, k = sp.symbols("t k", integer=True)
        general = sp.powsimp(BETA * BETA ** (t - 1 - k)) - BETA ** (t - k)
        last = BETA ** (t - (t - 1)) - BETA
        q = sp.symbols("q0:6")
        S = lambda t: sum((BETA ** (t - k) * q[k] for k in range(t)), sp.S.Zero)
        small = all(sp.expand(S(t) - BETA * (S(t - 1) + q[t - 1])) == 0 for t in range(1, 7))
        return general == 0 and last == 0 and small

    return Proof(
        "dynamics.momentum_norm_growth",
        r"\|w_{t+1}\|^2 = \|w_t\|^2 + \eta^2\|p_t\|^2 + 2\eta^2\sum_{k<t}\beta^{t-k}\|p_k\|^2,\quad "
        r"p_t = \beta p_{t-1} + \nabla L(w_t)",
        (
            *radial_steps(),
            equality(
                "With w_t = w − ηp and ∇L ⊥ w_t: ⟨w_t, p_t⟩ = β(⟨w, p⟩ − η‖p‖²)",
                dot(now, buffer),
                BETA * (dot(w, p_) - RATE * dot(p_, p_)),
            ),
            expanded(
                "By induction ⟨w_t, p_t⟩ = −ηS_t with S_t = β(S_{t−1} + ‖p_{t−1}‖²), S_0 = 0",
                r"\beta(-\eta S - \eta q) = -\eta\,\beta(S+q)",
                BETA * (-RATE * S - RATE * inner) + RATE * BETA * (S + inner),
            ),
            fact("which is the sum in the statement", r"S_t = \sum_{k<t}\beta^{t-k}\|p_k\|^2", unrolled),
            equality(
                "and each step adds η²‖p‖² − 2η⟨w, p⟩",
                dot(following, following),
                dot(u, u) + RATE**2 * dot(b, b) - 2 * RATE * dot(u, b),
            ),
        ),
        (SCALE_FREE, Assumption("the buffer starts at zero", r"p_{-1} = 0")),
    )


@proves("dynamics.ln_row_mean")
def layer_norm_row_mean() -> Proof:
    """The mean row of W is conserved by SGD and momentum, shrinks under weight decay, and moves under Adam."""
    W, P, B = field("W"), field("P"), field("B")
    centered = lambda F: lambda l, d: F(l, d) - mean(lambda j: F(j, d), H)
    gradient, buffer = centered(P), centered(B)
    row_mean = lambda F: mean(lambda l: F(l, d), H)
    step = lambda l, d: W(l, d) - RATE * (BETA * buffer(l, d) + gradient(l, d))
    decayed = lambda l, d: (1 - RATE * DECAY) * W(l, d) - RATE * gradient(l, d)

    def adam_drift(values) -> tuple[Expr, Expr]:
        weights, ell = values["W"], values[r"\ell"]
        basis = [sp.Matrix(3, 1, lambda r, _: int(r == k)) for k in range(3)]  # noqa: B023
        slopes = [sum(a * b for a, b in zip(slope_at(LAYER_NORM, weights, V, [[1]]), ell, strict=True)) for V in basis]
        return sum(sp.sign(slope) for slope in slopes), sum(sp.radsimp(slope) for slope in slopes)

    adam = Counterexample(
        "dynamics.ln_row_mean under Adam",
        r"\mathbf{1}^\top\,\mathrm{Adam}(\nabla L) = \mathbf{1}^\top\nabla L = 0",
        {"W": matrix([[0], [1], [-1]]), r"\ell": matrix([[1, 0, 0]])},
        adam_drift,
        "Sum over units of Adam's first step, the sign of the gradient (left), and of the gradient itself (right).",
    )
    return Proof(
        "dynamics.ln_row_mean",
        r"m = \mathbf{1}^\top W/H:\quad m_{t+1} = m_t \text{ (SGD, momentum)},\quad "
        r"m_{t+1} = (1-\eta\lambda)m_t \text{ (weight decay)}",
        (
            null_step("Layer norm's gradient has rows that sum to zero", LAYER_NORM, SHIFTS),
            equality("An arbitrary matrix less its mean row is such a gradient", row_mean(gradient), 0),
            equality("A step with momentum conserves the mean row", row_mean(step), row_mean(W)),
            equality(
                "and its buffer keeps mean row zero",
                row_mean(lambda l, d: BETA * buffer(l, d) + gradient(l, d)),
                0,
            ),
            equality(
                "Weight decay shrinks it by 1 − ηλ each step, so (1 − ηλ)ᵗ",
                row_mean(decayed),
                (1 - RATE * DECAY) * row_mean(W),
            ),
            refutation("Adam's first step moves it", adam),
        ),
        (Assumption("layer norm; the buffer starts with mean row zero", r"\mathbf{1}^\top p_{-1} = 0"),),
    )


@proves("dynamics.angle")
def angle() -> Proof:
    """The angle of a step, the effective learning rate, and the role of weight decay."""
    w, v = field("w"), field("v")
    gradient = perpendicular(v, w)
    after = minus(w, RATE, gradient)
    cosine = dot(w, after) ** 2 / (dot(w, w) * dot(after, after))
    tangent = RATE**2 * dot(gradient, gradient) / dot(w, w)
    direction = derivative(lambda t: (w(d) - t * gradient(d)) / sqrt(dot(minus(w, t, gradient), minus(w, t, gradient))))
    decay = lambda weights, strength: strength * dot(weights, weights)
    return Proof(
        "dynamics.angle",
        r"\tan\angle(w, w^+) = \eta\|\nabla L\|/\|w\|,\quad "
        r"\hat u^+ = \hat u - \frac{\eta}{\|w\|^2}\nabla L(\hat u) + O(\eta^2),\quad "
        r"L_\lambda(\alpha w) = L_{\lambda\alpha^2}(w)",
        (
            *gradient_scaling(),
            equality("cos² of the angle is 1/(1 + tan²) with tan = η‖∇L‖/‖w‖", cosine, 1 / (1 + tangent)),
            equality(
                "To first order the direction moves by −∇L(w)/‖w‖ = −∇L(û)/‖w‖²",
                direction,
                -gradient(d) / sqrt(dot(w, w)),
            ),
            equality(
                "Weight decay is the only term that sees the scale",
                decay(lambda d: DELTA * w(d), DECAY),
                decay(w, DECAY * DELTA**2),
            ),
        ),
        (SCALE_FREE,),
    )


@proves("dynamics.dyt")
def dynamic_tanh() -> Proof:
    """DyT: weights and α are redundant, and gradient flow conserves ‖W‖² − α²."""
    alpha = sp.Symbol("alpha", real=True)
    output = lambda L, a=alpha: sp.tanh(a * L.a(n, i))
    radial = derivative(lambda t: output(LAYER.towards(RADIAL, t)))
    by_alpha = output(LAYER).diff(alpha)
    flow = -2 * LOSS(n, i) * radial + 2 * alpha * LOSS(n, i) * by_alpha
    halved = Layer(lambda l, d: LAYER.W(l, d) / DELTA, LAYER.X)
    return Proof(
        "dynamics.dyt",
        r"z = \tanh(\alpha Wx):\ \langle W,\partial_WL\rangle = \alpha\,\partial_\alpha L,\quad "
        r"\tfrac{d}{dt}(\|W\|^2 - \alpha^2) = 0",
        (
            equality("The output depends on αW alone", output(halved, DELTA * alpha), output(LAYER)),
            equality("so moving along W is moving along α", radial, alpha * by_alpha, r"dz[W]"),
            equality("Under gradient flow 2⟨W, Ẇ⟩ − 2αα̇ vanishes, at every output", flow, 0),
        ),
    )

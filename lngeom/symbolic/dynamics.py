r"""Learning dynamics of normalized layers: orthogonality, curvature, norm growth, angles.

A loss is an arbitrary function of the outputs, so its derivative in a direction V is $\sum_{n,i} \ell_{ni}\,dz_{ni}[V]$
with arbitrary $\ell$: where every $dz_{ni}[V]$ is zero, so is the derivative. Scale invariance is used as an identity
between outputs; what follows for gradients and Hessians is the chain rule, applied to an arbitrary smooth function.
"""

import sympy as sp
from sympy import Expr, Function, sqrt

from lngeom.symbolic.actions import DELTA
from lngeom.symbolic.fisher_blocks import expanded, scaled
from lngeom.symbolic.layers import BATCH_NORM, LAYER_NORM, RMS_NORM, WEIGHT_NORM, Layer, Method
from lngeom.symbolic.nullspaces import GAIN, LAYER, RADIAL, SHIFTS, along, null_step, rows_alone
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, fact, matrix, refutation
from lngeom.symbolic.registry import proves
from lngeom.symbolic.sums import D, Field, H, d, derivative, field, i, mean, n, total

class smooth(Function):  # noqa: N801
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
        name, statement, {"W": W, "V": V, "X": X}, lambda v: (slope_at(method, v["W"], v["V"], v["X"])[0], sp.S.Zero), text
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
        r"\langle W,\nabla_WL\rangle = 0;\quad \langle w_i,\nabla_{w_i}L\rangle = 0\ (BN, WN);\quad \mathbf{1}^\top\nabla_WL = 0\ (LN)",
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
            equality(f"{m.name}: n(cW + tV) = n(W + (t/c)V)", m(scaled().towards(V, t)), m(LAYER.towards(V, t / DELTA)))
            for m in INVARIANT
        ),
        expanded("so L(cW + sV) = f(s/c), whose slope is f'(0)/c", r"\nabla L(cW) = c^{-1}\nabla L(W)", at_scaled - smooth(0, 0, 1, 0) / c),
    )


@proves("dynamics.hessian")
def hessian() -> Proof:
    """H(W)·W = −∇L, H(cW) = c⁻²H(W); for layer norm H·(1γᵀ) = 0."""
    V, s, r, c = field("V"), *sp.symbols("s r", real=True), DELTA
    U = field("U")
    two = [m(scaled().towards(V, s).towards(U, r)) - m(LAYER.towards(V, s / c).towards(U, r / c)) for m in (LAYER_NORM, WEIGHT_NORM)]
    mixed = smooth(s / c, r / c, 0, 0).diff(s, r).subs({s: 0, r: 0}) - smooth(0, 0, 1, 1) / c**2
    slope = smooth(0, 0, 1, 0)
    return Proof(
        "dynamics.hessian",
        r"\nabla^2L(W)\cdot W = -\nabla L,\quad \nabla^2L(cW) = c^{-2}\nabla^2L(W),\quad \nabla^2L\cdot(\mathbf{1}\gamma^\top) = 0\ (LN)",
        (
            *gradient_scaling(),
            expanded("Differentiating ∇L(cW) = ∇L(W)/c by c at 1", r"\nabla^2L(W)\cdot W = -\nabla L(W)", (slope / c).diff(c).subs(c, 1) + slope),
            equality("Two directions scale alike (layer norm)", two[0], 0),
            equality("(and weight norm)", two[1], 0),
            expanded("so the mixed second derivative of F(s/c, r/c) has c⁻²", r"\nabla^2L(cW) = c^{-2}\nabla^2L(W)", mixed),
            equality(
                "Layer norm: a shift is not seen together with any direction, so it is a null vector of the Hessian",
                LAYER_NORM(LAYER.towards(V, s).towards(SHIFTS, r)),
                LAYER_NORM(LAYER.towards(V, s)),
            ),
            fact("The same at three units and two inputs, L = |n − y|², all second derivatives", r"\nabla^2L\cdot W + \nabla L = 0", _hessian_by_expansion),
        ),
        (SCALE_FREE,),
    )


def _hessian_by_expansion() -> bool:
    """H·W + ∇L and H·(1γᵀ) at a rational W, from all the second derivatives of L = |n − y|²."""
    W = sp.Matrix(3, 2, sp.symbols("w0:6", real=True))
    (outputs,) = [LAYER_NORM.exactly(W, [[1, 2]])]
    loss = sum((output - target) ** 2 for output, target in zip(outputs, (1, 0, 3), strict=True))
    at = dict(zip(W, (1, 0, 2, 1, -1, 1), strict=True))
    variables, radial, shift = list(W), [at[w] for w in W], [1, -2] * 3
    gradient = [loss.diff(w) for w in variables]
    values = [sp.radsimp(slope.subs(at)) for slope in gradient]
    rows = [[sp.radsimp(slope.diff(w).subs(at)) for w in variables] for slope in gradient]
    by_radial = [sum(a * b for a, b in zip(row, radial, strict=True)) + v for row, v in zip(rows, values, strict=True)]
    by_shift = [sum(a * b for a, b in zip(row, shift, strict=True)) for row in rows]
    return all(sp.radsimp(sp.expand(value)) == 0 for value in by_radial + by_shift) and any(values)


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
    return Proof("dynamics.epsilon", r"\langle W,\nabla_WL\rangle = -2\epsilon\,\partial L/\partial\epsilon", tuple(steps))


@proves("dynamics.ln_backward")
def layer_norm_backward() -> Proof:
    """The backward pass of layer norm is a projection over σ, and its length follows."""
    a, da, delta = field("a"), field("v"), field("delta")
    u = lambda l: a(l) - mean(a, H)  # noqa: E731
    sigma = sqrt(mean(lambda l: u(l) ** 2, H))
    output = lambda l: u(l) / sigma  # noqa: E731
    moved = lambda l: derivative(lambda t: _normalized(lambda j: a(j) + t * da(j), l))  # noqa: E731
    back = lambda l: (delta(l) - mean(delta, H) - output(l) * mean(lambda j: output(j) * delta(j), H)) / sigma  # noqa: E731
    norm = total(lambda l: back(l) ** 2, H)
    stated = (
        total(lambda l: delta(l) ** 2, H)
        - total(delta, H) ** 2 / H
        - total(lambda l: output(l) * delta(l), H) ** 2 / H
    ) / sigma**2
    return Proof(
        "dynamics.ln_backward",
        r"\|\partial L/\partial a\|^2 = \sigma^{-2}\left(\|\delta\|^2 - (\mathbf{1}^\top\delta)^2/H - (n^\top\delta)^2/H\right),\ \delta = g\odot\partial L/\partial z",
        (
            equality("⟨δ, dn[v]⟩ = ⟨∂L/∂a, v⟩ gives the backward pass", total(lambda l: delta(l) * moved(l), H), total(lambda l: back(l) * da(l), H)),
            equality("and its squared length", norm, stated),
        ),
        (Assumption("positive scale", r"\sigma > 0,\ \epsilon = 0"),),
    )


def _normalized(a: Field, l) -> Expr:
    return (a(l) - mean(a, H)) / sqrt(mean(lambda j: (a(j) - mean(a, H)) ** 2, H))


def dot(u: Field, v: Field) -> Expr:
    """⟨u, v⟩ over the entries of a weight vector (or of all of W, flattened)."""
    return total(lambda d: u(d) * v(d), D)


def perpendicular(v: Field, w: Field) -> Field:
    """The part of an arbitrary vector orthogonal to w: what a gradient of a scale-invariant loss is."""
    return lambda d: v(d) - dot(v, w) / dot(w, w) * w(d)


def minus(u: Field, c: Expr, v: Field) -> Field:
    """u − cv."""
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
            equality("An arbitrary vector less its radial part is orthogonal to w", dot(w, gradient), 0, r"\langle w,\nabla L\rangle"),
            equality("so the squared norm grows by that of the step", dot(after, after), dot(w, w) + RATE**2 * dot(gradient, gradient)),
        ),
        (SCALE_FREE,),
    )


@proves("dynamics.momentum_norm_growth")
def momentum_norm_growth() -> Proof:
    """Momentum lengthens the weights faster: the buffer leans outwards."""
    w, p_, v = field("w"), field("p"), field("v")
    now = minus(w, RATE, p_)
    gradient = perpendicular(v, now)
    buffer = lambda d: BETA * p_(d) + gradient(d)  # noqa: E731
    u, b = field("u"), field("b")
    following, S = minus(u, RATE, b), sp.Symbol("S")
    inner = sp.Symbol("s")

    def unrolled() -> bool:
        """S_t = Σ_{k<t} β^(t−k) q_k satisfies S_t = β(S_{t−1} + q_{t−1}), S_0 = 0: term by term, and for t ≤ 6."""
        t, k = sp.symbols("t k", integer=True)
        general = sp.powsimp(BETA * BETA ** (t - 1 - k)) - BETA ** (t - k)
        last = BETA ** (t - (t - 1)) - BETA
        q = sp.symbols("q0:6")
        S = lambda t: sum((BETA ** (t - k) * q[k] for k in range(t)), sp.S.Zero)  # noqa: E731
        small = all(sp.expand(S(t) - BETA * (S(t - 1) + q[t - 1])) == 0 for t in range(1, 7))
        return general == 0 and last == 0 and small

    return Proof(
        "dynamics.momentum_norm_growth",
        r"\|w_{t+1}\|^2 = \|w_t\|^2 + \eta^2\|p_t\|^2 + 2\eta^2\sum_{k<t}\beta^{t-k}\|p_k\|^2,\quad p_t = \beta p_{t-1} + \nabla L(w_t)",
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
            equality("and each step adds η²‖p‖² − 2η⟨w, p⟩", dot(following, following), dot(u, u) + RATE**2 * dot(b, b) - 2 * RATE * dot(u, b)),
        ),
        (SCALE_FREE, Assumption("the buffer starts at zero", r"p_{-1} = 0")),
    )


@proves("dynamics.ln_row_mean")
def layer_norm_row_mean() -> Proof:
    """The mean row of W is conserved by SGD and momentum, shrinks under weight decay, and moves under Adam."""
    W, P, B = field("W"), field("P"), field("B")
    centered = lambda F: (lambda l, d: F(l, d) - mean(lambda j: F(j, d), H))  # noqa: E731
    gradient, buffer = centered(P), centered(B)
    row_mean = lambda F: mean(lambda l: F(l, d), H)  # noqa: E731
    step = lambda l, d: W(l, d) - RATE * (BETA * buffer(l, d) + gradient(l, d))  # noqa: E731
    decayed = lambda l, d: (1 - RATE * DECAY) * W(l, d) - RATE * gradient(l, d)  # noqa: E731

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
        r"m = \mathbf{1}^\top W/H:\quad m_{t+1} = m_t \text{ (SGD, momentum)},\quad m_{t+1} = (1-\eta\lambda)m_t \text{ (weight decay)}",
        (
            null_step("Layer norm's gradient has rows that sum to zero", LAYER_NORM, SHIFTS),
            equality("An arbitrary matrix less its mean row is such a gradient", row_mean(gradient), 0),
            equality("A step with momentum conserves the mean row", row_mean(step), row_mean(W)),
            equality("and its buffer keeps mean row zero", row_mean(lambda l, d: BETA * buffer(l, d) + gradient(l, d)), 0),
            equality("Weight decay shrinks it by 1 − ηλ each step, so (1 − ηλ)ᵗ", row_mean(decayed), (1 - RATE * DECAY) * row_mean(W)),
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
    decay = lambda weights, strength: strength * dot(weights, weights)  # noqa: E731
    return Proof(
        "dynamics.angle",
        r"\tan\angle(w, w^+) = \eta\|\nabla L\|/\|w\|,\quad \hat u^+ = \hat u - \frac{\eta}{\|w\|^2}\nabla L(\hat u) + O(\eta^2),\quad L_\lambda(\alpha w) = L_{\lambda\alpha^2}(w)",
        (
            *gradient_scaling(),
            equality("cos² of the angle is 1/(1 + tan²) with tan = η‖∇L‖/‖w‖", cosine, 1 / (1 + tangent)),
            equality("To first order the direction moves by −∇L(w)/‖w‖ = −∇L(û)/‖w‖²", direction, -gradient(d) / sqrt(dot(w, w))),
            equality("Weight decay is the only term that sees the scale", decay(lambda d: DELTA * w(d), DECAY), decay(w, DECAY * DELTA**2)),
        ),
        (SCALE_FREE,),
    )


@proves("dynamics.dyt")
def dynamic_tanh() -> Proof:
    """DyT: weights and α are redundant, and gradient flow conserves ‖W‖² − α²."""
    alpha = sp.Symbol("alpha", real=True)
    output = lambda L, a=alpha: sp.tanh(a * L.a(n, i))  # noqa: E731
    radial = derivative(lambda t: output(LAYER.towards(RADIAL, t)))
    by_alpha = output(LAYER).diff(alpha)
    flow = -2 * LOSS(n, i) * radial + 2 * alpha * LOSS(n, i) * by_alpha
    halved = Layer(lambda l, d: LAYER.W(l, d) / DELTA, LAYER.X)
    return Proof(
        "dynamics.dyt",
        r"z = \tanh(\alpha Wx):\ \langle W,\partial_WL\rangle = \alpha\,\partial_\alpha L,\quad \tfrac{d}{dt}(\|W\|^2 - \alpha^2) = 0",
        (
            equality("The output depends on αW alone", output(halved, DELTA * alpha), output(LAYER)),
            equality("so moving along W is moving along α", radial, alpha * by_alpha, r"dz[W]"),
            equality("Under gradient flow 2⟨W, Ẇ⟩ − 2αα̇ vanishes, at every output", flow, 0),
        ),
    )



"""Learning dynamics of normalized layers: identities of the gradient and of the norm, held along real training."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import sympy as sp
from jaxtyping import Array, Float
from sympy import Expr, sqrt

from lngeom import methods as normalizers
from lngeom._core.numerics import tolerance
from lngeom.claims import Problem, Verdict, agree, claim, differ, same_integer, vanishes
from lngeom.claims.context import Read
from lngeom.claims.problem import NORMALIZERS, TITLES
from lngeom.papers.training.network import (
    Network,
    Parameters,
    compiled_gradient,
    compiled_loss,
    logits,
    loss,
    network,
    scaled,
    sgd_path,
    train,
)
from lngeom.symbolic.equivariance import (
    ROWS,
    SCALING,
    SHIFT,
    follows,
    generator_step,
    invariance,
    smooth,
    tangent_step,
)
from lngeom.symbolic.jacobian import GAIN, LAYER, RADIAL, SHIFTS, along, rows_alone
from lngeom.symbolic.layers import BATCH_NORM, LAYER_NORM, WEIGHT_NORM, Layer, Method
from lngeom.symbolic.proof import (
    Assumption,
    Counterexample,
    Proof,
    equality,
    expanded,
    fact,
    matrix,
    refutation,
    together,
)
from lngeom.symbolic.scale_free import (
    BETA,
    DECAY,
    INVARIANT_METHODS,
    RATE,
    SCALE_FREE,
    WEIGHT_FACTOR,
    dot,
    gradient_scaling,
    minus,
    perpendicular,
    radial_steps,
)
from lngeom.symbolic.sums import Field, H, d, derivative, field, i, mean, n, total
from lngeom.training import scale_invariant_groups

TOPIC = "learning-rate"
INVARIANT = ("bn", "wn", "ln", "rms")
SYMMETRIES = (SCALING, *INVARIANT_METHODS), (ROWS, BATCH_NORM, WEIGHT_NORM), (SHIFT, LAYER_NORM)
"""Actions, and the methods whose outputs they keep."""

SECTION = "Section 5.2.2, implicit learning rate reduction"


@claim(
    "dynamics.orthogonality",
    topic=TOPIC,
    source=SECTION,
    statement=(
        "The gradient of a scale-invariant loss is orthogonal to the weights: ⟨W, ∇L⟩ = 0 for batch, weight, layer and "
        "RMS norm; for each row under batch and weight norm; and layer norm's has rows that sum to zero."
    ),
    formula=r"\langle W,\nabla_WL\rangle = 0",
    assumptions=("ε = 0",),
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def orthogonality(problem: Problem):
    """Along 60 steps of SGD; and what must not vanish: layer norm by rows, batch norm's sum over rows."""
    for method in INVARIANT:
        path = sgd_path(network(problem), 0.3, method)
        w, g = np.asarray(path.params["weights"]), np.asarray(path.gradients["weights"])
        rows, columns = np.sum(w * g, 2), np.sum(g, 1)
        scale = float(np.max(np.linalg.norm(w, axis=(1, 2)) * np.linalg.norm(g, axis=(1, 2))))
        yield vanishes(f"{TITLES[method]}: ⟨W, ∇⟩ at every step", np.sum(rows, 1), scale=scale)
        if method in {"bn", "wn"}:
            yield vanishes(f"{TITLES[method]}: ⟨w_i, ∇_i⟩ of every row", rows, scale=scale)
        else:
            yield differ(f"{TITLES[method]}: not of every row", jnp.asarray(rows) / scale, np.zeros_like(rows))
        size = float(np.max(np.abs(g)))
        if method == "ln":
            yield vanishes("Layer norm: 1ᵀ∇ at every step", columns, scale=size)
        else:
            yield differ(f"{TITLES[method]}: 1ᵀ∇ does not vanish", jnp.asarray(columns) / size, np.zeros_like(columns))
        hidden = "rounding on these data hides it" if problem.rounding > tolerance(np.float64) else ""
        net = network(problem)
        groups = scale_invariant_groups(
            lambda p, x, method=method: logits(p, x, method), net.params, net.inputs[:40], together=2, epsilon=False
        )
        yield same_integer(
            f"{TITLES[method]}: sets of leaves whose scale the outputs ignore, found and expected",
            len(groups) if groups.get("weights") == ("weights",) else -1,
            1,
            uncertain=hidden,
        )


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


@orthogonality.proof()
def orthogonality_proof() -> Proof:
    """⟨W, ∇L⟩ = 0; row by row for batch and weight norm; 1ᵀ∇L = 0 for layer norm. And where not."""
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
        "Derivative of the first output (left) along 𝟏γᵀ.",
        BATCH_NORM,
        matrix([[1, 0]]),
        matrix([[0, 1]]),
        matrix([[0, 1], [1, 0], [2, 0]]),
    )
    return Proof(
        r"\langle W,\nabla_WL\rangle = 0;\quad "
        r"\langle w_i,\nabla_{w_i}L\rangle = 0\ (BN, WN);\quad \mathbf{1}^\top\nabla_WL = 0\ (LN)",
        (
            *(invariance(*pair) for pair in SYMMETRIES),
            together(
                "The generators ξW are W, diag(s)W and 𝟏γᵀ",
                generator_step(SCALING, RADIAL),
                generator_step(ROWS, rows_alone(field("s"))),
                generator_step(SHIFT, SHIFTS),
            ),
            follows("orthogonality"),
            refutation("Layer norm does move along a single row", row),
            refutation("Batch norm does move along a shift", shift),
        ),
        (SCALE_FREE,),
    )


@partial(jax.jit, static_argnames="method")
def hessian_products(net: Network, vectors: Float[Array, "k H D"], method: str) -> tuple[Array, Array]:
    """The gradient by W, and products of the Hessian with directions."""
    slope = jax.grad(lambda w: loss(net.params | {"weights": w}, net.inputs, net.labels, method))
    weights = net.params["weights"]
    return slope(weights), jax.vmap(lambda v: jax.jvp(slope, (weights,), (v,))[1])(vectors)


@claim(
    "dynamics.hessian",
    topic=TOPIC,
    source=SECTION,
    statement=(
        "H·W = −∇L and H(cW) = c⁻²H(W) for scale-invariant losses; under layer norm H·(𝟏γᵀ) = 0 exactly, and along W "
        "only where the gradient is zero."
    ),
    formula=r"\nabla^2L\cdot W = -\nabla L,\quad \nabla^2L(cW) = c^{-2}\nabla^2L(W)",
    assumptions=("ε = 0",),
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def hessian(problem: Problem):
    """Hessian-vector products by automatic differentiation."""
    net = network(problem)
    gamma = problem.normal("gamma", 1, net.inputs.shape[1])
    direction = problem.normal("direction", *net.params["weights"].shape)

    W = net.params["weights"]
    vectors = np.stack([W, np.broadcast_to(gamma, W.shape), direction])
    for method in INVARIANT:
        gradient, (radial, shift, generic) = map(np.asarray, hessian_products(net, vectors, method))
        far_away = net._replace(params=scaled(net.params, 3.0))
        far = np.asarray(hessian_products(far_away, vectors, method)[1])[2]
        yield agree(f"{TITLES[method]}: H·W and −∇L", radial, -gradient)
        yield agree(f"{TITLES[method]}: H(3W)·v and H(W)·v/9", far, generic / 9)
        size = float(np.max(np.abs(generic)))
        if method == "ln":
            yield vanishes("Layer norm: H·(𝟏γᵀ)", shift, scale=size)
        else:
            yield differ(f"{TITLES[method]}: H·(𝟏γᵀ) is not zero", jnp.asarray(shift) / size, np.zeros_like(shift))


def _hessian_by_expansion() -> bool:
    """H·W + ∇L and H·(𝟏γᵀ) at a rational W, coordinate by coordinate, for a quadratic loss of n, rational in W."""
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


@hessian.proof()
def hessian_proof() -> Proof:
    """H(W)·W = −∇L, H(cW) = c⁻²H(W); for layer norm H·(𝟏γᵀ) = 0."""
    V, s, r, c = field("V"), *sp.symbols("s r", real=True), WEIGHT_FACTOR
    mixed = smooth(s / c, r / c, 0, 0).diff(s, r).subs({s: 0, r: 0}) - smooth(0, 0, 1, 1) / c**2
    return Proof(
        r"\nabla^2L(W)\cdot W = -\nabla L,\quad \nabla^2L(cW) = c^{-2}\nabla^2L(W),\quad "
        r"\nabla^2L\cdot(\mathbf{1}\gamma^\top) = 0\ (LN)",
        (
            invariance(SCALING, *INVARIANT_METHODS),
            invariance(SHIFT, LAYER_NORM),
            follows("hessian"),
            together(
                "where (Dξ)V = V for the scale, and 0 for the shift",
                tangent_step(SCALING, V, V),
                tangent_step(SHIFT, V, lambda l, d: sp.S.Zero),
            ),
            expanded(
                "L(cW + sV + rU) = L(W + (s/c)V + (r/c)U), so second derivatives are divided by c²",
                r"\nabla^2L(cW) = c^{-2}\nabla^2L(W)",
                mixed,
            ),
            fact(
                "The same at three units and two inputs, a quadratic loss, all second derivatives",
                r"\nabla^2L\cdot W + \nabla L = 0",
                _hessian_by_expansion,
            ),
        ),
        (SCALE_FREE,),
    )


@claim(
    "dynamics.epsilon",
    topic=TOPIC,
    source=SECTION,
    statement="For any ε the radial part of the gradient is that of ε: ⟨W, ∇L⟩ = −2ε ∂L/∂ε.",
    formula=r"\langle W,\nabla_WL\rangle = -2\epsilon\,\partial L/\partial\epsilon",
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def epsilon(problem: Problem):
    """∂L/∂ε by central differences, which share nothing with the gradient by W."""
    net = network(problem)
    kinds = {
        "bn": normalizers.BatchNorm,
        "wn": normalizers.WeightNorm,
        "ln": normalizers.LayerNorm,
        "rms": normalizers.RMSNorm,
    }
    eps, step = 0.3, 1e-4
    for method, kind in kinds.items():
        ahead, behind = (compiled_loss(*net, kind(eps=e)) for e in (eps + step, eps - step))
        slope = (float(ahead) - float(behind)) / (2 * step)
        along = np.asarray(compiled_gradient(*net, kind(eps=eps))["weights"]) * np.asarray(net.params["weights"])
        yield agree(f"{TITLES[method]}, ε = {eps}", along.sum()[None], np.array([-2 * eps * slope]), tol=1e-6)


EPS = sp.Symbol("epsilon", positive=True)
LOSS = field(r"\ell")


@epsilon.proof()
def epsilon_proof() -> Proof:
    """⟨W, ∇L⟩ = −2ε ∂L/∂ε: outputs are homogeneous of degree zero in (W, √ε)."""
    steps = (
        equality(
            f"{m.name}: the derivative along W is −2ε times that by ε, at every output",
            LOSS(n, i) * GAIN(i) * along(m, RADIAL, EPS),
            -2 * EPS * LOSS(n, i) * GAIN(i) * m(LAYER, eps=EPS).diff(EPS),
            r"\ell_{ni}\,dz_{ni}[W]",
        )
        for m in INVARIANT_METHODS
    )
    return Proof(r"\langle W,\nabla_WL\rangle = -2\epsilon\,\partial L/\partial\epsilon", tuple(steps))


@claim(
    "dynamics.ln_backward",
    topic=TOPIC,
    source="Section 3",
    statement="The length of layer norm's backward pass is known: a projection of δ = g ⊙ ∂L/∂z, over σ.",
    formula=r"\|\partial L/\partial a\|^2 = \sigma^{-2}(\|\delta\|^2 - (1^\top\delta)^2/H - (n^\top\delta)^2/H)",
    assumptions=("ε = 0", "σ > 0"),
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def ln_backward(problem: Problem):
    """Automatic differentiation on the data, for a random δ; as an equality, not a bound."""
    net = network(problem)
    a = net.inputs @ net.params["weights"].T
    delta = problem.normal("delta", *a.shape)

    def normalized(a):
        u = a - jnp.mean(a, 1, keepdims=True)
        return u / jnp.sqrt(jnp.mean(jnp.square(u), 1, keepdims=True))

    @jax.jit
    def both(a, delta):
        n, pull = jax.vjp(normalized, a)
        return n, *pull(delta)

    n, back = both(a, delta)
    units, variance = a.shape[1], jnp.var(a, 1)
    predicted = (
        jnp.sum(jnp.square(delta), 1) - jnp.sum(delta, 1) ** 2 / units - jnp.sum(n * delta, 1) ** 2 / units
    ) / variance
    yield agree("‖∂L/∂a‖² of every sample", jnp.sum(jnp.square(back), 1), predicted)
    yield differ("without the two projections", jnp.sum(jnp.square(delta), 1) / variance, predicted)


def _normalized(a: Field, l) -> Expr:
    return (a(l) - mean(a, H)) / sqrt(mean(lambda j: (a(j) - mean(a, H)) ** 2, H))


@ln_backward.proof()
def ln_backward_proof() -> Proof:
    """The backward pass of layer norm is a projection over σ, and its length follows."""
    a, da, delta = field("a"), field("v"), field("delta")
    u = lambda l: a(l) - mean(a, H)
    sigma = sqrt(mean(lambda l: u(l) ** 2, H))
    output = lambda l: u(l) / sigma
    normal, scale = field("n"), sp.Symbol(r"\sigma")
    letters = {"n": output, r"\sigma": sigma}
    moved = lambda l: derivative(lambda t: _normalized(lambda j: a(j) + t * da(j), l))
    along_n = lambda l: normal(l) * mean(lambda j: normal(j) * delta(j), H)
    back = lambda l: (delta(l) - mean(delta, H) - along_n(l)) / scale
    norm = total(lambda l: back(l) ** 2, H)
    stated = (
        total(lambda l: delta(l) ** 2, H) - total(delta, H) ** 2 / H - total(lambda l: normal(l) * delta(l), H) ** 2 / H
    ) / scale**2
    return Proof(
        r"\|\partial L/\partial a\|^2 = "
        r"\sigma^{-2}\left(\|\delta\|^2 - (\mathbf{1}^\top\delta)^2/H - (n^\top\delta)^2/H\right),\ "
        r"\delta = g\odot\partial L/\partial z",
        (
            equality(
                "⟨δ, dn[v]⟩ = ⟨∂L/∂a, v⟩ gives the backward pass",
                total(lambda l: delta(l) * moved(l), H),
                total(lambda l: back(l) * da(l), H),
                r"\langle\delta, dn[v]\rangle",
                letters,
            ),
            equality("and its squared length", norm, stated, short=letters),
        ),
        (Assumption("positive scale", r"\sigma > 0,\ \epsilon = 0"),),
    )


SGD_RATE, SMALL_RATE, MOMENTUM_BETA, WEIGHT_DECAY = 0.3, 0.1, 0.9, 0.05
"""Rates of the optimizers below, β of momentum, and λ of weight decay."""

SGD = optax.sgd(SGD_RATE)
MOMENTUM = optax.sgd(SMALL_RATE, momentum=MOMENTUM_BETA)
DECAYED = optax.chain(optax.add_decayed_weights(WEIGHT_DECAY), optax.sgd(SMALL_RATE))
ADAM = optax.adam(0.02)
"""One object each, so that claims about the same optimizer run the same program."""


@partial(jax.jit, static_argnums=1)
def _run(net: Network, optimizer: optax.GradientTransformation):
    def record(params, gradients, after, state):
        trace = optax.tree.get(state, "trace")
        buffer = gradients["weights"] if trace is None else trace["weights"]
        return params["weights"], after["weights"], gradients["weights"], buffer

    return train(net, optimizer, net.params, record)


def _norms(problem: Problem, optimizer: optax.GradientTransformation) -> tuple[np.ndarray, ...]:
    """Weights before and after each step, gradients, and momentum buffers."""
    return tuple(map(np.asarray, _run(network(problem), optimizer)))


def _squared(values: np.ndarray) -> np.ndarray:
    return np.sum(np.square(values), (1, 2))


@claim(
    "dynamics.sgd_norm_growth",
    topic=TOPIC,
    source=SECTION,
    statement="Under SGD the norm of scale-invariant weights grows with every step: ‖w⁺‖² = ‖w‖² + η²‖∇‖².",
    formula=r"\|w^+\|^2 = \|w\|^2 + \eta^2\|\nabla L\|^2",
    assumptions=("ε = 0", "no weight decay"),
    expected=Verdict.HOLDS,
)
def sgd_norm_growth(problem: Problem):
    """Growth over 60 steps on minibatches, summed so that it is not lost in rounding."""
    rate = SGD_RATE
    before, after, g, _ = _norms(problem, SGD)
    growth = _squared(after) - _squared(before[:1])
    predicted = rate**2 * np.cumsum(_squared(g))
    steps = np.arange(1, len(growth) + 1)
    curves = {"growth of ‖w‖²": (steps, growth), "η² Σ ‖∇‖²": (steps, predicted)}
    yield agree("growth of ‖w‖² since the start", growth, predicted, tol=1e-11, curves=curves)
    yield differ("the norm does grow", _squared(after)[-1:], _squared(before)[:1])


@sgd_norm_growth.proof()
def sgd_norm_growth_proof() -> Proof:
    """A gradient step lengthens the weights by Pythagoras."""
    w, v = field("w"), field("v")
    gradient = perpendicular(v, w)
    return Proof(
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
                "so with r = ∇L the squared norm grows by that of the step",
                dot(minus(w, RATE, field("r")), minus(w, RATE, field("r"))),
                dot(w, w) + RATE**2 * dot(field("r"), field("r")),
                short={"r": gradient},
            ),
        ),
        (SCALE_FREE,),
    )


@claim(
    "dynamics.momentum_norm_growth",
    topic=TOPIC,
    source="Section 5.2.2; arXiv 2006.08217",
    statement="Momentum makes the norm grow faster: by η²‖p‖² and twice the discounted buffers of the past.",
    formula=r"\|w_{t+1}\|^2 = \|w_t\|^2 + \eta^2\|p_t\|^2 + 2\eta^2\sum_{k<t}\beta^{t-k}\|p_k\|^2",
    assumptions=("ε = 0", "no weight decay", "the buffer starts at zero"),
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def momentum_norm_growth(problem: Problem):
    """optax's momentum, whose buffers are read from its state."""
    rate, beta = SMALL_RATE, MOMENTUM_BETA
    before, after, _, p = _norms(problem, MOMENTUM)
    sizes = _squared(p)
    t, k = np.arange(len(sizes))[:, None], np.arange(len(sizes))[None, :]
    memory = np.where(k < t, beta ** np.where(k < t, t - k, 0).astype(sizes.dtype), 0)
    predicted = np.cumsum(rate**2 * (sizes + 2 * memory @ sizes))
    growth = _squared(after) - _squared(before[:1])
    yield agree("growth of ‖w‖² since the start", growth, predicted, tol=1e-11)
    yield differ("without the past buffers", np.cumsum(rate**2 * sizes), predicted)


@momentum_norm_growth.proof()
def momentum_norm_growth_proof() -> Proof:
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
        r"\|w_{t+1}\|^2 = \|w_t\|^2 + \eta^2\|p_t\|^2 + 2\eta^2\sum_{k<t}\beta^{t-k}\|p_k\|^2,\quad "
        r"p_t = \beta p_{t-1} + \nabla L(w_t)",
        (
            *radial_steps(),
            equality(
                "With w_t = w − ηp and ∇L ⊥ w_t, the buffer p_t = βp + ∇L has this product with the weights",
                dot(now, buffer),
                BETA * (dot(w, p_) - RATE * dot(p_, p_)),
                r"\langle w_t, p_t\rangle",
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


@claim(
    "dynamics.ln_row_mean",
    topic=TOPIC,
    source=SECTION,
    statement=(
        "Under layer norm the mean row of W is conserved by SGD and momentum, shrinks as (1−ηλ)ᵗ under weight decay, "
        "and is not conserved by Adam."
    ),
    formula=r"m = 1^\top W/H:\quad m_{t+1} = m_t",
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def ln_row_mean(problem: Problem):
    """Mean rows after 60 steps of optax's optimizers."""
    rate, decay = SMALL_RATE, WEIGHT_DECAY
    for name, optimizer in {"SGD": optax.sgd(rate), "momentum": MOMENTUM, "weight decay": DECAYED}.items():
        before, after, _, _ = _norms(problem, optimizer)
        factor = (1 - rate * decay) ** len(after) if name == "weight decay" else 1.0
        yield agree(f"{name}: mean row at the end", np.mean(after[-1], 0), factor * np.mean(before[0], 0))
    before, after, _, _ = _norms(problem, ADAM)
    yield differ("Adam: mean row at the end", np.mean(after[-1], 0), np.mean(before[0], 0))


@ln_row_mean.proof()
def ln_row_mean_proof() -> Proof:
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
        r"m = \mathbf{1}^\top W/H:\quad m_{t+1} = m_t \text{ (SGD, momentum)},\quad "
        r"m_{t+1} = (1-\eta\lambda)m_t \text{ (weight decay)}",
        (
            invariance(SHIFT, LAYER_NORM),
            follows("orthogonality", "so rows of its gradient sum to zero, since ξW = 𝟏γᵀ for any γ"),
            equality("An arbitrary matrix less its mean row is such a gradient", row_mean(gradient), 0),
            equality(
                "A step with momentum conserves the mean row",
                row_mean(step),
                row_mean(W),
                r"\operatorname{mean}_i W'_{id}",
            ),
            equality(
                "and its buffer keeps mean row zero", row_mean(lambda l, d: BETA * buffer(l, d) + gradient(l, d)), 0
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


@claim(
    "dynamics.angle",
    topic=TOPIC,
    source="Section 5.2.2; arXiv 1803.01814",
    statement=(
        "A step of SGD turns the weights by arctan(η‖∇‖/‖w‖), and moves their direction as a step of length η/‖w‖² on "
        "the unit sphere."
    ),
    formula=r"\hat u^+ = \hat u - \tfrac{\eta}{\|w\|^2}\nabla L(\hat u) + O(\eta^2)",
    assumptions=("ε = 0",),
    expected=Verdict.HOLDS,
)
def angle(problem: Problem):
    """Angles along training; and the error of the step on the sphere, which falls as η²."""
    rate = SGD_RATE
    before, after, g, _ = _norms(problem, SGD)
    cosine = np.sum(before * after, (1, 2)) / np.sqrt(_squared(before) * _squared(after))
    yield agree("cosine of the angle", cosine, 1 / np.sqrt(1 + rate**2 * _squared(g) / _squared(before)))
    net = network(problem)
    size = jnp.linalg.norm(net.params["weights"])
    slope = jax.jit(jax.grad(loss))
    at_unit = slope(scaled(net.params, 1 / size), net.inputs, net.labels)["weights"]
    at_w = slope(net.params, net.inputs, net.labels)["weights"]
    unit = net.params["weights"] / size

    def error(rate):
        moved = net.params["weights"] - rate * at_w
        return jnp.linalg.norm(moved / jnp.linalg.norm(moved) - (unit - rate / size**2 * at_unit))

    errors = jnp.array([error(rate) for rate in (0.02, 0.01)])
    yield agree("error at η and at η/2: a ratio of 4", errors[:1], 4 * errors[1:], tol=1e-4)


@angle.proof()
def angle_proof() -> Proof:
    """The angle of a step, the effective learning rate, and the role of weight decay."""
    w, v = field("w"), field("v")
    gradient = perpendicular(v, w)
    r = field("r")
    after = minus(w, RATE, r)
    cosine = dot(w, after) ** 2 / (dot(w, w) * dot(after, after))
    tangent = RATE**2 * dot(r, r) / dot(w, w)
    direction = derivative(lambda t: (w(d) - t * gradient(d)) / sqrt(dot(minus(w, t, gradient), minus(w, t, gradient))))
    decay = lambda weights, strength: strength * dot(weights, weights)
    return Proof(
        r"\tan\angle(w, w^+) = \eta\|\nabla L\|/\|w\|,\quad "
        r"\hat u^+ = \hat u - \frac{\eta}{\|w\|^2}\nabla L(\hat u) + O(\eta^2),\quad "
        r"L_\lambda(\alpha w) = L_{\lambda\alpha^2}(w)",
        (
            *gradient_scaling(),
            equality(
                "cos² of the angle is 1/(1 + tan²) with tan = η‖∇L‖/‖w‖ and r = ∇L",
                cosine,
                1 / (1 + tangent),
                short={"r": gradient},
            ),
            equality(
                "To first order in η the direction û moves by −∇L(w)/‖w‖ = −∇L(û)/‖w‖²",
                direction,
                -r(d) / sqrt(dot(w, w)),
                r"\hat u'_{d}",
                {"r": gradient},
            ),
            equality(
                "Weight decay is the only term that sees the scale",
                decay(lambda d: WEIGHT_FACTOR * w(d), DECAY),
                decay(w, DECAY * WEIGHT_FACTOR**2),
                r"\lambda\|cw\|^2",
            ),
        ),
        (SCALE_FREE,),
    )


@claim(
    "dynamics.dyt",
    topic=TOPIC,
    source="beyond the paper",
    statement=(
        "Dynamic tanh, tanh(αWx), is no normalization: moving along W is moving along α, and gradient flow conserves "
        "‖W‖² − α²."
    ),
    formula=r"\langle W,\partial_WL\rangle = \alpha\,\partial_\alpha L",
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def dyt(problem: Problem):
    """Both derivatives; and the drift of ‖W‖² − α² over unit time, which halves with the step."""
    net = network(problem)

    def value(weights, alpha):
        outputs = jnp.tanh(alpha * net.inputs @ weights.T) @ net.params["readout"].T
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(outputs, net.labels))

    W, alpha = net.params["weights"], jnp.asarray(0.7, net.inputs.dtype)
    slopes = jax.jit(jax.grad(value, (0, 1)))
    by_weights, by_alpha = slopes(W, alpha)
    yield agree("⟨W, ∂_W⟩ and α∂_α", jnp.sum(W * by_weights)[None], (alpha * by_alpha)[None])

    @jax.jit
    def flow(steps):
        def step(_, carry):
            W, alpha = carry
            g, a = slopes(W, alpha)
            return W - g / steps, alpha - a / steps

        return jax.lax.fori_loop(0, steps, step, (W, alpha))

    conserved = [jnp.sum(jnp.square(w)) - a**2 for w, a in (flow(jnp.asarray(steps)) for steps in (400, 800))]
    start = jnp.sum(jnp.square(W)) - alpha**2
    yield agree(
        "‖W‖² − α², extrapolated to a step of zero", (2 * conserved[1] - conserved[0])[None], start[None], tol=1e-6
    )
    moved = flow(jnp.asarray(400))
    yield differ("while both change", moved[1][None], alpha[None])


@dyt.proof()
def dyt_proof() -> Proof:
    """DyT: weights and α are redundant, and gradient flow conserves ‖W‖² − α²."""
    alpha = sp.Symbol("alpha", real=True)
    output = lambda L, a=alpha: sp.tanh(a * L.a(n, i))
    radial = derivative(lambda t: output(LAYER.towards(RADIAL, t)))
    by_alpha = output(LAYER).diff(alpha)
    flow = -2 * LOSS(n, i) * radial + 2 * alpha * LOSS(n, i) * by_alpha
    halved = Layer(lambda l, d: LAYER.W(l, d) / WEIGHT_FACTOR, LAYER.X)
    return Proof(
        r"z = \tanh(\alpha Wx):\ \langle W,\partial_WL\rangle = \alpha\,\partial_\alpha L,\quad "
        r"\tfrac{d}{dt}(\|W\|^2 - \alpha^2) = 0",
        (
            equality("The output depends on αW alone", output(halved, WEIGHT_FACTOR * alpha), output(LAYER)),
            equality("so moving along W is moving along α", radial, alpha * by_alpha, r"dz[W]"),
            equality(
                "Under gradient flow 2⟨W, Ẇ⟩ − 2αα̇ vanishes, at every output",
                flow,
                0,
                r"\partial_t(\|W\|^2 - \alpha^2)",
            ),
        ),
    )


@partial(jax.jit, static_argnames="method")
def moved_logits(net: Network, direction: Parameters, method: str) -> Float[Array, "N C"]:
    """The derivative of the outputs along a direction."""
    return jax.jvp(lambda p: logits(p, net.inputs, method), (net.params,), (direction,))[1]


@claim(
    "dynamics.ggn_readout",
    topic=TOPIC,
    source="Section 5; arXiv 1810.12281",
    statement=(
        "The Jacobian vanishes along scale-invariant weights, so the Gauss–Newton length of θ is that of the rest."
    ),
    formula=r"J\cdot W = 0 \Rightarrow \theta^\top G\theta = \theta_{rest}^\top G\,\theta_{rest}",
    assumptions=("ε = 0",),
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def ggn_readout(problem: Problem):
    """Forward derivatives of the outputs along all of θ, along W, and along the rest."""
    net = network(problem)
    zeros = jax.tree.map(np.zeros_like, net.params)
    directions = net.params, zeros | {"weights": net.params["weights"]}, net.params | {"weights": zeros["weights"]}
    for method in INVARIANT:
        whole, weights, rest = (np.asarray(moved_logits(net, v, method)) for v in directions)
        yield vanishes(f"{TITLES[method]}: J·W", weights, scale=float(np.max(np.abs(whole))))
        yield agree(f"{TITLES[method]}: J·θ and J·(the rest)", whole, rest)


@ggn_readout.proof()
def ggn_readout_proof() -> Proof:
    """J·W = 0, as the network reads its weights through n alone."""
    u, v = sp.symbols("u v", real=True)
    return Proof(
        r"J\cdot W = 0 \Rightarrow \theta^\top G\theta = \theta_{rest}^\top G\,\theta_{rest}",
        (
            *radial_steps("null"),
            expanded("and the rest remains of J·θ", r"J\theta = J\theta_{rest}", (u + v - v) ** 2 - u**2),
        ),
        (SCALE_FREE,),
    )


@claim(
    "dynamics.ln_coordinate",
    topic=TOPIC,
    source="Section 3",
    statement="One coordinate of layer norm is a saturating function of its own summed input against the others.",
    formula=r"n_k = \sqrt{H-1}\,x/\sqrt{Hs_{-k}^2 + x^2},\quad x = a_k - \mathrm{mean}_{-k}",
    assumptions=("ε = 0",),
    read=Read.OWN,
    expected=Verdict.HOLDS,
    why_numeric="A line of algebra, checked on the data for every unit.",
)
def ln_coordinate(problem: Problem):
    """Mean and variance of the other units, taken one unit at a time; and the bound √(H−1)."""
    net = network(problem)
    a = net.inputs @ net.params["weights"].T
    n = NORMALIZERS["ln"](net.params["weights"], net.inputs)
    units = a.shape[1]
    for k in (0, units - 1):
        others = jnp.delete(a, k, 1)
        x = a[:, k] - jnp.mean(others, 1)
        predicted = jnp.sqrt(units - 1.0) * x / jnp.sqrt(units * jnp.var(others, 1) + x**2)
        yield agree(f"unit {k}", n[:, k], predicted)

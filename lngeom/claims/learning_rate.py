"""Learning dynamics of normalized layers: identities of the gradient and of the norm, held along real training."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lngeom import normalizers
from lngeom.claims._evidence import Verdict, agree, differ, vanishes
from lngeom.claims._problem import NORMALIZERS, TITLES, Problem
from lngeom.claims._registry import claim
from lngeom.claims._training import logits, loss, network, scaled, sgd_path, train

TOPIC = "learning-rate"
INVARIANT = ("bn", "wn", "ln", "rms")
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
    expected=Verdict.HOLDS,
)
def orthogonality(problem: Problem):
    """Along 60 steps of SGD; and what must not vanish: layer norm by rows, batch norm's sum over rows."""
    for method in INVARIANT:
        path = sgd_path(network(problem), 0.3, method)
        w, g = path.params["weights"], path.gradients["weights"]
        rows, columns = jnp.sum(w * g, 2), jnp.sum(g, 1)
        scale = float(jnp.max(jnp.linalg.norm(w, axis=(1, 2)) * jnp.linalg.norm(g, axis=(1, 2))))
        yield vanishes(f"{TITLES[method]}: ⟨W, ∇⟩ at every step", jnp.sum(rows, 1), scale=scale)
        if method in {"bn", "wn"}:
            yield vanishes(f"{TITLES[method]}: ⟨w_i, ∇_i⟩ of every row", rows, scale=scale)
        else:
            yield differ(f"{TITLES[method]}: not of every row", rows / scale, jnp.zeros_like(rows))
        size = float(jnp.max(jnp.abs(g)))
        if method == "ln":
            yield vanishes("Layer norm: 1ᵀ∇ at every step", columns, scale=size)
        else:
            yield differ(f"{TITLES[method]}: 1ᵀ∇ does not vanish", columns / size, jnp.zeros_like(columns))


@claim(
    "dynamics.hessian",
    topic=TOPIC,
    source=SECTION,
    statement=(
        "H·W = −∇L and H(cW) = c⁻²H(W) for scale-invariant losses; under layer norm H·(1γᵀ) = 0 exactly, and along W "
        "only where the gradient is zero."
    ),
    formula=r"\nabla^2L\cdot W = -\nabla L,\quad \nabla^2L(cW) = c^{-2}\nabla^2L(W)",
    assumptions=("ε = 0",),
    expected=Verdict.HOLDS,
)
def hessian(problem: Problem):
    """Hessian-vector products by automatic differentiation."""
    net = network(problem)
    gamma = jax.random.normal(problem.key("gamma"), (1, net.inputs.shape[1]), net.inputs.dtype)
    direction = jax.random.normal(problem.key("direction"), net.params["weights"].shape, net.inputs.dtype)

    for method in INVARIANT:

        @jax.jit
        def products(weights, vectors, method=method):
            slope = jax.grad(lambda w: loss(net.params | {"weights": w}, net.inputs, net.labels, method))
            return slope(weights), jax.vmap(lambda v: jax.jvp(slope, (weights,), (v,))[1])(vectors)

        W = net.params["weights"]
        vectors = jnp.stack([W, jnp.broadcast_to(gamma, W.shape), direction])
        gradient, (radial, shift, generic) = products(W, vectors)
        _, (_, _, far) = products(3.0 * W, vectors)
        yield agree(f"{TITLES[method]}: H·W and −∇L", radial, -gradient)
        yield agree(f"{TITLES[method]}: H(3W)·v and H(W)·v/9", far, generic / 9)
        size = float(jnp.max(jnp.abs(generic)))
        if method == "ln":
            yield vanishes("Layer norm: H·(1γᵀ)", shift, scale=size)
        else:
            yield differ(f"{TITLES[method]}: H·(1γᵀ) is not zero", shift / size, jnp.zeros_like(shift))


@claim(
    "dynamics.epsilon",
    topic=TOPIC,
    source=SECTION,
    statement="For any ε the radial part of the gradient is that of ε: ⟨W, ∇L⟩ = −2ε ∂L/∂ε.",
    formula=r"\langle W,\nabla_WL\rangle = -2\epsilon\,\partial L/\partial\epsilon",
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

        def value(weights, eps, kind=kind):
            return loss(net.params | {"weights": weights}, net.inputs, net.labels, kind(eps=eps))

        gradient = jax.jit(jax.grad(lambda w, value=value: value(w, eps)))(net.params["weights"])
        slope = (value(net.params["weights"], eps + step) - value(net.params["weights"], eps - step)) / (2 * step)
        radial = jnp.sum(gradient * net.params["weights"])
        yield agree(f"{TITLES[method]}, ε = {eps}", radial[None], -2 * eps * slope[None], tol=1e-6)


@claim(
    "dynamics.ln_backward",
    topic=TOPIC,
    source="Section 3",
    statement="The length of layer norm's backward pass is known: a projection of δ = g ⊙ ∂L/∂z, over σ.",
    formula=r"\|\partial L/\partial a\|^2 = \sigma^{-2}(\|\delta\|^2 - (1^\top\delta)^2/H - (n^\top\delta)^2/H)",
    assumptions=("ε = 0", "σ > 0"),
    expected=Verdict.HOLDS,
)
def ln_backward(problem: Problem):
    """Automatic differentiation on the data, for a random δ; as an equality, not a bound."""
    net = network(problem)
    a = net.inputs @ net.params["weights"].T
    delta = jax.random.normal(problem.key("delta"), a.shape, a.dtype)

    def normalized(a):
        u = a - jnp.mean(a, 1, keepdims=True)
        return u / jnp.sqrt(jnp.mean(jnp.square(u), 1, keepdims=True))

    n, pull = jax.vjp(normalized, a)
    (back,) = pull(delta)
    units, variance = a.shape[1], jnp.var(a, 1)
    predicted = (
        jnp.sum(jnp.square(delta), 1) - jnp.sum(delta, 1) ** 2 / units - jnp.sum(n * delta, 1) ** 2 / units
    ) / variance
    yield agree("‖∂L/∂a‖² of every sample", jnp.sum(jnp.square(back), 1), predicted)
    yield differ("without the two projections", jnp.sum(jnp.square(delta), 1) / variance, predicted)


def _norms(problem: Problem, optimizer: optax.GradientTransformation):
    """Weights before and after each step, gradients, and momentum buffers."""
    net = network(problem)

    def record(params, gradients, after, state):
        trace = optax.tree.get(state, "trace")
        buffer = gradients["weights"] if trace is None else trace["weights"]
        return params["weights"], after["weights"], gradients["weights"], buffer

    return jax.jit(lambda: train(net, optimizer, net.params, record))()


def _squared(values):
    return jnp.sum(jnp.square(values), (1, 2))


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
    rate = 0.3
    before, after, g, _ = _norms(problem, optax.sgd(rate))
    growth = _squared(after) - _squared(before[:1])
    predicted = rate**2 * jnp.cumsum(_squared(g))
    steps = np.arange(1, len(growth) + 1)
    curves = {"growth of ‖w‖²": (steps, np.asarray(growth)), "η² Σ ‖∇‖²": (steps, np.asarray(predicted))}
    yield agree("growth of ‖w‖² since the start", growth, predicted, tol=1e-11, curves=curves)
    yield differ("the norm does grow", _squared(after)[-1:], _squared(before)[:1])


@claim(
    "dynamics.momentum_norm_growth",
    topic=TOPIC,
    source="Section 5.2.2; arXiv 2006.08217",
    statement="Momentum makes the norm grow faster: by η²‖p‖² and twice the discounted buffers of the past.",
    formula=r"\|w_{t+1}\|^2 = \|w_t\|^2 + \eta^2\|p_t\|^2 + 2\eta^2\sum_{k<t}\beta^{t-k}\|p_k\|^2",
    assumptions=("ε = 0", "no weight decay", "the buffer starts at zero"),
    expected=Verdict.HOLDS,
)
def momentum_norm_growth(problem: Problem):
    """optax's momentum, whose buffers are read from its state."""
    rate, beta = 0.1, 0.9
    before, after, _, p = _norms(problem, optax.sgd(rate, momentum=beta))
    sizes = _squared(p)
    t, k = jnp.arange(len(sizes))[:, None], jnp.arange(len(sizes))[None, :]
    memory = jnp.where(k < t, beta ** jnp.where(k < t, t - k, 0).astype(sizes.dtype), 0)
    predicted = jnp.cumsum(rate**2 * (sizes + 2 * memory @ sizes))
    growth = _squared(after) - _squared(before[:1])
    yield agree("growth of ‖w‖² since the start", growth, predicted, tol=1e-11)
    yield differ("without the past buffers", jnp.cumsum(rate**2 * sizes), predicted)


@claim(
    "dynamics.ln_row_mean",
    topic=TOPIC,
    source=SECTION,
    statement=(
        "Under layer norm the mean row of W is conserved by SGD and momentum, shrinks as (1−ηλ)ᵗ under weight decay, "
        "and is not conserved by Adam."
    ),
    formula=r"m = 1^\top W/H:\quad m_{t+1} = m_t",
    expected=Verdict.HOLDS,
)
def ln_row_mean(problem: Problem):
    """Mean rows after 60 steps of optax's optimizers."""
    rate, decay = 0.1, 0.05
    optimizers = {
        "SGD": optax.sgd(rate),
        "momentum": optax.sgd(rate, momentum=0.9),
        "weight decay": optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate)),
    }
    for name, optimizer in optimizers.items():
        before, after, _, _ = _norms(problem, optimizer)
        factor = (1 - rate * decay) ** len(after) if name == "weight decay" else 1.0
        yield agree(f"{name}: mean row at the end", jnp.mean(after[-1], 0), factor * jnp.mean(before[0], 0))
    before, after, _, _ = _norms(problem, optax.adam(0.02))
    yield differ("Adam: mean row at the end", jnp.mean(after[-1], 0), jnp.mean(before[0], 0))


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
    rate = 0.3
    before, after, g, _ = _norms(problem, optax.sgd(rate))
    cosine = jnp.sum(before * after, (1, 2)) / jnp.sqrt(_squared(before) * _squared(after))
    yield agree("cosine of the angle", cosine, 1 / jnp.sqrt(1 + rate**2 * _squared(g) / _squared(before)))
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


@claim(
    "dynamics.dyt",
    topic=TOPIC,
    source="beyond the paper",
    statement=(
        "Dynamic tanh, tanh(αWx), is no normalization: moving along W is moving along α, and gradient flow conserves "
        "‖W‖² − α²."
    ),
    formula=r"\langle W,\partial_WL\rangle = \alpha\,\partial_\alpha L",
    expected=Verdict.HOLDS,
)
def dyt(problem: Problem):
    """Both derivatives; and the drift of ‖W‖² − α² over unit time, which halves with the step."""
    net = network(problem)

    def value(weights, alpha):
        outputs = jnp.tanh(alpha * net.inputs @ weights.T) @ net.params["readout"].T
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(outputs, net.labels))

    W, alpha = net.params["weights"], jnp.asarray(0.7, net.inputs.dtype)
    slopes = jax.grad(value, (0, 1))
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


@claim(
    "dynamics.ggn_readout",
    topic=TOPIC,
    source="Section 5; arXiv 1810.12281",
    statement=(
        "The Jacobian vanishes along scale-invariant weights, so the Gauss–Newton length of θ is that of the rest."
    ),
    formula=r"J\cdot W = 0 \Rightarrow \theta^\top G\theta = \theta_{rest}^\top G\,\theta_{rest}",
    assumptions=("ε = 0",),
    expected=Verdict.HOLDS,
    why_numeric="Follows from dynamics.orthogonality, which is proved.",
)
def ggn_readout(problem: Problem):
    """Forward derivatives of the outputs along all of θ, along W, and along the rest."""
    net = network(problem)
    zeros = jax.tree.map(jnp.zeros_like, net.params)
    for method in INVARIANT:

        @jax.jit
        def along(direction, method=method):
            return jax.jvp(lambda p: logits(p, net.inputs, method), (net.params,), (direction,))[1]

        whole, weights = along(net.params), along(zeros | {"weights": net.params["weights"]})
        rest = along(net.params | {"weights": zeros["weights"]})
        yield vanishes(f"{TITLES[method]}: J·W", weights, scale=float(jnp.max(jnp.abs(whole))))
        yield agree(f"{TITLES[method]}: J·θ and J·(the rest)", whole, rest)


@claim(
    "dynamics.ln_coordinate",
    topic=TOPIC,
    source="Section 3",
    statement="One coordinate of layer norm is a saturating function of its own summed input against the others.",
    formula=r"n_k = \sqrt{H-1}\,x/\sqrt{Hs_{-k}^2 + x^2},\quad x = a_k - \mathrm{mean}_{-k}",
    assumptions=("ε = 0",),
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

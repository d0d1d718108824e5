"""Weight decay is a learning rate that grows: two runs that are one function at every step.

In the proofs w and w̃ are a weight of the run with decay and of the run without, w = A w̃ before step t, and g̃ is the
gradient of the run without: the other one's is g̃/A. After the step it is w = αA w̃, if the optimizers' states belong
together; so by induction at every step.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import sympy as sp
from sympy import Expr, sqrt

from lngeom.claims import Problem, Verdict, agree, claim, differ
from lngeom.claims.context import Read
from lngeom.papers.training.equivalence import BETA1, BETA2, CORRECTION1, CORRECTION2, muon, norm, normalized_gd, sgd
from lngeom.papers.training.network import Network, Parameters, logits, network, partitioned, train
from lngeom.symbolic.proof import Assumption, Proof, Step, equality, expanded
from lngeom.symbolic.scale_free import BETA, DECAY, RATE, SCALE_FREE, gradient_scaling
from lngeom.symbolic.sums import d, field, i
from lngeom.training import equivalent_schedule

TOPIC = "learning-rate"
TOLERANCE = 1e-10


def exponential_runs(problem: Problem, name: str, base, converted, decay: float, rate, **settings):
    """Outputs with weight decay, and of the equivalent run without; and norms of the weights of both."""
    other = equivalent_schedule(name, rate, decay, without_weight_decay=True, **settings)
    given = name, base, converted, decay, rate, tuple(settings.items())
    (outputs, norms), (same, other_norms) = jax.tree.map(np.asarray, _both(network(problem), *given))
    return outputs, same, other_norms, norms * np.asarray(jax.vmap(other.norm_ratio)(np.arange(1, len(norms) + 1)))


@partial(jax.jit, static_argnums=range(1, 7))
def _both(net: Network, name: str, base, converted, decay: float, rate, settings: tuple[tuple[str, float], ...]):
    other = equivalent_schedule(name, rate, decay, without_weight_decay=True, **dict(settings))

    def start(state):
        if not other.initial_trace:
            return state
        trace = jax.tree.map(lambda w: other.initial_trace * w, net.params["weights"])
        return optax.tree.set(state, trace=optax.tree.get(state, "trace") | {"weights": trace})

    def record(params: Parameters, gradients, after: Parameters, state):
        return logits(after, net.inputs[:40]), jnp.linalg.norm(after["weights"])

    with_decay = train(net, partitioned(base(rate, decay)), net.params, record)
    return with_decay, train(net, partitioned(converted(other)), net.params, record, start=start)


_WARM_UP = optax.warmup_cosine_decay_schedule(0.0, 0.5, 10, 60)


def _warm_up(count):
    """optax's schedule on a float count: on an integer one it has single precision, whatever the parameters have."""
    return _WARM_UP(jnp.asarray(count, float))


EXPONENTIAL = {
    "sgd": (lambda rate, decay: sgd(rate, decay), lambda o: optax.sgd(o.learning_rate), 0.3, 0.02, {}),
    "sgd, warm-up and cosine": (
        lambda rate, decay: sgd(rate, decay),
        lambda o: optax.sgd(o.learning_rate),
        _warm_up,
        0.02,
        {},
    ),
    "momentum": (
        lambda rate, decay: sgd(rate, decay, 0.9),
        lambda o: optax.sgd(o.learning_rate, momentum=o.momentum),
        0.05,
        0.02,
        {"momentum": 0.9},
    ),
    "normalized_gd": (
        lambda rate, decay: normalized_gd(rate, decay, 0.0),
        lambda o: normalized_gd(o.learning_rate, 0.0, 0.0),
        0.05,
        0.5,
        {},
    ),
}
EXPONENTIAL_ADAPTIVE = {
    "adamw": (
        lambda rate, decay: optax.adamw(rate, 0.9, 0.99, eps=0.0, weight_decay=decay),
        lambda o: optax.adam(o.learning_rate, o.momentum, o.b2, eps=0.0),
        0.02,
        0.5,
        {"momentum": 0.9, "b2": 0.99},
    ),
    "lion": (
        lambda rate, decay: optax.lion(rate, 0.9, 0.99, weight_decay=decay),
        lambda o: optax.lion(o.learning_rate, o.momentum, o.b2, weight_decay=0.0),
        0.01,
        0.5,
        {"momentum": 0.9, "b2": 0.99},
    ),
    "muon": (
        lambda rate, decay: muon(rate, decay, 0.0, nesterov=False),
        lambda o: muon(o.learning_rate, 0.0, 0.0, o.momentum, nesterov=False),
        0.02,
        0.5,
        {"momentum": 0.9},
    ),
}


def _exponential_evidence(problem: Problem, cases):
    for title, (base, converted, rate, decay, settings) in cases.items():
        name = title.split(",")[0]
        found = exponential_runs(problem, name, base, converted, decay, rate, **settings)
        outputs, same, norms, predicted = found
        yield agree(f"{title}: outputs over {len(outputs)} steps", same, outputs, tol=TOLERANCE)
        yield agree(f"{title}: norms grow apart as predicted", norms, predicted, tol=TOLERANCE)
        yield differ(f"{title}: the run moves at all", outputs[-1], outputs[0])


@claim(
    "dynamics.exponential_learning_rate",
    topic=TOPIC,
    source="Section 5.2.2; arXiv 1910.07454",
    statement=(
        "Weight decay is an exponentially growing learning rate: without it, at η̃ₜ = ηα^(−2t−1), training is the same "
        "function at every step; with momentum β, α solves α² − (1+β−λη)α + β = 0, and with a schedule the rate is "
        "ηₜ/(AₜAₜ₊₁), Aₜ = Π(1−ηₛλ)."
    ),
    formula=r"\tilde\eta_t = \eta\,\alpha^{-2t-1},\quad \alpha = 1-\eta\lambda",
    assumptions=("the loss ignores the scale of W", "λη ≤ (1−√β)²"),
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def exponential_learning_rate(problem: Problem):
    """optax's optimizers over 60 steps; also that a rate which grows half as fast is another run."""
    yield from _exponential_evidence(problem, EXPONENTIAL)
    base, _, rate, decay, _ = EXPONENTIAL["sgd"]

    def slower(o):
        return optax.sgd(lambda count: rate * (o.learning_rate(count) / rate) ** 0.5)

    outputs, wrong, _, _ = exponential_runs(problem, "sgd", base, slower, decay, rate)
    yield differ("sgd: a rate that grows as the root of it", wrong[-1], outputs[-1])


@claim(
    "dynamics.exponential_adamw",
    topic=TOPIC,
    source="Section 5.2.2",
    statement=(
        "AdamW is Adam with a growing learning rate: β₁α, β₂α² and η̃ₜ = ηα^(−t−1) up to a constant and the ratio of "
        "the bias corrections, α = 1−ηλ; Lion and Muon have the same with their own memories."
    ),
    formula=r"\beta_1 \to \beta_1\alpha,\ \beta_2 \to \beta_2\alpha^2,\ \tilde\eta_t \propto \eta\,\alpha^{-t-1}",
    assumptions=("the loss ignores the scale of W", "ε = 0", "Muon without Nesterov's look-ahead"),
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def exponential_adamw(problem: Problem):
    """optax's own adamw, adam, lion and muon over 60 steps; also Adam with its β unchanged."""
    yield from _exponential_evidence(problem, EXPONENTIAL_ADAPTIVE)
    base, _, rate, decay, settings = EXPONENTIAL_ADAPTIVE["adamw"]
    wrong_memory = lambda o: optax.adam(o.learning_rate, 0.9, 0.99, eps=0.0)
    outputs, wrong, _, _ = exponential_runs(problem, "adamw", base, wrong_memory, decay, rate, **settings)
    yield differ("adam: β₁ and β₂ as they were", wrong[-1], outputs[-1])


SCALE, ALPHA = sp.symbols("A alpha", positive=True)
"""w/w̃ before the step, and what it is multiplied by in the step."""

OTHER_CORRECTIONS = sp.symbols("kappa_3 kappa_4", positive=True)
"""Bias corrections of both moments in the run without decay."""

WEIGHT, GRADIENT, BUFFER, FIRST = sp.symbols("w g p m", real=True)
SECOND = sp.Symbol("v", positive=True)
"""Of the run without decay: a weight, its gradient, its momentum, and its moments."""


def gradient_descent_steps(after: Expr = SCALE * (1 - RATE * DECAY), slower: Expr | int = 1) -> tuple[Step, ...]:
    """SGD and normalized gradient descent with any schedule, and SGD at a constant rate.

    Args:
        after: w/w̃ after the step.
        slower: what the growing rate is multiplied by; 1, or else the steps are false.

    Returns:
        The steps.
    """
    count = sp.Symbol("t", positive=True)
    shrunk = SCALE * WEIGHT * (1 - RATE * DECAY)
    return (
        expanded(
            "SGD: with η̃ = η/(A_t A_{t+1}) the ratio of the weights stays the product of 1 − ηλ",
            r"w - \eta(\tilde g/A + \lambda w) = A_{t+1}(\tilde w - \tilde\eta\tilde g)",
            shrunk - RATE * GRADIENT / SCALE - after * (WEIGHT - slower * RATE / (SCALE * after) * GRADIENT),
        ),
        expanded(
            "Normalized gradient descent, whose direction has no scale: with η̃ = η/A_{t+1}",
            r"w - \eta(\hat g + \lambda w) = A_{t+1}(\tilde w - \tilde\eta\hat g)",
            shrunk - RATE * GRADIENT - after * (WEIGHT - slower * RATE / after * GRADIENT),
        ),
        expanded(
            "At a constant η, A_t = αᵗ and η/(A_t A_{t+1}) is ηα^(−2t−1)",
            r"\frac{\eta}{\alpha^t\alpha^{t+1}} = \eta\,\alpha^{-2t-1}",
            sp.powsimp(RATE / (ALPHA**count * ALPHA ** (count + 1)) / (RATE * ALPHA ** (-2 * count - 1))) - slower,
        ),
    )


def momentum_steps(power: int = -2) -> tuple[Step, ...]:
    """SGD with momentum: α solves a quadratic, and the buffers differ by a multiple of the weights.

    Args:
        power: of A in η̃ = η A^power / α; −2, or else the steps are false.

    Returns:
        The steps.
    """
    x = sp.Symbol("x", positive=True)
    decay = (1 + BETA - ALPHA - BETA / ALPHA) / RATE  # where α² − (1 + β − λη)α + β = 0
    together = lambda buffer, weight, scale: buffer / scale + scale * weight * (1 - ALPHA) / (RATE * ALPHA)
    with_decay = BETA * together(BUFFER, WEIGHT, SCALE) + GRADIENT / SCALE + decay * SCALE * WEIGHT
    without = BETA * BUFFER + GRADIENT
    stepped = WEIGHT - RATE * SCALE**power / ALPHA * without
    return (
        expanded(
            "Momentum: if p = p̃/A + A w̃ (1 − α)/(ηα) before the step, the weights after it are αA times those without",
            r"w - \eta p^+ = \alpha A(\tilde w - \eta\alpha^{-1}A^{-2}\tilde p^+)",
            SCALE * WEIGHT - RATE * with_decay - ALPHA * SCALE * stepped,
        ),
        expanded(
            "and the buffers after it belong together in the same way",
            r"p^+ = \tilde p^+/(\alpha A) + \alpha A\tilde w^+(1-\alpha)/(\eta\alpha)",
            with_decay - together(without, stepped, ALPHA * SCALE),
        ),
        expanded(
            "A buffer p of zero at the start, where A = 1, is p̃ = −(1 − α)/(ηα) w̃",
            r"\tilde p_0 = -\frac{1-\alpha}{\eta\alpha}\tilde w_0",
            together(-(1 - ALPHA) / (RATE * ALPHA) * WEIGHT, WEIGHT, sp.S.One),
        ),
        expanded(
            "α is real where λη ≤ (1 − √β)²: the discriminant has the factors (1 ∓ √β)² − λη",
            r"(1+\beta-x)^2 - 4\beta = ((1-\sqrt\beta)^2-x)((1+\sqrt\beta)^2-x)",
            (1 + BETA - x) ** 2 - 4 * BETA - ((1 - sqrt(BETA)) ** 2 - x) * ((1 + sqrt(BETA)) ** 2 - x),
        ),
    )


@exponential_learning_rate.proof()
def exponential_learning_rate_proof() -> Proof:
    """One step of SGD, of normalized gradient descent and of momentum, and so by induction all."""
    return Proof(
        r"w_t = A_t\tilde w_t,\quad \tilde\eta_t = \eta_t/(A_tA_{t+1}),\ A_t = \prod_{s<t}(1-\eta_s\lambda);\quad "
        r"\tilde\eta_t = \eta\,\alpha^{-2t-1} \text{ with momentum}",
        (*gradient_scaling(), *gradient_descent_steps(), *momentum_steps()),
        (SCALE_FREE, Assumption("α is a root", r"\alpha^2 - (1+\beta-\lambda\eta)\alpha + \beta = 0")),
    )


def averaged(beta: Expr, other: Expr, moment: Expr, value: Expr, power: int) -> Step:
    """An average of gᵖ with β belongs to one with β̃: A^p times it is k times the other, k = (1 − β)/(1 − β̃).

    Args:
        beta: of the run with decay.
        other: β̃ of the run without: βα^p, or else the step is false.
        moment: of the run without, before the step.
        value: what is averaged, in the run without.
        power: p.

    Returns:
        The step.
    """
    k = (1 - beta) / (1 - other)
    before = k * moment / (SCALE / ALPHA) ** power
    after = beta * before + (1 - beta) * value / SCALE**power
    return expanded(
        f"The {'first' if power == 1 else 'second'} moment times {'A' if power == 1 else 'A²'} is k = (1 − β)/(1 − β̃) "
        "times that of the run without decay",
        rf"A^{power}m^+ = \frac{{1-{sp.latex(beta)}}}{{1-{sp.latex(other)}}}\tilde m^+",
        after * SCALE**power - k * (other * moment + (1 - other) * value),
    )


def adamw_steps(memories: tuple[Expr, Expr] = (BETA1 * ALPHA, BETA2 * ALPHA**2)) -> tuple[Step, ...]:
    """AdamW and Adam with other memories and a growing rate."""
    other1, other2 = memories
    k1, k2 = sp.symbols("k_1 k_2", positive=True)
    update = (k1 * FIRST / SCALE / CORRECTION1) / (sqrt(k2 * SECOND / CORRECTION2) / SCALE)
    other = (FIRST / OTHER_CORRECTIONS[0]) / sqrt(SECOND / OTHER_CORRECTIONS[1])
    ratio = OTHER_CORRECTIONS[0] / CORRECTION1 * sqrt(CORRECTION2 / OTHER_CORRECTIONS[1])
    return (
        averaged(BETA1, other1, FIRST, GRADIENT, 1),
        averaged(BETA2, other2, SECOND, GRADIENT**2, 2),
        expanded(
            "AdamW: with these constants k₁ and k₂ the updates differ by k₁/√k₂ and the ratio of the bias corrections",
            r"\frac{\hat m}{\sqrt{\hat v}} = \frac{k_1}{\sqrt{k_2}}\,\frac{\tilde\kappa_1}{\kappa_1}"
            r"\sqrt{\kappa_2/\tilde\kappa_2}\ \frac{\hat{\tilde m}}{\sqrt{\hat{\tilde v}}}",
            update - k1 / sqrt(k2) * ratio * other,
        ),
    )


def last_step(rate: Expr = RATE / (ALPHA * SCALE)) -> Step:
    """The weights after the step, where the update is the same: with η̃ = η/(αA)."""
    return expanded(
        "Where the update u is the same, w = A w̃ becomes w = αA w̃ with η̃ = η/(αA) = ηα^(−t−1), α = 1 − ηλ",
        r"\alpha w - \eta u = \alpha A(\tilde w - \tilde\eta u)",
        ALPHA * SCALE * WEIGHT - RATE * GRADIENT - ALPHA * SCALE * (WEIGHT - rate * GRADIENT),
    )


LION_RATIO = BETA1 * ALPHA / (1 - BETA1) * (1 - BETA2) / (1 - BETA2 * ALPHA)
"""β̃₁/(1 − β̃₁) of Lion without decay."""


def lion_step(ratio: Expr = LION_RATIO) -> Step:
    """Lion's sign is that of the run without decay, at a β̃₁ for which both mixtures have one ratio.

    Args:
        ratio: β̃₁/(1 − β̃₁); `LION_RATIO`, or else the step is false.

    Returns:
        The step.
    """
    moment = (1 - BETA2) / (1 - BETA2 * ALPHA) * FIRST / (SCALE / ALPHA)
    mixture = BETA1 * moment + (1 - BETA1) * GRADIENT / SCALE
    return expanded(
        "Lion: at r = β̃₁/(1 − β̃₁) = β₁α/(1 − β₁) · (1 − β₂)/(1 − β₂α) the mixtures differ by a positive factor, and "
        "not in sign",
        r"A(\beta_1m + (1-\beta_1)g) = (1-\beta_1)(r\tilde m + \tilde g)",
        SCALE * mixture - (1 - BETA1) * (ratio * FIRST + GRADIENT),
    )


@exponential_adamw.proof()
def exponential_adamw_proof() -> Proof:
    """One step of AdamW, of Lion and of Muon, and so by induction all."""
    M, factor = field("M"), sp.Symbol("k", positive=True)
    larger = lambda l, d: factor * M(l, d)
    return Proof(
        r"w_t = \alpha^t\tilde w_t:\quad \beta_1 \to \beta_1\alpha,\ \beta_2 \to \beta_2\alpha^2,\ "
        r"\tilde\eta_t = \eta\,\alpha^{-t-1}\frac{k_1}{\sqrt{k_2}}\frac{\tilde\kappa_1}{\kappa_1}"
        r"\sqrt{\kappa_2/\tilde\kappa_2}",
        (
            *gradient_scaling(),
            *adamw_steps(),
            last_step(),
            lion_step(),
            equality(
                "Muon: the average, divided by its norm, does not see a factor, nor does what is computed from it",
                larger(i, d) / norm(larger),
                M(i, d) / norm(M),
            ),
        ),
        (SCALE_FREE, Assumption("no ε, constant η", r"\epsilon = 0,\ \alpha = 1 - \eta\lambda > 0")),
    )

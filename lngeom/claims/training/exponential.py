"""Weight decay is a learning rate that grows: two runs that are one function at every step."""

import jax
import jax.numpy as jnp
import optax

from lngeom.claims import Problem, Verdict, agree, claim, differ
from lngeom.claims.training.equivalence import muon, normalized_gd, sgd
from lngeom.claims.training.network import Parameters, logits, network, partitioned, train
from lngeom.training import equivalent_schedule

TOPIC = "learning-rate"
TOLERANCE = 1e-10


def exponential_runs(problem: Problem, name: str, base, converted, decay: float, rate, **settings):
    """Outputs with weight decay, and of the equivalent run without; and norms of the weights of both."""
    net = network(problem)
    other = equivalent_schedule(name, rate, decay, without_weight_decay=True, **settings)

    def start(state):
        if not other.initial_trace:
            return state
        trace = jax.tree.map(lambda w: other.initial_trace * w, net.params["weights"])
        return optax.tree.set(state, trace=optax.tree.get(state, "trace") | {"weights": trace})

    def record(params: Parameters, gradients, after: Parameters, state):
        return logits(after, net.inputs[:40]), jnp.linalg.norm(after["weights"])

    @jax.jit
    def both():
        with_decay = train(net, partitioned(base(rate, decay)), net.params, record)
        return with_decay, train(net, partitioned(converted(other)), net.params, record, start=start)

    (outputs, norms), (same, other_norms) = both()
    steps = jnp.arange(1, len(norms) + 1)
    return outputs, same, other_norms, norms * jax.vmap(other.norm_ratio)(steps)


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
    expected=Verdict.HOLDS,
    why_numeric="Proved in the paper it is from; here it is followed over a training run.",
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
    assumptions=("the loss ignores the scale of W", "ε = 0"),
    expected=Verdict.HOLDS,
    why_numeric="A change of variables in the moments, followed here over a training run.",
)
def exponential_adamw(problem: Problem):
    """optax's own adamw, adam, lion and muon over 60 steps; also Adam with its β unchanged."""
    yield from _exponential_evidence(problem, EXPONENTIAL_ADAPTIVE)
    base, _, rate, decay, settings = EXPONENTIAL_ADAPTIVE["adamw"]
    wrong_memory = lambda o: optax.adam(o.learning_rate, 0.9, 0.99, eps=0.0)
    outputs, wrong, _, _ = exponential_runs(problem, "adamw", base, wrong_memory, decay, rate, **settings)
    yield differ("adam: β₁ and β₂ as they were", wrong[-1], outputs[-1])

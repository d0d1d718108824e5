"""Two runs that are one function at every step: other scales of the weights, and weight decay as a growing rate."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from lngeom import families
from lngeom.claims._evidence import Verdict, agree, differ
from lngeom.claims._problem import Problem
from lngeom.claims._registry import claim
from lngeom.claims._training import Parameters, logits, loss, network, partitioned, scaled, train
from lngeom.information import fisher
from lngeom.training import LAWS, equivalent_schedule

TOPIC = "learning-rate"
FACTOR = 3.0
"""c: not a power of two, so that rounding differs between the runs."""

TOLERANCE = 1e-12
EXPONENTIAL_TOLERANCE = 1e-10


def _normalized(rate, decay, eps) -> optax.GradientTransformation:
    """Gradient descent with steps of length η, and decoupled weight decay."""
    return optax.chain(
        optax.normalize_by_update_norm(eps=eps), optax.add_decayed_weights(decay), optax.scale_by_learning_rate(rate)
    )


def _muon(rate, decay, eps, beta=0.9, nesterov=True) -> optax.GradientTransformation:
    return optax.chain(
        optax.contrib.scale_by_muon(
            beta=beta,
            eps=eps,
            nesterov=nesterov,
            weight_dimension_numbers=lambda tree: jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(), tree),
        ),
        optax.add_decayed_weights(decay),
        optax.scale_by_learning_rate(rate),
    )


def _sgd(rate, decay, momentum=None) -> optax.GradientTransformation:
    return optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate, momentum=momentum))


Factory = Callable[..., optax.GradientTransformation]

OPTIMIZERS: dict[str, tuple[Factory, float, float]] = {
    "sgd": (lambda rate, decay, eps: _sgd(rate, decay), 0.5, 0.02),
    "momentum": (lambda rate, decay, eps: _sgd(rate, decay, 0.9), 0.1, 0.02),
    "adam": (lambda rate, decay, eps: optax.adam(rate, eps=eps), 0.02, 0.0),
    "adamw": (lambda rate, decay, eps: optax.adamw(rate, eps=eps, weight_decay=decay), 0.02, 0.5),
    "adam_l2": (
        lambda rate, decay, eps: optax.chain(optax.add_decayed_weights(decay), optax.adam(rate, eps=eps)),
        0.02,
        0.02,
    ),
    "lion": (lambda rate, decay, eps: optax.lion(rate, weight_decay=decay), 0.01, 0.5),
    "muon": (_muon, 0.02, 0.5),
    "normalized_gd": (_normalized, 0.05, 0.5),
    "lars": (
        lambda rate, decay, eps: optax.lars(rate, weight_decay=decay, trust_coefficient=0.05, eps=eps, momentum=0.9),
        0.3,
        0.02,
    ),
}
"""optax's optimizers as functions of η, λ and ε, with an η and a λ at which all of them matter."""

TITLES = {
    "sgd": "SGD",
    "momentum": "SGD with momentum",
    "adam": "Adam",
    "adamw": "AdamW",
    "adam_l2": "Adam with weight decay in the gradient",
    "lion": "Lion",
    "muon": "Muon",
    "normalized_gd": "Normalized gradient descent",
    "lars": "LARS, weight decay inside the trust ratio",
}


def scaled_runs(problem: Problem, name: str, batch: int = 60):
    """Outputs at every step of the run from W, of the equivalent one from cW, and of one with a wrong power for η."""
    factory, rate, decay = OPTIMIZERS[name]
    eps = 1e-3 if LAWS[name].eps else 0.0
    other = equivalent_schedule(name, rate, decay, scale=FACTOR, eps=eps)
    settings = [
        (1.0, rate, decay, eps),
        (FACTOR, other.learning_rate, other.weight_decay, other.eps),
        (FACTOR, FACTOR ** (LAWS[name].rate - 1) * rate, other.weight_decay, other.eps),
    ]
    net = network(problem)

    @jax.jit
    def run(setting):
        factor, rate, decay, eps = setting[0], setting[1], setting[2], setting[3]
        optimizer = partitioned(factory(rate, decay, eps))
        return train(
            net,
            optimizer,
            scaled(net.params, factor),
            lambda p, g, after, s: logits(after, net.inputs[:40]),
            batch=batch,
        )

    return jax.vmap(run)(jnp.asarray(settings, net.inputs.dtype))


def _equivalence(name: str) -> None:
    law = LAWS[name]

    def power(symbol: str, exponent: int) -> str:
        return (
            f"{symbol} → c{'' if exponent == 1 else str(exponent).translate(_SUPERSCRIPTS)}{symbol}"
            if exponent
            else (f"{symbol} unchanged")
        )

    hyper = [power("η", law.rate)]
    if OPTIMIZERS[name][2]:
        hyper.append(power("λ", law.decay))
    if law.eps:
        hyper.append(power("ε", law.eps))

    @claim(
        f"dynamics.equivalence.{name}",
        topic=TOPIC,
        source="Section 5.2.2, implicit learning rate reduction",
        statement=f"{TITLES[name]}: from cW with {', '.join(hyper)} training is the same function at every step.",
        formula=r"W_0 \to cW_0 \Rightarrow W_t \to cW_t",
        assumptions=("the loss ignores the scale of W", "ε = 0 in the norm"),
        expected=Verdict.HOLDS,
    )
    def check(problem: Problem):
        """A layer-normalized network, 60 steps on minibatches; outputs on 40 samples after every step."""
        base, same, wrong = scaled_runs(problem, name)
        yield agree(f"outputs over {len(base)} steps, c = {FACTOR:g}", same, base, tol=TOLERANCE)
        yield differ("the same with η to another power of c", wrong[-1], base[-1])
        yield differ("the run moves at all", base[-1], base[0])


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

for _name in OPTIMIZERS:
    _equivalence(_name)


@claim(
    "dynamics.equivalence.natural_gradient",
    topic=TOPIC,
    source="Section 5.2.2, implicit learning rate reduction",
    statement="Natural gradient: from cW with η unchanged and c⁻² times the damping training is the same function.",
    formula=r"W_0 \to cW_0,\ \rho \to c^{-2}\rho \Rightarrow W_t \to cW_t",
    assumptions=("the loss ignores the scale of W", "ε = 0 in the norm"),
    expected=Verdict.HOLDS,
)
def natural_gradient(problem: Problem):
    """(F + ρI)s = ∇L on the weights alone, with the Fisher matrix of the softmax outputs; 12 steps."""
    net = network(problem)
    x, y = net.inputs[:60], net.labels[:60]
    rate, damping, shape = 0.3, 0.05, net.params["weights"].shape

    def outputs(weights, inputs):
        return logits(net.params | {"weights": weights}, inputs)

    @jax.jit
    def run(setting):
        factor, rate, damping = setting[0], setting[1], setting[2]

        def step(weights, _):
            F = fisher(outputs, weights, x, family=families.Categorical(), check=False).as_matrix()
            gradient = jax.grad(lambda w: loss(net.params | {"weights": w}, x, y))(weights)
            direction = jnp.linalg.solve(F + damping * jnp.eye(len(F), dtype=F.dtype), gradient.reshape(-1))
            weights = weights - rate * direction.reshape(shape)
            return weights, outputs(weights, x)

        return jax.lax.scan(step, factor * net.params["weights"], None, length=12)[1]

    scale = equivalent_schedule("natural_gradient", rate, scale=FACTOR, eps=damping)
    settings = [(1.0, rate, damping), (FACTOR, rate, scale.eps), (FACTOR, FACTOR * rate, scale.eps)]
    base, same, wrong = (run(jnp.asarray(s, x.dtype)) for s in settings)
    yield agree(f"outputs over 12 steps, c = {FACTOR:g}", same, base, tol=TOLERANCE)
    yield differ("the same with η multiplied by c", wrong[-1], base[-1])
    yield differ("the run moves at all", base[-1], base[0])


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
    "sgd": (lambda rate, decay: _sgd(rate, decay), lambda o: optax.sgd(o.learning_rate), 0.3, 0.02, {}),
    "sgd, warm-up and cosine": (
        lambda rate, decay: _sgd(rate, decay),
        lambda o: optax.sgd(o.learning_rate),
        _warm_up,
        0.02,
        {},
    ),
    "momentum": (
        lambda rate, decay: _sgd(rate, decay, 0.9),
        lambda o: optax.sgd(o.learning_rate, momentum=o.momentum),
        0.05,
        0.02,
        {"momentum": 0.9},
    ),
    "normalized_gd": (
        lambda rate, decay: _normalized(rate, decay, 0.0),
        lambda o: _normalized(o.learning_rate, 0.0, 0.0),
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
        lambda rate, decay: _muon(rate, decay, 0.0, nesterov=False),
        lambda o: _muon(o.learning_rate, 0.0, 0.0, o.momentum, nesterov=False),
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
        yield agree(f"{title}: outputs over {len(outputs)} steps", same, outputs, tol=EXPONENTIAL_TOLERANCE)
        yield agree(f"{title}: norms grow apart as predicted", norms, predicted, tol=EXPONENTIAL_TOLERANCE)
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
    wrong_memory = lambda o: optax.adam(o.learning_rate, 0.9, 0.99, eps=0.0)  # noqa: E731
    outputs, wrong, _, _ = exponential_runs(problem, "adamw", base, wrong_memory, decay, rate, **settings)
    yield differ("adam: β₁ and β₂ as they were", wrong[-1], outputs[-1])

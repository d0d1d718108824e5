"""Runs from W and from cW are one function at every step: one step of each optimizer, and so by induction all.

If w̃ = cw and each state of the optimizer is multiplied by a power of c, then, since ∇L(cw) = ∇L(w)/c, one step with
hyperparameters multiplied by powers of c keeps it so.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
import sympy as sp
from sympy import Expr, sqrt

from lngeom import families
from lngeom.claims import Problem, Verdict, agree, claim, differ, proves
from lngeom.claims.training.network import logits, loss, network, partitioned, scaled, train
from lngeom.information import fisher
from lngeom.symbolic.actions import DELTA
from lngeom.symbolic.layers import LAYER_NORM
from lngeom.symbolic.proof import Counterexample, Proof, Step, equality, expanded, refutation
from lngeom.symbolic.scale_free import DECAY, RATE, SCALE_FREE, gradient_scaling, matrix_scaling
from lngeom.symbolic.sums import D, H, d, field, i, total
from lngeom.training import equivalent_schedule
from lngeom.training.laws import LAWS

TOPIC = "learning-rate"
FACTOR = 3.0
"""c: not a power of two, so that rounding differs between the runs."""

TOLERANCE = 1e-12


def normalized_gd(rate, decay, eps) -> optax.GradientTransformation:
    """Gradient descent with steps of length η, and decoupled weight decay."""
    return optax.chain(
        optax.normalize_by_update_norm(eps=eps), optax.add_decayed_weights(decay), optax.scale_by_learning_rate(rate)
    )


def muon(rate, decay, eps, beta=0.9, nesterov=True) -> optax.GradientTransformation:
    """Muon for every leaf, whatever its shape says, and decoupled weight decay."""
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


def sgd(rate, decay, momentum=None) -> optax.GradientTransformation:
    """SGD with weight decay in the gradient."""
    return optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate, momentum=momentum))


Factory = Callable[..., optax.GradientTransformation]

OPTIMIZERS: dict[str, tuple[Factory, float, float]] = {
    "sgd": (lambda rate, decay, eps: sgd(rate, decay), 0.5, 0.02),
    "momentum": (lambda rate, decay, eps: sgd(rate, decay, 0.9), 0.1, 0.02),
    "adam": (lambda rate, decay, eps: optax.adam(rate, eps=eps), 0.02, 0.0),
    "adamw": (lambda rate, decay, eps: optax.adamw(rate, eps=eps, weight_decay=decay), 0.02, 0.5),
    "adam_l2": (
        lambda rate, decay, eps: optax.chain(optax.add_decayed_weights(decay), optax.adam(rate, eps=eps)),
        0.02,
        0.02,
    ),
    "lion": (lambda rate, decay, eps: optax.lion(rate, weight_decay=decay), 0.01, 0.5),
    "muon": (muon, 0.02, 0.5),
    "normalized_gd": (normalized_gd, 0.05, 0.5),
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
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


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


State = dict[str, Expr]
HYPER = sp.symbols("eta lambda epsilon", positive=True)
BETA1, BETA2 = sp.symbols("beta_1 beta_2", positive=True)
CORRECTION1, CORRECTION2 = sp.symbols("kappa_1 kappa_2", positive=True)
"""1 − β₁ᵗ and 1 − β₂ᵗ of Adam's bias correction."""


@dataclass(frozen=True)
class StepRule:
    """One step of an elementwise optimizer, and the powers of c that keep its trajectory.

    Attributes:
        step: (w and state, gradient, η, λ, ε) to w and state after the step.
        powers: power of c of each state.
        rates: powers of c of η, λ and ε.
        symbols: w and the states before the step.
    """

    step: Callable[[State, Expr, Expr, Expr, Expr], State]
    powers: dict[str, int]
    rates: tuple[int, int, int]

    def both(self, rates: tuple[int, int, int]) -> tuple[State, State]:
        """The step from (w, state), and the step from the scaled start with scaled hyperparameters."""
        state = {name: sp.Symbol(name, real=True, positive=name == "v" or None) for name in self.powers}
        gradient = sp.Symbol("g", real=True)
        moved = {name: DELTA**power * state[name] for name, power in self.powers.items()}
        scaled = [DELTA**power * value for power, value in zip(rates, HYPER, strict=True)]
        return self.step(state, gradient, *HYPER), self.step(moved, gradient / DELTA, *scaled)


def _sgd_step(s: State, g, rate, decay, eps) -> State:
    return {"w": s["w"] - rate * (g + decay * s["w"])}


def _momentum_step(s: State, g, rate, decay, eps) -> State:
    p = BETA1 * s["p"] + g + decay * s["w"]
    return {"w": s["w"] - rate * p, "p": p}


def _adam_moments(s: State, g, eps) -> tuple[State, Expr]:
    m, v = BETA1 * s["m"] + (1 - BETA1) * g, BETA2 * s["v"] + (1 - BETA2) * g**2
    return {"m": m, "v": v}, (m / CORRECTION1) / (sqrt(v / CORRECTION2) + eps)


def _adam_step(s: State, g, rate, decay, eps) -> State:
    moments, update = _adam_moments(s, g, eps)
    return {"w": s["w"] - rate * update, **moments}


def _adamw_step(s: State, g, rate, decay, eps) -> State:
    moments, update = _adam_moments(s, g, eps)
    return {"w": s["w"] - rate * (update + decay * s["w"]), **moments}


def _adam_l2_step(s: State, g, rate, decay, eps) -> State:
    return _adam_step(s, g + decay * s["w"], rate, decay, eps)


def _lion_step(s: State, g, rate, decay, eps) -> State:
    update = sp.sign(BETA1 * s["m"] + (1 - BETA1) * g)
    return {"w": s["w"] - rate * (update + decay * s["w"]), "m": BETA2 * s["m"] + (1 - BETA2) * g}


STEP_RULES = {
    "sgd": StepRule(_sgd_step, {"w": 1}, (2, -2, 0)),
    "momentum": StepRule(_momentum_step, {"w": 1, "p": -1}, (2, -2, 0)),
    "adam": StepRule(_adam_step, {"w": 1, "m": -1, "v": -2}, (1, 0, -1)),
    "adamw": StepRule(_adamw_step, {"w": 1, "m": -1, "v": -2}, (1, -1, -1)),
    "adam_l2": StepRule(_adam_l2_step, {"w": 1, "m": -1, "v": -2}, (1, -2, -1)),
    "lion": StepRule(_lion_step, {"w": 1, "m": -1}, (1, -1, 0)),
}

AN_INSTANCE = {"w": 3, "p": 1, "m": 1, "v": 4, "g": 2, "eta": "1/4", "lambda": "1/5", "epsilon": "1/3", "delta": 2}
FURTHER = {"beta_1": "1/2", "beta_2": "1/3", "kappa_1": "1/2", "kappa_2": "3/4"}


def wrong_power(name: str, optimizer: StepRule) -> Counterexample:
    """Another power of c for η: one step from an exact state ends elsewhere."""
    rates = (optimizer.rates[0] - 1, *optimizer.rates[1:])

    def sides(values) -> tuple[Expr, Expr]:
        first, second = optimizer.both(rates)
        at = lambda term: term.subs({s: values[s.name] for s in term.free_symbols})
        return at(second["w"]), at(DELTA * first["w"])

    instance = {key: sp.Rational(str(value)) for key, value in (AN_INSTANCE | FURTHER).items()}
    text = "The weight after a step with η multiplied by a smaller power of c (left), and c times that from w (right)."
    return Counterexample(f"{name} with another power of c", r"\tilde w^+ = c\,w^+", instance, sides, text)


def elementwise(name: str, optimizer: StepRule) -> Proof:
    """The proof by induction for an elementwise optimizer.

    Args:
        name: claim id.
        optimizer: its step and powers.

    Returns:
        The proof.
    """
    first, second = optimizer.both(optimizer.rates)
    steps = [
        expanded(
            f"If it held before the step, {state} after it is again multiplied by c^{power}",
            rf"\tilde {state}^+ = c^{{{power}}} {state}^+",
            second[state] - DELTA**power * first[state],
        )
        for state, power in optimizer.powers.items()
    ]
    eta, decay, eps = optimizer.rates
    statement = (
        rf"W_0 \to cW_0,\ \eta \to c^{{{eta}}}\eta,\ "
        rf"\lambda \to c^{{{decay}}}\lambda,\ \epsilon \to c^{{{eps}}}\epsilon:"
        r"\quad W_t \to cW_t, \text{ the same function at every step}"
    )
    return Proof(
        name,
        statement,
        (*gradient_scaling(), *steps, refutation("Another power fails", wrong_power(name, optimizer))),
        (SCALE_FREE,),
    )


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

    id = f"dynamics.equivalence.{name}"

    @claim(
        id,
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

    if name in STEP_RULES:
        proves(id)(functools.partial(elementwise, id, STEP_RULES[name]))


for _name in OPTIMIZERS:
    _equivalence(_name)


W, P, B = field("W"), field("P"), field("B")


def _norm(F) -> Expr:
    return sqrt(total(lambda l: total(lambda d: F(l, d) ** 2, D), H))


def _times(c: Expr, F):
    return lambda l, d: c * F(l, d)


_ENTRIES = {"W": W, "P": P, "B": B, "O": field("O")}


def _wrong_for_one_weight(name: str, left: Expr, right: Expr) -> Counterexample:
    """The two sides at H = D = 1, where norms are absolute values."""

    def sides(values) -> tuple[Expr, Expr]:
        def at(term: Expr) -> Expr:
            term = term.subs({H: 1, D: 1, i: 1, d: 1}).doit()
            entries = {F(1, 1): values[letter] for letter, F in _ENTRIES.items()}
            numbers = {RATE: values[r"\eta"], DECAY: values[r"\lambda"], BETA1: values[r"\beta"], DELTA: values["c"]}
            return term.xreplace(entries).subs(numbers)

        return at(left), at(right)

    instance = {
        "W": 3,
        "P": 2,
        "B": 1,
        "O": 1,
        r"\eta": sp.Rational(1, 4),
        r"\lambda": sp.Rational(1, 5),
        r"\beta": sp.Rational(1, 2),
        "c": 2,
    }
    text = "One weight after a step with η multiplied by a larger power of c (left), and c times that from w (right)."
    return Counterexample(f"{name} with another power of c", r"\tilde W^+ = c\,W^+", instance, sides, text)


def whole_matrix(
    short: str, update: Callable, rates: tuple[int, int], lines: tuple[Step, ...] = (), buffered: bool = False
) -> Proof:
    """The proof for an optimizer whose update sees norms of all of W.

    Args:
        short: its name.
        update: (W, gradient, buffer, η, λ) to W after the step, at (i, d).
        rates: powers of c of η and λ.
        lines: steps to show before.
        buffered: whether a momentum buffer, scaled by 1/c, is part of the state.

    Returns:
        The proof.
    """
    eta, decay = rates
    after = update(
        _times(DELTA, W), _times(1 / DELTA, P), _times(1 / DELTA, B), DELTA**eta * RATE, DELTA**decay * DECAY
    )
    before = update(W, P, B, RATE, DECAY)
    steps = [*gradient_scaling(), *lines]
    if buffered:
        beta = BETA1
        steps.append(
            equality(
                "The buffer stays multiplied by 1/c",
                beta * B(i, d) / DELTA + P(i, d) / DELTA,
                (beta * B(i, d) + P(i, d)) / DELTA,
            )
        )
    steps.append(equality("If it held before the step it holds after it", after, DELTA * before, r"\tilde W^+"))
    wrong = update(
        _times(DELTA, W), _times(1 / DELTA, P), _times(1 / DELTA, B), DELTA ** (eta + 1) * RATE, DELTA**decay * DECAY
    )
    steps.append(
        refutation("Another power fails", _wrong_for_one_weight(f"dynamics.equivalence.{short}", wrong, DELTA * before))
    )
    statement = rf"W_0 \to cW_0,\ \eta \to c^{{{eta}}}\eta,\ \lambda \to c^{{{decay}}}\lambda:\quad W_t \to cW_t"
    return Proof(f"dynamics.equivalence.{short}", statement, tuple(steps), (SCALE_FREE,))


@proves("dynamics.equivalence.normalized_gd")
def normalized_gradient_descent_proof() -> Proof:
    """η → cη, λ → λ/c."""
    update = lambda W, P, B, rate, decay: W(i, d) - rate * (P(i, d) / _norm(P) + decay * W(i, d))
    return whole_matrix("normalized_gd", update, (1, -1))


@proves("dynamics.equivalence.lars")
def lars_proof() -> Proof:
    """η unchanged: the trust ratio has the scale already; λ → c⁻²λ."""

    def update(W, P, B, rate, decay):
        trust = _norm(W) / (_norm(P) + decay * _norm(W))
        return W(i, d) - rate * trust * (P(i, d) + decay * W(i, d))

    return whole_matrix("lars", update, (0, -2))


@proves("dynamics.equivalence.muon")
def muon_proof() -> Proof:
    """η → cη, λ → λ/c: the orthogonalized buffer is a function of its direction B/‖B‖."""

    def direction(B, P):
        buffer = lambda l, d: BETA1 * B(l, d) + P(l, d)
        return lambda l, d: buffer(l, d) / _norm(buffer)

    def newton_schulz(X) -> Expr:
        cubic = total(lambda k: total(lambda e: X(i, e) * X(k, e) * X(k, d), D), H)
        return (3 * X(i, d) - cubic) / 2

    old, new = direction(B, P), direction(_times(1 / DELTA, B), _times(1 / DELTA, P))
    orthogonal = field("O")
    update = lambda W, P, B, rate, decay: W(i, d) - rate * (orthogonal(i, d) + decay * W(i, d))
    lines = (
        equality("The direction of the buffer is that of the unscaled one", new(i, d), old(i, d)),
        equality(
            "so its orthogonal factor O is the same: a Newton–Schulz step from it is",
            newton_schulz(new),
            newton_schulz(old),
        ),
    )
    return whole_matrix("muon", update, (1, -1), lines, buffered=True)


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


@proves("dynamics.equivalence.natural_gradient")
def natural_gradient_proof() -> Proof:
    """η unchanged, damping → c⁻²damping: the Fisher matrix scales by c⁻²."""
    A, s = field("A"), field("s")
    l = i
    solved = total(lambda j: A(l, j) * s(j), H)
    scaled = total(lambda j: A(l, j) / DELTA**2 * (DELTA * s(j)), H)
    w, step = sp.symbols("w s", real=True)
    return Proof(
        "dynamics.equivalence.natural_gradient",
        r"W_0 \to cW_0,\ \rho \to c^{-2}\rho:\quad W_t \to cW_t \text{ with the same } \eta",
        (
            *gradient_scaling(),
            *matrix_scaling(LAYER_NORM),
            equality(
                "If s solves (F + ρI)s = ∇L then cs solves the scaled system, whose right side is ∇L/c",
                scaled,
                solved / DELTA,
            ),
            expanded(
                "so the step is c times the step",
                r"cw - \eta cs = c(w - \eta s)",
                DELTA * w - RATE * DELTA * step - DELTA * (w - RATE * step),
            ),
        ),
        (SCALE_FREE,),
    )

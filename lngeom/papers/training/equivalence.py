"""Runs from W and from cW are one function at every step: one step of each optimizer, and so by induction all.

An optimizer's step is written once, as optax takes it, in lines: each computes one quantity, of the shape of W, from
those before it (`STEPS`). The law of an optimizer (`LAWS`) says by which powers of c its η, λ and ε are multiplied from
cW. The proof goes through the lines: if all that a line reads is multiplied by the powers of c that belong to it, so is
what it computes. The gradient is multiplied by 1/c, since ∇L(cw) = ∇L(w)/c. Every check also runs optax beside the same
lines in numbers, so that the step that is proved is the one that is taken.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import sympy as sp
from jaxtyping import Array, Float
from sympy import Expr, sqrt

from lngeom import families
from lngeom.claims import Problem, Verdict, agree, claim, differ, proves
from lngeom.claims.context import Read
from lngeom.information import FisherOperator, fisher
from lngeom.papers.training.network import Network, compiled_gradient, logits, loss, network, partitioned, scaled, train
from lngeom.symbolic.evaluation import compiled
from lngeom.symbolic.layers import LAYER_NORM
from lngeom.symbolic.proof import Counterexample, Proof, Step, equality, refutation
from lngeom.symbolic.scale_free import DECAY, RATE, SCALE_FREE, WEIGHT_FACTOR, gradient_scaling, matrix_scaling
from lngeom.symbolic.sums import D, Field, H, KroneckerDelta, d, field, i, total
from lngeom.training import equivalent_schedule
from lngeom.training.laws import LAWS, Law

TOPIC = "learning-rate"
FACTOR = 3.0
"""c: not a power of two, so that rounding differs between the runs."""

TOLERANCE = 1e-12
BETA, TRUST = 0.9, 0.05
"""β (β₁ where there are two), and LARS's trust coefficient."""


def normalized_gd(rate, decay, eps) -> optax.GradientTransformation:
    """Gradient descent with steps of length η, and decoupled weight decay."""
    return optax.chain(
        optax.normalize_by_update_norm(eps=eps), optax.add_decayed_weights(decay), optax.scale_by_learning_rate(rate)
    )


def muon(rate, decay, eps, beta=BETA, nesterov=True) -> optax.GradientTransformation:
    """optax's Muon, all of whose parameters here are matrices."""
    return optax.contrib.muon(rate, beta=beta, eps=eps, weight_decay=decay, nesterov=nesterov)


def sgd(rate, decay, momentum=None) -> optax.GradientTransformation:
    """SGD with weight decay in the gradient."""
    return optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate, momentum=momentum))


class Optimizer(NamedTuple):
    """One of optax's optimizers, at hyperparameters at which all of them matter.

    Attributes:
        make: the optimizer, of η, λ and ε.
        rate: η.
        decay: λ; 0 where it has none.
        eps: ε; 0 where it has none.
    """

    make: Callable[..., optax.GradientTransformation]
    rate: float
    decay: float = 0.0
    eps: float = 0.0


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Optimizer(lambda rate, decay, eps: sgd(rate, decay), 0.5, 0.02),
    "momentum": Optimizer(lambda rate, decay, eps: sgd(rate, decay, BETA), 0.1, 0.02),
    "adam": Optimizer(lambda rate, decay, eps: optax.adam(rate, eps=eps), 0.02, 0.0, 1e-3),
    "adamw": Optimizer(lambda rate, decay, eps: optax.adamw(rate, eps=eps, weight_decay=decay), 0.02, 0.5, 1e-3),
    "adam_l2": Optimizer(
        lambda rate, decay, eps: optax.chain(optax.add_decayed_weights(decay), optax.adam(rate, eps=eps)),
        0.02,
        0.02,
        1e-3,
    ),
    "lion": Optimizer(lambda rate, decay, eps: optax.lion(rate, weight_decay=decay), 0.01, 0.5),
    "muon": Optimizer(muon, 0.02, 0.5, 0.01),
    "normalized_gd": Optimizer(normalized_gd, 0.05, 0.5, 0.01),
    "lars": Optimizer(
        lambda rate, decay, eps: optax.lars(rate, decay, trust_coefficient=TRUST, eps=eps, momentum=BETA),
        0.3,
        0.02,
        0.01,
    ),
    "lamb": Optimizer(lambda rate, decay, eps: optax.lamb(rate, eps=eps, weight_decay=decay), 0.01, 0.5, 0.01),
}
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
    "lamb": "LAMB",
}
AS_IN_OPTAX = {
    "muon": "as in optax: an averaged Nesterov momentum, divided by its Frobenius norm plus ε",
    "lars": "as in optax: trust ratio τ‖W‖/(‖∇L + λW‖ + ε), momentum after it",
    "lamb": "as in optax: ε in Adam's denominator, none in the trust ratio",
}
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Hyperparameters(NamedTuple):
    """η, λ and ε: their symbols, their values, or the powers of c that they are multiplied by."""

    rate: Expr
    decay: Expr
    eps: Expr


HYPER = Hyperparameters(RATE, DECAY, sp.Symbol("epsilon", positive=True))
BETA1, BETA2 = sp.symbols(r"\beta_1 \beta_2", positive=True)
CORRECTION1, CORRECTION2, CORRECTION_AHEAD = sp.symbols(r"\kappa_1 \kappa_2 \kappa_3", positive=True)
"""Bias corrections 1 − β₁ᵗ and 1 − β₂ᵗ, and 1 − β₁ᵗ⁺¹ of a look-ahead."""

TAU, ZETA = sp.symbols("tau zeta", positive=True)
"""LARS's trust coefficient, and Muon's factor √max(1, D/H) for the shape of W."""

QUINTIC = sp.symbols("q_1 q_3 q_5", real=True)
"""Coefficients of Muon's Newton–Schulz iteration."""

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Their values in optax."""

Formula = Callable[[SimpleNamespace, Hyperparameters, Expr, Expr], Expr]


@dataclass(frozen=True)
class Line:
    """One line of an optimizer's step.

    Attributes:
        name: of the quantity that it computes. W are the weights and P is the gradient; a line reads the quantities of
            lines before it, and of the last step where they are not computed yet.
        power: of c, by which the quantity is multiplied from cW.
        text: what the quantity is.
        formula: its entry (l, d), of the quantities and hyperparameters.
        times: how often the line is taken.
    """

    name: str
    power: int
    text: str
    formula: Formula
    times: int = 1


def norm(F: Field) -> Expr:
    """Frobenius norm over all units and inputs."""
    return sqrt(total(lambda l: total(lambda d: F(l, d) ** 2, D), H))


def newton_schulz(X: Field, l: Expr, d: Expr) -> Expr:
    """Entry of q₁X + q₃(XXᵀ)X + q₅(XXᵀ)²X."""
    gram = lambda k, j: total(lambda e: X(k, e) * X(j, e), D)
    cubic = total(lambda k: gram(l, k) * X(k, d), H)
    fifth = total(lambda j: gram(l, j) * total(lambda k: gram(j, k) * X(k, d), H), H)
    return QUINTIC[0] * X(l, d) + QUINTIC[1] * cubic + QUINTIC[2] * fifth


def _decayed(name: str) -> Line:
    return Line(name, -1, "Gradient and weight decay", lambda q, h, l, d: q.P(l, d) + h.decay * q.W(l, d))


def _adam(gradient: str) -> tuple[Line, ...]:
    def g(q, l, d):
        return getattr(q, gradient)(l, d)

    return (
        Line("A", -1, "First moment", lambda q, h, l, d: BETA1 * q.A(l, d) + (1 - BETA1) * g(q, l, d)),
        Line("S", -2, "Second moment", lambda q, h, l, d: BETA2 * q.S(l, d) + (1 - BETA2) * g(q, l, d) ** 2),
        Line(
            "U",
            0,
            "Adam's update",
            lambda q, h, l, d: (q.A(l, d) / CORRECTION1) / (sqrt(q.S(l, d) / CORRECTION2) + h.eps),
        ),
    )


_STEPPED = Line(
    "W", 1, "Weights after the step", lambda q, h, l, d: q.W(l, d) - h.rate * (q.U(l, d) + h.decay * q.W(l, d))
)

STEPS: dict[str, tuple[Line, ...]] = {
    "sgd": (
        _decayed("R"),
        Line("W", 1, "Weights after the step", lambda q, h, l, d: q.W(l, d) - h.rate * q.R(l, d)),
    ),
    "momentum": (
        _decayed("R"),
        Line("B", -1, "Momentum", lambda q, h, l, d: BETA1 * q.B(l, d) + q.R(l, d)),
        Line("W", 1, "Weights after the step", lambda q, h, l, d: q.W(l, d) - h.rate * q.B(l, d)),
    ),
    "adam": (*_adam("P"), _STEPPED),
    "adamw": (*_adam("P"), _STEPPED),
    "adam_l2": (
        _decayed("R"),
        *_adam("R"),
        Line("W", 1, "Weights after the step", lambda q, h, l, d: q.W(l, d) - h.rate * q.U(l, d)),
    ),
    "lion": (
        Line("R", -1, "Momentum and gradient", lambda q, h, l, d: BETA1 * q.A(l, d) + (1 - BETA1) * q.P(l, d)),
        Line("U", 0, "Its sign", lambda q, h, l, d: sp.sign(q.R(l, d))),
        Line("A", -1, "Momentum", lambda q, h, l, d: BETA2 * q.A(l, d) + (1 - BETA2) * q.P(l, d)),
        _STEPPED,
    ),
    "muon": (
        Line("A", -1, "Momentum", lambda q, h, l, d: BETA1 * q.A(l, d) + (1 - BETA1) * q.P(l, d)),
        Line(
            "R",
            -1,
            "Nesterov's look-ahead, each part with its bias correction",
            lambda q, h, l, d: BETA1 * q.A(l, d) / CORRECTION_AHEAD + (1 - BETA1) * q.P(l, d) / CORRECTION1,
        ),
        Line("X", 0, "It is divided by its norm plus ε", lambda q, h, l, d: q.R(l, d) / (norm(q.R) + h.eps)),
        Line("X", 0, "Newton–Schulz reads X alone", lambda q, h, l, d: newton_schulz(q.X, l, d), times=5),
        Line("U", 0, "The shape of W gives a factor", lambda q, h, l, d: ZETA * q.X(l, d)),
        _STEPPED,
    ),
    "normalized_gd": (
        Line("U", 0, "Gradient by its norm plus ε", lambda q, h, l, d: q.P(l, d) / (norm(q.P) + h.eps)),
        _STEPPED,
    ),
    "lars": (
        _decayed("R"),
        Line("U", 1, "By the trust ratio", lambda q, h, l, d: TAU * norm(q.W) / (norm(q.R) + h.eps) * q.R(l, d)),
        Line("B", 1, "Momentum of steps", lambda q, h, l, d: BETA1 * q.B(l, d) - h.rate * q.U(l, d)),
        Line("W", 1, "Weights after the step", lambda q, h, l, d: q.W(l, d) + q.B(l, d)),
    ),
    "lamb": (
        *_adam("P"),
        Line("R", 0, "Adam's update and weight decay", lambda q, h, l, d: q.U(l, d) + h.decay * q.W(l, d)),
        Line(
            "W",
            1,
            "Weights after a step of length η‖W‖",
            lambda q, h, l, d: q.W(l, d) - h.rate * norm(q.W) / norm(q.R) * q.R(l, d),
        ),
    ),
}
"""The step of each optimizer, as optax takes it. Momenta and moments start at zero, which every factor leaves."""


def _quantities(of: Callable[[str], Field], names: Sequence[str]) -> SimpleNamespace:
    return SimpleNamespace(**{name: of(name) for name in names})


def _field(name: str) -> Field:
    return field(name, positive=name == "S")


def _powers(lines: Sequence[Line]) -> dict[str, int]:
    return {"W": 1, "P": -1} | {line.name: line.power for line in lines}


def _multiplied(powers: Sequence[int], values: Sequence[Expr]) -> Hyperparameters:
    return Hyperparameters(*(WEIGHT_FACTOR**power * value for power, value in zip(powers, values, strict=True)))


def read_by(lines: Sequence[Line]) -> dict[str, set[str]]:
    """The hyperparameters among "rate", "decay" and "eps" that each line reads, by its text."""
    quantities = _quantities(_field, [*_powers(lines)])
    symbols = dict(zip(Hyperparameters._fields, HYPER, strict=True))
    read = {line.text: line.formula(quantities, HYPER, i, d).free_symbols for line in lines}
    return {text: {name for name, symbol in symbols.items() if symbol in found} for text, found in read.items()}


def line_step(line: Line, powers: Mapping[str, int], law: Law) -> Step:
    """What a line computes is multiplied by its power of c, if all that it reads is multiplied by theirs."""
    moved = lambda name: lambda l, d: WEIGHT_FACTOR ** powers[name] * _field(name)(l, d)
    after = line.formula(_quantities(moved, [*powers]), _multiplied((law.rate, law.decay, law.eps), HYPER), i, d)
    before = line.formula(_quantities(_field, [*powers]), HYPER, i, d)
    kept = f"multiplied by c{str(line.power).translate(_SUPERSCRIPTS)}" if line.power else "unchanged"
    return equality(f"{line.text}: {kept}", after, WEIGHT_FACTOR**line.power * before, rf"\tilde {line.name}_{{id}}")


INSTANCE: dict[Expr | str, Expr] = {
    **{name: sp.Integer(value) for name, value in {"W": 3, "P": 2, "R": 1, "U": 1, "A": 1, "S": 4, "B": 1}.items()},
    RATE: sp.Rational(1, 4),
    DECAY: sp.Rational(1, 5),
    HYPER.eps: sp.Rational(1, 3),
    BETA1: sp.Rational(1, 2),
    BETA2: sp.Rational(1, 3),
    CORRECTION1: sp.Rational(1, 2),
    CORRECTION2: sp.Rational(1, 4),
    TAU: sp.Rational(1, 2),
    WEIGHT_FACTOR: sp.Integer(2),
}
"""One weight, its state, and hyperparameters: the exact numbers at which another power fails."""


def wrong_power(line: Line, powers: Mapping[str, int], law: Law, place: int) -> Counterexample:
    """The line with one hyperparameter multiplied by a larger power of c, for one weight (H = D = 1)."""
    wrong = [law.rate, law.decay, law.eps]
    wrong[place] += 1
    symbolic = line.formula(_quantities(_field, [*powers]), HYPER, i, d)
    read = {entry.base.name for entry in symbolic.atoms(sp.Indexed)}
    used = [key for key in INSTANCE if key in read or key in symbolic.free_symbols or key == WEIGHT_FACTOR]

    def sides(values: Mapping[str, Expr]) -> tuple[Expr, Expr]:
        def at(quantities: SimpleNamespace, hyper: Hyperparameters) -> Expr:
            numbers = {key: values[str(key)] for key in used if not isinstance(key, str)}
            return line.formula(quantities, hyper, i, d).subs({H: 1, D: 1}).doit().subs(numbers)

        value = lambda name: lambda l, d: values.get(name, sp.S.Zero)
        moved = lambda name: lambda l, d: WEIGHT_FACTOR ** powers[name] * value(name)(l, d)
        after = at(_quantities(moved, [*powers]), _multiplied(wrong, HYPER))
        return after, at(_quantities(value, [*powers]), HYPER) * values[str(WEIGHT_FACTOR)] ** line.power

    symbol = "ηλε"[place]
    return Counterexample(
        f"{line.text} with another power of c for {symbol}",
        rf"\tilde {line.name} = c^{{{line.power}}}\,{line.name}",
        {str(key): INSTANCE[key] for key in used},
        sides,
        f"The line for one weight, with {symbol} multiplied by a larger power of c (left); c^{line.power} times it "
        "(right).",
    )


def equivalence_proof(name: str, law: Law | None = None, lines: tuple[Line, ...] = ()) -> Proof:
    """The proof by induction, line by line.

    Args:
        name: of the optimizer.
        law: its law; the one in `LAWS` by default.
        lines: its step; the one in `STEPS` by default.

    Returns:
        The proof.

    Raises:
        ProofError: if the law is not that of the step.
    """
    law, lines = law or LAWS[name], lines or STEPS[name]
    powers = _powers(lines)
    steps = [*gradient_scaling(), *(line_step(line, powers, law) for line in lines)]
    read = read_by(lines)
    for place, name_of in enumerate(Hyperparameters._fields):
        first = next((line for line in lines if name_of in read[line.text]), None)
        if first:
            text = f"Another power of c for {'ηλε'[place]} fails"
            steps.append(refutation(text, wrong_power(first, powers, law, place)))
    statement = (
        rf"W_0 \to cW_0,\ \eta \to c^{{{law.rate}}}\eta,\ \lambda \to c^{{{law.decay}}}\lambda,\ "
        rf"\epsilon \to c^{{{law.eps}}}\epsilon:\quad W_t \to cW_t, \text{{ the same function at every step}}"
    )
    return Proof(statement, tuple(steps), (SCALE_FREE,), name=f"dynamics.equivalence.{name}")


SHAPE = 2, 3
"""Units and inputs of the steps on which optax and the lines are compared."""

_SYMBOLS = (*HYPER, BETA1, BETA2, CORRECTION1, CORRECTION2, CORRECTION_AHEAD, TAU, ZETA, *QUINTIC)


def _in_numbers(line: Line, names: Sequence[str]) -> Callable[..., np.ndarray]:
    quantities = _quantities(_field, names)
    return compiled(
        lambda l, d: line.formula(quantities, HYPER, l, d), SHAPE, dict(zip((H, D), SHAPE, strict=True)), _SYMBOLS
    )


def by_lines(name: str, weights, gradients, hyper: Sequence[float]) -> np.ndarray:
    """Weights after each step, [T H D], by the lines that the proof is about, in numbers.

    Args:
        name: of the optimizer.
        weights: at the start, [H D].
        gradients: of each step, [T H D].
        hyper: η, λ and ε.

    Returns:
        The weights.
    """
    lines, beta2 = STEPS[name], {"lion": 0.99}.get(name, 0.999)
    names = [*_powers(lines)]
    functions = [_in_numbers(line, names) for line in lines]
    values, path = {quantity: np.zeros(SHAPE) for quantity in names} | {"W": np.asarray(weights)}, []
    shape = math.sqrt(max(1.0, SHAPE[1] / SHAPE[0]))
    for t, gradient in enumerate(np.asarray(gradients), 1):
        corrections = 1 - BETA**t, 1 - beta2**t, 1 - BETA ** (t + 1)
        numbers = (*hyper, BETA, beta2, *corrections, TRUST, shape, *COEFFICIENTS)
        named = {symbol.name: number for symbol, number in zip(_SYMBOLS, numbers, strict=True)}
        values["P"] = gradient
        for line, function in zip(lines, functions, strict=True):
            for _ in range(line.times):
                values[line.name] = function(**values, **named)
        path.append(values["W"])
    return np.array(path)


def by_optax(name: str, weights, gradients, hyper: Sequence[float]):
    """The same weights by optax's optimizer."""
    with jax.numpy_dtype_promotion("standard"):
        return _by_optax(OPTIMIZERS[name].make, tuple(hyper), weights, gradients)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _by_optax(make, hyper: tuple[float, ...], weights, gradients):
    optimizer = make(*hyper)

    def step(carry, gradient):
        weights, state = carry
        updates, state = optimizer.update(gradient, state, weights)
        return (weights + updates, state), weights + updates

    return jax.lax.scan(step, (weights, optimizer.init(weights)), gradients)[1]


def scaled_runs(problem: Problem, name: str, batch: int = 60):
    """Outputs at every step of runs from W and from cW.

    Returns:
        The run from W; the equivalent one from cW; then those from cW with a wrong power of c for η, and for λ and ε
        where the optimizer has them.
    """
    make, rate, decay, eps = OPTIMIZERS[name]
    other = equivalent_schedule(name, rate, decay, scale=FACTOR, eps=eps)
    same = other.learning_rate, other.weight_decay, other.eps
    settings = [(1.0, rate, decay, eps), (FACTOR, *same)]
    wrong = (FACTOR ** (LAWS[name].rate - 1) * rate, FACTOR * other.weight_decay, FACTOR * other.eps)
    for place, value in enumerate(wrong):
        if value:
            settings.append((FACTOR, *same[:place], value, *same[place + 1 :]))
    net = network(problem)
    return np.asarray(_outputs(net, np.asarray(settings, net.inputs.dtype), make, batch))


@functools.partial(jax.jit, static_argnums=(2, 3))
def _outputs(net: Network, settings, make: Callable[..., optax.GradientTransformation], batch: int):
    """Outputs on 40 samples after every step of an optimizer, for each row (c, η, λ, ε) of the settings."""

    def run(setting):
        factor, *hyper = setting
        record = lambda p, g, after, s: logits(after, net.inputs[:40])
        return train(net, partitioned(make(*hyper)), scaled(net.params, factor), record, batch=batch)

    return jax.vmap(run)(settings)


def _equivalence(name: str) -> None:
    law, (_, _, decay, eps) = LAWS[name], OPTIMIZERS[name]

    def power(symbol: str, exponent: int) -> str:
        return (
            f"{symbol} → c{'' if exponent == 1 else str(exponent).translate(_SUPERSCRIPTS)}{symbol}"
            if exponent
            else (f"{symbol} unchanged")
        )

    used = [symbol for symbol, value in (("η", 1.0), ("λ", decay), ("ε", eps)) if value]
    hyper = [power(symbol, {"η": law.rate, "λ": law.decay, "ε": law.eps}[symbol]) for symbol in used]
    id = f"dynamics.equivalence.{name}"

    @claim(
        id,
        topic=TOPIC,
        source="Section 5.2.2, implicit learning rate reduction",
        statement=f"{TITLES[name]}: from cW with {', '.join(hyper)} training is the same function at every step.",
        formula=r"W_0 \to cW_0 \Rightarrow W_t \to cW_t",
        assumptions=(
            "the loss ignores the scale of W",
            "ε = 0 in the norm",
            *((AS_IN_OPTAX[name],) if name in AS_IN_OPTAX else ()),
        ),
        read=Read.OWN,
        expected=Verdict.HOLDS,
    )
    def check(problem: Problem):
        """A layer-normalized network, 60 steps on minibatches; outputs on 40 samples after every step."""
        base, same, *wrong = scaled_runs(problem, name)
        yield agree(f"outputs over {len(base)} steps, c = {FACTOR:g}", same, base, tol=TOLERANCE)
        for symbol, outputs in zip(used, wrong, strict=True):
            yield differ(f"the same with {symbol} to another power of c", outputs[-1], base[-1])
        yield differ("the run moves at all", base[-1], base[0])
        weights = problem.normal("weights of a step", *SHAPE)
        gradients = problem.normal("gradients of a step", 3, *SHAPE)
        arguments = (name, weights, gradients, (0.2, 0.3 if decay else 0.0, 0.1 if eps else 0.0))
        yield agree("three steps by optax and by the lines of the proof", by_optax(*arguments), by_lines(*arguments))

    proves(id)(functools.partial(equivalence_proof, name))


for _name in OPTIMIZERS:
    _equivalence(_name)


def _fisher_of_weights(net: Network, weights: Float[Array, "H D"]) -> FisherOperator:
    """The Fisher matrix of the softmax outputs, of W alone."""
    outputs = lambda w, x: logits(net.params | {"weights": w}, x)
    return fisher(outputs, weights, net.inputs, family=families.Categorical(), check=False)


@jax.jit
def _natural_steps(net: Network, setting) -> Float[Array, "t N C"]:
    """Outputs after each of 12 steps of damped natural gradient on W, for one setting (c, η, λ, ρ)."""
    factor, rate, decay, damping = setting

    def step(weights, _):
        F = _fisher_of_weights(net, weights).as_matrix()
        params = net.params | {"weights": weights}
        gradient = jax.grad(loss)(params, net.inputs, net.labels)["weights"]
        direction = jnp.linalg.solve(F + damping * jnp.eye(len(F), dtype=F.dtype), gradient.reshape(-1))
        weights = weights - rate * (direction.reshape(weights.shape) + decay * weights)
        return weights, logits(params | {"weights": weights}, net.inputs)

    return jax.lax.scan(step, factor * net.params["weights"], None, length=12)[1]


@claim(
    "dynamics.equivalence.natural_gradient",
    topic=TOPIC,
    source="Section 5.2.2, implicit learning rate reduction",
    statement=(
        "Natural gradient: from cW with η and decoupled λ unchanged and c⁻² times the damping training is the same "
        "function at every step."
    ),
    formula=r"W_0 \to cW_0,\ \rho \to c^{-2}\rho \Rightarrow W_t \to cW_t",
    assumptions=("the loss ignores the scale of W", "ε = 0 in the norm"),
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def natural_gradient(problem: Problem):
    """(F + ρI)s = ∇L on the weights alone, with the Fisher matrix of the softmax outputs; 12 steps."""
    net = network(problem)
    net = Network(net.params, net.inputs[:60], net.labels[:60])
    rate, decay, damping = 0.3, 0.1, 0.05
    other = equivalent_schedule("natural_gradient", rate, decay, scale=FACTOR, eps=damping)
    same = np.array([FACTOR, other.learning_rate, other.weight_decay, other.eps])
    settings = [
        np.array([1.0, rate, decay, damping]),
        same,
        *(same * np.where(np.arange(4) == k, FACTOR, 1.0) for k in (1, 2, 3)),
    ]
    base, same, *wrong = (np.asarray(_natural_steps(net, np.asarray(s, net.inputs.dtype))) for s in settings)
    yield agree(f"outputs over 12 steps, c = {FACTOR:g}", same, base, tol=TOLERANCE)
    for symbol, changed in zip("ηλρ", wrong, strict=True):
        yield differ(f"the same with {symbol} to another power of c", changed[-1], base[-1])
    yield differ("the run moves at all", base[-1], base[0])
    F = _fisher_of_weights(net, net.params["weights"])
    weights, gradient = (np.asarray(p["weights"]).reshape(-1) for p in (net.params, compiled_gradient(*net, "ln")))
    null = weights / np.linalg.norm(weights)
    noisy = jnp.asarray(gradient + np.linalg.norm(gradient) * null)
    stepped = np.linalg.solve(np.asarray(F.as_matrix()) + damping * np.eye(len(gradient), dtype=null.dtype), gradient)
    for method, given in (("svd", {}), ("cg", {"nullspace": jnp.asarray(null[:, None]), "tolerance": 1e-11})):
        solution = F.solve(noisy, damping, null="drop", method=method, **given)
        yield agree(
            f"lg.fisher's solution by {method}, with noise along W, and (F + ρI)⁻¹∇L",
            solution.value.reshape(-1),
            stepped,
            tol=1e-9,
        )
        part = np.array([solution.unidentifiable])
        yield agree(f"its report by {method} of the part along W", part, np.array([0.5**0.5]), tol=1e-9)


def natural_gradient_proof(law: Law | None = None) -> Proof:
    """η and λ unchanged, damping → c⁻²damping: the Fisher matrix scales by c⁻²."""
    law = law or LAWS["natural_gradient"]
    F, s, W = field("F"), field("s"), field("W")
    damping = sp.Symbol("rho", positive=True)

    def damped(factor: Expr, damping: Expr, solution: Field) -> Expr:
        return total(lambda j: (factor * F(i, j) + damping * KroneckerDelta(i, j)) * solution(j), H)

    def stepped(c: Expr, rate: Expr, decay: Expr) -> Expr:
        return c * W(i) - rate * (c * s(i) + decay * c * W(i))

    return Proof(
        rf"W_0 \to cW_0,\ \eta \to c^{{{law.rate}}}\eta,\ \lambda \to c^{{{law.decay}}}\lambda,\ "
        rf"\rho \to c^{{{law.eps}}}\rho:\quad W_t \to cW_t",
        (
            *gradient_scaling(),
            *matrix_scaling(LAYER_NORM)[1:],
            equality(
                "If s solves (F + ρI)s = ∇L then cs solves the scaled system, whose right side is ∇L/c",
                damped(WEIGHT_FACTOR**-2, WEIGHT_FACTOR**law.eps * damping, lambda j: WEIGHT_FACTOR * s(j)),
                damped(sp.S.One, damping, s) / WEIGHT_FACTOR,
            ),
            equality(
                "so the step is c times the step, and so are the weights after it",
                stepped(WEIGHT_FACTOR, WEIGHT_FACTOR**law.rate * RATE, WEIGHT_FACTOR**law.decay * DECAY),
                WEIGHT_FACTOR * stepped(sp.S.One, RATE, DECAY),
            ),
        ),
        (SCALE_FREE,),
        name="dynamics.equivalence.natural_gradient",
    )


proves("dynamics.equivalence.natural_gradient")(natural_gradient_proof)

"""Arora, Li and Lyu (2018), *Theoretical Analysis of Auto Rate-Tuning by Batch Normalization*.

G̃ = ‖w‖‖∇L(w)‖ is the length of the gradient at w/‖w‖, which does not depend on ‖w‖.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lngeom.claims import Paper, Problem, Read, Verdict, agree, differ, same_integer, vanishes
from lngeom.claims.context import Context, Reading
from lngeom.papers.gallery.scale_invariant import loss, start
from lngeom.papers.lab import exponent_of
from lngeom.papers.training.learning_rate import sgd_norm_growth_proof
from lngeom.symbolic.jacobian import LAYER
from lngeom.symbolic.proof import Proof, equality
from lngeom.symbolic.scale_free import INVARIANT_METHODS, SCALE_FREE, SHORT, gradient_scaling, scaled_layer

PAPER = Paper(
    "arora2018",
    "Theoretical Analysis of Auto Rate-Tuning by Batch Normalization",
    ("Sanjeev Arora", "Zhiyuan Li", "Kaifeng Lyu"),
    2018,
    "1812.03981",
    "Gradient descent converges at every rate η, in a time proportional to the larger of η and 1/η; with weight decay "
    "the gradient on the sphere does not stay small.",
)
EPSILON = 0.0
"""ε of batch norm."""


class Descent(NamedTuple):
    """Gradient descent at several rates, each to its last step.

    Attributes:
        w: weights.
        size: G̃.
        steps: taken.
    """

    w: Float[Array, "R D"]
    size: Float[Array, " R"]
    steps: Array


def descend(problem: Problem, rates: np.ndarray, *, decay: float, steps: int, goal: float = 0.0) -> Descent:
    """W⁺ = (1 − ηλ)w − η∇L(w) until G̃ is below the goal, or for so many steps."""
    w, inputs = start(problem)
    return _descend(EPSILON, w, inputs, jnp.asarray(rates, w.dtype), decay, steps, goal)


@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.vmap, in_axes=(None, None, None, 0, None, None, None))
def _descend(eps: float, w: Array, inputs: Array, rate: Array, decay: Array, steps: Array, goal: Array) -> Descent:
    slope = jax.grad(lambda w: loss(w, inputs, eps))
    size = lambda w, gradient: jnp.linalg.norm(w) * jnp.linalg.norm(gradient)

    def step(carry):
        w, gradient, count = carry
        w = (1 - rate * decay) * w - rate * gradient
        return w, slope(w), count + 1

    going = lambda carry: (size(*carry[:2]) >= goal) & (carry[2] < steps)
    w_last, gradient, count = jax.lax.while_loop(going, step, (w, slope(w), 0))
    return Descent(w_last, size(w_last, gradient), count)


@PAPER.claim(
    "arora2018.lemma_2_4",
    source="Lemma 2.4",
    statement="A scale-invariant weight and its gradient are perpendicular, and ‖w⁺‖² = ‖w‖² + η²‖∇‖².",
    formula=r"\|w_{t+1}\|^2 = \|w_t\|^2 + \eta^2\|\nabla_wF\|^2",
    assumptions=("ε = 0", "no weight decay"),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def lemma_2_4(problem: Problem):
    """Along 30 steps of gradient descent on batch norm; more in `dynamics.orthogonality`."""
    w, inputs = start(problem)
    rate = 1.0
    slope = jax.grad(lambda w: loss(w, inputs, EPSILON))

    @jax.jit
    def path(w):
        def step(w, _):
            gradient = slope(w)
            return w - rate * gradient, (w, gradient)

        return jax.lax.scan(step, w, length=30)[1]

    weights, gradients = map(np.asarray, path(w))
    norms, sizes = np.sum(weights**2, 1), np.sum(gradients**2, 1)
    yield vanishes("⟨w, ∇⟩", np.sum(weights * gradients, 1), scale=float(np.sqrt(norms.max() * sizes.max())))
    yield agree("growth of ‖w‖² since the start", norms[1:] - norms[0], rate**2 * np.cumsum(sizes)[:-1], tol=1e-11)


@lemma_2_4.proof()
def lemma_2_4_proof() -> Proof:
    """The derivative of the outputs along w is zero; Pythagoras."""
    return Proof(
        r"\langle w,\nabla F\rangle = 0,\quad \|w^+\|^2 = \|w\|^2 + \eta^2\|\nabla F\|^2",
        sgd_norm_growth_proof().steps,
        (SCALE_FREE,),
    )


@PAPER.claim(
    "arora2018.small_gradients",
    source="Section 2: “there are ways to reduce the norm of the gradient that do not reduce the loss”",
    statement="There are ways to reduce the norm of the gradient that do not reduce the loss: scaling the weights by a "
    "large factor. The length G̃ = ‖w‖‖∇‖ is not reduced by it.",
    formula=r"\nabla L(cw) = c^{-1}\nabla L(w),\quad L(cw) = L(w)",
    assumptions=("ε = 0", "c > 0"),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def small_gradients(problem: Problem):
    """At w and 5w."""
    w, inputs = start(problem)
    found = jax.jit(jax.value_and_grad(lambda w: loss(w, inputs, EPSILON)))
    (value, gradient), (value_5, gradient_5) = found(w), found(5 * w)
    yield agree("L(5w) and L(w)", value_5, value)
    yield agree("5∇L(5w) and ∇L(w)", 5 * gradient_5, gradient)
    yield differ("∇L(5w) and ∇L(w)", gradient_5, gradient)


@small_gradients.proof()
def small_gradients_proof() -> Proof:
    """Outputs stay, and derivatives are divided by c."""
    return Proof(
        r"L(cw) = L(w),\quad \nabla L(cw) = c^{-1}\nabla L(w)",
        (
            *(
                equality(
                    f"{m.name}: the loss stays, since outputs do",
                    m(scaled_layer()),
                    m(LAYER),
                    rf"n^{{\mathrm{{{SHORT[m.name]}}}}}(cW)",
                )
                for m in INVARIANT_METHODS
            ),
            *gradient_scaling(),
        ),
        (SCALE_FREE,),
    )


LARGE_RATES = 10.0 ** np.arange(2, 5)
NORM_POWER = 1.0
"""Power of η in ‖w‖ after large steps."""


@PAPER.claim(
    "arora2018.effective_rate",
    source="beyond the paper",
    statement="After a large first step ‖w‖ is proportional to η, so that the effective rate η/‖w‖² is proportional to "
    "1/η: a rate that is too large becomes one that is too small.",
    assumptions=("no weight decay", "η²‖∇₀‖² ≫ ‖w₀‖²"),
    read=Read.OWN,
    expected=Verdict.HOLDS,
    why_numeric="that later steps add little is seen in numbers; the first step's part is arora2018.lemma_2_4",
)
def effective_rate(problem: Problem):
    """Norms after 300 steps at η = 10², 10³ and 10⁴, for a unit with 6 weights; the power of η ± 0.1."""
    norms = np.linalg.norm(np.asarray(descend(problem, LARGE_RATES, decay=0.0, steps=300).w), axis=1)
    found = exponent_of(LARGE_RATES, norms)
    yield vanishes(f"power of η in ‖w‖, {found:.3f}, η from 1e2 to 1e4", found - NORM_POWER, scale=1.0, tol=0.1)
    power = exponent_of(LARGE_RATES, LARGE_RATES / norms**2)
    yield vanishes(f"power of η in η/‖w‖², {power:.3f}", power - 1 + 2 * NORM_POWER, scale=1.0, tol=0.2)


RATES = 10.0 ** np.arange(-3, 5)
GOAL, LIMIT = 1e-2, 200_000
DECAY = 0.0
"""Weight decay of the runs that converge."""


def times(problem: Problem, decay: float) -> np.ndarray:
    """Steps until G̃ is below the goal, at each of the rates; the limit where it is not reached."""
    return np.asarray(descend(problem, RATES, decay=decay, steps=LIMIT, goal=GOAL).steps)


@PAPER.claim(
    "arora2018.any_rate",
    source="Theorem 3.1",
    statement="Gradient descent on scale-invariant parameters approaches a stationary point at every fixed learning "
    "rate, in the rate of T^(−1/2).",
    assumptions=("plain gradient descent, without weight decay",),
    context=Context(
        sentence="It is shown that even if we fix the learning rate of scale-invariant parameters (e.g., weights of "
        "each layer with BN) to a constant (say, 0.3), gradient descent still approaches a stationary point (i.e., a "
        "solution where gradient is zero) in the rate of T^(−1/2) in T iterations, asymptotically matching the best "
        "bound for gradient descent with well-tuned learning rates.",
        before="Here theoretical support is provided for one of its conjectured properties, namely, the ability to "
        "allow gradient descent to succeed with less tuning of learning rates.",
        after="A similar result with convergence rate T^(−1/4) is also shown for stochastic gradient descent.",
        readings=(Reading("Gradient descent is plain: it has no weight decay.", Verdict.HOLDS),),
        verdict="So it holds. The constant in the rate depends on η: the time to a given G̃ is proportional to the "
        "larger of 1/η and η. With weight decay, as in practice, the gradient on the sphere does not stay small.",
    ),
    read=Read.ABSTRACT,
    expected=Verdict.HOLDS,
    why_numeric="the proof is the paper's; here the number of steps is measured, at η from 10⁻³ to 10⁴",
)
def any_rate(problem: Problem):
    """Steps to G̃ < 0.01 for a unit with 6 weights, without decay; G̃ after 20 000 steps with λ = 0.05."""
    steps = times(problem, DECAY)
    found = int(np.sum(steps < LIMIT))
    yield same_integer(f"rates from 1e-3 to 1e4 at which G̃ < {GOAL} is reached", found, len(RATES))
    for name, part, power in (("1e-3 to 1e-1", slice(3), -1), ("1e2 to 1e4", slice(-3, None), 1)):
        slope = exponent_of(RATES[part], steps[part])
        curves = {"steps against η": (RATES, steps)}
        yield vanishes(
            f"power of η in the steps, {slope:.3f}, η from {name}", slope - power, scale=1.0, tol=0.1, curves=curves
        )
    late = descend(problem, np.linspace(0.1, 0.15, 5), decay=0.05, steps=20_000).size
    found = float(jnp.max(late))
    what = f"with weight decay 0.05, five η from 0.1 to 0.15: largest G̃ after 20 000 steps, {found:.3f}, and {GOAL}"
    yield differ(what, max(found, GOAL), GOAL)

"""Van Laarhoven (2017), *L2 Regularization versus Batch and Weight Normalization*: L_λ(w) = L(w) + λ‖w‖²."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize
import sympy as sp
from jaxtyping import Array, Float
from sympy import Expr

from lngeom.claims import Paper, Problem, Read, Role, Verdict, agree, differ, vanishes
from lngeom.claims.context import Context, Reading
from lngeom.papers.ba2016.scaling import by_methods
from lngeom.papers.gallery.scale_invariant import loss, outputs, start
from lngeom.papers.lab import exponent_of
from lngeom.symbolic.jacobian import LAYER
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, equality, expanded, fact
from lngeom.symbolic.scale_free import (
    DECAY,
    INVARIANT_METHODS,
    RATE,
    SCALE_FREE,
    SHORT,
    WEIGHT_FACTOR,
    dot,
    gradient_scaling,
    matrix_scaling,
    minus,
    perpendicular,
    radial_steps,
    scaled_layer,
    smooth,
    squared_tangent,
)
from lngeom.symbolic.sums import derivative, e, field

PAPER = Paper(
    "vanlaarhoven2017",
    "L2 Regularization versus Batch and Weight Normalization",
    ("Twan van Laarhoven",),
    2017,
    "1706.05350",
    "Newton's step on a scale-invariant loss is −w: it changes the length of the weights and nothing that was learned.",
)
WEIGHT = 0.05
"""λ where one value is enough."""


def objective(w: Float[Array, " D"], inputs: Float[Array, "N D"], weight: float, eps: float = 0.0):
    """L_λ(w)."""
    return loss(w, inputs, eps) + weight * jnp.sum(w**2)


def compensated(weight: float, factor: float) -> float:
    """The λ at w that αw has, λα²."""
    return weight * factor**2


@PAPER.claim(
    "vanlaarhoven2017.objective",
    source="Section 2",
    statement="L_λ(αw) = L_{λα²}(w): scaling the weights is scaling λ.",
    formula=r"L_\lambda(\alpha w) = L_{\lambda\alpha^2}(w)",
    assumptions=("ε = 0", "α > 0"),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def objectives(problem: Problem):
    """At three factors α."""
    w, inputs = start(problem)
    factors = (0.3, 3.0, 30.0)
    found = [objective(a * w, inputs, WEIGHT) for a in factors]
    stated = [objective(w, inputs, compensated(WEIGHT, a)) for a in factors]
    yield agree(f"α of {', '.join(map(str, factors))}", jnp.stack(found), jnp.stack(stated))


def _outputs_stay():
    return (
        equality(
            f"{m.name} does not see the scale of W",
            m(scaled_layer()),
            m(LAYER),
            rf"n^{{\mathrm{{{SHORT[m.name]}}}}}(cW)",
        )
        for m in INVARIANT_METHODS
    )


@objectives.proof()
def objectives_proof() -> Proof:
    """Outputs stay, and ‖αw‖² = α²‖w‖²."""
    w, c = field("w"), WEIGHT_FACTOR
    return Proof(
        r"L_\lambda(cw) = L_{\lambda c^2}(w)",
        (
            *_outputs_stay(),
            equality(
                "and the penalty is that of λc²",
                DECAY * dot(lambda d: c * w(d), lambda d: c * w(d)),
                DECAY * c**2 * dot(w, w),
                r"\lambda\lVert cw\rVert^2",
            ),
        ),
        (SCALE_FREE,),
    )


def optimum(problem: Problem, weight: float, eps: float) -> np.ndarray:
    """The unit's outputs at the minimizer of L_λ that is found from the start."""
    w, inputs = start(problem)
    slope = jax.jit(jax.value_and_grad(lambda w: objective(w, inputs, weight, eps)))
    value = lambda w: tuple(np.asarray(v, np.float64) for v in slope(jnp.asarray(w, inputs.dtype)))
    found = scipy.optimize.minimize(value, np.asarray(w), jac=True, method="BFGS", options={"gtol": 1e-9}).x
    return np.asarray(outputs(jnp.asarray(found, inputs.dtype), inputs, eps))


EPSILON = 0.0
"""ε of the first check."""


@PAPER.claim(
    "vanlaarhoven2017.no_effect",
    source="Section 2",
    statement="The parameter λ has no impact on the optimum, since the weights can be scaled to compensate.",
    assumptions=("ε = 0", "the optimum is an infimum: L_λ falls to L along every ray, and no minimizer exists"),
    context=Context(
        sentence="And the parameter λ has no impact on the optimum, since the weights can be scaled to compensate.",
        before="This means that the L2 penalty term forces the weights to become small, as expected, but that this has "
        "no regularizing effect of making the computed function simpler. The function y is exactly the same, "
        "regardless of the scale of the weights.",
        after="…",
        readings=(
            Reading("The optimum is the best computed function, approached as weights shrink; ε = 0.", Verdict.HOLDS),
            Reading("The optimum is attained, or ε > 0 as in practice.", Verdict.REFUTED),
        ),
        verdict="For ε = 0 the infimum is that of L for every λ, but no weights attain it. With ε > 0, as in practice, "
        "a minimizer exists, and its function depends on λ.",
    ),
    read=Read.NOTES,
    expected=Verdict.CONDITIONAL,
)
def no_effect(problem: Problem):
    """Along a ray to zero; and minimizers at ε = 0.1 for two λ."""
    w, inputs = start(problem)
    small = 1e-9 * w
    for weight in (0.1, 3.0):
        at = f"λ = {weight}"
        found, least = objective(small, inputs, weight, EPSILON), loss(w, inputs)
        yield agree(f"L_λ(αw) at α = 1e-9 and L(w), {at}", found, least)
        yield differ(f"L_λ(αw) at α = 1 and at α = 1e-9, {at}", objective(w, inputs, weight, EPSILON), found)
    few, many = (optimum(problem, weight, 0.1) for weight in (1e-3, 0.1))
    role = Role.FAILS_WITHOUT_CONDITION
    yield differ("outputs at the minimizer, ε = 0.1, λ of 0.001 and 0.1", few, many, role=role)


@no_effect.proof("conditional")
def no_effect_proof() -> Proof:
    """Along a ray only the penalty changes, and goes to zero."""
    alpha, size, value, weight = sp.symbols("alpha s L lambda", positive=True)
    ray = value + weight * alpha**2 * size
    w = sp.Symbol("w", positive=True)

    def sides(values) -> tuple[Expr, Expr]:
        output = w / sp.sqrt(w**2 + values[r"\epsilon"])
        slope = lambda weight: ((output - 1) ** 2 / 2 + weight * w**2).diff(w).subs(w, values["w"])
        return slope(values[r"\lambda_2"]), slope(values[r"\lambda_1"])

    moved = Counterexample(
        "vanlaarhoven2017.no_effect with ε > 0",
        r"\partial_wL_{\lambda_2}(w) = \partial_wL_{\lambda_1}(w) = 0",
        {r"\epsilon": 3, "w": 1, r"\lambda_1": sp.Rational(3, 32), r"\lambda_2": sp.Rational(3, 16)},
        sides,
        "Inputs ±1 with targets ±1, squared loss: the slope of L_λ for λ₂ (left), and for λ₁ (right), whose minimizer "
        "w is.",
    )
    return Proof(
        r"\inf_\alpha L_\lambda(\alpha w) = L(w)\ \text{for every}\ \lambda",
        (
            *_outputs_stay(),
            fact(
                "so along a ray, with s = ‖w‖², the objective is L + λα²s, which falls to L and does not attain it",
                r"\lim_{\alpha\to 0} L + \lambda\alpha^2s = L,\quad \lambda\alpha^2s > 0",
                lambda: sp.limit(ray, alpha, 0) == value and (ray - value).is_positive is True,
            ),
        ),
        (SCALE_FREE, Assumption("ε is zero", r"\epsilon = 0", moved)),
    )


OPTIMIZERS: dict[str, tuple[Callable[[], optax.GradientTransformation], float]] = {
    "SGD": (lambda: optax.sgd(1e-4), -2.0),
    "Adam": (lambda: optax.adam(1e-4, eps=0.0), -1.0),
    "normalized gradient descent": (
        lambda: optax.chain(optax.normalize_by_update_norm(eps=0.0), optax.scale_by_learning_rate(1e-4)),
        -1.0,
    ),
    "LARS": (lambda: optax.lars(1e-4, trust_coefficient=1.0, momentum=0.0), 0.0),
}
"""Optimizers, and the power of ‖w‖ in the angle of their steps."""


@PAPER.claim(
    "vanlaarhoven2017.adam_partly",
    source="Abstract: “ADAM only partially eliminate the influence of normalization on the learning rate”",
    statement="Adam eliminates the influence of the norm of the weights on the effective learning rate only in part: "
    "the angle of a step goes as ‖w‖⁻² under SGD and as ‖w‖⁻¹ under Adam.",
    assumptions=("small steps", "ε = 0, of batch norm and of Adam"),
    read=Read.ABSTRACT,
    expected=Verdict.HOLDS,
)
def adam_partly(problem: Problem):
    """The power of ‖w‖ in the angle of the first step, over a factor of 4; 0 under LARS."""
    w, inputs = start(problem)
    slope = jax.jit(jax.grad(lambda w: loss(w, inputs)))
    factors = np.array([1.0, 2.0, 4.0])
    for name, (make, power) in OPTIMIZERS.items():
        optimizer, angles = make(), []
        for factor in factors:
            before = factor * w
            with jax.numpy_dtype_promotion("standard"):
                step, _ = optimizer.update(slope(before), optimizer.init(before), before)
            turned = np.asarray(step - before * (before @ step) / (before @ before))  # pyright: ignore
            angles.append(np.linalg.norm(turned) / np.linalg.norm(before))
        found = exponent_of(factors, angles)
        yield vanishes(f"{name}: power of ‖w‖, {found:.3f} over ‖w‖ × 1 to 4", found - power, scale=1.0, tol=1e-3)


@adam_partly.proof()
def adam_partly_proof() -> Proof:
    """The gradient at cw is ∇L(w)/c; a step of fixed length turns cw by c⁻¹ times as much, to first order."""
    w, v, s = field("w"), field("v"), field("s")
    gradient = perpendicular(v, w)
    larger, weaker = (lambda d: WEIGHT_FACTOR * w(d)), (lambda d: gradient(d) / WEIGHT_FACTOR)
    tangent = r"\tan^2\theta(w)"
    moved = lambda start: lambda t: (start(e) - t * s(e)) / sp.sqrt(dot(minus(start, t, s), minus(start, t, s)))
    own, r = squared_tangent(w, gradient, RATE), sp.Symbol("r", nonzero=True)
    return Proof(
        r"\theta(cw) = c^{-2}\theta(w)\ \text{(SGD)},\quad c^{-1}\theta(w)\ \text{(Adam)}",
        (
            *gradient_scaling(),
            equality(
                "SGD: the squared tangent is c⁻⁴ times as large",
                squared_tangent(larger, weaker, RATE),
                sp.Symbol(tangent) / WEIGHT_FACTOR**4,
                r"\tan^2\theta(cw)",
                {tangent: own},
            ),
            expanded(
                "Adam's first step is a sign, and later ones are ratios m/√v: 1/c cancels",
                r"\frac{m/c}{\sqrt{v/c^2}} = \frac{m}{\sqrt v}",
                (r / WEIGHT_FACTOR) / sp.sqrt(v(e) ** 2 / WEIGHT_FACTOR**2) - r / sp.sqrt(v(e) ** 2),
            ),
            equality(
                "so the direction moves by c⁻¹ times as much, along any step s",
                derivative(moved(larger)),
                derivative(moved(w)) / WEIGHT_FACTOR,
                r"\hat w'(cw)_{e}",
            ),
        ),
        (SCALE_FREE,),
    )


def hessian(w: Array, inputs: Array) -> Array:
    """The second derivative of the loss."""
    return jax.hessian(loss)(w, inputs)


def gauss_newton(w: Array, inputs: Array) -> Array:
    """JᵀJ/N, the Fisher matrix of Gaussian outputs."""
    J = jax.jacobian(outputs)(w, inputs)
    return J.T @ J / len(inputs)


@PAPER.claim(
    "vanlaarhoven2017.newton",
    source="beyond the paper",
    statement="The steps of second-order methods do not depend on the scale of the weights.",
    assumptions=(
        "the curvature is a Gauss–Newton or Fisher matrix F, for which F w = 0; Newton's step, by the Hessian, is −w "
        "and turns nothing",
    ),
    read=Read.OWN,
    expected=Verdict.CONDITIONAL,
)
def newton(problem: Problem):
    """Natural-gradient steps at w and 3w turn both by the same angle; Newton's step is −w at both."""
    w, inputs = start(problem)
    parts = jax.jit(lambda w: (jax.grad(loss)(w, inputs), hessian(w, inputs), gauss_newton(w, inputs)))
    turns = []
    for factor in (1.0, 3.0):
        at = np.asarray(factor * w)
        gradient, H, F = map(np.asarray, parts(factor * w))
        step = 0.1 * np.linalg.pinv(F, rcond=1e-10, hermitian=True) @ gradient
        turns.append(np.linalg.norm(step) / np.linalg.norm(at))
        found = np.linalg.solve(H, gradient)
        yield agree(f"H⁻¹∇L and −w at {factor:g}w", found, -at, tol=1e-10, role=Role.FAILS_WITHOUT_CONDITION)
        yield agree(f"F⁺∇L is orthogonal to w, at {factor:g}w", 1 + step @ at, 1.0, tol=1e-10)
    yield agree("tangent of the angle of a natural-gradient step at w and 3w", turns[0], turns[1], tol=1e-10)
    yield differ("which is not 0", turns[0], 0.0)


@newton.proof("conditional")
def newton_proof() -> Proof:
    """By Euler's relation for a gradient of degree −1; F w = 0 and F(cw) = F(w)/c²."""
    c, slope = WEIGHT_FACTOR, smooth(0, 0, 1, 0)
    a, b = sp.symbols("a b", real=True)
    value = a**2 / (a**2 + b**2)
    point = {a: sp.Integer(1), b: sp.Integer(2)}

    def sides(values) -> tuple[Expr, Expr]:
        at = {a: values["w"][0], b: values["w"][1]}
        H = sp.hessian(value, (a, b)).subs(at)
        step = -(H.inv() * sp.Matrix([value.diff(a), value.diff(b)]).subs(at))
        assert step == sp.Matrix(values["w"])
        return (H * sp.Matrix(values["w"]))[0], sp.S.Zero

    by_hessian = Counterexample(
        "vanlaarhoven2017.newton with the Hessian",
        r"\nabla^2L\,w = 0",
        {"w": sp.Matrix([point[a], point[b]])},
        sides,
        "L(w) = w₁²/‖w‖²: the first entry of ∇²L w (left), which is −∇L; Newton's step is w itself, so that L stays.",
    )
    statement = r"F(cw)^+\nabla L(cw) = c\,F(w)^+\nabla L(w);\quad \nabla^2L\cdot w = -\nabla L"
    return Proof(
        statement,
        (
            *radial_steps(),
            by_methods(INVARIANT_METHODS, matrix_scaling),
            expanded(
                "so c²F⁺ ∇L/c = c F⁺∇L, a step that turns cw as its like turns w",
                r"c^2F^+\,c^{-1}\nabla L = c\,F^+\nabla L",
                c**2 * (slope / c) - c * slope,
            ),
            expanded(
                "Differentiating ∇L(cw) = ∇L(w)/c by c at 1; where ∇²L is regular, its inverse on ∇L is −w",
                r"\nabla^2L\cdot w = -\nabla L",
                (slope / c).diff(c).subs(c, 1) + slope,
            ),
        ),
        (SCALE_FREE, Assumption("the curvature is a Fisher matrix", r"Fw = 0", by_hessian)),
    )


def tangent_gradient(noise: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Random gradients of scale-invariant losses: orthogonal to w and of size 1/‖w‖."""
    norm = np.linalg.norm(w, axis=-1, keepdims=True)
    return (noise - np.sum(noise * w, -1, keepdims=True) * w / norm**2) / norm


POWERS = {"SGD": 1 / 4, "Adam with L2": 1 / 3, "AdamW": 1 / 2}
"""Power of η/λ in the stationary norm."""
DECAYS = 0.1 * 2.0 ** np.arange(4)
"""Four λ, whose η is 0.02."""


def stationary(name: str, seed: int, decays: np.ndarray = DECAYS, steps: int = 4000, size: int = 100) -> np.ndarray:
    """Root mean square of ‖w‖ for each λ, over the last three quarters of random walks, four for each.

    All of them start at one norm.
    """
    rng, rate, b1, b2 = np.random.default_rng(seed), 0.02, 0.9, 0.95
    decay = decays[:, None, None]
    w = rng.standard_normal((len(decays), 4, size))
    w *= (rate * size / (2 * decays.mean())) ** POWERS[name] / np.linalg.norm(w, axis=-1, keepdims=True)
    m, v, squares = np.zeros_like(w), np.full_like(w, 1 / np.sum(w**2, -1, keepdims=True)), []
    for step in range(steps):
        gradient = tangent_gradient(rng.standard_normal(w.shape), w)
        if name == "SGD":
            w = w - rate * (gradient + decay * w)
        else:
            inside = gradient + decay * w if name == "Adam with L2" else gradient
            m, v = b1 * m + (1 - b1) * inside, b2 * v + (1 - b2) * inside**2
            w = (1 - rate * decay * (name == "AdamW")) * w - rate * m / np.sqrt(v)
        if step >= steps // 4:
            squares.append(np.mean(np.sum(w**2, -1), 1))
    return np.sqrt(np.mean(squares, 0))


@PAPER.claim(
    "vanlaarhoven2017.equilibrium",
    source="beyond the paper",
    statement="With weight decay the norm of the weights goes as (η/λ)^¼ under SGD; as (η/λ)^⅓ under Adam with an L2 "
    "penalty, and as (η/λ)^½ under AdamW.",
    assumptions=("ηλ → 0", "independent random gradients"),
    read=Read.OWN,
    expected=Verdict.HOLDS,
    why_numeric="exponents of random walks, fitted over λ from 0.1 to 0.8 at η = 0.02; ± 0.1",
)
def equilibrium(problem: Problem):
    """Random gradients in 100 dimensions, four λ, 4000 steps."""
    for name, power in POWERS.items():
        norms = stationary(name, problem.seed)
        found = -exponent_of(DECAYS, norms)
        curves = {f"{name}: ‖w‖ against 1/λ": (1 / DECAYS, norms)}
        what = f"{name}: power of 1/λ, {found:.3f} for {power:.3f}, λ from 0.1 to 0.8"
        yield vanishes(what, found - power, scale=1.0, tol=0.1, curves=curves)


@PAPER.claim(
    "vanlaarhoven2017.fixed_norm",
    source="Section 5.5: “We can do this by rescaling the w to have norm 1”",
    statement="If the weights are rescaled to norm 1 after each step, the scale of the weights no longer changes and λ "
    "has no effect: a step turns them by arctan(η‖∇L(ŵ)‖).",
    formula=r"\tan\theta = \tfrac{\eta}{1 - \eta\lambda}\|\nabla L(\hat w)\|",
    assumptions=("ε = 0", "up to the factor 1/(1 − ηλ) of the rate, with decay −ηλw"),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def fixed_norm(problem: Problem):
    """20 steps with and without decay."""
    w, inputs = start(problem)
    rate, decay = 0.3, 0.5
    slope = jax.jit(jax.grad(lambda w: loss(w, inputs, EPSILON)))

    def run(rate, decay):
        at, found, sizes, cosines = w / jnp.linalg.norm(w), [], [], []
        for _ in range(20):
            gradient = slope(at)
            after = (1 - rate * decay) * at - rate * gradient
            after = after / jnp.linalg.norm(after)
            sizes.append(jnp.linalg.norm(gradient))
            cosines.append(after @ at)
            found.append(at := after)
        return tuple(np.asarray(jnp.stack(v)) for v in (found, sizes, cosines))

    path, sizes, cosines = run(rate, decay)
    faster = rate / (1 - rate * decay)
    yield agree("cos θ with decay", cosines, 1 / np.sqrt(1 + (faster * sizes) ** 2))
    other, sizes, cosines = run(faster, 0.0)
    yield agree("cos θ without decay", cosines, 1 / np.sqrt(1 + (faster * sizes) ** 2))
    yield agree("weights with decay, and at the rate η/(1 − ηλ) without", path, other, tol=1e-10)
    yield differ("weights at the end and at the start", path[-1], path[0])


@fixed_norm.proof()
def fixed_norm_proof() -> Proof:
    """Decay is a scaling of w, which the rescaling undoes."""
    w, v, r = field("w"), field("v"), field("r")
    gradient, kept = perpendicular(v, w), sp.Symbol("k", positive=True)
    decayed = lambda d: kept * w(d) - RATE * r(d)
    unit = lambda f: f(e) / sp.sqrt(dot(f, f))
    return Proof(
        r"\frac{(1-\eta\lambda)w - \eta\nabla L}{\|(1-\eta\lambda)w - \eta\nabla L\|} = "
        r"\frac{w - \eta'\nabla L}{\|w - \eta'\nabla L\|},\quad \eta' = \frac{\eta}{1-\eta\lambda}",
        (
            *radial_steps(),
            equality(
                "With k = 1 − ηλ > 0 and r = ∇L, the step is one at the rate η/k without decay",
                unit(decayed),
                unit(minus(w, RATE / kept, r)),
            ),
            equality(
                "and its tangent is η'‖∇L‖/‖w‖",
                squared_tangent(w, gradient, RATE / kept),
                (RATE / kept) ** 2 * dot(gradient, gradient) / dot(w, w),
                r"\tan^2\theta",
            ),
        ),
        (SCALE_FREE,),
    )

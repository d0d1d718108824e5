"""Santurkar, Tsipras, Ilyas and Mądry (2018), *How Does Batch Normalization Help Optimization*, on one unit.

y is one unit over a batch of m samples, ŷ is y normalized, z = γŷ + β. L is a function of z, and L̂ = L ∘ BN one of y.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import sympy as sp
from jaxtyping import Array, Float
from scipy.optimize import minimize_scalar
from sympy import Expr

from lngeom._core.draws import draw_small
from lngeom.claims import Paper, Problem, Read, Role, Verdict, agree, differ
from lngeom.claims.context import Context, Reading
from lngeom.claims.erratum import Consequence, Erratum
from lngeom.methods import LayerNorm, RMSNorm
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, expanded, matrix
from lngeom.symbolic.scale_free import dot, minus
from lngeom.symbolic.sums import Field, H, N, derivative, field, mean, total

PAPER = Paper(
    "santurkar2018",
    "How Does Batch Normalization Help Optimization?",
    ("Shibani Santurkar", "Dimitris Tsipras", "Andrew Ilyas", "Aleksander Mądry"),
    2018,
    "1805.11604",
    "Theorems 4.1 and 4.2 are equalities; the bound of Theorem 4.4 compares a squared norm with its square, and fails.",
)
GAMMA = 1.3


def normalized(y: Float[Array, " M"]) -> Float[Array, " M"]:
    """Y less its mean, over its standard deviation."""
    u = y - jnp.mean(y)
    return u / jnp.sqrt(jnp.mean(jnp.square(u)))


class Units(NamedTuple):
    """Units over a batch, and losses with their first two derivatives at the outputs; a row a unit.

    Attributes:
        y: activations.
        slope: ∂L/∂z.
        outer: ∂²L/∂z².
        gradient: ∂L̂/∂y by automatic differentiation.
        curvature: the second derivative of L̂ along that gradient.
    """

    y: Float[Array, "U M"]
    slope: Float[Array, "U M"]
    outer: Float[Array, "U M M"]
    gradient: Float[Array, "U M"]
    curvature: Float[Array, " U"]


@jax.jit
@jax.vmap
def _unit(a, c, y, form) -> Units:
    """A unit with the loss Σ a tanh(z + c) and a form in tanh(z), whose Hessian is full."""
    t = jnp.tanh
    loss = lambda z: jnp.sum(a * t(z + c)) + t(z) @ form @ t(z) / len(z)
    output = lambda y: GAMMA * normalized(y) + 0.2
    z, composed = output(y), lambda y: loss(output(y))
    v = jax.grad(composed)(y)
    return Units(y, jax.grad(loss)(z), jax.hessian(loss)(z), v, v @ jax.hessian(composed)(y) @ v)


def units(problem: Problem, count: int = 10, size: int = 12) -> Units:
    """Random units and losses."""
    keys = jax.random.split(problem.key("santurkar2018.units"), 4)
    shapes = ((count, size), (count, size), (count, size), (count, size, size))
    a, c, y, form = (draw_small(jax.random.normal, k, s, problem.dtype) for k, s in zip(keys, shapes, strict=True))
    return _unit(a, c, 2 * y + 1, form)


def through(slope, y):
    """(γ/σ)(g − mean(g) − ŷ mean(g ŷ)), the gradient of Fact C.1."""
    hat = normalized(y)
    return GAMMA / jnp.std(y) * (slope - jnp.mean(slope) - hat * jnp.mean(slope * hat))


def scale_of(y) -> Array:
    """σ, the standard deviation."""
    return jnp.std(y)


def bound(slope, y):
    """(γ²/σ²)(‖g‖² − ⟨1, g⟩²/m − ⟨g, ŷ⟩²/m), the right side of Theorem 4.1."""
    hat, size = normalized(y), len(y)
    kept = jnp.sum(slope**2) - jnp.sum(slope) ** 2 / size - jnp.sum(slope * hat) ** 2 / size
    return GAMMA**2 / scale_of(y) ** 2 * kept


# --- Proofs, of a vector over an index that runs to any size: samples of a batch, or units of a layer.

Y, MOVE, SLOPE, HAT = field("y"), field("v"), field("g"), field("h")
SCALE, GAIN = sp.Symbol(r"\sigma"), sp.Symbol("gamma", positive=True)
POSITIVE = Assumption("positive scale", r"\sigma > 0,\ \epsilon = 0")


def _statistics(size: Expr, centred: bool = True) -> tuple[Field, Expr]:
    """Deviations from the mean, or the values, and the root of their mean square."""
    u = (lambda l: Y(l) - mean(Y, size)) if centred else Y
    return u, sp.sqrt(mean(lambda l: u(l) ** 2, size))


def _letters(size: Expr, centred: bool = True) -> dict[str, object]:
    u, sigma = _statistics(size, centred)
    return {"h": lambda l: u(l) / sigma, r"\sigma": sigma}


def backward_steps(size: Expr, centred: bool = True) -> tuple[Step, Step]:
    """The gradient through a norm and its length, as equalities."""
    shift = (lambda f: mean(f, size)) if centred else (lambda f: sp.S.Zero)

    def moved(l) -> Expr:
        def curve(t):
            y = lambda j: Y(j) + t * MOVE(j)
            u = lambda j: y(j) - shift(y)
            return GAIN * u(l) / sp.sqrt(mean(lambda j: u(j) ** 2, size))

        return derivative(curve)

    along = mean(lambda j: SLOPE(j) * HAT(j), size)
    back = lambda l: GAIN / SCALE * (SLOPE(l) - shift(SLOPE) - HAT(l) * along)
    whole = lambda f: total(f, size)
    squares = whole(lambda l: SLOPE(l) ** 2) - (whole(SLOPE) ** 2 / size if centred else 0)
    letters = _letters(size, centred)
    return (
        equality(
            "The gradient, from ⟨g, dz[v]⟩ = ⟨∂L̂/∂y, v⟩, with h = ŷ",
            whole(lambda l: SLOPE(l) * moved(l)),
            whole(lambda l: back(l) * MOVE(l)),
            r"\langle g, dz[v]\rangle",
            letters,
        ),
        equality(
            "and its squared length",
            whole(lambda l: back(l) ** 2),
            GAIN**2 / SCALE**2 * (squares - whole(lambda l: SLOPE(l) * HAT(l)) ** 2 / size),
            r"\lVert\nabla_y\hat L\rVert^2",
            letters,
        ),
    )


def curvature_steps(size: Expr, centred: bool = True) -> tuple[Step, ...]:
    """Along a gradient v, which is orthogonal to 1 and ŷ, ŷ moves as (u + tv)/√(σ² + t²‖v‖²/m)."""
    letters = _letters(size, centred)
    inner = mean(lambda j: MOVE(j) * HAT(j), size)
    v = lambda l: MOVE(l) - (mean(MOVE, size) if centred else 0) - HAT(l) * inner
    t = sp.Symbol("t", real=True)
    u_, v_, s, q = sp.Symbol("u", real=True), sp.Symbol("v", real=True), *sp.symbols("s q", positive=True)
    path = (u_ + t * v_) / sp.sqrt(s**2 + t**2 * q)
    first, second = path.diff(t).subs(t, 0), path.diff(t, 2).subs(t, 0)
    return (
        *((equality("A gradient v has mean 0", mean(v, size), 0, r"\mathrm{mean}\,v", {"h": letters["h"]}),) * centred),
        equality(
            "A gradient v is orthogonal to ŷ",
            mean(lambda l: v(l) * HAT(l), size),
            0,
            r"\mathrm{mean}\,v\hat y",
            {"h": letters["h"]},
        ),
        expanded(
            "so along it the variance is σ² + t²‖v‖²/m, and ŷ has these derivatives, q = ‖v‖²/m",
            r"\hat y' = v/\sigma,\quad \hat y'' = -\hat y\,q/\sigma^2",
            first - v_ / s,
            second + u_ / s * q / s**2,
        ),
    )


def second_order() -> Step:
    """The chain rule along a curve whose first and second derivatives are those of ŷ."""
    outer, g, first, gain, s, q, hat, t = sp.symbols("kappa g v gamma s q y t", real=True)
    path = gain * (hat + t * first / s - t**2 / 2 * hat * q / s**2)
    form = g * (path - gain * hat) + outer / 2 * (path - gain * hat) ** 2
    return expanded(
        "A loss with slope g and curvature κ has this second derivative; a form adds up such terms",
        r"\frac{d^2}{dt^2}L = \frac{\gamma^2}{\sigma^2}\kappa v^2 - \frac{\gamma q}{\sigma^2}g\hat y",
        form.diff(t, 2).subs(t, 0) - gain**2 / s**2 * outer * first**2 + gain * q / s**2 * g * hat,
    )


@PAPER.claim(
    "santurkar2018.fact_c1",
    source="Fact C.1",
    statement="The gradient through batch norm is (γ/σ)(∂L/∂z − mean(∂L/∂z) − ŷ mean(ŷ ∂L/∂z)).",
    formula=r"\partial\hat L/\partial y = \tfrac{\gamma}{m\sigma}(m g - \sum g - \hat y\sum g\hat y)",
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def fact_c1(problem: Problem):
    """Against automatic differentiation."""
    found = units(problem)
    yield agree("∂L̂/∂y", found.gradient, jax.vmap(through)(found.slope, found.y))


@fact_c1.proof()
def fact_c1_proof() -> Proof:
    """By differentiation along every change of y."""
    return Proof(
        r"\partial\hat L/\partial y = \tfrac{\gamma}{\sigma}(g - \bar g - \hat y\,\mathrm{mean}(g\hat y))",
        backward_steps(N)[:1],
        (POSITIVE,),
    )


@PAPER.claim(
    "santurkar2018.theorem_4_1",
    source="Theorem 4.1",
    statement="‖∇_y L̂‖² ≤ (γ²/σ²)(‖∇_y L‖² − ⟨1, ∇_y L⟩²/m − ⟨∇_y L, ŷ⟩²/m) for an identical network without batch "
    "norm. It is an equality.",
    assumptions=("∇_y L is the gradient that arrives at the output of batch norm, as the proof has it",),
    read=Read.NOTES,
    expected=Verdict.CONDITIONAL,
)
def theorem_4_1(problem: Problem):
    """An equality with ∂L/∂z; with the same L at the activations y it is violated in most of 500 draws."""
    found = units(problem)
    right = jax.vmap(bound)(found.slope, found.y)
    yield agree("‖∇_y L̂‖² and the right side", jnp.sum(found.gradient**2, 1), right)
    left, right = readings(problem)
    yield differ(
        f"largest part of ‖∇_y L̂‖² above the right side, ∇_y L taken at y: {np.sum(left > right)} of {len(left)} draws",
        np.max(np.maximum(left - right, 0) / left),
        0.0,
        role=Role.FAILS_WITHOUT_CONDITION,
    )


def readings(problem: Problem, *, literal: bool = True, draws: int = 500, size: int = 12):
    """Both sides of Theorem 4.1 for L = Σ a tanh and random activations, ∇_y L taken at y, or at z."""
    keys = jax.random.split(problem.key("santurkar2018.readings"), 3)
    a, y = (jax.random.normal(k, (draws, size), problem.dtype) for k in keys[:2])
    spread = jnp.exp(draw_small(jax.random.normal, keys[2], (draws, 1), problem.dtype))
    y = 3 * spread * y

    @jax.vmap
    def sides(a, y):
        z = GAMMA * normalized(y)
        slope = a * (1 - jnp.tanh(z) ** 2)
        at = a * (1 - jnp.tanh(y) ** 2) if literal else slope
        return jnp.sum(through(slope, y) ** 2), bound(at, y)

    left, right = jax.jit(sides)(a, y)
    return np.asarray(left), np.asarray(right)


@theorem_4_1.proof("conditional")
def theorem_4_1_proof() -> Proof:
    """The length of a projection."""

    def sides(values) -> tuple[Expr, Expr]:
        c, y = list(values["c"]), list(values["y"])
        size = sp.Integer(len(y))
        sigma = sp.sqrt(sum(b**2 for b in y) / size)
        hat = [b / sigma for b in y]
        assert sum(y) == 0

        def kept(g) -> Expr:
            products = sum(a * b for a, b in zip(g, hat, strict=True))
            return sum(a**2 for a in g) - sum(g) ** 2 / size - products**2 / size

        left, right = (kept([a * b for a, b in zip(c, at, strict=True)]) / sigma**2 for at in (hat, y))
        return sp.Max(left, right), right

    literal = Counterexample(
        "santurkar2018.theorem_4_1 with ∇L at the activations",
        r"\max(\|\nabla_y\hat L\|^2, \text{right side}) = \text{right side}",
        {"c": matrix([[1, 2, 3, 4]]), "y": matrix([["1/10", "1/10", "-1/10", "-1/10"]])},
        sides,
        "L(y) = ½ Σ c y², γ = 1, β = 0: the larger of both sides (left), and the right side with ∇L at y (right).",
    )
    return Proof(
        r"\|\nabla_y\hat L\|^2 = \tfrac{\gamma^2}{\sigma^2}\left(\|g\|^2 - \langle 1, g\rangle^2/m - "
        r"\langle g, \hat y\rangle^2/m\right)",
        backward_steps(N),
        (POSITIVE, Assumption("the same gradient arrives", r"\nabla_yL = \partial L/\partial z", literal)),
    )


SIGN = -1.0
"""Sign of the second term of Theorem 4.2."""


@PAPER.claim(
    "santurkar2018.theorem_4_2",
    source="Theorem 4.2, first display",
    statement="Along the gradient v = ∇_y L̂ the curvature is at most (γ²/σ²) vᵀ(∂²L/∂z²)v − (γ/(mσ²))⟨∂L/∂z, ŷ⟩‖v‖². "
    "It is an equality; where ⟨∂L/∂z, ŷ⟩ < 0, which the authors exclude, the second term raises the curvature.",
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def theorem_4_2(problem: Problem):
    """The Hessian of L̂ by automatic differentiation, for ten units."""
    y, slope, outer, v, left = map(np.asarray, units(problem))
    sigma = y.std(1)
    inner = np.sum(slope * (y - y.mean(1, keepdims=True)), 1) / sigma
    kept = GAMMA**2 / sigma**2 * np.einsum("ui,uij,uj->u", v, outer, v)
    right = kept + SIGN * GAMMA / (y.shape[1] * sigma**2) * inner * np.sum(v**2, 1)
    yield agree("vᵀ∇²L̂ v and the right side", left, right)
    raised = (left > kept) == (inner < 0)
    yield agree("curvature is raised exactly where ⟨∂L/∂z, ŷ⟩ < 0", raised.astype(float), np.ones(len(raised)))


@theorem_4_2.proof()
def theorem_4_2_proof() -> Proof:
    """The chain rule to second order, along a path on which mean and direction of ŷ are simple."""
    return Proof(
        r"v^\top\nabla^2\hat L\,v = \tfrac{\gamma^2}{\sigma^2}v^\top\nabla^2L\,v - "
        r"\tfrac{\gamma}{m\sigma^2}\langle g, \hat y\rangle\|v\|^2",
        (
            *curvature_steps(N),
            second_order(),
        ),
        (POSITIVE,),
    )


class Worst(NamedTuple):
    """Theorem 4.4 for a draw.

    Attributes:
        plain: max ‖∇_W L‖² over inputs with ‖X‖ ≤ λ.
        normal: the same of L̂, at given statistics.
        average: μ_g.
        inner: ⟨∇_y L, ŷ⟩.
        factor: γ²/σ².
        radius: λ.
        size: m.
    """

    plain: np.ndarray
    normal: np.ndarray
    average: np.ndarray
    inner: np.ndarray
    factor: np.ndarray
    radius: np.ndarray
    size: int


def worst(problem: Problem, draws: int = 500, size: int = 12) -> Worst:
    """Random gradients of random size, radii and activations; the maximum of ‖Xᵀg‖² is attained at X = λ g uᵀ/‖g‖."""
    rng = np.random.default_rng(problem.seed)
    g, y = rng.standard_normal((2, draws, size))
    g *= np.exp(2 * rng.standard_normal((draws, 1)))
    radius = np.exp(rng.standard_normal(draws))
    hat = (y - y.mean(1, keepdims=True)) / y.std(1, keepdims=True)
    back = np.asarray(jax.vmap(through)(g, y))

    def largest(g):
        inputs = radius[:, None] * g / np.linalg.norm(g, axis=1, keepdims=True)
        return np.sum(inputs * g, 1) ** 2

    inner = np.sum(g * hat, 1)
    return Worst(largest(g), largest(back), g.mean(1), inner, GAMMA**2 / y.var(1), radius, size)


def corrected(found: Worst):
    """(γ²/σ²)(g − λ²mμ² − λ²⟨∇_y L, ŷ⟩²/m)."""
    kept = found.plain - found.radius**2 * (found.size * found.average**2 + found.inner**2 / found.size)
    return found.factor * kept


@PAPER.claim(
    "santurkar2018.theorem_4_4",
    source="Theorem 4.4",
    statement="With g = max ‖∇_W L‖² over inputs ‖X‖ ≤ λ, and ĝ the same with batch norm, "
    "ĝ ≤ (γ²/σ²)(g² − mμ_g² − λ²⟨∇_y L, ŷ⟩²).",
    formula=r"\hat g \leq \tfrac{\gamma^2}{\sigma^2}(g^2 - m\mu_g^2 - \lambda^2\langle\nabla_yL, \hat y\rangle^2)",
    context=Context(
        sentence="ĝ_j ≤ (γ²/σ_j²)(g_j² − mμ²_{g_j} − λ²⟨∇_{y_j}L, ŷ_j⟩²)",
        before="For a BatchNorm network with loss L̂ and an identical non-BN network (with identical loss L), if "
        "g_j = max_{‖X‖≤λ} ‖∇_W L‖², ĝ_j = max_{‖X‖≤λ} ‖∇_W L̂‖²",
        after="…",
        readings=(
            Reading("The bound on the weights improves by the two projections of Theorem 4.1.", Verdict.HOLDS),
            Reading("g and ĝ are the squared norms that the theorem defines.", Verdict.SLIP),
            Reading("g stands for the norm without its square.", Verdict.SLIP),
        ),
        verdict="It was read in transcriptions, and these may err. With g² a small gradient makes the right side "
        "negative. With the norm in place of its square, so that g² is λ²‖∇_y L‖², the last term is m times too large: "
        "it fails wherever the gradient has mean 0 and is not orthogonal to ŷ. The bound is right with g, λ² and 1/m, "
        "at the mean, σ and ŷ of the given activations while X varies; so the conclusion of the theorem stands.",
    ),
    erratum=Erratum(
        Consequence.NOTATION,
        "Theorem 4.4 has the square of a squared norm, and lacks a factor λ² and a factor 1/m; with them it is an "
        "equality.",
    ),
    read=Read.NOTES,
    expected=Verdict.SLIP,
    correction="ĝ = (γ²/σ²)(g − λ²mμ_g² − (λ²/m)⟨∇_y L, ŷ⟩²) at fixed statistics: the bound on the weights' gradient "
    "improves by the same two projections as in Theorem 4.1.",
)
def theorem_4_4(problem: Problem):
    """500 draws of gradients, radii and activations."""
    found = worst(problem)
    subtracted = found.size * found.average**2 + found.radius**2 * found.inner**2
    right = found.factor * (found.plain**2 - subtracted)
    violated = found.normal > right
    ratio = np.max(np.where(violated, found.normal - right, 0) / found.normal)
    yield differ(
        f"largest excess of ĝ over the printed right side, relative to ĝ: {int(violated.sum())} of 500 draws",
        ratio,
        0.0,
        role=Role.MISPRINT,
    )
    right = found.factor * (found.plain - subtracted)
    excess = np.max(np.maximum(found.normal - right, 0) / found.normal)
    yield differ("the same with g for g²: the norm in place of its square", excess, 0.0, role=Role.MISPRINT)
    yield agree(
        "ĝ and the corrected right side, relative",
        corrected(found) / found.normal,
        np.ones(len(found.normal)),
        tol=1e-10,
        role=Role.CORRECTS,
    )


@theorem_4_4.proof("slip")
def theorem_4_4_proof() -> Counterexample:
    """At a small gradient the right side is negative."""
    radius, size = sp.Symbol("lambda", positive=True), N
    squared, sums, inner = sp.symbols("a s p", real=True)
    correct = Proof(
        r"\hat g = \tfrac{\gamma^2}{\sigma^2}(g - \lambda^2m\mu_g^2 - \tfrac{\lambda^2}{m}"
        r"\langle\nabla_yL, \hat y\rangle^2)",
        (
            *backward_steps(N),
            equality(
                "‖Xᵀg‖ ≤ λ‖g‖, attained by X = λ g wᵀ/‖g‖ with ‖w‖ = 1",
                total(lambda l: SLOPE(l) * radius * SLOPE(l) / sp.sqrt(dot_over(SLOPE)), N) ** 2,
                radius**2 * dot_over(SLOPE),
                r"\lVert X^\top g\rVert^2",
            ),
            expanded(
                "With g = λ²a, a = ‖∇L‖², and mμ² = s²/m, the length times λ² is the bound",
                r"\lambda^2\left(a - \frac{s^2}{m} - \frac{p^2}{m}\right) = g - \lambda^2\frac{s^2}{m} - "
                r"\frac{\lambda^2}{m}p^2",
                radius**2 * (squared - sums**2 / size - inner**2 / size)
                - (radius**2 * squared - radius**2 * size * (sums / size) ** 2 - radius**2 / size * inner**2),
            ),
        ),
        (POSITIVE, Assumption("statistics are those of the given activations", r"\sigma, \hat y\ \text{fixed}")),
        name="the correction",
    )

    def sides(values) -> tuple[Expr, Expr]:
        g, hat = list(values["g"]), list(values[r"\hat y"])
        size, radius = sp.Integer(len(g)), values[r"\lambda"]
        squares, inner = sum(a**2 for a in g), sum(a * b for a, b in zip(g, hat, strict=True))
        plain = radius**2 * squares
        normal = radius**2 * (squares - sum(g) ** 2 / size - inner**2 / size)
        right = plain**2 - size * (sum(g) / size) ** 2 - radius**2 * inner**2
        return sp.Max(normal, right), right

    return Counterexample(
        "santurkar2018.theorem_4_4",
        r"\max(\hat g, \text{right side}) = \text{right side}",
        {
            "g": matrix([["1/10", "-1/10", "1/5", "0"]]),
            r"\hat y": matrix([[1, 1, -1, -1]]),
            r"\lambda": 1,
            r"\gamma": 1,
            r"\sigma": 1,
        },
        sides,
        "The larger of ĝ and the printed right side (left), and the right side (right).",
        correct,
    )


def dot_over(f: Field) -> Expr:
    """Σ f² over the batch."""
    return total(lambda l: f(l) ** 2, N)


def improvement(start, optimum):
    """(‖W*‖² − ⟨W*, W₀⟩)²/‖W*‖²."""
    return (optimum @ optimum - optimum @ start) ** 2 / (optimum @ optimum)


@PAPER.claim(
    "santurkar2018.lemma_4_5",
    source="Lemma 4.5",
    statement="The nearest optimum of the network with batch norm, k W* with k > 0, has the squared distance "
    "‖W₀ − W*‖² − (‖W*‖² − ⟨W*, W₀⟩)²/‖W*‖² from W₀.",
    assumptions=("⟨W₀, W*⟩ > 0",),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def lemma_4_5(problem: Problem):
    """By minimization over k; and where ⟨W₀, W*⟩ < 0, the formula is another number than the minimum."""
    rng = np.random.default_rng(problem.seed)
    start, optimum = rng.standard_normal((2, 8))
    start = start * np.sign(start @ optimum)
    for name, W0, evidence in (("", start, agree), (", ⟨W₀, W*⟩ < 0", -start, differ)):
        distance = lambda k, W0=W0: float(np.sum((W0 - k * optimum) ** 2))
        nearest = minimize_scalar(distance, bounds=(0, 10), method="bounded", options={"xatol": 1e-12}).fun  # pyright: ignore
        stated = np.sum((W0 - optimum) ** 2) - improvement(W0, optimum)
        yield evidence(f"least ‖W₀ − kW*‖² over k > 0{name}", nearest, stated)


@lemma_4_5.proof()
def lemma_4_5_proof() -> Proof:
    """By completing the square."""
    start, optimum, k = field("a"), field("b"), sp.Symbol("k", positive=True)
    square, inner = dot(optimum, optimum), dot(start, optimum)
    stated = dot(minus(start, sp.S.One, optimum), minus(start, sp.S.One, optimum)) - (square - inner) ** 2 / square
    return Proof(
        r"\min_{k>0}\|W_0 - kW^*\|^2 = \|W_0 - W^*\|^2 - (\|W^*\|^2 - \langle W^*, W_0\rangle)^2/\|W^*\|^2",
        (
            equality(
                "With a = W₀, b = W*: the distance is the stated one and a square, zero at k = ⟨a, b⟩/‖b‖² > 0",
                dot(minus(start, k, optimum), minus(start, k, optimum)),
                stated + square * (k - inner / square) ** 2,
                r"\lVert a - kb\rVert^2",
            ),
        ),
        (Assumption("the angle is acute", r"\langle W_0, W^*\rangle > 0"),),
    )


def of_rows(a: Float[Array, "N H"], method) -> Float[Array, "N H"]:
    """A normalizer of summed inputs themselves."""
    return method(jnp.eye(a.shape[1], dtype=a.dtype), a)


def row_length(slope, a, n, *, centred: bool):
    """σ⁻²(‖g‖² − (1ᵀg)²/H − (nᵀg)²/H), of each row; without the mean term for RMS norm."""
    size = a.shape[1]
    scale = np.std(a, 1) if centred else np.sqrt(np.mean(a**2, 1))
    kept = np.sum(slope**2, 1) - np.sum(n * slope, 1) ** 2 / size
    return (kept - np.sum(slope, 1) ** 2 / size if centred else kept) / scale**2


@PAPER.claim(
    "santurkar2018.layer_norm",
    source="Theorems 4.1 and 4.2, for a layer in place of a batch",
    statement="The same equalities hold for layer norm over the H units of a layer, and for RMS norm without the term "
    "of the mean.",
    formula=r"\|\partial L/\partial a\|^2 = \sigma^{-2}(\|g\|^2 - (1^\top g)^2/H - (n^\top g)^2/H)",
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def layer_norm(problem: Problem):
    """Random rows of 9 units, by automatic differentiation of the library's normalizers."""
    keys = jax.random.split(problem.key("santurkar2018.rows"), 2)
    a, slope = (draw_small(jax.random.normal, k, (20, 9), problem.dtype) for k in keys)
    a = a + 0.5
    for name, method, centred in (("Layer norm", LayerNorm(), True), ("RMS norm", RMSNorm(), False)):

        @jax.jit
        def found(a, slope, method=method):
            n, pull = jax.vjp(lambda a: of_rows(a, method), a)
            value = lambda row: jnp.sum(jnp.cos(of_rows(row[None, :], method)))
            v = jax.grad(value)(a[0])
            return n, pull(slope)[0], v, v @ jax.hessian(value)(a[0]) @ v

        n, back, v, second = map(np.asarray, found(a, slope))
        length = row_length(np.asarray(slope), np.asarray(a), n, centred=centred)
        yield agree(f"{name}: ‖∂L/∂a‖²", np.sum(back**2, 1), length)
        first = np.asarray(a[0])
        square = np.var(first) if centred else np.mean(first**2)
        stated = (-np.cos(n[0]) @ v**2 + np.sin(n[0]) @ n[0] * (v @ v) / len(v)) / square
        yield agree(f"{name}: curvature along the gradient", second, stated)


@layer_norm.proof()
def layer_norm_proof() -> Proof:
    """The same steps over units."""
    return Proof(
        r"\|\partial L/\partial a\|^2 = \sigma^{-2}(\|g\|^2 - (1^\top g)^2/H - (n^\top g)^2/H)",
        (
            *backward_steps(H),
            *curvature_steps(H),
            *_named(backward_steps(H, False)),
            *_named(curvature_steps(H, False)),
            second_order(),
        ),
        (POSITIVE,),
    )


def _named(steps: tuple[Step, ...]) -> list[Step]:
    return [Step(f"RMS norm: {step.text}", step.formula, step.verify, step.sizes) for step in steps]

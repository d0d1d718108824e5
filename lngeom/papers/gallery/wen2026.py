"""Wen, Dang, Lyu, Ma and Liang (2026), *Hyperball Optimization*, and the first author's note on weight decay.

The note's model: gradients g are independent standard normal, u⁺ = βu + (1 − β)g, W⁺ = αW − ηu⁺ with α = 1 − ηλ, and U²
is the mean of ‖u‖².
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import sympy as sp
from jaxtyping import Float
from sympy import Expr

from lngeom.claims import Paper, Problem, Read, Verdict, agree, differ, vanishes
from lngeom.claims.context import Context, Reading
from lngeom.papers.gallery.vanlaarhoven2017 import tangent_gradient
from lngeom.papers.lab import at_least, at_most
from lngeom.papers.training.equilibria import filtered
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, expanded, fact, refutation
from lngeom.symbolic.scale_free import RATE, dot, minus, squared_tangent
from lngeom.symbolic.sums import field

PAPER = Paper(
    "wen2026",
    "Fantastic Pretraining Optimizers and Where to Find Them II: Hyperball Optimization",
    ("Kaiyue Wen", "Xingyu Dang", "Kaifeng Lyu", "Tengyu Ma", "Percy Liang"),
    2026,
    "2606.16899",
    "The angle of a step of AdamW at equilibrium has the exact law cos θ = (α + β₁)/(1 + αβ₁), whose sine is the "
    "authors' formula for the length of the step.",
)
NOTE = "Part 2 of the first author's blog posts, weight decay theory"
SETTINGS = ((0.01, 0.9), (0.1, 0.9), (0.1, 0.5), (0.25, 0.5))
"""Pairs of ηλ and β at which the model is simulated."""
SIZE = 20_000


class Walk(NamedTuple):
    """The model at equilibrium, by one draw of 20 000 weights at η = 1.

    Attributes:
        square: mean of W².
        update: U² over the number of weights.
        product: mean of u⁺W, of the weights and the update that is added to them.
        cosine: of W and W⁺.
        growth: mean of W⁺² less α² times the mean of W².
    """

    square: float
    update: float
    product: float
    cosine: float
    growth: float


@cache
def walk(seed: int, strength: float, beta: float) -> Walk:
    """Simulates the model from zero for six times 1/ηλ steps, at least 100."""
    rng, alpha = np.random.default_rng(seed), 1 - strength
    u, w = np.zeros((2, SIZE))
    for _ in range(max(100, int(6 / strength))):
        u = beta * u + (1 - beta) * rng.standard_normal(SIZE)
        before, w = w, alpha * w - u
    mean = lambda a, b: float(np.mean(a * b))
    square, cosine = mean(before, before), mean(before, w) / math.sqrt(mean(before, before) * mean(w, w))
    return Walk(square, mean(u, u), mean(u, before), cosine, mean(w, w) - alpha**2 * square)


def update_square(beta: float) -> float:
    """U² over the number of weights."""
    return (1 - beta) / (1 + beta)


def norm_square(alpha: float, beta: float) -> float:
    """E‖W‖² over η²U²."""
    return (1 + alpha * beta) / ((1 - alpha**2) * (1 - alpha * beta))


def product(alpha: float, beta: float) -> float:
    """E⟨u, W⟩ over ηU²."""
    return -beta / (1 - alpha * beta)


def cosine(alpha: float, beta: float) -> float:
    """Cos θ between W and W⁺."""
    return (alpha + beta) / (1 + alpha * beta)


def printed(alpha: float, beta: float) -> float:
    """‖Ŵ⁺ − Ŵ‖ as the note has it."""
    return math.sqrt((1 - alpha**2) * (1 - beta**2)) / (1 + alpha * beta)


# --- Proofs: stationary second moments of (u, W).

ALPHA, BETA, NOISE = sp.symbols("alpha beta V", positive=True)
SQUARE = NOISE * (1 - BETA) ** 2 / (1 - BETA**2)
PRODUCT = -RATE * BETA * SQUARE / (1 - ALPHA * BETA)
NORM = RATE**2 * SQUARE * (1 + ALPHA * BETA) / ((1 - ALPHA**2) * (1 - ALPHA * BETA))
STATIONARY = Assumption("the walk is stationary", r"0 < \alpha < 1,\ 0 \leq \beta < 1")


def moment_steps() -> tuple[Step, ...]:
    """U², E⟨u⁺, W⟩ and E‖W‖² solve the equations of a stationary state."""
    return (
        expanded(
            "With E‖g‖² = V, u⁺ = βu + (1 − β)g leaves this U²",
            r"U^2 = \beta^2U^2 + (1-\beta)^2V",
            SQUARE - BETA**2 * SQUARE - (1 - BETA) ** 2 * NOISE,
        ),
        expanded(
            "The product p = E⟨u⁺, W⟩ with W = αW' − ηu",
            r"p = \beta(\alpha p - \eta U^2)",
            PRODUCT - BETA * (ALPHA * PRODUCT - RATE * SQUARE),
        ),
        expanded(
            "and the norm",
            r"E\|W\|^2 = \alpha^2E\|W\|^2 - 2\alpha\eta p + \eta^2U^2",
            NORM - ALPHA**2 * NORM + 2 * ALPHA * RATE * PRODUCT - RATE**2 * SQUARE,
        ),
    )


def ratio_of(m: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Adam's update, m/√v."""
    return m / np.sqrt(v)


def final_norm(seed: int, scale: float, *, adam: bool, steps: int = 1500, size: int = 100) -> float:
    """‖W‖ after a random walk with gradients of size `scale`/‖W‖, under AdamW or SGD with weight decay."""
    rng, rate, decay, b1, b2 = np.random.default_rng(seed), 0.02, 0.5, 0.9, 0.95
    w = rng.standard_normal((4, size))
    m, v = np.zeros_like(w), np.full_like(w, scale**2)
    for _ in range(steps):
        gradient = scale * tangent_gradient(rng.standard_normal(w.shape), w)
        m, v = b1 * m + (1 - b1) * gradient, b2 * v + (1 - b2) * gradient**2
        w = (1 - rate * decay) * w - rate * (ratio_of(m, v) if adam else gradient)
    return float(np.sqrt(np.mean(np.sum(w**2, 1))))


@PAPER.claim(
    "wen2026.depends_only",
    source="abstract",
    statement="Training with weight decay leads to an equilibrium weight norm that only depends on the training "
    "hyperparameters.",
    assumptions=("the base optimizers of the paper, Adam and Muon, whose updates have a fixed norm",),
    context=Context(
        sentence="This method is motivated by prior theory showing that training with weight decay leads to an "
        "equilibrium weight norm that only depends on the training hyperparameters.",
        before="Hyperball also improves learning rate transfer across widths and depths compared to decoupled weight "
        "decay.",
        after="Through this mechanism, the weight decay then decides the angular learning rate, i.e. how fast the "
        "direction of the weight matrix changes.",
        readings=(Reading("The training is with AdamW or Muon, the base optimizers of the paper.", Verdict.HOLDS),),
        verdict="For them it holds. Under SGD the norm goes as the root of the size of the gradients.",
    ),
    read=Read.ABSTRACT,
    expected=Verdict.HOLDS,
)
def depends_only(problem: Problem):
    """Random walks with gradients ten times as large."""
    small, large = (final_norm(problem.seed, scale, adam=True) for scale in (1.0, 10.0))
    yield agree("AdamW: norm with gradients × 10 and × 1", large, small, tol=1e-9)
    small, large = (final_norm(problem.seed, scale, adam=False) for scale in (1.0, 10.0))
    yield agree("SGD, which is none of them: ratio of the norms, and √10", large / small, math.sqrt(10), tol=1e-3)


@depends_only.proof()
def depends_only_proof() -> Proof:
    """A factor of all gradients cancels in m/√v; in SGD's equilibrium it stays."""
    m, a, v = sp.symbols("m a v", positive=True)
    G, decay = sp.symbols("G lambda", positive=True)
    square = RATE * G**2 / (decay * (2 - RATE * decay))

    def sides(values) -> tuple[Expr, Expr]:
        at = {RATE: values[r"\eta"], decay: values[r"\lambda"]}
        large, small = (sp.sqrt(square).subs(at).subs(G, values[name]) for name in ("G_2", "G_1"))
        return large, small

    by_sgd = Counterexample(
        "wen2026.depends_only under SGD",
        r"\|W\|^2(G_2) = \|W\|^2(G_1)",
        {r"\eta": 1, r"\lambda": 1, "G_1": 1, "G_2": 10},
        sides,
        "‖W‖² at SGD's equilibrium for gradients of size G₂/‖W‖ (left) and G₁/‖W‖ (right).",
    )
    return Proof(
        r"\frac{am}{\sqrt{a^2v}} = \frac{m}{\sqrt v}",
        (
            expanded(
                "A factor a of all gradients cancels in Adam's update, so the walk is the same",
                r"\frac{am}{\sqrt{a^2v}} = \frac{m}{\sqrt v}",
                a * m / sp.sqrt(a**2 * v) - m / sp.sqrt(v),
            ),
            expanded(
                "SGD with gradients of size G/√s, s = ‖W‖², is at rest where s = (1 − ηλ)²s + η²G²/s, so s is "
                "proportional to G",
                r"s^2 = \eta G^2/(\lambda(2-\eta\lambda))",
                (1 - (1 - RATE * decay) ** 2) * square - RATE**2 * G**2,
            ),
            refutation("so under SGD the norm depends on the gradients", by_sgd),
        ),
        (Assumption("the update is a ratio of moments", r"\Delta W = -\eta\,m/\sqrt v - \eta\lambda W"),),
    )


@PAPER.claim(
    "wen2026.norm",
    source=NOTE,
    statement="At equilibrium E‖W‖² = η²U²(1 + αβ)/((1 − α²)(1 − αβ)).",
    formula=r"E\|W\|^2 = \frac{\eta^2U^2(1+\alpha\beta)}{(1-\alpha^2)(1-\alpha\beta)}",
    assumptions=("independent normal gradients",),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def norm(problem: Problem):
    """Simulated with 20 000 weights, within 4 standard errors; and from the covariance of the linear recursion."""
    for strength, beta in SETTINGS:
        alpha = 1 - strength
        stated = update_square(beta) * norm_square(alpha, beta)
        found = walk(problem.seed, strength, beta).square
        at = f"ηλ = {strength}, β = {beta}"
        yield agree(f"{at}: simulated, standard error 1 %", found, stated, tol=4 * math.sqrt(2 / SIZE))
        yield agree(f"{at}: by its covariance", filtered(1.0, strength, momentum=beta, inside=0.0)[0], stated)


@norm.proof()
def norm_proof() -> Proof:
    """By the equations of the stationary second moments."""
    return Proof(
        r"E\|W\|^2 = \frac{\eta^2U^2(1+\alpha\beta)}{(1-\alpha^2)(1-\alpha\beta)}",
        moment_steps(),
        (STATIONARY,),
    )


@PAPER.claim(
    "wen2026.correlation",
    source=NOTE,
    statement="At equilibrium ⟨u, W⟩ = −(ηβ/(1 − αβ))U², so that a step adds (η² − 2αηγ)U² to α²‖W‖², with "
    "γ = −ηβ/(1 − αβ): the squared update times (1 + αβ)/(1 − αβ).",
    formula=r"E\|W^+\|^2 - \alpha^2E\|W\|^2 = \eta^2U^2\,\frac{1+\alpha\beta}{1-\alpha\beta}",
    assumptions=("independent normal gradients",),
    context=Context(
        before="Substituting our approximations for ‖u_t‖_F and ⟨W_t, u_t⟩, we obtain a closed 1-D system: r²_{t+1} ≈ "
        "α²r²_t + (η² − 2αηγ)U². (⋆)",
        sentence="Interpretation: The term (η² − 2αηγ)U² represents the effective amount of norm increase at each "
        "step. It is less than the raw update norm times learning rate (i.e. η²U²) because the update u_t is "
        "anti-correlated with W_t (due to momentum), which dampens the expansion.",
        after="At equilibrium, the expected norm stabilizes …",
        readings=(
            Reading("The claim is the system (⋆) with γ ≈ −ηβ₁/(1 − αβ₁), which is computed with.", Verdict.HOLDS),
        ),
        verdict="The formulas hold, and the norm that follows from them. The interpretation beside them, in a blog "
        "post and not in the paper, has the sign reversed: γ is negative and is subtracted, so that momentum makes the "
        "norm grow by more than the raw update.",
    ),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def correlation(problem: Problem):
    """Simulated with 20 000 weights: growth and product, within 4 standard errors; the growth is above η²U²."""
    for strength, beta in SETTINGS[:2]:
        alpha, found, at = 1 - strength, walk(problem.seed, strength, beta), f"ηλ = {strength}, β = {beta}"
        growth = found.growth / found.update
        stated = 1 - 2 * alpha * product(alpha, beta)
        # of a product of two normal numbers whose correlation is r, over its mean: √((1 + r²)/r² N)
        r = product(alpha, beta) / math.sqrt(norm_square(alpha, beta))
        error = 4 * math.sqrt((1 + r**2) / r**2 / SIZE)
        yield agree(f"{at}: ⟨u, W⟩/ηU²", found.product / found.update, product(alpha, beta), tol=error)
        yield agree(f"{at}: growth over η²U²", growth, stated, tol=error)
        yield at_least(f"{at}: growth over η²U²", growth, 1.0)


@correlation.proof()
def correlation_proof() -> Proof:
    """The product is negative, and it is subtracted."""
    growth = RATE**2 * SQUARE - 2 * ALPHA * RATE * PRODUCT
    factor = (1 + ALPHA * BETA) / (1 - ALPHA * BETA)
    return Proof(
        r"E\|W^+\|^2 - \alpha^2E\|W\|^2 = \eta^2U^2\,\frac{1+\alpha\beta}{1-\alpha\beta} > \eta^2U^2",
        (
            *moment_steps(),
            expanded(
                "So the growth is a multiple of η²U²",
                r"\eta^2U^2 - 2\alpha\eta p = \eta^2U^2\,\frac{1+\alpha\beta}{1-\alpha\beta}",
                growth - RATE**2 * SQUARE * factor,
            ),
            expanded(
                "whose factor exceeds 1",
                r"\frac{1+\alpha\beta}{1-\alpha\beta} - 1 = \frac{2\alpha\beta}{1-\alpha\beta} > 0",
                sp.cancel(factor - 1) - 2 * ALPHA * BETA / (1 - ALPHA * BETA),
            ),
        ),
        (STATIONARY,),
    )


@PAPER.claim(
    "wen2026.angle",
    source=NOTE,
    statement="At equilibrium ‖Ŵ⁺ − Ŵ‖ ≈ √((1 − α²)(1 − β²))/(1 + αβ).",
    formula=r"\|\hat W^+ - \hat W\| \approx \frac{\sqrt{(1-\alpha^2)(1-\beta^2)}}{1+\alpha\beta}",
    assumptions=("independent normal gradients", "≈ is up to a relative error of θ²/8, for a step by the angle θ"),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def angle(problem: Problem):
    """The note's formula against the simulated chord, at four settings."""
    for strength, beta in SETTINGS:
        alpha, at = 1 - strength, f"ηλ = {strength}, β = {beta}"
        found = walk(problem.seed, strength, beta).cosine
        theta, error = math.acos(found), 4 * (1 - found**2) / math.sqrt(SIZE) / (2 * (1 - found))
        what = f"{at}: relative error of the formula, θ = {theta:.2f}"
        yield at_most(what, abs(printed(alpha, beta) / math.sqrt(2 * (1 - found)) - 1), theta**2 / 8 + error)


@angle.proof()
def angle_proof() -> Proof:
    """The formula is the sine of the exact angle."""
    theta = sp.Symbol("theta", positive=True)
    return Proof(
        r"\frac{\sin\theta}{2\sin(\theta/2)} = \cos\frac\theta2 \geq 1 - \frac{\theta^2}{8}",
        (
            *cosine_steps(),
            expanded(
                "The formula is the sine",
                r"1 - \cos^2\theta = \frac{(1-\alpha^2)(1-\beta^2)}{(1+\alpha\beta)^2}",
                1 - LAW**2 - (1 - ALPHA**2) * (1 - BETA**2) / (1 + ALPHA * BETA) ** 2,
            ),
            fact(
                "which is cos(θ/2) of the chord 2 sin(θ/2), and 1 − cos(θ/2) = 2 sin²(θ/4) is at most θ²/8",
                r"\sin\theta = 2\sin\tfrac\theta2\cos\tfrac\theta2,\quad 1 - \cos\tfrac\theta2 = "
                r"2\sin^2\tfrac\theta4",
                lambda: (
                    sp.expand_trig(sp.sin(2 * theta)) - 2 * sp.sin(theta) * sp.cos(theta) == 0
                    and sp.simplify(1 - sp.cos(2 * theta) - 2 * sp.sin(theta) ** 2) == 0
                    and 2 * (theta / 4) ** 2 == theta**2 / 8
                ),
            ),
        ),
        (STATIONARY,),
    )


LAW = (ALPHA + BETA) / (1 + ALPHA * BETA)


def cosine_steps() -> tuple[Step, ...]:
    """The correlation of W⁺ and W, from the second moments."""
    return (
        *moment_steps(),
        expanded(
            "E⟨W⁺, W⟩ = αE‖W‖² − ηp, over E‖W‖²",
            r"\cos\theta = \frac{\alpha+\beta}{1+\alpha\beta}",
            ALPHA - RATE * PRODUCT / NORM - LAW,
        ),
    )


@PAPER.claim(
    "wen2026.exact_angle",
    source="beyond the paper",
    statement="At equilibrium a step turns the weights by the angle θ with cos θ = (α + β)/(1 + αβ), at every ηλ.",
    formula=r"\cos\theta = \frac{\alpha+\beta}{1+\alpha\beta}",
    assumptions=("independent normal gradients",),
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def exact_angle(problem: Problem):
    """By simulation and by the covariance of the linear recursion; the note's formula is another number."""
    for strength, beta in SETTINGS:
        alpha, at = 1 - strength, f"ηλ = {strength}, β = {beta}"
        stated = cosine(alpha, beta)
        found = walk(problem.seed, strength, beta).cosine
        yield agree(f"{at}: cos θ, simulated", found, stated, tol=4 * (1 - stated**2) / math.sqrt(SIZE))
        yield agree(f"{at}: cos θ by its covariance", filtered(1.0, strength, momentum=beta, inside=0.0)[1], stated)
    chord = math.sqrt(2 * (1 - cosine(0.75, 0.5)))
    yield differ("ηλ = 0.25, β = 0.5: the exact chord and the note's formula", chord, printed(0.75, 0.5))


@exact_angle.proof()
def exact_angle_proof() -> Proof:
    """By the equations of the stationary second moments."""
    return Proof(r"\cos\theta = \frac{\alpha+\beta}{1+\alpha\beta}", cosine_steps(), (STATIONARY,))


def adam_ratio(seed: int, b1: float, b2: float, size: int = 4000) -> float:
    """U² of Adam over that with v = 1, for the same noise, after the memory of v has passed three times."""
    rng = np.random.default_rng(seed)
    m, v = np.zeros(size), np.ones(size)
    steps, found = int(3 / (1 - b2)) + 60, []
    for step in range(2 * steps):
        g = rng.standard_normal(size)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        if step >= steps and step % 5 == 0:
            found.append((np.mean(m**2 / v), np.mean(m**2)))
    with_v, without = np.mean(found, 0)
    return float(with_v / without)


def adam_square(b1: float) -> float:
    """U² over the number of weights."""
    return (1 - b1) / (1 + b1)


@PAPER.claim(
    "wen2026.adam_update",
    source=NOTE,
    statement="The updates of Adam have the squared norm U² ≈ d(1 − β₁)/(1 + β₁).",
    assumptions=(
        "“the denominator in AdamW converges to the variance of the gradient”: exact for β₂ → 1, and some per cent "
        "less at β₂ = 0.95",
    ),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
    why_numeric="a mean of ratios of filtered noise, by simulation; the limit β₂ = 1 is a geometric sum",
)
def adam_update(problem: Problem):
    """Simulated; the ratio to the update with v = 1 for the same noise, at β₂ = 0.997 and 0.95."""
    b1 = 0.9
    m, rng = np.zeros(SIZE), np.random.default_rng(problem.seed)
    for _ in range(200):
        m = b1 * m + (1 - b1) * rng.standard_normal(SIZE)
    yield agree("v = 1: U²/d, standard error 1 %", np.mean(m**2), adam_square(b1), tol=4 * math.sqrt(2 / SIZE))
    yield agree("β₂ = 0.997: U² over that", adam_ratio(problem.seed, b1, 0.997), 1.0, tol=0.01)
    found = adam_ratio(problem.seed, b1, 0.95)
    yield agree(f"β₂ = 0.95: U² over that, {found:.3f}", found, 1.0, tol=0.05)


def muon_scale(outputs: int, inputs: int) -> float:
    """The factor of Muon's orthogonal matrix."""
    return max(math.sqrt(outputs / inputs), 1.0)


@PAPER.claim(
    "wen2026.muon_update",
    source=NOTE,
    statement="Muon's update, scaled by max(√(d_out/d_in), 1), has the Frobenius norm √d_out.",
    formula=r"\|u\|_F = \sqrt{d_{out}}",
    assumptions=("the momentum has full rank",),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def muon_update(problem: Problem):
    """Random matrices, made orthogonal by their singular vectors, of two shapes."""
    rng = np.random.default_rng(problem.seed)
    for shape in ((64, 16), (16, 64)):
        left, _, right = np.linalg.svd(rng.standard_normal(shape), full_matrices=False)
        update = muon_scale(*shape) * left @ right
        yield agree(f"‖u‖², {shape[0]} outputs and {shape[1]} inputs", np.sum(update**2), float(shape[0]))


@muon_update.proof()
def muon_update_proof() -> Proof:
    """An orthogonal matrix has min(d_out, d_in) singular values 1."""
    a, b, s = sp.symbols("a b s", positive=True)
    return Proof(
        r"\min(a, b)\,\max(a/b, 1) = a,\quad a = d_{out},\ b = d_{in}",
        (
            expanded(
                "For a = b + s the squared norm is that of b singular values √(a/b)",
                r"b\cdot\frac ab = a",
                b * ((b + s) / b) - (b + s),
            ),
            fact(
                "and for b = a + s that of a singular values, whose factor is 1",
                r"\frac{a}{a+s} < 1",
                lambda: sp.Min(a, a + s) == a and sp.cancel(1 - a / (a + s)).is_positive is True,
            ),
        ),
        (Assumption("full rank", r"\mathrm{rank} = \min(a, b)"),),
    )


def hyperball_step(W: Float[np.ndarray, "..."], update: Float[np.ndarray, "..."], rate: float) -> np.ndarray:
    """R normalize(W − ηR û), R = ‖W‖."""
    radius = np.linalg.norm(W)
    moved = W - rate * radius * update / np.linalg.norm(update)
    return radius * moved / np.linalg.norm(moved)


@PAPER.claim(
    "wen2026.step",
    source="the definition of Hyperball",
    statement="A step of Hyperball, W⁺ = R normalize(W − ηRû), keeps the norm R and turns W by the angle "
    "arctan2(η√(1 − c²), 1 − ηc), c = cos(û, W), whatever R and the size of the update are.",
    formula=r"\tan\theta = \frac{\eta\sqrt{1-c^2}}{1-\eta c}",
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def ball_step(problem: Problem):
    """Random matrices and updates, at three rates and two radii."""
    rng = np.random.default_rng(problem.seed)
    measured, stated, norms, radii = [], [], [], []
    for radius in (0.5, 7.0):
        for rate in (0.01, 0.3, 2.0):
            W, update = rng.standard_normal((2, 8, 5))
            W *= radius / np.linalg.norm(W)
            update = update - 0.5 * W
            after = hyperball_step(W, update, rate)
            c = np.sum(W * update) / (radius * np.linalg.norm(update))
            across = after - np.sum(after * W) / radius**2 * W
            measured.append(np.arctan2(np.linalg.norm(across), np.sum(after * W) / radius))
            stated.append(np.arctan2(rate * np.sqrt(1 - c**2), 1 - rate * c))
            norms.append(np.linalg.norm(after))
            radii.append(radius)
    yield agree("angles", np.array(measured), np.array(stated))
    yield agree("‖W⁺‖ and R", np.array(norms), np.array(radii))
    W, update = rng.standard_normal((2, 40))
    update -= update @ W / (W @ W) * W
    after = hyperball_step(W, update, 0.3)
    yield vanishes(
        "tangent less η, update orthogonal to W",
        np.linalg.norm(after - after @ W / (W @ W) * W) / (after @ W) * np.linalg.norm(W) - 0.3,
        scale=0.3,
    )


@ball_step.proof()
def ball_step_proof() -> Proof:
    """The tangent of the angle between W and W − ηRû."""
    w, u = field("W"), field("u")
    radius, size = sp.sqrt(dot(w, w)), sp.sqrt(dot(u, u))
    c = dot(w, u) / (radius * size)
    after = minus(w, RATE * radius / size, u)
    return Proof(
        r"\tan^2\theta = \frac{\eta^2(1-c^2)}{(1-\eta c)^2}",
        (
            equality(
                "The weights after the step on the weights",
                dot(w, after),
                dot(w, w) * (1 - RATE * c),
                r"\langle W, W - \eta R\hat u\rangle",
            ),
            equality(
                "so with c the cosine of û and W, the tangent does not depend on R and ‖u‖",
                squared_tangent(w, u, RATE * radius / size),
                RATE**2 * (1 - c**2) / (1 - RATE * c) ** 2,
                r"\tan^2\theta",
            ),
        ),
        (Assumption("weights and update are not zero", r"W \neq 0,\ u \neq 0"),),
    )

"""Sun et al. (2025), *The Curse of Depth in Large Language Models*: the variance and the gradients of Pre-LN stacks."""

from collections.abc import Callable
from itertools import product as sequences
from typing import NamedTuple

import numpy as np
import sympy as sp
from jaxtyping import Float

from lngeom.claims import Paper, Problem, Read, Role, Verdict, agree, differ, vanishes
from lngeom.claims.context import Context, Reading
from lngeom.claims.erratum import Consequence, Erratum
from lngeom.papers.lab import (
    at_least,
    at_most,
    exponent_of,
    layer_norm as standardized,
    mean_is,
    standardized as normalized,
)
from lngeom.symbolic.jacobian import LAYER, along
from lngeom.symbolic.layers import LAYER_NORM, Layer
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, expanded, fact
from lngeom.symbolic.scale_free import dot
from lngeom.symbolic.sums import D, H, derivative, field, i, mean, n, total

PAPER = Paper(
    "sun2025",
    "The Curse of Depth in Large Language Models",
    ("Wenfang Sun", "Xinyuan Song", "Pengxiang Li", "Lu Yin", "Yefeng Zheng", "Shiwei Liu"),
    2025,
    "2502.05795",
    "With weights of one size the variance of a Pre-LN stack grows at most with the square of depth, and the mean "
    "square of its gradient grows exactly as its variance, with LayerNorm scaling and without.",
    "A branch of a Pre-LN block reads a normalized input, so that what it adds to the stream has a bounded size. "
    "Branches that are independent add their variances, which then grow in proportion to depth. Branches that add "
    "in one direction give growth with the square of depth: the paper's own recursion, σ² → σ²(1 + c/σ), is solved by "
    "σ ≈ cl/2. Nothing is faster unless the norms of the weights themselves grow with depth. LayerNorm scaling, a "
    "factor 1/√l, lowers the growth to log l for independent branches, and to l for equal ones. A branch that is "
    "positively homogeneous multiplies the mean square of a gradient by 1 + c/σ², which is the factor by which it "
    "multiplies σ²: the product over layers telescopes to σ_L²/σ_0². So the gradient itself obeys the paper's bounds, "
    "although the product of norms from which they are read off does not.",
)
NETS, TOKENS, WIDTH, DEPTH = 32, 8, 32, 512
"""Stacks that are drawn, and their sizes."""
LARGEST = 2**20
"""Factors of the products."""
DIRECTIONS = 4
"""Of the input of a stack, along which it is differentiated."""
HOMOGENEOUS = Assumption("branches are positively homogeneous, as those of ReLU", r"f(tn) = t\,f(n),\ t > 0")
INDEPENDENT = Assumption(
    "Assumption 3.1: weights of mean 0, independent of the states and of one size in all layers",
    r"E\,f_l = 0,\ E\,|f_l|^2/d = c^2",
)


def jacobian(function: Callable, x: Float[np.ndarray, " d"]) -> Float[np.ndarray, "k d"]:
    """The Jacobian by complex steps, Im f(x + ihe_j)/h, which no difference rounds."""
    step = 1e-30
    return np.stack([function(x + 1j * step * e).imag / step for e in np.eye(len(x))], 1)


@PAPER.claim(
    "sun2025.eq_5",
    source="Eq. 5",
    statement="The Jacobian of a Pre-LN block is I + J_f J_LN, and tends to the identity as the standard deviation of "
    "its input grows.",
    formula=r"\|J_f J_{\mathrm{LN}}\|_2 \leq \|J_f\|_2/\sigma_x",
    assumptions=("ε = 0",),
    read=Read.PAPER,
    expected=Verdict.HOLDS,
)
def eq_5(problem: Problem):
    """A block of two layers with ReLU; inputs of standard deviation 1, 10 and 100."""
    width = 12
    draw = np.random.default_rng(problem.seed)
    first, second = draw.standard_normal((2, width, width)) / width**0.5
    x = standardized(draw.standard_normal(width))
    hidden = lambda a: np.where(a.real > 0, a, 0)
    branch = lambda u: second @ hidden(first @ u)
    scales = np.array([1.0, 10.0, 100.0])
    gaps = np.array([jacobian(lambda x: x + branch(standardized(x)), s * x) - np.eye(width) for s in scales])
    gaps = np.linalg.norm(gaps, 2, (1, 2))
    of_branch = np.linalg.norm(jacobian(branch, standardized(x)), 2)
    excess = np.maximum(gaps - of_branch / scales, 0)
    yield vanishes("excess of ‖J − I‖ over ‖J_f‖/σ, at σ = 1, 10 and 100", excess, scale=float(of_branch))
    yield agree("σ‖J − I‖ at σ = 10 and 100, and ‖J − I‖ at σ = 1", scales[1:] * gaps[1:], np.full(2, gaps[0]))


@eq_5.proof()
def eq_5_proof() -> Proof:
    """J_LN is a projection divided by σ."""
    V = field("V")
    c = sp.Symbol("c", positive=True)
    change = lambda l: Layer(V, LAYER.X).a(n, l)
    output = lambda l: LAYER_NORM(LAYER, n, l)
    sigma = sp.sqrt(LAYER_NORM.square(LAYER))
    both = mean(lambda l: output(l) * change(l), H)
    projected = (change(i) - mean(change, H) - output(i) * both) / sigma
    larger = lambda t: LAYER_NORM(Layer(lambda l, d: c * LAYER.W(l, d) + t * V(l, d), LAYER.X))
    return Proof(
        r"J_{\mathrm{LN}} = \sigma^{-1}(I - \mathbf{1}\mathbf{1}^\top/H - nn^\top/H),\quad "
        r"\|J_{\mathrm{LN}}\|_2 \leq 1/\sigma",
        (
            equality("The change of n by a change v = Vx of a", along(LAYER_NORM, V), projected, "dn_{ni}[V]"),
            equality(
                "With m = mean(v), q = mean(nv): two squares are taken from |v|², so |dn| ≤ |v|/σ",
                LAYER_NORM.square(LAYER) * mean(lambda l: along(LAYER_NORM, V, unit=l) ** 2, H),
                mean(lambda l: change(l) ** 2, H) - sp.Symbol("m") ** 2 - sp.Symbol("q") ** 2,
                r"\sigma^2|dn|^2/H",
                {"m": mean(change, H), "q": both},
            ),
            equality(
                "At c times the input the change J = dn[V] is 1/c of it",
                derivative(larger),
                sp.Symbol("J") / c,
                "dn_{ni}[V](ca)",
                {"J": along(LAYER_NORM, V)},
            ),
        ),
    )


def factor(layer):
    """LayerNorm scaling: the factor of the norm in layer l."""
    return layer**-0.5


class Stacks(NamedTuple):
    """Random Pre-LN stacks, layer by layer; the input comes first.

    Attributes:
        variance: σ_l², the mean square of the states of each stack.
        gradient: ‖∂x_l/∂x_0‖² over its size, the mean over random directions of x_0.
    """

    variance: Float[np.ndarray, "S L"]
    gradient: Float[np.ndarray, "S L"]


def one(layer: int) -> float:
    """Branches of variance 1 in all layers."""
    return 1.0


def stacks(
    problem: Problem, *, repeated: bool = False, scaled: bool = False, size: Callable[[int], float] = one
) -> Stacks:
    """States and derivatives of stacks x → x + s W₂ ReLU(W₁ LN(x)), with branches of variance s².

    Args:
        problem: its seed draws weights, tokens and directions.
        repeated: all layers have the weights of the first, so that branches are fully correlated; by default the
            weights of each layer are independent.
        scaled: with LayerNorm scaling.
        size: s by the number of the layer.

    Returns:
        Both mean squares after each layer.
    """
    draw = np.random.default_rng(problem.seed)
    x = standardized(draw.standard_normal((NETS, TOKENS, WIDTH)))
    v, weights = np.random.default_rng([problem.seed, 1]).standard_normal((DIRECTIONS, *x.shape)), None
    v = v / np.sqrt(np.mean(v**2, -1, keepdims=True))
    found = [(np.ones(NETS), np.ones(NETS))]
    for layer in range(1, DEPTH + 1):
        if weights is None or not repeated:
            weights = draw.standard_normal((2, NETS, WIDTH, WIDTH)) / WIDTH**0.5
        first, second = np.sqrt(2) * weights[0], size(layer) * weights[1]
        n, pull = normalized(x)  # its Jacobian is symmetric, so that the pullback is the derivative, too
        summed, moved = n @ first, pull(v) @ first
        step = factor(layer) if scaled else 1
        x = x + step * np.maximum(summed, 0) @ second
        v = v + step * np.where(summed > 0, moved, 0) @ second
        found.append((np.mean(x**2, (1, 2)), np.mean(v**2, (0, 2, 3))))
    return Stacks(*np.moveaxis(np.array(found), 0, 2))


def variances(problem: Problem, **options) -> Float[np.ndarray, "S L"]:
    """σ_l² of `stacks`."""
    return stacks(problem, **options).variance


def exponent(values: Float[np.ndarray, " L"], first: int, last: int) -> float:
    """The slope of log values against log l, for l from first to last."""
    l = np.unique(np.geomspace(first, last, 200).astype(int))
    return exponent_of(l, values[l])


@PAPER.claim(
    "sun2025.exponential",
    source="Abstract; Lemma 3.2",
    statement="The output variance of Pre-LN grows exponentially with depth.",
    formula=r"\Theta(L) \leq \sigma_{x_L}^2 \leq \Theta(e^L)",
    assumptions=(
        "“exponentially” names the upper bound of Lemma 3.2, or the norms of the weights grow exponentially with depth",
        "with weights of one size the variance is Θ(L) for independent branches, and at most Θ(L²)",
    ),
    read=Read.PAPER,
    expected=Verdict.CONDITIONAL,
    context=Context(
        before="Our analysis, theoretically and empirically, identifies that the underlying reason for the "
        "ineffectiveness of deep layers in LLMs is the widespread usage of Pre-Layer Normalization (Pre-LN).",
        sentence="While Pre-LN stabilizes the training of Transformer LLMs, its output variance exponentially grows "
        "with the model depth, which undesirably causes the derivative of the deep Transformer blocks to be an "
        "identity matrix, and therefore barely contributes to the training.",
        after="[Lemma 3.2:] … where the growth of σ²_{x_ℓ} is sub-exponential, as shown by the following bounds: "
        "Θ(L) ≤ σ²_{x_L} ≤ Θ(exp(L)). … [it] grows at least linearly, while the upper bound … implies that its growth "
        "does not exceed an exponential function of L.",
        readings=(
            Reading("The abstract names the upper bound of Lemma 3.2, which does not exclude less.", Verdict.HOLDS),
            Reading(
                "The variance grows like e^{cL} under Assumption 3.1, where all weights have one size.",
                Verdict.REFUTED,
            ),
        ),
        verdict="A branch sees normalized inputs, so its norm is bounded whatever the depth, and a sum of L bounded "
        "terms has at most L² times their square. The conclusion that σ grows, so that deep blocks tend to the "
        "identity, does not need more.",
    ),
    erratum=Erratum(
        Consequence.SENTENCE,
        "With weights of one size the variance under Pre-LN grows at most with the square of depth.",
    ),
)
def exponential(problem: Problem):
    """Stacks of 512 layers: the bounds, weights that grow, and the doubling that an exponential squares."""
    depths, role = np.arange(1.0, DEPTH + 1), Role.FAILS_WITHOUT_CONDITION
    for name, repeated, power in (("independent weights", False, 1.0), ("one block repeated", True, 2.0)):
        average = variances(problem, repeated=repeated).mean(0)
        yield at_least(f"{name}: σ_L²/L", average[1:] / depths, 0.5)
        yield at_most(f"{name}: log σ_L²/L", np.log(average[1:]) / depths, 1.5)
        growth = np.log(average[[DEPTH, DEPTH // 2]])
        what = f"{name}: log σ² at {DEPTH} and twice that at {DEPTH // 2}"
        yield differ(what, growth[:1], 2 * growth[1:], role=role)
        yield agree(
            f"{name}: exponent of σ_l² in l, l from 16 to {DEPTH}",
            exponent(average, 16, DEPTH),
            power,
            tol=0.1 / power,
            role=role,
            curves={f"σ_l² against l, {name}": (np.arange(DEPTH + 1.0), average)},
        )
    average = variances(problem, size=lambda layer: np.exp(layer / 64)).mean(0)
    rate = np.log(average[DEPTH] / average[DEPTH // 2]) / (DEPTH // 2)
    yield agree("weights of layer l times e^{l/64}: slope of log σ_l², and 1/32", rate, 1 / 32, tol=0.05)


def signs_alone(depth: int) -> sp.Expr:
    """σ_L² of x → x + s_l LN(x) in two units, s_l = ±1 at random, over all sequences; from (½, −½)."""
    total_ = sp.Integer(0)
    for signs in sequences((1, -1), repeat=depth):
        x = sp.Matrix([[sp.Rational(1, 2)], [-sp.Rational(1, 2)]])
        for sign in signs:
            n_ = LAYER_NORM.exactly(sp.eye(2), x.T).T
            x = x + sign * n_
        total_ += (x.T * x)[0] / 2
    return total_ / 2**depth


def growth_steps() -> tuple[Step, ...]:
    """Variances of independent branches add; branches of bounded norm add up to L² at most, and equal ones do."""
    x, f = field("x"), field("f")
    c, s = sp.symbols("c s", positive=True)
    a, b = sp.symbols("x f", real=True)
    centred = lambda l: x(l) - mean(x, H)
    deviation = sp.sqrt(mean(lambda l: centred(l) ** 2, H))
    moved = lambda l: x(l) + c * centred(l) / deviation
    product = dot(x, x) * dot(f, f) - dot(x, f) ** 2
    minors = total(lambda d: total(lambda m: (x(d) * f(m) - x(m) * f(d)) ** 2, D), D) / 2
    return (
        expanded(
            "A branch of either sign: the mean of both squares is the sum, so variances add, and σ_L² = σ_0² + Lc²",
            r"\tfrac12((x + f)^2 + (x - f)^2) = x^2 + f^2",
            ((a + b) ** 2 + (a - b) ** 2) / 2 - a**2 - b**2,
        ),
        equality(
            "Whatever the branches: the product of the norms is at least that of the vectors, so |x + f| ≤ |x| + |f|",
            product,
            minors,
            r"|x|^2|f|^2 - \langle x, f\rangle^2",
        ),
        equality(
            "A branch cn parallel to the state adds c to σ: σ_L = σ_0 + Lc, so the bound is attained",
            mean(lambda l: (moved(l) - mean(moved, H)) ** 2, H),
            (deviation + c) ** 2,
            r"\sigma^2(x + cn)",
        ),
        expanded(
            "The lemma's recursion σ² → σ² + cσ adds less than c/2 to σ",
            r"(s + c/2)^2 - (s^2 + cs) = c^2/4",
            (s + c / 2) ** 2 - (s**2 + c * s) - c**2 / 4,
        ),
    )


@exponential.proof("conditional")
def exponential_proof() -> Proof:
    """The bounds for branches of one size, and a sum of growing ones; random signs give a linear variance."""
    depth, q = sp.symbols("L q", positive=True)

    def sides(values):
        start, step = signs_alone(0), signs_alone(1) - signs_alone(0)
        if any(signs_alone(k) != start + k * step for k in range(4)):
            raise ValueError("the variance is not linear in depth")
        variance = values[r"\sigma_0^2"] + depth * step
        return sp.limit(variance / variance.subs(depth, 2 * depth), depth, sp.oo), sp.Integer(0)

    of_one_size = Counterexample(
        "sun2025.exponential with weights of one size",
        r"\lim_L \sigma_L^2/\sigma_{2L}^2 = 0\ \text{(exponential growth)}",
        {r"\sigma_0^2": signs_alone(0)},
        sides,
        "Two units, branches s LN(x) with independent signs s: σ_L² = σ_0² + L, by all sequences of signs for L ≤ 3. "
        "The limit (left), and that of exponential growth (right)",
    )
    return Proof(
        r"\Theta(L) \leq \sigma_L^2 \leq \Theta(L^2) \leq \Theta(e^L)",
        (
            *growth_steps(),
            fact(
                "L² is below 4e^L, so both are within the bounds of the lemma",
                r"\max_L L^2e^{-L} = 4e^{-2} < 1",
                lambda: (
                    (depth**2 * sp.exp(-depth)).diff(depth).subs(depth, 2) == 0
                    and (depth**2 * sp.exp(-depth)).diff(depth, 2).subs(depth, 2).is_negative is True
                    and (1 - 4 * sp.exp(-2)).is_positive is True
                ),
            ),
            expanded(
                "Branches of variance q^l, q > 1, add up to a variance that is itself exponential",
                r"q^{l+1} = \frac{q^{l+2} - q^{l+1}}{q - 1}",
                (q - 1) * q ** (depth + 1) - (q ** (depth + 2) - q ** (depth + 1)),
            ),
        ),
        (
            INDEPENDENT,
            Assumption("an upper bound is meant, or weights that grow", r"\text{not: one size, one rate}", of_one_size),
        ),
    )


def branch(first: Float[np.ndarray, "K d d"], second: Float[np.ndarray, "K d d"], n, v):
    """W₂ ReLU(W₁n) and its derivative along v, a row each."""
    summed, moved = np.einsum("kij,kj->ki", first, n), np.einsum("kij,kj->ki", first, v)
    act = lambda a: np.einsum("kij,kj->ki", second, np.where(summed > 0, a, 0))
    return act(summed), act(moved)


@PAPER.claim(
    "sun2025.gradient_is_variance",
    source="beyond the paper",
    statement="A Pre-LN block with independent weights and a positively homogeneous branch multiplies σ² by 1 + c/σ², "
    "and the mean square of a gradient by 1 + (1 − 2/d)c/σ². So in wide layers ‖∂x_L/∂x_0‖² grows exactly as "
    "σ_L²/σ_0², whatever the sizes of the branches are: as L where the variance is linear.",
    formula=r"E\|\partial x_L/\partial x_0\|_F^2 = d\,\sigma_L^2/\sigma_0^2",
    assumptions=("independent weights of mean 0", "f(tn) = t f(n) for t > 0", "d → ∞ for the product over layers"),
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def gradient_is_variance(problem: Problem):
    """One block of 12 units at three σ: 20 000 draws of weights, each with a direction."""
    draws, width = 20_000, 12
    draw = np.random.default_rng([problem.seed, 2502])
    first, second = (draw.standard_normal((draws, width, width)) / width**0.5 for _ in range(2))
    n = standardized(draw.standard_normal((draws, width)))
    v = draw.standard_normal((draws, width))
    v = v / np.sqrt(np.mean(v**2, 1, keepdims=True))
    for sigma in (1.0, 2.0, 4.0):
        _, pull = normalized(sigma * n)
        value, moved = branch(np.sqrt(2) * first, second, n, pull(v))
        added = np.mean((sigma * n + value) ** 2, 1) / sigma**2 - 1
        yield mean_is(f"σ = {sigma:g}: added to σ², over σ², and c/σ²", added, sigma**-2)
        added = np.mean((v + moved) ** 2, 1) - 1
        yield mean_is(f"σ = {sigma:g}: added to ‖v‖², over ‖v‖², and (1 − 2/d)c/σ²", added, (1 - 2 / width) / sigma**2)


def gradient_steps() -> tuple[Step, ...]:
    """A block multiplies the mean square of a gradient and σ² by the same number, up to what the norm projects away."""
    u, v, w = field("u"), field("v"), field("n")
    s, c, sigma = sp.symbols("s c s_2", positive=True)
    sign = sp.Symbol("s", real=True)
    moment = lambda k, l: s**2 * sp.KroneckerDelta(k, l)
    inner = mean(lambda l: w(l) * v(l), H)
    projected = lambda l: v(l) - mean(v, H) - w(l) * inner
    m, p, q, r = sp.symbols("m p q r")
    return (
        equality(
            "A row of W₁, independent entries of variance s², has E(w·u)² = s²|u|² for every u: for n, and for changes",
            total(lambda k: total(lambda l: moment(k, l) * u(k) * u(l), H), H),
            s**2 * total(lambda k: u(k) ** 2, H),
            r"E(w\cdot u)^2",
        ),
        expanded(
            "Of W₁ and −W₁ one is active, so ReLU and its derivative halve both. W₂ multiplies both by one number",
            r"D(W) + D(-W) = 1",
            (1 + sign) / 2 + (1 - sign) / 2 - 1,
        ),
        equality(
            "The norm takes from a change v its parts along 1 and n, 2/d of it on the average, and divides by σ",
            total(lambda l: projected(l) ** 2, H),
            total(lambda l: v(l) ** 2, H) - H * (m**2 + (2 - r) * q**2 - 2 * m * p * q),
            r"\|v - m\mathbf{1} - qn\|^2",
            {"m": mean(v, H), "p": mean(w, H), "q": inner, "r": mean(lambda l: w(l) ** 2, H)},
        ),
        expanded(
            "So with s₂ = σ_l² both are multiplied by 1 + c/σ_l² = σ_{l+1}²/σ_l², whose product over l is σ_L²/σ_0²",
            r"1 + c/\sigma_l^2 = (\sigma_l^2 + c)/\sigma_l^2",
            1 + c / sigma - (sigma + c) / sigma,
        ),
    )


@gradient_is_variance.proof()
def gradient_is_variance_proof() -> Proof:
    """Second moments of one block, and a product that telescopes."""
    return Proof(
        r"E\|\partial x_{l+1}\|^2/\|\partial x_l\|^2 = 1 + (1 - 2/d)\,c/\sigma_l^2,\quad "
        r"\sigma_{l+1}^2/\sigma_l^2 = 1 + c/\sigma_l^2",
        gradient_steps(),
        (INDEPENDENT, HOMOGENEOUS),
    )


def product_of(term: Callable[[np.ndarray], np.ndarray], last: int = LARGEST) -> Float[np.ndarray, " L"]:
    """log ∏_{l ≤ L} (1 + term(l)), for L from 1 to the last; entry 0 is that of no factor."""
    return np.concatenate([[0.0], np.cumsum(np.log1p(term(np.arange(1.0, last + 1))))])


def block_terms(deviation, first: float = 1.0, second: float = 1.0, factor_=lambda l: 1.0):
    """The terms A φ/σ_l + B φ²/σ_l² of the gradient's bound, with φ the factor of LayerNorm scaling."""
    return lambda l: first * factor_(l) / deviation(l) + second * factor_(l) ** 2 / deviation(l) ** 2


def slope(logarithms: Float[np.ndarray, " L"]) -> float:
    """Exponent in L of a product over the last factor of two, from its logarithms."""
    last = len(logarithms) - 1
    return float((logarithms[last] - logarithms[last // 2]) / np.log(2))


def exponential_deviation(l):
    """σ_l with σ_l² = e^l."""
    return np.exp(l / 2)


def linear_deviation(l):
    """σ_l with σ_l² = l."""
    return np.sqrt(l)


@PAPER.claim(
    "sun2025.bounded_if_exponential",
    source="Eq. 10",
    statement="If σ_l² grows like e^l, the bound of the gradient of the first layer stays below a constant.",
    formula=r"\prod_l (1 + A/\sigma_l + B/\sigma_l^2) \leq M",
    read=Read.PAPER,
    expected=Verdict.HOLDS,
)
def bounded_if_exponential(problem: Problem):
    """A = B = 1: the product is the same from l = 100 on, and below exp of the sum of two geometric series."""
    found = np.exp(product_of(block_terms(exponential_deviation), 600))
    yield agree("the products at L = 100 and at L = 600", found[100], found[600])
    q = np.exp(-0.5)
    bound = np.exp(q / (1 - q) + q**2 / (1 - q**2))
    yield vanishes("excess of the product over the bound", np.maximum(found - bound, 0), scale=float(bound))


@bounded_if_exponential.proof()
def bounded_if_exponential_proof() -> Proof:
    """The logarithm is below a sum of geometric series."""
    y, q, l = sp.symbols("y q l", positive=True)
    return Proof(
        r"\log\prod_l (1 + Aq^l + Bq^{2l}) \leq \frac{Aq}{1-q} + \frac{Bq^2}{1-q^2},\quad q = e^{-1/2}",
        (
            fact(
                "The gap is 0 at y = 0 and grows",
                r"\log(1 + y) \leq y",
                lambda: (
                    (y - sp.log(1 + y)).subs(y, 0) == 0
                    and sp.cancel((y - sp.log(1 + y)).diff(y) - y / (1 + y)) == 0
                    and (y / (1 + y)).is_positive is True
                ),
            ),
            expanded(
                "Powers of q are differences of one sequence, which sum to at most q/(1 − q)",
                r"q^l = (q^l - q^{l+1})/(1 - q)",
                (1 - q) * q**l - (q**l - q ** (l + 1)),
            ),
        ),
        (Assumption("exponential growth of the variance", r"\sigma_l = q^{-l},\ 0 < q < 1"),),
    )


def squeeze_steps() -> tuple[Step, ...]:
    """Logarithms between y − y²/2 and y, and sums between integrals."""
    y, l = sp.symbols("y l", positive=True)
    upper, lower = y - sp.log(1 + y), sp.log(1 + y) - y + y**2 / 2
    up, down = sp.sqrt(l + 1) - sp.sqrt(l), 1 / (sp.sqrt(l + 1) + sp.sqrt(l))
    return (
        fact(
            "A logarithm stays between the first two of its partial sums: both gaps are 0 at y = 0 and grow",
            r"y - y^2/2 \leq \log(1 + y) \leq y",
            lambda: (
                upper.subs(y, 0) == lower.subs(y, 0) == 0
                and sp.cancel(upper.diff(y) - y / (1 + y)) == 0
                and sp.cancel(lower.diff(y) - y**2 / (1 + y)) == 0
            ),
        ),
        fact(
            "The step of 2√l is 2/(√(l+1) + √l), between 1/√(l+1) and 1/√l, so the sum of 1/√l is 2√L + O(1)",
            r"\sqrt{l+1} - \sqrt l = 1/(\sqrt{l+1} + \sqrt l)",
            lambda: sp.simplify(up - down) == 0,
        ),
    )


@PAPER.claim(
    "sun2025.linear_gives_linear",
    source="Theorem 3.3, Eq. 11",
    statement="If σ_l² grows like l, the norm of the gradient ∂y_L/∂x_1 is at most Θ(L).",
    formula=r"\|\partial y_L/\partial x_1\|_2 \leq \Theta(L)",
    assumptions=(
        "of the gradient itself, under Assumption 3.1: it is Θ(√L); the product (9), which bounds it and from which "
        "the paper reads it off, is e^{2A√L}",
    ),
    read=Read.PAPER,
    expected=Verdict.CONDITIONAL,
    context=Context(
        before="The Euclidean norm of ∂y_L/∂x_1 is given by: ‖∂y_L/∂x_1‖₂ ≤ ∏_{l=1}^{L−1} (1 + (1/σ_{x_ℓ}) A + "
        "(1/σ²_{x_ℓ}) B), (9) where A and B are constants for the Transformer network. Then the upper bound for this "
        "norm is given as follows: …",
        sentence="Conversely, when σ²_{x_ℓ} grows linearly (i.e., at its lower bound), we have σ²_{x_ℓ} ∼ ℓ, "
        "‖∂y_L/∂x_1‖₂ ≤ Θ(L), (11)",
        after="which means that the gradient norm grows linearly in L. [The appendix inserts A/k for A/σ_{x_k}.]",
        readings=(
            Reading("Eq. 11 bounds the gradient itself, for the random weights of Assumption 3.1.", Verdict.HOLDS),
            Reading("Eq. 11 is the value of the bound (9) where σ_l² = l.", Verdict.REFUTED),
        ),
        verdict="For independent weights the mean square of the gradient is that of the states, σ_L²/σ_0², so its norm "
        "is Θ(√L). The product of norms (9) is larger: Σ A/√l = 2A√L, so it grows faster than every power of L. With "
        "σ_l = l, which the appendix inserts, it would be Θ(L^A).",
    ),
    erratum=Erratum(
        Consequence.SENTENCE,
        "For a variance linear in depth the product (9) is exp(2A√L); the gradient itself is Θ(√L).",
    ),
)
def linear_gives_linear(problem: Problem):
    """The gradient of stacks of 512 layers; products of 2²⁰ factors with A = B = 1, and with A = 2."""
    found = stacks(problem)
    of_variance = exponent(found.variance.mean(0), 16, DEPTH)
    yield agree(f"exponent of σ_l² in l, l from 16 to {DEPTH}", of_variance, 1.0, tol=0.1)
    of_gradient = exponent(found.gradient.mean(0) ** 0.5, 16, DEPTH)
    yield at_most("exponent of the root mean square of ‖∂x_l/∂x_0‖", of_gradient, 1.0)
    linear, role = product_of(block_terms(linear_deviation)), Role.FAILS_WITHOUT_CONDITION
    what = f"exponent of the product (9) in L, from {LARGEST // 2} to {LARGEST}, and 1"
    yield differ(what, slope(linear), 1.0, role=role)
    yield agree(f"log of the product and 2√L, L = {LARGEST}", linear[LARGEST], 2 * LARGEST**0.5, tol=0.01, role=role)
    for first in (1.0, 2.0):
        quadratic = product_of(block_terms(lambda l: l, first))
        what = f"σ_l = l, A = {first:g}: exponent in L"
        yield agree(what, slope(quadratic), first, tol=0.1 / first, role=role)


@linear_gives_linear.proof("conditional")
def linear_gives_linear_proof() -> Proof:
    """The gradient itself by its mean square; of the product (9), log ∏ / √L tends to 2A."""
    L, x = sp.symbols("L x", positive=True)

    def sides(values):
        sum_ = sp.integrate(values["A"] / sp.sqrt(x), (x, 1, L))
        rest = sp.integrate(1 / x, (x, 1, L))  # of y², y³ and B/σ²: logarithms and less
        limit = sp.limit(sum_ / sp.sqrt(L), L, sp.oo)
        if sp.limit(rest / sp.sqrt(L), L, sp.oo) != 0:
            raise ValueError("the rest is not of lower order")
        return limit, sp.limit(sp.log(L) / sp.sqrt(L), L, sp.oo)

    of_the_product = Counterexample(
        "sun2025.linear_gives_linear for the product (9)",
        r"\lim_L \log\prod_{l \leq L}(1 + A/\sqrt l + B/l)/\sqrt L = 0\ \text{(any power of } L)",
        {"A": 1, "B": 1},
        sides,
        "The limit, by the integral of A/√x (left), and that of a power of L (right)",
    )
    return Proof(
        r"E\|\partial x_L/\partial x_0\|_F^2 \leq d\,\sigma_L^2/\sigma_0^2 = \Theta(L)",
        (*gradient_steps(), *squeeze_steps()),
        (
            INDEPENDENT,
            HOMOGENEOUS,
            Assumption(
                "the gradient itself, not the product of norms", r"\|\partial y_L/\partial x_1\|", of_the_product
            ),
        ),
    )


def recursion(steps: int) -> Float[np.ndarray, " L"]:
    """σ_l² by the recursion of Lemma 4.1, σ² → σ²(1 + 1/(√l σ)), from 1."""
    found = [1.0, 1.0]
    for layer in range(1, steps):
        found.append(found[-1] * (1 + factor(layer) / found[-1] ** 0.5))
    return np.array(found)


@PAPER.claim(
    "sun2025.scaling_growth",
    source="Lemma 4.1",
    statement="With LayerNorm scaling the variance is between Θ(L) and Θ(L^{2−ϵ}).",
    formula=r"\Theta(L) \leq \sigma_{x_L}^2 \leq \Theta(L^{2-\epsilon})",
    assumptions=(
        "branches keep a correlation with the state, as in the recursion (13) of the lemma: then it is Θ(L)",
        "independent branches have Θ(log L)",
    ),
    read=Read.PAPER,
    expected=Verdict.CONDITIONAL,
    context=Context(
        before="After applying our scaling method, the variances of x′_ℓ and x_ℓ … exhibit the same growth trend, "
        "which is: σ²_{x_ℓ} = σ²_{x_1} Θ(∏_{k=1}^{ℓ−1} (1 + 1/(√k σ_{x_k}))), (13)",
        sentence="with the following growth rate bounds: Θ(L) ≤ σ²_{x_L} ≤ Θ(L^{(2−ϵ)}). (14)",
        after="where ϵ is a small number with 1/2 ≤ ϵ < 1.",
        readings=(
            Reading(
                "The bounds are those of the recursion (13), whose term of correlation is positive.", Verdict.HOLDS
            ),
            Reading("They hold for the independent weights of Assumption 3.1.", Verdict.REFUTED),
        ),
        verdict="The recursion (13) is solved by σ_l² ~ l, which is within the bounds. Under independence variances "
        "add, and Σ c²/l = c² log L is less than the lower bound: better than claimed.",
    ),
    erratum=Erratum(
        Consequence.SENTENCE, "With LayerNorm scaling and independent weights the variance grows like log L."
    ),
)
def scaling_growth(problem: Problem):
    """The recursion, and stacks of 512 layers with the factor 1/√l."""
    solved = recursion(LARGEST // 16)
    power = exponent(solved, len(solved) // 16, len(solved) - 1)
    yield agree("the recursion (13): exponent of σ_l² in l", power, 1.0, tol=0.1)
    equal = variances(problem, repeated=True, scaled=True).mean(0)
    what = f"one block repeated: exponent of σ_l² in l, l from 64 to {DEPTH}"
    yield agree(what, exponent(equal, 64, DEPTH), 1.0, tol=0.1)
    found, role = variances(problem, scaled=True), Role.FAILS_WITHOUT_CONDITION
    power = exponent(found.mean(0), 64, DEPTH)
    what = f"independent weights: exponent of σ_l² in l, l from 64 to {DEPTH}, and 1"
    curve = {"σ_l² against l": (np.arange(DEPTH + 1.0), found.mean(0))}
    yield differ(what, power, 1.0, role=role, curves=curve)
    harmonic = float(np.sum(1 / np.arange(1, DEPTH + 1)))
    yield mean_is(f"independent weights: σ² at {DEPTH} and 1 + Σ 1/l", found[:, -1], 1 + harmonic, role)


def logarithm_step() -> Step:
    """Σ 1/l is log L + O(1)."""
    x = sp.Symbol("x", positive=True)
    return fact(
        "1/x is the slope of log x and falls, so log(l+1) − log l is between 1/(l+1) and 1/l: Σ 1/l is log L + O(1)",
        r"\frac{d}{dx}\log(x) = 1/x,\quad \frac{d}{dx}(1/x) = -1/x^2 < 0",
        lambda: sp.log(x).diff(x) == 1 / x and (1 / x).diff(x) == -1 / x**2 and (-1 / x**2).is_negative is True,
    )


@scaling_growth.proof("conditional")
def scaling_growth_proof() -> Proof:
    """Equal branches; independent ones of variance 1/l have a harmonic number as their variance."""
    x, c = sp.symbols("x c", positive=True)
    L = sp.Symbol("L", positive=True, integer=True)

    def sides(values):
        variance = values[r"\sigma_0^2"] + sp.harmonic(L)
        return sp.limit(variance / L, L, sp.oo), sp.limit(L / L, L, sp.oo)

    independent = Counterexample(
        "sun2025.scaling_growth for independent branches",
        r"\sigma_L^2 \geq \Theta(L)",
        {r"\sigma_0^2": 1},
        sides,
        "Branches s LN(x)/√l with independent signs s: σ_L² = σ_0² + 1 + 1/2 + … + 1/L. The limit of σ_L²/L (left), "
        "and that of L/L (right), a multiple of which is the lower bound",
    )
    return Proof(
        r"\Theta(\log L) \leq \sigma_L^2 \leq \Theta(L)",
        (
            *growth_steps()[:3],
            logarithm_step(),
            squeeze_steps()[1],
            expanded(
                "So branches of norm c/√l have σ ≤ σ_0 + 2c√L + O(1), whose square is 4c²L to leading order; equal "
                "ones attain it",
                r"(2c\sqrt x)^2 = 4c^2x",
                (2 * c * sp.sqrt(x)) ** 2 - 4 * c**2 * x,
            ),
            expanded(
                "and the recursion (13), 2σσ' = σ/√l, has the solution σ = √l, so that σ² = l",
                r"2\sigma\,\sigma' = \sigma/\sqrt x\ \text{at}\ \sigma = \sqrt x",
                2 * sp.sqrt(x) * sp.sqrt(x).diff(x) - sp.sqrt(x) / sp.sqrt(x),
            ),
        ),
        (Assumption("branches keep their direction", r"\rho > 0", independent),),
    )


def printed_factor(l):
    """The factor that the bound (15) gives to a block with LayerNorm scaling."""
    return 1 / l


EPSILON = 0.5
"""ϵ of Theorem 4.2."""


@PAPER.claim(
    "sun2025.scaling_gradient",
    source="Theorem 4.2",
    statement="With LayerNorm scaling the norm of the gradient grows without bound where σ_l² ~ l^{2−ϵ}, and is at "
    "most Θ(L) where σ_l² ~ l.",
    formula=r"\prod_{l=1}^L \left(1 + \frac{A}{l\sigma_l} + \frac{B}{l^2\sigma_l^2}\right)",
    assumptions=(
        "of the gradient itself, whose mean square is σ_L²/σ_0² for independent weights; the product (15), from which "
        "the paper reads it off, is bounded in both cases",
    ),
    read=Read.PAPER,
    expected=Verdict.CONDITIONAL,
    context=Context(
        before="For the scaled Pre-LN Transformers, the Euclidean norm of ∂y_L/∂x_1 is given by: ‖∂y_L/∂x_1‖₂ ≤ "
        "∏_{ℓ=1}^{L−1} (1 + (1/(ℓσ_{x_ℓ})) A + (1/(ℓ²σ²_{x_ℓ})) B), (15) where A and B are dependent on the scaled "
        "neural network parameters.",
        sentence="Then the upper bound for the norm is given as follows: when σ²_{x_ℓ} grows at ℓ^{(2−ϵ)}, (i.e., at "
        "its upper bound), we obtain: σ²_{x_ℓ} ∼ ℓ^{(2−ϵ)}, ‖∂y_L/∂x_1‖₂ ≤ ω(1), (16) … Meanwhile, when σ²_{x_ℓ} "
        "grows linearly (i.e., at its lower bound), we obtain: σ²_{x_ℓ} ∼ ℓ, ‖∂y_L/∂x_1‖₂ ≤ Θ(L). (17)",
        after="… That is, as the depth increases, ‖∂y_L/∂x_1‖₂ continues to grow gradually.",
        readings=(
            Reading("Eqs. 16 and 17 speak of the gradient itself.", Verdict.HOLDS),
            Reading("They are the values of the product (15).", Verdict.REFUTED),
        ),
        verdict="Σ l^{−1−(2−ϵ)/2} and Σ l^{−3/2} converge, and so do the products: a branch that is positively "
        "homogeneous has one factor 1/√l, not 1/l, and with it (15) is Θ(L^A) where σ_l² ~ l. The gradient itself "
        "grows as σ_L, which is what the paper concludes.",
    ),
    erratum=Erratum(
        Consequence.SENTENCE,
        "The product (15) converges as it stands; one factor 1/√l gives a power of L, as the gradient has it.",
    ),
)
def scaling_gradient(problem: Problem):
    """Gradients of stacks of 512 layers of both growths; products of 2²⁰ factors, A = B = 1 and ϵ = 1/2."""
    power = 2 - EPSILON
    growing = stacks(problem, scaled=True, size=lambda layer: (power * layer**power) ** 0.5)
    for name, found, expected in (
        ("weights that grow, σ_l² ~ l^{3/2}", growing, power),
        ("one block repeated, σ_l² ~ l", stacks(problem, repeated=True, scaled=True), 1.0),
    ):
        of_variance = exponent(found.variance.mean(0), 64, DEPTH)
        yield agree(f"{name}: exponent of σ_l² in l", of_variance, expected, tol=0.1)
        of_gradient = exponent(found.gradient.mean(0) ** 0.5, 64, DEPTH)
        what = f"{name}: exponent of the root mean square of ‖∂x_l/∂x_0‖"
        yield at_least(what, of_gradient, 0.25)
        if expected == 1:
            yield at_most(what, of_gradient, 1.0)
    role = Role.FAILS_WITHOUT_CONDITION
    printed = slope(product_of(block_terms(linear_deviation, factor_=printed_factor)))
    yield differ(f"σ_l² = l: exponent of (15) in L, to L = {LARGEST}, and 1", printed, 1.0, role=role)
    yield vanishes("σ_l² = l: that exponent", printed, scale=1.0, tol=0.01, role=role)
    nearly = slope(product_of(block_terms(lambda l: l ** (power / 2), factor_=printed_factor)))
    yield vanishes("σ_l² = l^{3/2}: exponent of (15) in L", nearly, scale=1.0, tol=0.01, role=role)
    once = slope(product_of(block_terms(linear_deviation, factor_=factor)))
    yield agree("σ_l² = l, one factor 1/√l: exponent in L", once, 1.0, tol=0.1)


@scaling_gradient.proof("conditional")
def scaling_gradient_proof() -> Proof:
    """The gradient itself by its mean square; the logarithm of the product is below a convergent integral."""
    x, delta, A = sp.symbols("x delta A", positive=True)
    L = sp.Symbol("L", positive=True)

    def sides(values):
        terms = values["A"] / x ** sp.Rational(3, 2) + values["B"] / x**3
        bound = terms.subs(x, 1) + sp.integrate(terms, (x, 1, L))
        return sp.limit(bound / sp.log(L), L, sp.oo), sp.limit(sp.log(L) / sp.log(L), L, sp.oo)

    tail = x ** (-1 - delta)
    of_the_product = Counterexample(
        "sun2025.scaling_gradient for the product (15)",
        r"\lim_L \log\prod_{l \leq L}(\ldots)/\log L = 1\ \text{(the product is } \Theta(L))",
        {"A": 1, "B": 1},
        sides,
        "σ_l² = l: the limit, from the first term and an integral above the rest (left), and that of Θ(L) (right)",
    )
    return Proof(
        r"E\|\partial x_L/\partial x_0\|_F^2 = d\,\sigma_L^2/\sigma_0^2;\quad \sum_l l^{-1-\delta} < \infty",
        (
            *gradient_steps(),
            squeeze_steps()[0],
            fact(
                "1/x^(1+δ) falls, and its integral from 1 is 1/δ, so the sum, and with it (15), is bounded; δ is 1/2 "
                "for σ_l² = l and 1 − ϵ/2 for l^{2−ϵ}",
                r"\int_1^\infty x^{-1-\delta}dx = 1/\delta",
                lambda: (
                    sp.integrate(tail, (x, 1, sp.oo)) == 1 / delta and sp.simplify(tail.diff(x)).is_negative is True
                ),
            ),
            logarithm_step(),
            expanded(
                "With one factor 1/√l a term is A/l, and the logarithm is A log L + O(1)",
                r"A/(\sqrt x\,\sqrt x) = A/x",
                A / (sp.sqrt(x) * sp.sqrt(x)) - A / x,
            ),
        ),
        (
            INDEPENDENT,
            HOMOGENEOUS,
            Assumption(
                "the gradient itself, not the product of norms", r"\|\partial y_L/\partial x_1\|", of_the_product
            ),
        ),
    )


@PAPER.claim(
    "sun2025.scaling_lowers",
    source="Section 4",
    statement="LayerNorm scaling lowers the variance at every depth beyond the first layer.",
    assumptions=("branches of one size in all layers",),
    read=Read.PAPER,
    expected=Verdict.HOLDS,
)
def scaling_lowers(problem: Problem):
    """Stacks of 512 layers with and without it, the same weights; means over 32 stacks."""
    for name, repeated in (("independent weights", False), ("one block repeated", True)):
        plain, lowered = (variances(problem, repeated=repeated, scaled=s).mean(0) for s in (False, True))
        excess = np.maximum(lowered[2:] - plain[2:], 0)
        yield vanishes(f"{name}: excess of the scaled variance", excess, scale=float(plain.max()))
        yield differ(f"{name}: both variances at {DEPTH}", lowered[-1], plain[-1])


@scaling_lowers.proof()
def scaling_lowers_proof() -> Proof:
    """What a layer adds, with and without the factor 1/√l."""
    x, c, m = sp.symbols("x c m", positive=True)
    beyond = 1 + m
    gaps = (beyond - 1) / beyond, (sp.sqrt(beyond) - 1) / sp.sqrt(beyond)
    return Proof(
        r"l > 1:\ c^2/l < c^2,\quad c/\sqrt l < c",
        (
            *growth_steps()[::2],
            expanded(
                "Independent branches add c²/l in place of c² to the variance",
                r"c^2 - c^2/x = c^2(x - 1)/x",
                c**2 - c**2 / x - c**2 * (x - 1) / x,
            ),
            expanded(
                "equal branches c/√l in place of c to the deviation",
                r"c - c/\sqrt x = c(\sqrt x - 1)/\sqrt x",
                c - c / sp.sqrt(x) - c * (sp.sqrt(x) - 1) / sp.sqrt(x),
            ),
            fact(
                "Both differences are positive beyond the first layer",
                r"x > 1:\ (x - 1)/x > 0,\ \sqrt x > 1",
                lambda: (
                    gaps[0].is_positive is True
                    and sp.cancel(gaps[1] * sp.sqrt(beyond) * (sp.sqrt(beyond) + 1) - m) == 0
                ),
            ),
        ),
        (INDEPENDENT,),
    )

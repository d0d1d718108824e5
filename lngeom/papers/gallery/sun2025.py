"""Sun et al. (2025), *The Curse of Depth in Large Language Models*: the variance and the gradients of Pre-LN stacks."""

from collections.abc import Callable
from itertools import product as sequences

import numpy as np
import sympy as sp
from jaxtyping import Float

from lngeom.claims import Paper, Problem, Read, Role, Verdict, agree, differ, proves, vanishes
from lngeom.claims.context import Context, Reading
from lngeom.claims.erratum import Consequence, Erratum
from lngeom.papers.lab import layer_norm as standardized
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
    "The variance of a Pre-LN stack grows between linearly and quadratically with depth, never exponentially, and "
    "LayerNorm scaling brings it between log L and L.",
    "A branch of a Pre-LN block reads a normalized input, so that what it adds to the stream has a bounded size. "
    "Branches that are independent add their variances, which then grow in proportion to depth. Branches that add "
    "in one direction give growth with the square of depth. Nothing is faster unless the norms of the weights "
    "themselves grow with depth: the paper's own recursion, σ² → σ²(1 + c/σ), is solved by σ ≈ cl/2. LayerNorm "
    "scaling, a factor 1/√l, lowers the growth to between log l and l, which is better than the paper claims for "
    "it.",
)
NETS, TOKENS, WIDTH, DEPTH = 32, 8, 32, 512
"""Stacks that are drawn, and their sizes."""
LARGEST = 2**20
"""Factors of the products."""
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


@proves("sun2025.eq_5")
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
        "sun2025.eq_5",
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


def variances(problem: Problem, *, repeated: bool = False, scaled: bool = False) -> Float[np.ndarray, "S L"]:
    """σ_l² after each layer of Pre-LN stacks, x → x + W₂ ReLU(W₁ LN(x)), with branches of variance 1.

    Args:
        problem: its seed draws weights and tokens.
        repeated: all layers have the weights of the first, so that branches are fully correlated; by default the
            weights of each layer are independent.
        scaled: with LayerNorm scaling.

    Returns:
        The mean square of the states of each stack; that of the input, 1, comes first.
    """
    draw = np.random.default_rng(problem.seed)
    x = standardized(draw.standard_normal((NETS, TOKENS, WIDTH)))
    found, weights = [np.ones(NETS)], None
    for layer in range(1, DEPTH + 1):
        if weights is None or not repeated:
            weights = draw.standard_normal((2, NETS, WIDTH, WIDTH)) / WIDTH**0.5
        hidden = np.maximum(standardized(x) @ (np.sqrt(2) * weights[0]), 0)
        x = x + (factor(layer) if scaled else 1) * hidden @ weights[1]
        found.append(np.mean(x**2, (1, 2)))
    return np.array(found).T


def exponent(values: Float[np.ndarray, " L"], first: int, last: int) -> float:
    """The slope of log values against log l, for l from first to last."""
    l = np.unique(np.geomspace(first, last, 200).astype(int))
    return float(np.polyfit(np.log(l), np.log(values[l]), 1)[0])


def mean_of(what: str, values: Float[np.ndarray, " S"], expected: float, role: Role):
    """Evidence that draws have this mean, within 4 standard errors."""
    error = float(values.std(ddof=1) / np.sqrt(len(values)))
    what = f"{what}: mean of {len(values)} stacks, standard error {error:.2g}"
    return agree(what, values.mean(), expected, tol=4 * error / expected, role=role)


EXPONENTIAL = Context(
    before="Our analysis, theoretically and empirically, identifies that the underlying reason for the ineffectiveness "
    "of deep layers in LLMs is the widespread usage of Pre-Layer Normalization (Pre-LN).",
    sentence="While Pre-LN stabilizes the training of Transformer LLMs, its output variance exponentially grows with "
    "the model depth, which undesirably causes the derivative of the deep Transformer blocks to be an identity matrix, "
    "and therefore barely contributes to the training.",
    after="To resolve this training pitfall, we propose LayerNorm Scaling (LNS), which scales the variance of output "
    "of the layer normalization inversely by the square root of its depth.",
    readings=(
        Reading(
            "The variance of the states of a Pre-LN stack at initialization, or with weights of bounded norm, grows "
            "like e^{cL}, the upper bound of Lemma 3.2.",
            Verdict.REFUTED,
        ),
    ),
    verdict="A branch sees normalized inputs, so its norm is bounded whatever the depth, and a sum of L bounded terms "
    "has at most L² times their square. The conclusion that σ grows, so that deep blocks tend to the identity, stands.",
)


@PAPER.claim(
    "sun2025.exponential",
    source="Abstract; Lemma 3.2",
    statement="The output variance of Pre-LN grows exponentially with depth.",
    formula=r"\sigma_{x_L}^2 \sim e^{\Theta(L)}",
    assumptions=("branches of one size in all layers",),
    read=Read.PAPER,
    expected=Verdict.REFUTED,
    correction="Between Θ(L), for independent branches, and Θ(L²), for equal ones: ‖x_L‖ ≤ ‖x_0‖ + Σ_l B_l, with B_l "
    "the largest norm of branch l on normalized inputs. Exponential growth needs weights that grow exponentially.",
    context=EXPONENTIAL,
    erratum=Erratum(
        Consequence.CONCLUSION, "The variance under Pre-LN grows between linearly and quadratically with depth."
    ),
)
def exponential(problem: Problem):
    """Stacks of 512 layers: the doubling that an exponential squares, and fitted exponents in l."""
    for name, repeated, power in (("independent weights", False, 1.0), ("one block repeated", True, 2.0)):
        found = variances(problem, repeated=repeated)
        average = found.mean(0)
        growth = np.log(average[[DEPTH, DEPTH // 2]])
        what = f"{name}: log σ² at {DEPTH} and twice that at {DEPTH // 2}"
        yield differ(what, growth[:1], 2 * growth[1:], role=Role.REFUTES)
        yield agree(
            f"{name}: exponent of σ_l² in l, l from 16 to {DEPTH}",
            exponent(average, 16, DEPTH),
            power,
            tol=0.1 / power,
            role=Role.CORRECTS,
            curves={f"σ_l² against l, {name}": (np.arange(DEPTH + 1.0), average)},
        )
        if not repeated:
            yield mean_of(f"{name}: σ² at {DEPTH} and 1 + {DEPTH}", found[:, -1], 1 + DEPTH, Role.CORRECTS)


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


@proves("sun2025.exponential", "refuted")
def exponential_proof() -> Counterexample:
    """Random signs: the expected variance is linear in the depth."""
    depth = sp.Symbol("L", positive=True)

    def sides(values):
        start, step = signs_alone(0), signs_alone(1) - signs_alone(0)
        if any(signs_alone(k) != start + k * step for k in range(4)):
            raise ValueError("the variance is not linear in depth")
        variance = values[r"\sigma_0^2"] + depth * step
        return sp.limit(variance / variance.subs(depth, 2 * depth), depth, sp.oo), sp.Integer(0)

    return Counterexample(
        "sun2025.exponential",
        r"\lim_L \sigma_L^2/\sigma_{2L}^2 = 0\ \text{(exponential growth)}",
        {r"\sigma_0^2": signs_alone(0)},
        sides,
        "Two units, branches s LN(x) with independent signs s: σ_L² = σ_0² + L, by all sequences of signs for L ≤ 3. "
        "The limit (left), and that of exponential growth (right)",
        Proof("sun2025.exponential corrected", r"\Theta(L) \leq \sigma_L^2 \leq \Theta(L^2)", growth_steps()),
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


@proves("sun2025.bounded_if_exponential")
def bounded_if_exponential_proof() -> Proof:
    """The logarithm is below a sum of geometric series."""
    y, q, l = sp.symbols("y q l", positive=True)
    return Proof(
        "sun2025.bounded_if_exponential",
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
    source="Eq. 11",
    statement="If σ_l² grows like l, the bound of the gradient of the first layer is Θ(L).",
    formula=r"\prod_{l=1}^L (1 + A/\sigma_l + B/\sigma_l^2) = \Theta(L)",
    read=Read.PAPER,
    expected=Verdict.REFUTED,
    correction="With σ_l² = l the product is e^{2A√L(1 + o(1))}. With σ_l = l, which the appendix inserts, it is "
    "Θ(L^A).",
    context=Context(
        before="[Lemma 3.2 puts σ_l² between Θ(L) and e^{Θ(L)}; Eq. 10 treats the upper end.]",
        sentence="[Eq. 11: for σ_l² of order l the bound of the gradient is Θ(L).]",
        after="[The appendix inserts A/l for A/σ_l.]",
        readings=(
            Reading("σ_l² = l, as in the lower end of Lemma 3.2, with A and B positive constants.", Verdict.REFUTED),
        ),
        verdict="Σ A/√l = 2A√L, so the product grows faster than every power of L.",
    ),
    erratum=Erratum(
        Consequence.SENTENCE, "For a variance linear in depth the bound of the gradient is exp(2A√L), not Θ(L)."
    ),
)
def linear_gives_linear(problem: Problem):
    """Products of 2²⁰ factors with A = B = 1, and with A = 2."""
    linear = product_of(block_terms(linear_deviation))
    yield differ(
        f"exponent of the product in L, from {LARGEST // 2} to {LARGEST}, and 1", slope(linear), 1.0, role=Role.REFUTES
    )
    yield agree(
        f"log of the product and 2√L, L = {LARGEST}",
        linear[LARGEST],
        2 * LARGEST**0.5,
        tol=0.01,
        role=Role.CORRECTS,
    )
    for first in (1.0, 2.0):
        quadratic = product_of(block_terms(lambda l: l, first))
        what = f"σ_l = l, A = {first:g}: exponent in L"
        yield agree(what, slope(quadratic), first, tol=0.1 / first, role=Role.CORRECTS)


@proves("sun2025.linear_gives_linear", "refuted")
def linear_gives_linear_proof() -> Counterexample:
    """log ∏ / √L tends to 2A."""
    L, x = sp.symbols("L x", positive=True)

    def sides(values):
        sum_ = sp.integrate(values["A"] / sp.sqrt(x), (x, 1, L))
        rest = sp.integrate(1 / x, (x, 1, L))  # of y², y³ and B/σ²: logarithms and less
        limit = sp.limit(sum_ / sp.sqrt(L), L, sp.oo)
        if sp.limit(rest / sp.sqrt(L), L, sp.oo) != 0:
            raise ValueError("the rest is not of lower order")
        return limit, sp.limit(sp.log(L) / sp.sqrt(L), L, sp.oo)

    return Counterexample(
        "sun2025.linear_gives_linear",
        r"\lim_L \log\prod_{l \leq L}(1 + A/\sqrt l + B/l)/\sqrt L = 0\ \text{(any power of } L)",
        {"A": 1, "B": 1},
        sides,
        "The limit, by the integral of A/√x (left), and that of a power of L (right)",
        Proof("sun2025.linear_gives_linear corrected", r"\log\prod = 2A\sqrt L + O(\log L)", squeeze_steps()),
    )


LAYERNORM_SCALING = "[LayerNorm scaling multiplies the output of the norm in layer l by 1/√l.]"


@PAPER.claim(
    "sun2025.scaling_growth",
    source="Lemma 4.1",
    statement="With LayerNorm scaling the variance is between Θ(L) and Θ(L^{2−ϵ}).",
    formula=r"\Theta(L) \leq \sigma_{x_L}^2 \leq \Theta(L^{2-\epsilon})",
    assumptions=("branches of one size in all layers",),
    read=Read.PAPER,
    expected=Verdict.REFUTED,
    correction="It is between Θ(log L), for independent branches, and Θ(L), for equal ones: better than claimed.",
    context=Context(
        before=LAYERNORM_SCALING,
        sentence="[Lemma 4.1: Θ(L) ≤ σ_L² ≤ Θ(L^{2−ϵ}).]",
        after="",
        readings=(
            Reading(
                "The lower bound is meant of every stack that meets Assumption 3.1: independent weights of mean 0 and "
                "of one size.",
                Verdict.REFUTED,
            ),
        ),
        verdict="Under that very assumption variances add, and Σ c²/l = c² log L.",
    ),
    erratum=Erratum(
        Consequence.SENTENCE, "With LayerNorm scaling the variance is between log L and L: better than claimed."
    ),
)
def scaling_growth(problem: Problem):
    """Stacks of 512 layers with the factor 1/√l."""
    found = variances(problem, scaled=True)
    power = exponent(found.mean(0), 64, DEPTH)
    what = f"independent weights: exponent of σ_l² in l, l from 64 to {DEPTH}, and 1"
    curve = {"σ_l² against l": (np.arange(DEPTH + 1.0), found.mean(0))}
    yield differ(what, power, 1.0, role=Role.REFUTES, curves=curve)
    harmonic = float(np.sum(1 / np.arange(1, DEPTH + 1)))
    what = f"independent weights: σ² at {DEPTH} and 1 + Σ 1/l"
    yield mean_of(what, found[:, -1], 1 + harmonic, Role.CORRECTS)
    equal = variances(problem, repeated=True, scaled=True).mean(0)
    what = f"one block repeated: exponent of σ_l² in l, l from 64 to {DEPTH}"
    yield agree(what, exponent(equal, 64, DEPTH), 1.0, tol=0.1, role=Role.CORRECTS)


def logarithm_step() -> Step:
    """Σ 1/l is log L + O(1)."""
    x = sp.Symbol("x", positive=True)
    return fact(
        "1/x is the slope of log x and falls, so log(l+1) − log l is between 1/(l+1) and 1/l: Σ 1/l is log L + O(1)",
        r"\frac{d}{dx}\log(x) = 1/x,\quad \frac{d}{dx}(1/x) = -1/x^2 < 0",
        lambda: sp.log(x).diff(x) == 1 / x and (1 / x).diff(x) == -1 / x**2 and (-1 / x**2).is_negative is True,
    )


@proves("sun2025.scaling_growth", "refuted")
def scaling_growth_proof() -> Counterexample:
    """Independent branches of variance 1/l: the variance is a harmonic number."""
    x, c = sp.symbols("x c", positive=True)
    L = sp.Symbol("L", positive=True, integer=True)

    def sides(values):
        variance = values[r"\sigma_0^2"] + sp.harmonic(L)
        return sp.limit(variance / L, L, sp.oo), sp.limit(L / L, L, sp.oo)

    return Counterexample(
        "sun2025.scaling_growth",
        r"\sigma_L^2 \geq \Theta(L)",
        {r"\sigma_0^2": 1},
        sides,
        "Branches s LN(x)/√l with independent signs s: σ_L² = σ_0² + 1 + 1/2 + … + 1/L. The limit of σ_L²/L (left), "
        "and that of L/L (right), a multiple of which is the printed lower bound",
        Proof(
            "sun2025.scaling_growth corrected",
            r"\Theta(\log L) \leq \sigma_L^2 \leq \Theta(L)",
            (
                *growth_steps()[:2],
                logarithm_step(),
                squeeze_steps()[1],
                expanded(
                    "So branches of norm c/√l have σ ≤ σ_0 + 2c√L + O(1), whose square is 4c²L to leading order",
                    r"(2c\sqrt x)^2 = 4c^2x",
                    (2 * c * sp.sqrt(x)) ** 2 - 4 * c**2 * x,
                ),
            ),
        ),
    )


def printed_factor(l):
    """The factor that the bound (15) gives to a block with LayerNorm scaling."""
    return 1 / l


@PAPER.claim(
    "sun2025.scaling_gradient",
    source="Theorem 4.2, Eq. 15",
    statement="With LayerNorm scaling the bound (15) of the gradient grows without bound where σ_l² ~ l^{2−ϵ}, and is "
    "Θ(L) where σ_l² ~ l.",
    formula=r"\prod_{l=1}^L \left(1 + \frac{A}{l\sigma_l} + \frac{B}{l^2\sigma_l^2}\right)",
    read=Read.PAPER,
    expected=Verdict.REFUTED,
    correction="The printed product is bounded in both cases. A branch has one factor 1/√l, since it is positively "
    "homogeneous, and ∏(1 + A/(√l σ_l) + …) is Θ(L^A) where σ_l² ~ l.",
    context=Context(
        before=LAYERNORM_SCALING,
        sentence="[Theorem 4.2: for σ_l² of order l^{2−ϵ} the bound (15) is ω(1), and for σ_l² of order l it is Θ(L).]",
        after="",
        readings=(Reading("σ_l² is l^{2−ϵ} or l, and A, B are positive constants.", Verdict.REFUTED),),
        verdict="Σ l^{−1−(2−ϵ)/2} and Σ l^{−3/2} converge, and so do the products.",
    ),
    erratum=Erratum(
        Consequence.SENTENCE,
        "The bound of the gradient under LayerNorm scaling converges as printed; one factor 1/√l gives a power of L.",
    ),
)
def scaling_gradient(problem: Problem):
    """Products of 2²⁰ factors, A = B = 1 and ϵ = 1/2."""
    printed = slope(product_of(block_terms(linear_deviation, factor_=printed_factor)))
    yield differ(f"σ_l² = l: exponent of (15) in L, to L = {LARGEST}, and 1", printed, 1.0, role=Role.REFUTES)
    yield vanishes("σ_l² = l: that exponent", printed, scale=1.0, tol=0.01, role=Role.CORRECTS)
    nearly = slope(product_of(block_terms(lambda l: l**0.75, factor_=printed_factor)))
    yield vanishes("σ_l² = l^{3/2}: exponent of (15) in L", nearly, scale=1.0, tol=0.01, role=Role.CORRECTS)
    once = slope(product_of(block_terms(linear_deviation, factor_=factor)))
    yield agree("σ_l² = l, one factor 1/√l: exponent in L", once, 1.0, tol=0.1, role=Role.CORRECTS)


@proves("sun2025.scaling_gradient", "refuted")
def scaling_gradient_proof() -> Counterexample:
    """The logarithm of the product is below a convergent integral."""
    x, delta, A = sp.symbols("x delta A", positive=True)
    L = sp.Symbol("L", positive=True)

    def sides(values):
        terms = values["A"] / x ** sp.Rational(3, 2) + values["B"] / x**3
        bound = terms.subs(x, 1) + sp.integrate(terms, (x, 1, L))
        return sp.limit(bound / sp.log(L), L, sp.oo), sp.limit(sp.log(L) / sp.log(L), L, sp.oo)

    tail = x ** (-1 - delta)
    return Counterexample(
        "sun2025.scaling_gradient",
        r"\lim_L \log\prod_{l \leq L}(\ldots)/\log L = 1\ \text{(the product is } \Theta(L))",
        {"A": 1, "B": 1},
        sides,
        "σ_l² = l: the limit, from the first term and an integral above the rest (left), and that of Θ(L) (right)",
        Proof(
            "sun2025.scaling_gradient corrected",
            r"\sum_l l^{-1-\delta} < \infty,\quad \prod_l (1 + A/l) = \Theta(L^A)",
            (
                squeeze_steps()[0],
                fact(
                    "1/x^(1+δ) falls, and its integral from 1 is 1/δ, so the sum, and with it (15), is bounded; δ is "
                    "1/2 for σ_l² = l and 1 − ϵ/2 for l^{2−ϵ}",
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


@proves("sun2025.scaling_lowers")
def scaling_lowers_proof() -> Proof:
    """What a layer adds, with and without the factor 1/√l."""
    x, c, m = sp.symbols("x c m", positive=True)
    beyond = 1 + m
    gaps = (beyond - 1) / beyond, (sp.sqrt(beyond) - 1) / sp.sqrt(beyond)
    return Proof(
        "sun2025.scaling_lowers",
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

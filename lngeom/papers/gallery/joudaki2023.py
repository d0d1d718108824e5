"""Joudaki, Daneshmand and Bach (2023): isometry of Gram matrices behind normalization and activations.

The isometry of a Gram matrix M of n tokens is I(M) = det(M)^(1/n)/(tr M/n). For Gaussian x, y of correlation ρ, an
activation φ has the kernel κ(ρ) = Cov(φ(x), φ(y))/Var φ(x), and γ(ρ) = |ρ|/(1 − |ρ|).
"""

from collections.abc import Callable

import numpy as np
import scipy.special
import sympy as sp
from jaxtyping import Float

from lngeom.claims import Paper, Problem, Read, Role, Verdict, agree, differ, vanishes
from lngeom.papers.lab import layer_norm, mean_is, relu, rms_norm
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, expanded, fact, matrix
from lngeom.symbolic.sums import H, field, mean

PAPER = Paper(
    "joudaki2023",
    "On the impact of activation and normalization in obtaining isometric embeddings at initialization",
    ("Amir Joudaki", "Hadi Daneshmand", "Francis Bach"),
    2023,
    "2305.18399",
    "With ReLU, layer norm drives tokens apart and RMSNorm lets them collapse: what separates them is the centring.",
)
Activation = Callable[[np.ndarray], np.ndarray]
NETS, TOKENS, WIDTH, DEPTH = 16, 6, 300, 10
"""Random networks, and their sizes."""


def isometry(X: Float[np.ndarray, "S n d"]) -> Float[np.ndarray, " S"]:
    """det(M)^(1/n)/(tr M/n) of the Gram matrices of rows."""
    M = X @ X.swapaxes(1, 2)
    tokens = X.shape[1]
    _, logarithm = np.linalg.slogdet(M)
    return np.exp(logarithm / tokens) / (np.trace(M, axis1=1, axis2=2) / tokens)


def gain_bound(lengths: Float[np.ndarray, "S n"]) -> Float[np.ndarray, " S"]:
    """1 + Var s/(mean s)², s the norms of the rows."""
    return 1 + lengths.var(1) / lengths.mean(1) ** 2


def draw_rows(problem: Problem, runs: int = 500) -> Float[np.ndarray, "S 4 8"]:
    """Random rows of random lengths."""
    draw = np.random.default_rng(problem.seed)
    return draw.standard_normal((runs, 4, 8)) * np.exp(0.5 * draw.standard_normal((runs, 4, 1)))


@PAPER.claim(
    "joudaki2023.normalize",
    source="theorem on normalization and isometry",
    statement="Scaling rows to one norm raises the isometry by at least 1 + Var s/(mean s)², with s the norms of the "
    "rows.",
    formula=r"I(\hat M) \geq I(M)\,(1 + \mathrm{Var}\,s/\bar s^2)",
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def normalize(problem: Problem):
    """500 draws of 4 rows."""
    X = draw_rows(problem)
    lengths = np.linalg.norm(X, axis=2)
    ratio = isometry(rms_norm(X)) / isometry(X)
    exact = np.mean(lengths**2, 1) / np.exp(2 * np.mean(np.log(lengths), 1))
    yield agree("I(M̂)/I(M), and the mean of s² over its geometric mean squared", ratio, exact)
    least = float(np.min(ratio / gain_bound(lengths)))
    excess = np.maximum(gain_bound(lengths) - ratio, 0)
    yield vanishes(f"shortfall of I(M̂)/I(M), least ratio to the bound {least:.4f}", excess, scale=1.0)


def scaling_steps() -> tuple[Step, ...]:
    """The arithmetic mean of lengths is at least the geometric one."""
    s, y = field("s", positive=True), sp.Symbol("y", positive=True)
    average = mean(s, H)
    variance = mean(lambda l: (s(l) - average) ** 2, H)
    return (
        fact(
            "A tangent of the logarithm lies above it: the gap y − 1 − log y is 0 at y = 1, its least value",
            r"\log(y) \leq y - 1",
            lambda: (
                (y - 1 - sp.log(y)).subs(y, 1) == 0
                and (y - 1 - sp.log(y)).diff(y).subs(y, 1) == 0
                and (y - 1 - sp.log(y)).diff(y, 2).is_positive is True
            ),
        ),
        equality(
            "At y = s_i/s̄ the right sides have mean 0, so log s has a mean of at most log s̄: (∏ s_i)^(1/n) ≤ s̄",
            mean(lambda l: s(l) / average - 1, H),
            0,
            r"\frac1n\sum_i (s_i/\bar s - 1)",
        ),
        equality(
            "det M̂ = det M/∏ s_i² and tr M̂ = n, so I(M̂)/I(M) is the mean of s² over (∏ s_i)^(2/n), at least over s̄²",
            mean(lambda l: s(l) ** 2, H) / average**2,
            1 + variance / average**2,
            r"\frac1n\sum_i s_i^2/\bar s^2",
        ),
    )


@normalize.proof()
def normalize_proof() -> Proof:
    """By AM–GM."""
    return Proof(
        r"\frac{I(\hat M)}{I(M)} = \frac{\frac1n\sum_i s_i^2}{(\prod_i s_i)^{2/n}} \geq 1 + \mathrm{Var}\,s/\bar s^2",
        scaling_steps(),
    )


def not_centred(rows: Float[np.ndarray, "S n d"]) -> Float[np.ndarray, "S n d"]:
    """Rows without the condition: as they are."""
    return rows


@PAPER.claim(
    "joudaki2023.centring",
    source="beyond the paper, whose theorem is on scaling",
    statement="Layer norm, centring and scaling, never lowers the isometry.",
    assumptions=("the rows have mean 0; scaling alone never lowers it",),
    read=Read.OWN,
    expected=Verdict.CONDITIONAL,
)
def centring(problem: Problem):
    """500 draws of 4 rows of 8 entries, centred and as they are."""
    X = draw_rows(problem)
    centred = X - X.mean(2, keepdims=True)
    shortfall = np.maximum(isometry(centred) - isometry(layer_norm(centred)), 0)
    yield vanishes("centred rows: how far layer norm lowers the isometry", shortfall, scale=1.0)
    rows = not_centred(X)
    before, after = isometry(rows), isometry(layer_norm(rows))
    lowered = np.mean(after < before * (1 - 1e-9))
    yield differ(
        f"rows as they are, lowered in {lowered:.0%}: 1 and the least ratio of isometries",
        np.minimum(np.min(after / before), 1),
        1.0,
        role=Role.FAILS_WITHOUT_CONDITION,
    )


@centring.proof("conditional")
def centring_proof() -> Proof:
    """Centring may make orthogonal rows collinear."""

    def squared_isometries(values):
        X = sp.Matrix(values["X"])
        centred = X - (X * sp.ones(X.cols, 1) / X.cols) * sp.ones(1, X.cols)
        of = lambda A: (A * A.T).det() / ((A * A.T).trace() / 2) ** 2
        return of(centred), of(X)

    return Proof(
        r"\mathbf{1}^\top x_i = 0:\quad I(M_{\mathrm{LN}}) \geq I(M)",
        scaling_steps(),
        (
            Assumption(
                "rows of mean 0, which layer norm only scales",
                r"\mathbf{1}^\top x_i = 0",
                Counterexample(
                    "layer norm of rows that are not centred",
                    r"I(M_{\mathrm{LN}})^2 \geq I(M)^2",
                    {"X": matrix([[3, 1, 1, 1], [-1, 1, 1, 1]])},
                    squared_isometries,
                    "Two orthogonal rows, which centring makes collinear: I² after (left) and before (right)",
                ),
            ),
        ),
    )


NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
SHARES = _WEIGHTS / _WEIGHTS.sum()
"""Nodes and weights of a mean over a Gaussian number."""


def gelu(x: np.ndarray) -> np.ndarray:
    """x times the normal distribution function."""
    return x * scipy.special.ndtr(x)


def kernel(activation: Activation, rho: Float[np.ndarray, " K"], *, centred: bool = True) -> Float[np.ndarray, " K"]:
    """κ(ρ): in closed form for ReLU (arc cosine kernel), else by quadrature in two dimensions.

    Args:
        activation: φ.
        rho: correlations.
        centred: of φ less its mean, as behind layer norm; otherwise E φ(x)φ(y)/E φ², as behind RMSNorm.

    Returns:
        κ.
    """
    if activation is relu:
        products = (np.sqrt(1 - rho**2) + rho * (np.pi - np.arccos(rho))) / (2 * np.pi)
        average, square = 1 / np.sqrt(2 * np.pi), 0.5
    else:
        first = activation(NODES)
        partner = rho[:, None, None] * NODES[:, None] + np.sqrt(1 - rho[:, None, None] ** 2) * NODES
        products = np.einsum("i,j,i,kij->k", SHARES, SHARES, first, activation(partner))
        average, square = SHARES @ first, SHARES @ first**2
    offset = average**2 if centred else 0.0
    return (products - offset) / (square - offset)


def nonlinearity_strength(activation: Activation) -> float:
    """β₀ = c₁²/Σ_{k≥1} c_k² = (E xφ(x))²/Var φ(x), c_k the Hermite coefficients."""
    if activation is relu:
        return 0.25 / (0.5 - 1 / (2 * np.pi))
    values = activation(NODES)
    return float((SHARES @ (NODES * values)) ** 2 / (SHARES @ values**2 - (SHARES @ values) ** 2))


def odds(rho):
    """γ(ρ) = |ρ|/(1 − |ρ|)."""
    return np.abs(rho) / (1 - np.abs(rho))


def rate(strength: float) -> float:
    """The factor by which a layer contracts γ."""
    return 1 / (2 - strength)


ACTIVATIONS: dict[str, Activation] = {"ReLU": relu, "tanh": np.tanh, "sin": np.sin, "GELU": gelu}


@PAPER.claim(
    "joudaki2023.contraction",
    source="theorem on activations and isometry",
    statement="A centred activation contracts correlations: γ(κ(ρ)) ≤ γ(ρ)/(2 − β₀).",
    formula=r"\gamma(\kappa(\rho)) \leq \frac{\gamma(\rho)}{2 - \beta_0},\quad \beta_0 = c_1^2/\sum_{k \geq 1} c_k^2",
    assumptions=("the infinitely wide layer", "activations are centred and scaled, as layer norm does"),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def contraction(problem: Problem):
    """Four activations at 100 correlations in (−1, 1)."""
    rho = np.linspace(-0.99, 0.99, 100)
    for name, activation in ACTIVATIONS.items():
        bound = rate(nonlinearity_strength(activation))
        ratio = odds(kernel(activation, rho)) / odds(rho)
        what = f"{name}: excess of γ(κ)/γ over {bound:.3f}; the largest is {ratio.max():.3f}"
        yield vanishes(what, np.maximum(ratio - bound, 0), scale=1.0)
    yield agree("sin: κ by quadrature and sinh ρ/sinh 1", kernel(np.sin, rho), np.sinh(rho) / np.sinh(1), tol=1e-9)


def contraction_steps() -> tuple[Step, ...]:
    """The kernel lies below a parabola in r = |ρ|."""
    r, beta, k = sp.symbols("r beta k", positive=True)
    below = beta * r + (1 - beta) * r**2
    gamma = lambda u: u / (1 - u)
    ratio = (beta + (1 - beta) * r) / (1 + (1 - beta) * r)
    rest = (1 - beta) ** 2 * (1 - r) / ((2 - beta) * (1 + (1 - beta) * r))
    return (
        expanded(
            "κ(ρ) = Σ_k w_k ρ^k with weights w_k ≥ 0 of sum 1 and w_1 = β₀; for k ≥ 2 a power of r ≤ 1 is at most r², "
            "so |κ| ≤ β₀r + (1 − β₀)r²",
            r"r^2 - r^{2+k} = r^2(1 - r^k)",
            r**2 - r ** (2 + k) - r**2 * (1 - r**k),
        ),
        expanded("γ increases", r"\gamma'(r) = (1 - r)^{-2}", gamma(r).diff(r) - (1 - r) ** -2),
        expanded(
            "so the ratio is at most that of the parabola",
            r"\gamma(\beta_0r + (1 - \beta_0)r^2)/\gamma(r) = \frac{\beta_0 + (1-\beta_0)r}{1 + (1-\beta_0)r}",
            gamma(below) / gamma(r) - ratio,
        ),
        expanded(
            "which stays below 1/(2 − β₀) by a term that is not negative for β₀, r ≤ 1",
            r"\frac{1}{2-\beta_0} - \frac{\beta_0 + (1-\beta_0)r}{1 + (1-\beta_0)r} = "
            r"\frac{(1-\beta_0)^2(1-r)}{(2-\beta_0)(1 + (1-\beta_0)r)}",
            1 / (2 - beta) - ratio - rest,
        ),
    )


@contraction.proof()
def contraction_proof() -> Proof:
    """By the Hermite expansion."""
    return Proof(
        r"\gamma(\kappa(\rho)) \leq \gamma(\rho)/(2 - \beta_0)",
        contraction_steps(),
        (
            Assumption(
                "Hermite coefficients of a centred activation",
                r"\kappa(\rho) = \sum_{k\geq1}c_k^2\rho^k/\sum_{k\geq1}c_k^2",
            ),
        ),
    )


def linear(x: np.ndarray) -> np.ndarray:
    """No activation."""
    return x


def correlations(problem: Problem, activation: Activation, norm: Activation) -> Float[np.ndarray, "L S P"]:
    """Correlations of pairs of tokens in random networks, x → norm(φ(Wx)), before and after each layer."""
    draw = np.random.default_rng(problem.seed)
    shared, own = draw.standard_normal((NETS, 1, WIDTH)), draw.standard_normal((NETS, TOKENS, WIDTH))
    x = norm(np.sqrt(0.6) * shared + np.sqrt(0.4) * own)
    first, second = np.triu_indices(TOKENS, 1)
    found = [(x @ x.swapaxes(1, 2) / WIDTH)[:, first, second]]
    for _ in range(DEPTH):
        x = norm(activation(x @ (draw.standard_normal((NETS, WIDTH, WIDTH)) / WIDTH**0.5)))
        found.append((x @ x.swapaxes(1, 2) / WIDTH)[:, first, second])
    return np.array(found)


def recursion(activation: Activation, start: float, depth: int, *, centred: bool = True) -> Float[np.ndarray, " L"]:
    """Correlations of the infinitely wide network, before and after each layer."""
    found = [start]
    for _ in range(depth):
        found.append(float(kernel(activation, np.array(found[-1:]), centred=centred)[0]))
    return np.array(found)


def networks_follow(what: str, found: Float[np.ndarray, "L S P"], predicted: Float[np.ndarray, " L"]):
    """Evidence that the mean correlation of random networks is the predicted one, within 4 standard errors."""
    for depth in (DEPTH // 2, DEPTH):
        of_nets = found[depth].mean(1)
        yield mean_is(f"{what}, depth {depth}: mean ρ of nets, and κ∘…∘κ", of_nets, predicted[depth])


@PAPER.claim(
    "joudaki2023.depth",
    source="Abstract",
    statement="Layer norm with activations drives the Gram matrix to the identity at an exponential rate with depth.",
    assumptions=("random Gaussian weights", "wide layers: correlations above the floor d^(−1/2)"),
    read=Read.ABSTRACT,
    expected=Verdict.HOLDS,
    why_numeric="finite width by numbers; for infinite width it follows from joudaki2023.contraction, which is proved",
)
def depth(problem: Problem):
    """ReLU: 16 networks of width 300, and the infinitely wide one to depth 30."""
    found = correlations(problem, relu, layer_norm)
    limit = recursion(relu, float(found[0].mean()), 30)
    curve = {"mean ρ against depth": (np.arange(DEPTH + 1.0), found.mean((1, 2)))}
    yield from networks_follow("ReLU, layer norm", found, limit)
    envelope = odds(limit[0]) * rate(nonlinearity_strength(relu)) ** np.arange(31)
    yield vanishes("excess of γ over γ(ρ_0)/(2 − β₀)^l, l ≤ 30", np.maximum(odds(limit) - envelope, 0), scale=1.0)
    falling = np.polyfit(np.arange(DEPTH + 1), np.log(found.mean((1, 2))), 1)[0]
    yield differ("fall of log ρ in a layer, mean of 16 nets, and 0", max(-falling, 0.0), 0.0, curves=curve)


def odd_activation(x: np.ndarray) -> np.ndarray:
    """An activation with c₀ = 0."""
    return np.tanh(x)


def activation_with_mean(x: np.ndarray) -> np.ndarray:
    """An activation with c₀ ≠ 0."""
    return relu(x)


@PAPER.claim(
    "joudaki2023.rms",
    source="beyond the paper",
    statement="RMSNorm with activations drives the Gram matrix to the identity as layer norm does.",
    assumptions=("c₀ = 0, as for odd activations",),
    read=Read.OWN,
    expected=Verdict.CONDITIONAL,
)
def rms(problem: Problem):
    """tanh and ReLU: 16 networks of width 300."""
    found = correlations(problem, odd_activation, rms_norm)
    start = float(found[0].mean())
    predicted = recursion(odd_activation, start, DEPTH, centred=False)
    yield from networks_follow("tanh, RMSNorm", found, predicted)
    yield vanishes("tanh: how far ρ rises in a layer", np.maximum(np.diff(predicted), 0), scale=1.0)
    rising = correlations(problem, activation_with_mean, rms_norm).mean((1, 2))
    yield differ(
        "ReLU, RMSNorm: how far mean ρ rises to depth 10, and 0",
        max(rising[-1] - rising[0], 0.0),
        0.0,
        role=Role.FAILS_WITHOUT_CONDITION,
    )


@rms.proof("conditional")
def rms_proof() -> Proof:
    """With c₀ = 0 centring changes nothing; with ReLU orthogonal tokens become correlated."""
    x = sp.Symbol("x", real=True)
    density = sp.exp(-(x**2) / 2) / sp.sqrt(2 * sp.pi)

    def at_zero(values):
        average = sp.integrate(x * density, (x, 0, sp.oo))
        square = sp.integrate(x**2 * density, (x, 0, sp.oo))
        return sp.simplify(values["c"] * average**2 / square), sp.Integer(0)

    return Proof(
        r"c_0 = 0:\ \gamma(\kappa(\rho)) \leq \gamma(\rho)/(2 - \beta_0)",
        contraction_steps(),
        (
            Assumption(
                "the activation has mean 0",
                r"c_0 = 0",
                Counterexample(
                    "correlations behind ReLU and RMSNorm",
                    r"c\,\kappa(0) = 0",
                    {"c": sp.pi},
                    at_zero,
                    "ReLU: π times the correlation (E φ)²/E φ² = 1/π that two orthogonal tokens get (left)",
                ),
            ),
        ),
    )


@PAPER.claim(
    "joudaki2023.linear",
    source="the definition of β₀ in the authors' code (README), at c₁² = Σ_{k≥1} c_k²",
    statement="Without an activation normalization gives no bias towards the identity: κ(ρ) = ρ.",
    assumptions=("wide layers",),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def without_activation(problem: Problem):
    """The kernel, and 16 networks of width 300 with layer norm."""
    rho = np.linspace(-0.99, 0.99, 100)
    yield agree("κ(ρ) and ρ", kernel(linear, rho), rho)
    yield agree("β₀ and 1", nonlinearity_strength(linear), 1.0)
    found = correlations(problem, linear, layer_norm)
    yield from networks_follow("no activation", found, np.full(DEPTH + 1, found[0].mean()))


@without_activation.proof()
def without_activation_proof() -> Proof:
    """The kernel of the identity."""
    rho, x, y = sp.symbols("rho x y", real=True)
    product = sp.expand(x * (rho * x + sp.sqrt(1 - rho**2) * y))
    expectation = product.coeff(x, 2) * 1 + product.coeff(x, 1).coeff(y, 1) * 0
    beta = sp.Symbol("beta", positive=True)
    return Proof(
        r"\kappa(\rho) = \rho,\quad \gamma(\kappa(\rho)) = \gamma(\rho)",
        (
            fact(
                "With E x² = 1 and E xy = 0 the kernel of the identity is ρ",
                r"E\,x(\rho x + \sqrt{1-\rho^2}\,y) = \rho",
                lambda: sp.simplify(expectation - rho) == 0,
            ),
            fact(
                "and the bound of the contraction is no contraction",
                r"\beta_0 = 1:\ 1/(2 - \beta_0) = 1",
                lambda: (1 / (2 - beta)).subs(beta, 1) == 1,
            ),
        ),
    )

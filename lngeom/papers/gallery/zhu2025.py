"""Zhu et al. (2025), *Transformers without Normalization*: dynamic tanh (DyT).

With Stollenwerk (2025), *Elementwise Layer Normalization*, arXiv 2503.21708, which derives DyT and the elementwise
layer normalization (ELN) y = √d x/√(x² + C).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.special
import sympy as sp
from jaxtyping import Float
from sympy import KroneckerDelta

from lngeom.claims import Paper, Problem, Read, Role, Verdict, agree, differ
from lngeom.claims.context import Context, Reading
from lngeom.methods.pointwise import DynamicTanh
from lngeom.papers.lab import layer_norm, rms_norm
from lngeom.symbolic.jacobian import LAYER
from lngeom.symbolic.layers import LAYER_NORM, Layer
from lngeom.symbolic.proof import Assumption, Proof, equality, expanded, fact, jointly, refutation
from lngeom.symbolic.sums import H, derivative, field, i, j, mean, n, total
from lngeom.symbolic.table import prove

PAPER = Paper(
    "zhu2025",
    "Transformers without Normalization",
    ("Jiachen Zhu", "Xinlei Chen", "Kaiming He", "Yann LeCun", "Zhuang Liu"),
    2025,
    "2503.10622",
    "The S of layer norm's input-output curve comes from tokens of different scale; tokens of one scale give a "
    "straight line.",
)
DYT, ELN = "arXiv 2503.10622", "arXiv 2503.21708"
Tokens = Float[np.ndarray, "T d"]


def plotted_together(x: Tokens) -> Tokens:
    """The entries whose curve is drawn, a set a row: those of one token."""
    return x


@PAPER.claim(
    "zhu2025.linear_token",
    source=f"{DYT}, Section 3: “all points from any single token do form a straight line”",
    statement="Layer norm is an affine map of the entries of one token.",
    formula=r"n_i - n_j = (a_i - a_j)/\sigma",
    read=Read.PAPER,
    expected=Verdict.HOLDS,
)
def linear_token(problem: Problem):
    """Summed inputs on the data: every entry lies on the line through the first two."""
    model, params, inputs = problem.case("ln")
    x = plotted_together(np.asarray(inputs @ params.weights.T))
    y = plotted_together(np.asarray(model.normalized(params, inputs)))
    runs, rises = x - x[:, :1], y - y[:, :1]
    yield agree("(n_i − n_1)(a_2 − a_1) and (n_2 − n_1)(a_i − a_1)", rises * runs[:, 1:2], rises[:, 1:2] * runs)
    slopes = rises[:, 1] / runs[:, 1]
    yield differ("the slopes of two tokens", slopes[:1], slopes[1:2])


@linear_token.proof()
def linear_token_proof() -> Proof:
    """The slope 1/σ belongs to the token."""
    return Proof(
        r"n_i - n_j = (a_i - a_j)/\sigma",
        (
            equality(
                "Differences of outputs are differences of inputs over σ, the same σ for all entries of a token",
                LAYER_NORM(LAYER, n, i) - LAYER_NORM(LAYER, n, j),
                (LAYER.a(n, i) - LAYER.a(n, j)) / sp.sqrt(LAYER_NORM.square(LAYER)),
                r"n_{ni} - n_{nj}",
            ),
        ),
    )


COUNT, WIDTH = 1000, 1024
SPREADS = (0.3, 0.7)


def tokens(problem: Problem, spread: float) -> Tokens:
    """Gaussian tokens whose scales are log-normal."""
    draw = np.random.default_rng(problem.seed)
    return draw.standard_normal((COUNT, WIDTH)) * np.exp(spread * draw.standard_normal((COUNT, 1)))


def slope_between(x: Tokens, y: Tokens, low: float, high: float) -> tuple[float, float]:
    """The slope Σ xy/Σ x² of entries with low < |x| < high, and its standard error over tokens."""
    chosen = (np.abs(x) > low) & (np.abs(x) < high)
    products, squares = np.sum(x * y * chosen, 1), np.sum(x**2 * chosen, 1)
    slope = products.sum() / squares.sum()
    return float(slope), float(np.sqrt(np.sum((products - slope * squares) ** 2)) / squares.sum())


def expected_slope(spread: float, low: float, high: float) -> float:
    """The same for d → ∞, where y = x/s: E[x²/s; low < |x| < high]/E[x²; low < |x| < high]."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    s = np.exp(spread * nodes)
    below = lambda u: scipy.special.ndtr(u) - u * np.exp(-(u**2) / 2) / np.sqrt(2 * np.pi)  # ∫ x² φ up to u
    part = weights * s**2 * (below(high / s) - below(low / s))
    return float(np.sum(part / s) / np.sum(part))


CENTRE, TAIL = (0.0, 0.3), (2.5, 4.0)


def scales_without_condition(x: Tokens) -> Tokens:
    """Tokens of one mean and one scale."""
    return layer_norm(x)


@PAPER.claim(
    "zhu2025.s_curve",
    source=f"{DYT}, abstract and Section 3",
    statement="Layer normalization in transformers often produces tanh-like, S-shaped input-output mappings.",
    assumptions=("tokens have different means and standard deviations",),
    read=Read.PAPER,
    expected=Verdict.HOLDS,
    context=Context(
        before="LN normalizes in a per-token manner, only linearly transforming each token's activations. As tokens "
        "have different mean and standard deviation values, the linearity does not hold collectively on all "
        "activations of the input tensor.",
        sentence="Tokens with smaller input x ranges tend to have smaller variance, and the normalization layer will "
        "divide their activations using a smaller standard deviation, hence producing a larger slope in the straight "
        "line. Collectively, they form an S-shaped curve that resembles a tanh function.",
        after="…",
        readings=(
            Reading("The mapping is the cloud of all entries of many tokens, and its mean curve.", Verdict.HOLDS),
        ),
        verdict="For tokens of different scale the mean curve bends exactly as σ varies with |x|. For tokens of one "
        "mean and scale, which the authors exclude, it is a line.",
    ),
)
def s_curve(problem: Problem):
    """The slope of the pooled curve at the centre and in the tail, for log-normal and for equal scales."""
    for spread in SPREADS:
        x = tokens(problem, spread)
        y = layer_norm(x)
        found = {}
        for where, window in (("centre", CENTRE), ("tail", TAIL)):
            found[where], error = slope_between(x, y, *window)
            predicted = expected_slope(spread, *window)
            yield agree(
                f"log-normal scales {spread}: slope in the {where}, {found[where]:.3f}, and E[1/s|x]; standard error "
                f"{error:.1g}",
                found[where],
                predicted,
                tol=4 * error / predicted,
            )
        bend = found["tail"] / found["centre"]
        yield differ(f"log-normal scales {spread}: slope in the tail over the centre's, and 1", min(bend, 1.0), 1.0)
    x = scales_without_condition(tokens(problem, SPREADS[0]))
    equal = [slope_between(x, layer_norm(x), *window)[0] for window in (CENTRE, (2.0, 4.0))]
    yield agree(
        "equal means and scales: slope in the tail and at the centre",
        equal[1],
        equal[0],
    )
    x = tokens(problem, 0.0)[:1]
    x[0, 0] = 1e9
    yield agree("an outlier unit saturates at √(H − 1)", layer_norm(x)[0, 0], np.sqrt(WIDTH - 1))


@s_curve.proof()
def s_curve_proof() -> Proof:
    """Tokens of different scale: E[1/s|x] falls as |x| grows."""
    weight, a = field("w", positive=True), field("c", positive=True)
    q, c = sp.symbols("q c", positive=True)
    moment = lambda k: total(lambda l: weight(l) * a(l) ** k, H)
    pairs = total(lambda l: total(lambda m: weight(l) * weight(m) * (a(l) - a(m)) ** 2 * (a(l) + a(m)), H), H)
    density = c * sp.exp(-q * c**2 / 2)
    return Proof(
        r"E[y|x] = x\,E[1/s|x],\quad \frac{d}{d(x^2)}E[1/s|x] = -\tfrac12\mathrm{Cov}(1/s, 1/s^2|x) \leq 0",
        (
            expanded(
                "The density of x in a token of scale 1/c falls with q = x² at the rate c²/2 of itself, so E[c|x] "
                "falls at half the covariance of c and c²",
                r"\frac{d}{dq}c\,e^{-qc^2/2} = -\frac{c^2}{2}\,c\,e^{-qc^2/2}",
                density.diff(q) + c**2 / 2 * density,
            ),
            equality(
                "which is positive unless all scales are one: for tokens of different scale the curve bends",
                moment(3) * moment(0) - moment(2) * moment(1),
                pairs / 2,
                r"\sum wc^3\sum w - \sum wc^2\sum wc",
            ),
        ),
        (Assumption("Gaussian tokens, H scales 1/c with weights w", r"x = s\,\xi,\ s = 1/c"),),
    )


def rms_diagonal(y, rms, width: int):
    """∂y_k/∂x_k of RMSNorm."""
    return (1 - y**2 / width) / rms


@PAPER.claim(
    "zhu2025.tanh",
    source=f"{ELN}, derivation of DyT",
    statement="The diagonal of RMSNorm's Jacobian, (1 − y²/d)/ρ, integrates to y = √d tanh(x/(ρ√d)) where ρ is held "
    "constant.",
    formula=r"\frac{dy}{dx} = \frac{1 - y^2/d}{\rho} \Rightarrow y = \sqrt d\tanh\frac{x}{\rho\sqrt d}",
    assumptions=("ρ does not change with x", "entries of the Jacobian off the diagonal are dropped"),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def tanh(problem: Problem):
    """The diagonal by complex steps; and Runge–Kutta along it from y(0) = 0."""
    width = 12
    x = np.random.default_rng(problem.seed).standard_normal(width)
    rms = np.sqrt(np.mean(x**2))
    step = 1e-30
    jacobian = np.stack([rms_norm(x + 1j * step * e).imag / step for e in np.eye(width)], 1)
    yield agree("diagonal of the Jacobian and (1 − y²/d)/ρ", np.diag(jacobian), rms_diagonal(x / rms, rms, width))
    times = np.linspace(0, 12, 1201)
    h, y, path = times[1], 0.0, [0.0]
    for _ in times[1:]:
        k1 = rms_diagonal(y, rms, width)
        k2 = rms_diagonal(y + h / 2 * k1, rms, width)
        k3 = rms_diagonal(y + h / 2 * k2, rms, width)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + rms_diagonal(y + h * k3, rms, width))
        path.append(y)
    predicted = width**0.5 * np.tanh(times / (rms * width**0.5))
    yield agree("the integral and √d tanh(x/(ρ√d))", np.array(path), predicted, tol=1e-8)


@tanh.proof()
def tanh_proof() -> Proof:
    """The derivative of the solution."""
    x, rho, d = sp.symbols("x rho d", positive=True)
    y = sp.sqrt(d) * sp.tanh(x / (rho * sp.sqrt(d)))
    entry = field("x")
    square = mean(lambda l: entry(l) ** 2, H)
    moved = lambda t: (entry(i) + t) / sp.sqrt(mean(lambda l: (entry(l) + t * KroneckerDelta(l, i)) ** 2, H))
    return Proof(
        r"y = \sqrt d\tanh\frac{x}{\rho\sqrt d}",
        (
            equality(
                "The diagonal of RMSNorm's Jacobian",
                derivative(moved),
                (1 - entry(i) ** 2 / (H * square)) / sp.sqrt(square),
                r"\partial y_i/\partial x_i",
            ),
            expanded(
                "With ρ held constant this is the equation of a tanh",
                r"y' = (1 - y^2/d)/\rho",
                (y.diff(x) - (1 - y**2 / d) / rho).rewrite(sp.exp),
            ),
            fact("which starts at 0", "y(0) = 0", lambda: y.subs(x, 0) == 0),
        ),
        (Assumption("ρ does not change with x", r"d\rho/dx = 0"),),
    )


def others(x: Tokens) -> Tokens:
    """C of each entry: the sum of the squares of the others in its token."""
    return x**2 @ (1 - np.eye(x.shape[1]))


@PAPER.claim(
    "zhu2025.isru",
    source=f"{ELN}, elementwise layer normalization",
    statement="With ρ = x/y in place of a constant the solution is y = √d x/√(x² + C): RMSNorm's curve of one "
    "coordinate, with C the sum of the other squares.",
    formula=r"y = \sqrt d\,x/\sqrt{x^2 + C}",
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def isru(problem: Problem):
    """RMSNorm of the data's summed inputs, against the curve."""
    _, params, inputs = problem.case("rms")
    x = np.asarray(inputs @ params.weights.T)
    width = x.shape[1]
    yield agree("RMSNorm and √d x/√(x² + C)", rms_norm(x), np.sqrt(width) * x / np.sqrt(x**2 + others(x)))


@isru.proof()
def isru_proof() -> Proof:
    """The derivative of the solution, and the sum of squares."""
    x, C, d = sp.symbols("x C d", positive=True)
    y = sp.sqrt(d) * x / sp.sqrt(x**2 + C)
    entry = field("x")
    rest = total(lambda l: (1 - KroneckerDelta(l, i)) * entry(l) ** 2, H)
    return Proof(
        r"y = \sqrt d\,x/\sqrt{x^2 + C}",
        (
            expanded(
                "The curve solves the equation with ρ = x/y",
                r"y' = (1 - y^2/d)\,y/x",
                (y.diff(x) - (1 - y**2 / d) * y / x) * sp.sqrt(x**2 + C),
            ),
            equality(
                "and is that of RMSNorm with C = Σ_{j≠i} x_j²",
                entry(i) / sp.sqrt(mean(lambda l: entry(l) ** 2, H)),
                sp.sqrt(H) * entry(i) / sp.sqrt(entry(i) ** 2 + rest),
                "y_i",
            ),
        ),
    )


def inverse_root(u):
    """u/√(1 + u²): ELN with α = 1/√C."""
    return u / np.sqrt(1 + u**2)


class Fit(NamedTuple):
    """The curve g·curve(αx) that is closest to y.

    Attributes:
        alpha: α.
        gain: g.
        error: mean squared error.
    """

    alpha: float
    gain: float
    error: float


def fit_at(curve: Callable[[np.ndarray], np.ndarray], alpha: float, x: np.ndarray, y: np.ndarray) -> Fit:
    """The best gain for one α."""
    values = curve(alpha * x)
    gain = float(np.sum(values * y) / np.sum(values**2))
    return Fit(alpha, gain, float(np.mean((y - gain * values) ** 2)))


def best_fit(curve: Callable[[np.ndarray], np.ndarray], x: np.ndarray, y: np.ndarray) -> Fit:
    """The best α and gain."""
    error = lambda logarithm: fit_at(curve, np.exp(logarithm), x, y).error
    found = scipy.optimize.minimize_scalar(error, bounds=(-6, 4), method="bounded")
    return fit_at(curve, float(np.exp(found.x)), x, y)  # pyright: ignore


def error_ratio(x: Tokens, y: Tokens) -> float:
    """The error of ELN over that of DyT."""
    return best_fit(inverse_root, x, y).error / best_fit(np.tanh, x, y).error


@PAPER.claim(
    "zhu2025.closer",
    source=f"{ELN}, abstract",
    statement="The elementwise layer normalization resembles layer norm more accurately than DyT.",
    assumptions=("no outlier unit, where one α and one C serve all units",),
    read=Read.ABSTRACT,
    expected=Verdict.CONDITIONAL,
    context=Context(
        before="By dropping said approximation, an alternative element-wise transformation is obtained, which we call "
        "Elementwise Layer Normalization (ELN).",
        sentence="We demonstrate that ELN resembles Layer Normalization more accurately than DyT does.",
        after="",
        readings=(
            Reading("Each curve has its best parameter and gain, for tokens of different scale.", Verdict.HOLDS),
            Reading("They are compared on tokens with outlier units, too, and one C for all units.", Verdict.REFUTED),
        ),
        verdict="ELN is closer by 0 to 2 % for tokens of different scale, and by half for an outlier unit with its own "
        "C. With one C for all units an outlier unit makes DyT the closer one.",
    ),
    why_numeric="errors of fits to random tokens",
)
def closer(problem: Problem):
    """400 tokens of 128 units, with the best α and gain for each curve."""
    draw = np.random.default_rng(problem.seed)
    plain = draw.standard_normal((400, 128))
    laws = {
        "log-normal scales 0.3": plain * np.exp(0.3 * draw.standard_normal((400, 1))),
        "log-normal scales 0.7": plain * np.exp(0.7 * draw.standard_normal((400, 1))),
        "uniform scales": plain * draw.uniform(0.2, 2, (400, 1)),
    }
    for name, x in laws.items():
        ratio = error_ratio(x, layer_norm(x))
        yield differ(f"{name}: error of ELN over that of DyT, and 1", min(ratio, 1.0), 1.0)
    x = plain.copy()
    x[:, 0] *= 30
    y = layer_norm(x)
    own = error_ratio(x[:, :1], y[:, :1])
    yield differ("an outlier unit with α and C of its own: the same", min(own, 1.0), 1.0)
    ratio = error_ratio(x, y)
    yield differ(
        "an outlier unit 30 times larger, one α and C for all units: the same",
        max(ratio, 1.0),
        1.0,
        role=Role.FAILS_WITHOUT_CONDITION,
    )


def slope_of(inputs):
    """α of the layer."""
    return jnp.full((len(inputs), 1), 0.7, inputs.dtype)


def dynamic_tanh(weights, inputs):
    """DyT of the summed inputs."""
    return jnp.tanh(slope_of(inputs @ weights.T) * (inputs @ weights.T))


LAYER_NORM_COLUMNS = (
    "weight_matrix_rescaling",
    "weight_matrix_recentering",
    "dataset_rescaling",
    "single_case_rescaling",
)
"""The invariances of layer norm in the table."""


@PAPER.claim(
    "zhu2025.no_invariance",
    source="beyond the paper",
    statement="DyT keeps none of layer norm's invariances but the sign: y(−W) = −y(W). Moving along W is "
    "moving along α.",
    formula=r"\langle W, \partial_W L\rangle = \alpha\,\partial_\alpha L",
    assumptions=("α does not depend on the input",),
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def no_invariance(problem: Problem):
    """Four transformations and the sign, on the data."""
    _, params, inputs = problem.case("ln")
    W = params.weights
    before = dynamic_tanh(W, inputs)
    shift = problem.normal("zhu2025.shift", 1, W.shape[1])
    factors = jnp.exp(problem.normal("zhu2025.factors", len(inputs), 1))
    moved = ((3 * W, inputs), (W + shift, inputs), (W, 3 * inputs), (W, factors * inputs))
    for column, arguments in zip(LAYER_NORM_COLUMNS, moved, strict=True):
        yield differ(column.replace("_", " "), dynamic_tanh(*arguments), before)
    yield agree("y(−W) and −y(W)", dynamic_tanh(-W, inputs), -before)
    yield agree("the layer of lngeom.normalizers", DynamicTanh(0.7)(W, inputs), before)


@no_invariance.proof()
def no_invariance_proof() -> Proof:
    """Exact instances, and the chain rule."""
    alpha, c = sp.symbols("alpha c", positive=True)
    output = lambda L, slope=alpha: sp.tanh(slope * L.a(n, i))
    opposite = Layer(lambda l, d: -LAYER.W(l, d), LAYER.X)
    shrunk = Layer(lambda l, d: LAYER.W(l, d) / c, LAYER.X)
    radial = derivative(lambda t: output(LAYER.towards(LAYER.W, t)))
    return Proof(
        r"y(-W) = -y(W),\quad \langle W, \partial_W L\rangle = \alpha\,\partial_\alpha L",
        (
            jointly(
                "Under none of the four: at W = (1, 0), x = (1, 0) scaled by 2 or with W shifted by (1, 0)",
                [refutation(column, prove("DynamicTanh", column)) for column in LAYER_NORM_COLUMNS],  # pyright: ignore
            ),
            equality("The sign passes through", output(opposite) + output(LAYER), 0, r"y_{ni}(-W) + y_{ni}(W)"),
            equality(
                "The output depends on αW alone", output(shrunk, c * alpha), output(LAYER), r"y_{ni}(W/c, c\alpha)"
            ),
            equality("so moving along W is moving along α", radial, alpha * output(LAYER).diff(alpha), "dy_{ni}[W]"),
        ),
    )

"""Zhang and Sennrich (2019), *Root Mean Square Layer Normalization*: n = a/rms(a), rms² = mean(a²)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import sympy as sp
from jaxtyping import Array, Float

from lngeom.claims import Paper, Problem, Read, Role, Verdict, agree, differ
from lngeom.claims.context import Context, Reading
from lngeom.methods import LayerNorm, RMSNorm
from lngeom.papers.lab import exponent_of
from lngeom.symbolic.jacobian import LAYER
from lngeom.symbolic.layers import LAYER_NORM, RMS_NORM, Layer
from lngeom.symbolic.proof import Proof, equality, expanded, refutation
from lngeom.symbolic.sums import H, field, i, mean, n
from lngeom.symbolic.table import prove

PAPER = Paper(
    "zhang2019",
    "Root Mean Square Layer Normalization",
    ("Biao Zhang", "Rico Sennrich"),
    2019,
    "1910.07467",
    "Without weight decay the implicit learning rate adaptor slows the growth of the weights to t^(1/4); it does not "
    "stop it.",
)
COLUMNS = {
    "weight_matrix_rescaling": True,
    "weight_matrix_recentering": False,
    "weight_vector_rescaling": False,
    "dataset_rescaling": True,
    "dataset_recentering": False,
    "single_case_rescaling": True,
}
"""The rows of RMSNorm and pRMSNorm in the paper's Table 1."""


def partial_rms(share: float):
    """RMSNorm whose rms is that of the first ⌈pH⌉ units."""

    def normalize(weights: Float[Array, "H D"], inputs: Float[Array, "N D"]) -> Float[Array, "N H"]:
        a = inputs @ weights.T
        first = a[:, : math.ceil(share * a.shape[1])]
        return a / jnp.sqrt(jnp.mean(first**2, 1, keepdims=True))

    return normalize


def row(problem: Problem, normalize):
    """Evidence for the six answers of a row of Table 1, on the data."""
    _, params, inputs = problem.case("rms")
    W, before = params.weights, normalize(params.weights, inputs)
    shift = problem.normal("zhang2019.shift", 1, inputs.shape[1])
    factors = jnp.exp(problem.normal("zhang2019.factors", len(inputs), 1))
    moved = {
        "weight_matrix_rescaling": (3 * W, inputs),
        "weight_matrix_recentering": (W + shift, inputs),
        "weight_vector_rescaling": (factors[: len(W)] * W, inputs),
        "dataset_rescaling": (W, 3 * inputs),
        "dataset_recentering": (W, problem.rounded(inputs + shift)),
        "single_case_rescaling": (W, factors * inputs),
    }
    for column, invariant in COLUMNS.items():
        compare = agree if invariant else differ
        yield compare(column.replace("_", " "), normalize(*moved[column]), before)


@PAPER.claim(
    "zhang2019.equals_ln",
    source="Section 4: “When the mean of summed inputs is zero, RMSNorm is exactly equal to LayerNorm.”",
    statement="RMSNorm is layer norm exactly where the mean of the summed inputs is zero.",
    formula=r"\mathrm{rms}^2 = \sigma^2 + \mu^2",
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def equals_ln(problem: Problem):
    """On the data with centred weights, and with weights as they are."""
    _, params, inputs = problem.case("rms")
    W = params.weights
    centred = W - W.mean(0, keepdims=True)
    yield agree("both methods, columns of W of mean 0", RMSNorm()(centred, inputs), LayerNorm()(centred, inputs))
    yield differ("both methods, W as it is", RMSNorm()(W, inputs), LayerNorm()(W, inputs))


@equals_ln.proof()
def equals_ln_proof() -> Proof:
    """rms² = σ² + μ²; conversely, equal outputs of both methods have equal sums, so that Hμ/rms = 0."""
    mu = mean(lambda l: LAYER.a(n, l), H)
    centred = Layer(lambda l, d: LAYER.W(l, d) - mean(lambda r: LAYER.W(r, d), H))
    return Proof(
        r"\mathrm{RMS}(a) = \mathrm{LN}(a) \Leftrightarrow \mu = 0",
        (
            equality(
                "The mean square is the variance and the square of the mean",
                RMS_NORM.square(LAYER),
                LAYER_NORM.square(LAYER) + mu**2,
                r"\mathrm{rms}_n^2",
            ),
            equality(
                "With mean 0 both are one function", RMS_NORM(centred), LAYER_NORM(LAYER), r"\mathrm{RMS}(a - \mu)"
            ),
            equality("The outputs of layer norm have mean 0", mean(lambda l: LAYER_NORM(LAYER, n, l), H), 0),
            equality(
                "those of RMSNorm have mean μ/rms, so equal outputs ask for μ = 0",
                mean(lambda l: RMS_NORM(LAYER, n, l), H),
                mu / sp.sqrt(RMS_NORM.square(LAYER)),
                r"\frac{1}{H}\sum_i \mathrm{RMS}(a)_i",
            ),
        ),
    )


@PAPER.claim(
    "zhang2019.table_row",
    source="Table 1, RMSNorm",
    statement="RMSNorm is invariant to re-scaling of the weight matrix, of the data set and of a single case, and to "
    "no other transformation of the table.",
    assumptions=("δ > 0", "ε = 0"),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def table_row(problem: Problem):
    """The six transformations on the data."""
    yield from row(problem, RMSNorm())


@table_row.proof()
def table_row_proof() -> Proof:
    """Each "yes" for all sizes, each "no" by an exact instance."""
    steps = []
    for column, invariant in COLUMNS.items():
        found = prove("RMSNorm", column)
        if invariant != isinstance(found, Proof):
            raise ValueError(f"algebra contradicts the row in {column}")
        name = column.replace("_", " ")
        steps += found.steps[:1] if isinstance(found, Proof) else [refutation(f"Not under {name}", found)]
    return Proof(r"\mathrm{rms}(\delta a) = \delta\,\mathrm{rms}(a)", tuple(steps))


@PAPER.claim(
    "zhang2019.prms_row",
    source="Table 1, pRMSNorm",
    statement="pRMSNorm, whose rms is that of the first ⌈pH⌉ units, has the same invariances.",
    assumptions=("δ > 0", "ε = 0", "some a_j ≠ 0 among the first units"),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
    why_numeric='the partial rms is homogeneous of degree 1, as the whole one; the answers "no" are by numbers',
)
def prms_row(problem: Problem):
    """The six transformations with p = 1/4 on the data."""
    yield from row(problem, partial_rms(0.25))


def estimate(a: Float[np.ndarray, "K H"], first: int) -> Float[np.ndarray, " K"]:
    """The mean square of the first units."""
    return np.mean(a[:, :first] ** 2, 1)


@PAPER.claim(
    "zhang2019.prms_estimate",
    source="pRMSNorm: “… neurons in one layer often have independent identically distributed structure …”",
    statement="The first k units estimate the rms of all of them.",
    assumptions=("the units are independent and identically distributed",),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
    why_numeric="a statement about random numbers",
)
def prms_estimate(problem: Problem):
    """Gaussian units: the relative deviation of rms_k² is √(2/k). One large unit among the first k: no estimate."""
    draws, units, first = 4000, 512, 32
    a = np.array(problem.normal("zhang2019.units", draws, units, dtype=float))
    found = estimate(a, first)
    error = 1 / np.sqrt(2 * draws)  # standard error of a standard deviation, relative
    yield agree("E rms_k²", found.mean(), 1.0, tol=4 * np.sqrt(2 / first / draws))
    yield agree("relative deviation of rms_k² and √(2/k)", found.std(), np.sqrt(2 / first), tol=4 * error)
    a[:, 0] *= 30
    ratio = estimate(a, first) / estimate(a, units)
    yield differ("where one unit is 30 times larger, rms_k²/rms² and 1", ratio.mean(), 1.0)


def _gradients(problem: Problem, delta_w: float = 1.0, delta_x: float = 1.0):
    """∂L/∂(v, W, g, b) of L = Σ cos(v), v = g RMS(W x) + b, by automatic differentiation."""
    _, params, inputs = problem.small("rms")
    W, X = delta_w * params.weights, delta_x * inputs

    def loss(shift, W, g, b):
        return jnp.sum(jnp.cos(g[None, :] * RMSNorm()(W, X) + b[None, :] + shift))

    slopes = jax.jit(jax.grad(loss, (0, 1, 2, 3)))
    found = slopes(jnp.zeros((len(X), len(W))), W, params.gain, params.bias)
    return W, X, params.gain, found


@PAPER.claim(
    "zhang2019.eq8",
    source="Eq. 8",
    statement="The gradients of bias and gain, ∂L/∂b = ∂L/∂v and ∂L/∂g = ∂L/∂v ⊙ n, do not change when inputs or the "
    "weight matrix are scaled.",
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def eq8(problem: Problem):
    """Against automatic differentiation, and at other scales."""
    W, X, _, (v, _, g, b) = _gradients(problem)
    yield agree("∂L/∂b and Σ ∂L/∂v", b, v.sum(0))
    yield agree("∂L/∂g and Σ ∂L/∂v n", g, (v * RMSNorm()(W, X)).sum(0))
    for name, change in (("inputs × 3", {"delta_x": 3.0}), ("weights × 1e-3", {"delta_w": 1e-3})):
        _, _, _, (_, _, other_g, other_b) = _gradients(problem, **change)
        yield agree(f"∂L/∂g, {name}", other_g, g)
        yield agree(f"∂L/∂b, {name}", other_b, b)


@eq8.proof()
def eq8_proof() -> Proof:
    """v = g n + b, and n does not change."""
    delta = sp.Symbol("delta", positive=True)
    g, b, t = sp.symbols("g b t", real=True)
    scaled = Layer(lambda l, d: delta * LAYER.W(l, d), LAYER.X)
    other = Layer(LAYER.W, lambda s, d: delta * LAYER.X(s, d))
    v = g * t + b
    return Proof(
        r"\partial v/\partial b = 1,\quad \partial v/\partial g = n",
        (
            expanded(
                "v is linear in bias and gain", r"\partial_b v = 1,\ \partial_g v = n", v.diff(b) - 1, v.diff(g) - t
            ),
            equality("n stays when the weights are scaled", RMS_NORM(scaled), RMS_NORM(LAYER), r"n_{ni}(\delta W, X)"),
            equality("and when the inputs are", RMS_NORM(other), RMS_NORM(LAYER), r"n_{ni}(W, \delta X)"),
        ),
    )


@PAPER.claim(
    "zhang2019.eq9",
    source="Eq. 9",
    statement="The gradient of the weights is Σ R (g ⊙ ∂L/∂v) xᵀ with R = (I − nnᵀ/H)/rms.",
    formula=r"\nabla_W L = \sum_x R\,(g \odot \partial_v L)\,x^\top",
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def eq9(problem: Problem):
    """Against automatic differentiation."""
    W, X, gain, (v, found, _, _) = _gradients(problem)
    yield agree("∂L/∂W and Σ R (g ⊙ ∂L/∂v) xᵀ", found, weight_gradient(W, X, gain[None, :] * v))


def weight_gradient(weights, inputs, cotangent):
    """Σ R c xᵀ."""
    a = inputs @ weights.T
    rms = jnp.sqrt(jnp.mean(a**2, 1, keepdims=True))
    n = a / rms
    return ((cotangent - n * jnp.mean(n * cotangent, 1, keepdims=True)) / rms).T @ inputs


@eq9.proof()
def eq9_proof() -> Proof:
    """The derivative of a/rms along any change of the summed inputs."""
    V = field("V")
    t = sp.Dummy("t", real=True)
    moved = RMS_NORM(LAYER.towards(V, t)).diff(t).subs(t, 0)
    rms = sp.sqrt(RMS_NORM.square(LAYER))
    change = lambda l: Layer(V, LAYER.X).a(n, l)
    projected = (change(i) - RMS_NORM(LAYER) * mean(lambda l: RMS_NORM(LAYER, n, l) * change(l), H)) / rms
    return Proof(
        r"dn = R\,da,\quad R = (I - nn^\top/H)/\mathrm{rms}",
        (
            equality("The derivative along da = V x is R V x, and R is symmetric", moved, projected, r"dn_{ni}[V]"),
            equality("R n = 0: the gradient is orthogonal to W", _radial(), 0, r"dn_{ni}[W]"),
        ),
    )


def _radial():
    """The derivative of RMSNorm along the weights themselves."""
    t = sp.Dummy("t", real=True)
    return RMS_NORM(LAYER.towards(LAYER.W, t)).diff(t).subs(t, 0)


@PAPER.claim(
    "zhang2019.eq10",
    source="Eq. 10",
    statement="R becomes R/δ when inputs or weights are scaled by δ, so the gradient of the weights does not change "
    "with the inputs, and is multiplied by 1/δ with the weights.",
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def eq10(problem: Problem):
    """By automatic differentiation at other scales."""
    gradient = _gradients(problem)[3][1]
    yield agree("∇_W, inputs × 3", _gradients(problem, delta_x=3.0)[3][1], gradient)
    yield agree("3 ∇_W, weights × 3", 3 * _gradients(problem, delta_w=3.0)[3][1], gradient)


@eq10.proof()
def eq10_proof() -> Proof:
    """n has degree 0 and rms degree 1, so dn along a fixed change of W has degree −1 in W and 0 in x."""
    delta = sp.Symbol("delta", positive=True)
    V = field("V")
    t = sp.Dummy("t", real=True)

    def slope(layer: Layer):
        return RMS_NORM(layer.towards(V, t)).diff(t).subs(t, 0)

    scaled = Layer(lambda l, d: delta * LAYER.W(l, d), LAYER.X)
    other = Layer(LAYER.W, lambda s, d: delta * LAYER.X(s, d))
    return Proof(
        r"R(\delta W) = R(W)/\delta",
        (
            equality("Weights scaled", slope(scaled), slope(LAYER) / delta, r"dn_{ni}[V](\delta W, X)"),
            equality("Inputs scaled", slope(other), slope(LAYER), r"dn_{ni}[V](W, \delta X)"),
        ),
    )


@PAPER.claim(
    "zhang2019.adaptor",
    source="Section 4.2",
    statement="The dependence of the gradient on the weights' norm is an implicit learning rate adaptor which keeps "
    "the norm of the weights from growing large.",
    assumptions=("growing large means faster than t^(1/4); with weight decay the norm has an equilibrium",),
    read=Read.NOTES,
    expected=Verdict.CONDITIONAL,
    context=Context(
        before="[R becomes R/δ where the weights become δW.]",
        sentence="… the negative correlation acts as an implicit learning rate adaptor …",
        after="[It controls the norm of gradients, which avoids weight matrices of large norm.]",
        readings=(
            Reading("The norm of the weights grows more slowly than it would without the factor 1/δ.", Verdict.HOLDS),
            Reading("It stays bounded.", Verdict.REFUTED),
        ),
        verdict="With gradients of size 1/‖W‖ the norm grows like t^(1/4), in place of t^(1/2) for steps of one size "
        "in random directions; it has no bound.",
    ),
    why_numeric="the exponent of a recursion",
)
def adaptor(problem: Problem):
    """The recursion ‖W‖² → ‖W‖² + η²G²/‖W‖²: the norm grows like t^(1/4), and so without bound."""
    steps, rate = 10_000, 0.3
    squares = growth(steps, rate)
    predicted = np.sqrt(1 + 2 * rate**2 * steps)
    yield agree("‖W‖⁴ and ‖W₀‖⁴ + 2η²G²t, relative", squares[-1], predicted, tol=1e-3)
    late = np.arange(steps // 10, steps + 1)
    exponent = exponent_of(late, squares[late]) / 2
    yield agree(f"exponent of ‖W‖ in t, t from {late[0]} to {late[-1]}", exponent, 0.25, tol=0.02)
    yield differ(
        "‖W‖ at 10 000 and at 1 000 steps: it does not stay bounded",
        squares[-1] ** 0.5,
        squares[steps // 10] ** 0.5,
        role=Role.FAILS_WITHOUT_CONDITION,
    )


def growth(steps: int, rate: float) -> np.ndarray:
    """‖W_t‖² under gradient descent with ⟨W, ∇⟩ = 0 and ‖∇‖ = 1/‖W‖."""
    squares = np.empty(steps + 1)
    squares[0] = 1
    for step in range(steps):
        squares[step + 1] = squares[step] + rate**2 / squares[step]
    return squares

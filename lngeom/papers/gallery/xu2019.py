"""Xu, Sun, Zhang, Zhao and Lin (2019), *Understanding and Improving Layer Normalization*: y = (x − μ)/σ, no gain."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import sympy as sp
from jaxtyping import Array, Float
from sympy import Expr

from lngeom.claims import Paper, Problem, Read, Role, Verdict, agree, differ, same_integer, vanishes
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, expanded, fact, matrix
from lngeom.symbolic.sums import Field, H, derivative, field, mean, total

PAPER = Paper(
    "xu2019",
    "Understanding and Improving Layer Normalization",
    ("Jingjing Xu", "Xu Sun", "Zhiyuan Zhang", "Guangxiang Zhao", "Junyang Lin"),
    2019,
    "1911.07013",
    "The two bounds of Theorem 1 are one equality, and AdaNorm's function is unique only if its second requirement has "
    "a bound that is the same for every number of units.",
)


class Backward(NamedTuple):
    """Gradients before and after layer norm, a row a case.

    Attributes:
        outer: g = ∂ℓ/∂y.
        inner: b = ∂ℓ/∂x.
        outputs: y.
        scale: σ.
    """

    outer: Float[Array, "N H"]
    inner: Float[Array, "N H"]
    outputs: Float[Array, "N H"]
    scale: Float[Array, " N"]


def standardized(x: Float[Array, "N H"], *, mean: bool, scale: bool) -> Float[Array, "N H"]:
    """(x − μ)/σ; the statistics that are not to be differentiated are constants of the backward pass."""
    keep = jax.lax.stop_gradient
    mu = jnp.mean(x, 1, keepdims=True)
    mu = mu if mean else keep(mu)
    sigma = jnp.sqrt(jnp.mean(jnp.square(x - mu), 1, keepdims=True))
    return (x - mu) / (sigma if scale else keep(sigma))


def backward(problem: Problem, *, mean: bool, scale: bool, gain: Float[Array, " H"] | None = None) -> Backward:
    """Gradients on random summed inputs, of shape (60, 9), by automatic differentiation."""
    _, params, inputs = problem.small("ln", shape=(60, 5, 9))
    x = inputs @ params.weights.T
    gain = jnp.ones(x.shape[1], x.dtype) if gain is None else gain
    y, pull = jax.vjp(lambda x: standardized(x, mean=mean, scale=scale), x)
    outer = problem.normal("xu2019.outer", *x.shape)
    (inner,) = pull(gain[None, :] * outer)
    return Backward(outer, inner, y, jnp.std(x, 1))


def reduced(outer: Array, outputs: Array, scale: Array) -> Array:
    """(D_g − c²)/σ², the variance of g without its part along y; c is the mean of g y."""
    return (jnp.var(outer, 1) - jnp.mean(outer * outputs, 1) ** 2) / scale**2


def kept(outer: Array, outputs: Array, scale: Array) -> Array:
    """D_g/σ², the variance of g."""
    return jnp.var(outer, 1) / scale**2


def moments(problem: Problem, variance, *, mean: bool, scale: bool):
    """Evidence for mean and variance of ∂ℓ/∂x: mean 0 if the mean is differentiated, else ḡ/σ."""
    g, b, y, sigma = backward(problem, mean=mean, scale=scale)
    if mean:
        yield vanishes("mean of ∂ℓ/∂x", b.mean(1), scale=float(jnp.max(jnp.abs(b))))
    else:
        yield agree("mean of ∂ℓ/∂x and ḡ/σ", b.mean(1), g.mean(1) / sigma)
    yield agree("variance of ∂ℓ/∂x as stated", jnp.var(b, 1), variance(g, y, sigma))


# --- Proofs: x is arbitrary, dy[v] is the derivative of y when x moves by v, and ⟨g, dy[v]⟩ = ⟨∂ℓ/∂x, v⟩ for all v.

X, MOVE, OUTER = field("x"), field("v"), field("g")
NORMAL, SCALE = field("y"), sp.Symbol(r"\sigma")


def _u(l) -> Expr:
    return X(l) - mean(X, H)


def _sigma() -> Expr:
    return sp.sqrt(mean(lambda l: _u(l) ** 2, H))


LETTERS = {"y": lambda l: _u(l) / _sigma(), r"\sigma": _sigma()}
C = mean(lambda j: OUTER(j) * NORMAL(j), H)


def _variance(f: Field) -> Expr:
    return mean(lambda l: f(l) ** 2, H) - mean(f, H) ** 2


def gradient_steps(moved: Field, inner: Field, average: Expr, variance: Expr) -> tuple[Step, ...]:
    """The gradient by its definition, its mean and its variance."""
    product = total(lambda l: OUTER(l) * moved(l), H)
    used = lambda *sides: {name: part for name, part in LETTERS.items() if any(_has(side, name) for side in sides)}
    right = total(lambda l: inner(l) * MOVE(l), H)
    stated = lambda f, value, name: equality("so its " + name[0], f, value, name[1], used(f, value))
    return (
        equality("The backward pass", product, right, r"\langle g, dy[v]\rangle", used(product, right)),
        stated(mean(inner, H), average, ("mean is", r"\bar b")),
        stated(_variance(inner), variance, ("variance is", "D_b")),
    )


def _has(expr: Expr, name: str) -> bool:
    expr = sp.sympify(expr)
    return expr.has(sp.Symbol(name)) or any(entry.base.name == name for entry in expr.atoms(sp.Indexed))


def _moved(*, mean_moves: bool, scale_moves: bool) -> Field:
    """Derivative of y along v, of which parts are held."""

    def along(l) -> Expr:
        def curve(t):
            x = lambda j: X(j) + t * MOVE(j)
            mu = mean(x, H) if mean_moves else mean(X, H)
            sigma = sp.sqrt(mean(lambda j: (x(j) - mu) ** 2, H)) if scale_moves else _sigma()
            return (x(l) - mu) / sigma

        return derivative(curve)

    return along


OUTER_MEAN, OUTER_VARIANCE = mean(OUTER, H), _variance(OUTER)


def _proof(id: str, statement: str, *, mean_moves: bool, scale_moves: bool) -> Proof:
    inner = lambda l: (
        OUTER(l) - (OUTER_MEAN if mean_moves else 0) - (C * NORMAL(l) if scale_moves else 0)
    ) / SCALE  # fmt: skip
    average = sp.S.Zero if mean_moves else OUTER_MEAN / SCALE
    variance = (OUTER_VARIANCE - (C**2 if scale_moves else 0)) / SCALE**2
    steps = gradient_steps(_moved(mean_moves=mean_moves, scale_moves=scale_moves), inner, average, variance)
    return Proof(statement, steps, (Assumption("positive scale", r"\sigma > 0"),), name=id)


@PAPER.claim(
    "xu2019.full",
    source="Theorem 1",
    statement="Layer norm makes the mean of the gradient zero and its variance at most D_g/σ². The variance is "
    "(D_g − c²)/σ², where c is the mean of g ⊙ y.",
    formula=r"D_b = (D_g - c^2)/\sigma^2 \leq D_g/\sigma^2",
    assumptions=("no gain", "ε = 0"),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def full(problem: Problem):
    """By automatic differentiation through both statistics."""
    yield from moments(problem, reduced, mean=True, scale=True)
    g, b, _, sigma = backward(problem, mean=True, scale=True)
    yield differ("the bound D_g/σ² is not attained", jnp.var(b, 1), jnp.var(g, 1) / sigma**2)


@full.proof()
def full_proof() -> Proof:
    """∂ℓ/∂x = (g − ḡ − c y)/σ, with mean y = 0 and mean y² = 1."""
    return _proof("xu2019.full", r"\bar b = 0,\quad D_b = (D_g - c^2)/\sigma^2", mean_moves=True, scale_moves=True)


@PAPER.claim(
    "xu2019.detach_mean",
    source="Theorem 1, the mean detached (mean_detach in the authors' code)",
    statement="Without the derivative of μ the gradient has mean ḡ/σ and variance at most D_g/σ², exactly "
    "(D_g − c²)/σ².",
    formula=r"\bar b = \bar g/\sigma,\quad D_b = (D_g - c^2)/\sigma^2",
    assumptions=("no gain", "ε = 0"),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def detach_mean(problem: Problem):
    """By automatic differentiation with μ held, in σ too."""
    yield from moments(problem, reduced, mean=False, scale=True)


@detach_mean.proof()
def detach_mean_proof() -> Proof:
    """That μ is held within σ makes no difference, since the deviations have mean 0."""
    return _proof(
        "xu2019.detach_mean",
        r"\bar b = \bar g/\sigma,\quad D_b = (D_g - c^2)/\sigma^2",
        mean_moves=False,
        scale_moves=True,
    )


@PAPER.claim(
    "xu2019.detach_scale",
    source="Theorem 1, the variance detached (std_detach in the authors' code)",
    statement="Without the derivative of σ the gradient has mean 0 and variance D_g/σ².",
    formula=r"\bar b = 0,\quad D_b = D_g/\sigma^2",
    assumptions=("no gain", "ε = 0"),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def detach_scale(problem: Problem):
    """By automatic differentiation with σ held."""
    yield from moments(problem, kept, mean=True, scale=False)


@detach_scale.proof()
def detach_scale_proof() -> Proof:
    """∂ℓ/∂x = (g − ḡ)/σ."""
    return _proof("xu2019.detach_scale", r"\bar b = 0,\quad D_b = D_g/\sigma^2", mean_moves=True, scale_moves=False)


@PAPER.claim(
    "xu2019.detach_both",
    source="Theorem 1, both detached",
    statement="Without the derivatives of μ and σ the gradient has mean ḡ/σ and variance D_g/σ².",
    formula=r"\bar b = \bar g/\sigma,\quad D_b = D_g/\sigma^2",
    assumptions=("no gain", "ε = 0"),
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def detach_both(problem: Problem):
    """By automatic differentiation with both held."""
    yield from moments(problem, kept, mean=False, scale=False)


@detach_both.proof()
def detach_both_proof() -> Proof:
    """∂ℓ/∂x = g/σ."""
    return _proof(
        "xu2019.detach_both", r"\bar b = \bar g/\sigma,\quad D_b = D_g/\sigma^2", mean_moves=False, scale_moves=False
    )


def gains(problem: Problem, units: int) -> Float[Array, " H"]:
    """Random positive gains."""
    return jnp.exp(problem.normal("xu2019.gains", units))


@PAPER.claim(
    "xu2019.with_gain",
    source="Theorem 1, read for layer norm with a gain",
    statement="Layer norm with a gain w makes the variance of the gradient at most D_g/σ².",
    assumptions=("D_g is the variance of w ⊙ ∂ℓ/∂z, where z = w ⊙ y + b is the output, and not of ∂ℓ/∂z",),
    read=Read.OWN,
    expected=Verdict.CONDITIONAL,
)
def with_gain(problem: Problem):
    """Log-normal gains: the bound holds for w ⊙ g, and fails for g in some of 60 cases."""
    w = gains(problem, 9)
    g, b, y, sigma = backward(problem, mean=True, scale=True, gain=w)
    yield agree("variance of ∂ℓ/∂x, and that of w ⊙ g reduced", jnp.var(b, 1), reduced(w[None, :] * g, y, sigma))
    ratio = np.asarray(jnp.var(b, 1) * sigma**2 / jnp.var(g, 1))
    yield differ(
        f"largest D_b σ²/D_g with D_g the variance of ∂ℓ/∂z, above 1 in {np.sum(ratio > 1)} of {len(ratio)} cases",
        max(ratio.max(), 1.0),
        1.0,
        role=Role.FAILS_WITHOUT_CONDITION,
    )


@with_gain.proof("conditional")
def with_gain_proof() -> Proof:
    """The gradient that arrives at y is w ⊙ ∂ℓ/∂z, so the equality is that of `xu2019.full` for it."""
    w = field("w")
    arriving = lambda l: w(l) * OUTER(l)
    c = mean(lambda j: arriving(j) * NORMAL(j), H)
    inner = lambda l: (arriving(l) - mean(arriving, H) - c * NORMAL(l)) / SCALE
    moved = _moved(mean_moves=True, scale_moves=True)

    def sides(values) -> tuple[Expr, Expr]:
        x, gain, g = (list(values[name]) for name in ("x", "w", "g"))
        size = len(x)
        average = lambda v: sum(v) / sp.Integer(size)
        mu = average(x)
        sigma = sp.sqrt(average([(a - mu) ** 2 for a in x]))
        y = [(a - mu) / sigma for a in x]
        weighted = [a * b for a, b in zip(gain, g, strict=True)]
        c = average([a * b for a, b in zip(weighted, y, strict=True)])
        b = [(a - average(weighted) - c * e) / sigma for a, e in zip(weighted, y, strict=True)]
        bound = (average([a**2 for a in g]) - average(g) ** 2) / sigma**2
        return sp.Max(average([a**2 for a in b]) - average(b) ** 2, bound), bound

    unweighted = Counterexample(
        "xu2019.with_gain for the variance of ∂ℓ/∂z",
        r"\max(D_b, D_g/\sigma^2) = D_g/\sigma^2",
        {"x": matrix([[1, -1, 1, -1]]), "w": matrix([[3, 1, 1, 1]]), "g": matrix([[1, 1, -1, -1]])},
        sides,
        "The larger of D_b and D_g/σ² (left), and D_g/σ² (right).",
    )
    return Proof(
        r"D_b = (D_{w\odot g} - c^2)/\sigma^2,\quad c = \mathrm{mean}(w\odot g\odot y)",
        (
            equality(
                "The backward pass",
                total(lambda l: arriving(l) * moved(l), H),
                total(lambda l: inner(l) * MOVE(l), H),
                r"\langle w\odot g, dy[v]\rangle",
                LETTERS,
            ),
            equality(
                "so its variance is that of w ⊙ g, reduced",
                _variance(inner),
                (_variance(arriving) - c**2) / SCALE**2,
                "D_b",
                LETTERS,
            ),
        ),
        (
            Assumption(
                "D_g is the variance of what arrives at y", r"D_g = D_{w\odot\partial\ell/\partial z}", unweighted
            ),
        ),
    )


BOUND = 1.3
"""M of AdaNorm's second requirement |mean z| < M."""
LINEAR, SQUARE = 0.3, 0.4
"""β and γ of the function φ = C − γ + βy + γy², which meets both requirements at H = 9."""


def bound(units: int) -> float:
    """M, the same for every number of units."""
    return BOUND


def one_against_all(units: int) -> np.ndarray:
    """Normalized values of one unit that stands against all others: the largest skewness."""
    y = np.full(units, -1 / np.sqrt(units - 1))
    y[0] = np.sqrt(units - 1)
    return y


def largest_product(units: int) -> float:
    """The mean of φ(y) y where it is largest, φ = C − γ + βy + γy² with C = 1."""
    y = one_against_all(units)
    return float(np.mean((1 - SQUARE + LINEAR * y + SQUARE * y**2) * y))


def solutions(units: int, degree: int, seed: int) -> int:
    """Dimension of the polynomials whose mean over the units is the same for all normalized values."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((200, units))
    x -= x.mean(1, keepdims=True)
    y = x / np.sqrt(np.mean(x**2, 1, keepdims=True))
    means = np.stack([np.mean(np.polynomial.hermite_e.hermeval(y, unit), 1) for unit in np.eye(degree + 1)], 1)
    means = (means - means.mean(0)) / np.maximum(np.abs(means).max(0), 1.0)
    values = np.linalg.svd(means, compute_uv=False)
    return degree + 1 - int(np.sum(values > 1e-10 * values[0]))


@PAPER.claim(
    "xu2019.adanorm_unique",
    source="Theorem 2",
    statement="φ(y) = C(1 − ky) is the only differentiable function with mean φ(y_i) = C and |mean φ(y_i) y_i| < M for "
    "all inputs.",
    assumptions=("M is the same for every number H of units", "H ≥ 5"),
    read=Read.NOTES,
    expected=Verdict.CONDITIONAL,
)
def adanorm_unique(problem: Problem):
    """The first requirement leaves the quadratics; the second leaves out γ ≠ 0 only as H grows."""
    for units in (5, 8):
        found = solutions(units, 8, problem.seed)
        yield same_integer(f"dimension of solutions of the first requirement, degree ≤ 8, H = {units}", found, 3)
    units = 10_000
    found = max(largest_product(units), bound(units))
    yield differ(f"largest |mean φ(y) y| and M, γ = {SQUARE}, H = {units}", found, bound(units))
    units, role = 9, Role.FAILS_WITHOUT_CONDITION
    rng = np.random.default_rng(problem.seed)
    x = np.concatenate([rng.standard_cauchy((2000, units)), one_against_all(units)[None, :]])
    x -= x.mean(1, keepdims=True)
    y = x / np.sqrt(np.mean(x**2, 1, keepdims=True))
    phi = 1 - SQUARE + LINEAR * y + SQUARE * y**2
    yield agree(f"H = {units}, γ = {SQUARE}: mean φ(y) and C", phi.mean(1), np.ones(len(y)), role=role)
    largest = np.abs(np.mean(phi * y, 1)).max()
    yield agree(f"largest |mean φ(y) y|, not above M = {BOUND}", max(largest, BOUND), BOUND, role=role)


@adanorm_unique.proof("conditional")
def adanorm_unique_proof() -> Proof:
    """The first requirement makes φ' affine; the second takes out the square, since skewness has no bound."""
    C, beta, gamma = sp.symbols("C beta gamma", real=True)
    y = LETTERS["y"]
    phi = lambda l: C - gamma + beta * y(l) + gamma * y(l) ** 2
    a, p, q, slope_p, slope_q = sp.symbols("a p q s_p s_q", real=True)
    size, count = sp.Symbol("H", positive=True), sp.Integer(9)
    # With all else held, p + q = const − a and p² + q² = const − a².
    p_a, q_a = (a - q) / (q - p), (a - p) / (p - q)
    high, low = sp.sqrt(size - 1), -1 / sp.sqrt(size - 1)
    skewness = (high**3 + (size - 1) * low**3) / size
    at_nine = skewness.subs(size, count)

    def quadratic(values) -> tuple[Expr, Expr]:
        value = lambda y: 1 - values[r"\gamma"] + values[r"\beta"] * y + values[r"\gamma"] * y**2
        largest = values[r"\beta"] + values[r"\gamma"] * at_nine
        if not bool(largest < values["M"]):
            raise ValueError(f"{largest} is not below M")
        return value(sp.Integer(1)) - 2 * value(sp.Integer(0)) + value(sp.Integer(-1)), sp.S.Zero

    fixed = Counterexample(
        "xu2019.adanorm_unique at nine units",
        r"\varphi(1) - 2\varphi(0) + \varphi(-1) = 0",
        {"H": 9, "C": 1, r"\beta": sp.Rational(3, 10), r"\gamma": sp.Rational(2, 5), "M": sp.Rational(13, 10)},
        quadratic,
        "The second difference (left) of a quadratic that meets both requirements; it is 0 for an affine function.",
    )
    return Proof(
        r"\mathrm{mean}\,\varphi(y) = C,\ |\mathrm{mean}\,\varphi(y)y| < M \Rightarrow \varphi(y) = C(1 - ky)",
        (
            expanded(
                "Move one unit a, and two others p, q so that the sum and the sum of squares stay",
                r"a' + p' + q' = 0,\ aa' + pp' + qq' = 0",
                1 + p_a + q_a,
                a + p * p_a + q * q_a,
            ),
            expanded(
                "then the sum of φ stays only if φ'(a) is on the line through φ'(p), φ'(q). From H = 5 on three units "
                "are free, so that φ' is affine",
                r"\varphi'(a) = \frac{(a-q)\varphi'(p) + (p-a)\varphi'(q)}{p-q}",
                -(slope_p * p_a + slope_q * q_a) - ((a - q) * slope_p + (p - a) * slope_q) / (p - q),
            ),
            equality("and φ is one of these quadratics", mean(phi, H), C, r"\mathrm{mean}\,\varphi(y)"),
            equality(
                "whose second mean is β and γ times the skewness of y",
                mean(lambda l: phi(l) * NORMAL(l), H),
                beta + gamma * mean(lambda l: NORMAL(l) ** 3, H),
                r"\mathrm{mean}\,\varphi(y)y",
                {"y": y},
            ),
            expanded(
                "One unit against all others has this skewness",
                r"\mathrm{mean}\,y^3 = (H-2)/\sqrt{H-1}",
                skewness - (size - 2) / sp.sqrt(size - 1),
            ),
            fact(
                "which grows without bound, so that γ = 0",
                r"(H-2)/\sqrt{H-1} \to \infty",
                lambda: sp.limit(skewness, size, sp.oo) == sp.oo,
            ),
        ),
        (
            Assumption("M does not depend on H", r"\gamma\,(H-2)/\sqrt{H-1} < M - \beta\ \text{for all}\ H", fixed),
            Assumption("at least five units", r"H \geq 5"),
        ),
    )


def allowed(k: float, units: int) -> float:
    """Most units at which C(1 − k|y|) may be negative or zero."""
    return k**2 * units


@PAPER.claim(
    "xu2019.positive",
    source="Section 4",
    statement="AdaNorm's φ(y) = C(1 − ky) is positive where |y| < 1/k, and at most k²H units are not there.",
    formula=r"\#\{i : |y_i| \geq 1/k\} \leq k^2H",
    read=Read.NOTES,
    expected=Verdict.HOLDS,
)
def positive(problem: Problem):
    """Cauchy inputs, which have large outliers, and an input that attains the bound."""
    units, k = 1024, 1 / 8
    rng = np.random.default_rng(problem.seed)
    extreme = np.zeros(units)
    extreme[:16] = 8 * (-1) ** np.arange(16)
    y = np.stack([*rng.standard_cauchy((500, units)), extreme])
    y -= y.mean(1, keepdims=True)
    y /= np.sqrt(np.mean(y**2, 1, keepdims=True))
    beyond = np.sum(np.abs(y) >= 1 / k, 1)
    yield vanishes("units beyond 1/k, above k²H", np.maximum(beyond - allowed(k, units), 0), scale=units)
    yield same_integer("units beyond 1/k where two values ±1/k and zeros are normalized", beyond[-1], allowed(k, units))
    yield agree("mean of φ(y) y and −k: the output is not centred", np.mean((1 - k * y) * y, 1), np.full(len(y), -k))


@positive.proof()
def positive_proof() -> Proof:
    """Each unit beyond 1/k has at least 1/k² of the total H of the squares."""
    y = LETTERS["y"]
    C, k = sp.Symbol("C", real=True), sp.Symbol("k", positive=True)
    count, rest = sp.symbols("c r", nonnegative=True)
    return Proof(
        r"\#\{i : |y_i| \geq 1/k\} \leq k^2H",
        (
            equality("The squares add up to H", total(lambda l: y(l) ** 2, H), H, r"\sum_i y_i^2"),
            fact(
                "c units with y² = 1/k² + (no less than 0) leave r ≥ 0 to the others, so c/k² ≤ H",
                r"H = c/k^2 + r \Rightarrow c = k^2(H - r) \leq k^2H",
                lambda: (
                    bool(sp.expand(k**2 * (count / k**2 + rest) - count - k**2 * rest) == 0)
                    and (k**2 * rest).is_nonnegative is True
                ),
            ),
            equality(
                "The output has mean −Ck",
                mean(lambda l: C * (1 - k * y(l)) * y(l), H),
                -C * k,
                r"\mathrm{mean}\,\varphi(y)y",
            ),
        ),
    )

r"""Section 5.2: the metric of generalized linear models and of normalized ones, derived from first principles."""

import itertools

import mpmath
import sympy as sp
from sympy import Expr, Function, KroneckerDelta, sqrt

from lngeom.symbolic.actions import DELTA
from lngeom.symbolic.layers import BATCH_NORM, LAYER_NORM, RMS_NORM, WEIGHT_NORM, Layer, Method
from lngeom.symbolic.nullspaces import GAIN, LAYER, RADIAL, SHIFTS, along
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, fact, matrix
from lngeom.symbolic.registry import proves
from lngeom.symbolic.sums import D, H, N, Field, derivative, field, i, j, k, mean, n, total

PHI = sp.Symbol("phi", positive=True)
LAMBDA = field("lambda", positive=True)
SMALL = {"W": matrix([[1], [1], [-2]]), "x": matrix([[1]])}
"""One input: u = (1, 1, −2), σ² = 2, n = u/√2, Gaussian outputs of variance 1 (Λ = I)."""


class eta(Function):  # noqa: N801
    r"""The k-th derivative $\eta^{(k)}(z)$ of an arbitrary log-partition function."""

    nargs = 2

    def fdiff(self, argindex: int = 1) -> Expr:
        """The next derivative."""
        return eta(self.args[0], self.args[1] + 1)

    def _latex(self, printer) -> str:
        return rf"\eta{chr(39) * int(self.args[1])}\left({printer.doprint(self.args[0])}\right)"

    @staticmethod
    def numerically(z, order):
        """Spot checks take the Poisson family, η = exp."""
        return mpmath.exp(z)


def expanded(text: str, latex: str, *differences: Expr) -> Step:
    """The step that expressions without sums are zero, by differentiation, cancellation and expansion."""
    return fact(text, latex, lambda: all(sp.expand(sp.cancel(sp.expand(x.doit()))) == 0 for x in differences))


def bernoulli_partition(z: Expr) -> Expr:
    """η of the Bernoulli family."""
    return sp.log(1 + sp.exp(z))


@proves("equation.8", "conditional")
def equation_8() -> Proof:
    """The divergence is half the quadratic form of the metric, to second order, on average over x."""
    t = sp.Symbol("t", real=True)
    z = Function("z")(t)
    start, velocity = z.subs(t, 0), z.diff(t).subs(t, 0)
    divergence = (eta(z, 0) - eta(start, 0) - (z - start) * eta(start, 1)) / PHI
    slopes = [divergence.diff(t, order).subs(t, 0) for order in (0, 1, 2)]

    def poisson(step: int) -> Expr:
        return sp.exp(sp.Integer(step)) - 1 - step

    cubic = Counterexample(
        "equation.8 as an equality",
        r"D_{KL} = \tfrac12 \delta^\top F \delta",
        {"z": 0, r"\delta": 1},
        lambda v: (poisson(v[r"\delta"]), v[r"\delta"] ** 2 / 2),
        "Poisson outputs at z = 0, one unit away: the divergence (left) and half the quadratic form (right).",
    )
    one_case = Counterexample(
        "equation.8 at one case",
        r"D_{KL}[P(y\mid x;\theta)\,\|\,P(y\mid x;\theta+\delta)] = \tfrac12\delta^\top F\delta \text{ with F a mean over x}",
        {"X": matrix([[1], [2]]), r"\delta": 1},
        lambda v: (v["X"][0] ** 2 / 2, sum(x**2 for x in v["X"]) / 4),
        "Gaussian outputs, z = wx, where Eq. 8 has no remainder: the case x = 1 (left), the mean over cases (right).",
    )
    return Proof(
        "equation.8",
        r"E_x D_{KL}[P_\theta \| P_{\theta+\delta}] = \tfrac12\delta^\top F\delta + O(|\delta|^3)",
        (
            expanded("Along a curve z(t) the divergence and its slope vanish at t = 0", r"D(0) = D'(0) = 0", *slopes[:2]),
            expanded(
                "its second derivative is the metric of the velocity, whatever the curve's acceleration",
                r"D''(0) = \eta''(z)\,\dot z^2/\phi",
                slopes[2] - eta(start, 2) * velocity**2 / PHI,
            ),
        ),
        (
            Assumption("to second order", r"O(|\delta|^3)\text{ neglected}", cubic),
            Assumption("both sides averaged over x", r"E_{x\sim P(x)}", one_case),
        ),
    )


@proves("equation.10_wording", "refuted")
def equation_10_wording() -> Counterexample:
    """η is the log-partition function; c is the log base measure."""
    z, y = sp.Symbol("z", real=True), sp.Symbol("y", integer=True, nonnegative=True)
    bernoulli = sum(sp.exp(z * value) for value in (0, 1))
    rate = sp.Symbol("r", positive=True)
    poisson = sp.summation(rate**y / sp.factorial(y), (y, 0, sp.oo)).subs(rate, sp.exp(z))
    u = sp.Symbol("u", real=True)
    gaussian = sp.integrate(sp.exp(-((u - z) ** 2) / 2) / sqrt(2 * sp.pi), (u, -sp.oo, sp.oo))
    correct = Proof(
        "equation.10_wording corrected",
        r"\sum_y e^{(zy)/\phi + c(y,\phi)} = e^{\eta(z)/\phi}",
        (
            expanded("Bernoulli, c = 0: the sum over y is exp η", r"1 + e^z = e^{\log(1+e^z)}", bernoulli - sp.exp(bernoulli_partition(z))),
            expanded("Poisson, c = −log y!: it is exp(exp z)", r"\sum_y e^{zy}/y! = e^{e^z}", poisson - sp.exp(sp.exp(z))),
            expanded("Gaussian, c = −y²/2 − log √(2π): with η = z²/2 it integrates to one", r"\int p(y)\,dy = 1", gaussian - 1),
        ),
    )
    return Counterexample(
        "equation.10_wording",
        r"c(\cdot) \text{ is the log partition function}",
        {"z": 0},
        lambda v: (sp.log(sum(sp.exp(v["z"] * value) for value in (0, 1))), sp.S.Zero),
        "Bernoulli outputs at z = 0: the logarithm of the partition sum (left) and c (right).",
        correct,
    )


@proves("equation.11", "conditional")
def equation_11() -> Proof:
    """Mean and variance follow from η; they are the printed ones exactly when f = η'."""
    z, y = sp.symbols("z y", real=True)
    p = sp.exp((z * y - eta(z, 0)) / PHI + Function("c")(y))
    score, second = sp.diff(p, z) / p, sp.diff(p, z, 2) / p
    residual = (y - eta(z, 1)) / PHI
    relu = Counterexample(
        "equation.11 with f = ReLU",
        r"E[y\mid x] = f(z)",
        {"z": -1},
        lambda v: (sp.exp(v["z"]) / (1 + sp.exp(v["z"])), sp.Max(v["z"], 0)),
        "Bernoulli outputs: their mean (left) and ReLU (right), whose slope would make the variance zero.",
    )
    return Proof(
        "equation.11",
        r"E[y] = \eta'(z),\ \mathrm{Var}[y] = \phi\,\eta''(z);\quad f = \eta'",
        (
            expanded("Σ p = 1, so the sum of ∂p/∂z = p (y − η')/φ is zero: E[y] = η'", r"\partial_z p = p\,(y-\eta')/\phi", score - residual),
            expanded(
                "and the sum of ∂²p/∂z² is zero: Var[y] = φη''",
                r"\partial_z^2 p = p\,[(y-\eta')^2/\phi^2 - \eta''/\phi]",
                second - residual**2 + eta(z, 2) / PHI,
            ),
        ),
        (Assumption("f is the derivative of the log-partition function", r"f = \eta'", relu),),
    )


@proves("equation.12")
def equation_12() -> Proof:
    """The Fisher matrix of H generalized linear models is an expected Kronecker product."""
    W, x, b, y, V, beta, C = map(field, ("W", "x", "b", "y", "V", "beta", "C"))
    z = lambda l: total(lambda d: W(l, d) * x(d), D) + b(l)  # noqa: E731
    moved = lambda l, t: z(l) + t * (total(lambda d: V(l, d) * x(d), D) + beta(l))  # noqa: E731
    velocity = lambda l: total(lambda d: V(l, d) * x(d), D) + beta(l)  # noqa: E731
    log_p = lambda t: (moved(i, t) * y(i) - eta(moved(i, t), 0)) / PHI  # noqa: E731
    form = total(lambda k: total(lambda l: C(k, l) * velocity(k) * velocity(l), H), H) / PHI**2
    blocks = total(
        lambda k: total(
            lambda l: C(k, l)
            * (
                total(lambda d: total(lambda e: V(k, d) * x(d) * x(e) * V(l, e), D), D)
                + total(lambda d: V(k, d) * x(d), D) * beta(l)
                + beta(k) * total(lambda d: V(l, d) * x(d), D)
                + beta(k) * beta(l)
            ),
            H,
        ),
        H,
    ) / PHI**2
    independent = total(lambda k: total(lambda l: KroneckerDelta(k, l) * LAMBDA(k) * velocity(k) * velocity(l), H), H)
    return Proof(
        "equation.12",
        r"F = E_x\left[\frac{\mathrm{Cov}[y\mid x]}{\phi^2} \otimes \begin{bmatrix} xx^\top & x\\ x^\top & 1\end{bmatrix}\right]",
        (
            equality(
                "The score of unit i along a direction (V, β) is its residual times (Vx + β)_i over φ",
                derivative(log_p),
                (y(i) - eta(z(i), 1)) * velocity(i) / PHI,
            ),
            equality("The expected square, Cov(y_k, y_l) = C_kl, is the form of the Kronecker product", form, blocks),
            equality(
                "Independent outputs have a diagonal covariance: no blocks off the diagonal",
                independent,
                total(lambda k: LAMBDA(k) * velocity(k) ** 2, H),
            ),
            fact("Two Bernoulli units and two inputs, all four outcomes summed", r"E[ss^\top] = F", _bernoulli_by_outcomes),
        ),
    )


def _bernoulli_by_outcomes() -> bool:
    """E[score scoreᵀ] over all outcomes, entry by entry, against the Kronecker product (H = D = 2)."""
    x, q = sp.symbols("x1 x2"), sp.symbols("q1 q2", positive=True)
    features = [*x, 1]
    expected = sp.zeros(6, 6)
    for y in itertools.product((0, 1), repeat=2):
        probability = sp.prod(qi if yi else 1 - qi for yi, qi in zip(y, q, strict=True))
        score = sp.Matrix([(yi - qi) * f for yi, qi in zip(y, q, strict=True) for f in features])
        expected += probability * score * score.T
    moments = sp.Matrix(features) * sp.Matrix(features).T
    kronecker = sp.kronecker_product(sp.diag(*(qi * (1 - qi) for qi in q)), moments)
    return (expected - kronecker).expand() == sp.zeros(6, 6)


def chi(method: Method, V: Field, unit=i) -> Expr:
    """χ_i · v of Eq. 14, for v the row V_i: x·v − ∂μ_i[v] − n_i ∂σ_i[v], only row i of W moving."""
    own: Field = lambda l, d: KroneckerDelta(l, unit) * V(l, d)  # noqa: E731
    average = lambda L: L.a(n, unit) - method.numerator(L, n, unit)  # noqa: E731
    slope = lambda f: derivative(lambda t: f(LAYER.towards(own, t)))  # noqa: E731
    moved = total(lambda d: V(unit, d) * LAYER.X(n, d), D)
    return moved - slope(average) - method(LAYER, n, unit) * slope(lambda L: sqrt(method.square(L, n, unit)))


def own_rows(method: Method, V: Field, stated: Expr) -> tuple[Step, ...]:
    """Units do not see each other's weights, so Eq. 14 is the whole Jacobian; `stated` is χ_i · V_i in closed form."""
    others: Field = lambda l, d: (1 - KroneckerDelta(l, i)) * V(l, d)  # noqa: E731
    sigma = sqrt(method.square(LAYER))
    return (
        equality("Other rows of W do not move unit i", along(method, others), 0, r"\partial n_i/\partial w_{k \neq i}"),
        equality("χ from its definition", chi(method, V), stated, r"\chi_i^\top v"),
        equality("The whole Jacobian is (g/σ) χ", GAIN(i) * along(method, V), GAIN(i) / sigma * chi(method, V), r"dz_i"),
        equality(
            "So blocks are those of Eq. 13: dz = (g/σ)χ·dw + db + n dg, squared",
            (GAIN(i) / sigma * stated + _bias(i) + method(LAYER) * _dg(i)) ** 2,
            (GAIN(i) / sigma * stated) ** 2
            + 2 * GAIN(i) / sigma * stated * (_bias(i) + method(LAYER) * _dg(i))
            + _bias(i) ** 2
            + 2 * method(LAYER) * _bias(i) * _dg(i)
            + method(LAYER) ** 2 * _dg(i) ** 2,
        ),
    )


_bias, _dg = field("beta"), field("h")


@proves("equation.13_14.bn")
def equation_13_14_bn() -> Proof:
    """Batch norm: ∂μ/∂w = E x and ∂σ/∂w = Cov(x) w/σ, and Eq. 13–14 are exact."""
    V = field("V")
    own = lambda m: total(lambda d: V(i, d) * LAYER.X(m, d), D)  # noqa: E731
    covariance = mean(lambda m: (own(m) - mean(own, N)) * BATCH_NORM.numerator(LAYER, m, i), N)
    stated = own(n) - mean(own, N) - BATCH_NORM(LAYER) * covariance / sqrt(BATCH_NORM.square(LAYER))
    statement = r"\chi_i = x - E[x] - n_i\,\mathrm{Cov}(x)\,w_i/\sigma_i"
    return Proof("equation.13_14.bn", statement, own_rows(BATCH_NORM, V, stated), (Assumption("positive scale", r"\sigma_i > 0"),))


@proves("equation.13_14.wn")
def equation_13_14_wn() -> Proof:
    """Weight norm: ∂σ/∂w = w/σ, and Eq. 13–14 are exact."""
    V = field("V")
    moved = total(lambda d: V(i, d) * LAYER.X(n, d), D)
    inner = total(lambda d: V(i, d) * LAYER.W(i, d), D)
    stated = moved - LAYER.a(n, i) * inner / WEIGHT_NORM.square(LAYER)
    statement = r"\chi_i = x - (w_i^\top x)\,w_i/\|w_i\|^2"
    return Proof("equation.13_14.wn", statement, own_rows(WEIGHT_NORM, V, stated), (Assumption("positive norm", r"w_i \neq 0"),))


@proves("equation.13_14.ln", "refuted")
def equation_13_14_ln() -> Counterexample:
    """Layer norm: other rows move unit i too; the printed diagonal block lacks a positive term."""
    v = field("v")
    moved = total(lambda d: v(d) * LAYER.X(n, d), D)
    only_i: Field = lambda l, d: KroneckerDelta(l, i) * v(d)  # noqa: E731
    sigma = sqrt(LAYER_NORM.square(LAYER))
    output = lambda l: LAYER_NORM(LAYER, n, l)  # noqa: E731
    factor = lambda l: KroneckerDelta(l, i) - (1 + output(l) * output(i)) / H  # noqa: E731
    exact = total(lambda l: LAMBDA(l) * (GAIN(l) * factor(l)) ** 2, H)
    printed = LAMBDA(i) * (GAIN(i) * factor(i)) ** 2
    missing = total(
        lambda l: (1 - KroneckerDelta(l, i)) * LAMBDA(l) * GAIN(l) ** 2 * (1 + output(i) * output(l)) ** 2 / H**2, H
    )
    correct = Proof(
        "equation.13_14.ln corrected",
        r"\frac{\partial z_k}{\partial w_i} = \frac{g_k}{\sigma}\Big(\delta_{ki} - \frac{1+n_k n_i}{H}\Big)x,\quad "
        r"F_{w_iw_i} - \text{printed} = E\Big[\sigma^{-2}\sum_{k\neq i} g_k^2\lambda_k\frac{(1+n_in_k)^2}{H^2}xx^\top\Big]",
        (
            equality("The exact Jacobian", along(LAYER_NORM, only_i, unit=k), factor(k) * moved / sigma, r"\partial n_k/\partial w_i \cdot v"),
            equality("χ_i of Eq. 14", chi(LAYER_NORM, lambda l, d: v(d)), factor(i) * moved, r"\chi_i^\top v"),
            equality("Exact block less printed block, along v, at each case", exact - printed, missing, r"\sigma^2(v^\top\Delta v)/(v^\top x)^2"),
        ),
        (Assumption("positive scale", r"\sigma > 0"),),
    )
    return Counterexample(
        "equation.13_14.ln",
        r"\bar F_{w_iw_i} = E\left[\lambda_i\,g_i^2\sigma^{-2}\chi_i\chi_i^\top\right]",
        SMALL,
        lambda values: _weight_blocks(values["W"] * values["x"]),
        "Gaussian outputs, g = 1: the ww block of the first unit, exact (left) and printed (right).",
        correct,
    )


def _weight_blocks(u: sp.Matrix) -> tuple[Expr, Expr]:
    """Exact and printed ww block of unit 1, for one input x = 1 and u = Wx of mean zero, with Λ = I and g = 1."""
    H = len(u)
    variance = sum(value**2 for value in u) / sp.Integer(H)
    column = [int(l == 0) - (1 + u[l] * u[0] / variance) / sp.Integer(H) for l in range(H)]
    return sum(c**2 for c in column) / variance, column[0] ** 2 / variance


@proves("text.riemannian", "refuted")
def riemannian() -> Counterexample:
    """The metric of a normalized model vanishes along W: it is a semi-metric."""
    V = field("V")
    form = lambda direction: total(lambda l: LAMBDA(l) * (GAIN(l) * along(LAYER_NORM, direction, unit=l)) ** 2, H)  # noqa: E731
    squares = total(lambda l: (sp.sqrt(LAMBDA(l)) * GAIN(l) * along(LAYER_NORM, V, unit=l)) ** 2, H)
    correct = Proof(
        "text.riemannian corrected",
        r"v^\top F v = E\sum_k\lambda_k g_k^2(dn_k[v])^2 \geq 0, \text{ zero along } W \text{ and } \mathbf{1}\gamma^\top",
        (
            equality("The form is a sum of squares, at each case", form(V), squares),
            equality("It is zero along W", form(RADIAL), 0, r"\mathrm{vec}(W)^\top F\,\mathrm{vec}(W)"),
            equality("and along every shift", form(SHIFTS), 0),
        ),
    )

    def length_of_null_vector(values) -> tuple[Expr, Expr]:
        W, x, t = values["W"], values["x"], sp.Symbol("t")
        outputs = LAYER_NORM.exactly(W, x), LAYER_NORM.exactly((1 + t) * W, x)
        change = (outputs[1] - outputs[0]).diff(t).subs(t, 0)
        form = sum(sp.nsimplify(sp.radsimp(entry)) ** 2 for entry in change)
        return (sum(w**2 for w in W) if sp.expand(form) == 0 else sp.S.Zero), sp.S.Zero

    return Counterexample(
        "text.riemannian",
        r"v^\top F v = 0 \Rightarrow |v|^2 = 0",
        SMALL,
        length_of_null_vector,
        "The squared length of vec(W) (left), which has vᵀFv = 0, should be zero (right).",
        correct,
    )


def scaled(c: Expr = DELTA) -> Layer:
    """The layer with weights cW."""
    return Layer(lambda l, d: c * LAYER.W(l, d), LAYER.X)


def matrix_scaling(method: Method) -> tuple[Step, ...]:
    """All of W → cW: outputs stay, derivatives with respect to W are divided by c, those to b and g stay."""
    V = field("V")
    at_scaled = derivative(lambda t: method(scaled().towards(V, t)))
    return (
        equality("Outputs stay, so Λ and the derivatives by b and g do", method(scaled()), method(LAYER)),
        equality("Derivatives by W are divided by c", at_scaled, along(method, V) / DELTA, r"J(cW)[V]"),
        equality("so ww blocks by c²", at_scaled**2, along(method, V) ** 2 / DELTA**2),
        equality("and wb, wg blocks by c", at_scaled * method(scaled()), along(method, V) * method(LAYER) / DELTA),
    )


def _register_scaling() -> None:
    statement = r"W \mapsto cW:\ ww\ c^{-2},\quad wb, wg\ c^{-1},\quad bb, bg, gg\ c^0"
    for short, method in {"bn": BATCH_NORM, "wn": WEIGHT_NORM, "ln": LAYER_NORM, "rms": RMS_NORM}.items():
        name = f"scaling.matrix.{short}"
        proves(name)(lambda name=name, method=method: Proof(name, statement, matrix_scaling(method), (_POSITIVE,)))
    for short, method in {"bn": BATCH_NORM, "wn": WEIGHT_NORM}.items():
        name = f"scaling.unit.{short}"
        proves(name)(lambda name=name, method=method: Proof(name, _UNIT, unit_scaling(method), (_POSITIVE,)))


_POSITIVE = Assumption("positive factor and scale", r"c > 0,\ \sigma > 0,\ \epsilon = 0")
_UNIT = r"w_i \mapsto c_i w_i:\ F_{w_iw_j}\ c_i^{-1}c_j^{-1},\quad F_{w_ib_j}, F_{w_ig_j}\ c_i^{-1},\quad bb, bg, gg\ c^0"


def unit_scaling(method: Method) -> tuple[Step, ...]:
    """w_i → c_i w_i: the derivative of unit i is divided by c_i."""
    c, V = field("c", positive=True), field("V")
    layer = Layer(lambda l, d: c(l) * LAYER.W(l, d), LAYER.X)
    at_scaled = lambda l: derivative(lambda t: method(layer.towards(V, t), n, l))  # noqa: E731
    J = lambda l: along(method, V, unit=l)  # noqa: E731
    return (
        equality("Outputs stay", method(layer), method(LAYER)),
        equality("The derivative of unit i by W is divided by its c_i", at_scaled(i), J(i) / c(i), r"J_i(cW)[V]"),
        equality("Blocks ij: c_i⁻¹ c_j⁻¹, whence c⁻² at ii, c⁻¹ at ij if only w_i is scaled", at_scaled(i) * at_scaled(j), J(i) * J(j) / (c(i) * c(j))),
        equality("and wb, wg: c_i⁻¹", at_scaled(i) * method(layer, n, j), J(i) * method(LAYER, n, j) / c(i)),
    )


_register_scaling()


@proves("scaling.no_power_law.ln")
def no_power_law() -> Proof:
    """Scaling one row under layer norm: the ww block's logarithm is not linear in log c."""

    def curvature_of_logarithm(values) -> tuple[Expr, Expr]:
        blocks = []
        for c in (1, 2, 4):
            a = sp.diag(c, *[1] * (values["W"].rows - 1)) * values["W"] * values["x"]
            u = a - sp.ones(*a.shape) * (sum(a) / sp.Integer(len(a)))
            blocks.append(_weight_blocks(u)[0])
        return blocks[0] * blocks[2], blocks[1] ** 2

    bent = Counterexample(
        "scaling.no_power_law.ln",
        r"F_{w_1w_1}(c) = c^{s} F_{w_1w_1}(1)",
        SMALL,
        curvature_of_logarithm,
        "F(1) F(4) (left) and F(2)² (right), which any power law makes equal; Gaussian outputs, g = 1.",
    )
    from lngeom.symbolic.proof import refutation
    from lngeom.symbolic.table import prove

    return Proof(
        "scaling.no_power_law.ln",
        r"w_1 \mapsto c\,w_1:\ \text{outputs change, and no power } s \text{ has } F_{w_1w_1}(c) = c^s F_{w_1w_1}(1)",
        (
            refutation("The output changes", prove("LayerNorm", "weight_vector_rescaling")),  # pyright: ignore
            refutation("The block follows no power law", bent),
        ),
    )


@proves("text.factor_half", "refuted")
def factor_half() -> Counterexample:
    """The diagonal block changes by a quarter, not by a half, when W doubles."""
    correct = Proof("text.factor_half corrected", r"F_{ww}(cW) = c^{-2}F_{ww}(W)", matrix_scaling(LAYER_NORM), (_POSITIVE,))
    return Counterexample(
        "text.factor_half",
        r"F_{w_iw_i}(2W) = \tfrac12 F_{w_iw_i}(W)",
        SMALL,
        lambda v: (_weight_blocks(2 * v["W"] * v["x"])[0], _weight_blocks(v["W"] * v["x"])[0] / 2),
        "Gaussian outputs, g = 1: the ww block of the first unit at 2W (left), half that at W (right).",
        correct,
    )

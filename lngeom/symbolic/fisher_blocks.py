r"""Section 5.2: the metric of generalized linear models and of normalized ones, derived from first principles."""

import sympy as sp
from sympy import Expr, KroneckerDelta, sqrt

from lngeom.symbolic.actions import DELTA
from lngeom.symbolic.glm import LAMBDA
from lngeom.symbolic.layers import BATCH_NORM, LAYER_NORM, RMS_NORM, WEIGHT_NORM, Layer, Method
from lngeom.symbolic.nullspaces import GAIN, LAYER, RADIAL, SHIFTS, along
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, matrix
from lngeom.symbolic.registry import proves
from lngeom.symbolic.sums import D, Field, H, N, derivative, field, i, j, k, mean, n, total

SMALL = {"W": matrix([[1], [1], [-2]]), "x": matrix([[1]])}
"""One input: u = (1, 1, −2), σ² = 2, n = u/√2, Gaussian outputs of variance 1 (Λ = I)."""


def chi(method: Method, V: Field, unit=i) -> Expr:
    """χ_i · v of Eq. 14, for v the row V_i: x·v − ∂μ_i[v] − n_i ∂σ_i[v], only row i of W moving."""
    own: Field = lambda l, d: KroneckerDelta(l, unit) * V(l, d)
    average = lambda L: L.a(n, unit) - method.numerator(L, n, unit)
    slope = lambda f: derivative(lambda t: f(LAYER.towards(own, t)))
    moved = total(lambda d: V(unit, d) * LAYER.X(n, d), D)
    return moved - slope(average) - method(LAYER, n, unit) * slope(lambda L: sqrt(method.square(L, n, unit)))


def own_rows(method: Method, V: Field, stated: Expr) -> tuple[Step, ...]:
    """Units do not see each other's weights, so Eq. 14 is the whole Jacobian; `stated` is χ_i · V_i in closed form."""
    others: Field = lambda l, d: (1 - KroneckerDelta(l, i)) * V(l, d)
    sigma = sqrt(method.square(LAYER))
    return (
        equality(
            "Other rows of W do not move unit i",
            along(method, others),
            0,
            r"\partial n_i/\partial w_{k \neq i}",
        ),
        equality("χ from its definition", chi(method, V), stated, r"\chi_i^\top v"),
        equality(
            "The whole Jacobian is (g/σ) χ",
            GAIN(i) * along(method, V),
            GAIN(i) / sigma * chi(method, V),
            r"dz_i",
        ),
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
    own = lambda m: total(lambda d: V(i, d) * LAYER.X(m, d), D)
    covariance = mean(lambda m: (own(m) - mean(own, N)) * BATCH_NORM.numerator(LAYER, m, i), N)
    stated = own(n) - mean(own, N) - BATCH_NORM(LAYER) * covariance / sqrt(BATCH_NORM.square(LAYER))
    statement = r"\chi_i = x - E[x] - n_i\,\mathrm{Cov}(x)\,w_i/\sigma_i"
    return Proof(
        "equation.13_14.bn",
        statement,
        own_rows(BATCH_NORM, V, stated),
        (Assumption("positive scale", r"\sigma_i > 0"),),
    )


@proves("equation.13_14.wn")
def equation_13_14_wn() -> Proof:
    """Weight norm: ∂σ/∂w = w/σ, and Eq. 13–14 are exact."""
    V = field("V")
    moved = total(lambda d: V(i, d) * LAYER.X(n, d), D)
    inner = total(lambda d: V(i, d) * LAYER.W(i, d), D)
    stated = moved - LAYER.a(n, i) * inner / WEIGHT_NORM.square(LAYER)
    statement = r"\chi_i = x - (w_i^\top x)\,w_i/\|w_i\|^2"
    return Proof(
        "equation.13_14.wn",
        statement,
        own_rows(WEIGHT_NORM, V, stated),
        (Assumption("positive norm", r"w_i \neq 0"),),
    )


@proves("equation.13_14.ln", "refuted")
def equation_13_14_ln() -> Counterexample:
    """Layer norm: other rows move unit i too; the printed diagonal block lacks a positive term."""
    v = field("v")
    moved = total(lambda d: v(d) * LAYER.X(n, d), D)
    only_i: Field = lambda l, d: KroneckerDelta(l, i) * v(d)
    sigma = sqrt(LAYER_NORM.square(LAYER))
    output = lambda l: LAYER_NORM(LAYER, n, l)
    factor = lambda l: KroneckerDelta(l, i) - (1 + output(l) * output(i)) / H
    exact = total(lambda l: LAMBDA(l) * (GAIN(l) * factor(l)) ** 2, H)
    printed = LAMBDA(i) * (GAIN(i) * factor(i)) ** 2
    missing = total(
        lambda l: (1 - KroneckerDelta(l, i)) * LAMBDA(l) * GAIN(l) ** 2 * (1 + output(i) * output(l)) ** 2 / H**2,
        H,
    )
    correct = Proof(
        "equation.13_14.ln corrected",
        r"\frac{\partial z_k}{\partial w_i} = \frac{g_k}{\sigma}\Big(\delta_{ki} - \frac{1+n_k n_i}{H}\Big)x,\quad "
        r"F_{w_iw_i} - \text{printed} = "
        r"E\Big[\sigma^{-2}\sum_{k\neq i} g_k^2\lambda_k\frac{(1+n_in_k)^2}{H^2}xx^\top\Big]",
        (
            equality(
                "The exact Jacobian",
                along(LAYER_NORM, only_i, unit=k),
                factor(k) * moved / sigma,
                r"\partial n_k/\partial w_i \cdot v",
            ),
            equality("χ_i of Eq. 14", chi(LAYER_NORM, lambda l, d: v(d)), factor(i) * moved, r"\chi_i^\top v"),
            equality(
                "Exact block less printed block, along v, at each case",
                exact - printed,
                missing,
                r"\sigma^2(v^\top\Delta v)/(v^\top x)^2",
            ),
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
    form = lambda direction: total(lambda l: LAMBDA(l) * (GAIN(l) * along(LAYER_NORM, direction, unit=l)) ** 2, H)
    squares = total(lambda l: (sp.sqrt(LAMBDA(l)) * GAIN(l) * along(LAYER_NORM, V, unit=l)) ** 2, H)
    correct = Proof(
        "text.riemannian corrected",
        r"v^\top F v = E\sum_k\lambda_k g_k^2(dn_k[v])^2 \geq 0, \text{ zero along }"
        r" W \text{ and } \mathbf{1}\gamma^\top",
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
_UNIT = (
    r"w_i \mapsto c_i w_i:\ F_{w_iw_j}\ c_i^{-1}c_j^{-1},\quad F_{w_ib_j}, F_{w_ig_j}\ c_i^{-1},\quad bb, bg, gg\ c^0"
)


def unit_scaling(method: Method) -> tuple[Step, ...]:
    """w_i → c_i w_i: the derivative of unit i is divided by c_i."""
    c, V = field("c", positive=True), field("V")
    layer = Layer(lambda l, d: c(l) * LAYER.W(l, d), LAYER.X)
    at_scaled = lambda l: derivative(lambda t: method(layer.towards(V, t), n, l))
    J = lambda l: along(method, V, unit=l)
    return (
        equality("Outputs stay", method(layer), method(LAYER)),
        equality("The derivative of unit i by W is divided by its c_i", at_scaled(i), J(i) / c(i), r"J_i(cW)[V]"),
        equality(
            "Blocks ij: c_i⁻¹ c_j⁻¹, whence c⁻² at ii, c⁻¹ at ij if only w_i is scaled",
            at_scaled(i) * at_scaled(j),
            J(i) * J(j) / (c(i) * c(j)),
        ),
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
    correct = Proof(
        "text.factor_half corrected",
        r"F_{ww}(cW) = c^{-2}F_{ww}(W)",
        matrix_scaling(LAYER_NORM),
        (_POSITIVE,),
    )
    return Counterexample(
        "text.factor_half",
        r"F_{w_iw_i}(2W) = \tfrac12 F_{w_iw_i}(W)",
        SMALL,
        lambda v: (_weight_blocks(2 * v["W"] * v["x"])[0], _weight_blocks(v["W"] * v["x"])[0] / 2),
        "Gaussian outputs, g = 1: the ww block of the first unit at 2W (left), half that at W (right).",
        correct,
    )

r"""Section 5.2.2: the generalized linear model, its divergence and its Fisher matrix (Eqs. 8–12)."""

import itertools

import mpmath
import sympy as sp
from sympy import Expr, Function, KroneckerDelta, sqrt

from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, fact, matrix
from lngeom.symbolic.registry import proves
from lngeom.symbolic.sums import D, H, derivative, field, i, total

PHI = sp.Symbol("phi", positive=True)


LAMBDA = field("lambda", positive=True)


class eta(Function):
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
        r"D_{KL}[P(y\mid x;\theta)\,\|\,P(y\mid x;\theta+\delta)] = "
        r"\tfrac12\delta^\top F\delta \text{ with F a mean over x}",
        {"X": matrix([[1], [2]]), r"\delta": 1},
        lambda v: (v["X"][0] ** 2 / 2, sum(x**2 for x in v["X"]) / 4),
        "Gaussian outputs, z = wx, where Eq. 8 has no remainder: the case x = 1 (left), the mean over cases (right).",
    )
    return Proof(
        "equation.8",
        r"E_x D_{KL}[P_\theta \| P_{\theta+\delta}] = \tfrac12\delta^\top F\delta + O(|\delta|^3)",
        (
            expanded(
                "Along a curve z(t) the divergence and its slope vanish at t = 0",
                r"D(0) = D'(0) = 0",
                *slopes[:2],
            ),
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
            expanded(
                "Bernoulli, c = 0: the sum over y is exp η",
                r"1 + e^z = e^{\log(1+e^z)}",
                bernoulli - sp.exp(bernoulli_partition(z)),
            ),
            expanded(
                "Poisson, c = −log y!: it is exp(exp z)",
                r"\sum_y e^{zy}/y! = e^{e^z}",
                poisson - sp.exp(sp.exp(z)),
            ),
            expanded(
                "Gaussian, c = −y²/2 − log √(2π): with η = z²/2 it integrates to one",
                r"\int p(y)\,dy = 1",
                gaussian - 1,
            ),
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
            expanded(
                "Σ p = 1, so the sum of ∂p/∂z = p (y − η')/φ is zero: E[y] = η'",
                r"\partial_z p = p\,(y-\eta')/\phi",
                score - residual,
            ),
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
    z = lambda l: total(lambda d: W(l, d) * x(d), D) + b(l)
    moved = lambda l, t: z(l) + t * (total(lambda d: V(l, d) * x(d), D) + beta(l))
    velocity = lambda l: total(lambda d: V(l, d) * x(d), D) + beta(l)
    log_p = lambda t: (moved(i, t) * y(i) - eta(moved(i, t), 0)) / PHI
    form = total(lambda k: total(lambda l: C(k, l) * velocity(k) * velocity(l), H), H) / PHI**2
    blocks = (
        total(
            lambda k: total(
                lambda l: (
                    C(k, l)
                    * (
                        total(lambda d: total(lambda e: V(k, d) * x(d) * x(e) * V(l, e), D), D)
                        + total(lambda d: V(k, d) * x(d), D) * beta(l)
                        + beta(k) * total(lambda d: V(l, d) * x(d), D)
                        + beta(k) * beta(l)
                    )
                ),
                H,
            ),
            H,
        )
        / PHI**2
    )
    independent = total(lambda k: total(lambda l: KroneckerDelta(k, l) * LAMBDA(k) * velocity(k) * velocity(l), H), H)
    return Proof(
        "equation.12",
        r"F = E_x\left[\frac{\mathrm{Cov}[y\mid x]}{\phi^2} \otimes \begin{bmatrix} xx^\top & x\\ "
        r"x^\top & 1\end{bmatrix}\right]",
        (
            equality(
                "The score of unit i along a direction (V, β) is its residual times (Vx + β)_i over φ",
                derivative(log_p),
                (y(i) - eta(z(i), 1)) * velocity(i) / PHI,
            ),
            equality(
                "The expected square, Cov(y_k, y_l) = C_kl, is the form of the Kronecker product",
                form,
                blocks,
            ),
            equality(
                "Independent outputs have a diagonal covariance: no blocks off the diagonal",
                independent,
                total(lambda k: LAMBDA(k) * velocity(k) ** 2, H),
            ),
            fact(
                "Two Bernoulli units and two inputs, all four outcomes summed",
                r"E[ss^\top] = F",
                _bernoulli_by_outcomes,
            ),
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

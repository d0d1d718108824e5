"""Eqs. 10–12: generalized linear models, their moments and their Fisher matrix."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
import sympy as sp
from sympy import Expr, Function, KroneckerDelta, sqrt

from lngeom import families
from lngeom._core.types import GLMParameters
from lngeom.claims import (
    Problem,
    Role,
    Verdict,
    agree,
    claim,
    differ,
    numpy_reference,
    same_integer,
    vanishes,
)
from lngeom.claims.compared import compared
from lngeom.claims.context import Context, Reading
from lngeom.claims.erratum import Consequence, Erratum
from lngeom.claims.problem import Case
from lngeom.information import reference
from lngeom.information.orders import to_paper_order
from lngeom.papers.ba2016.kl_metric import eta
from lngeom.papers.ba2016.lg_fisher import LAMBDA, PHI, TOPIC, operator
from lngeom.symbolic.proof import (
    Assumption,
    Counterexample,
    Proof,
    equality,
    expanded,
    fact,
)
from lngeom.symbolic.sums import D, H, derivative, field, i, total


@claim(
    "equation.10_wording",
    topic=TOPIC,
    source="Eq. 10, text below it",
    statement="In Eq. 10, c(·) is the log partition function.",
    context=Context(
        sentence=(
            "where, f(·) is the transfer function …, η(·) is a real valued function and c(·) is the log partition "
            "function."
        ),
        before=(
            "To be consistent with the previous sections, the log likelihood of the GLM can be written using the "
            "summed inputs a as the following: [Eqs. 10, 11]"
        ),
        after="φ is a constant that scales the output variance.",
        readings=(Reading("Eq. 10 is right, and only the name of c is in question.", Verdict.SLIP),),
        verdict=(
            "The logarithm of the partition function depends on the parameters. In Eq. 10 that function is η; c(y, φ) "
            "does not depend on them."
        ),
    ),
    erratum=Erratum(Consequence.NOTATION, "The log-partition function of Eq. 10 is η, not c."),
    expected=Verdict.SLIP,
    correction="η(·) is the log-partition function; c(y, φ) is the logarithm of the base measure.",
)
def equation_10_wording(problem: Problem):
    """Sums over all y: η is the logarithm of the normalizing sum, c is not."""
    z = np.linspace(-2.0, 1.5, 8)
    y = np.arange(200.0)
    for family, support in ((families.Poisson(), y), (families.Binomial(7), y[:8])):
        base = np.asarray(jax.jit(family.log_base_measure)(support))
        partition = scipy.special.logsumexp(z[:, None] * support[None, :] + base[None, :], 1)
        name = type(family).__name__
        yield differ(f"{name}: log Σ_y exp(zy + c) and c", partition, base[:8], role=Role.MISPRINT)
        yield agree(
            f"{name}: log Σ_y exp(zy + c) and η(z)", partition, jax.jit(family.log_partition)(z), role=Role.CORRECTS
        )
    for at in compared():
        density = at.at_responses(at.distribution.log_density(at.z.astype(np.longdouble)))
        yield agree(f"{at.name}: Eq. 10 and its density", at.library["equation 10"], density, role=Role.CORRECTS)
        yield agree(f"{at.name}: log p and its density", at.library["log_prob"], density, role=Role.CORRECTS)
        cumulant = at.distribution.log_partition(at.z, at.other)
        what = f"{at.name}: η(z) − η(z′) and φ log E[exp((z − z′)y/φ)]"
        yield agree(what, at.library["log_partition"], cumulant, role=Role.CORRECTS)


def bernoulli_partition(z: Expr) -> Expr:
    """η of the Bernoulli family."""
    return sp.log(1 + sp.exp(z))


@equation_10_wording.proof("slip")
def equation_10_wording_proof() -> Counterexample:
    """η is the log-partition function; c is the log base measure."""
    z, y = sp.Symbol("z", real=True), sp.Symbol("y", integer=True, nonnegative=True)
    bernoulli = sum(sp.exp(z * value) for value in (0, 1))
    rate = sp.Symbol("r", positive=True)
    poisson = sp.summation(rate**y / sp.factorial(y), (y, 0, sp.oo)).subs(rate, sp.exp(z))
    u = sp.Symbol("u", real=True)
    gaussian = sp.integrate(sp.exp(-((u - z) ** 2) / 2) / sqrt(2 * sp.pi), (u, -sp.oo, sp.oo))
    correct = Proof(
        r"\sum_y e^{(zy)/\phi + c(y,\phi)} = e^{\eta(z)/\phi}",
        (
            expanded(
                "Bernoulli, c = 0: the sum over y is exp η",
                r"1 + e^z = e^{\log(1+e^z)}",
                bernoulli - sp.exp(bernoulli_partition(z)),
            ),
            expanded(
                "Poisson, c = −log y!: it is exp(exp z)", r"\sum_y e^{zy}/y! = e^{e^z}", poisson - sp.exp(sp.exp(z))
            ),
            expanded(
                "Gaussian, c = −y²/2 − log √(2π): with η = z²/2 it integrates to one",
                r"\int p(y)\,dy = 1",
                gaussian - 1,
            ),
        ),
        name="the correction",
    )
    return Counterexample(
        "equation.10_wording",
        r"c(\cdot) \text{ is the log partition function}",
        {"z": 0},
        lambda v: (sp.log(sum(sp.exp(v["z"] * value) for value in (0, 1))), sp.S.Zero),
        "Bernoulli outputs at z = 0: the logarithm of the partition sum (left) and c (right).",
        correct,
    )


@claim(
    "equation.11",
    topic=TOPIC,
    source="Eq. 11",
    statement="E[y|x] = f(z) and Var[y|x] = φ f′(z), where f is the transfer function.",
    formula=r"E[y|\mathbf x] = f(a+b),\quad \mathrm{Var}[y|\mathbf x] = \phi f'(a+b)",
    assumptions=("f = η′; this excludes ReLU",),
    context=Context(
        sentence="where, f(·) is the transfer function that is the analog of the non-linearity in neural networks, …",
        before=(
            "A generalized linear model (GLM) can be regarded as parameterizing an output distribution from the "
            "exponential family using a weight vector w and bias scalar b. … [Eqs. 10, 11]"
        ),
        after="φ is a constant that scales the output variance.",
        readings=(
            Reading(
                "f is the canonical transfer function η′, which Eq. 10 implies since a + b is its natural parameter.",
                Verdict.HOLDS,
            ),
            Reading("f is any non-linearity of a network, such as ReLU in Section 3.", Verdict.REFUTED),
        ),
        verdict=(
            "Both moments are exact. The condition is needed because the text calls f the analog of any non-linearity."
        ),
    ),
    expected=Verdict.CONDITIONAL,
)
def equation_11(problem: Problem):
    """Moments by summation over y against η′ and φη″; a transfer function other than η′ has other moments."""
    z = np.linspace(-2.0, 1.2, 8)
    y = np.arange(200.0)
    for family, support in ((families.Poisson(), y), (families.Bernoulli(), y[:2]), (families.Binomial(7), y[:8])):
        p = np.exp(jax.jit(family.log_prob)(z[:, None], support[None, :]))
        mean = p @ support
        variance = np.sum(p * np.square(support[None, :] - mean[:, None]), 1)
        name = type(family).__name__
        yield agree(f"{name}: mean by summation and η′", mean, jax.jit(family.mean)(z))
        yield agree(f"{name}: variance by summation and φη″", variance, jax.jit(family.variance)(z))
    for at in compared():
        variance = np.diagonal(at.distribution.covariance(at.z), axis1=1, axis2=2)
        yield agree(f"{at.name}: mean by its density and η′", at.library["mean"], at.distribution.mean(at.z))
        yield agree(f"{at.name}: variance by its density and φη″", at.library["variance"], variance)
        if at.name in {"Binomial", "Poisson"}:  # JAX draws them, in programs that take long to compile
            continue
        y, mean = at.drawn(), at.distribution.mean(at.z)
        for what, values, expected in (("mean", y, mean), ("variance", (y - mean) ** 2, variance)):
            gap = (values.mean(0) - expected) / (values.std(0, ddof=1) / len(y) ** 0.5)
            yield vanishes(f"{at.name}: {what} of drawn responses, in standard errors", gap, scale=1.0, tol=5.0)
    wide = problem.small("ln", families.Gamma(), shape=(10, 3, 100))
    outside = int(jnp.sum(wide.model.natural_parameters(wide.params, wide.inputs) >= 0))
    yield same_integer("a gamma model of 100 units as it starts: natural parameters outside z < 0", outside, 0)
    gaussian = families.Gaussian()
    yield differ(
        "ReLU transfer: f(z) and the mean", jax.nn.relu(z), gaussian.mean(z), role=Role.FAILS_WITHOUT_CONDITION
    )


@equation_11.proof("conditional")
def equation_11_proof() -> Proof:
    """Mean and variance follow from η; they are the printed ones exactly when f = η'."""
    z, y = sp.symbols("z y", real=True)
    p = sp.exp((z * y - eta(z, 0)) / PHI + Function("c")(y))
    score, second = sp.diff(p, z) / p, sp.diff(p, z, 2) / p
    residual = (y - eta(z, 1)) / PHI
    relu = Counterexample(
        "equation.11 with f = ReLU",
        r"E[y\mid x] = f(z)",
        {"z": -1},
        lambda v: (
            sum(y * sp.exp(v["z"] * y) for y in (0, 1)) / sum(sp.exp(v["z"] * y) for y in (0, 1)),
            sp.Max(v["z"], 0),
        ),
        "Bernoulli outputs: their mean (left) and ReLU (right), whose slope would make the variance zero.",
    )
    return Proof(
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


@claim(
    "equation.12",
    topic=TOPIC,
    source="Eq. 12",
    statement="Without normalization F = E[Cov[y|x]/φ² ⊗ [x; 1][x; 1]ᵀ].",
    formula=(
        r"F(\theta) = E\left[\frac{\mathrm{Cov}[\mathbf y|\mathbf x]}{\phi^2}\otimes\begin{bmatrix}\mathbf "
        r"x\mathbf x^\top&\mathbf x\\\mathbf x^\top&1\end{bmatrix}\right]"
    ),
    expected=Verdict.HOLDS,
)
def equation_12(problem: Problem):
    """The Kronecker formula against the definition, for independent and for softmax outputs."""
    for family in (families.Bernoulli(), families.Gaussian(2.0), families.Categorical()):
        model, params, inputs = problem.small("identity", family)
        params = GLMParameters(params.weights, params.bias, jnp.ones_like(params.gain))
        exact = operator(Case(model, params, inputs)).as_matrix("paper")
        shape = (params.units, params.inputs + 2)
        exact = exact.reshape(*shape, *shape)[:, :-1, :, :-1]
        size = params.units * (params.inputs + 1)
        name = type(family).__name__
        kronecker = reference.standard_glm(model, params, inputs)
        yield agree(f"{name}: Eq. 12 and lg.fisher", kronecker, exact.reshape(size, size))
        full = to_paper_order(
            numpy_reference.fisher("identity", family, params, inputs).astype(float), params.units, params.inputs
        )
        defined = np.asarray(full).reshape(*shape, *shape)[:, :-1, :, :-1].reshape(size, size)
        yield agree(f"{name}: Eq. 12 and NumPy reference", kronecker, defined)
    rest = np.exp(-60.0)  # of each class but the first: to first order, q₁(1 − q₁) = 2 rest and q₁q₂ = rest
    covariance = rest * np.array([[2.0, -1, -1], [-1, 1, 0], [-1, 0, 1]])
    found = jax.jit(families.Categorical().metric)(jnp.array([[60.0, 0.0, 0.0]]))[0]
    yield agree("Cov[y|x] of a class that is almost sure keeps its digits", found, covariance)


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


@equation_12.proof()
def equation_12_proof() -> Proof:
    """The Fisher matrix of H generalized linear models is an expected Kronecker product."""
    W, x, b, y, V, beta, C = map(field, ("W", "x", "b", "y", "V", "beta", "C"))
    z = lambda l: total(lambda d: W(l, d) * x(d), D) + b(l)
    product = lambda l: total(lambda d: V(l, d) * x(d), D)
    velocity = lambda l: product(l) + beta(l)
    moved = lambda l, t: z(l) + t * velocity(l)
    log_p = lambda t: (moved(i, t) * y(i) - eta(moved(i, t), 0)) / PHI
    w = field("v")
    form = total(lambda k: total(lambda l: C(k, l) * w(k) * w(l), H), H) / PHI**2
    second = lambda k, l: total(lambda d: total(lambda e: V(k, d) * x(d) * x(e) * V(l, e), D), D)
    blocks = (
        total(
            lambda k: total(
                lambda l: (
                    C(k, l) * (field("B")(k, l) + product(k) * beta(l) + beta(k) * product(l) + beta(k) * beta(l))
                ),
                H,
            ),
            H,
        )
        / PHI**2
    )
    independent = total(lambda k: total(lambda l: KroneckerDelta(k, l) * LAMBDA(k) * w(k) * w(l), H), H)
    return Proof(
        r"F = E_x\left[\frac{\mathrm{Cov}[y\mid x]}{\phi^2} \otimes \begin{bmatrix} xx^\top & x\\ "
        r"x^\top & 1\end{bmatrix}\right]",
        (
            equality(
                "The score of unit i along a direction (V, β) is its residual times v = Vx + β over φ",
                derivative(log_p),
                (y(i) - eta(z(i), 1)) * w(i) / PHI,
                r"s_i[V, \beta]",
                {"v": velocity},
            ),
            equality(
                "The expected square, with C = Cov(y) and B = V xxᵀ Vᵀ, is the form of the Kronecker product",
                form,
                blocks,
                short={"v": velocity, "B": second},
            ),
            equality(
                "Independent outputs have a diagonal covariance: no blocks off the diagonal",
                independent,
                total(lambda k: LAMBDA(k) * w(k) ** 2, H),
                short={"v": velocity},
            ),
            fact(
                "Two Bernoulli units and two inputs, all four outcomes summed",
                r"E[ss^\top] = F",
                _bernoulli_by_outcomes,
            ),
        ),
    )

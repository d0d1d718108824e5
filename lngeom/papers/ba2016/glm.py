"""Eqs. 8–12: the metric of generalized linear models, their moments and their Fisher matrix."""

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import scipy.special
import sympy as sp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array
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
from lngeom.claims.evidence import Evidence
from lngeom.claims.problem import TITLES, Case
from lngeom.information import FisherOperator, fisher, reference
from lngeom.information.metric import ds2
from lngeom.information.orders import to_paper_order
from lngeom.methods import LayerNorm, RMSNorm
from lngeom.symbolic.jacobian import RADIAL, null_step
from lngeom.symbolic.layers import BATCH_NORM, LAYER_NORM, RMS_NORM, WEIGHT_NORM, Method
from lngeom.symbolic.modular import PRIME, jacobian_rows, random_layer, rank
from lngeom.symbolic.proof import (
    Assumption,
    Counterexample,
    Proof,
    Step,
    equality,
    expanded,
    fact,
    matrix,
    refutation,
)
from lngeom.symbolic.sums import D, Field, H, N, d, derivative, e, field, i, n, total

TOPIC = "fisher"
KL_TOLERANCE = 1e-6
"""Finite divergences in float64 give the quadratic form to about 1e-8; see `reference.form_from_divergences`."""
PHI = sp.Symbol("phi", positive=True)
LAMBDA = field("lambda", positive=True)
SMALL = {"W": matrix([[1], [1], [-2]]), "x": matrix([[1]])}
"""One input: u = (1, 1, −2), σ² = 2, n = u/√2, Gaussian outputs of variance 1 (Λ = I)."""
divergences: Callable[..., Array] = eqx.filter_jit(jax.vmap(reference.form_from_divergences, (None, None, None, 0)))


def directions(problem: Problem, case: Case, count: int = 6):
    """Random tangents [K P], each about as long as the parameters."""
    theta, _ = ravel_pytree(case.params)
    scale = jnp.linalg.norm(theta) / theta.size**0.5
    return scale * problem.normal("directions", count, theta.size)


def corner(matrix, case: Case, units: int = 2) -> np.ndarray:
    """The first units' blocks in the paper's order: small enough to show."""
    width = units * (case.params.inputs + 2)
    return np.asarray(to_paper_order(matrix, case.params.units, case.params.inputs)[:width, :width])


def operator(case: Case) -> FisherOperator:
    """`lg.fisher` without its checks, which refuse data on which the evidence is to say that it is none."""
    return fisher(*case, check=False)


def certified(
    what: str, case: Case, exact: Array, deltas: Array, kl: Array, role: Role = Role.SUPPORTS
) -> Iterator[Evidence]:
    """What users call, `lg.fisher`, against the definition and divergences along the rows of deltas.

    Args:
        what: the case in words.
        case: the model and its data.
        exact: the matrix by its definition.
        deltas: tangents [K P].
        kl: their quadratic forms by finite divergences.
        role: what agreement says of the claim.

    Yields:
        Its matrix, products, diagonal, blocks of units and quadratic forms.
    """
    F, width = operator(case), case.params.inputs + 2
    rows = to_paper_order(exact, case.params.units, case.params.inputs)[:width]
    blocks = np.concatenate([F.block(0, 0), F.block(0, 1)], 1)
    yield agree(f"{what}: lg.fisher's matrix and JᵀΛJ", F.as_matrix(), exact, role=role)
    yield agree(f"{what}: its products and JᵀΛJ v", F.mm(deltas.T), exact @ deltas.T, role=role)
    yield agree(f"{what}: its diagonal and JᵀΛJ's", F.diagonal(), np.diag(exact), role=role)
    yield agree(f"{what}: its blocks of units 1 and 2 and JᵀΛJ's", blocks, rows[:, : 2 * width], role=role)
    forms = F.quadratic_form(deltas.T)
    yield agree(f"{what}: its quadratic forms and finite divergences", forms, kl, tol=KL_TOLERANCE, role=role)


def certified_function(problem: Problem, case: Case, exact: Array) -> Iterator[Evidence]:
    """What users call on a function of their own: `lg.fisher` of the model's outputs, against the matrix.

    Args:
        problem: gives the key of the draws.
        case: the model and its data.
        exact: the matrix by its definition.

    Yields:
        Its matrix, products, factor, diagonal, spectrum, null space, natural gradient, draws of steps and a Monte Carlo
        estimate. What is divided by small eigenvalues loses digits to the condition of the matrix, hence the tolerance.
    """
    model, *point = case
    apply, size = model.natural_parameters, len(exact)
    F = fisher(apply, *point, family=model.family, chunk=4, check=False)  # 10 cases: two chunks and a rest
    root = np.asarray(F.factor())
    forms = {"matrix": F.as_matrix(), "products": F.mm(jnp.eye(size)), "factor": root.T @ root}
    for form, found in forms.items():
        yield agree(f"the {form} of lg.fisher, of the same model as a function", found, exact)
    yield agree("the diagonal of lg.fisher, of the same model as a function", F.diagonal(), np.diag(exact))
    exact = np.asarray(exact)
    rank = int(np.linalg.matrix_rank(exact, hermitian=True))
    yield same_integer("rank of lg.fisher, and of the sum over all outcomes", int(F.rank()), rank)
    values = np.linalg.eigvalsh(exact)[: -rank - 1 : -1]
    yield agree("eigenvalues of lg.fisher, and of the sum", F.eigenvalues(rank), values)
    yield agree("logarithm of their product", F.pseudo_logdet(), np.sum(np.log(values)), tol=1e-9)
    share = values / np.sum(values)
    yield agree("exponential of their entropy", F.effective_rank(), np.exp(-np.sum(share * np.log(share))))
    pseudoinverse, basis = np.linalg.pinv(exact, hermitian=True), F.nullspace().basis
    yield agree("projector on its null space", basis @ basis.T, np.eye(size) - pseudoinverse @ exact, tol=1e-9)
    gradient = np.cos(np.arange(size))
    step, lost = F.solve(jnp.asarray(gradient)), gradient - exact @ (pseudoinverse @ gradient)
    yield agree("natural gradient F⁺g", step.value, pseudoinverse @ gradient, tol=1e-9)
    share = np.linalg.norm(lost) / np.linalg.norm(gradient)
    yield agree("share of g along null directions, which F⁺ sets to zero", step.unidentifiable, share, tol=1e-9)
    steps = np.asarray(F.sample(problem.key("steps"), 400))
    excess = np.mean(np.sum(steps @ exact * steps, 1)) - rank  # dᵀFd of d ~ N(0, F⁺) is χ² of so many degrees
    gap = excess / (rank / 200) ** 0.5
    yield vanishes("mean of dᵀFd less the rank, d drawn from N(0, F⁺), in standard errors", gap, scale=1.0, tol=5.0)
    draws = 400
    drawing = {"method": "monte_carlo", "key": problem.key("draws"), "samples": draws, "check": False}
    drawn = fisher(apply, *point, family=model.family, **drawing)
    error = drawn.standard_error(lambda F: F.trace())
    gap = (drawn.trace() - np.trace(exact)) / error
    yield vanishes("trace by sampled responses, less the sum's, in standard errors", gap, scale=1.0, tol=5.0)
    traces = draws * np.sum(np.square(drawn.factor()).reshape(-1, draws, size), (0, 2))
    yield agree("its standard error, and that of the traces by draw", error, np.std(traces, ddof=1) / draws**0.5)


class ThreeCoupled(families.AbstractFamily):
    r"""A joint response of three coupled binary units, $\log p = z^\top y + y_1y_2 - 2y_2y_3 - \eta(z)$.

    Its Λ is a full matrix and has no root in closed form, as that of a user's own family.
    """

    dispersion: ClassVar[float] = 1.0
    joint: ClassVar[bool] = True
    outcomes: ClassVar[np.ndarray] = np.array(list(itertools.product((0.0, 1.0), repeat=3)))

    def log_base_measure(self, y):  # noqa: D102
        return y[..., 0] * y[..., 1] - 2 * y[..., 1] * y[..., 2]

    def log_partition(self, z):  # noqa: D102
        return jax.nn.logsumexp(self._exponents(z), -1)

    def sample(self, key, z):  # noqa: D102
        return jnp.asarray(self.outcomes, z.dtype)[jax.random.categorical(key, self._exponents(z))]

    def _exponents(self, z):
        outcomes = jnp.asarray(self.outcomes, z.dtype)
        base = self.log_base_measure(outcomes)
        return z @ outcomes.T + base.reshape(*(1,) * (z.ndim - 1), -1)

    def covariance(self, z: np.ndarray) -> np.ndarray:
        """Σ p (y − E y)(y − E y)ᵀ over all outcomes, in NumPy."""
        weight = np.exp(z @ self.outcomes.T + self.log_base_measure(self.outcomes))
        p = weight / weight.sum(-1, keepdims=True)
        residual = self.outcomes - (p @ self.outcomes)[:, None, :]
        return np.einsum("no,noi,noj->nij", p, residual, residual)


def network(params, inputs, xp=jnp):
    """A function of the user's own: two kernels, one of them transposed, and a vector that is used twice."""
    hidden = xp.tanh(inputs @ params["first"] * params["both"][None] + params["both"][None])
    return hidden @ params["second"].T + params["bias"][None]


def of_any_function(problem: Problem) -> Iterator[Evidence]:
    """F = E[JᵀΛJ] of a network and a family that lngeom does not know, cases having weights; J by complex steps."""
    keys, (cases, features, width) = jax.random.split(problem.key("network"), 5), (7, 12, 10)
    shapes = {"both": (width,), "bias": (3,), "first": (features, width), "second": (3, width)}
    params = {
        name: jax.random.normal(key, shape, problem.dtype) / 3
        for key, (name, shape) in zip(keys[:4], shapes.items(), strict=True)
    }
    inputs, weights = jax.random.normal(keys[4], (cases, features), problem.dtype), jnp.arange(1.0, 1.0 + cases)
    F = fisher(network, params, inputs, family=ThreeCoupled(), mask=weights, chunk=3, check=False)
    theta, unravel = ravel_pytree(params)
    stepped = jax.vmap(unravel)(np.asarray(theta) + 1e-30j * np.eye(len(theta)))
    J = np.stack(
        [
            network({k: np.asarray(v[i]) for k, v in stepped.items()}, np.asarray(inputs), np).imag / 1e-30
            for i in range(len(theta))
        ],
        -1,
    )
    covariance = ThreeCoupled().covariance(np.asarray(network(params, inputs)))
    exact = np.einsum("n,nip,nij,njq->pq", np.asarray(weights) / cases, J, covariance, J, optimize=True)
    v = np.cos(np.arange(len(theta)))[:, None]
    yield agree("coupled responses: the matrix of lg.fisher, and sums over outcomes", F.as_matrix(), exact)
    yield agree("coupled responses: its products", F.mm(jnp.asarray(v)), exact @ v)
    yield agree("coupled responses: the Gram matrix of its factor", F.factor().T @ F.factor(), exact)


@claim(
    "equation.8",
    topic=TOPIC,
    source="Eq. 8",
    statement="ds² = D_KL[P(y|x; θ) ‖ P(y|x; θ + δ)] ≈ ½ δᵀFδ to second order, with a remainder of O(‖δ‖³).",
    formula=(
        r"ds^2 = D_{\mathrm{KL}}[P(y|\mathbf x;\theta)\,\|\,P(y|\mathbf x;\theta+\delta)] \approx "
        r"\tfrac12\delta^\top F\delta"
    ),
    assumptions=(
        "the divergence of conditional distributions is a mean over x, as F is in Eq. 9",
        "δ → 0, as the text says",
    ),
    context=Context(
        sentence=(
            "The Riemannian metric under KL was previously studied [Amari, 1998] and was shown to be well approximated "
            "under second order Taylor expansion using the Fisher information matrix:"
        ),
        before=(
            "Intuitively, it measures the changes in the model output from the parameter space along a tangent "
            "direction."
        ),
        after="[Eqs. 8, 9] where, δ is a small change to the parameters.",
        readings=(
            Reading("The divergence of conditional distributions is a mean over x, as F is in Eq. 9.", Verdict.HOLDS),
            Reading("It is meant for one x: F is a mean over x, and the left side is not.", Verdict.REFUTED),
        ),
        verdict=(
            "The approximation holds to second order. For one x it does not, and no mean over x is printed on the left."
        ),
    ),
    expected=Verdict.HOLDS,
)
def equation_8(problem: Problem):
    """Finite divergences against ½ δᵀFδ, the order of the remainder, and a single x."""
    case = problem.case("ln")
    deltas = directions(problem, case)
    F = operator(case)
    forms = F.quadratic_form(deltas.T)
    found = divergences(*case, deltas)
    yield agree("finite divergences and δᵀFδ, mean over x", found, forms, tol=KL_TOLERANCE)
    _, unravel = ravel_pytree(case.params)
    theta = ravel_pytree(case.params)[0]
    steps = np.array([0.02, 0.01, 0.005])
    kl = eqx.filter_jit(lambda h: case.model.kl(case.params, unravel(theta + h * deltas[0]), case.inputs))
    remainder = np.array([abs(float(kl(h)) - 0.5 * h**2 * float(forms[0])) for h in steps])
    slope = np.polyfit(np.log(steps), np.log(remainder), 1)[0]
    yield agree(
        "remainder falls as ‖δ‖³",
        np.array([slope]),
        np.array([3.0]),
        tol=0.1,
        curves={"remainder": (steps, remainder)},
    )
    single = divergences(case.model, case.params, case.inputs[:1], deltas)
    yield differ("for a single x instead of the mean they differ", single, forms)
    for what, metric in (("operator", F), ("matrix", F.as_matrix())):
        yield agree(
            f"lg.metric.ds2 of the {what}, and half the finite divergences",
            ds2(metric, deltas[0]),
            found[0] / 2,
            tol=KL_TOLERANCE,
        )
    other = unravel(theta + 0.3 * deltas[0])
    p, q = (np.asarray(jax.nn.sigmoid(case.model.natural_parameters(at, case.inputs))) for at in (case.params, other))
    summed = np.mean(np.sum(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)), 1))
    yield agree(
        "a finite change: D_KL of the model, and Σ p log(p/p′)",
        case.model.kl(case.params, other, case.inputs),
        summed,
    )
    for at in compared():
        yield agree(
            f"{at.name}: D_KL and Σ p log(p/p′)",
            at.library["kl"],
            at.distribution.kl(at.z, at.other),
        )


class eta(Function):
    r"""The k-th derivative $\eta^{(k)}(z)$ of an arbitrary log-partition function."""

    nargs = 2

    def fdiff(self, argindex: int = 1) -> Expr:
        """The next derivative."""
        return eta(self.args[0], self.args[1] + 1)

    def _plain(self, printer) -> str:
        return f"η{'′' * int(self.args[1])}({printer.doprint(self.args[0])})"

    def _latex(self, printer) -> str:
        return rf"\eta{chr(39) * int(self.args[1])}\left({printer.doprint(self.args[0])}\right)"

    @staticmethod
    def numerically(z, order):
        """Spot checks take the Poisson family, η = exp."""
        return mpmath.exp(z)


RATE = sp.Symbol("r", positive=True)


@functools.cache
def poisson_moment(power: int) -> Expr:
    """E[y^k] of a Poisson response of rate r, summed over all y."""
    y = sp.Symbol("y", integer=True, nonnegative=True)
    found = sp.summation(y**power * RATE**y / sp.factorial(y), (y, 0, sp.oo)) * sp.exp(-RATE)
    return sp.expand(sp.simplify(found))


def poisson_expectation(value: Callable[[Expr], Expr], rate: Expr) -> Expr:
    """E[f(y)] of a Poisson response, for a polynomial f."""
    y = sp.Symbol("y", integer=True, nonnegative=True)
    terms = sp.Poly(sp.expand(value(y)), y).terms()
    return sp.expand(sum(coefficient * poisson_moment(power).subs(RATE, rate) for (power,), coefficient in terms))


def poisson_metric(z: Callable[[Expr], Expr]) -> Expr:
    """E[(∂ log p/∂t)²] at t = 0 of a Poisson response whose natural parameter is z(t): the metric along t."""
    t = sp.Symbol("t", real=True)
    slope = lambda y: sp.diff(y * z(t) - sp.exp(z(t)), t).subs(t, 0)
    return poisson_expectation(lambda y: slope(y) ** 2, sp.exp(z(sp.S.Zero)))


def poisson_divergence(z: Expr, other: Expr) -> Expr:
    """E[log p(y | z) − log p(y | z′)] of a Poisson response."""
    log_p = lambda y, z: y * z - sp.exp(z)
    return poisson_expectation(lambda y: log_p(y, z) - log_p(y, other), sp.exp(z))


def gaussian_divergence(z: Expr, other: Expr) -> Expr:
    """∫ p (log p − log p′) dy of a Gaussian response of variance 1 and mean z."""
    u = sp.Symbol("u", real=True)
    log_ratio = sp.Poly(sp.expand(((u + z - other) ** 2 - u**2) / 2), u)  # u = y − z is normal
    return sp.simplify(sum(coefficient * normal_moment(power) for (power,), coefficient in log_ratio.terms()))


@functools.cache
def normal_moment(power: int) -> Expr:
    """E[u^k] of a normal u."""
    u = sp.Symbol("u", real=True)
    return sp.integrate(u**power * sp.exp(-(u**2) / 2) / sqrt(2 * sp.pi), (u, -sp.oo, sp.oo))


@equation_8.proof()
def equation_8_proof() -> Proof:
    """The divergence is half the quadratic form of the metric, to second order, on average over x."""
    t = sp.Symbol("t", real=True)
    z = Function("z")(t)
    start, velocity = z.subs(t, 0), z.diff(t).subs(t, 0)
    divergence = (eta(z, 0) - eta(start, 0) - (z - start) * eta(start, 1)) / PHI
    slopes = [divergence.diff(t, order).subs(t, 0) for order in (0, 1, 2)]

    cubic = Counterexample(
        "equation.8 as an equality",
        r"D_{KL} = \tfrac12 \delta^\top F \delta",
        {"z": 0, r"\delta": 1},
        lambda v: (
            poisson_divergence(sp.sympify(v["z"]), sp.sympify(v["z"] + v[r"\delta"])),
            poisson_metric(lambda t: v["z"] + t * v[r"\delta"]) / 2,
        ),
        "Poisson outputs at z = 0, one unit away: the divergence (left) and half the quadratic form (right).",
    )
    moved_by = lambda x, change: gaussian_divergence(sp.S.Zero, sp.sympify(change * x))
    one_case = Counterexample(
        "equation.8 at one case",
        r"D_{KL}[P(y\mid x;\theta)\,\|\,P(y\mid x;\theta+\delta)] = "
        r"\tfrac12\delta^\top F\delta \text{ with F a mean over x}",
        {"X": matrix([[1], [2]]), r"\delta": 1},
        lambda v: (moved_by(v["X"][0], v[r"\delta"]), sum(moved_by(x, v[r"\delta"]) for x in v["X"]) / 2),
        "Gaussian outputs, z = wx, where Eq. 8 has no remainder: the case x = 1 (left), the mean over cases (right).",
    )
    return Proof(
        r"E_x D_{KL}[P_\theta \| P_{\theta+\delta}] = \tfrac12\delta^\top F\delta + O(|\delta|^3)",
        (
            expanded(
                "Along a curve z(t) the divergence and its slope vanish at t = 0", r"D(0) = D'(0) = 0", *slopes[:2]
            ),
            expanded(
                "its second derivative is the metric of the velocity, whatever the curve's acceleration",
                r"D''(0) = \eta''(z)\,\dot z^2/\phi",
                slopes[2] - eta(start, 2) * velocity**2 / PHI,
            ),
            refutation("To second order only", cubic),
            refutation("and on average over x only", one_case),
        ),
        (Assumption("both sides averaged over x", r"E_{x\sim P(x)}"),),
    )


@claim(
    "equation.9",
    topic=TOPIC,
    source="Eq. 9",
    statement="F is the expected outer product of the score, E[∂log P/∂θ (∂log P/∂θ)ᵀ], over x and y ~ P(y|x).",
    formula=(
        r"F(\theta) = E_{\mathbf x, y}\left[\frac{\partial \log P}{\partial\theta}\frac{\partial \log "
        r"P}{\partial\theta}^{\top}\right]"
    ),
    expected=Verdict.HOLDS,
)
def equation_9(problem: Problem):
    """All 2³ outcomes of three Bernoulli units, weighted by their probability, against `lg.fisher` by every route."""
    case = problem.small("ln", shape=(10, 3, 3))
    outcomes = jnp.array(list(itertools.product((0.0, 1.0), repeat=3)), case.inputs.dtype)
    theta, unravel = ravel_pytree(case.params)

    def log_prob(theta, y):
        return case.model.log_prob(unravel(theta), case.inputs, jnp.broadcast_to(y, (len(case.inputs), 3)))

    log_p = jax.jit(jax.vmap(log_prob, (None, 0)))(theta, outcomes)
    scores = jax.jit(jax.vmap(jax.jacrev(log_prob), (None, 0)))(theta, outcomes)
    total = jnp.einsum("on,onp,onq->pq", jnp.exp(log_p), scores, scores) / len(case.inputs)
    found = operator(case).as_matrix()
    yield agree("sum over all outcomes and lg.fisher", total, found)
    mean_score = jnp.einsum("on,onp->np", jnp.exp(log_p), scores)
    yield vanishes("the mean score is zero", mean_score, scale=float(jnp.max(jnp.abs(scores))))
    defined = numpy_reference.fisher("ln", families.Bernoulli(), case.params, case.inputs)
    yield agree("NumPy reference and lg.fisher", defined, found)
    yield from certified_function(problem, case, total)
    few = fisher(case.model, case.params, case.inputs[:2], mask=jnp.array([1.0, 1e-18]), check=False)
    yield same_integer(
        "two cases of three units, one of weight 1e-18: rank of lg.fisher, and 2 · 3", int(few.rank()), 6
    )
    for at in compared():
        slopes, p = at.distribution.score(at.z), at.distribution.probabilities(at.z)
        yield agree(f"{at.name}: score and ∂ log p/∂z by a complex step", at.library["score"], at.at_responses(slopes))
        outer = np.einsum("nk,nki,nkj->nij", p, slopes, slopes) if at.distribution.joint else second_moments(p, slopes)
        for metric in ("metric", "metric by its root"):
            yield agree(f"{at.name}: Λ, the {metric}, and Σ p s sᵀ", at.library[metric], outer)
        rank = int(np.linalg.matrix_rank(outer[0].astype(float), hermitian=True))
        yield same_integer(f"{at.name}: rank of Λ of three outputs", at.family.metric_rank(3), rank)


def second_moments(p: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Σ p s² of independent responses, as diagonal matrices."""
    return np.sum(p * scores**2, -1)[..., None] * np.eye(p.shape[-2])


CARRIER, OUTCOME, PARAMETER, JACOBIAN = field("c"), field("y"), field("z"), field("J")


def expectation(value: Callable[[Expr], Expr]) -> Expr:
    """Mean over the N outcomes under the model's own probabilities."""
    weight = lambda o: sp.exp(total(lambda l: PARAMETER(l) * OUTCOME(o, l), H) / PHI + CARRIER(o))
    return total(lambda o: weight(o) * value(o), N) / total(weight, N)


def residual(outcome: Expr, unit: Expr) -> Expr:
    """An output less its mean under the model."""
    return OUTCOME(outcome, unit) - expectation(lambda o: OUTCOME(o, unit))


def log_likelihood(z: Field, outcome: Expr) -> Expr:
    r"""$\log p = (z^\top y - \eta)/\phi + c$ of one of N outcomes; $\eta = \phi\log\sum_y e^{z^\top y/\phi + c}$."""
    exponent = lambda o: total(lambda l: z(l) * OUTCOME(o, l), H) / PHI + CARRIER(o)
    return exponent(outcome) - sp.log(total(lambda o: sp.exp(exponent(o)), N))


def score(outcome: Expr, parameter: Expr) -> Expr:
    """Derivative of log p by one of D parameters, of which z has an arbitrary Jacobian J."""
    moved = lambda t: lambda l: PARAMETER(l) + t * JACOBIAN(l, parameter)
    return derivative(lambda t: log_likelihood(moved(t), outcome))


def score_steps() -> tuple[Step, ...]:
    """The score, its mean and its second moment, for all numbers of units H, parameters D and outcomes N."""
    of = lambda o, parameter, r: total(lambda l: r(o, l) * JACOBIAN(l, parameter), H) / PHI
    covariance = lambda k, l: expectation(lambda o: residual(o, k) * residual(o, l))
    r, C = field("r"), field("C")
    stated = total(lambda k: total(lambda l: JACOBIAN(k, d) * C(k, l) * JACOBIAN(l, e), H), H) / PHI**2
    return (
        equality(
            "The score is Jᵀ times the residual r = y − E[y] over φ",
            score(n, d),
            of(n, d, r),
            r"s_{nd}",
            {"r": residual},
        ),
        equality("its mean over outcomes is zero", expectation(lambda o: of(o, d, residual)), 0, r"E[s_d]"),
        equality(
            "and its second moment is JᵀΛJ with Λ = C/φ², C = Cov[y]",
            expectation(lambda o: of(o, d, residual) * of(o, e, residual)),
            stated,
            r"E[s_ds_e]",
            {"C": covariance},
        ),
    )


@equation_9.proof()
def equation_9_proof() -> Proof:
    """The expected outer product of the score is JᵀΛJ, whatever the layer and the exponential family."""
    z, u = sp.symbols("z u", real=True)
    count = lambda power: poisson_expectation(lambda y: (y - RATE) ** power, RATE)
    density = sp.exp(-((u - z) ** 2) / (2 * PHI)) / sqrt(2 * sp.pi * PHI)
    normal = lambda power: sp.integrate(((u - z) / PHI) ** power * density, (u, -sp.oo, sp.oo))
    return Proof(
        r"F = E_{x,y}[s s^\top] = E_x[J^\top\Lambda J],\quad s = \partial_\theta\log P,\ "
        r"J = \partial z/\partial\theta,\ \Lambda = \mathrm{Cov}[y\mid x]/\phi^2",
        (
            *score_steps(),
            expanded(
                "Counts without bound, Poisson of rate r = e^z: mean zero, second moment η'' = r",
                r"E[y - r] = 0,\ E[(y-r)^2] = r",
                count(1),
                count(2) - RATE,
            ),
            expanded(
                "A density, Gaussian of variance φ: mean zero, second moment η''/φ = 1/φ",
                r"E[s] = 0,\ E[s^2] = 1/\phi",
                normal(1),
                normal(2) - 1 / PHI,
            ),
        ),
        (Assumption("z(θ) is differentiable; sums over y may be differentiated term by term", r"\theta \mapsto z"),),
    )


@claim(
    "text.riemannian",
    topic=TOPIC,
    source="Section 5.2.1",
    statement="Under the KL divergence metric, the parameter space (of a normalized model) is a Riemannian manifold.",
    assumptions=(
        "its points are input–output relations, as the paper says: parameters with equal outputs are one point",
        "near regular points, where the rank of F does not change: almost all, but not where several gains are zero, "
        "(centred) weights have rank one, or two units have the same weights",
    ),
    context=Context(
        sentence="Under the KL divergence metric, the parameter space is a Riemannian manifold.",
        before=(
            "The learnable parameters in a statistical model form a smooth manifold that consists of all possible "
            "input-output relations of the model. …"
        ),
        after=(
            "The curvature of a Riemannian manifold is entirely captured by its Riemannian metric, whose quadratic "
            "form is denoted as ds²."
        ),
        readings=(
            Reading(
                "The points of the manifold are input–output relations, as the paragraph says: parameters with equal "
                "outputs are one point.",
                Verdict.HOLDS,
            ),
            Reading(
                "The points of the manifold are the parameters. F is singular there, along vec(W) under layer norm.",
                Verdict.REFUTED,
            ),
        ),
        verdict=(
            "Near a regular point the relations form a manifold, on which F is positive definite, and the statement "
            "holds. The conditions are needed because the sentence says “parameter space”, and because at singular "
            "points the relations need not form a manifold. No conclusion of the paper depends on it."
        ),
    ),
    erratum=Erratum(
        Consequence.SENTENCE, "The metric is degenerate on the parameters: along some directions no output moves."
    ),
    expected=Verdict.CONDITIONAL,
)
def riemannian(problem: Problem):
    """The rank of F, at regular points and near them, and at singular points; the length of vec(W)."""
    units, inputs = 4, 3
    for method in ("ln", "rms", "bn", "wn"):
        case, title = problem.small(method, shape=(100, inputs, units), name="regular"), TITLES[method]
        near = [_rank(_nearby(problem, case, name)) for name in ("first", "second", "third")]
        for other in near:
            yield same_integer(
                f"{title}, a regular point: rank there, and at a random point near it", _rank(case), other
            )
        for what, point in _singular_points(case):
            yield differ(
                f"{title}, {what}: rank there, and near it",
                np.array([float(_rank(point))]),
                np.array([float(near[0])]),
                role=Role.FAILS_WITHOUT_CONDITION,
            )
    case = problem.small("ln")
    params = case.params
    W, _ = ravel_pytree(GLMParameters(params.weights, jnp.zeros_like(params.bias), jnp.zeros_like(params.gain)))
    F = np.asarray(operator(case).as_matrix())
    yield vanishes(
        "Layer norm, parameters themselves: ds² along vec(W), which is not zero",
        W @ F @ W,
        scale=float(np.trace(F) * W @ W / len(W)),
        role=Role.FAILS_WITHOUT_CONDITION,
    )


_triangle = eqx.filter_jit(lambda case: jnp.linalg.qr(reference.factor(*case), mode="r"))


def _rank(case: Case) -> int:
    """Rank of the factor of F, by automatic differentiation; √eps decides, as no singular value is near it."""
    values = np.linalg.svd(np.asarray(_triangle(case)), compute_uv=False)
    return int(np.sum(values > 1e-8 * values[0]))


def _nearby(problem: Problem, case: Case, name: str) -> Case:
    """The same model at parameters of which each is moved by about a tenth."""
    moved = lambda value: value + 0.1 * problem.normal(f"near {name} {value.shape}", *value.shape)
    return case._replace(params=jax.tree.map(moved, case.params))


def _singular_points(case: Case) -> Iterator[tuple[str, Case]]:
    """Points at which the rank of F is lower than near them."""
    gain, weights = case.params.gain, case.params.weights
    at = lambda where, value: case._replace(params=eqx.tree_at(where, case.params, value))
    grouped = isinstance(case.model.normalizer, LayerNorm | RMSNorm)
    yield "three zero gains", at(lambda p: p.gain, gain.at[:3].set(0.0))
    if grouped:
        yield "weights of rank one", at(lambda p: p.weights, weights[:, :1] * weights[:1])
    if isinstance(case.model.normalizer, LayerNorm):
        yield "two units with the same weights", at(lambda p: p.weights, weights.at[0].set(weights[1]))


MOVED = field("dz")
"""The change of the natural parameters of a case along a direction of all parameters."""


NORMS = (LAYER_NORM, RMS_NORM, BATCH_NORM, WEIGHT_NORM)


def exact_rank(method: Method, *, zero_gains: int = 0, alike: bool = False) -> int:
    """Rank of the Jacobian at H = 4, D = 3 over a prime field, at a random point; with zero gains or two equal rows."""
    draw = random.Random(f"{method.name} {zero_gains} {alike}")
    layer = random_layer(method, 4, 3, cases=40, draw=draw)
    layer.gain[:zero_gains] = 0
    if alike:
        layer.weights[0] = layer.weights[1]
    return rank(jacobian_rows(layer))


@riemannian.proof("conditional")
def riemannian_proof() -> Proof:
    """The form is zero only along directions that leave the output; on parameters themselves it is a semi-metric."""

    def length_of_null_vector(values) -> tuple[Expr, Expr]:
        W, x, t = values["W"], values["x"], sp.Symbol("t")
        outputs = LAYER_NORM.exactly(W, x), LAYER_NORM.exactly((1 + t) * W, x)
        change = (outputs[1] - outputs[0]).diff(t).subs(t, 0)
        form = sum(sp.nsimplify(sp.radsimp(entry)) ** 2 for entry in change)
        return (sum(w**2 for w in W) if sp.expand(form) == 0 else sp.S.Zero), sp.S.Zero

    on_parameters = Counterexample(
        "text.riemannian on parameters",
        r"v^\top F v = 0 \Rightarrow |v|^2 = 0",
        SMALL,
        length_of_null_vector,
        "The squared length of vec(W) (left), which has vᵀFv = 0, should be zero (right).",
    )
    return Proof(
        r"v^\top F v = E\sum_k\lambda_k (dz_k[v])^2 \geq 0, \text{ zero exactly where no output moves; } "
        r"\text{near a regular point the relations are a manifold, on which it is positive definite}",
        (
            equality(
                "At each case the form is a sum of squares, zero only where no output moves",
                total(lambda l: LAMBDA(l) * MOVED(l) ** 2, H),
                total(lambda l: (sqrt(LAMBDA(l)) * MOVED(l)) ** 2, H),
                r"v^\top F v",
            ),
            null_step("Under layer norm none moves along W", LAYER_NORM, RADIAL, moving="W", of="LN"),
            fact(
                "Where the rank of the derivative is constant, parameters with equal outputs are submanifolds, and the "
                "outputs near the point a manifold (constant rank theorem). The rank is the largest on an open dense "
                f"set; exactly, at (H, D) = (4, 3) modulo {PRIME}",
                r"\mathrm{rank} = 16\text{ (LN)},\ 19\text{ (RMS)},\ 16\text{ (BN, WN)}",
                lambda: [exact_rank(method) for method in NORMS] == [16, 19, 16, 16],
            ),
            fact(
                "There are points of lower rank: three zero gains,",
                r"\mathrm{rank} = 15,\ 15,\ 10,\ 10",
                lambda: [exact_rank(method, zero_gains=3) for method in NORMS] == [15, 15, 10, 10],
            ),
            fact(
                "and under layer norm two units with the same weights",
                r"\mathrm{rank} = 15",
                lambda: exact_rank(LAYER_NORM, alike=True) == 15,
            ),
        ),
        (
            Assumption("outputs are independent and have positive variance", r"\Lambda = \mathrm{diag}\,\lambda > 0"),
            Assumption("near a regular point", r"\mathrm{rank}\,F(\theta') = \mathrm{rank}\,F(\theta)"),
            Assumption(
                "points are input–output relations",
                r"\theta \sim \theta' \Leftrightarrow z_\theta(x) = z_{\theta'}(x)\ \forall x",
                on_parameters,
            ),
        ),
    )


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
        name="equation.10_wording corrected",
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

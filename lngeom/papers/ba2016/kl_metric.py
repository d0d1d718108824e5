"""Eq. 8: the divergence of near models is half the quadratic form of the Fisher matrix."""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import mpmath
import numpy as np
import sympy as sp
from jax.flatten_util import ravel_pytree
from sympy import Expr, Function, sqrt

from lngeom.claims import (
    Problem,
    Verdict,
    agree,
    claim,
    differ,
)
from lngeom.claims.compared import compared
from lngeom.claims.context import Context, Reading
from lngeom.information.metric import ds2
from lngeom.papers.ba2016.lg_fisher import KL_TOLERANCE, PHI, TOPIC, directions, divergences, operator
from lngeom.papers.lab import exponent_of
from lngeom.symbolic.proof import (
    Assumption,
    Counterexample,
    Proof,
    expanded,
    matrix,
    refutation,
)


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
    slope = exponent_of(steps, remainder)
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

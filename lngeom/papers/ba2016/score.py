"""Eq. 9: the Fisher matrix as the covariance of the score."""

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import sympy as sp
from jax.flatten_util import ravel_pytree
from sympy import Expr, sqrt

from lngeom import families
from lngeom.claims import (
    Problem,
    Verdict,
    agree,
    claim,
    numpy_reference,
    same_integer,
    vanishes,
)
from lngeom.claims.compared import compared
from lngeom.information import fisher
from lngeom.papers.ba2016.kl_metric import RATE, poisson_expectation
from lngeom.papers.ba2016.lg_fisher import PHI, TOPIC, certified_function, operator
from lngeom.symbolic.proof import (
    Assumption,
    Proof,
    Step,
    equality,
    expanded,
)
from lngeom.symbolic.sums import Field, H, N, d, derivative, e, field, n, total


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

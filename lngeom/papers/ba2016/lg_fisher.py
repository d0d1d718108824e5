"""Evidence that equations share: what users call, `lg.fisher`, against the definition of the Fisher matrix."""

import itertools
from collections.abc import Callable, Iterator
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import sympy as sp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from lngeom import families
from lngeom.claims import (
    Problem,
    Role,
    agree,
    same_integer,
    vanishes,
)
from lngeom.claims.evidence import Evidence
from lngeom.claims.problem import Case
from lngeom.information import FisherOperator, fisher, reference
from lngeom.information.orders import to_paper_order
from lngeom.symbolic.proof import (
    matrix,
)
from lngeom.symbolic.sums import field

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

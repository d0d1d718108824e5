"""Eqs. 8–14: the Fisher matrix of normalized GLMs, as printed and as it is."""

import itertools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from lngeom import families
from lngeom._types import GLMParameters
from lngeom.claims._evidence import Role, Verdict, agree, differ, same_integer, vanishes
from lngeom.claims._problem import TITLES, Case, Problem
from lngeom.claims._registry import claim
from lngeom.information import _closed_form, predicted_nullspace, reference, to_paper_order
from lngeom.information._closed_form import GroupedLinearization, linearize

TOPIC = "fisher"
KL_TOLERANCE = 1e-6
"""Finite divergences in float64 give the quadratic form to about 1e-8; see `reference.form_from_divergences`."""

automatic: Callable[..., Array] = eqx.filter_jit(reference.by_definition)
printed: Callable[..., Array] = eqx.filter_jit(reference.as_printed)
structured: Callable[..., Array] = eqx.filter_jit(_closed_form.dense)
divergences: Callable[..., Array] = eqx.filter_jit(jax.vmap(reference.form_from_divergences, (None, None, None, 0)))


def directions(problem: Problem, case: Case, count: int = 6):
    """Random tangents [K P], each about as long as the parameters."""
    theta, _ = ravel_pytree(case.params)
    scale = jnp.linalg.norm(theta) / theta.size**0.5
    return scale * jax.random.normal(problem.key("directions"), (count, theta.size), theta.dtype)


def corner(matrix, case: Case, units: int = 2) -> np.ndarray:
    """The first units' blocks in the paper's order: small enough to show."""
    width = units * (case.params.inputs + 2)
    return np.asarray(to_paper_order(matrix, case.params.units, case.params.inputs)[:width, :width])


@claim(
    "equation.8",
    topic=TOPIC,
    source="Eq. 8",
    statement=(
        "ds² = D_KL[P(y|x; θ) ‖ P(y|x; θ + δ)] ≈ ½ δᵀFδ, with the expectation over x that F has and the left "
        "side lacks."
    ),
    formula=(
        r"ds^2 = D_{\mathrm{KL}}[P(y|\mathbf x;\theta)\,\|\,P(y|\mathbf x;\theta+\delta)] \approx "
        r"\tfrac12\delta^\top F\delta"
    ),
    assumptions=("expectation over x on both sides", "δ → 0; the remainder is O(‖δ‖³)"),
    expected=Verdict.CONDITIONAL,
)
def equation_8(problem: Problem):
    """Finite divergences against ½ δᵀFδ, the order of the remainder, and a single x."""
    case = problem.case("ln")
    deltas = directions(problem, case)
    F = structured(*case)
    forms = jnp.einsum("kp,pq,kq->k", deltas, F, deltas)
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
    yield differ("a single x instead of the mean", single, forms, role=Role.FAILS_WITHOUT_CONDITION)


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
    """All 2³ outcomes of three Bernoulli units, weighted by their probability, against JᵀΛJ."""
    case = problem.small("ln", shape=(10, 3, 3))
    outcomes = jnp.array(list(itertools.product((0.0, 1.0), repeat=3)), case.inputs.dtype)
    theta, unravel = ravel_pytree(case.params)

    def log_prob(theta, y):
        return case.model.log_prob(unravel(theta), case.inputs, jnp.broadcast_to(y, (len(case.inputs), 3)))

    log_p = jax.vmap(log_prob, (None, 0))(theta, outcomes)
    scores = jax.vmap(jax.jacrev(log_prob), (None, 0))(theta, outcomes)
    total = jnp.einsum("on,onp,onq->pq", jnp.exp(log_p), scores, scores) / len(case.inputs)
    yield agree("sum over all outcomes and JᵀΛJ", total, automatic(*case))
    mean_score = jnp.einsum("on,onp->np", jnp.exp(log_p), scores)
    yield vanishes("the mean score is zero", mean_score, scale=float(jnp.max(jnp.abs(scores))))


@claim(
    "text.riemannian",
    topic=TOPIC,
    source="Section 5.2.1",
    statement="Under the KL divergence metric, the parameter space (of a normalized model) is a Riemannian manifold.",
    expected=Verdict.REFUTED,
    correction=(
        "F is degenerate for every normalized model: a semi-metric on parameters, and a Riemannian metric only on the "
        "quotient by the directions which leave the model's output unchanged."
    ),
)
def riemannian(problem: Problem):
    """vec(W) has length zero under layer norm; orthogonally to the null space F is positive definite."""
    case = problem.small("ln")
    F = automatic(*case)
    radial = ravel_pytree(
        GLMParameters(case.params.weights, jnp.zeros_like(case.params.bias), jnp.zeros_like(case.params.gain))
    )[0]
    size = float(jnp.trace(F) * radial @ radial / len(radial))
    yield vanishes("ds² along vec(W), which is not zero", radial @ F @ radial, scale=size, role=Role.REFUTES)
    null = predicted_nullspace(*case)
    basis = jnp.asarray(null.basis)
    complement = jnp.linalg.svd(basis, full_matrices=True)[0][:, null.dimension :]
    lowest = float(jnp.linalg.eigvalsh(complement.T @ F @ complement)[0])
    dimension = int(np.sum(np.linalg.eigvalsh(complement.T @ F @ complement) > 1e-12))
    yield same_integer(
        f"F on the complement is positive definite (smallest eigenvalue {lowest:.1e}): rank and dimension",
        dimension,
        complement.shape[1],
        role=Role.CORRECTS,
    )


@claim(
    "equation.10_wording",
    topic=TOPIC,
    source="Eq. 10, text below it",
    statement="In Eq. 10, c(·) is the log partition function.",
    expected=Verdict.REFUTED,
    correction="η(·) is the log-partition function; c(y, φ) is the logarithm of the base measure.",
)
def equation_10_wording(problem: Problem):
    """Sums over all y: η is the logarithm of the normalizing sum, c is not."""
    z = jnp.linspace(-2.0, 1.5, 8)
    y = jnp.arange(200.0)
    for family, support in ((families.Poisson(), y), (families.Binomial(7), y[:8])):
        base = family.log_base_measure(support)
        partition = jax.nn.logsumexp(z[:, None] * support[None, :] + base[None, :], 1)
        name = type(family).__name__
        yield differ(f"{name}: log Σ_y exp(zy + c) and c", partition, base[:8], role=Role.REFUTES)
        yield agree(f"{name}: log Σ_y exp(zy + c) and η(z)", partition, family.log_partition(z), role=Role.CORRECTS)


@claim(
    "equation.11",
    topic=TOPIC,
    source="Eq. 11",
    statement="E[y|x] = f(z) and Var[y|x] = φ f′(z), where f is the transfer function.",
    formula=r"E[y|\mathbf x] = f(a+b),\quad \mathrm{Var}[y|\mathbf x] = \phi f'(a+b)",
    assumptions=("f = η′; this excludes ReLU",),
    expected=Verdict.CONDITIONAL,
)
def equation_11(problem: Problem):
    """Moments by summation over y against η′ and φη″; a transfer function other than η′ has other moments."""
    z = jnp.linspace(-2.0, 1.2, 8)
    y = jnp.arange(200.0)
    for family, support in (
        (families.Poisson(), y),
        (families.Bernoulli(), y[:2]),
        (families.Binomial(7), y[:8]),
    ):
        p = jnp.exp(family.log_prob(z[:, None], support[None, :]))
        mean = p @ support
        variance = jnp.sum(p * jnp.square(support[None, :] - mean[:, None]), 1)
        name = type(family).__name__
        yield agree(f"{name}: mean by summation and η′", mean, family.mean(z))
        yield agree(f"{name}: variance by summation and φη″", variance, family.variance(z))
    gaussian = families.Gaussian()
    yield differ(
        "ReLU transfer: f(z) and the mean",
        jax.nn.relu(z),
        gaussian.mean(z),
        role=Role.FAILS_WITHOUT_CONDITION,
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
        exact = to_paper_order(automatic(model, params, inputs), params.units, params.inputs)
        shape = (params.units, params.inputs + 2)
        exact = exact.reshape(*shape, *shape)[:, :-1, :, :-1]
        size = params.units * (params.inputs + 1)
        name = type(family).__name__
        yield agree(
            f"{name}: Eq. 12 and JᵀΛJ",
            reference.standard_glm(model, params, inputs),
            exact.reshape(size, size),
        )


def _printed_is_exact(method: str):
    @claim(
        f"equation.13_14.{method}",
        topic=TOPIC,
        source="Eqs. 13, 14",
        statement=f"Eqs. 13 and 14 give the Fisher matrix of {TITLES[method].lower()}.",
        formula=(
            r"\chi_i = \mathbf x - \frac{\partial\mu_i}{\partial w_i} - "
            r"\frac{a_i-\mu_i}{\sigma_i}\frac{\partial\sigma_i}{\partial w_i}"
        ),
        assumptions=("statistics over the whole data set",) if method == "bn" else (),
        expected=Verdict.HOLDS,
    )
    def check(problem: Problem):
        """Printed, by definition, and in closed form: on the data, and for a softmax."""
        case = problem.case(method)
        exact = automatic(*case)
        yield agree("data: printed and JᵀΛJ", printed(*case), exact)
        yield agree("data: closed form and JᵀΛJ", structured(*case), exact)
        case = problem.small(method, families.Categorical())
        yield agree("softmax: printed and JᵀΛJ", printed(*case), automatic(*case))
        deltas = directions(problem, case)
        forms = jnp.einsum("kp,pq,kq->k", deltas, printed(*case), deltas)
        yield agree("softmax: printed and finite divergences", forms, divergences(*case, deltas), tol=KL_TOLERANCE)

    return check


_printed_is_exact("bn")
_printed_is_exact("wn")


@claim(
    "equation.13_14.ln",
    topic=TOPIC,
    source="Eqs. 13, 14",
    statement="Eqs. 13 and 14 give the Fisher matrix of layer norm.",
    formula=(
        r"\chi_i = \mathbf x - \frac{\partial\mu_i}{\partial w_i} - "
        r"\frac{a_i-\mu_i}{\sigma_i}\frac{\partial\sigma_i}{\partial w_i}"
    ),
    expected=Verdict.REFUTED,
    correction=(
        "μ and σ depend on every row of W. The weight blocks are E[σ⁻² (Π D_g Λ D_g Π)_ij x xᵀ] with "
        "Π = I − 11ᵀ/H − nnᵀ/H of rank H − 2; those with biases and gains are E[σ⁻¹ (Π D_g Λ)_ij x] and "
        "E[σ⁻¹ (Π D_g Λ D_n)_ij x]. In a diagonal block Eq. 13 lacks E[σ⁻² Σ_{k≠i} g_k² λ_k (1 + n_i n_k)²/H² · x xᵀ]."
    ),
)
def equation_13_14_ln(problem: Problem):
    """Printed against the definition; closed form, missing term, rank of Π and divergences agree with it."""
    case = problem.case("ln")
    model, params, inputs = case
    exact, as_printed = automatic(*case), printed(*case)
    shown = {"printed (units 1, 2)": corner(as_printed, case), "exact (units 1, 2)": corner(exact, case)}
    yield differ("data: printed and JᵀΛJ", as_printed, exact, role=Role.REFUTES, matrices=shown)
    deltas = directions(problem, case)
    found = divergences(*case, deltas)
    forms = [jnp.einsum("kp,pq,kq->k", deltas, F, deltas) for F in (as_printed, exact)]
    yield differ("data: printed and finite divergences", forms[0], found, role=Role.REFUTES)
    yield agree("data: JᵀΛJ and finite divergences", forms[1], found, tol=KL_TOLERANCE, role=Role.CORRECTS)
    yield agree("data: closed form and JᵀΛJ", structured(*case), exact, role=Role.CORRECTS)
    n = model.normalized(params, inputs)
    sigma = case.statistics().scale[:, 0]
    variances = model.family.variance(model.natural_parameters(params, inputs)) / model.family.dispersion**2
    weight = variances * jnp.square(params.gain[None, :])
    own = jnp.square(1 + n[:, 0, None] * n[:, 1:]) / params.units**2
    missing = jnp.einsum("n,nd,ne->de", jnp.sum(weight[:, 1:] * own, 1) / sigma**2, inputs, inputs) / len(inputs)
    block = slice(0, params.inputs)
    difference = (exact - as_printed)[block, block]
    yield agree("data: the missing term of the first diagonal block", missing, difference, role=Role.CORRECTS)
    at = linearize(model.normalizer, params.weights, inputs[:1], params.gain)
    assert isinstance(at, GroupedLinearization)
    eye = jnp.eye(params.units, dtype=inputs.dtype)
    rank = int(np.linalg.matrix_rank(np.asarray(jax.vmap(at.project, 1, 1)(eye[None])[0])))
    yield same_integer("rank of Π and H − 2", rank, params.units - 2, role=Role.CORRECTS)
    case = problem.small("ln", families.Categorical())
    yield agree("softmax: closed form and JᵀΛJ", structured(*case), automatic(*case), role=Role.CORRECTS)

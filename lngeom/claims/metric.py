"""Eqs. 32–35: the metric along gains and along the magnitude of weights."""

import jax
import jax.numpy as jnp

from lngeom import families, metric
from lngeom._types import GLMParameters
from lngeom.claims._evidence import Role, Verdict, agree, differ
from lngeom.claims._problem import Case, Problem
from lngeom.claims._registry import claim
from lngeom.claims.fisher import KL_TOLERANCE, automatic, divergences

TOPIC = "metric"


def gain_block(case: Case):
    """The gains' block of the Fisher matrix, by definition."""
    return automatic(*case)[-case.params.units :, -case.params.units :]


def _delta(problem: Problem, units: int):
    return jax.random.normal(problem.key("delta"), (units,), problem.inputs.dtype)


@claim(
    "equation.32",
    topic=TOPIC,
    source="Eq. 32",
    statement="Under batch norm, ds² along the gains is ½ δ_gᵀ E[Cov[y|x]/φ²] δ_g.",
    formula=r"ds^2 = \tfrac12\delta_g^\top E\left[\frac{\mathrm{Cov}[\mathbf y|\mathbf x]}{\phi^2}\right]\delta_g",
    expected=Verdict.REFUTED,
    correction=(
        "½ δ_gᵀ E[Λ_ij n_i n_j] δ_g. The two agree only where Λ is uncorrelated with the n: always for "
        "Gaussian responses, "
        "not for logistic ones."
    ),
)
def equation_32(problem: Problem):
    """Printed against the gains' block of F at g = 1 and g = 3, with the exact formula; and the Gaussian exception."""
    for size in (1.0, 3.0):
        model, params, inputs = problem.case("bn")
        params = GLMParameters(params.weights, jnp.zeros_like(params.bias), jnp.full_like(params.gain, size))
        case = Case(model, params, inputs)
        block, printed = gain_block(case), metric.gain_matrix(*case, method="printed")
        ratio = float(jnp.trace(printed) / jnp.trace(block))
        yield differ(
            f"logistic, g = {size:g}: printed and F (trace ratio {ratio:.2f})",
            printed,
            block,
            role=Role.REFUTES,
        )
        yield agree(
            f"logistic, g = {size:g}: exact formula and F",
            metric.gain_matrix(*case),
            block,
            role=Role.CORRECTS,
        )
    case = problem.case("bn", families.Gaussian(2.0))
    printed = jnp.diag(metric.gain_matrix(*case, method="printed"))
    yield agree("Gaussian: the printed diagonal is right", printed, jnp.diag(gain_block(case)), role=Role.CORRECTS)


def _exact_as_printed(number: int, method: str, name: str, entry: str):
    @claim(
        f"equation.{number}",
        topic=TOPIC,
        source=f"Eq. {number}",
        statement=f"Under {name}, ds² along the gains is ½ φ⁻² Σ_ij δ_i δ_j E[Cov(y_i, y_j|x) {entry}].",
        expected=Verdict.HOLDS,
    )
    def check(problem: Problem):
        """The printed form against F's block, for a softmax and on the data, and against finite divergences."""
        case = problem.small(method, families.Categorical())
        delta = _delta(problem, case.params.units)
        printed = metric.gain(*case, delta, method="printed")
        yield agree("softmax: printed and F", printed, 0.5 * delta @ gain_block(case) @ delta)
        tangent = jnp.concatenate([jnp.zeros(case.params.size - len(delta), delta.dtype), delta])[None]
        yield agree(
            "softmax: printed and finite divergences",
            printed,
            0.5 * divergences(*case, tangent)[0],
            tol=KL_TOLERANCE,
        )
        case = problem.case(method)
        yield agree("data: printed and F", metric.gain_matrix(*case, method="printed"), gain_block(case))

    return check


_exact_as_printed(33, "ln", "layer norm", "(a_i − μ)(a_j − μ)/σ²")
_exact_as_printed(34, "wn", "weight norm", "a_i a_j / (‖w_i‖ ‖w_j‖)")


@claim(
    "equation.35",
    topic=TOPIC,
    source="Eq. 35",
    statement=(
        "In the standard GLM, ds² along δ_i w_i/‖w_i‖ and δ_j w_j/‖w_j‖ is the one term δ_i δ_j/(2φ²) E[Cov(y_i, "
        "y_j|x) a_i a_j]/(‖w_i‖‖w_j‖)."
    ),
    expected=Verdict.REFUTED,
    correction=(
        "The left side is the sum of four such terms, over (p, q) in {i, j}²; for independent responses the "
        "printed one is zero."
    ),
)
def equation_35(problem: Problem):
    """Printed against the quadratic form of F along the two weight vectors, for independent and softmax responses."""
    for family in (families.Bernoulli(), families.Categorical()):
        model, params, inputs = problem.small("identity", family)
        params = GLMParameters(params.weights, params.bias, jnp.ones_like(params.gain))
        delta = jnp.zeros_like(params.gain).at[jnp.array([0, 2])].set(jnp.array([0.7, -1.1], inputs.dtype))
        unit = params.weights / jnp.linalg.norm(params.weights, axis=1, keepdims=True)
        tangent = jnp.concatenate([(delta[:, None] * unit).reshape(-1), jnp.zeros(2 * params.units, inputs.dtype)])
        exact = metric.ds2(automatic(model, params, inputs), tangent)
        printed = metric.magnitude(model, params, inputs, delta, method="printed")
        name = type(family).__name__
        yield differ(f"{name}: printed and F", printed, exact, role=Role.REFUTES)
        yield agree(
            f"{name}: sum of four terms and F",
            metric.magnitude(model, params, inputs, delta),
            exact,
            role=Role.CORRECTS,
        )
        found = 0.5 * divergences(model, params, inputs, tangent[None])[0]
        yield agree(
            f"{name}: sum of four terms and finite divergences",
            found,
            exact,
            tol=KL_TOLERANCE,
            role=Role.CORRECTS,
        )


@claim(
    "text.prediction_error_only",
    topic=TOPIC,
    source="Section 5.2.2, learning the magnitude; Appendix",
    statement=(
        "For batch and layer normalized models the metric along the gains depends only on the magnitude of the "
        "prediction error."
    ),
    expected=Verdict.REFUTED,
    correction=(
        "It is the model's variance (not its error) times n_i n_j: E[Λ_ij n_i n_j]. It does not change when "
        "W or X is scaled, "
        "and for layer norm its trace is at most H · max λ."
    ),
)
def prediction_error_only(problem: Problem):
    """Two layer-normalized Gaussian models with equal prediction variance, and different metrics along the gains."""
    first, second = (problem.case("ln", families.Gaussian(), name=name) for name in ("first", "second"))
    blocks = [jnp.diag(metric.gain_matrix(*case)) for case in (first, second)]
    yield differ("equal variances, different weights: gains' diagonal", *blocks, role=Role.REFUTES)
    yield agree("E[Λ_ij n_i n_j] and F", jnp.diag(gain_block(first)), blocks[0], role=Role.CORRECTS)
    yield agree(
        "trace against its bound H · max λ (attained for Gaussian)",
        jnp.sum(blocks[0]),
        float(len(blocks[0])),
        role=Role.CORRECTS,
    )


@claim(
    "text.robust_to_scaling",
    topic=TOPIC,
    source="Section 5.2.2; Appendix, last line",
    statement=(
        "Learning the magnitude of the weights through gains is more robust to the scaling of the input and "
        "of the parameters "
        "under batch and layer norm than in the standard model."
    ),
    assumptions=("ε = 0",),
    expected=Verdict.HOLDS,
)
def robust_to_scaling(problem: Problem):
    """The gains' metric is invariant under X → 10X and W → 10W; the standard model's metric along magnitudes is not."""
    for method in ("bn", "ln"):
        model, params, inputs = case = problem.case(method)
        before = metric.gain_matrix(*case)
        larger = GLMParameters(10.0 * params.weights, params.bias, params.gain)
        yield agree(f"{method}: X → 10 X", before, metric.gain_matrix(model, params, 10.0 * inputs))
        yield agree(f"{method}: W → 10 W", before, metric.gain_matrix(model, larger, inputs))
    model, params, inputs = problem.case("identity", families.Gaussian())
    params = GLMParameters(params.weights, params.bias, jnp.ones_like(params.gain))
    delta = _delta(problem, params.units)
    before = metric.magnitude(model, params, inputs, delta)
    after = metric.magnitude(model, params, 10.0 * inputs, delta)
    yield differ("standard model: X → 10 X", before, after)
    yield agree("standard Gaussian model: by 10²", 100.0 * before, after)

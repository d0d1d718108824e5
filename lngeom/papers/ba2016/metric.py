"""Eqs. 32–35: the metric along gains and along the magnitude of weights."""

import jax
import jax.numpy as jnp
import numpy as np
import sympy as sp
from jaxtyping import Array
from sympy import Expr, KroneckerDelta, sqrt

from lngeom import families
from lngeom._core.types import GLMParameters
from lngeom.claims import Problem, Role, Verdict, agree, claim, differ, numpy_reference, proves
from lngeom.claims.context import Context, Reading
from lngeom.claims.erratum import Consequence, Erratum
from lngeom.claims.problem import TITLES, Case
from lngeom.information import metric, reference
from lngeom.methods.transformations import DATASET_RESCALING, WEIGHT_MATRIX_RESCALING
from lngeom.papers.ba2016.kl_metric import gaussian_divergence, poisson_expectation, poisson_metric
from lngeom.papers.ba2016.lg_fisher import KL_TOLERANCE, LAMBDA, PHI, divergences
from lngeom.symbolic.actions import DELTA, moved
from lngeom.symbolic.jacobian import GAIN, LAYER
from lngeom.symbolic.layers import BATCH_NORM, LAYER_NORM, WEIGHT_NORM, Layer, Method
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, expanded, matrix, refutation
from lngeom.symbolic.sums import D, H, N, derivative, field, i, j, mean, n, total
from lngeom.symbolic.table import counterexample

TOPIC = "metric"


def gain_block(case: Case):
    """The gains' block of the Fisher matrix, by definition."""
    return reference.by_definition(*case)[-case.params.units :, -case.params.units :]


def _delta(problem: Problem, units: int):
    return problem.normal("delta", units)


@claim(
    "equation.32",
    topic=TOPIC,
    source="Eq. 32",
    statement="Under batch norm, ds² along the gains is ½ δ_gᵀ E[Cov[y|x]/φ²] δ_g.",
    formula=r"ds^2 = \tfrac12\delta_g^\top E\left[\frac{\mathrm{Cov}[\mathbf y|\mathbf x]}{\phi^2}\right]\delta_g",
    assumptions=(
        "independent responses whose variance is uncorrelated with n_i² over the data: always for Gaussian ones, in "
        "general not for logistic ones",
    ),
    context=Context(
        sentence="Specifically, under batch normalization:",
        before=(
            "The KL metric, ie how much the gradient update changes the model prediction, for the normalized model "
            "depends only on the magnitude of the prediction error."
        ),
        after="[Eq. 32] Under layer normalization: [Eq. 33]",
        readings=(
            Reading(
                "The responses are those whose variance is the same for all cases, as Gaussian ones.", Verdict.HOLDS
            ),
            Reading("The responses are of any family of Eq. 10, as the section says.", Verdict.REFUTED),
        ),
        verdict=(
            "Batch norm's normalized inputs have mean square one over the data, and leave the expectation where they "
            "are uncorrelated with the variance of the responses. The condition is needed because the section is "
            "about the exponential family: for logistic responses the printed metric is 1.4 to 4 times the exact one, "
            "which is ½ δ_gᵀ E[Λ_ij n_i n_j] δ_g."
        ),
    ),
    erratum=Erratum(
        Consequence.SENTENCE, "Eq. 32 omits the normalized inputs n_i n_j from batch norm's metric along the gains."
    ),
    expected=Verdict.CONDITIONAL,
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
            role=Role.FAILS_WITHOUT_CONDITION,
        )
        yield agree(f"logistic, g = {size:g}: exact formula and F", metric.gain_matrix(*case), block)
    case = problem.case("bn", families.Gaussian(2.0))
    printed = jnp.diag(metric.gain_matrix(*case, method="printed"))
    yield agree("Gaussian: the printed diagonal is right", printed, jnp.diag(gain_block(case)))


POSITIVE = Assumption("positive scale", r"\sigma > 0,\ \epsilon = 0")
THREE_CASES = {"W": matrix([[1]]), "X": matrix([[1], [1], [-2]])}
CHANGE = field("h")


def gain_form(method: Method) -> tuple[Step, ...]:
    """The metric along the gains is E[Λ_ij n_i n_j], from the derivative of z by g."""
    C = field("C")
    output = lambda l: method(LAYER, n, l)
    velocity = lambda l: derivative(lambda t: (GAIN(l) + t * CHANGE(l)) * output(l))
    moved, normal = field("v"), field("n")
    form = total(lambda k: total(lambda l: C(k, l) * moved(k) * moved(l), H), H)
    entries = total(lambda k: total(lambda l: CHANGE(k) * C(k, l) * normal(k) * normal(l) * CHANGE(l), H), H)
    diagonal = total(lambda k: total(lambda l: KroneckerDelta(k, l) * LAMBDA(k) * moved(k) * moved(l), H), H)
    return (
        equality("z moves by v, n times the change h of its gain", velocity(i), output(i) * CHANGE(i), r"v_i"),
        equality(
            "so ds² has entries C_ij n_i n_j, C = Λ, at each case", form, entries, short={"v": velocity, "n": output}
        ),
        equality(
            "which vanish off the diagonal for independent outputs",
            diagonal,
            total(lambda k: LAMBDA(k) * normal(k) ** 2 * CHANGE(k) ** 2, H),
            short={"v": velocity, "n": output},
        ),
    )


def poisson_forms(values) -> tuple[Expr, Expr]:
    """Metric along the gain of a Poisson unit, z = n: as printed, its variance; exactly, its expected squared score."""
    outputs = list(BATCH_NORM.exactly(values["W"], values["X"]))

    def variance(z: Expr) -> Expr:
        mean = poisson_expectation(lambda y: y, sp.exp(z))
        return poisson_expectation(lambda y: (y - mean) ** 2, sp.exp(z))

    exact = [poisson_metric(lambda t, z=z: (1 + t) * z) for z in outputs]
    return sp.Add(*map(variance, outputs)) / len(outputs), sp.Add(*exact) / len(outputs)


@equation_32.proof("conditional")
def equation_32_proof() -> Proof:
    """Batch norm's metric along the gains keeps n_i n_j under the expectation."""
    variance = field("lambda", positive=True)
    output = lambda m: BATCH_NORM(LAYER, m, i)
    normal = field("n")
    gap = mean(lambda m: variance(m) * normal(m) ** 2, N) - mean(variance, N)
    covariance = mean(lambda m: (variance(m) - mean(variance, N)) * (normal(m) ** 2 - 1), N)
    g, u = sp.Symbol("g", positive=True), sp.Symbol("u", real=True)
    three = list(BATCH_NORM.exactly(THREE_CASES["W"], THREE_CASES["X"]))
    rates = lambda power: sum(sp.exp(z) * z**power for z in three) / sp.Integer(3)
    moment = lambda power: sp.integrate(u**power * sp.exp(g * u - u**2 / 2) / sqrt(2 * sp.pi), (u, -sp.oo, sp.oo))
    correlated = Counterexample(
        "equation.32 for Poisson responses",
        r"ds^2 = \tfrac12\delta_g^\top E[\mathrm{Cov}[y\mid x]/\phi^2]\,\delta_g",
        THREE_CASES,
        poisson_forms,
        "Poisson outputs, g = 1, b = 0: 2 ds²/δ² as printed (left) and exact (right).",
    )
    return Proof(
        r"ds^2 = \tfrac12\delta_g^\top E[\Lambda_{ij} n_i n_j]\,\delta_g;\quad "
        r"\text{printed iff } \mathrm{Cov}(\lambda, n^2) = 0",
        (
            *gain_form(BATCH_NORM),
            equality("Over the data n² has mean one", mean(lambda m: normal(m) ** 2, N), 1, short={"n": output}),
            equality("so exact less printed is the covariance of λ and n²", gap, covariance, short={"n": output}),
            expanded(
                "Poisson outputs of normal inputs: printed over exact is 1/(1 + g²)",
                r"E[e^{gn}](1+g^2) = E[n^2e^{gn}]",
                moment(0) * (1 + g**2) - moment(2),
            ),
            expanded(
                "The three cases: variance and expected squared score are the means of λ and λn², λ = e^n",
                r"E[s^2] = E[\lambda n^2]",
                poisson_forms(THREE_CASES)[0] - rates(0),
                poisson_forms(THREE_CASES)[1] - rates(2),
            ),
        ),
        (
            POSITIVE,
            Assumption("the variance is uncorrelated with n²", r"\mathrm{Cov}(\lambda, n^2) = 0", correlated),
        ),
    )


def printed_form(method: str, case: Case, delta: Array) -> np.ndarray:
    """Eqs. 33 and 34 as they are printed, (a_i − μ)/σ or a_i/‖w_i‖ at each place of a sum over i and j, in NumPy."""
    n = numpy_reference.normalized(method, case.params.weights, case.inputs)
    covariance = numpy_reference.covariance(method, case.model.family, case.params, case.inputs)
    change = np.asarray(delta)
    return np.einsum("i,j,nij,ni,nj->", change, change, covariance, n, n) / (
        2 * case.model.family.dispersion**2 * len(n)
    )


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
        printed = printed_form(method, case, delta)
        yield agree("softmax: printed and F", printed, 0.5 * delta @ gain_block(case) @ delta)
        yield agree("softmax: printed and lngeom.metric", printed, metric.gain(*case, delta, method="printed"))
        tangent = jnp.concatenate([jnp.zeros(case.params.size - len(delta), delta.dtype), delta])[None]
        yield agree(
            "softmax: printed and finite divergences", printed, 0.5 * divergences(*case, tangent)[0], tol=KL_TOLERANCE
        )
        case = problem.case(method)
        yield agree("data: lngeom.metric and F", metric.gain_matrix(*case, method="printed"), gain_block(case))

    return check


_exact_as_printed(33, "ln", "layer norm", "(a_i − μ)(a_j − μ)/σ²")


@proves("equation.33")
def equation_33_proof() -> Proof:
    """Layer norm's metric along the gains."""
    statement = r"ds^2 = \tfrac12\delta_g^\top\phi^{-2}E[\mathrm{Cov}_{ij}\,(a_i-\mu)(a_j-\mu)/\sigma^2]\,\delta_g"
    return Proof(statement, gain_form(LAYER_NORM), (POSITIVE,))


_exact_as_printed(34, "wn", "weight norm", "a_i a_j / (‖w_i‖ ‖w_j‖)")


@proves("equation.34")
def equation_34_proof() -> Proof:
    """Weight norm's metric along the gains."""
    statement = r"ds^2 = \tfrac12\delta_g^\top\phi^{-2}E[\mathrm{Cov}_{ij}\,a_ia_j/(\|w_i\|\|w_j\|)]\,\delta_g"
    return Proof(statement, gain_form(WEIGHT_NORM), (POSITIVE,))


@claim(
    "equation.35",
    topic=TOPIC,
    source="Eq. 35",
    statement=(
        "In the standard GLM, ds² along δ_i w_i/‖w_i‖ and δ_j w_j/‖w_j‖ is the one term δ_i δ_j/(2φ²) E[Cov(y_i, "
        "y_j|x) a_i a_j]/(‖w_i‖‖w_j‖)."
    ),
    context=Context(
        sentence=(
            "We project the gradient updates to the gain parameter δ_gi of the i^th neuron to its weight vector as "
            "δ_gi w_i/‖w_i‖₂ in the standard GLM model:"
        ),
        before=(
            "Whereas, the KL metric in the standard GLM is related to its activities a_i = w_iᵀx, that is depended on "
            "both its current weights and input data."
        ),
        after=(
            "[Eq. 35] The batch normalized and layer normalized models are therefore more robust to the scaling of the "
            "input and its parameters than the standard model."
        ),
        readings=(
            Reading("The right side is one entry (i, j) of a sum over all pairs of units.", Verdict.HOLDS),
            Reading("As printed, both weight vectors change at once and one term is left.", Verdict.REFUTED),
        ),
        verdict=(
            "The left side is a sum of four terms and the right side is one of them, which is right. For independent "
            "GLMs, as in Section 5.2.2, the printed term is zero and the left side is not. No conclusion rests on it."
        ),
    ),
    erratum=Erratum(
        Consequence.NOTATION, "Eq. 35 prints one entry of the standard model's metric in place of their sum."
    ),
    expected=Verdict.SLIP,
    correction=(
        "The left side is the sum of four such terms, over (p, q) in {i, j}²; for independent responses the printed "
        "one is zero."
    ),
)
def equation_35(problem: Problem):
    """Printed against the quadratic form of F along the two weight vectors, for independent and softmax responses."""
    for family in (families.Bernoulli(), families.Categorical()):
        model, params, inputs = problem.small("identity", family)
        params = GLMParameters(params.weights, params.bias, jnp.ones_like(params.gain))
        delta = np.zeros(params.units, inputs.dtype)
        delta[[0, 2]] = 0.7, -1.1
        unit = np.asarray(params.weights) / np.linalg.norm(params.weights, axis=1, keepdims=True)
        tangent = np.concatenate([(delta[:, None] * unit).reshape(-1), np.zeros(2 * params.units, inputs.dtype)])
        exact = metric.ds2(reference.by_definition(model, params, inputs), tangent)
        printed = metric.magnitude(model, params, inputs, delta, method="printed")
        name = type(family).__name__
        yield differ(f"{name}: printed and F", printed, exact, role=Role.MISPRINT)
        covariance = numpy_reference.covariance("identity", family, params, inputs)[:, 0, 2]
        outputs = np.asarray(inputs @ unit.T)
        one_term = 0.5 * float(delta[0] * delta[2]) * np.mean(covariance * outputs[:, 0] * outputs[:, 2])
        if family.joint:
            yield agree(f"{name}: printed, and one term of the sum", printed, one_term, role=Role.CORRECTS)
        yield agree(
            f"{name}: sum of four terms and F",
            metric.magnitude(model, params, inputs, delta),
            exact,
            role=Role.CORRECTS,
        )
        found = 0.5 * divergences(model, params, inputs, tangent[None])[0]
        yield agree(
            f"{name}: sum of four terms and finite divergences", found, exact, tol=KL_TOLERANCE, role=Role.CORRECTS
        )


PAIR = {"W": matrix([[1], [2]]), "x": matrix([[1]]), "C": matrix([[1, 0], [0, 1]])}


def unit_outputs(values) -> list[Expr]:
    """a/‖w‖ of each unit at one case."""
    W, x = values["W"], values["x"]
    return [(W.row(l) * x)[0] / sqrt(sum(w**2 for w in W.row(l))) for l in range(W.rows)]


def two_units(values) -> tuple[Expr, Expr]:
    """Divergence of two independent Gaussian units whose weights grow by w/‖w‖, and the printed cross term."""
    W, x, C = values["W"], values["x"], values["C"]
    grown = sp.Matrix.vstack(*(W.row(l) * (1 + 1 / sqrt(sum(w**2 for w in W.row(l)))) for l in range(2)))
    divergence = sum(gaussian_divergence(z, other) for z, other in zip(W * x, grown * x, strict=True))
    first, second = unit_outputs(values)
    return divergence, C[0, 1] * first * second / 2


@equation_35.proof("slip")
def equation_35_proof() -> Counterexample:
    """The quadratic form has four terms; the printed right side is one cross term."""
    C, h = field("C"), field(r"\delta")
    of_instance = sp.Matrix([unit_outputs(PAIR)])  # δ_p a_p/‖w_p‖ for δ = (1, 1)
    along_w = lambda l: h(l) * LAYER.a(n, l) / sqrt(total(lambda d: LAYER.W(l, d) ** 2, D))
    moved = lambda t: Layer(
        lambda l, d: LAYER.W(l, d) + t * h(l) * LAYER.W(l, d) / sqrt(total(lambda e: LAYER.W(l, e) ** 2, D)), LAYER.X
    )
    change = field("v")
    form = total(lambda k: total(lambda l: C(k, l) * change(k) * change(l), H), H) / (2 * PHI**2)
    first, second = sp.symbols(r"\delta_i \delta_j", real=True)
    pair = lambda l: KroneckerDelta(l, i) * first + KroneckerDelta(l, j) * second
    unit = lambda l: LAYER.a(n, l) / sqrt(total(lambda d: LAYER.W(l, d) ** 2, D))
    r, letters = field("r"), {"r": unit}
    of_pair = total(lambda k: total(lambda l: C(k, l) * pair(k) * pair(l) * r(k) * r(l), H), H)
    four = (
        C(i, i) * first**2 * r(i) ** 2
        + (C(i, j) + C(j, i)) * first * second * r(i) * r(j)
        + C(j, j) * second**2 * r(j) ** 2
    )
    by_norms = total(
        lambda k: total(
            lambda l: C(k, l) * h(k) * h(l) * r(k) * r(l),
            H,
        ),
        H,
    ) / (2 * PHI**2)
    correct = Proof(
        r"\frac{1}{2\phi^2}\sum_{p,q}\delta_{gp}\delta_{gq}"
        r"E\left[\mathrm{Cov}_{pq}\frac{a_pa_q}{\|w_p\|\|w_q\|}\right]",
        (
            equality(
                "Along δ w/‖w‖ the summed input moves by v = δ a/‖w‖",
                derivative(lambda t: moved(t).a(n, i)),
                along_w(i),
                r"v_i",
            ),
            equality(
                "so with v = da and r = a/‖w‖ the form is a sum over all pairs of units",
                form,
                by_norms,
                short={"v": along_w, **letters},
            ),
            equality(
                "of which a change of units i and j keeps four terms, not one",
                of_pair,
                four,
                r"2\phi^2ds^2",
                letters,
            ),
            expanded(
                "At the instance the four terms are the divergence",
                r"\tfrac12\sum_{ij} C_{ij}\,r_i\,r_j = D_{KL}",
                two_units(PAIR)[0] - (of_instance * PAIR["C"] * of_instance.T)[0] / 2,
            ),
        ),
        name="the correction",
    )

    return Counterexample(
        "equation.35",
        r"\tfrac12 v^\top F v = \frac{\delta_{gi}\delta_{gj}}{2\phi^2}"
        r"E\left[\mathrm{Cov}_{ij}\frac{a_ia_j}{\|w_i\|\|w_j\|}\right]",
        PAIR,
        two_units,
        "Two independent Gaussian units, δ = (1, 1): the divergence (left) and the printed cross term (right).",
        correct,
    )


@claim(
    "text.prediction_error_only",
    topic=TOPIC,
    source="Section 5.2.2, learning the magnitude; Appendix",
    statement=(
        "For batch and layer normalized models the metric along the gains depends only on the magnitude of the "
        "prediction error."
    ),
    assumptions=(
        "ε = 0",
        "“depends only” denies a dependence on the size of inputs and weights; the metric also has the factors n_i n_j "
        "of Eq. 33, which drop out for batch norm with independent Gaussian responses",
    ),
    context=Context(
        sentence=(
            "We show that Riemannian metric along the magnitude of the incoming weights for the standard GLM is scaled "
            "by the norm of its input, whereas learning the gain parameters for the batch normalized and layer "
            "normalized models depends only on the magnitude of the prediction error."
        ),
        before=(
            "The direction along the gain parameters in F̄ captures the geometry for the magnitude of the incoming "
            "weights."
        ),
        after=(
            "Learning the magnitude of incoming weights in the normalized model is therefore, more robust to the "
            "scaling of the input and its parameters than in the standard model."
        ),
        readings=(
            Reading(
                "“Depends only” denies the dependence that the same sentence finds in the standard GLM: on the norm of "
                "the input. The prediction error is the covariance of the responses, as in Eqs. 32 and 33.",
                Verdict.HOLDS,
            ),
            Reading("Nothing else at all enters the metric.", Verdict.REFUTED),
        ),
        verdict=(
            "The metric does not change when inputs or weights are scaled. The condition is needed because it also has "
            "the factors n_i n_j, which Eq. 33 prints: models with equal covariances have different metrics."
        ),
    ),
    expected=Verdict.CONDITIONAL,
)
def prediction_error_only(problem: Problem):
    """The metric is E[Λ_ij n_i n_j] at every scale; with equal variances it still differs with n under layer norm."""
    for method in ("bn", "ln"):
        model, params, inputs = case = problem.case(method)
        larger = GLMParameters(3.0 * params.weights, params.bias, params.gain)
        scaled = metric.gain_matrix(model, larger, 10.0 * inputs)
        yield agree(f"{TITLES[method]}: X → 10 X and W → 3 W", metric.gain_matrix(*case), scaled)
    gaussian = problem.case("bn", families.Gaussian(2.0))
    exact = np.full(gaussian.params.units, 1 / 2.0)
    yield agree("batch norm, Gaussian responses: the metric is 1/φ", jnp.diag(gain_block(gaussian)), exact)
    first, second = (problem.case("ln", families.Gaussian(), name=name) for name in ("first", "second"))
    blocks = [jnp.diag(metric.gain_matrix(*case)) for case in (first, second)]
    yield differ("equal variances, different weights: gains' diagonal", *blocks, role=Role.FAILS_WITHOUT_CONDITION)
    yield agree("E[Λ_ij n_i n_j] and F", jnp.diag(gain_block(first)), blocks[0])
    yield agree(
        "trace against its bound H · max λ (attained for Gaussian)",
        jnp.sum(blocks[0]),
        float(len(blocks[0])),
    )


@prediction_error_only.proof("conditional")
def prediction_error_only_proof() -> Proof:
    """Along the gains the metric is the outputs' variance times n_i n_j, not the variance alone."""
    top = sp.Symbol("L", positive=True)
    output = lambda l: LAYER_NORM(LAYER, n, l)
    trace = total(lambda l: LAMBDA(l) * output(l) ** 2, H)
    by_inputs, by_weights = (moved(column, LAYER) for column in (DATASET_RESCALING, WEIGHT_MATRIX_RESCALING))

    def first(W: str, values) -> Expr:
        n = LAYER_NORM.exactly(values[W], values["x"])[0]
        return 2 * gaussian_divergence(n, 2 * n)  # from g = 1 to g = 2

    nothing_else = Counterexample(
        "text.prediction_error_only, and nothing else",
        r"ds^2 \text{ depends on } \mathrm{Cov}[y\mid x] \text{ alone}",
        {"W": matrix([[1], [1], [-2]]), "W'": matrix([[2], [-1], [-1]]), "x": matrix([[1]])},
        lambda v: (first("W", v), first("W'", v)),
        "Layer norm, Gaussian outputs of variance 1 in both: 2 ds²/δ² along the first gain at W (left), W' (right).",
    )
    return Proof(
        r"ds^2 = \tfrac12\delta_g^\top E[\Lambda_{ij}n_in_j]\delta_g,\quad \mathrm{tr}\,F_{gg} \leq H\max\lambda",
        (
            *gain_form(LAYER_NORM),
            *(
                equality(f"{method.name}: n stays when {what} are scaled", method(layer), method(LAYER), name)
                for method in (BATCH_NORM, LAYER_NORM)
                for layer, what, name in (
                    (by_inputs, "inputs", r"n(W, \delta X)"),
                    (by_weights, "weights", r"n(\delta W, X)"),
                )
            ),
            equality("Batch norm: n² has mean one over the data", mean(lambda m: BATCH_NORM(LAYER, m, i) ** 2, N), 1),
            equality(
                "H L − tr F_gg is a sum of (L − λ) n² ≥ 0, for L = max λ",
                H * top - trace,
                total(lambda l: (top - LAMBDA(l)) * output(l) ** 2, H),
            ),
        ),
        (
            POSITIVE,
            Assumption("positive factors", r"\delta > 0"),
            Assumption("on the sizes of X and W nothing depends; on n it does", r"n_i n_j", nothing_else),
        ),
    )


@claim(
    "text.robust_to_scaling",
    topic=TOPIC,
    source="Section 5.2.2; Appendix, last line",
    statement=(
        "Learning the magnitude of the weights through gains is more robust to the scaling of the input and of W under "
        "batch and layer norm than in the standard model."
    ),
    assumptions=(
        "ε = 0",
        "as to the input: not where δ²λ(δa) = λ(a), as for gamma responses without a bias, whose standard model is as "
        "robust",
        "as to W: the responses' variance depends on their mean, as for logistic ones; for Gaussian ones "
        "the standard model is as robust",
    ),
    context=Context(
        sentence=(
            "Learning the magnitude of incoming weights in the normalized model is therefore, more robust to the "
            "scaling of the input and its parameters than in the standard model."
        ),
        before=(
            "… whereas learning the gain parameters for the batch normalized and layer normalized models depends only "
            "on the magnitude of the prediction error."
        ),
        after="See Appendix for detailed derivations.",
        readings=(
            Reading(
                "The normalized model is batch or layer norm, and the comparison is between metrics along magnitudes "
                "when X or W is multiplied by a number.",
                Verdict.HOLDS,
            ),
            Reading("It is strictly more robust in every family.", Verdict.REFUTED),
            Reading("Its parameters include the gains themselves.", Verdict.REFUTED),
        ),
        verdict=(
            "The metric along the gains does not see either scale. The conditions are needed because some standard "
            "models are as robust: gamma responses without a bias to the scale of the input, Gaussian ones to W's."
        ),
    ),
    expected=Verdict.CONDITIONAL,
)
def robust_to_scaling(problem: Problem):
    """The gains' metric does not see X → 10X and W → 10W; the standard model's metric along magnitudes does."""
    for method in ("bn", "ln"):
        model, params, inputs = case = problem.case(method)
        before = metric.gain_matrix(*case)
        larger = GLMParameters(10.0 * params.weights, params.bias, params.gain)
        yield agree(f"{method}: X → 10 X", before, metric.gain_matrix(model, params, 10.0 * inputs))
        yield agree(f"{method}: W → 10 W", before, metric.gain_matrix(model, larger, inputs))
    gaussian, logistic = (problem.case("identity", family) for family in (families.Gaussian(), families.Bernoulli()))

    def magnitude(case: Case, of_inputs: float, of_weights: float) -> jax.Array:
        model, params, inputs = case
        params = GLMParameters(of_weights * params.weights, params.bias, jnp.ones_like(params.gain))
        return metric.magnitude(model, params, of_inputs * inputs, _delta(problem, params.units))

    before = magnitude(gaussian, 1.0, 1.0)
    yield differ("standard Gaussian model: X → 10 X", before, magnitude(gaussian, 10.0, 1.0))
    yield agree("standard Gaussian model: by 10²", 100.0 * before, magnitude(gaussian, 10.0, 1.0))
    yield differ("standard logistic model: W → 10 W", magnitude(logistic, 1.0, 1.0), magnitude(logistic, 1.0, 10.0))
    yield agree(
        "standard Gaussian model: W → 10 W changes nothing",
        before,
        magnitude(gaussian, 1.0, 10.0),
        role=Role.FAILS_WITHOUT_CONDITION,
    )
    yield agree(
        "standard gamma model without a bias: X → 10 X changes nothing",
        *(_gamma_magnitude(problem, factor) for factor in (1.0, 10.0)),
        role=Role.FAILS_WITHOUT_CONDITION,
    )


def _gamma_magnitude(problem: Problem, factor: float) -> float:
    """ds² along the magnitudes of a gamma model without a bias, its data mirrored so that z = Wx < 0."""
    model, params, inputs = problem.small("identity", families.Gamma(0.5))
    units = params.units
    weights = -jnp.abs(params.weights)
    positive = factor * (0.1 + jnp.abs(inputs))
    params = GLMParameters(weights, jnp.zeros_like(params.bias), jnp.ones_like(params.gain))
    return metric.magnitude(model, params, positive, _delta(problem, units))


def along_magnitude(w, x) -> Expr:
    """2 ds² along w/‖w‖ of one Gaussian unit at one case."""
    a = (w * x.T)[0]
    return 2 * gaussian_divergence(a, a * (1 + 1 / sqrt(sum(entry**2 for entry in w))))


@robust_to_scaling.proof("conditional")
def robust_to_scaling_proof() -> Proof:
    """Along the gains batch and layer norm ignore scales of X and W; the standard model does not."""
    by_inputs, by_weights = (moved(column, LAYER) for column in (DATASET_RESCALING, WEIGHT_MATRIX_RESCALING))
    steps = []
    for method in (BATCH_NORM, LAYER_NORM):
        for layer, what in ((by_inputs, "inputs"), (by_weights, "weights")):
            steps.append(
                equality(
                    f"{method.name}: n, so z, Λ and Λ n n, stay when {what} are scaled",
                    method(layer),
                    method(LAYER),
                    "n(W, \\delta X)" if what == "inputs" else "n(\\delta W, X)",
                )
            )
    standard = lambda L: L.a(n, i) ** 2 / total(lambda d: L.W(i, d) ** 2, D)
    steps += [
        equality(
            "Standard model, constant variance: the metric along ‖w‖ grows as the square of the inputs",
            standard(by_inputs),
            DELTA**2 * standard(LAYER),
        ),
        equality("Weight norm's n scales with the inputs", WEIGHT_NORM(by_inputs), DELTA * WEIGHT_NORM(LAYER)),
        refutation("so it is not invariant to them", counterexample("WeightNorm", WEIGHT_NORM, DATASET_RESCALING)),
    ]
    size = lambda v, scale: poisson_metric(lambda t: (scale * v["w"] + t) * v["x"])  # along w/‖w‖, for w > 0
    poisson = Counterexample(
        "text.robust_to_scaling for Poisson outputs",
        r"\lambda a^2/\|w\|^2 \text{ at } W = \text{ at } 2W",
        {"w": 1, "x": 1},
        lambda v: (size(v, 2), size(v, 1)),
        "λ a²/‖w‖² with λ = e^a in the standard model, at 2W (left) and W (right).",
    )
    steps.append(refutation("Where the variance follows the mean, the standard model sees a scale of W", poisson))
    gamma = lambda v, scale: scale**2 * v["x"] ** 2 / (scale * v["w"] * v["x"]) ** 2  # λ = 1/z², for w > 0
    as_robust = Counterexample(
        "text.robust_to_scaling, input, gamma outputs without a bias",
        r"\lambda a^2/\|w\|^2 \text{ at } 2X \neq \text{ at } X",
        {"w": -1, "x": 1},
        lambda v: (sp.Integer(gamma(v, 2) == gamma(v, 1)), sp.S.Zero),
        "Whether the standard model's metric is the same at 2X and at X: 1 for yes (left), where 0 was stated (right).",
    )
    unchanged = Counterexample(
        "text.robust_to_scaling, parameters, Gaussian outputs",
        r"a^2/\|w\|^2 \text{ at } 2W \neq \text{ at } W",
        {"W": matrix([[1, 2]]), "x": matrix([[3, 1]])},
        lambda v: (sp.Integer(along_magnitude(2 * v["W"], v["x"]) == along_magnitude(v["W"], v["x"])), sp.S.Zero),
        "Whether the standard model's metric is the same at 2W and at W: 1 for yes (left), where 0 was stated (right).",
    )
    statement = r"F_{gg}(\delta X, W) = F_{gg}(X, \delta W) = F_{gg}(X, W)\text{ for batch and layer norm}"
    return Proof(
        statement,
        tuple(steps),
        (
            Assumption("positive factor", r"\delta > 0"),
            POSITIVE,
            Assumption(
                "as to the input: unless δ²λ(δa) = λ(a)", r"\delta^2\lambda(\delta a) \neq \lambda(a)", as_robust
            ),
            Assumption("as to the parameters: the variance follows the mean", r"\lambda = \lambda(z)", unchanged),
        ),
    )

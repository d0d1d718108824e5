"""Section 5.1: Eqs. 6 and 7, re-scaling of the data, and shifts of features."""

from collections.abc import Iterator
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import sympy as sp
from jax.flatten_util import ravel_pytree
from sympy import sqrt

from lngeom._core.types import GLMParameters
from lngeom.claims import (
    Problem,
    Role,
    Verdict,
    agree,
    claim,
    differ,
    numpy_reference,
)
from lngeom.claims.context import Context, Reading
from lngeom.claims.erratum import Consequence, Erratum
from lngeom.claims.evidence import Evidence
from lngeom.claims.problem import TITLES, Case
from lngeom.methods.transformations.actions import AffineAction, Column, Transformation
from lngeom.methods.transformations.columns import (
    DATASET_RESCALING,
    SINGLE_CASE_CONSTANT_SHIFT,
    SINGLE_CASE_RESCALING,
    WEIGHT_MATRIX_RECENTERING,
    WEIGHT_MATRIX_RESCALING,
)
from lngeom.papers.ba2016.table1 import POSITIVE, REFERENCE_ROWS, TOPIC, outputs
from lngeom.symbolic.actions import DELTA, SCALE, SHIFT
from lngeom.symbolic.jacobian import LAYER, SIGMA
from lngeom.symbolic.layers import BATCH_NORM, LAYER_NORM, WEIGHT_NORM, Layer, Method
from lngeom.symbolic.proof import (
    Assumption,
    Counterexample,
    Proof,
    Step,
    at,
    confirmed,
    equality,
    fact,
    matrix,
    together,
)
from lngeom.symbolic.sums import D, H, i, mean, n, total
from lngeom.symbolic.table import counterexample, expansion, general_steps


def _with_eps(case: Case, eps: float) -> Case:
    model = type(case.model)(type(case.model.normalizer)(eps=eps), case.model.family)
    return Case(model, case.params, case.inputs)


def _conditions(case: Case, scaled: Transformation, flipped: Transformation, ratio_of) -> Iterator[Evidence]:
    """What Eqs. 6 and 7 need: δ > 0 (else g → −g repairs it); and what an ε, which they do not have, would do."""
    before = outputs(case)
    yield differ("δ < 0 changes the output", before, outputs(case, flipped), role=Role.FAILS_WITHOUT_CONDITION)
    yield agree("δ < 0 together with g → −g does not", before, outputs(case, flipped, repair_sign=True))
    damped = _with_eps(case, 0.1)
    n, moved = (
        damped.model.normalized(*point) for point in ((case.params, case.inputs), scaled(case.params, case.inputs))
    )
    variance = jnp.square(damped.statistics().scale) - 0.1
    yield agree("with ε > 0, n′/n = √((σ² + ε)/(σ² + ε/δ²))", n * ratio_of(variance), moved)


@claim(
    "equation.6",
    topic=TOPIC,
    source="Eq. 6",
    statement="Layer norm computes the same output from W and from W′ = δW + 𝟏γᵀ.",
    formula=r"\mathbf h' = f\left(\tfrac{\mathbf g}{\sigma'}(W'\mathbf x-\mu')+\mathbf b\right) = \mathbf h",
    assumptions=POSITIVE,
    context=Context(
        sentence="Under layer normalization, the two models effectively compute the same output:",
        before=(
            "Let there be two sets of model parameters θ, θ' whose weight matrices W and W' differ by a scaling factor "
            "δ and all of the incoming weights in W' are also shifted by a constant vector γ, that is W' = δW + 𝟏γᵀ."
        ),
        after=(
            "[Eq. 6] Notice that if normalization is only applied to the input before the weights, the model will not "
            "be invariant to re-scaling and re-centering of the weights."
        ),
        readings=(
            Reading(
                "A scaling factor is positive, ε is zero as in Eq. 3, and the summed inputs of a case are not all "
                "equal.",
                Verdict.HOLDS,
            ),
            Reading(
                "δ stands for a factor of either sign, and δ < 0 changes the sign of the normalized values.",
                Verdict.REFUTED,
            ),
        ),
        verdict=(
            "The equation holds. It is conditional, unlike the cells of Table 1, because it prints δ as a free "
            "variable. A cell of the table names a re-scaling and has no δ."
        ),
    ),
    expected=Verdict.CONDITIONAL,
)
def equation_6(problem: Problem):
    """Scale and shift together leave the output; with δ < 0 they do not."""
    case = problem.case("ln")
    shift = problem.normal("shift", 1, case.params.inputs)

    def moved(delta: float) -> Transformation:
        return Transformation(weights=AffineAction(delta, shift))

    yield agree("δ = 3 and a random γ", outputs(case), outputs(case, moved(3.0)))
    few = case.inputs[:REFERENCE_ROWS]
    points = (case.params, few), moved(3.0)(case.params, few)
    yield agree(
        "the same by the NumPy reference", *(numpy_reference.natural_parameters("ln", *p) for p in points), tol=1e-12
    )
    yield from _conditions(case, moved(3.0), moved(-3.0), lambda v: jnp.sqrt((v + 0.1) / (v + 0.1 / 9.0)))
    damped = _with_eps(case, 0.1)
    shifted = Transformation(weights=AffineAction(1.0, shift))
    yield agree("the shift 𝟏γᵀ alone is exact for any ε", outputs(damped), outputs(damped, shifted))
    restored = outputs(_with_eps(case, 0.9), moved(3.0))
    yield agree("ε → δ²ε restores the output", outputs(damped), restored)
    weights, there = (
        np.asarray(case.params.weights),
        Transformation(weights=AffineAction(3.0, shift), gain=AffineAction(2.0)),
    )
    changed, inputs = there(case.params, case.inputs)
    written = np.concatenate([(3.0 * weights + np.asarray(shift)).ravel(), case.params.bias, 2.0 * case.params.gain])
    yield agree("W′ = δW + 𝟏γᵀ, b and 2g as written", ravel_pytree(changed)[0], written)
    back = ravel_pytree(there.inverse()(changed, inputs)[0])[0]
    yield agree("from W′ the inverse leads back to W", back, ravel_pytree(case.params)[0])
    twice = ravel_pytree((there @ moved(0.5))(case.params, inputs)[0])[0]
    in_turn = ravel_pytree(there(*moved(0.5)(case.params, inputs))[0])[0]
    yield agree("δ = ½ and γ, then δ = 3 and γ: one change of the same form", twice, in_turn)


def undefined(text: str, method: Method, W, X) -> Step:
    """The step that numerator and square are both exactly zero at an instance: n = 0/0."""

    def verify() -> bool:
        rows = method.rows(W.tolist(), X.tolist(), sp.S.Zero)
        return all(numerator == 0 and square == 0 for row in rows for numerator, square in row)

    return fact(f"{text}, {at(W=W, X=X)}", r"n = \tfrac{0}{0}", verify)


POSITIVE_EPSILON = sp.Symbol("epsilon", positive=True)


def scaled_epsilon_steps(method: Method, moved: Layer) -> tuple[Step, Step]:
    """What ε > 0 does to an exact scaling by δ: the ratio of outputs, and the ε that restores it."""
    variance, eps = method.square(LAYER), POSITIVE_EPSILON
    ratio = sqrt((variance + eps) / (variance + eps / DELTA**2))
    return (
        equality(
            "With ε the output changes by an exact ratio", method(moved, eps=eps), method(LAYER, eps=eps) * ratio, r"n'"
        ),
        equality(
            "Replacing ε by δ²ε restores it",
            method(moved, eps=DELTA**2 * eps),
            method(LAYER, eps=eps),
            r"n'(\epsilon \to \delta^2\epsilon)",
        ),
    )


def scaling_assumptions(name: str, column: Column) -> tuple[Assumption, ...]:
    """What layer norm needs to ignore a factor: its sign, with a counterexample; ε = 0 as in Eq. 3; and σ > 0."""
    return (
        Assumption(
            "positive factor",
            r"\delta > 0",
            counterexample(f"{name} with δ < 0", LAYER_NORM, column, delta=Fraction(-2)),
        ),
        Assumption("no constant added to the variance, as in Eq. 3", r"\epsilon = 0"),
        SIGMA,
    )


@equation_6.proof("conditional")
def equation_6_proof() -> Proof:
    """Layer norm ignores a scale and a shift of the weight matrix."""
    moved = Layer(lambda i, d: DELTA * LAYER.W(i, d) + SHIFT(d), LAYER.X)
    negative = Layer(lambda i, d: -DELTA * LAYER.W(i, d) + SHIFT(d), LAYER.X)
    projected = total(lambda d: SHIFT(d) * LAYER.X(n, d), D)
    mu = sp.Symbol(r"\mu_{n}")
    of_mean = {mu.name: mean(lambda j: LAYER.a(n, j), H)}
    changed_size, restored = scaled_epsilon_steps(LAYER_NORM, moved)
    return Proof(
        r"W' = \delta W + \mathbf{1}\gamma^\top \Rightarrow \mathbf{h}' = \mathbf{h}",
        (
            together(
                "The summed inputs, their mean and their scale become",
                equality("", moved.a(n, i), DELTA * LAYER.a(n, i) + projected, r"a'_{ni}"),
                equality("", mean(lambda j: moved.a(n, j), H), DELTA * mu + projected, r"\mu'_{n}", of_mean),
                equality("", sqrt(LAYER_NORM.square(moved)), DELTA * sqrt(LAYER_NORM.square(LAYER)), r"\sigma'_{n}"),
            ),
            confirmed(
                equality("so the normalized summed inputs stay", LAYER_NORM(moved), LAYER_NORM(LAYER), r"n'_{ni}"),
                *(expansion(LAYER_NORM, column) for column in (WEIGHT_MATRIX_RESCALING, WEIGHT_MATRIX_RECENTERING)),
            ),
            confirmed(
                together(
                    "A negative δ changes the sign, and ε > 0 the size, which ε → δ²ε restores",
                    equality("", LAYER_NORM(negative), -LAYER_NORM(LAYER), r"n'(-\delta)"),
                    changed_size,
                ),
                restored,
            ),
            undefined(
                "Undefined where rows of W are alike",
                LAYER_NORM,
                matrix([[1, 2], [1, 2], [1, 2]]),
                matrix([[1, 1]]),
            ),
        ),
        scaling_assumptions("equation.6", WEIGHT_MATRIX_RESCALING),
    )


@claim(
    "equation.7",
    topic=TOPIC,
    source="Eq. 7",
    statement="Layer norm's output does not change when a single case x is re-scaled to δx.",
    formula=r"h_i' = f\left(\tfrac{g_i}{\delta\sigma}(\delta w_i^\top\mathbf x-\delta\mu)+b_i\right) = h_i",
    assumptions=POSITIVE,
    context=Context(
        sentence=(
            "It is easy to see re-scaling individual data points does not change the model’s prediction under layer "
            "normalization."
        ),
        before="Let x' be a new data point obtained by re-scaling x by δ. Then we have, [Eq. 7]",
        after=(
            "Similar to the re-centering of the weight matrix in layer normalization, we can also show that batch "
            "normalization is invariant to re-centering of the dataset."
        ),
        readings=(
            Reading(
                "A re-scaling is by a positive factor, ε is zero as in Eq. 3, and the summed inputs of a case are not "
                "all equal.",
                Verdict.HOLDS,
            ),
            Reading(
                "δ stands for a factor of either sign: the scale of δx is |δ|σ, and δ < 0 changes the sign of the "
                "normalized values.",
                Verdict.REFUTED,
            ),
        ),
        verdict=(
            "The equation holds. It is conditional, unlike the cells of Table 1, because it prints δ as a free "
            "variable and δσ as the new scale. A cell of the table names a re-scaling and has no δ."
        ),
    ),
    expected=Verdict.CONDITIONAL,
)
def equation_7(problem: Problem):
    """Every case gets a scale of its own; with δ < 0 the output changes."""
    case = problem.case("ln")
    scales = problem.uniform("scales", len(case.inputs), 1, low=0.5, high=4.0)
    own = Transformation(inputs=AffineAction(scales))
    yield agree("a random δ for every case", outputs(case), outputs(case, own))
    few = case.inputs[:REFERENCE_ROWS]
    yield agree(
        "the same by the NumPy reference",
        numpy_reference.natural_parameters("ln", case.params, few),
        numpy_reference.natural_parameters("ln", case.params, few * scales[: len(few)]),
        tol=1e-12,
    )
    flipped = Transformation(inputs=AffineAction(-scales))
    yield from _conditions(case, own, flipped, lambda v: jnp.sqrt((v + 0.1) / (v + 0.1 / jnp.square(scales))))


@equation_7.proof("conditional")
def equation_7_proof() -> Proof:
    """Layer norm ignores the scale of a training case."""
    moved = Layer(LAYER.W, lambda n, d: DELTA * LAYER.X(n, d))
    return Proof(
        r"x' = \delta x \Rightarrow h' = h",
        (
            equality("σ is scaled", sqrt(LAYER_NORM.square(moved)), DELTA * sqrt(LAYER_NORM.square(LAYER)), r"\sigma'"),
            *general_steps(LAYER_NORM, SINGLE_CASE_RESCALING, SCALE(n), sp.S.Zero),
            *scaled_epsilon_steps(LAYER_NORM, moved),
            expansion(LAYER_NORM, SINGLE_CASE_RESCALING),
            undefined("x = 0 has no output", LAYER_NORM, matrix([[1, 2], [0, 1], [1, 0]]), matrix([[0, 0]])),
        ),
        scaling_assumptions("equation.7", SINGLE_CASE_RESCALING),
    )


@claim(
    "text.all_methods_dataset_rescaling",
    topic=TOPIC,
    source="Section 5.1, data re-scaling",
    statement="All the normalization methods are invariant to re-scaling the dataset.",
    context=Context(
        sentence=(
            "We can show that all the normalization methods are invariant to re-scaling the dataset by verifying that "
            "the summed inputs of neurons stays constant under the changes."
        ),
        before="Data re-scaling and re-centering:",
        after="Furthermore, layer normalization is invariant to re-scaling of individual training cases, …",
        readings=(
            Reading(
                "“All the normalization methods” are the three that the section and Table 1 compare: batch, weight and "
                "layer norm.",
                Verdict.REFUTED,
            ),
        ),
        verdict=(
            "Weight norm is not invariant, and Table 1 has “No” in this cell. Batch norm and layer norm are. “All” "
            "leaves no other reading: the section is about three methods, and the next sentence singles out layer "
            "norm."
        ),
    ),
    erratum=Erratum(
        Consequence.SENTENCE, "Weight norm is not invariant to re-scaling the dataset; Table 1 says so itself."
    ),
    expected=Verdict.REFUTED,
    correction="Not weight norm, as Table 1 itself says: z becomes gδŵᵀx + b. Batch and layer norm are.",
)
def all_methods_dataset_rescaling(problem: Problem):
    """Weight norm is the counterexample, with the exact formula for what it becomes."""
    scaled = Transformation(inputs=AffineAction(2.5))
    case = problem.case("wn")
    z = outputs(case)
    bias = case.params.bias[None, :]
    yield differ("weight norm, X → 2.5 X", z, outputs(case, scaled), role=Role.REFUTES)
    yield agree(
        "weight norm: z − b is multiplied by δ", 2.5 * (z - bias), outputs(case, scaled) - bias, role=Role.CORRECTS
    )
    for method in ("bn", "ln"):
        case = problem.case(method)
        yield agree(f"{TITLES[method]}, X → 2.5 X", outputs(case), outputs(case, scaled), role=Role.CORRECTS)


@all_methods_dataset_rescaling.proof("refuted")
def all_methods_dataset_rescaling_proof() -> Counterexample:
    """Weight norm's output scales with the data."""
    moved = Layer(LAYER.W, lambda n, d: DELTA * LAYER.X(n, d))
    correct = Proof(
        r"n(\delta X) = \delta\, n(X)\text{ for weight norm; } n(X)\text{ for batch and layer norm}",
        (
            equality("Weight norm is homogeneous", WEIGHT_NORM(moved), DELTA * WEIGHT_NORM(LAYER)),
            equality("Batch norm is invariant", BATCH_NORM(moved), BATCH_NORM(LAYER)),
            equality("Layer norm is invariant", LAYER_NORM(moved), LAYER_NORM(LAYER)),
        ),
        (Assumption("positive factor", r"\delta > 0"), SIGMA),
        name="the correction",
    )
    name = "text.all_methods_dataset_rescaling"
    return counterexample(name, WEIGHT_NORM, DATASET_RESCALING, correction=correct)


@claim(
    "text.feature_shifting",
    topic=TOPIC,
    source="Section 7",
    statement="Layer norm is invariant to per training-case feature shifting.",
    assumptions=(
        "the features are the summed inputs of a case, a → a + c𝟏; a shift of its inputs, x → x + c𝟏, needs rows of W "
        "with one sum",
    ),
    context=Context(
        sentence="We showed that layer normalization is invariant to per training-case feature shifting and scaling.",
        before=(
            "We provided a theoretical analysis that compared the invariance properties of layer normalization with "
            "batch normalization and weight normalization."
        ),
        after=(
            "Empirically, we showed that recurrent neural networks benefit the most from the proposed method "
            "especially for long sequences and small mini-batches."
        ),
        readings=(
            Reading(
                "The features are the summed inputs of a case, which layer norm normalizes: a → a + c𝟏.",
                Verdict.HOLDS,
            ),
            Reading(
                "The features are the inputs of the layer, as the “data features” of Section 5.2.2: x → x + c𝟏.",
                Verdict.REFUTED,
            ),
        ),
        verdict=(
            "A shift of the summed inputs leaves the output. The condition is needed because a shift of the inputs "
            "changes it, unless all rows of W have the same sum. The scaling holds (equation.7)."
        ),
    ),
    expected=Verdict.CONDITIONAL,
)
def feature_shifting(problem: Problem):
    """A shift of x is seen; a shift of a is not; rows of one sum make the former the latter."""
    case = problem.case("ln")
    model, params, inputs = case
    shifts = problem.normal("shifts", len(inputs), 1)
    shifted = Transformation(inputs=AffineAction(shift=shifts))
    yield differ(
        "x → x + c𝟏 with a c for every case", outputs(case), outputs(case, shifted), role=Role.FAILS_WITHOUT_CONDITION
    )
    a = inputs @ params.weights.T
    eye = jnp.eye(params.units, dtype=a.dtype)
    of_a, of_shifted = (Case(model, GLMParameters(eye, params.bias, params.gain), value) for value in (a, a + shifts))
    rounding = max(of_a.rounding(), of_shifted.rounding())  # where σ ≪ |c|, the shift itself loses digits
    yield agree("a → a + c𝟏", outputs(of_a), outputs(of_shifted), rounding=rounding)
    row_sums = jnp.sum(params.weights, 1, keepdims=True)
    equal = GLMParameters(params.weights - (row_sums - 1.0) / params.inputs, params.bias, params.gain)
    level = Case(model, equal, inputs)
    yield agree(
        "x → x + c𝟏 where all rows of W have one sum",
        outputs(level),
        outputs(level, shifted),
        rounding=level._replace(inputs=inputs + shifts).rounding(),
    )


@feature_shifting.proof("conditional")
def feature_shifting_proof() -> Proof:
    """Layer norm ignores a shift of the summed inputs, not of the features."""
    c, s = sp.symbols("c s", real=True)
    tilted = lambda i, d: LAYER.W(i, d) + (s - total(lambda e: LAYER.W(i, e), D)) / D
    same_row_sums, moved = Layer(tilted, LAYER.X), Layer(tilted, lambda n, d: LAYER.X(n, d) + c)
    any_moved = Layer(LAYER.W, lambda n, d: LAYER.X(n, d) + c)
    row_sum = lambda i: total(lambda d: LAYER.W(i, d), D)
    biased = lambda j: LAYER.a(n, j) + c
    of_inputs = counterexample("text.feature_shifting of the inputs", LAYER_NORM, SINGLE_CASE_CONSTANT_SHIFT)
    return Proof(
        r"n(a + c\mathbf{1}) = n(a);\quad "
        r"n(x + c\mathbf{1}_D) = n(x) \text{ if } W\mathbf{1}_D \in \mathrm{span}(\mathbf{1}_H)",
        (
            equality("Summed inputs may be shifted", biased(i) - mean(biased, H), LAYER_NORM.numerator(LAYER)),
            equality(
                "A shift of the features moves the centred summed inputs by c PW𝟏",
                LAYER_NORM.numerator(any_moved) - LAYER_NORM.numerator(LAYER),
                c * (row_sum(i) - mean(row_sum, H)),
                r"(a-\mu)'_{ni} - (a-\mu)_{ni}",
            ),
            equality(
                "Every row of V = W + (s − W𝟏)𝟏ᵀ/D sums to s",
                total(lambda d: tilted(i, d), D),
                s,
                r"(V\mathbf{1})_i",
            ),
            equality(
                "With these weights features may be shifted too",
                LAYER_NORM(moved),
                sp.Symbol("n(V, x)"),
                r"n(V, x + c\mathbf{1})",
                {"n(V, x)": LAYER_NORM(same_row_sums)},
            ),
        ),
        (SIGMA, Assumption("features are summed inputs", r"a \mapsto a + c\mathbf{1}", of_inputs)),
    )

"""Table 1, Eqs. 3, 6 and 7, and what Section 5.1 and the conclusion say about invariance."""

import functools
from collections.abc import Iterator
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import sympy as sp
from jax.flatten_util import ravel_pytree
from sympy import Expr, KroneckerDelta, sqrt

from lngeom import methods as normalizers
from lngeom._core.numerics import agreement
from lngeom._core.types import GLMParameters
from lngeom.claims import (
    Problem,
    Role,
    Verdict,
    agree,
    claim,
    differ,
    numpy_reference,
    proves,
    same_integer,
    vanishes,
)
from lngeom.claims.context import Context, Read, Reading
from lngeom.claims.erratum import Consequence, Erratum
from lngeom.claims.evidence import Evidence
from lngeom.claims.paper import TABLE1
from lngeom.claims.problem import NORMALIZERS, TITLES, Case
from lngeom.claims.registry import Claim, register
from lngeom.methods.table import Cell
from lngeom.methods.transformations.actions import AffineAction, Column, Transformation
from lngeom.methods.transformations.columns import (
    DATASET_RECENTERING,
    DATASET_RESCALING,
    SINGLE_CASE_CONSTANT_SHIFT,
    SINGLE_CASE_RESCALING,
    TABLE1 as COLUMNS,
    WEIGHT_MATRIX_RECENTERING,
    WEIGHT_MATRIX_RESCALING,
    WEIGHT_VECTOR_CONSTANT_SHIFT,
)
from lngeom.symbolic.actions import DELTA, SCALE, SHIFT
from lngeom.symbolic.jacobian import LAYER, SIGMA, product_steps, with_product
from lngeom.symbolic.layers import BATCH_NORM, EPSILON, LAYER_NORM, PRE_LAYER_NORM, WEIGHT_NORM, Layer, Method
from lngeom.symbolic.proof import (
    Assumption,
    Counterexample,
    Proof,
    Step,
    at,
    changed,
    confirmed,
    equality,
    fact,
    matrix,
    refutation,
    together,
)
from lngeom.symbolic.sums import D, H, N, e, field, i, mean, n, total
from lngeom.symbolic.table import counterexample, expansion, general_steps, prove, prove_recorded

TOPIC = "invariance"
POSITIVE = ("δ > 0", "ε = 0", "σ > 0")
CELLS = Context(
    sentence="Table 1: Invariance properties under the normalization methods.",
    before="",
    after="Table 1 highlights the following invariance results for three normalization methods.",
    readings=(
        Reading(
            "A cell names a transformation. A re-scaling is by a positive factor, and Eqs. 2 and 3 have no ε.",
            Verdict.HOLDS,
        ),
        Reading(
            "With a factor of any sign, “Invariant” to a re-scaling would be conditional as in Eqs. 6 and 7: a "
            "negative factor changes the sign of the normalized values.",
            Verdict.REFUTED,
        ),
    ),
    verdict=(
        "These are the table's own assumptions, so a cell that is right under them holds. Eqs. 6 and 7 are "
        "conditional because they print the factor δ as a free variable."
    ),
)
DRAWS = 3
REFERENCE_ROWS = 256


def outputs(case: Case, transformation: Transformation | None = None, *, repair_sign: bool = False):
    """Natural parameters, after a transformation if one is given; `repair_sign` also sends g to −g."""
    params, inputs = (case.params, case.inputs) if transformation is None else transformation(case.params, case.inputs)
    if repair_sign:
        params = GLMParameters(params.weights, params.bias, -params.gain)
    return case.model.natural_parameters(params, inputs)


def table_cell(method: str, column: Column, invariant: bool):
    """The check of one cell of Table 1: the library on the whole data set, and the reference on its first rows."""

    def check(problem: Problem) -> Iterator[Evidence]:
        case = problem.case(method, name=f"{method}.{column.name}")
        params, inputs = jax.tree.map(np.asarray, (case.params, case.inputs))
        few = inputs[:REFERENCE_ROWS]
        compare = agree if invariant else differ
        before, reference = outputs(case), numpy_reference.natural_parameters(method, params, few)
        moved_values, reference_values = [], []
        for draw in range(DRAWS):
            key = problem.key(f"{column.name} {draw}")
            large = column.draw(key, params, inputs)(params, inputs)
            moved_values.append(case.model.natural_parameters(large[0], problem.rounded(large[1])))
            moved = column.draw(key, params, few)(params, few)
            reference_values.append(numpy_reference.natural_parameters(method, *moved))
        yield compare(f"{DRAWS} draws, library, all rows", np.stack([before] * DRAWS), np.stack(moved_values))
        what = f"{DRAWS} draws, NumPy reference, {len(few)} rows"
        values = np.stack([reference] * DRAWS), np.stack(reference_values)
        yield agree(what, *values, tol=1e-12) if invariant else differ(what, *values)
        library = case.model.normalizer(params.weights, few)
        yield agree("library and NumPy reference", library, numpy_reference.normalized(method, params.weights, few))

    return check


def _register_table() -> None:
    for method, row in TABLE1.items():
        for column in COLUMNS:
            invariant = row[column.name]
            says = "is invariant to" if invariant else "is not invariant to"
            id = f"table1.{method}.{column.name}"
            register(
                Claim(
                    id,
                    topic=TOPIC,
                    source="Table 1",
                    statement=f"{TITLES[method]} {says} {column.title.lower()}.",
                    formula=column.formula,
                    assumptions=POSITIVE if invariant else (),
                    context=CELLS,
                    expected=Verdict.HOLDS,
                    check=table_cell(method, column, invariant),
                )
            )
            recorded = Cell.INVARIANT if invariant else Cell.CHANGED
            proves(id)(functools.partial(prove_recorded, NORMALIZERS[method], column, recorded))


_register_table()


@claim(
    "equation.3",
    topic=TOPIC,
    source="Eqs. 2, 3; Section 5.1",
    formerly=("text.references_swapped",),
    statement=(
        "Layer norm's μ and σ (Eq. 3) are the mean and standard deviation of one case's summed inputs over the H "
        "units, batch norm's (Eq. 2) those of one unit's over the cases."
    ),
    formula=r"\mu = \tfrac1H\sum_i a_i,\quad \sigma = \sqrt{\tfrac1H\sum_i (a_i-\mu)^2}",
    assumptions=("H ≥ 2", "σ > 0"),
    expected=Verdict.HOLDS,
)
def equation_3(problem: Problem):
    """Normalized values have mean 0 and mean square 1 within each case; H = 2 leaves only signs."""
    model, params, inputs = problem.case("ln")
    n = model.normalized(params, inputs)
    yield vanishes("mean over units of the normalized values", jnp.mean(n, 1), scale=1.0)
    yield agree("their mean square is 1", jnp.mean(jnp.square(n), 1), jnp.ones(len(n), n.dtype))
    few = inputs[:REFERENCE_ROWS]
    by_equation = {k: numpy_reference.natural_parameters(k, params, few) for k in ("ln", "bn")}
    for method, other in (("ln", "bn"), ("bn", "ln")):
        found = problem.case(method).model.natural_parameters(params, few)
        yield agree(f"{TITLES[method]}: library and NumPy reference", found, by_equation[method])
        yield differ(f"{TITLES[method]} is not {TITLES[other].lower()}", found, by_equation[other])
    two = problem.small("ln", shape=(60, 5, 2))
    signs = two.model.normalized(two.params, two.inputs)
    yield agree("for H = 2 every normalized value is −1 or 1", jnp.abs(signs), jnp.ones_like(signs))
    yield resolution(np.asarray(n))


def resolution(values: np.ndarray) -> Evidence:
    """A control of the comparison that all claims rest on.

    An error of one part in 10⁸ (more where the digits of the dtype do not reach so far) is not taken for rounding, and
    not for a witness of a difference.
    """
    size = max(1e-8, 3e4 * float(np.finfo(values.dtype).eps))
    found = agreement(values, values * (1 + size))
    what = f"control: values {size:.0e} apart are called equal or different, so many times"
    return same_integer(what, found.agrees + found.differs, 0)


def standardizes(method: Method, size: sp.Expr) -> tuple[Step, Step]:
    """Over the index whose moments a method uses, n has mean zero and mean square one."""
    entry = (lambda t: method(LAYER, n, t)) if size is H else (lambda t: method(LAYER, t, i))
    return (
        equality("Normalized summed inputs have mean zero", mean(entry, size), 0),
        equality("and mean square one", mean(lambda t: entry(t) ** 2, size), 1),
    )


@proves("equation.3")
def equation_3_proof() -> Proof:
    """Layer norm's μ and σ standardize the units of each case, batch norm's the cases of each unit."""

    def one_unit() -> bool:
        a = sp.Symbol("a", real=True)
        return LAYER_NORM.rows([[a]], [[sp.S.One]], sp.S.Zero) == [[(0, 0)]]

    def two_units() -> bool:
        a, b = sp.symbols("a b", real=True)
        (pairs,) = LAYER_NORM.rows([[a], [b]], [[sp.S.One]], sp.S.Zero)
        return all(sp.expand(numerator**2 - square) == 0 for numerator, square in pairs)

    two_equations = changed(
        "equation.3 by the other equation",
        r"\text{Eqs. 2 and 3 give the same statistics}",
        "The normalized first unit of the first case by Eq. 2 (left) and by Eq. 3 (right).",
        lambda v: BATCH_NORM.exactly(v["W"], v["X"]),
        lambda v: LAYER_NORM.exactly(v["W"], v["X"]),
        {"W": matrix([[1, 0], [0, 1], [1, 1]]), "X": matrix([[1, 0], [0, 1], [3, 2]])},
        names=(r"n\text{ by Eq. 2}", r"n\text{ by Eq. 3}"),
    )
    return Proof(
        "equation.3",
        r"\tfrac1H\sum_i n_i = 0,\quad \tfrac1H\sum_i n_i^2 = 1,\quad n_i = (a_i - \mu)/\sigma",
        (
            *standardizes(LAYER_NORM, H),
            *standardizes(BATCH_NORM, N),
            refutation("Eqs. 2 and 3 are not the same", two_equations),
            equality(
                "σ² is the mean of squares less the square of the mean",
                LAYER_NORM.square(LAYER),
                mean(lambda j: LAYER.a(n, j) ** 2, H) - mean(lambda j: LAYER.a(n, j), H) ** 2,
            ),
            fact("One unit: σ is always zero, n is 0/0", r"H = 1:\ a - \mu = \sigma = 0", one_unit),
            fact("Two units: n is a sign, it keeps no magnitude", r"H = 2:\ n_i^2 = 1", two_units),
        ),
        (SIGMA,),
    )


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


@proves("equation.6", "conditional")
def equation_6_proof() -> Proof:
    """Layer norm ignores a scale and a shift of the weight matrix."""
    moved = Layer(lambda i, d: DELTA * LAYER.W(i, d) + SHIFT(d), LAYER.X)
    negative = Layer(lambda i, d: -DELTA * LAYER.W(i, d) + SHIFT(d), LAYER.X)
    projected = total(lambda d: SHIFT(d) * LAYER.X(n, d), D)
    mu = sp.Symbol(r"\mu_{n}")
    of_mean = {mu.name: mean(lambda j: LAYER.a(n, j), H)}
    changed_size, restored = scaled_epsilon_steps(LAYER_NORM, moved)
    return Proof(
        "equation.6",
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


@proves("equation.7", "conditional")
def equation_7_proof() -> Proof:
    """Layer norm ignores the scale of a training case."""
    moved = Layer(LAYER.W, lambda n, d: DELTA * LAYER.X(n, d))
    return Proof(
        "equation.7",
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


@proves("text.all_methods_dataset_rescaling", "refuted")
def all_methods_dataset_rescaling_proof() -> Counterexample:
    """Weight norm's output scales with the data."""
    moved = Layer(LAYER.W, lambda n, d: DELTA * LAYER.X(n, d))
    correct = Proof(
        "text.all_methods_dataset_rescaling corrected",
        r"n(\delta X) = \delta\, n(X)\text{ for weight norm; } n(X)\text{ for batch and layer norm}",
        (
            equality("Weight norm is homogeneous", WEIGHT_NORM(moved), DELTA * WEIGHT_NORM(LAYER)),
            equality("Batch norm is invariant", BATCH_NORM(moved), BATCH_NORM(LAYER)),
            equality("Layer norm is invariant", LAYER_NORM(moved), LAYER_NORM(LAYER)),
        ),
        (Assumption("positive factor", r"\delta > 0"), SIGMA),
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


@proves("text.feature_shifting", "conditional")
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
        "text.feature_shifting",
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


def _prenorm(weights, inputs, params):
    """Layer norm before the weights: z = g W LN(x) + b."""
    eye = jnp.eye(inputs.shape[1], dtype=inputs.dtype)
    return normalizers.LayerNorm()(eye, inputs) @ weights.T * params.gain[None, :] + params.bias[None, :]


@claim(
    "text.prenorm_loses_weight_invariance",
    topic=TOPIC,
    source="Section 5.1, after Eq. 6",
    statement=(
        "If only the input is normalized, before the weights, the model is not invariant to re-scaling and "
        "re-centering of the weights."
    ),
    assumptions=("D ≥ 2",),
    expected=Verdict.HOLDS,
)
def prenorm_loses_weight_invariance(problem: Problem):
    """W LN(x) changes with δW and with W + 𝟏γᵀ."""
    _, params, inputs = problem.small("ln")
    z = _prenorm(params.weights, inputs, params)
    shift = problem.normal("shift", 1, params.inputs)
    yield differ("W → 2W", z, _prenorm(2.0 * params.weights, inputs, params))
    yield differ("W → W + 𝟏γᵀ", z, _prenorm(params.weights + shift, inputs, params))


@proves("text.prenorm_loses_weight_invariance")
def prenorm_loses_weight_invariance_proof() -> Proof:
    """Normalizing only the input leaves the output linear in the weights."""
    scaled = Layer(lambda i, d: DELTA * LAYER.W(i, d), LAYER.X)
    shifted = Layer(lambda i, d: LAYER.W(i, d) + SHIFT(d), LAYER.X)
    only_shift = Layer(lambda i, d: SHIFT(d), LAYER.X)
    z, z_of_shift = sp.Symbol("z(W)"), sp.Symbol(r"z(\mathbf{1}\gamma^\top)")
    cells = [prove("PreLayerNorm", name) for name in ("weight_matrix_rescaling", "weight_matrix_recentering")]
    return Proof(
        "text.prenorm_loses_weight_invariance",
        r"z = W\,\mathrm{LN}(x):\ z(\delta W + \mathbf{1}\gamma^\top) = "
        r"\delta z + \gamma^\top\mathrm{LN}(x)\,\mathbf{1} \neq z",
        (
            equality(
                "A scale passes through",
                PRE_LAYER_NORM(scaled),
                DELTA * z,
                r"z(\delta W)",
                {z.name: PRE_LAYER_NORM(LAYER)},
            ),
            equality(
                "and so does a shift",
                PRE_LAYER_NORM(shifted),
                z + z_of_shift,
                r"z(W + \mathbf{1}\gamma^\top)",
                {z.name: PRE_LAYER_NORM(LAYER), z_of_shift.name: PRE_LAYER_NORM(only_shift)},
            ),
            *(
                refutation("An exact instance", cell, name)
                for cell, name in zip(cells, (r"z(\delta W)", r"z(W + \mathbf{1}\gamma^\top)"), strict=True)
                if isinstance(cell, Counterexample)
            ),
        ),
        (SIGMA,),
    )


@claim(
    "text.prenorm_gains_row_shift",
    topic=TOPIC,
    source="Section 5.1, after Eq. 6 (not in the paper)",
    statement=(
        "Normalizing the input instead gains other invariances: x → δx + c𝟏 for every case, and w_i → w_i + c_i 𝟏."
    ),
    assumptions=("δ > 0", "ε = 0", "unit gain inside the norm"),
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def prenorm_gains_row_shift(problem: Problem):
    """W LN(x) is blind to the mean and size of x, and to the row sums of W."""
    _, params, inputs = problem.small("ln")
    z = _prenorm(params.weights, inputs, params)
    c = problem.normal("c", len(inputs), 1)
    yield agree("x → δx + c𝟏", z, _prenorm(params.weights, 2.0 * inputs + c, params))
    c = problem.normal("c", params.units, 1)
    yield agree("w_i → w_i + c_i 1", z, _prenorm(params.weights + c, inputs, params))


@proves("text.prenorm_gains_row_shift")
def prenorm_gains_row_shift_proof() -> Proof:
    """Normalizing the input makes the sum of each row of weights irrelevant."""
    normalized = lambda d: (LAYER.X(n, d) - mean(lambda e: LAYER.X(n, e), D)) / sqrt(PRE_LAYER_NORM.square(LAYER))
    return Proof(
        "text.prenorm_gains_row_shift",
        r"z = W\,\mathrm{LN}(x):\ w_i \mapsto w_i + "
        r"c_i\mathbf{1}_D \text{ and } x \mapsto \delta x + c\mathbf{1} \text{ leave } z",
        (
            equality("Normalized inputs sum to zero", total(normalized, D), 0),
            *general_steps(PRE_LAYER_NORM, WEIGHT_VECTOR_CONSTANT_SHIFT, sp.S.One, EPSILON),
            expansion(PRE_LAYER_NORM, WEIGHT_VECTOR_CONSTANT_SHIFT),
            *general_steps(PRE_LAYER_NORM, SINGLE_CASE_CONSTANT_SHIFT, sp.S.One, EPSILON),
            *general_steps(PRE_LAYER_NORM, DATASET_RESCALING, DELTA, sp.S.Zero),
        ),
        (SIGMA,),
    )


@claim(
    "text.bias_before_norm",
    topic=TOPIC,
    source="Section 5.1 (unstated)",
    statement=(
        "Table 1 and Eq. 7 hold of layer norm of summed inputs a = Wx; with a bias before the norm, a = Wx + c, they "
        "need not."
    ),
    assumptions=("no bias before the norm",),
    read=Read.OWN,
    expected=Verdict.CONDITIONAL,
)
def bias_before_norm(problem: Problem):
    """A bias inside the norm destroys the scalings of W and x and keeps the shift of W."""
    _, params, inputs = problem.small("ln")
    layer_norm = NORMALIZERS["ln"]
    eye = jnp.eye(params.units, dtype=inputs.dtype)
    c = problem.normal("c", 1, params.units)
    shift = problem.normal("shift", 1, params.inputs)

    def n(weights, inputs, bias):
        return layer_norm(eye, inputs @ weights.T + bias)

    for what, bias, compare, role in (
        ("without the bias", 0.0 * c, agree, Role.SUPPORTS),
        ("with a bias", c, differ, Role.FAILS_WITHOUT_CONDITION),
    ):
        before = n(params.weights, inputs, bias)
        yield compare(f"{what}, W → 2W", before, n(2.0 * params.weights, inputs, bias), role=role)
        yield compare(f"{what}, x → 2x", before, n(params.weights, 2.0 * inputs, bias), role=role)
        yield agree(f"{what}, W → W + 𝟏γᵀ", before, n(params.weights + shift, inputs, bias))


@proves("text.bias_before_norm", "conditional")
def bias_before_norm_proof() -> Proof:
    """With a bias before the norm, scaling invariance needs the bias to be scaled too."""
    c = field("c")

    def normalized(scale_weights, scale_bias, shift):
        a = lambda j: scale_weights * LAYER.a(n, j) + scale_bias * c(j) + shift
        return (a(i) - mean(a, H)) / sqrt(mean(lambda j: (a(j) - mean(a, H)) ** 2, H))

    projected = total(lambda d: SHIFT(d) * LAYER.X(n, d), D)

    def exactly(v, scale):
        augmented = v["W"].row_join(v["c"]), sp.ImmutableMatrix([[*v["X"], 1]])
        return LAYER_NORM.exactly(augmented[0] * sp.diag(scale, scale, 1), augmented[1])

    dropped = changed(
        "text.bias_before_norm with a fixed bias",
        r"\mathrm{LN}(\delta Wx + c) = \mathrm{LN}(Wx + c)",
        "n of the first unit at W (left) and at δW (right), the bias c fixed.",
        lambda v: exactly(v, 1),
        lambda v: exactly(v, v[r"\delta"]),
        {"W": matrix([[1, 0], [0, 0], [0, 0]]), "X": matrix([[1, 0]]), "c": matrix([[0], [1], [0]]), r"\delta": 2},
        names=(r"\mathrm{LN}(Wx + c)", r"\mathrm{LN}(\delta Wx + c)"),
    )
    return Proof(
        "text.bias_before_norm",
        r"a = Wx + c:\quad \mathrm{LN}(\delta Wx + \delta c + \gamma^\top x\,\mathbf{1}) = \mathrm{LN}(Wx + c)",
        (
            equality("The shift of the weights stays an invariance", normalized(1, 1, projected), normalized(1, 1, 0)),
            equality("The scale is one if it scales c too", normalized(DELTA, DELTA, 0), normalized(1, 1, 0)),
        ),
        (Assumption("the bias before the norm is zero, or scaled too", r"c \mapsto \delta c", dropped), SIGMA),
    )


@claim(
    "table1.exception.ln_dataset_recentering",
    topic=TOPIC,
    source="Table 1 (exception)",
    statement="Layer norm is invariant to x → x + γ exactly for those γ with PWγ = 0, P = I − 𝟏𝟏ᵀ/H.",
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def exception_ln(problem: Problem):
    """A γ in the kernel of PW is not seen; the rest of it is."""
    case = problem.small("ln", shape=(60, 8, 4))
    W = np.asarray(case.params.weights)
    centred = W - np.mean(W, 0)
    gamma = np.asarray(problem.normal("gamma", 1, 8))
    seen = gamma @ centred.T @ np.linalg.pinv(centred).T
    before = outputs(case)
    yield agree("γ with PWγ = 0", before, outputs(case, Transformation(inputs=AffineAction(shift=gamma - seen))))
    yield differ("γ with PWγ ≠ 0", before, outputs(case, Transformation(inputs=AffineAction(shift=seen))))


def half_way(sign: int) -> Layer:
    """The layer at inputs ±γ/2."""
    return Layer(LAYER.W, lambda s, d: sign * SHIFT(d) / 2)


@proves("table1.exception.ln_dataset_recentering")
def exception_ln_proof() -> Proof:
    """Layer norm ignores a shift γ of all inputs if PWγ = 0; otherwise −γ/2 and γ/2 have opposite outputs."""
    s = sp.Symbol("s", real=True)
    moved = Layer(LAYER.W, lambda s, d: LAYER.X(s, d) + SHIFT(d))
    seen = lambda l: total(lambda d: (LAYER.W(l, d) - mean(lambda j: LAYER.W(j, d), H)) * SHIFT(d), D)
    unseen = with_product(LAYER.W, SHIFT, s)
    seen_shift = counterexample("a shift that layer norm sees", LAYER_NORM, DATASET_RECENTERING)

    def one_input(v) -> tuple[Expr, Expr]:
        change = LAYER_NORM.exactly(v["W"], v["x"] + v[r"\gamma"]) - LAYER_NORM.exactly(v["W"], v["x"])
        product = v["W"] * v[r"\gamma"].T
        return product[0] - sum(product) / sp.Integer(len(product)), sum((abs(c) for c in change), sp.S.Zero)

    one = Counterexample(
        "table1.exception.ln_dataset_recentering at one input",
        r"n(x + \gamma) = n(x) \Rightarrow PW\gamma = 0",
        {"W": matrix([[1, 0], [0, 1], [0, 0]]), "x": matrix([[1, 0]]), r"\gamma": matrix([[1, 0]])},
        one_input,
        "First entry of PWγ (left), and the change of the outputs from x to x + γ (right).",
    )
    return Proof(
        "table1.exception.ln_dataset_recentering",
        r"\mathrm{LN}(W(x + \gamma)) = \mathrm{LN}(Wx)\ \forall x \iff PW\gamma = 0",
        (
            equality(
                "The centred summed inputs move by PWγ",
                LAYER_NORM.numerator(moved) - LAYER_NORM.numerator(LAYER),
                seen(i),
                r"(a-\mu)' - (a-\mu)",
            ),
            *product_steps(LAYER.W, SHIFT, i, s, "These weights have Wγ = s1, which is PWγ = 0"),
            equality(
                "With these weights r' = W' the output stays, for any ε",
                LAYER_NORM(Layer(unseen, moved.X), eps=EPSILON),
                sp.Symbol("n(W', x)"),
                r"n(W', x + \gamma)",
                {"n(W', x)": LAYER_NORM(Layer(unseen, LAYER.X), eps=EPSILON)},
            ),
            equality(
                "Conversely, from x = −γ/2 to x + γ = γ/2 the output changes its sign",
                LAYER_NORM(half_way(1), eps=POSITIVE_EPSILON),
                -LAYER_NORM(half_way(-1), eps=POSITIVE_EPSILON),
            ),
            equality(
                "where σ² is the mean square of PWγ/2, positive unless PWγ = 0",
                LAYER_NORM.square(half_way(1)),
                mean(lambda l: seen(l) ** 2, H) / 4,
                r"\sigma^2",
            ),
            equality(
                "and n is not zero: its mean square is one",
                mean(lambda l: field("n")(l) ** 2, H),
                1,
                short={"n": lambda l: LAYER_NORM(half_way(1), n, l)},
            ),
            refutation("An exact instance of a shift that is seen", seen_shift),
        ),
        (SIGMA, Assumption("for all inputs, not those of one data set alone", r"\forall x", one)),
    )


@claim(
    "table1.exception.bn_weight_recentering",
    topic=TOPIC,
    source="Table 1 (exception)",
    statement="Batch norm is invariant to W → W + 𝟏γᵀ where γᵀx is constant on the data (as for a constant pixel).",
    read=Read.OWN,
    expected=Verdict.HOLDS,
)
def exception_bn(problem: Problem):
    """Weights of a constant input are not seen by batch norm; those of another input are."""
    case = problem.small("bn")
    constant = Case(case.model, case.params, case.inputs.at[:, 0].set(2.0))
    before = outputs(constant)
    for compare, position in ((agree, 0), (differ, 1)):
        gamma = jnp.zeros((1, case.params.inputs), case.inputs.dtype).at[0, position].set(1.5)
        what = "of a constant" if compare is agree else "of a varying"
        yield compare(
            f"weights {what} input shifted",
            before,
            outputs(constant, Transformation(weights=AffineAction(shift=gamma))),
        )


@proves("table1.exception.bn_weight_recentering")
def exception_bn_proof() -> Proof:
    """Batch norm ignores a shift 𝟏γᵀ of the weights if γᵀx is the same for all data."""
    s = sp.Symbol("s", real=True)
    shifted = lambda l, d: LAYER.W(l, d) + SHIFT(d)
    constant = with_product(LAYER.X, SHIFT, s)
    seen = lambda m: total(lambda d: SHIFT(d) * LAYER.X(m, d), D)
    pixel = lambda m, d: (1 - KroneckerDelta(d, e)) * LAYER.X(m, d) + KroneckerDelta(d, e) * s
    seen_shift = counterexample("a shift that batch norm sees", BATCH_NORM, WEIGHT_MATRIX_RECENTERING)
    turned = lambda l, d: LAYER.W(l, d) + KroneckerDelta(d, e) * SHIFT(d)
    return Proof(
        "table1.exception.bn_weight_recentering",
        r"\gamma^\top x_n = s\ \forall n \Rightarrow \mathrm{BN}(W + \mathbf{1}\gamma^\top, X) = \mathrm{BN}(W, X)",
        (
            equality(
                "The centred summed inputs move by γᵀ(x − E x)",
                BATCH_NORM.numerator(Layer(shifted, LAYER.X)) - BATCH_NORM.numerator(LAYER),
                seen(n) - mean(seen, N),
                r"(a-\mu)' - (a-\mu)",
            ),
            *product_steps(LAYER.X, SHIFT, n, s, "These data have γᵀx = s"),
            equality(
                "On these data r' = x' the output stays, for any ε",
                BATCH_NORM(Layer(shifted, constant), eps=EPSILON),
                sp.Symbol("n(W, x')"),
                r"n(W + \mathbf{1}\gamma^\top, x')",
                {"n(W, x')": BATCH_NORM(Layer(LAYER.W, constant), eps=EPSILON)},
            ),
            equality(
                "A constant pixel e, where x_e = s, is the case of γ that is zero elsewhere",
                BATCH_NORM(Layer(turned, pixel), eps=EPSILON),
                sp.Symbol("n(W, x)"),
                r"n(W + \gamma_e\mathbf{1}e^\top, x)",
                {"n(W, x)": BATCH_NORM(Layer(LAYER.W, pixel), eps=EPSILON)},
            ),
            refutation("On other data it does not", seen_shift),
        ),
        (SIGMA,),
    )

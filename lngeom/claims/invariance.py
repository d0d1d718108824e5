"""Table 1, Eqs. 3, 6 and 7, and what Section 5.1 and the conclusion say about invariance."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from lngeom import normalizers
from lngeom._types import GLMParameters
from lngeom.claims import _reference
from lngeom.claims._evidence import Evidence, Role, Verdict, agree, differ, vanishes
from lngeom.claims._problem import NORMALIZERS, TITLES, Case, Problem
from lngeom.claims._registry import Claim, claim, register
from lngeom.paper import TABLE1
from lngeom.transformations import TABLE1 as COLUMNS, AffineAction, Column, Transformation

TOPIC = "invariance"
POSITIVE = ("δ > 0", "ε = 0", "σ > 0")
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
        params, inputs = case.params, case.inputs
        few = inputs[:REFERENCE_ROWS]
        compare = agree if invariant else differ
        before, reference = outputs(case), _reference.natural_parameters(method, params, few)
        moved_values, reference_values = [], []
        for draw in range(DRAWS):
            key = problem.key(f"{column.name} {draw}")
            large = column.draw(key, params, inputs)(params, inputs)
            moved_values.append(case.model.natural_parameters(large[0], problem.rounded(large[1])))
            moved = column.draw(key, params, few)(params, few)
            reference_values.append(_reference.natural_parameters(method, *moved))
        yield compare(f"{DRAWS} draws, library, all rows", jnp.stack([before] * DRAWS), jnp.stack(moved_values))
        what = f"{DRAWS} draws, NumPy reference, {len(few)} rows"
        values = np.stack([reference] * DRAWS), np.stack(reference_values)
        yield agree(what, *values, tol=1e-12) if invariant else differ(what, *values)

    return check


def _register_table() -> None:
    for method, row in TABLE1.items():
        for column in COLUMNS:
            invariant = row[column.name]
            says = "is invariant to" if invariant else "is not invariant to"
            register(
                Claim(
                    f"table1.{method}.{column.name}",
                    topic=TOPIC,
                    source="Table 1",
                    statement=f"{TITLES[method]} {says} {column.title.lower()}.",
                    formula=column.formula,
                    assumptions=POSITIVE if invariant else (),
                    expected=Verdict.HOLDS,
                    check=table_cell(method, column, invariant),
                )
            )


_register_table()


@claim(
    "equation.3",
    topic=TOPIC,
    source="Eq. 3",
    statement="Layer norm's μ and σ are the mean and standard deviation of one case's summed inputs over the H units.",
    formula=r"\mu = \tfrac1H\sum_i a_i,\quad \sigma = \sqrt{\tfrac1H\sum_i (a_i-\mu)^2}",
    assumptions=("H ≥ 2", "σ > 0"),
    expected=Verdict.HOLDS,
)
def equation_3(problem: Problem):
    """Normalized values have mean 0 and mean square 1 within each case; H = 2 leaves only signs."""
    model, params, inputs = case = problem.case("ln")
    n = model.normalized(params, inputs)
    yield vanishes("mean over units of the normalized values", jnp.mean(n, 1), scale=1.0)
    yield agree("their mean square is 1", jnp.mean(jnp.square(n), 1), jnp.ones(len(n), n.dtype))
    few = inputs[:REFERENCE_ROWS]
    yield agree(
        "library and NumPy reference",
        outputs(case)[: len(few)],
        _reference.natural_parameters("ln", params, few),
    )
    two = problem.small("ln", shape=(60, 5, 2))
    n = two.model.normalized(two.params, two.inputs)
    yield agree("for H = 2 every normalized value is −1 or 1", jnp.abs(n), jnp.ones_like(n))


@claim(
    "text.references_swapped",
    topic=TOPIC,
    source="Section 5.1, after Eq. 5",
    statement="For layer norm and batch norm, μ and σ are computed according to Eq. 2 and Eq. 3 (in this order).",
    expected=Verdict.REFUTED,
    correction="The references are swapped: layer norm's statistics are Eq. 3, batch norm's are Eq. 2.",
)
def references_swapped(problem: Problem):
    """Statistics of the equation named differ from the method's; swapping the names repairs it."""
    params, inputs = problem.case("ln").params, problem.inputs[:REFERENCE_ROWS]
    by_library = {k: problem.case(k).model.natural_parameters(params, inputs) for k in ("ln", "bn")}
    equation_2, equation_3 = (_reference.natural_parameters(k, params, inputs) for k in ("bn", "ln"))
    yield differ("layer norm against statistics by Eq. 2", by_library["ln"], equation_2, role=Role.REFUTES)
    yield differ("batch norm against statistics by Eq. 3", by_library["bn"], equation_3, role=Role.REFUTES)
    yield agree("layer norm against statistics by Eq. 3", by_library["ln"], equation_3, role=Role.CORRECTS)
    yield agree("batch norm against statistics by Eq. 2", by_library["bn"], equation_2, role=Role.CORRECTS)


def _with_eps(case: Case, eps: float) -> Case:
    model = type(case.model)(type(case.model.normalizer)(eps=eps), case.model.family)
    return Case(model, case.params, case.inputs)


def _conditions(case: Case, scaled: Transformation, flipped: Transformation, ratio_of) -> Iterator[Evidence]:
    """What Eqs. 6 and 7 need: δ > 0 (else g → −g repairs it) and ε = 0 (else an exact ratio appears)."""
    before = outputs(case)
    yield differ("δ < 0 changes the output", before, outputs(case, flipped), role=Role.FAILS_WITHOUT_CONDITION)
    yield agree("δ < 0 together with g → −g does not", before, outputs(case, flipped, repair_sign=True))
    damped = _with_eps(case, 0.1)
    n, moved = (
        damped.model.normalized(*point) for point in ((case.params, case.inputs), scaled(case.params, case.inputs))
    )
    yield differ("ε > 0 changes the output", n, moved, role=Role.FAILS_WITHOUT_CONDITION)
    variance = jnp.square(damped.statistics().scale) - 0.1
    yield agree("with ε > 0, n′/n = √((σ² + ε)/(σ² + ε/δ²))", n * ratio_of(variance), moved)


@claim(
    "equation.6",
    topic=TOPIC,
    source="Eq. 6",
    statement="Layer norm computes the same output from W and from W′ = δW + 1γᵀ.",
    formula=r"\mathbf h' = f\left(\tfrac{\mathbf g}{\sigma'}(W'\mathbf x-\mu')+\mathbf b\right) = \mathbf h",
    assumptions=POSITIVE,
    expected=Verdict.CONDITIONAL,
)
def equation_6(problem: Problem):
    """Scale and shift together leave the output; without δ > 0 or ε = 0 they do not."""
    case = problem.case("ln")
    shift = jax.random.normal(problem.key("shift"), (1, case.params.inputs), case.inputs.dtype)

    def moved(delta: float) -> Transformation:
        return Transformation(weights=AffineAction(delta, shift))

    yield agree("δ = 3 and a random γ", outputs(case), outputs(case, moved(3.0)))
    few = case.inputs[:REFERENCE_ROWS]
    points = (case.params, few), moved(3.0)(case.params, few)
    yield agree(
        "the same by the NumPy reference",
        *(_reference.natural_parameters("ln", *p) for p in points),
        tol=1e-12,
    )
    yield from _conditions(case, moved(3.0), moved(-3.0), lambda v: jnp.sqrt((v + 0.1) / (v + 0.1 / 9.0)))
    damped = _with_eps(case, 0.1)
    shifted = Transformation(weights=AffineAction(1.0, shift))
    yield agree("the shift 1γᵀ alone is exact for any ε", outputs(damped), outputs(damped, shifted))
    restored = outputs(_with_eps(case, 0.9), moved(3.0))
    yield agree("ε → δ²ε restores the output", outputs(damped), restored)


@claim(
    "equation.7",
    topic=TOPIC,
    source="Eq. 7",
    statement="Layer norm's output does not change when a single case x is re-scaled to δx.",
    formula=r"h_i' = f\left(\tfrac{g_i}{\delta\sigma}(\delta w_i^\top\mathbf x-\delta\mu)+b_i\right) = h_i",
    assumptions=POSITIVE,
    expected=Verdict.CONDITIONAL,
)
def equation_7(problem: Problem):
    """Every case gets a scale of its own; without δ > 0 or ε = 0 the output changes."""
    case = problem.case("ln")
    scales = jax.random.uniform(problem.key("scales"), (len(case.inputs), 1), case.inputs.dtype, 0.5, 4.0)
    own = Transformation(inputs=AffineAction(scales))
    yield agree("a random δ for every case", outputs(case), outputs(case, own))
    few = case.inputs[:REFERENCE_ROWS]
    yield agree(
        "the same by the NumPy reference",
        _reference.natural_parameters("ln", case.params, few),
        _reference.natural_parameters("ln", case.params, few * scales[: len(few)]),
        tol=1e-12,
    )
    flipped = Transformation(inputs=AffineAction(-scales))
    yield from _conditions(case, own, flipped, lambda v: jnp.sqrt((v + 0.1) / (v + 0.1 / jnp.square(scales))))


@claim(
    "text.all_methods_dataset_rescaling",
    topic=TOPIC,
    source="Section 5.1, data re-scaling",
    statement="All the normalization methods are invariant to re-scaling the dataset.",
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
        "weight norm: z − b is multiplied by δ",
        2.5 * (z - bias),
        outputs(case, scaled) - bias,
        role=Role.CORRECTS,
    )
    for method in ("bn", "ln"):
        case = problem.case(method)
        yield agree(f"{TITLES[method]}, X → 2.5 X", outputs(case), outputs(case, scaled), role=Role.CORRECTS)


@claim(
    "text.feature_shifting",
    topic=TOPIC,
    source="Section 7",
    statement="Layer norm is invariant to per training-case feature shifting.",
    expected=Verdict.REFUTED,
    correction=(
        "It is true of the summed inputs, a → a + c1. It is not true of the input, x → x + c1, unless W1 is a multiple "
        "of 1 (all rows of W have the same sum)."
    ),
)
def feature_shifting(problem: Problem):
    """A shift of x is seen; a shift of a is not; rows of one sum make the former the latter."""
    case = problem.case("ln")
    model, params, inputs = case
    shifts = jax.random.normal(problem.key("shifts"), (len(inputs), 1), inputs.dtype)
    shifted = Transformation(inputs=AffineAction(shift=shifts))
    yield differ("x → x + c1 with a c for every case", outputs(case), outputs(case, shifted), role=Role.REFUTES)
    a = inputs @ params.weights.T
    eye = jnp.eye(params.units, dtype=a.dtype)
    of_a, of_shifted = (Case(model, GLMParameters(eye, params.bias, params.gain), value) for value in (a, a + shifts))
    rounding = max(of_a.rounding(), of_shifted.rounding())  # where σ ≪ |c|, the shift itself loses digits
    yield agree("a → a + c1", outputs(of_a), outputs(of_shifted), rounding=rounding, role=Role.CORRECTS)
    row_sums = jnp.sum(params.weights, 1, keepdims=True)
    equal = GLMParameters(params.weights - (row_sums - 1.0) / params.inputs, params.bias, params.gain)
    level = Case(model, equal, inputs)
    yield agree(
        "x → x + c1 where all rows of W have one sum",
        outputs(level),
        outputs(level, shifted),
        rounding=level._replace(inputs=inputs + shifts).rounding(),
        role=Role.CORRECTS,
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
    assumptions=("D ≥ 3",),
    expected=Verdict.HOLDS,
)
def prenorm_loses_weight_invariance(problem: Problem):
    """W LN(x) changes with δW and with W + 1γᵀ."""
    _, params, inputs = problem.small("ln")
    z = _prenorm(params.weights, inputs, params)
    shift = jax.random.normal(problem.key("shift"), (1, params.inputs), inputs.dtype)
    yield differ("W → 2W", z, _prenorm(2.0 * params.weights, inputs, params))
    yield differ("W → W + 1γᵀ", z, _prenorm(params.weights + shift, inputs, params))


@claim(
    "text.prenorm_gains_row_shift",
    topic=TOPIC,
    source="Section 5.1, after Eq. 6 (not in the paper)",
    statement=(
        "Normalizing the input instead gains other invariances: x → δx + c1 for every case, and w_i → w_i + c_i 1."
    ),
    assumptions=("δ > 0", "ε = 0", "unit gain inside the norm"),
    expected=Verdict.HOLDS,
)
def prenorm_gains_row_shift(problem: Problem):
    """W LN(x) is blind to the mean and size of x, and to the row sums of W."""
    _, params, inputs = problem.small("ln")
    z = _prenorm(params.weights, inputs, params)
    c = jax.random.normal(problem.key("c"), (len(inputs), 1), inputs.dtype)
    yield agree("x → δx + c1", z, _prenorm(params.weights, 2.0 * inputs + c, params))
    c = jax.random.normal(problem.key("c"), (params.units, 1), inputs.dtype)
    yield agree("w_i → w_i + c_i 1", z, _prenorm(params.weights + c, inputs, params))


@claim(
    "text.bias_before_norm",
    topic=TOPIC,
    source="Section 5.1 (unstated)",
    statement=(
        "Table 1 and Eq. 7 hold of layer norm of summed inputs a = Wx; with a bias before the norm, a = Wx + c, "
        "they need not."
    ),
    assumptions=("no bias before the norm",),
    expected=Verdict.CONDITIONAL,
)
def bias_before_norm(problem: Problem):
    """A bias inside the norm destroys the scalings of W and x and keeps the shift of W."""
    _, params, inputs = problem.small("ln")
    layer_norm = NORMALIZERS["ln"]
    eye = jnp.eye(params.units, dtype=inputs.dtype)
    c = jax.random.normal(problem.key("c"), (1, params.units), inputs.dtype)
    shift = jax.random.normal(problem.key("shift"), (1, params.inputs), inputs.dtype)

    def n(weights, inputs, bias):
        return layer_norm(eye, inputs @ weights.T + bias)

    for what, bias, compare, role in (
        ("without the bias", 0.0 * c, agree, Role.SUPPORTS),
        ("with a bias", c, differ, Role.FAILS_WITHOUT_CONDITION),
    ):
        before = n(params.weights, inputs, bias)
        yield compare(f"{what}, W → 2W", before, n(2.0 * params.weights, inputs, bias), role=role)
        yield compare(f"{what}, x → 2x", before, n(params.weights, 2.0 * inputs, bias), role=role)
        yield agree(f"{what}, W → W + 1γᵀ", before, n(params.weights + shift, inputs, bias))


@claim(
    "table1.exception.ln_dataset_recentering",
    topic=TOPIC,
    source="Table 1 (exception)",
    statement="Layer norm is invariant to x → x + γ exactly for those γ with PWγ = 0, P = I − 11ᵀ/H.",
    expected=Verdict.HOLDS,
)
def exception_ln(problem: Problem):
    """A γ in the kernel of PW is not seen; the rest of it is."""
    case = problem.small("ln", shape=(60, 8, 4))
    centred = case.params.weights - jnp.mean(case.params.weights, 0, keepdims=True)
    gamma = jax.random.normal(problem.key("gamma"), (1, 8), case.inputs.dtype)
    seen = (jnp.linalg.pinv(centred) @ centred @ gamma.T).T
    before = outputs(case)
    yield agree("γ with PWγ = 0", before, outputs(case, Transformation(inputs=AffineAction(shift=gamma - seen))))
    yield differ("γ with PWγ ≠ 0", before, outputs(case, Transformation(inputs=AffineAction(shift=seen))))


@claim(
    "table1.exception.bn_weight_recentering",
    topic=TOPIC,
    source="Table 1 (exception)",
    statement="Batch norm is invariant to W → W + 1γᵀ where γᵀx is constant on the data (as for a constant pixel).",
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

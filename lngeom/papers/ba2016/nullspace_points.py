"""Null spaces at particular points: stored statistics, zero gains, weights of rank one, deficient data."""

import random

import equinox as eqx
import numpy as np
import sympy as sp
from sympy import Expr, KroneckerDelta, sqrt

from lngeom import families, methods as normalizers
from lngeom._core.numerics import decide_rank
from lngeom.claims import Problem, Role, Verdict, agree, claim, differ, same_integer, vanishes
from lngeom.claims.context import Read
from lngeom.claims.problem import TITLES, Case
from lngeom.information import reference
from lngeom.information.glm import NormalizedGLM
from lngeom.information.nullspace_theorem import Cell
from lngeom.information.predicted import predicted_nullspace
from lngeom.papers.ba2016.nullspace import (
    ALL_GAINS,
    DIRECTIONS,
    INDEPENDENT,
    LN,
    OPEN_SET,
    RMS,
    TOPIC,
    UNITS,
    compiled_scale,
    evidence,
    gain_absorbs,
    measured,
)
from lngeom.papers.ba2016.nullspace_bound import (
    BIAS,
    GENERIC,
    SPAN,
    TILT,
    TWO_DIRECTIONS,
    null_directions,
    proportional,
)
from lngeom.symbolic.actions import SHIFT
from lngeom.symbolic.jacobian import (
    GAIN,
    LAYER,
    along,
    null_step,
    product_steps,
    rank_step,
    with_product,
)
from lngeom.symbolic.layers import (
    BATCH_NORM,
    BATCH_NORM_EVALUATION,
    EPSILON,
    IDENTITY,
    LAYER_NORM,
    RMS_NORM,
    STORED_MEAN,
    WEIGHT_NORM,
    Layer,
    Method,
)
from lngeom.symbolic.modular import jacobian_rows, random_layer, rank
from lngeom.symbolic.proof import (
    Assumption,
    Counterexample,
    Proof,
    Step,
    cited,
    confirmed,
    equality,
    fact,
    matrix,
)
from lngeom.symbolic.sums import D, Field, H, derivative, field, i, k, mean, n, total


@claim(
    "nullspace.bn_evaluation",
    topic=TOPIC,
    read=Read.OWN,
    source="Section 5.2 (not in the paper)",
    statement=(
        "Batch norm with stored statistics has a null space of dimension H(D − r + 1), r the rank of Cov x, as in "
        "training, but another: w_i against g_i and b_i."
    ),
    assumptions=(INDEPENDENT, ALL_GAINS),
    expected=Verdict.HOLDS,
)
def bn_evaluation(problem: Problem):
    """Dimension H in both modes, but in different directions."""
    case = problem.small("bn")
    stored = normalizers.BatchNorm().evaluation(case.params.weights, case.inputs)
    evaluation = Case(NormalizedGLM(stored, case.model.family), case.params, case.inputs)
    yield from evidence("stored statistics", evaluation, UNITS.dimension(case.params.units, case.params.inputs))
    basis = predicted_nullspace(*case).basis
    damped = normalizers.BatchNorm(eps=0.1)
    both = (n(case.params.weights, case.inputs) for n in (damped.evaluation(case.params.weights, case.inputs), damped))
    yield agree("ε > 0: on the data whose statistics are stored both modes have the same outputs", *both)
    moved = np.linalg.norm(np.asarray(reference.factor(*evaluation)) @ basis)
    yield agree("training's null directions do move the evaluation output", np.array([moved > 1e-2]), np.array([True]))


@bn_evaluation.proof()
def bn_evaluation_proof() -> Proof:
    """With stored statistics, gain, bias and weights are redundant."""
    return gain_absorbs("nullspace.bn_evaluation", BATCH_NORM_EVALUATION, STORED_MEAN(i))


@claim(
    "nullspace.completeness",
    topic=TOPIC,
    read=Read.OWN,
    source="Eq. 6 (not in the paper)",
    statement=(
        "Eq. 6 lists all continuous weight symmetries of layer norm: the weights' part of the null space has the "
        "dimension D + 1 of the orbit of W under W → δW + 𝟏γᵀ."
    ),
    assumptions=("rank PW ≥ 2", OPEN_SET, ALL_GAINS, "ε = 0"),
    expected=Verdict.CONDITIONAL,
)
def completeness(problem: Problem):
    """The kernel of ∂z/∂W alone, against the tangent space of the orbit; larger for W of rank one or deficient data."""
    case = problem.small("ln")
    kernel, orbit = _weights_kernel(case), _orbit_tangent(case)
    orbit_dimension = int(np.linalg.matrix_rank(orbit))
    yield same_integer("kernel of ∂z/∂W and tangent of the orbit", kernel.shape[1], orbit_dimension)
    yield same_integer("dimension of the orbit and D + 1", orbit_dimension, case.params.inputs + 1)
    outside = orbit - kernel @ (kernel.T @ orbit)
    yield vanishes("the orbit's tangent outside the kernel", outside, scale=float(np.abs(orbit).max()))
    weights = case.params.weights
    flat = eqx.tree_at(lambda p: p.weights, case.params, weights[:, :1] * weights[:1])
    case = Case(case.model, flat, case.inputs)
    counts = _weights_kernel(case).shape[1], int(np.linalg.matrix_rank(_orbit_tangent(case)))
    yield differ("rank PW = 1: kernel and orbit", *np.array(counts, float), role=Role.FAILS_WITHOUT_CONDITION)
    unseen = problem.small("ln")
    unseen = unseen._replace(inputs=unseen.inputs.at[:, 0].set(0.0))
    counts = _weights_kernel(unseen).shape[1], int(np.linalg.matrix_rank(_orbit_tangent(unseen)))
    yield differ(
        "an input that is always 0: kernel and orbit", *np.array(counts, float), role=Role.FAILS_WITHOUT_CONDITION
    )
    yield same_integer("and their difference and H − 1", counts[0] - counts[1], unseen.params.units - 1)


def _scale_and_shift(i, d):
    return sp.Symbol("lambda", real=True) * LAYER.W(i, d) + SHIFT(d)


def _shift_column(shape: tuple[int, int], d: int) -> sp.Matrix:
    shift = sp.zeros(*shape)
    shift[:, d] = sp.ones(shape[0], 1)
    return sp.Matrix(list(shift))


def weight_rank_step() -> Step:
    """The W-part of the null space has dimension D + 1 in exact arithmetic."""
    sizes = ((3, 2), (4, 2), (4, 3), (6, 3), (8, 2))

    def verify() -> bool:
        def weight_nullity(H: int, D: int) -> int:
            layer = random_layer(LAYER_NORM, H, D, cases=2 * D + D * D, draw=random.Random(H * D))
            return H * D - rank(jacobian_rows(layer)[:, : H * D])

        return all(weight_nullity(H, D) == D + 1 for H, D in sizes)

    latex = r"\dim\{dW : J\,dW = 0\} = D + 1"
    return fact(f"The exact rank of the Jacobian confirms it at (H, D) = {sizes}", latex, verify)


@completeness.proof("conditional")
def completeness_proof() -> Proof:
    """If dW is null for every x then dW = λW + 𝟏γᵀ, when rank PW ≥ 2."""
    V = field("V")
    u = lambda j: LAYER_NORM.numerator(LAYER, n, j)
    moved = lambda j: total(lambda d: V(j, d) * LAYER.X(n, d), D)
    m = lambda j: moved(j) - mean(moved, H)
    sigma = sqrt(LAYER_NORM.square(LAYER))
    u_, m_ = field("u"), field("m")
    letters = {"u": u, "m": m}
    length, norm = (total(lambda j, v=v: v(j) ** 2, H) for v in (u_, m_))
    product = total(lambda j: u_(j) * m_(j), H)
    minors = total(lambda j: total(lambda k: (u_(j) * m_(k) - u_(k) * m_(j)) ** 2, H), H) / 2
    form = total(lambda j: along(LAYER_NORM, V, unit=j) ** 2, H) * sigma**2 * total(lambda j: u(j) ** 2, H)

    def more_at_rank_one(v) -> tuple[Expr, Expr]:
        first, second = (LAYER_NORM.exactly(W, v["X"]) for W in (v["W"], v["W"] + v["V"]))
        distance = sum((sp.Abs(a - b) for a, b in zip(first, second, strict=True)), sp.S.Zero)
        columns = [sp.Matrix(list(v["W"]))] + [_shift_column(v["W"].shape, d) for d in range(v["W"].cols)]
        independent = sp.Matrix.hstack(*columns, sp.Matrix(list(v["V"]))).rank() - sp.Matrix.hstack(*columns).rank()
        return sp.Integer(independent), distance

    dropped = Counterexample(
        "nullspace.completeness at rank PW = 1",
        r"\text{a direction that leaves every output is in the span of } W, \mathbf{1}\gamma^\top",
        {
            "W": matrix([[1, 0], [0, 0], [-1, 0]]),
            "V": matrix([[0, 1], [0, 0], [0, -1]]),
            "X": matrix([[2, 1], [3, -1]]),
        },
        more_at_rank_one,
        "Dimensions V adds to the span; change of the outputs at W + V.",
    )
    return Proof(
        r"\Pi(x)\,dW\,x = 0\ \forall x \Rightarrow dW = \lambda W + \mathbf{1}\gamma^\top",
        (
            confirmed(
                equality(
                    "With u = PWx, m = P dW x the change is a sum of squared minors (Lagrange)",
                    form,
                    minors,
                    r"|u|^2\sigma^2|dn|^2",
                    letters,
                ),
                equality("Lagrange's identity", length * norm - product**2, minors, short=letters),
            ),
            equality(
                "So u_j m_k = u_k m_j. Summed with u_j: q m_k = s u_k, q = |u|²/H, s = uᵀm/H",
                mean(lambda j: u(j) * (u(j) * m(k) - u(k) * m(j)), H),
                sp.Symbol("q") * m_(k) - sp.Symbol("s") * u_(k),
                r"\operatorname{mean}_j u_j(u_jm_k - u_km_j)",
                {"q": mean(lambda j: u(j) ** 2, H), "s": mean(lambda j: u(j) * m(j), H), **letters},
            ),
            cited("As rank PW ≥ 2, m = λu, s = λq", proportional()),
            confirmed(
                null_step(
                    "P(dW − λW) = 0 means dW = λW + 𝟏γᵀ, and all of these are null",
                    LAYER_NORM,
                    _scale_and_shift,
                    moving=r"\lambda W + \mathbf{1}\gamma^\top",
                ),
                weight_rank_step(),
            ),
        ),
        (SPAN, Assumption("two directions", r"\mathrm{rank}\,PW \geq 2", dropped)),
    )


def _weights_kernel(case: Case) -> np.ndarray:
    """Orthonormal basis of the kernel of ∂z/∂W."""
    columns = np.asarray(reference.factor(*case))[:, : case.params.units * case.params.inputs]
    _, values, right = np.linalg.svd(columns)
    return right[decide_rank(values, *columns.shape, scale=float(compiled_scale(*case))).rank :].T


def _orbit_tangent(case: Case) -> np.ndarray:
    """Columns that span the tangent of {δW + 𝟏γᵀ} at W."""
    shifts = np.tile(np.eye(case.params.inputs), (case.params.units, 1))
    return np.concatenate([np.asarray(case.params.weights).reshape(-1, 1), shifts], 1)


SINGULAR = (3, 4)
"""D and H of the table of ranks in the claim `nullspace.zero_gains`."""
RANKS = {
    "ln": (LN, LAYER_NORM, (16, 16, 16, 15, 8), 12),
    "rms": (RMS, RMS_NORM, (19, 19, 17, 15, 8), 14),
    "bn": (UNITS, BATCH_NORM, (16, 14, 12, 10, 8), None),
    "wn": (UNITS, WEIGHT_NORM, (16, 14, 12, 10, 8), None),
}
"""Cell and method, ranks at 0 … 4 zero gains, and with (centred) weights of rank one, which units alone do not see."""


def singular(case: Case, zero_gains: int = 0, weights: int | None = None) -> Case:
    """A case with its first gains zero, or weights whose centred rows are multiples of one direction."""
    params = eqx.tree_at(lambda p: p.gain, case.params, case.params.gain.at[:zero_gains].set(0.0))
    if weights == 1:
        params = eqx.tree_at(lambda p: p.weights, params, params.weights[:, :1] * params.weights[:1])
    return case._replace(params=params)


@claim(
    "nullspace.zero_gains",
    topic=TOPIC,
    read=Read.OWN,
    source="Section 5.2 (not in the paper)",
    statement=(
        "Zero gains, and weights of rank one, lower the rank of F. Each zero gain takes D − 1 from that of batch and "
        "weight norm, the first ones less from that of layer and RMS norm. At H = 4, D = 3 with 0 … 4 zero gains it is "
        "16 16 16 15 8 for layer norm, 19 19 17 15 8 for RMS norm, 16 14 12 10 8 for batch and weight norm; with "
        "(centred) weights of rank one it is 12 for layer norm and 14 for RMS norm."
    ),
    assumptions=(INDEPENDENT, OPEN_SET, "almost all W but for the rank, and gains but for zeros", "ε = 0"),
    expected=Verdict.HOLDS,
)
def zero_gains(problem: Problem):
    """Ranks that the theorem gives, those of the statement, and measured ones."""
    D, H = SINGULAR
    for method, (cell, _, stated, of_rank_one) in RANKS.items():
        case, title = problem.small(method, shape=(100, D, H), name="singular"), TITLES[method]
        for zeros, of_zeros in enumerate(stated):
            yield same_integer(
                f"{title}, {zeros} zero gains: rank as stated, and by the theorem",
                of_zeros,
                H * (D + 2) - cell.dimension(H, D, zero_gains=zeros),
            )
            yield from evidence(f"{title}, {zeros} zero gains", singular(case, zeros), H * (D + 2) - of_zeros)
        if of_rank_one is not None:
            what, one = f"{title}, weights of rank one", singular(case, weights=1)
            found = H * (D + 2) - cell.dimension(H, D, weights=1)
            yield same_integer(f"{what}: rank as stated, and by the theorem", of_rank_one, found)
            yield from evidence(what, one, H * (D + 2) - of_rank_one)


@zero_gains.proof()
def zero_gains_proof() -> Proof:
    """A unit with zero gain may move its weights as it likes, as far as the others do not notice."""

    def confirmed_at(method: Method, cell: Cell, H: int, D: int) -> bool:
        def nullity(zeros: int) -> int:
            draw = random.Random(f"{method.name} {H} {D} {zeros}")
            layer = random_layer(method, H, D, cases=10 + D * (D + 1) * (D + 2) // 6 + 2 * H * D, draw=draw)
            layer.gain[:zeros] = 0
            return H * (D + 2) - rank(jacobian_rows(layer))

        return all(nullity(zeros) == cell.dimension(H, D, zero_gains=zeros) for zeros in range(H + 1))

    sizes = ((4, 3), (5, 2))
    latex = r"\mathrm{rank}\,J = H(D + 2) - \dim\ker F"
    return Proof(
        r"g_k = 0:\ dW_k = cPW_k + l_k,\ dg_k = db_k = 0",
        (
            equality(
                "A unit with zero gain moves by dg n + db alone, which is 0 for dg = db = 0 only, as n is no constant",
                derivative(lambda t: (t * TILT(i)) * LAYER_NORM(LAYER.towards(field("V"), t)) + t * BIAS(i)),
                TILT(i) * LAYER_NORM(LAYER) + BIAS(i),
                r"dz_i|_{g_i = 0}",
            ),
            cited(f"{DIRECTIONS}, for the units with a gain", null_directions(LAYER_NORM, "ln")),
            cited("All null directions of RMS norm, likewise", null_directions(RMS_NORM, "rms")),
            fact(
                "Batch and weight norm: a unit with a gain sees D + 1 affine functions, one without two",
                r"H(D + 2) - (H - m)(D + 1) - 2m = H + m(D - 1)",
                lambda: all(
                    UNITS.dimension(H, D, zero_gains=m) == H * (D + 2) - (H - m) * (D + 1) - 2 * m
                    for H in range(1, 9)
                    for D in range(1, 9)
                    for m in range(H + 1)
                ),
            ),
            fact(
                f"The exact rank of the Jacobian confirms the numbers at (H, D) = {sizes} for 0 … H zero gains",
                latex,
                lambda: all(confirmed_at(method, cell, *size) for cell, method, *_ in RANKS.values() for size in sizes),
                sizes="layer and RMS norm with zero gains: (H, D) = (4, 3), (5, 2)",
            ),
        ),
        (
            Assumption("outputs have positive variance", r"\Lambda \succ 0,\ \sigma > 0,\ \epsilon = 0"),
            TWO_DIRECTIONS,
            GENERIC,
        ),
    )


@claim(
    "nullspace.rank_deficient_data",
    topic=TOPIC,
    read=Read.OWN,
    source="Section 5.2 (not in the paper)",
    statement=(
        "On data of rank r < D (constant-zero pixels), every row of W also has D − r null directions that no datum "
        "sees."
    ),
    expected=Verdict.HOLDS,
)
def rank_deficient_data(problem: Problem):
    """Data with two zero columns: layer norm gains 2(H − 1) directions, the shifts being counted already."""
    case = problem.small("ln", shape=(80, 6, 7))
    full = predicted_nullspace(*case).dimension
    deficient = Case(case.model, case.params, case.inputs.at[:, :2].set(0.0))
    yield from evidence("two zero columns", deficient, full + 2 * (case.params.units - 1))
    few = problem.small("ln", shape=(7, 6, 4))
    predicted, found = predicted_nullspace(*few), measured(few)[1].rank
    most = few.params.size - predicted.dimension  # weights move the n of a sample in H − 2 directions
    yield same_integer("seven samples: most directions that they see, and measured rank", most, found)
    yield same_integer("the prediction there is exact (1) or a bound (0)", int(predicted.exact), 0)
    yield from evidence("five samples, none in the span of the others", few._replace(inputs=few.inputs[:5]))
    soft = problem.small("wn", families.Categorical())  # weights of a column of ones move as biases do
    yield from evidence("weight norm, softmax, a column of ones", soft._replace(inputs=soft.inputs.at[:, 0].set(1.0)))


@rank_deficient_data.proof()
def rank_deficient_data_proof() -> Proof:
    """On data orthogonal to v each row may move along v; layer norm had counted one such direction for all rows."""
    v = field("v")
    data = with_product(LAYER.X, v, sp.S.Zero)
    layer = Layer(LAYER.W, data)
    one_row: Field = lambda l, d: KroneckerDelta(l, k) * v(d)
    absorbed = total(lambda d: LAYER.W(i, d) * v(d), D) / total(lambda d: LAYER.W(i, d) ** 2, D)
    row_slope = derivative(lambda t: WEIGHT_NORM(layer.towards(lambda l, d: v(d), t)))
    sizes = ((3, 4), (4, 4), (5, 5), (6, 4), (7, 6))
    dimension = lambda H, D: LN.dimension(H, D, data=D - 2)
    return Proof(
        r"v^\top x_n = 0\ \forall n \Rightarrow e_kv^\top \in \ker F;\quad "
        r"\dim\ker F = H(D - r) + \dim\ker F_{\mathrm{LN}}(H, r),\ r = \mathrm{rank}\,X",
        (
            *product_steps(LAYER.X, v, n, sp.S.Zero, "These data x' are orthogonal to v"),
            *(
                equality(
                    f"{method.name}: on them no output depends on the part of row k along v, for any ε",
                    method(layer.towards(one_row, sp.Symbol("t", real=True)), eps=EPSILON),
                    sp.Symbol("n(W, x')"),
                    r"n(W + te_kv^\top, x')",
                    long={"n(W, x')": method(layer, eps=EPSILON)},
                )
                for method in (IDENTITY, BATCH_NORM, LAYER_NORM, RMS_NORM)
            ),
            equality(
                "Weight norm sees it in ‖w‖, which the gain makes good: dg = g⟨w, v⟩/‖w‖²",
                GAIN(i) * row_slope + GAIN(i) * absorbed * WEIGHT_NORM(layer),
                0,
                r"dz_{ni}",
            ),
            rank_step(LAYER_NORM, [(size, dimension(*size)) for size in sizes], fixed=(0, 0)),
        ),
        (
            Assumption(
                "outputs have positive variance, gains are not zero", r"\Lambda \succ 0,\ g_i \neq 0,\ \epsilon = 0"
            ),
            Assumption("inputs fill an open set of their span", r"\mathrm{rank}\,X = r,\ \sigma > 0"),
        ),
    )

"""Ranks and null spaces of the exact Fisher matrix: predicted from theory, measured by singular values, proved."""

import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import sympy as sp
from jaxtyping import Array, Float
from sympy import Expr, KroneckerDelta, sqrt

from lngeom import families, methods as normalizers
from lngeom._core.numerics import RankDecision, decide_rank
from lngeom._core.types import GLMParameters
from lngeom.claims import Problem, Role, Verdict, agree, claim, differ, proves, same_integer, vanishes
from lngeom.claims.context import Read
from lngeom.claims.evidence import Evidence
from lngeom.claims.problem import TITLES, Case
from lngeom.information import reference
from lngeom.information.glm import NormalizedGLM
from lngeom.information.nullspace_theorem import Cell, cell_of
from lngeom.information.predicted import predicted_nullspace
from lngeom.papers.ba2016.glm import operator
from lngeom.papers.ba2016.nullspace_bound import (
    BIAS,
    GENERIC,
    GENERIC_GAINS,
    LEMMAS,
    SOFTMAX,
    SPAN,
    TILT,
    TWO_DIRECTIONS,
    common_function_step,
    dimension_step,
    every_direction_with_eps_step,
    every_row_steps,
    every_softmax_direction_steps,
    independent_equations,
    null_directions,
    proportional,
)
from lngeom.symbolic.actions import SHIFT
from lngeom.symbolic.jacobian import (
    GAIN,
    LAYER,
    RADIAL,
    SHIFTS,
    along,
    null_step,
    product_steps,
    rank_step,
    rows_alone,
    with_product,
)
from lngeom.symbolic.layers import (
    BATCH_NORM,
    BATCH_NORM_EVALUATION,
    EPSILON,
    GROUP_NORM,
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
    jointly,
    matrix,
    together,
)
from lngeom.symbolic.sums import D, Field, H, derivative, field, i, k, mean, n, p, total

TOPIC = "nullspace"
SIZES = ((3, 2), (3, 4), (4, 2), (4, 5), (5, 2), (5, 3), (6, 2), (8, 2), (10, 3), (11, 3))
LN, LN_EPS = cell_of("centred groups"), cell_of("centred groups", eps=1)
SOFTMAX_LN, SOFTMAX_LN_EPS = cell_of("centred groups", softmax=True), cell_of("centred groups", softmax=True, eps=1)
RMS, RMS_EPS = cell_of("groups"), cell_of("groups", eps=1)
SOFTMAX_RMS, SOFTMAX_RMS_EPS = cell_of("groups", softmax=True), cell_of("groups", softmax=True, eps=1)
UNITS, SOFTMAX_UNITS = cell_of("unit by unit"), cell_of("unit by unit", softmax=True)
"""Cells of the theorem (`lngeom.information.nullspace_theorem`), by what the claims call them."""
INDEPENDENT = "independent responses of positive variance (Λ ≻ 0)"
ONE_SOFTMAX = "one softmax with H ≥ 2 classes (the kernel of Λ is 𝟏)"
OPEN_SET = "many inputs, which fill an open set of R^D"
ALL_GAINS = "every g_i ≠ 0"
SAMPLES = Assumption(
    "outputs have positive variance, gains are not zero", r"\Lambda \succ 0,\ g_i \neq 0,\ \sigma > 0,\ \epsilon = 0"
)
SPAN_WITH_EPS = Assumption(
    "outputs have positive variance, inputs fill an open set, gains are not zero",
    r"\Lambda \succ 0,\ g_i \neq 0,\ \epsilon > 0",
)


def cancellation_scale(model: NormalizedGLM, params: GLMParameters, inputs: Float[Array, "N D"]) -> Float[Array, ""]:
    r"""Frobenius norm of $\sqrt{\Lambda/N}\, D_g\, x / \sigma$: the factor's weight columns before Π cancels parts.

    Rounding errors of the factor are of this size times eps, which matters near zero variance and where Π = 0.

    Raises:
        ValueError: if the normalizer is not of the form of Eq. 5.
    """
    if not isinstance(model.normalizer, normalizers.AbstractStatisticsNormalizer):
        raise ValueError(f"{type(model.normalizer).__name__} is not of the form of Eq. 5")
    _, scale = model.normalizer.statistics(params.weights, inputs)
    variances = model.family.variance(model.natural_parameters(params, inputs)) / model.family.dispersion**2
    slopes = variances * jnp.square(params.gain[None, :] / scale)
    return jnp.sqrt(jnp.mean(jnp.sum(slopes, 1) * jnp.sum(jnp.square(inputs), 1)))


_triangle = eqx.filter_jit(lambda case: (jnp.linalg.qr(reference.factor(*case), mode="r"), cancellation_scale(*case)))
_scale = eqx.filter_jit(cancellation_scale)


def measured(case: Case) -> tuple[np.ndarray, RankDecision, float]:
    """Triangular factor of √Λ J by automatic differentiation, its numerical rank, and the size of what cancelled."""
    triangle, scale = (np.asarray(v) for v in _triangle(case))
    values = np.linalg.svd(triangle, compute_uv=False)
    rows = len(case.inputs) * case.params.units
    return triangle, decide_rank(values, rows, triangle.shape[1], scale=float(scale)), float(scale)


def uncertain(case: Case, root: np.ndarray, cancelled: float) -> str:
    """Why ranks on the data say nothing, or nothing where they do.

    Singular values between rounding and √eps of the largest are doubtful, of the data, of the centred data and of the
    factor √Λ J alike: they may be rounding, and they may be directions that the data hardly see.
    """
    inputs = np.asarray(case.inputs)
    centred = inputs - inputs.mean(0)
    eps = float(np.finfo(inputs.dtype).eps)
    for name, array, size in (("the data", inputs, 0.0), ("the centred data", centred, 0.0), ("√F", root, cancelled)):
        values = np.linalg.svd(array, compute_uv=False)
        top = max(float(values[0]), size)
        doubtful = int(np.sum((values > eps * top) & (values < eps**0.5 * top)))
        if doubtful:
            return f"{doubtful} singular values of {name} are too small to be told from rounding"
    return ""


def evidence(what: str, case: Case, formula: int | None = None, certify: bool = False):
    """Predicted against measured dimension, the formula against both, and F's action on the predicted basis.

    With `certify` also `lg.fisher`, which users call: its matrix, products and rank.
    """
    predicted = predicted_nullspace(*case)
    triangle, decision, cancelled = measured(case)
    nullity = case.params.size - decision.rank
    doubt = uncertain(case, triangle, cancelled) if nullity != predicted.dimension else ""
    if predicted.exact:
        name = f"{what}: predicted and measured dimension (gap {decision.gap:.0e})"
        yield same_integer(name, predicted.dimension, nullity, uncertain=doubt)
    if formula is not None:
        yield same_integer(f"{what}: formula and measured dimension", formula, nullity)
    scale = max(cancelled, float(np.linalg.norm(triangle)) / triangle.shape[1] ** 0.5)
    if predicted.basis.size:
        steps = [{"text": line, "latex": ""} for line in predicted.describe().splitlines()]
        lengths = np.linalg.norm(triangle @ predicted.basis, axis=1)  # the same for every basis of the space
        yield vanishes(f"{what}: √F on the predicted basis", lengths, scale=scale, steps=steps)
    if certify:
        F, v = operator(case), np.cos(np.arange(case.params.size))[:, None]
        yield agree(f"{what}: lg.fisher's matrix and JᵀΛJ", F.as_matrix(), triangle.T @ triangle)
        yield agree(f"{what}: its products and JᵀΛJ v", F.mm(jnp.asarray(v)), triangle.T @ (triangle @ v))
        yield same_integer(f"{what}: its rank and that of √Λ J", int(F.rank()), decision.rank)


def _nullspace_claim(
    id: str,
    statement: str,
    formula: str,
    cases,
    assumptions: tuple[str, ...],
    certify: bool = False,
    more: Callable[[Problem], Iterable[Evidence]] = lambda problem: (),
):
    """Registers a claim: `cases(problem)` yields (what, case, dimension by the formula or None), `more` evidence."""

    @claim(
        id, topic=TOPIC, source="Section 5.2 (not in the paper)", statement=statement,
        formula=rf"\dim\ker F = {formula}", assumptions=assumptions, read=Read.OWN, expected=Verdict.HOLDS,
    )  # fmt: skip
    def check(problem: Problem):
        *first, last = cases(problem)
        for what, case, dimension in first:
            yield from evidence(what, case, dimension)
        yield from evidence(*last, certify=certify)
        yield from more(problem)

    return check


def _shapes(problem: Problem, normalizer, formula, shapes, family=None):
    for units, features in shapes:
        case = problem.small(normalizer, family, shape=(100, features, units))
        yield f"H = {units}, D = {features}", case, formula(units, features)


def _with_data(problem: Problem, normalizer, formula, shapes, family=None):
    yield "data", problem.case(normalizer, family), None
    yield from _shapes(problem, normalizer, formula, shapes, family)


def dimensions(cell: Cell, sizes=SIZES) -> list[tuple[tuple[int, ...], int]]:
    """Sizes beside the dimension that a cell gives each."""
    return [(size, cell.dimension(*size)) for size in sizes]


_nullspace_claim(
    "nullspace.ln",
    "Layer norm's Fisher matrix has a null space of dimension D + 1 + max(0, H − r(r+3)/2), r = min(D, H−1): the "
    "scale of W, the D shifts 𝟏γᵀ, and in very wide layers trades between gain and weights.",
    LN.latex,
    lambda p: _with_data(p, "ln", LN.dimension, shapes=((12, 2), (6, 6))),
    (INDEPENDENT, OPEN_SET, "H ≥ 3, D ≥ 2, almost all W", ALL_GAINS, "ε = 0"),
)


DIRECTIONS = "All null directions, with P the centring"
EQUATIONS = "For almost all W these equations for e are as independent as their number allows"

for _method, _name in ((LAYER_NORM, "ln"), (RMS_NORM, "rms"), (GROUP_NORM, "gn")):
    proves(f"lemma.null_directions.{_name}")(partial(null_directions, _method, _name))
proves("lemma.proportional")(proportional)
for (_centred, _softmax), (_name, *_) in LEMMAS.items():
    proves(f"lemma.equations.{_name}")(partial(independent_equations, centred=_centred, softmax=_softmax))


@proves("nullspace.ln")
def layer_norm_proof() -> Proof:
    """vec(W) and the D shifts 𝟏γᵀ, and in very wide layers a few more."""
    return Proof(
        r"\dim\ker F = D + 1 + \max(0, H - \tfrac{r(r+3)}{2}),\ r = \min(D, H-1)",
        (
            together(
                "W itself and every shift 𝟏γᵀ are null",
                null_step("", LAYER_NORM, RADIAL, moving="W"),
                null_step("", LAYER_NORM, SHIFTS, moving=r"\mathbf{1}\gamma^\top"),
            ),
            cited(DIRECTIONS, null_directions(LAYER_NORM, "ln")),
            cited(EQUATIONS, independent_equations(centred=True)),
            confirmed(
                dimension_step(LN),
                rank_step(LAYER_NORM, dimensions(LN)),
            ),
        ),
        (SPAN, TWO_DIRECTIONS, GENERIC),
    )


_nullspace_claim(
    "nullspace.rms",
    "RMS norm's has dimension 1 + max(0, H − r(r+1)/2), r = min(D, H).",
    RMS.latex,
    lambda p: _with_data(p, "rms", RMS.dimension, ((12, 2),)),
    (INDEPENDENT, OPEN_SET, "H ≥ 2, D ≥ 2, almost all W", ALL_GAINS, "ε = 0"),
)


@proves("nullspace.rms")
def rms_norm_proof() -> Proof:
    """vec(W), and in very wide layers a few more."""
    return Proof(
        r"\dim\ker F = 1 + \max(0, H - \tfrac{r(r+1)}{2}),\ r = \min(D, H)",
        (
            null_step("W itself is null", RMS_NORM, RADIAL, moving="W"),
            cited("All null directions", null_directions(RMS_NORM, "rms")),
            cited(EQUATIONS, independent_equations(centred=False)),
            confirmed(
                dimension_step(RMS),
                rank_step(RMS_NORM, dimensions(RMS)),
            ),
        ),
        (SPAN, TWO_DIRECTIONS, GENERIC),
    )


def _groups_before_a_softmax(problem: Problem) -> Iterator[Evidence]:
    """Two groups before one softmax; and groups whose centred weights are multiples of one direction, with one more."""
    case = problem.small("gn", families.Categorical(), shape=(100, 4, 6))
    yield from evidence("two groups, one softmax", case, SOFTMAX_LN.dimension(6, 4, groups=2))
    weights = np.asarray(case.params.weights)
    line = np.outer(weights[:, 0], weights[0]) + np.repeat(weights[:2], 3, 0)
    alike = case._replace(params=eqx.tree_at(lambda p: p.weights, case.params, jnp.asarray(line)))
    more = SOFTMAX_LN.dimension(6, 4, groups=2, weights=1) + 1
    yield from evidence("the same, centred weights of one direction in both", alike, more)


_nullspace_claim(
    "nullspace.gn",
    "Group norm's is the sum over groups of layer norm's with H/G units. With a softmax output it has one dimension "
    "more, the shift of all biases; and a further one where all groups can move all logits by one function of x, as "
    "where the centred weights of all groups have one direction.",
    rf"\sum_{{\text{{groups}}}} ({LN.latex.replace('H', 'H/G')})",
    lambda p: _with_data(p, "gn", lambda h, d: LN.dimension(h, d, groups=2), ((12, 2),)),
    (INDEPENDENT, OPEN_SET, "3 units or more in a group, D ≥ 2, almost all W", ALL_GAINS, "ε = 0"),
    certify=True,
    more=_groups_before_a_softmax,
)


@proves("nullspace.gn")
def group_norm_proof() -> Proof:
    """The weights of each group, and shifts of each group."""
    own = KroneckerDelta(p, sp.Symbol("r", integer=True, positive=True))
    selected = own.args[0] if own.args[0] != p else own.args[1]
    radial: Field = lambda i, d: KroneckerDelta(i[0], selected) * LAYER.W(i, d)
    shifts: Field = lambda i, d: KroneckerDelta(i[0], selected) * SHIFT(d)
    cases = [((H, D, 2), LN.dimension(H, D, groups=2)) for H, D in ((6, 2), (8, 2), (8, 3), (12, 2))]
    return Proof(
        r"\dim\ker F = \sum_{\text{groups}} \left(D + 1 + \max(0, \tfrac HG - \tfrac{r(r+3)}{2})\right)",
        (
            null_step(
                "With D_r, which keeps the rows of group r alone: its weights are null",
                GROUP_NORM,
                radial,
                moving=r"D_rW",
            ),
            null_step("So is a shift of group r alone", GROUP_NORM, shifts, moving=r"D_r\mathbf{1}\gamma^\top"),
            cited(f"{DIRECTIONS} within each group", null_directions(GROUP_NORM, "gn")),
            cited(EQUATIONS, independent_equations(centred=True)),
            confirmed(
                dimension_step(LN, "Each group, of H units"),
                rank_step(GROUP_NORM, cases),
            ),
        ),
        (SPAN, TWO_DIRECTIONS, GENERIC),
    )


ONE_BY_ONE = ("σ > 0", ALL_GAINS)

_nullspace_claim(
    "nullspace.bn",
    "Batch norm's has dimension H(D − r + 1), r the rank of Cov x: each w_i, and what the data cannot see. With ε > 0 "
    "it keeps this dimension.",
    UNITS.latex,
    lambda p: [
        *_with_data(p, "bn", UNITS.dimension, ((6, 4),)),
        *_shapes(p, normalizers.BatchNorm(eps=0.1), UNITS.dimension, ((6, 4),)),
    ],
    (INDEPENDENT, *ONE_BY_ONE),
)


@proves("nullspace.bn")
def batch_norm_proof() -> Proof:
    """Each row by itself, and directions in which the data do not vary."""
    return Proof(
        r"\dim\ker F = H(D - r + 1),\ r = \mathrm{rank}\,\mathrm{Cov}\,x",
        (
            null_step("Each row by itself is null", BATCH_NORM, rows_alone(field("s")), moving=r"\mathrm{diag}(s)W"),
            *every_row_steps(BATCH_NORM),
            common_function_step(BATCH_NORM),
            rank_step(BATCH_NORM, [((2, 2), 2), ((3, 3), 3), ((4, 2), 4)]),
            rank_step(BATCH_NORM, [((2, 3), 4), ((3, 4), 6)], fixed=(7,)),
            *every_row_steps(BATCH_NORM, eps=EPSILON)[2:],
        ),
        (SAMPLES,),
    )


_nullspace_claim(
    "nullspace.wn",
    "Weight norm's has dimension H(D − r + 1), r the rank of Cov x: each w_i, so H where the data span R^D affinely.",
    UNITS.latex,
    lambda p: _with_data(p, "wn", UNITS.dimension, ((6, 4),)),
    (INDEPENDENT, *ONE_BY_ONE),
)


@proves("nullspace.wn")
def weight_norm_proof() -> Proof:
    """Each row by itself."""
    return Proof(
        r"\dim\ker F = H(D - r + 1),\ r = \mathrm{rank}\,\mathrm{Cov}\,x",
        (
            null_step("Each row by itself is null", WEIGHT_NORM, rows_alone(field("s")), moving=r"\mathrm{diag}(s)W"),
            *every_row_steps(WEIGHT_NORM),
            common_function_step(WEIGHT_NORM),
            rank_step(WEIGHT_NORM, [((1, 3), 1), ((2, 2), 2), ((3, 3), 3)]),
            rank_step(WEIGHT_NORM, [((2, 3), 4), ((3, 4), 6)], fixed=(7,)),
        ),
        (SAMPLES,),
    )


_nullspace_claim(
    "nullspace.identity",
    "A GLM without normalization but with a gain has a null space of dimension H(D − r + 1), r the rank of Cov x: w_i "
    "against g_i, so H where the data span R^D affinely.",
    UNITS.latex,
    lambda p: _shapes(p, "identity", UNITS.dimension, ((6, 4),)),
    (INDEPENDENT, ALL_GAINS),
)


def _gain_absorbs(name: str, method: Method, stored_mean: Expr | int) -> Proof:
    """Scaling a row and shrinking its gain cancel: dw = s w, dg = −s g, db = −s g·(stored mean)/σ."""
    s = field("s")
    output, offset = method(LAYER), GAIN(i) * stored_mean / sqrt(method.square(LAYER))
    return Proof(
        r"\dim\ker F = H(D - r + 1):\ (w_i, -g_i, b_i\text{'s offset}),\ r = \mathrm{rank}\,\mathrm{Cov}\,x",
        (
            null_step(
                "The gain absorbs the scale of a row",
                method,
                rows_alone(s),
                -s(i) * GAIN(i) * output - s(i) * offset,
                moving=r"\mathrm{diag}(s)W",
            ),
            *every_row_steps(method, stored_mean),
            common_function_step(method),
            rank_step(method, [((1, 3), 1), ((2, 2), 2), ((3, 3), 3)]),
            rank_step(method, [((2, 3), 4), ((3, 4), 6)], fixed=(7,)),
        ),
        (SAMPLES,),
        name=name,
    )


@proves("nullspace.identity")
def identity_proof() -> Proof:
    """Without a norm, gain and weights are redundant."""
    return _gain_absorbs("nullspace.identity", IDENTITY, 0)


_nullspace_claim(
    "nullspace.softmax_units",
    "With a softmax output, batch norm, weight norm and a GLM without normalization have H(D − r + 1) + 1 + r, r the "
    "rank of Cov x: also every affine function of x that all logits share.",
    SOFTMAX_UNITS.latex,
    lambda p: [
        *_shapes(p, "bn", SOFTMAX_UNITS.dimension, ((5, 4),), families.Categorical()),
        *_shapes(p, "wn", SOFTMAX_UNITS.dimension, ((5, 4),), families.Categorical()),
    ],
    (ONE_SOFTMAX, *ONE_BY_ONE),
)


@proves("nullspace.softmax_units")
def softmax_units_proof() -> Proof:
    """What single units have, and what all of them can do alike."""
    ranks = [((3, 3), 3 + 4), ((4, 2), 4 + 3), ((5, 4), 5 + 5)]
    return Proof(
        r"\dim\ker F = H(D - r + 1) + 1 + r,\ r = \mathrm{rank}\,\mathrm{Cov}\,x",
        (
            *_softmax_shift(),
            *(step for method in (BATCH_NORM, WEIGHT_NORM, IDENTITY) for step in every_row_steps(method)[:1]),
            common_function_step(BATCH_NORM),
            jointly("Weight norm and none, likewise", [common_function_step(m) for m in (WEIGHT_NORM, IDENTITY)]),
            fact(
                "So each unit moves by the affine functions on the data, r + 1 with the constant, and a softmax does "
                "not see one that all units share",
                r"H(D + 2) - (H - 1)(r + 1) = H(D - r + 1) + 1 + r",
                lambda: all(
                    SOFTMAX_UNITS.dimension(H, D, data=r) == H * (D + 2) - (H - 1) * (r + 1)
                    for H in range(2, 9)
                    for D in range(1, 9)
                    for r in range(1, D + 1)
                ),
            ),
            fact(
                "The exact rank of the Jacobian confirms it at (H, D) = (3, 3), (4, 2), (5, 4) for all three",
                r"\dim\ker F = 7,\ 7,\ 10",
                lambda: all(rank_step(m, ranks, softmax=True).verify() for m in (BATCH_NORM, WEIGHT_NORM, IDENTITY)),
            ),
            rank_step(WEIGHT_NORM, [((3, 3), 6 + 3)], softmax=True, fixed=(7,)),
        ),
        (Assumption("one softmax, gains are not zero", r"\ker\Lambda = \mathbf{1},\ g_i \neq 0,\ \sigma > 0"),),
    )


_nullspace_claim(
    "nullspace.softmax_ln",
    "With a softmax output, layer norm's has dimension D + 2 + max(0, H − r(r+1)/2), r = min(D, H−1); with ε > 0 one "
    "less, without the scale of W.",
    SOFTMAX_LN.latex,
    lambda p: [
        *_with_data(p, "ln", SOFTMAX_LN.dimension, ((11, 2),), families.Categorical()),
        *_shapes(p, normalizers.LayerNorm(eps=0.1), SOFTMAX_LN_EPS.dimension, ((11, 2),), families.Categorical()),
    ],
    (ONE_SOFTMAX, OPEN_SET, "H ≥ 3, D ≥ 2, almost all W and g", ALL_GAINS, "ε = 0, or ε > 0 as stated"),
)


def _softmax_shift() -> tuple[Step, Step]:
    """Λ = diag(q) − qqᵀ annihilates the constant vectors, and no others."""
    v = field("v")
    probability = lambda i: sp.exp(field("z")(i)) / total(lambda j: sp.exp(field("z")(j)), H)
    entry = lambda i, j: KroneckerDelta(i, j) * probability(i) - probability(i) * probability(j)
    form = total(lambda i: total(lambda j: v(i) * entry(i, j) * v(j), H), H)
    pairs = total(lambda i: total(lambda j: probability(i) * probability(j) * (v(i) - v(j)) ** 2, H), H) / 2
    return (
        equality(
            "A common shift of all biases is null: Λ1 = 0",
            total(lambda j: entry(i, j), H),
            0,
            r"(\Lambda\mathbf{1})_i",
        ),
        equality("No other change of the outputs is: its form is a sum over pairs", form, pairs, r"v^\top\Lambda v"),
    )


@proves("nullspace.softmax_ln")
def softmax_layer_norm_proof() -> Proof:
    """Layer norm before a softmax: one dimension more, the common shift of the biases."""
    return Proof(
        r"\dim\ker F = D + 2 + \max(0, H - \tfrac{r(r+1)}{2}),\ r = \min(D, H-1)",
        (
            null_step("W itself is null", LAYER_NORM, RADIAL, moving="W"),
            null_step("Every shift 𝟏γᵀ is null", LAYER_NORM, SHIFTS, moving=r"\mathbf{1}\gamma^\top"),
            *_softmax_shift(),
            *every_softmax_direction_steps(LAYER_NORM),
            cited(EQUATIONS, independent_equations(centred=True, softmax=True)),
            dimension_step(SOFTMAX_LN),
            rank_step(LAYER_NORM, dimensions(SOFTMAX_LN), softmax=True),
            every_direction_with_eps_step(LAYER_NORM),
            dimension_step(SOFTMAX_LN_EPS, "ε > 0"),
            rank_step(LAYER_NORM, dimensions(SOFTMAX_LN_EPS, SIZES[2:6]), softmax=True, eps=5),
        ),
        (SOFTMAX, TWO_DIRECTIONS, GENERIC_GAINS),
    )


_nullspace_claim(
    "nullspace.softmax_rms",
    "With a softmax output, RMS norm's has dimension 2 + max(0, H + r − r(r+1)/2), r = min(D, H); with ε > 0 one less, "
    "without the scale of W.",
    SOFTMAX_RMS.latex,
    lambda p: [
        *_shapes(p, "rms", SOFTMAX_RMS.dimension, ((11, 2),), families.Categorical()),
        *_shapes(p, normalizers.RMSNorm(eps=0.1), SOFTMAX_RMS_EPS.dimension, ((11, 2),), families.Categorical()),
    ],
    (ONE_SOFTMAX, OPEN_SET, "H ≥ 2, D ≥ 2, almost all W and g", ALL_GAINS, "ε = 0, or ε > 0 as stated"),
)


@proves("nullspace.softmax_rms")
def softmax_rms_norm_proof() -> Proof:
    """RMS norm before a softmax."""
    return Proof(
        r"\dim\ker F = 2 + \max(0, H + r - \tfrac{r(r+1)}{2}),\ r = \min(D, H)",
        (
            null_step("W itself is null", RMS_NORM, RADIAL, moving="W"),
            *_softmax_shift(),
            *every_softmax_direction_steps(RMS_NORM),
            cited(EQUATIONS, independent_equations(centred=False, softmax=True)),
            dimension_step(SOFTMAX_RMS),
            rank_step(RMS_NORM, dimensions(SOFTMAX_RMS), softmax=True),
            every_direction_with_eps_step(RMS_NORM),
            dimension_step(SOFTMAX_RMS_EPS, "ε > 0"),
            rank_step(RMS_NORM, dimensions(SOFTMAX_RMS_EPS, SIZES[2:6]), softmax=True, eps=5),
        ),
        (SOFTMAX, TWO_DIRECTIONS, GENERIC_GAINS),
    )


def _named_with_eps(problem: Problem) -> Iterator[Evidence]:
    """Names that `lg.fisher` finds: the shifts are null; ε alone gives the scale of W a length, (ε/σ²)²E[…]."""
    eps = 1e-5
    model, params, inputs = case = problem.small(normalizers.LayerNorm(eps=eps))
    F = operator(case)
    found = F.nullspace().describe()
    shifts = sum(d.dimension for d in found.directions if d.name.startswith("shift of weights"))
    yield same_integer("ε = 1e-5: null directions that are shifts 𝟏γᵀ, and D", shifts, params.inputs)
    yield same_integer("null directions of another kind", F.nullspace().dimension - shifts, 0)
    scales = [b for b in found.broken if b.name == "scale of weights"]
    yield agree("p of the form ∝ ε^p along the scale of W", [b.exponent for b in scales] or [0.0], [2.0], tol=0.01)
    n, variance = np.asarray(model.normalized(params, inputs)), np.square(case.statistics().scale)
    variances = np.asarray(model.family.variance(model.natural_parameters(params, inputs)))
    lengths = variances * np.square(np.asarray(params.gain) * n)
    form = np.mean(np.sum(lengths, 1) * np.square(eps / variance[:, 0])) / np.sum(np.square(params.weights))
    form /= np.linalg.eigvalsh(F.as_matrix())[-1]
    yield agree("that form, and E[(ε/σ²)² (g n)ᵀΛ(g n)]", [b.form for b in scales] or [0.0], [form], tol=1e-6)


_nullspace_claim(
    "nullspace.ln_eps",
    "With ε > 0 layer norm keeps the D shifts and loses the scale; RMS norm, unless it is very wide, has full rank.",
    LN_EPS.latex,
    lambda p: [
        *_with_data(p, normalizers.LayerNorm(eps=0.1), LN_EPS.dimension, ((12, 2),)),
        *_shapes(p, normalizers.RMSNorm(eps=0.1), RMS_EPS.dimension, ((6, 4),)),
    ],
    (INDEPENDENT, OPEN_SET, "H ≥ 3, D ≥ 2, almost all W", ALL_GAINS, "ε > 0"),
    more=_named_with_eps,
)


@proves("nullspace.ln_eps")
def layer_norm_eps_proof() -> Proof:
    """With ε > 0 the shifts stay null; the radial direction has a form proportional to ε²."""
    eps = sp.Symbol("epsilon", positive=True)
    variance = LAYER_NORM.square(LAYER, eps=eps)
    response = LAYER_NORM(LAYER, eps=eps) * eps / variance
    weight = field("lambda", positive=True)
    form = total(lambda j: weight(j) * (GAIN(j) * along(LAYER_NORM, RADIAL, eps, unit=j)) ** 2, H)
    stated = (eps / variance) ** 2 * total(lambda j: weight(j) * (GAIN(j) * LAYER_NORM(LAYER, n, j, eps)) ** 2, H)
    return Proof(
        r"\mathbf{1}\gamma^\top \in \ker F;\quad \mathrm{vec}(W)^\top F\,\mathrm{vec}(W) = "
        r"E\left[(\epsilon/\sigma^2)^2 (g\odot n)^\top\Lambda(g\odot n)\right]",
        (
            equality("Shifts stay null for any ε", along(LAYER_NORM, SHIFTS, eps), 0, r"dn_i"),
            equality("The radial direction does not", along(LAYER_NORM, RADIAL, eps), response, r"dn_i"),
            equality("Its quadratic form, at each case", form, stated, r"\mathrm{vec}(W)^\top F\,\mathrm{vec}(W)"),
            every_direction_with_eps_step(LAYER_NORM),
            cited(EQUATIONS, independent_equations(centred=True)),
            dimension_step(LN_EPS),
            every_direction_with_eps_step(RMS_NORM),
            cited(EQUATIONS, independent_equations(centred=False)),
            dimension_step(RMS_EPS, "RMS norm"),
            rank_step(LAYER_NORM, [((3, 2), 2), ((4, 2), 2), ((4, 3), 3), ((5, 3), 3)], eps=5),
        ),
        (SPAN_WITH_EPS, Assumption("two inputs or more", r"D \geq 2"), GENERIC),
    )


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
    return _gain_absorbs("nullspace.bn_evaluation", BATCH_NORM_EVALUATION, STORED_MEAN(i))


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
    return right[decide_rank(values, *columns.shape, scale=float(_scale(*case))).rank :].T


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

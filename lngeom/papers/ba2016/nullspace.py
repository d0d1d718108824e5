"""Ranks and null spaces of the exact Fisher matrix: predicted from theory, measured by singular values, proved."""

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
from lngeom.claims import Problem, Verdict, agree, claim, proves, same_integer, vanishes
from lngeom.claims.context import Read
from lngeom.claims.evidence import Evidence
from lngeom.claims.problem import Case
from lngeom.information import reference
from lngeom.information.glm import NormalizedGLM
from lngeom.information.nullspace_theorem import Cell, cell_of
from lngeom.information.predicted import predicted_nullspace
from lngeom.papers.ba2016.lg_fisher import operator
from lngeom.papers.ba2016.nullspace_bound import (
    GENERIC,
    GENERIC_GAINS,
    LEMMAS,
    SOFTMAX,
    SPAN,
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
    rank_step,
    rows_alone,
)
from lngeom.symbolic.layers import (
    BATCH_NORM,
    EPSILON,
    GROUP_NORM,
    IDENTITY,
    LAYER_NORM,
    RMS_NORM,
    WEIGHT_NORM,
    Method,
)
from lngeom.symbolic.proof import (
    Assumption,
    Proof,
    Step,
    cited,
    confirmed,
    equality,
    fact,
    jointly,
    together,
)
from lngeom.symbolic.sums import Field, H, field, i, n, p, total

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
compiled_scale = eqx.filter_jit(cancellation_scale)


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
    doubt = doubt or next(iter(predicted.doubts), "")
    if all(condition.holds for condition in predicted.conditions):
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


def gain_absorbs(name: str, method: Method, stored_mean: Expr | int) -> Proof:
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
    return gain_absorbs("nullspace.identity", IDENTITY, 0)


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

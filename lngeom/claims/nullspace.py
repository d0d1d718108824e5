"""Ranks and null spaces of the exact Fisher matrix: predicted from theory, measured by singular values."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from lngeom import families, normalizers
from lngeom._numerics import RankDecision, decide_rank
from lngeom.claims._evidence import Role, Verdict, agree, differ, same_integer, vanishes
from lngeom.claims._problem import Case, Problem
from lngeom.claims._registry import claim
from lngeom.glm import NormalizedGLM
from lngeom.information import predicted_nullspace, reference

TOPIC = "nullspace"

_factor = eqx.filter_jit(reference.factor)
_triangle = eqx.filter_jit(
    lambda case: (jnp.linalg.qr(reference.factor(*case), mode="r"), reference.cancellation_scale(*case))
)
_scale = eqx.filter_jit(reference.cancellation_scale)


def measured(case: Case) -> tuple[np.ndarray, RankDecision, float]:
    """Triangular factor of √Λ J by automatic differentiation, its numerical rank, and the size of what cancelled."""
    triangle, scale = (np.asarray(v) for v in _triangle(case))
    values = np.linalg.svd(triangle, compute_uv=False)
    rows = len(case.inputs) * case.params.units
    return triangle, decide_rank(values, rows, triangle.shape[1], scale=float(scale)), float(scale)


def uncertain(case: Case, factor: np.ndarray, cancelled: float) -> str:
    """Why ranks on the data say nothing, or nothing where they do.

    Singular values between rounding and √eps of the largest are doubtful, of the data, of the centred data and of the
    factor √Λ J alike: they may be rounding, and they may be directions that the data hardly see.
    """
    inputs = np.asarray(case.inputs)
    centred = inputs - inputs.mean(0)
    eps = float(np.finfo(inputs.dtype).eps)
    for name, matrix, size in (
        ("the data", inputs, 0.0),
        ("the centred data", centred, 0.0),
        ("√F", factor, cancelled),
    ):
        values = np.linalg.svd(matrix, compute_uv=False)
        top = max(float(values[0]), size)
        doubtful = int(np.sum((values > eps * top) & (values < eps**0.5 * top)))
        if doubtful:
            return f"{doubtful} singular values of {name} are too small to be told from rounding"
    return ""


def evidence(what: str, case: Case, formula: int | None = None):
    """Predicted against measured dimension, the formula against both, and F's action on the predicted basis."""
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


def _wide(units: int, rank: int, conditions: int) -> int:
    return max(0, units - rank * (rank + conditions) // 2)


def _nullspace_claim(id: str, statement: str, formula: str, cases, assumptions=("Λ ≻ 0", "every g_i ≠ 0", "ε = 0")):
    """Registers a claim: `cases(problem)` yields (what, case, dimension by the formula or None)."""

    @claim(
        id, topic=TOPIC, source="Section 5.2 (not in the paper)", statement=statement, formula=formula,
        assumptions=assumptions, expected=Verdict.HOLDS,
    )  # fmt: skip
    def check(problem: Problem):
        for what, case, dimension in cases(problem):
            yield from evidence(what, case, dimension)

    return check


def _shapes(problem: Problem, normalizer, formula, shapes, family=None):
    for units, features in shapes:
        case = problem.small(normalizer, family, shape=(100, features, units))
        yield f"H = {units}, D = {features}", case, formula(units, features)


def _with_data(problem: Problem, normalizer, formula, shapes=((6, 4), (12, 2)), family=None):
    yield "data", problem.case(normalizer, family), None
    yield from _shapes(problem, normalizer, formula, shapes, family)


def _ln(units: int, features: int) -> int:
    return features + 1 + _wide(units, min(features, units - 1), 3)


def _rms(units: int, features: int) -> int:
    return 1 + _wide(units, min(features, units), 1)


_nullspace_claim(
    "nullspace.ln",
    "Layer norm's Fisher matrix has a null space of dimension D + 1 + max(0, H − r(r+3)/2), r = min(D, H−1): the scale "
    "of W, the D shifts 1γᵀ, and in very wide layers trades between gain and weights.",
    r"\dim\ker F = D + 1 + \max(0, H - r(r+3)/2)",
    lambda p: _with_data(p, "ln", _ln),
)
_nullspace_claim(
    "nullspace.rms",
    "RMS norm's has dimension 1 + max(0, H − r(r+1)/2), r = min(D, H).",
    r"\dim\ker F = 1 + \max(0, H - r(r+1)/2)",
    lambda p: _with_data(p, "rms", _rms),
)
_nullspace_claim(
    "nullspace.gn",
    "Group norm's is the sum over groups of layer norm's with H/G units.",
    r"\dim\ker F = \sum_{\text{groups}} \dim\ker F_{\mathrm{LN}}(H/G)",
    lambda p: _with_data(p, "gn", lambda h, d: 2 * _ln(h // 2, d)),
)
_nullspace_claim(
    "nullspace.bn",
    "Batch norm's has dimension H(D − r + 1), r the rank of Cov x: each w_i, and what the data cannot see.",
    r"\dim\ker F = H(D - \mathrm{rank}\,\mathrm{Cov}\,x + 1)",
    lambda p: _with_data(p, "bn", lambda h, d: h),
)
_nullspace_claim(
    "nullspace.wn",
    "Weight norm's has dimension H on data of full rank: each w_i.",
    r"\dim\ker F = H",
    lambda p: _with_data(p, "wn", lambda h, d: h),
)
_nullspace_claim(
    "nullspace.identity",
    "A GLM without normalization but with a gain has a null space of dimension H: w_i against g_i.",
    r"\dim\ker F = H",
    lambda p: _with_data(p, "identity", lambda h, d: h),
    assumptions=("Λ ≻ 0", "every g_i ≠ 0"),
)
_nullspace_claim(
    "nullspace.softmax_ln",
    "With a softmax output, layer norm's has dimension D + 2 + max(0, H − r(r+1)/2), r = min(D, H−1).",
    r"\dim\ker F = D + 2 + \max(0, H - r(r+1)/2)",
    lambda p: _with_data(p, "ln", lambda h, d: d + 2 + _wide(h, min(d, h - 1), 1), family=families.Categorical()),
    assumptions=("every g_i ≠ 0", "ε = 0"),
)
_nullspace_claim(
    "nullspace.softmax_rms",
    "With a softmax output, RMS norm's has dimension 2 + max(0, H + r − r(r+1)/2), r = min(D, H).",
    r"\dim\ker F = 2 + \max(0, H + r - r(r+1)/2)",
    lambda p: _with_data(p, "rms", lambda h, d: 2 + _wide(h, min(d, h), -1), family=families.Categorical()),
    assumptions=("every g_i ≠ 0", "ε = 0"),
)
_nullspace_claim(
    "nullspace.ln_eps",
    "With ε > 0 layer norm keeps the D shifts and loses the scale; RMS norm, unless it is very wide, has full rank; "
    "batch norm keeps its dimension.",
    r"\dim\ker F = D + \max(0, H - r(r+3)/2)",
    lambda p: [
        *_with_data(p, normalizers.LayerNorm(eps=0.1), lambda h, d: _ln(h, d) - 1),
        *_shapes(p, normalizers.RMSNorm(eps=0.1), lambda h, d: _rms(h, d) - 1, ((6, 4), (12, 2))),
        *_shapes(p, normalizers.BatchNorm(eps=0.1), lambda h, d: h, ((6, 4),)),
    ],
    assumptions=("ε > 0", "every g_i ≠ 0", "no constant combination of the inputs"),
)


@claim(
    "nullspace.bn_evaluation",
    topic=TOPIC,
    source="Section 5.2 (not in the paper)",
    statement=(
        "Batch norm with stored statistics has a null space of dimension H, w_i against g_i and b_i: not that of "
        "training."
    ),
    expected=Verdict.HOLDS,
)
def bn_evaluation(problem: Problem):
    """Dimension H in both modes, but in different directions."""
    case = problem.small("bn")
    stored = normalizers.BatchNorm().evaluation(case.params.weights, case.inputs)
    evaluation = Case(NormalizedGLM(stored, case.model.family), case.params, case.inputs)
    yield from evidence("stored statistics", evaluation, case.params.units)
    basis = predicted_nullspace(*case).basis
    moved = np.linalg.norm(np.asarray(_factor(*evaluation)) @ basis)
    yield agree("training's null directions do move the evaluation output", np.array([moved > 1e-2]), np.array([True]))


@claim(
    "nullspace.completeness",
    topic=TOPIC,
    source="Eq. 6 (not in the paper)",
    statement=(
        "Eq. 6 lists all continuous weight symmetries of layer norm: the weights' part of the null space has "
        "the dimension "
        "D + 1 of the orbit of W under W → δW + 1γᵀ."
    ),
    assumptions=("rank PW ≥ 2", "ε = 0"),
    expected=Verdict.CONDITIONAL,
)
def completeness(problem: Problem):
    """The kernel of ∂z/∂W alone, against the tangent space of the orbit; for W of rank one the kernel is larger."""
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


def _weights_kernel(case: Case) -> np.ndarray:
    """Orthonormal basis of the kernel of ∂z/∂W."""
    columns = np.asarray(_factor(*case))[:, : case.params.units * case.params.inputs]
    _, values, right = np.linalg.svd(columns)
    return right[decide_rank(values, *columns.shape, scale=float(_scale(*case))).rank :].T


def _orbit_tangent(case: Case) -> np.ndarray:
    """Columns that span the tangent of {δW + 1γᵀ} at W."""
    shifts = np.tile(np.eye(case.params.inputs), (case.params.units, 1))
    return np.concatenate([np.asarray(case.params.weights).reshape(-1, 1), shifts], 1)


@claim(
    "nullspace.rank_deficient_data",
    topic=TOPIC,
    source="Section 5.2 (not in the paper)",
    statement=(
        "On data of rank r < D (constant-zero pixels), every row of W also has D − r null directions that no "
        "datum sees."
    ),
    expected=Verdict.HOLDS,
)
def rank_deficient_data(problem: Problem):
    """Data with two zero columns: layer norm gains 2(H − 1) directions, the shifts being counted already."""
    case = problem.small("ln", shape=(80, 6, 7))
    full = predicted_nullspace(*case).dimension
    deficient = Case(case.model, case.params, case.inputs.at[:, :2].set(0.0))
    yield from evidence("two zero columns", deficient, full + 2 * (case.params.units - 1))

r"""Null directions of the Fisher matrix, for all sizes, and exact ranks that leave no room for more of them.

Each direction annihilates every row of the Jacobian of z, for every x, so the null space is at least as large as
their span. That it is no larger: the rank over a prime field of the same Jacobian, at a point where its square roots
exist, is a lower bound of the rank at almost every real point (a minor that is not zero modulo a prime is not zero).
"""

import random
from collections.abc import Callable, Sequence

import sympy as sp
from sympy import Expr, KroneckerDelta, sqrt

from lngeom.symbolic.layers import (
    BATCH_NORM,
    BATCH_NORM_EVALUATION,
    GROUP_NORM,
    IDENTITY,
    LAYER_NORM,
    RMS_NORM,
    STORED_MEAN,
    STORED_VARIANCE,
    WEIGHT_NORM,
    Layer,
    Method,
)
from lngeom.symbolic.modular import PRIME, jacobian_rows, random_layer, rank
from lngeom.symbolic.proof import Assumption, Proof, Step, equality, fact
from lngeom.symbolic.registry import proves
from lngeom.symbolic.sums import D, Field, H, N, derivative, field, i, j, mean, n, p, total

LAYER = Layer()
GAIN, SHIFT, TILT = field("g"), field("gamma"), field("e")
SPAN = Assumption(
    "outputs have positive variance, inputs span and fill an open set, gains are not zero",
    r"\Lambda \succ 0,\ g_i \neq 0,\ \sigma > 0,\ \epsilon = 0",
)


def along(method: Method, V: Field, eps: Expr = sp.S.Zero, sample=n, unit=None) -> Expr:
    """Derivative of the normalized summed inputs when W moves in the direction V."""
    return derivative(lambda t: method(LAYER.towards(V, t), sample, unit, eps))


def null_step(text: str, method: Method, V: Field, extra: Expr | int = 0) -> Step:
    """The step that dz = g dn + extra is zero for all x."""
    unit = method.unit
    gain = GAIN(unit)
    return equality(text, gain * along(method, V) + extra, 0, r"dz_{ni}")


RADIAL: Field = lambda i, d: LAYER.W(i, d)
SHIFTS: Field = lambda i, d: SHIFT(d)


def rows_alone(scale: Field) -> Field:
    """The direction that scales each row by a factor of its own."""
    return lambda i, d: scale(i) * LAYER.W(i, d)


def rank_step(name: str, cases: Sequence[tuple[tuple[int, ...], int]], *, softmax: bool = False) -> Step:
    """The step that the null space has these dimensions, at these sizes (H, D), for almost all W, g and x.

    Args:
        name: kind of layer, as in `jacobian_rows`.
        cases: sizes and the dimension expected.
        softmax: whether outputs feed a softmax, which does not see a common shift of z.

    Returns:
        The step.
    """

    def verify() -> bool:
        return all(nullity(name, sizes, softmax=softmax) == expected for sizes, expected in cases)

    listed = ", ".join(f"{expected} at (H, D) = {sizes}" for sizes, expected in cases)
    latex = r"\dim\ker F = " + ",\\ ".join(rf"{expected}\,{sizes}" for sizes, expected in cases)
    return fact(
        f"At these sizes there are no others: the exact rank modulo {PRIME} leaves a null space of dimension",
        latex,
        verify,
        listed,
    )


def nullity(name: str, sizes: tuple[int, ...], *, softmax: bool = False, seed: int = 2016) -> int:
    """H(D + 2) minus the exact rank of the Jacobian at a random point of a prime field."""
    H, D = sizes[:2]
    draw = random.Random(f"{name}{sizes}{seed}")
    layer = random_layer(name, H, D, cases=D + 2 + (D * (D + 5)) // 2 + 4, draw=draw)
    return H * (D + 2) - rank(jacobian_rows(name, layer, softmax=softmax))


def _layer_norm_dimension(H: int, D: int) -> int:
    r = min(D, H - 1)
    return D + 1 + max(0, H - r * (r + 3) // 2)


def _rms_norm_dimension(H: int, D: int) -> int:
    r = min(D, H)
    return 1 + max(0, H - r * (r + 1) // 2)


def _softmax_layer_norm_dimension(H: int, D: int) -> int:
    r = min(D, H - 1)
    return D + 2 + max(0, H - r * (r + 1) // 2)


def _softmax_rms_norm_dimension(H: int, D: int) -> int:
    r = min(D, H)
    return 2 + max(0, H + r - r * (r + 1) // 2)


SIZES = ((3, 2), (3, 4), (4, 2), (5, 2), (5, 3), (6, 2), (8, 2), (10, 3), (11, 3))


def dimensions(formula: Callable[[int, int], int], sizes=SIZES) -> list[tuple[tuple[int, ...], int]]:
    """Sizes beside the formula's dimension at each."""
    return [(size, formula(*size)) for size in sizes]


def layer_norm_jacobian() -> tuple[Step, ...]:
    """The exact Jacobian of layer norm, its projector, and the rank of that."""
    V = field("V")
    moved = lambda j: total(lambda d: V(j, d) * LAYER.X(n, d), D)
    output = lambda j: LAYER_NORM(LAYER, n, j)
    projected = moved(i) - mean(moved, H) - output(i) * mean(lambda j: output(j) * moved(j), H)
    projector = lambda i, j: KroneckerDelta(i, j) - (1 + output(i) * output(j)) / H
    square = total(lambda k: projector(i, k) * projector(k, j), H)
    return (
        equality(
            "The Jacobian is the projector Π over σ",
            along(LAYER_NORM, V),
            projected / sqrt(LAYER_NORM.square(LAYER)),
            r"dn_i",
        ),
        equality("Π is a projector", square, projector(i, j), r"(\Pi^2)_{ij}"),
        equality("of rank H − 2, its trace", total(lambda k: projector(k, k), H), H - 2, r"\mathrm{tr}\,\Pi"),
    )


def wide_step(method: Method) -> Step:
    r"""The direction of very wide layers: dW = −diag(e)PW, dg = e⊙g leaves a multiple of two sums over e."""
    deviation = lambda j: LAYER_NORM.numerator(LAYER, n, j) if method is LAYER_NORM else LAYER.a(n, j)
    row = lambda j, d: LAYER.W(j, d) - mean(lambda l: LAYER.W(l, d), H)
    V: Field = lambda j, d: -TILT(j) * (row(j, d) if method is LAYER_NORM else LAYER.W(j, d))
    sigma, output = sqrt(method.square(LAYER)), method(LAYER)
    second = output * mean(lambda j: TILT(j) * deviation(j) ** 2, H) / sigma**2
    first = mean(lambda j: TILT(j) * deviation(j), H) / sigma if method is LAYER_NORM else 0
    latex_text = "vanish" if method is LAYER_NORM else "vanishes"
    sums_text = "Σ e u and Σ e u²" if method is LAYER_NORM else "Σ e a²"
    return equality(
        f"dW = −diag(e)PW with dg = e⊙g is null wherever {sums_text} {latex_text}",
        along(method, V) + TILT(i) * output,
        first + second,
        r"dz_i/g_i",
    )


@proves("nullspace.ln")
def layer_norm() -> Proof:
    """vec(W) and the D shifts 1γᵀ, and in very wide layers a few more."""
    return Proof(
        "nullspace.ln",
        r"\dim\ker F = D + 1 + \max(0, H - \tfrac{r(r+3)}{2}),\ r = \min(D, H-1)",
        (
            *layer_norm_jacobian(),
            null_step("W itself is null", LAYER_NORM, RADIAL),
            null_step("Every shift 1γᵀ is null", LAYER_NORM, SHIFTS),
            wide_step(LAYER_NORM),
            rank_step("LayerNorm", dimensions(_layer_norm_dimension)),
        ),
        (SPAN,),
    )


@proves("nullspace.rms")
def rms_norm() -> Proof:
    """vec(W), and in very wide layers a few more."""
    return Proof(
        "nullspace.rms",
        r"\dim\ker F = 1 + \max(0, H - \tfrac{r(r+1)}{2}),\ r = \min(D, H)",
        (
            null_step("W itself is null", RMS_NORM, RADIAL),
            wide_step(RMS_NORM),
            rank_step("RMSNorm", dimensions(_rms_norm_dimension)),
        ),
        (SPAN,),
    )


@proves("nullspace.gn")
def group_norm() -> Proof:
    """The weights of each group, and shifts of each group."""
    own = KroneckerDelta(p, sp.Symbol("r", integer=True, positive=True))
    selected = own.args[0] if own.args[0] != p else own.args[1]
    radial: Field = lambda i, d: KroneckerDelta(i[0], selected) * LAYER.W(i, d)
    shifts: Field = lambda i, d: KroneckerDelta(i[0], selected) * SHIFT(d)
    cases = [((H, D, 2), 2 * _layer_norm_dimension(H // 2, D)) for H, D in ((6, 2), (8, 2), (8, 3), (12, 2))]
    return Proof(
        "nullspace.gn",
        r"\dim\ker F = \sum_{\text{groups}} \left(D + 1 + \max(0, \tfrac HG - \tfrac{r(r+3)}{2})\right)",
        (
            null_step("The weights of group r alone are null", GROUP_NORM, radial),
            null_step("So is a shift of group r alone", GROUP_NORM, shifts),
            rank_step("GroupNorm", cases),
        ),
        (SPAN,),
    )


@proves("nullspace.bn")
def batch_norm() -> Proof:
    """Each row by itself, and directions in which the data do not vary."""
    V = field("V")
    own = lambda m: total(lambda d: V(i, d) * LAYER.X(m, d), D)
    spread = lambda m: own(m) - mean(own, N)
    output = lambda m: BATCH_NORM(LAYER, m, i)
    linear = (spread(n) - output(n) * mean(lambda m: output(m) * spread(m), N)) / sqrt(BATCH_NORM.square(LAYER))
    return Proof(
        "nullspace.bn",
        r"\dim\ker F = H(D - r + 1),\ r = \mathrm{rank}\,\mathrm{Cov}\,x",
        (
            null_step("Each row by itself is null", BATCH_NORM, rows_alone(field("s"))),
            equality(
                "The Jacobian sees a direction v only through v·(x − E x)",
                along(BATCH_NORM, V),
                linear,
                r"dn_{ni}",
            ),
            rank_step("BatchNorm", [((2, 2), 2), ((3, 3), 3), ((4, 2), 4)]),
            rank_step("BatchNorm of data constant in one input", [((2, 3), 4), ((3, 4), 6)]),
        ),
        (SPAN,),
    )


@proves("nullspace.wn")
def weight_norm() -> Proof:
    """Each row by itself."""
    return Proof(
        "nullspace.wn",
        r"\dim\ker F = H",
        (
            null_step("Each row by itself is null", WEIGHT_NORM, rows_alone(field("s"))),
            rank_step("WeightNorm", [((1, 3), 1), ((2, 2), 2), ((3, 3), 3)]),
        ),
        (SPAN,),
    )


def _gain_absorbs(name: str, method: Method, offset: Expr | int) -> Proof:
    """Scaling a row and shrinking its gain cancel: dw = s w, dg = −s g, db = −s·offset."""
    s = field("s")
    output = method(LAYER)
    return Proof(
        name,
        r"\dim\ker F = H:\ (w_i, -g_i, b_i\text{'s offset})",
        (
            null_step(
                "The gain absorbs the scale of a row",
                method,
                rows_alone(s),
                -s(i) * GAIN(i) * output - s(i) * offset,
            ),
            rank_step(method.name, [((1, 3), 1), ((2, 2), 2), ((3, 3), 3)]),
        ),
        (SPAN,),
    )


@proves("nullspace.identity")
def identity() -> Proof:
    """Without a norm, gain and weights are redundant."""
    return _gain_absorbs("nullspace.identity", IDENTITY, 0)


@proves("nullspace.bn_evaluation")
def batch_norm_evaluation() -> Proof:
    """With stored statistics, gain, bias and weights are redundant."""
    offset = GAIN(i) * STORED_MEAN(i) / sqrt(STORED_VARIANCE(i))
    return _gain_absorbs("nullspace.bn_evaluation", BATCH_NORM_EVALUATION, offset)


def _softmax_shift() -> Step:
    """Λ = diag(q) − qqᵀ annihilates the constant vector."""
    probability = lambda i: sp.exp(field("z")(i)) / total(lambda j: sp.exp(field("z")(j)), H)
    row = total(lambda j: KroneckerDelta(i, j) * probability(i) - probability(i) * probability(j), H)
    return equality("A common shift of all biases is null: Λ1 = 0", row, 0, r"(\Lambda\mathbf{1})_i")


@proves("nullspace.softmax_ln")
def softmax_layer_norm() -> Proof:
    """Layer norm before a softmax: one dimension more, the common shift of the biases."""
    return Proof(
        "nullspace.softmax_ln",
        r"\dim\ker F = D + 2 + \max(0, H - \tfrac{r(r+1)}{2}),\ r = \min(D, H-1)",
        (
            null_step("W itself is null", LAYER_NORM, RADIAL),
            null_step("Every shift 1γᵀ is null", LAYER_NORM, SHIFTS),
            _softmax_shift(),
            rank_step("LayerNorm", dimensions(_softmax_layer_norm_dimension), softmax=True),
        ),
        (SPAN,),
    )


@proves("nullspace.softmax_rms")
def softmax_rms_norm() -> Proof:
    """RMS norm before a softmax."""
    return Proof(
        "nullspace.softmax_rms",
        r"\dim\ker F = 2 + \max(0, H + r - \tfrac{r(r+1)}{2}),\ r = \min(D, H)",
        (
            null_step("W itself is null", RMS_NORM, RADIAL),
            _softmax_shift(),
            rank_step("RMSNorm", dimensions(_softmax_rms_norm_dimension), softmax=True),
        ),
        (SPAN,),
    )


@proves("nullspace.ln_eps")
def layer_norm_eps() -> Proof:
    """With ε > 0 the shifts stay null; the radial direction has a form proportional to ε²."""
    eps = sp.Symbol("epsilon", positive=True)
    variance = LAYER_NORM.square(LAYER, eps=eps)
    response = LAYER_NORM(LAYER, eps=eps) * eps / variance
    weight = field("lambda", positive=True)
    form = total(lambda j: weight(j) * (GAIN(j) * along(LAYER_NORM, RADIAL, eps, unit=j)) ** 2, H)
    stated = (eps / variance) ** 2 * total(lambda j: weight(j) * (GAIN(j) * LAYER_NORM(LAYER, n, j, eps)) ** 2, H)
    return Proof(
        "nullspace.ln_eps",
        r"1\gamma^\top \in \ker F;\quad \mathrm{vec}(W)^\top F\,\mathrm{vec}(W) = "
        r"E\left[(\epsilon/\sigma^2)^2 (g\odot n)^\top\Lambda(g\odot n)\right]",
        (
            equality("Shifts stay null for any ε", along(LAYER_NORM, SHIFTS, eps), 0, r"dn_i"),
            equality("The radial direction does not", along(LAYER_NORM, RADIAL, eps), response, r"dn_i"),
            equality("Its quadratic form, at each case", form, stated),
            rank_step("LayerNorm with eps", [((3, 2), 2), ((4, 2), 2), ((4, 3), 3), ((5, 3), 3)]),
        ),
        (SPAN,),
    )

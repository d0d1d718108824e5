r"""Data and shifts at which a "No" of the invariance table is a "Yes": what the layer does not see of them."""

import sympy as sp
from sympy import Expr, KroneckerDelta

from lngeom.symbolic.actions import ACTIONS, SHIFT
from lngeom.symbolic.invariance import SIGMA
from lngeom.symbolic.layers import BATCH_NORM, EPSILON, IDENTITY, LAYER_NORM, RMS_NORM, WEIGHT_NORM, Layer
from lngeom.symbolic.nullspaces import GAIN, LAYER, layer_norm_dimension, rank_step
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, matrix, refutation
from lngeom.symbolic.registry import proves
from lngeom.symbolic.sums import D, Field, H, N, derivative, e, field, i, k, mean, n, total
from lngeom.symbolic.table import counterexample

POSITIVE_EPSILON = sp.Symbol("epsilon", positive=True)


def with_product(rows: Field, direction: Field, value: Expr) -> Field:
    r"""Rows $r + (s - r^\top v)\,v/|v|^2$, whose product with v is s: every row of product s is of this form."""
    product = lambda row: total(lambda d: rows(row, d) * direction(d), D)
    length = total(lambda d: direction(d) ** 2, D)
    return lambda row, d: rows(row, d) + (value - product(row)) * direction(d) / length


def product_steps(rows: Field, direction: Field, row: Expr, value: Expr, text: str) -> tuple[Step, Step]:
    """The rows have that product, and rows that have it are left as they are: so these are all of them."""
    adjusted = with_product(rows, direction, value)
    return (
        equality(text, total(lambda d: adjusted(row, d) * direction(d), D), value),
        equality(
            "and no others do: adjusting what has that product already changes nothing",
            with_product(adjusted, direction, value)(row, e),
            adjusted(row, e),
        ),
    )


def half_way(sign: int) -> Layer:
    """The layer at inputs ±γ/2."""
    return Layer(LAYER.W, lambda s, d: sign * SHIFT(d) / 2)


@proves("table1.exception.ln_dataset_recentering")
def layer_norm_dataset_recentering() -> Proof:
    """Layer norm ignores a shift γ of all inputs if PWγ = 0; otherwise −γ/2 and γ/2 have opposite outputs."""
    s = sp.Symbol("s", real=True)
    moved = Layer(LAYER.W, lambda s, d: LAYER.X(s, d) + SHIFT(d))
    seen = lambda l: total(lambda d: (LAYER.W(l, d) - mean(lambda j: LAYER.W(j, d), H)) * SHIFT(d), D)
    unseen = with_product(LAYER.W, SHIFT, s)
    seen_shift = counterexample("a shift that layer norm sees", LAYER_NORM, ACTIONS["dataset_recentering"])

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
                "With them the output stays, for any ε",
                LAYER_NORM(Layer(unseen, moved.X), eps=EPSILON),
                LAYER_NORM(Layer(unseen, LAYER.X), eps=EPSILON),
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
                mean(lambda l: LAYER_NORM(half_way(1), n, l) ** 2, H),
                1,
            ),
            refutation("An exact instance of a shift that is seen", seen_shift),
        ),
        (SIGMA, Assumption("for all inputs, not those of one data set alone", r"\forall x", one)),
    )


@proves("table1.exception.bn_weight_recentering")
def batch_norm_weight_recentering() -> Proof:
    """Batch norm ignores a shift 1γᵀ of the weights if γᵀx is the same for all data."""
    s = sp.Symbol("s", real=True)
    shifted = lambda l, d: LAYER.W(l, d) + SHIFT(d)
    constant = with_product(LAYER.X, SHIFT, s)
    seen = lambda m: total(lambda d: SHIFT(d) * LAYER.X(m, d), D)
    pixel = lambda m, d: (1 - KroneckerDelta(d, e)) * LAYER.X(m, d) + KroneckerDelta(d, e) * s
    seen_shift = counterexample("a shift that batch norm sees", BATCH_NORM, ACTIONS["weight_matrix_recentering"])
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
                "On them the output stays, for any ε",
                BATCH_NORM(Layer(shifted, constant), eps=EPSILON),
                BATCH_NORM(Layer(LAYER.W, constant), eps=EPSILON),
            ),
            equality(
                "A constant pixel e is the case of γ that is zero elsewhere",
                BATCH_NORM(Layer(turned, pixel), eps=EPSILON),
                BATCH_NORM(Layer(LAYER.W, pixel), eps=EPSILON),
            ),
            refutation("On other data it does not", seen_shift),
        ),
        (SIGMA,),
    )


@proves("nullspace.rank_deficient_data")
def rank_deficient_data() -> Proof:
    """On data orthogonal to v each row may move along v; layer norm had counted one such direction for all rows."""
    v = field("v")
    data = with_product(LAYER.X, v, sp.S.Zero)
    layer = Layer(LAYER.W, data)
    one_row: Field = lambda l, d: KroneckerDelta(l, k) * v(d)
    absorbed = total(lambda d: LAYER.W(i, d) * v(d), D) / total(lambda d: LAYER.W(i, d) ** 2, D)
    row_slope = derivative(lambda t: WEIGHT_NORM(layer.towards(lambda l, d: v(d), t)))
    sizes = ((3, 4), (4, 4), (5, 5), (6, 4), (7, 6))
    dimension = lambda H, D: layer_norm_dimension(H, D - 2) + 2 * H
    return Proof(
        "nullspace.rank_deficient_data",
        r"v^\top x_n = 0\ \forall n \Rightarrow e_kv^\top \in \ker F;\quad "
        r"\dim\ker F = H(D - r) + \dim\ker F_{\mathrm{LN}}(H, r),\ r = \mathrm{rank}\,X",
        (
            *product_steps(LAYER.X, v, n, sp.S.Zero, "These data are orthogonal to v"),
            *(
                equality(
                    f"{method.name}: on them no output depends on the part of row k along v, for any ε",
                    method(layer.towards(one_row, sp.Symbol("t", real=True)), eps=EPSILON),
                    method(layer, eps=EPSILON),
                    r"n(W + te_kv^\top)",
                )
                for method in (IDENTITY, BATCH_NORM, LAYER_NORM, RMS_NORM)
            ),
            equality(
                "Weight norm sees it in ‖w‖, which the gain makes good: dg = g⟨w, v⟩/‖w‖²",
                GAIN(i) * row_slope + GAIN(i) * absorbed * WEIGHT_NORM(layer),
                0,
                r"dz_{ni}",
            ),
            rank_step("LayerNorm of data zero in two inputs", [(size, dimension(*size)) for size in sizes]),
        ),
        (
            Assumption(
                "outputs have positive variance, gains are not zero", r"\Lambda \succ 0,\ g_i \neq 0,\ \epsilon = 0"
            ),
            Assumption("inputs fill an open set of their span", r"\mathrm{rank}\,X = r,\ \sigma > 0"),
        ),
    )

"""Exceptions to the cells of Table 1 that say no: particular weights and data."""

import jax.numpy as jnp
import numpy as np
import sympy as sp
from sympy import Expr, KroneckerDelta

from lngeom.claims import (
    Problem,
    Verdict,
    agree,
    claim,
    differ,
)
from lngeom.claims.context import Read
from lngeom.claims.problem import Case
from lngeom.methods.transformations.actions import AffineAction, Transformation
from lngeom.methods.transformations.columns import (
    DATASET_RECENTERING,
    WEIGHT_MATRIX_RECENTERING,
)
from lngeom.papers.ba2016.rescaling import POSITIVE_EPSILON
from lngeom.papers.ba2016.table1 import TOPIC, outputs
from lngeom.symbolic.actions import SHIFT
from lngeom.symbolic.jacobian import LAYER, SIGMA, product_steps, with_product
from lngeom.symbolic.layers import BATCH_NORM, EPSILON, LAYER_NORM, Layer
from lngeom.symbolic.proof import (
    Assumption,
    Counterexample,
    Proof,
    equality,
    matrix,
    refutation,
)
from lngeom.symbolic.sums import D, H, N, e, field, i, mean, n, total
from lngeom.symbolic.table import counterexample


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


@exception_ln.proof()
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


@exception_bn.proof()
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

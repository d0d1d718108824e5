r"""Statements of Sections 1, 3 and 7 on cases, batches, training and test."""

import sympy as sp
from sympy import KroneckerDelta

from lngeom.symbolic.invariance import LAYER, changed
from lngeom.symbolic.layers import BATCH_NORM, EPSILON, LAYER_NORM, Layer
from lngeom.symbolic.proof import Counterexample, Proof, equality, fact, matrix, refutation
from lngeom.symbolic.registry import proves
from lngeom.symbolic.sums import field, i, j, k, m, n


def _other_cases_replaced() -> Layer:
    """The layer in which every case but case n is moved arbitrarily."""
    U = field("U")
    return Layer(LAYER.W, lambda s, d: LAYER.X(s, d) + (1 - KroneckerDelta(s, n)) * U(s, d))


@proves("statements.no_dependence_between_cases")
def no_dependence_between_cases() -> Proof:
    """The output for a case does not change when the other cases do; batch norm's does."""
    depends = changed(
        "statements.no_dependence_between_cases for batch norm",
        r"n_1 \text{ depends on } x_1 \text{ alone}",
        "Batch norm of the first case before (right) and after (left) the third case changes.",
        lambda v: BATCH_NORM.exactly(v["W"], v["X"]),
        lambda v: BATCH_NORM.exactly(v["W"], v["X'"]),
        {"W": matrix([[1]]), "X": matrix([[0], [1], [2]]), "X'": matrix([[0], [1], [5]])},
    )
    return Proof(
        "statements.no_dependence_between_cases",
        r"x_m \mapsto x_m + u_m\ \forall m \neq n \Rightarrow n_n \text{ stays}",
        (
            equality(
                "Case n keeps its output",
                LAYER_NORM(_other_cases_replaced(), eps=EPSILON),
                LAYER_NORM(LAYER, eps=EPSILON),
            ),
            refutation("Batch norm does not have this property", depends),
        ),
    )


@proves("statements.same_at_train_and_test")
def same_at_train_and_test() -> Proof:
    """Layer norm is one function of (W, x); batch norm in training differs from stored statistics."""
    differs = changed(
        "statements.same_at_train_and_test for batch norm",
        r"\text{batch norm of a batch} = \text{batch norm with statistics of the training data}",
        "Batch norm of x₁ in the batch x₁, x₂, x₃ (right) and with statistics 1 and 1 stored in training (left).",
        lambda v: BATCH_NORM.exactly(v["W"], v["X"]),
        lambda v: sp.ImmutableMatrix([[(v["W"] * v["X"].T)[0] - 1]]),
        {"W": matrix([[1]]), "X": matrix([[0], [1], [2]])},
    )
    alone = lambda v: LAYER_NORM.exactly(v[0], [list(v[1].row(0))])
    W, X = matrix([[1, 0], [0, 1], [1, 1]]), matrix([[1, 2], [3, 1], [0, 5]])
    return Proof(
        "statements.same_at_train_and_test",
        r"\mathrm{LN}(W, x)\text{ has no state: the batch around }x\text{ (training) or none (test) changes nothing}",
        (
            equality(
                "Any other batch around x gives the same",
                LAYER_NORM(_other_cases_replaced(), eps=EPSILON),
                LAYER_NORM(LAYER, eps=EPSILON),
            ),
            fact(
                "A batch of three and the case alone agree exactly",
                r"\mathrm{LN}(W, X)_1 = \mathrm{LN}(W, x_1)",
                lambda: LAYER_NORM.exactly(W, X).row(0) == alone((W, X)).row(0),
            ),
            refutation("Batch norm computes two different functions", differs),
        ),
    )


@proves("statements.batch_size_one")
def batch_size_one() -> Proof:
    """Layer norm is defined for a batch of one; batch norm of one case is 0/0."""
    W, X = matrix([[1, 0], [0, 1], [1, 1]]), matrix([[1, 2]])
    a = sp.Symbol("a", real=True)
    return Proof(
        "statements.batch_size_one",
        r"N = 1:\ \sigma_{LN}^2 > 0 \text{ at some } (W, x),\quad \sigma_{BN} = 0 \text{ at all}",
        (
            fact(
                "Layer norm of one case has an exact value with positive variance",
                r"\sigma_{LN}^2 = \tfrac23",
                lambda: LAYER_NORM.rows(W.tolist(), X.tolist(), sp.S.Zero)[0][0][1] == sp.Rational(2, 3),
            ),
            fact(
                "Batch norm of one case is 0/0, whatever its summed input a is",
                r"N = 1:\ \sigma_{BN}^2 = 0",
                lambda: BATCH_NORM.rows([[a]], [[sp.S.One]], sp.S.Zero) == [[(0, 0)]],
            ),
        ),
    )


@proves("statements.shared_statistics")
def shared_statistics() -> Proof:
    """All units of a case share μ and σ; different cases have different ones."""
    average = lambda unit: LAYER.a(n, unit) - LAYER_NORM.numerator(LAYER, n, unit)
    W, X = matrix([[1, 0], [0, 1], [1, 1]]), matrix([[1, 2], [3, 1]])
    statistics = lambda v: sp.ImmutableMatrix(
        [[row[0][1]] for row in LAYER_NORM.rows(v["W"].tolist(), v["X"].tolist(), sp.S.Zero)]
    )
    differ = Counterexample(
        "statements.shared_statistics across cases",
        r"\sigma^2(x_1) = \sigma^2(x_2)",
        {"W": W, "X": X},
        lambda v: (statistics(v)[0], statistics(v)[1]),
        "σ² of the first (left) and second (right) case.",
    )
    batch = lambda v: BATCH_NORM.rows(v["W"].tolist(), v["X"].tolist(), sp.S.Zero)[0]
    per_unit = Counterexample(
        "statements.shared_statistics for batch norm",
        r"\sigma_1^2 = \sigma_2^2",
        {"W": W, "X": X},
        lambda v: (batch(v)[0][1], batch(v)[1][1]),
        "Batch norm's σ² of the first (left) and second (right) unit.",
    )
    return Proof(
        "statements.shared_statistics",
        r"\mu_{ni} = \mu_{nj},\ \sigma_{ni} = \sigma_{nj},\quad \sigma_{n} \neq \sigma_{m} \text{ in general}",
        (
            equality("Units i and j share the mean", average(i), average(j)),
            equality("and the scale", LAYER_NORM.square(LAYER, n, i), LAYER_NORM.square(LAYER, n, j)),
            refutation("Two cases with different scales", differ),
            equality(
                "Batch norm: cases n and m share the scale",
                BATCH_NORM.square(LAYER, n, k),
                BATCH_NORM.square(LAYER, m, k),
            ),
            refutation("but units do not", per_unit),
        ),
    )

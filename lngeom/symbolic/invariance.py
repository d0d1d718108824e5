r"""Sections 3 and 5.1: Eqs. 3, 6, 7 and the sentences around them, each proved, conditioned or refuted."""

from fractions import Fraction

import sympy as sp
from sympy import sqrt

from lngeom.symbolic.actions import ACTIONS, DELTA, SAMPLE_SCALE, SHIFT, WEIGHT_MATRIX_RESCALING
from lngeom.symbolic.layers import BATCH_NORM, EPSILON, LAYER_NORM, PRE_LAYER_NORM, WEIGHT_NORM, Layer, Method
from lngeom.symbolic.proof import Assumption, Counterexample, Proof, Step, equality, fact, matrix, refutation
from lngeom.symbolic.registry import proves
from lngeom.symbolic.sums import D, Field, H, N, field, i, mean, n, total
from lngeom.symbolic.table import counterexample, expansion, general_steps, prove

LAYER = Layer()
POSITIVE_EPSILON = sp.Symbol("epsilon", positive=True)
SIGMA = Assumption("the scale is not zero", r"\sigma > 0")


def changed(name: str, statement: str, text: str, before, after, instance, *, entry=(0, 0), correction=None):
    """A counterexample to before(instance) = after(instance), matrices whose `entry` is compared."""
    return Counterexample(
        name,
        statement,
        instance,
        lambda v: (sp.sympify(after(v))[entry], sp.sympify(before(v))[entry]),
        text,
        correction,
    )


def undefined(text: str, method: Method, W, X) -> Step:
    """The step that numerator and square are both exactly zero at an instance: n = 0/0."""

    def verify() -> bool:
        rows = method.rows(W.tolist(), X.tolist(), sp.S.Zero)
        return all(numerator == 0 and square == 0 for row in rows for numerator, square in row)

    return fact(text, r"n = \tfrac{0}{0}", verify, f"n = 0/0 at W = {W.tolist()}, X = {X.tolist()}")


def standardizes(method: Method, size: sp.Expr) -> tuple[Step, Step]:
    """Over the index whose moments a method uses, n has mean zero and mean square one."""
    entry = (lambda t: method(LAYER, n, t)) if size is H else (lambda t: method(LAYER, t, i))
    return (
        equality("Normalized summed inputs have mean zero", mean(entry, size), 0),
        equality("and mean square one", mean(lambda t: entry(t) ** 2, size), 1),
    )


@proves("equation.3")
def equation_3() -> Proof:
    """Layer norm's μ and σ standardize the units of each case."""

    def one_unit() -> bool:
        a = sp.Symbol("a", real=True)
        return LAYER_NORM.rows([[a]], [[sp.S.One]], sp.S.Zero) == [[(0, 0)]]

    def two_units() -> bool:
        a, b = sp.symbols("a b", real=True)
        (pairs,) = LAYER_NORM.rows([[a], [b]], [[sp.S.One]], sp.S.Zero)
        return all(sp.expand(numerator**2 - square) == 0 for numerator, square in pairs)

    return Proof(
        "equation.3",
        r"\tfrac1H\sum_i n_i = 0,\quad \tfrac1H\sum_i n_i^2 = 1,\quad n_i = (a_i - \mu)/\sigma",
        (
            *standardizes(LAYER_NORM, H),
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


def scaled_epsilon_steps(method: Method, moved: Layer) -> tuple[Step, ...]:
    """What ε > 0 does to an exact scaling by δ: the ratio of outputs, and the ε that restores it."""
    variance, eps = method.square(LAYER), POSITIVE_EPSILON
    ratio = sqrt((variance + eps) / (variance + eps / DELTA**2))
    return (
        equality(
            "With ε the output changes by an exact ratio",
            method(moved, eps=eps),
            method(LAYER, eps=eps) * ratio,
            r"n'",
        ),
        equality("Replacing ε by δ²ε restores it", method(moved, eps=DELTA**2 * eps), method(LAYER, eps=eps)),
    )


def _scaling_assumptions(name: str, action) -> tuple[Assumption, ...]:
    return (
        Assumption(
            "positive factor",
            r"\delta > 0",
            counterexample(f"{name} with δ < 0", LAYER_NORM, action, delta=Fraction(-2)),
        ),
        Assumption(
            "no constant added to the variance",
            r"\epsilon = 0",
            counterexample(f"{name} with ε = 1", LAYER_NORM, action, eps=sp.S.One),
        ),
        SIGMA,
    )


@proves("equation.6", "conditional")
def equation_6() -> Proof:
    """Layer norm ignores a scale and a shift of the weight matrix."""
    moved = Layer(lambda i, d: DELTA * LAYER.W(i, d) + SHIFT(d), LAYER.X)
    negative = Layer(lambda i, d: -DELTA * LAYER.W(i, d) + SHIFT(d), LAYER.X)
    shifted = Layer(lambda i, d: LAYER.W(i, d) + SHIFT(d), LAYER.X)
    projected = total(lambda d: SHIFT(d) * LAYER.X(n, d), D)
    average = mean(lambda j: LAYER.a(n, j), H)
    return Proof(
        "equation.6",
        r"W' = \delta W + \mathbf{1}\gamma^\top \Rightarrow \mathbf{h}' = \mathbf{h}",
        (
            equality(
                "μ moves with the weights",
                mean(lambda j: moved.a(n, j), H),
                DELTA * average + projected,
                r"\mu'",
            ),
            equality(
                "σ is scaled",
                sqrt(LAYER_NORM.square(moved)),
                DELTA * sqrt(LAYER_NORM.square(LAYER)),
                r"\sigma'",
            ),
            equality("Normalized summed inputs stay", LAYER_NORM(moved), LAYER_NORM(LAYER), r"n'"),
            equality(
                "A negative scale changes the sign, which g → −g undoes",
                LAYER_NORM(negative),
                -LAYER_NORM(LAYER),
            ),
            *scaled_epsilon_steps(LAYER_NORM, moved),
            equality(
                "The shift is exact for any ε",
                LAYER_NORM(shifted, eps=EPSILON),
                LAYER_NORM(LAYER, eps=EPSILON),
            ),
            expansion(LAYER_NORM, WEIGHT_MATRIX_RESCALING),
            expansion(LAYER_NORM, ACTIONS["weight_matrix_recentering"]),
            undefined(
                "Where σ = 0 (all rows of W alike) neither side is defined",
                LAYER_NORM,
                matrix([[1, 2], [1, 2], [1, 2]]),
                matrix([[1, 1]]),
            ),
        ),
        _scaling_assumptions("equation.6", WEIGHT_MATRIX_RESCALING),
    )


@proves("equation.7", "conditional")
def equation_7() -> Proof:
    """Layer norm ignores the scale of a training case."""
    action = ACTIONS["single_case_rescaling"]
    moved = Layer(LAYER.W, lambda n, d: DELTA * LAYER.X(n, d))
    return Proof(
        "equation.7",
        r"x' = \delta x \Rightarrow h' = h",
        (
            equality(
                "σ is scaled",
                sqrt(LAYER_NORM.square(moved)),
                DELTA * sqrt(LAYER_NORM.square(LAYER)),
                r"\sigma'",
            ),
            *general_steps(LAYER_NORM, action, SAMPLE_SCALE(n), sp.S.Zero),
            *scaled_epsilon_steps(LAYER_NORM, moved),
            expansion(LAYER_NORM, action),
            undefined("x = 0 has no output", LAYER_NORM, matrix([[1, 2], [0, 1], [1, 0]]), matrix([[0, 0]])),
        ),
        _scaling_assumptions("equation.7", action),
    )


@proves("equation.4", "conditional")
def equation_4() -> Proof:
    """A layer normalized recurrent step ignores the scale of all its summed inputs."""
    h, x, U, V = field("h"), field("x"), field("U"), field("V")
    a = lambda i: total(lambda j: U(i, j) * h(j), H) + total(lambda d: V(i, d) * x(d), D)

    def normalized(a: Field, eps=sp.S.Zero):
        average = mean(a, H)
        return (a(i) - average) / sqrt(mean(lambda j: (a(j) - average) ** 2, H) + eps)

    scaled = lambda i: DELTA * a(i)
    variance = mean(lambda j: (a(j) - mean(a, H)) ** 2, H)
    eps = POSITIVE_EPSILON
    ratio = sqrt((variance + eps) / (variance + eps / DELTA**2))
    return Proof(
        "equation.4",
        r"a^t \mapsto \delta a^t,\ a^t = W_{hh}h^{t-1} + W_{xh}x^t \Rightarrow h^t \text{ stays}",
        (
            equality("Normalized summed inputs stay", normalized(scaled), normalized(a), r"n'"),
            equality("With ε they change by an exact ratio", normalized(scaled, eps), normalized(a, eps) * ratio),
            equality(
                "Scaling both weight matrices scales all summed inputs",
                scaled(i),
                _recurrent(h, x, U, V, DELTA),
            ),
        ),
        _scaling_assumptions("equation.4", WEIGHT_MATRIX_RESCALING),
    )


def _recurrent(h: Field, x: Field, U: Field, V: Field, scale):
    return total(lambda j: scale * U(i, j) * h(j), H) + total(lambda d: scale * V(i, d) * x(d), D)


@proves("text.references_swapped", "refuted")
def references_swapped() -> Counterexample:
    """Read in order, the text after Eq. 5 gives layer norm the statistics of batch norm."""
    correct = Proof(
        "text.references_swapped corrected",
        r"\text{layer norm is Eq. 3, batch norm is Eq. 2}",
        (*standardizes(LAYER_NORM, H), *standardizes(BATCH_NORM, N)),
        (SIGMA,),
    )
    return changed(
        "text.references_swapped",
        r"\text{layer norm's }\mu\text{ is that of Eq. 2, batch norm's that of Eq. 3}",
        "The normalized first unit of the first case by Eq. 3 (left) and by Eq. 2 (right).",
        lambda v: BATCH_NORM.exactly(v["W"], v["X"]),
        lambda v: LAYER_NORM.exactly(v["W"], v["X"]),
        {"W": matrix([[1, 0], [0, 1], [1, 1]]), "X": matrix([[1, 0], [0, 1], [3, 2]])},
        correction=correct,
    )


@proves("text.all_methods_dataset_rescaling", "refuted")
def all_methods_dataset_rescaling() -> Counterexample:
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
    return counterexample(name, WEIGHT_NORM, ACTIONS["dataset_rescaling"], correction=correct)


@proves("text.feature_shifting", "refuted")
def feature_shifting() -> Counterexample:
    """Layer norm ignores a shift of the summed inputs, not of the features."""
    c, s = sp.symbols("c s", real=True)
    tilted = lambda i, d: LAYER.W(i, d) + (s - total(lambda e: LAYER.W(i, e), D)) / D
    same_row_sums, moved = Layer(tilted, LAYER.X), Layer(tilted, lambda n, d: LAYER.X(n, d) + c)
    any_moved = Layer(LAYER.W, lambda n, d: LAYER.X(n, d) + c)
    row_sum = lambda i: total(lambda d: LAYER.W(i, d), D)
    biased = lambda j: LAYER.a(n, j) + c
    correct = Proof(
        "text.feature_shifting corrected",
        r"n(a + c\mathbf{1}) = n(a);\quad "
        r"n(x + c\mathbf{1}_D) = n(x) \text{ if } W\mathbf{1}_D \in \mathrm{span}(\mathbf{1}_H)",
        (
            equality("Summed inputs may be shifted", biased(i) - mean(biased, H), LAYER_NORM.numerator(LAYER)),
            equality(
                "A shift of the features moves the centred summed inputs by c P W 1",
                LAYER_NORM.numerator(any_moved) - LAYER_NORM.numerator(LAYER),
                c * (row_sum(i) - mean(row_sum, H)),
            ),
            equality("Every row of these weights sums to s", total(lambda d: tilted(i, d), D), s),
            equality("With them features may be shifted too", LAYER_NORM(moved), LAYER_NORM(same_row_sums)),
        ),
        (SIGMA,),
    )
    return counterexample(
        "text.feature_shifting", LAYER_NORM, ACTIONS["single_case_constant_shift"], correction=correct
    )


@proves("text.prenorm_loses_weight_invariance")
def prenorm_loses_weight_invariance() -> Proof:
    """Normalizing only the input leaves the output linear in the weights."""
    scaled = Layer(lambda i, d: DELTA * LAYER.W(i, d), LAYER.X)
    shifted = Layer(lambda i, d: LAYER.W(i, d) + SHIFT(d), LAYER.X)
    only_shift = Layer(lambda i, d: SHIFT(d), LAYER.X)
    cells = [prove("PreLayerNorm", name) for name in ("weight_matrix_rescaling", "weight_matrix_recentering")]
    return Proof(
        "text.prenorm_loses_weight_invariance",
        r"z = W\,\mathrm{LN}(x):\ z(\delta W + \mathbf{1}\gamma^\top) = "
        r"\delta z + \gamma^\top\mathrm{LN}(x)\,\mathbf{1} \neq z",
        (
            equality("A scale passes through", PRE_LAYER_NORM(scaled), DELTA * PRE_LAYER_NORM(LAYER)),
            equality(
                "and so does a shift",
                PRE_LAYER_NORM(shifted),
                PRE_LAYER_NORM(LAYER) + PRE_LAYER_NORM(only_shift),
            ),
            *(refutation("An exact instance", cell) for cell in cells if isinstance(cell, Counterexample)),
        ),
        (SIGMA,),
    )


@proves("text.prenorm_gains_row_shift")
def prenorm_gains_row_shift() -> Proof:
    """Normalizing the input makes the sum of each row of weights irrelevant."""
    action = ACTIONS["weight_vector_constant_shift"]
    normalized = lambda d: (LAYER.X(n, d) - mean(lambda e: LAYER.X(n, e), D)) / sqrt(PRE_LAYER_NORM.square(LAYER))
    return Proof(
        "text.prenorm_gains_row_shift",
        r"z = W\,\mathrm{LN}(x):\ w_i \mapsto w_i + "
        r"c_i\mathbf{1}_D \text{ and } x \mapsto \delta x + c\mathbf{1} \text{ leave } z",
        (
            equality("Normalized inputs sum to zero", total(normalized, D), 0),
            *general_steps(PRE_LAYER_NORM, action, sp.S.One, EPSILON),
            expansion(PRE_LAYER_NORM, action),
            *general_steps(PRE_LAYER_NORM, ACTIONS["single_case_constant_shift"], sp.S.One, EPSILON),
            *general_steps(PRE_LAYER_NORM, ACTIONS["dataset_rescaling"], DELTA, sp.S.Zero),
        ),
        (SIGMA,),
    )


@proves("text.bias_before_norm", "conditional")
def bias_before_norm() -> Proof:
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
        "n of the first unit at δW (left) and at W (right), the bias c fixed.",
        lambda v: exactly(v, 1),
        lambda v: exactly(v, v[r"\delta"]),
        {
            "W": matrix([[1, 0], [0, 0], [0, 0]]),
            "X": matrix([[1, 0]]),
            "c": matrix([[0], [1], [0]]),
            r"\delta": 2,
        },
    )
    return Proof(
        "text.bias_before_norm",
        r"a = Wx + c:\quad \mathrm{LN}(\delta Wx + \delta c + \gamma^\top x\,\mathbf{1}) = \mathrm{LN}(Wx + c)",
        (
            equality(
                "The shift of the weights stays an invariance",
                normalized(1, 1, projected),
                normalized(1, 1, 0),
            ),
            equality("The scale is one if it scales c too", normalized(DELTA, DELTA, 0), normalized(1, 1, 0)),
        ),
        (
            Assumption("the bias before the norm is zero, or scaled too", r"c \mapsto \delta c", dropped),
            SIGMA,
        ),
    )

"""A false identity planted in each family of proofs is refused, or comes back as a counterexample."""

import dataclasses
import random

import numpy as np
import pytest
import sympy as sp
from lngeom.methods.transformations import DATASET_RECENTERING, SINGLE_CASE_RESCALING, WEIGHT_MATRIX_RESCALING
from lngeom.papers.ba2016 import nullspace_bound as bound
from lngeom.papers.ba2016.exceptions import half_way
from lngeom.papers.ba2016.fisher import chi, own_rows, weight_blocks
from lngeom.papers.ba2016.kl_metric import eta
from lngeom.papers.ba2016.lg_fisher import LAMBDA, PHI, SMALL
from lngeom.papers.ba2016.metric import gain_form
from lngeom.papers.ba2016.nullspace import LN
from lngeom.papers.ba2016.rescaling import scaled_epsilon_steps
from lngeom.papers.ba2016.score import JACOBIAN, OUTCOME, expectation, residual, score, score_steps
from lngeom.papers.ba2016.statements import BIAS, along_ray, plain
from lngeom.papers.training.learning_rate import EPS
from lngeom.symbolic import Counterexample, Proof, prove
from lngeom.symbolic.actions import DELTA, moved as moved_by
from lngeom.symbolic.jacobian import (
    GAIN,
    LAYER,
    RADIAL,
    SHIFTS,
    along,
    null_step,
    nullity,
    rank_step,
    rows_alone,
    with_product,
)
from lngeom.symbolic.layers import BATCH_NORM, EPSILON, LAYER_NORM, METHODS, RMS_NORM, WEIGHT_NORM, Layer
from lngeom.symbolic.modular import (
    PRIME,
    FieldLayer,
    NotInFieldError,
    PrimeField,
    inverse,
    jacobian_rows,
    random_layer,
    rank,
    reduced,
    square_root,
)
from lngeom.symbolic.proof import ProofError, equality, expanded, fact
from lngeom.symbolic.scale_free import (
    RATE,
    WEIGHT_FACTOR,
    dot,
    gradient_scaling,
    minus,
    perpendicular,
    scaled_layer,
    squared_tangent,
)
from lngeom.symbolic.sums import D, H, KroneckerDelta, N, d, field, i, k, mean, n, total
from lngeom.symbolic.table import expansion, general_steps
from sympy import sqrt

pytestmark = pytest.mark.thorough


V = field("V")
w, v = field("w"), field("v")
gamma = field("gamma")
gradient = perpendicular(v, w)
moved = total(lambda d: v(d) * LAYER.X(n, d), D)
output = lambda l: LAYER_NORM(LAYER, n, l)  # noqa: E731
z, y = sp.symbols("z y", real=True)
GROUP, WITH_EPS = bound.Grouped(LAYER_NORM), bound.Grouped(LAYER_NORM, eps=EPSILON)

FALSE_STEPS = {
    "table: a factor squared": lambda: general_steps(LAYER_NORM, WEIGHT_MATRIX_RESCALING, DELTA**2, sp.S.Zero)[1],
    "table: batch norm and a single case": lambda: general_steps(
        BATCH_NORM, SINGLE_CASE_RESCALING, sp.S.One, sp.S.Zero
    )[2],
    "invariance: the shift of the data under layer norm": lambda: equality(
        "", LAYER_NORM(moved_by(DATASET_RECENTERING, LAYER)), LAYER_NORM(LAYER)
    ),
    "invariance: ε restored by cε": lambda: equality(
        "", LAYER_NORM(scaled_layer(), eps=WEIGHT_FACTOR * EPS), LAYER_NORM(LAYER, eps=EPS)
    ),
    "invariance: ε makes no difference": lambda: equality(
        "", LAYER_NORM(scaled_layer(), eps=EPS), LAYER_NORM(LAYER, eps=EPS)
    ),
    "generalized linear model: variance without dispersion": lambda: expanded(
        "", "", sp.diff(sp.exp((z * y - eta(z, 0)) / PHI), z, 2) - ((y - eta(z, 1)) ** 2 / PHI**2 - eta(z, 2))
    ),
    "Fisher: the printed Jacobian of layer norm": lambda: own_rows(LAYER_NORM, V, chi(LAYER_NORM, V))[0],
    "Fisher: χ without the slope of σ": lambda: equality(
        "", chi(WEIGHT_NORM, V), total(lambda d: V(i, d) * LAYER.X(n, d), D)
    ),
    "Fisher: a Jacobian with 1/H forgotten": lambda: equality(
        "",
        along(LAYER_NORM, lambda l, d: KroneckerDelta(l, i) * v(d), unit=k),
        (KroneckerDelta(k, i) - (1 + output(k) * output(i))) * moved / sqrt(LAYER_NORM.square(LAYER)),
    ),
    "scaling: the printed half": lambda: equality(
        "", along(LAYER_NORM, V) ** 2 / DELTA, (along(LAYER_NORM, V) / DELTA) ** 2
    ),
    "null space: a single row of layer norm": lambda: null_step("", LAYER_NORM, rows_alone(field("s"))),
    "null space: shifts of batch norm": lambda: null_step("", BATCH_NORM, SHIFTS),
    "null space: shifts of RMS norm": lambda: null_step("", RMS_NORM, SHIFTS),
    "null space: W without its gain, unnormalized": lambda: null_step("", METHODS["Identity"], RADIAL),
    "null space: W with ε": lambda: equality("", along(LAYER_NORM, RADIAL, EPS), 0),
    "null space: a dimension too many": lambda: rank_step(LAYER_NORM, [((4, 2), LN.dimension(4, 2) + 1)]),
    "null space: a dimension too few": lambda: rank_step(BATCH_NORM, [((2, 2), 1)]),
    "null space, bound: the biases forgotten": lambda: equality(
        "", GROUP.sigma**3 * GROUP.moved(), bound.cubic(i), short=GROUP.names("u", "v", "q", "s")
    ),
    "null space, bound: ε forgotten": lambda: equality(
        "",
        WITH_EPS.sigma**3 * WITH_EPS.moved(),
        bound.cubic(i) + bound.BIAS(i) * WITH_EPS.sigma**3,
        short=WITH_EPS.names("u", "v", "q", "s"),
    ),
    "null space, softmax: weight norm without what the gain makes good": lambda: equality(
        "",
        GAIN(i) * along(WEIGHT_NORM, lambda l, d: field("alpha")(d) * sqrt(WEIGHT_NORM.square(LAYER)) / GAIN(l)),
        total(lambda d: field("alpha")(d) * LAYER.X(n, d), D),
    ),
    "null space, bound: RMS norm's trades under layer norm": lambda: equality(
        "",
        GROUP.moved(lambda j, d: -bound.TILT(j) * GROUP.centred(LAYER.W)(j, d)) - bound.BIAS(i),
        LAYER_NORM(LAYER) * mean(lambda j: bound.TILT(j) * GROUP.u(j) ** 2, H) / GROUP.sigma**2,
    ),
    "null space, bound: two rows the same": lambda: fact(
        "",
        "",
        lambda: (
            bound.equations_rank([*bound.centred_rows(9, 3)[:8], bound.centred_rows(9, 3)[1]], linear=True, form=False)
            == 9
        ),
    ),
    "gains: n² off by a factor": lambda: equality("", gain_form_value(), 2 * gain_form_value()),
    "gains: E[λn²] is E[λ]": lambda: equality(
        "", mean(lambda m: LAMBDA(m) * BATCH_NORM(LAYER, m, i) ** 2, N), mean(LAMBDA, N)
    ),
    "dynamics: −ε for −2ε": lambda: equality(
        "", along(LAYER_NORM, RADIAL, EPS), -EPS * LAYER_NORM(LAYER, eps=EPS).diff(EPS)
    ),
    "dynamics: growth of a step that is not orthogonal": lambda: equality(
        "", dot(minus(w, RATE, v), minus(w, RATE, v)), dot(w, w) + RATE**2 * dot(v, v)
    ),
    "dynamics: growth by η for η²": lambda: equality(
        "",
        dot(minus(w, RATE, perpendicular(v, w)), minus(w, RATE, perpendicular(v, w))),
        dot(w, w) + RATE * dot(perpendicular(v, w), perpendicular(v, w)),
    ),
    "dynamics: the angle goes as 1/c": lambda: equality(
        "",
        squared_tangent(lambda d: DELTA * w(d), lambda d: gradient(d) / DELTA, RATE),
        squared_tangent(w, gradient, RATE) / DELTA**2,
    ),
    "dynamics: the angle of a step that is not orthogonal": lambda: equality(
        "", squared_tangent(w, v, RATE), RATE**2 * dot(v, v) / dot(w, w)
    ),
    "score: φ forgotten": lambda: equality("", score(n, d), total(lambda l: residual(n, l) * JACOBIAN(l, d), H)),
    "score: second moments for covariances": lambda: equality(
        "",
        expectation(lambda o: residual(o, k) * residual(o, i)),
        expectation(lambda o: OUTCOME(o, k) * OUTCOME(o, i)),
    ),
    "score: mean over outcomes that are equally likely": lambda: equality("", mean(lambda o: score(o, d), N), 0),
    "exceptions: layer norm and a shift with Wγ arbitrary": lambda: equality(
        "", LAYER_NORM(Layer(LAYER.W, lambda s, d: LAYER.X(s, d) + gamma(d))), LAYER_NORM(LAYER)
    ),
    "exceptions: opposite inputs with equal outputs": lambda: equality(
        "", LAYER_NORM(half_way(1), eps=EPS), LAYER_NORM(half_way(-1), eps=EPS)
    ),
    "exceptions: RMS norm and a shift with Wγ = s1": lambda: equality(
        "",
        RMS_NORM(Layer(with_product(LAYER.W, gamma, z), lambda s, d: LAYER.X(s, d) + gamma(d))),
        RMS_NORM(Layer(with_product(LAYER.W, gamma, z), LAYER.X)),
    ),
    "exceptions: weight norm on data with γᵀx = s": lambda: equality(
        "",
        WEIGHT_NORM(Layer(lambda l, d: LAYER.W(l, d) + gamma(d), with_product(LAYER.X, gamma, z))),
        WEIGHT_NORM(Layer(LAYER.W, with_product(LAYER.X, gamma, z))),
    ),
    "exceptions: arbitrary rows have the product": lambda: equality(
        "",
        total(lambda d: LAYER.W(i, d) * gamma(d), D),
        total(lambda d: with_product(LAYER.W, gamma, z)(i, d) * gamma(d), D),
    ),
    "exceptions: weight norm does not see v": lambda: equality(
        "",
        WEIGHT_NORM(Layer(LAYER.W, with_product(LAYER.X, v, sp.S.Zero)).towards(lambda l, d: v(d), z)),
        WEIGHT_NORM(Layer(LAYER.W, with_product(LAYER.X, v, sp.S.Zero))),
    ),
    "exceptions: one row less of unseen directions": lambda: rank_step(
        LAYER_NORM, [((4, 4), LN.dimension(4, 2) + 2 * 3)], fixed=(0, 0)
    ),
    "statements: layer norm's weights the same for every case": lambda: plain(
        LAYER_NORM, GAIN(i) / sqrt(LAYER_NORM.square(LAYER)), BIAS(i), sp.S.One, sp.S.Zero
    )[1],
    "statements: batch norm without its mean": lambda: plain(
        BATCH_NORM, GAIN(i) / sqrt(BATCH_NORM.square(LAYER, eps=EPSILON)), BIAS(i), sp.S.One, sp.S.Zero
    )[0],
    "statements: weight norm with gain one is plain": lambda: plain(
        WEIGHT_NORM, sp.S.One, sp.S.Zero, sp.S.One, sp.S.Zero
    )[2],
    "statements: layer norm as if it were affine": lambda: equality(
        "", *sides_of_affine(lambda c: LAYER_NORM(Layer(LAYER.W, lambda s, d: c * LAYER.X(s, d))))
    ),
}


def sides_of_affine(function):
    """What is equal for an affine function: f(x) − f(−x) and 2 (f(2x) − f(x))."""
    odd, step = along_ray(function)
    return odd, 2 * step


def gain_form_value():
    return total(lambda l: LAMBDA(l) * (GAIN(l) * output(l)) ** 2, H)


@pytest.mark.parametrize("name", FALSE_STEPS)
def test_false_step_is_refused(name):
    step = FALSE_STEPS[name]()
    assert step.verify() is False
    with pytest.raises(ProofError, match="does not hold"):
        Proof("", (step,), name=name)


@pytest.mark.parametrize("method", [LAYER_NORM, BATCH_NORM, RMS_NORM])
def test_true_steps_of_the_same_families_pass(method):
    steps = (
        *scaled_epsilon_steps(method, scaled_layer(DELTA)),
        *gain_form(method),
        *gradient_scaling(),
        *score_steps(),
    )
    assert all(step.verify() for step in steps)


@pytest.mark.parametrize(
    ("method", "column"), [("LayerNorm", "dataset_recentering"), ("WeightNorm", "dataset_rescaling")]
)
def test_a_false_cell_comes_back_as_a_counterexample(method, column):
    assert isinstance(prove(method, column), Counterexample)


def test_the_expansion_refuses_the_definition_of_another_method():
    """Weight norm's formula under layer norm's name: what layer norm ignores is seen."""
    broken = dataclasses.replace(LAYER_NORM, fraction=METHODS["WeightNorm"].fraction)
    assert expansion(LAYER_NORM, SINGLE_CASE_RESCALING).verify()
    assert not expansion(broken, SINGLE_CASE_RESCALING).verify()


def test_exact_blocks_differ_from_the_printed_ones():
    exact, printed = weight_blocks(SMALL["W"] * SMALL["x"])
    assert exact - printed == sp.Rational(1, 8)


def test_rank_of_known_matrices():
    draw = random.Random(1)
    low = [[draw.randrange(PRIME) for _ in range(3)] for _ in range(6)]
    tall = [
        [sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*low, strict=True)]
        for row in [[draw.randrange(PRIME) for _ in range(6)] for _ in range(8)]
    ]
    assert rank([[1, 0], [0, 1], [1, 1]]) == 2
    assert rank([[1, 2], [2, 4]]) == 1
    assert rank([[0, 0]]) == 0
    assert rank(low) == rank(tall) == 3


def test_field_arithmetic():
    values = np.array([2, 17, PRIME - 1, 5 + 3j])
    assert (reduced(inverse(values) * values) == 1).all()
    integers = np.arange(1, 200)
    roots = square_root(integers)
    assert (reduced(roots * roots) == integers).all()
    assert 60 < np.count_nonzero(roots.imag) < 140
    with pytest.raises(ZeroDivisionError):
        inverse(np.array([1, PRIME]))
    with pytest.raises(NotInFieldError):
        square_root(np.array([1j]))


def test_derivatives_over_the_field_obey_the_rules_of_calculus():
    """Of ab/b − a and √a √a − a, value and derivatives are 0."""
    field, draw = PrimeField(), np.random.default_rng(0)
    a, b = draw.integers(1, PRIME, (2, 7, 4)).astype(complex)
    assert (field.divide(field.multiply(a, b), b) == a).all()
    assert (field.multiply(field.root(a), field.root(a)) == a).all()


def test_derivatives_over_the_field_are_those_of_exact_arithmetic():
    """Of layer norm's output, at an integer point: ∂n/∂W times σ³, a polynomial, by a difference of symbols."""
    W, X = ([[sp.Integer(v) for v in row] for row in A] for A in ([[1, 2], [3, 5], [7, 4]], [[1, 2]]))
    layer = FieldLayer(LAYER_NORM, np.array(W, int), np.array(X, int), np.ones(3, int))
    rows = jacobian_rows(layer)[:, :6]
    t = sp.Symbol("t")
    variance = sp.Rational(LAYER_NORM.rows(W, X, sp.S.Zero)[0][0][1])
    sigma = square_root(np.array([int(variance.p) * pow(int(variance.q), -1, PRIME)]))
    for entry in range(6):
        moved = [[v + t * int(2 * r + c == entry) for c, v in enumerate(row)] for r, row in enumerate(W)]
        for (numerator, square), found in zip(LAYER_NORM.rows(moved, X, 0)[0], rows[:, entry], strict=True):
            slope = sp.diff(numerator, t) * square - numerator * sp.diff(square, t) / 2
            cubed = sp.Rational(slope.subs(t, 0))  # σ³ dn
            exact = int(cubed.p) * pow(int(cubed.q), -1, PRIME) % PRIME
            assert reduced(reduced(reduced(sigma * sigma) * sigma) * found) == exact


def test_modular_jacobian_annihilates_the_radial_direction_and_not_another():
    layer = random_layer(LAYER_NORM, 4, 3, cases=5, draw=random.Random(0))
    rows = jacobian_rows(layer)
    radial = reduced(rows[:, :12] * layer.weights.ravel())
    assert (reduced(radial.sum(1)) == 0).all()
    assert reduced(rows[:, :3].sum(1)).any()


@pytest.mark.parametrize("name", ["DynamicTanh", "SpectralNorm", "WeightStandardizedGroupNorm"])
def test_a_method_without_a_reading_over_the_field_is_refused(name):
    with pytest.raises(NotInFieldError, match=r"prime field|root"):
        nullity(METHODS[name], (4, 3))


def test_nullity_does_not_depend_on_the_draw():
    assert {nullity(LAYER_NORM, (4, 2), seed=seed) for seed in range(5)} == {LN.dimension(4, 2)}

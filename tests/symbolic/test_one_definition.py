"""Each transformation has one definition, each method one in algebra and one in numbers; planted faults show."""

import dataclasses
import random
from fractions import Fraction

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
import sympy as sp
from lngeom.claims import Problem, Verdict, decide
from lngeom.methods import METHODS
from lngeom.methods.page import FORMULAS
from lngeom.methods.table import EXTENDED, Cell
from lngeom.methods.transformations import (
    DATASET_RECENTERING,
    EXTENDED as COLUMNS,
    WEIGHT_MATRIX_RECENTERING,
    WEIGHT_MATRIX_RESCALING,
)
from lngeom.methods.transformations.actions import Column
from lngeom.papers.extended import cell_check
from lngeom.symbolic import layers, prove, sums
from lngeom.symbolic.actions import concretely, moved
from lngeom.symbolic.jacobian import LAYER
from lngeom.symbolic.table import settled

from tests.claims.conftest import SHAPE

TOLERANCE = 1e-12
GROUPS, UNITS, INPUTS, SAMPLES = 2, 8, 4, 3
DELTA = Fraction(5, 2)
GAMMA = [Fraction(3, 2), Fraction(-1, 4), Fraction(2), Fraction(1, 3)]


def numeric(name: str, eps: float) -> lg.normalizers.AbstractNormalizer:
    """The library's method whose stored parameters are the number of the unit, as in exact arithmetic."""
    stored = jnp.arange(1.0, UNITS + 1)
    given = {"mean": stored, "variance": stored, "mean_square": stored, "bias": stored, "groups": GROUPS, "alpha": 1.0}
    (method,) = [kind for kind in FORMULAS if kind.__name__ == name]
    return method(eps=eps, **{k: v for k, v in given.items() if k in {f.name for f in dataclasses.fields(method)}})


def point(method: layers.Method, seed: int = 0) -> tuple[list[list[Fraction]], list[list[Fraction]]]:
    """Random rational W and X: square for the residual block, of two inputs where the algebra has no more."""
    draw = random.Random(f"{method.name} {seed}")
    inputs = {"ResidualLayerNorm": UNITS, "SpectralNorm": 2}.get(method.name, INPUTS)

    def matrix(rows: int) -> list[list[Fraction]]:
        return [[Fraction(draw.randint(-9, 9), draw.randint(1, 4)) for _ in range(inputs)] for _ in range(rows)]

    return matrix(UNITS), matrix(SAMPLES * method.positions)


def by_library(method: layers.Method, W, X, eps: float) -> np.ndarray:
    """The library's outputs in the order of `exactly`, samples and positions by units."""
    norm = numeric(method.name, eps)
    inputs = np.array(X, float)
    if norm.needs_positions:
        inputs = inputs.reshape(-1, method.positions, inputs.shape[1])
    found = np.asarray(norm(jnp.array(np.array(W, float)), jnp.array(inputs)))
    return found.reshape(len(X), -1)


def by_algebra(method: layers.Method, W, X, eps: Fraction) -> np.ndarray:
    rows = method.rows(W, X, eps)
    return np.array([[float(method.applied(sp.sympify(a) / sp.sqrt(sp.sympify(s)))) for a, s in row] for row in rows])


def disagreement(method: layers.Method, column: Column | None, eps: Fraction, seed: int = 0) -> float:
    """Largest difference of algebra and numbers at an exact point, after a transformation."""
    W, X = point(method, seed)
    if column is not None:
        size = len(X[0])
        W, X = concretely(column, W, X, DELTA, [GAMMA[d % len(GAMMA)] for d in range(size)], method)
    return float(np.max(np.abs(by_algebra(method, W, X, eps) - by_library(method, W, X, float(eps)))))


@pytest.mark.parametrize("column", [c for c in COLUMNS if "d" in str(c.shift)], ids=lambda c: c.name)
def test_an_exact_shift_adds_another_number_to_each_input(column):
    method = layers.METHODS["LayerNorm"]
    before = point(method)
    gamma = [GAMMA[d % len(GAMMA)] for d in range(len(before[1][0]))]
    after = concretely(column, *before, DELTA, gamma, method)
    changes = [np.array(a, object) - np.array(b, object) for a, b in zip(after, before, strict=True)]
    moved = [row.tolist() for change in changes for row in change if any(row)]
    assert moved == [gamma] * len(moved) != []


def test_every_row_of_the_table_has_a_definition_in_algebra():
    ones = jnp.ones((8, 8))
    assert {type(m.make(ones, ones)).__name__ for m in METHODS.values()} | {"Identity"} == set(layers.METHODS)


def wrong_divisor(L, n, i, eps):
    """Layer norm whose variance is divided by H − 1."""
    numerator, square = layers.LAYER_NORM.fraction(L, n, i, eps)
    return numerator, square * L.size(sums.H) / (L.size(sums.H) - 1)


def wrong_mean(L, n, i, eps):
    """Layer norm whose mean is subtracted from the squares only."""
    return L.a(n, i), layers.LAYER_NORM.fraction(L, n, i, eps)[1]


@pytest.mark.parametrize("fraction", [wrong_divisor, wrong_mean])
def test_a_fault_in_a_method_is_seen(fraction):
    broken = dataclasses.replace(layers.LAYER_NORM, fraction=fraction)
    assert disagreement(broken, None, Fraction(0)) > 0.01


W, X, gamma, c = (sums.field(name) for name in ("W", "X", "gamma", "c"))
delta = sums.field("delta", positive=True)
i, d, n, p, q, t = sums.i, sums.d, sums.n, sums.p, sums.q, sums.t
scalar = sp.Symbol("delta", positive=True)
ENTRIES = {
    "weight_matrix_rescaling": (i, scalar * W(i, d)),
    "weight_matrix_recentering": (i, W(i, d) + gamma(d)),
    "weight_vector_rescaling": (i, delta(i) * W(i, d)),
    "dataset_rescaling": (n, scalar * X(n, d)),
    "dataset_recentering": (n, X(n, d) + gamma(d)),
    "single_case_rescaling": ((n, t), delta(n) * X(n, t, d)),
    "weight_sign_flip": (i, -W(i, d)),
    "single_case_recentering": ((n, t), X(n, t, d) + gamma(n, d)),
    "single_case_constant_shift": ((n, t), X(n, t, d) + c(n)),
    "weight_vector_constant_shift": (i, W(i, d) + c(i)),
    "input_rescaling": (n, delta(d) * X(n, d)),
    "weight_group_rescaling": ((p, q), delta(p) * W(p, q, d)),
    "weight_group_recentering": ((p, q), W(p, q, d) + gamma(p, d)),
    "batch_independence": ((m := sums.m, t), X(m, t, d) + (1 - sp.KroneckerDelta(m, n)) * gamma(m, t, d)),
}
"""What each column does to an entry, for all sizes, written a second time for this test."""


def same(*values):
    return np.allclose(values[0], values)


def one(changes):
    """The only row that changes."""
    (row,) = [row for row in changes if np.any(row)]
    return row


HALF = UNITS // 2
CHANGES = {
    "weight_matrix_rescaling": lambda ratio, gap: same(*ratio.flat) and ratio.min() > 0,
    "weight_matrix_recentering": lambda ratio, gap: same(*gap) and not same(*gap[0, 0]),
    "weight_vector_rescaling": lambda ratio, gap: same(*one(ratio - 1).flat) and ratio.min() > 0,
    "dataset_rescaling": lambda ratio, gap: same(*ratio.flat) and ratio.min() > 0,
    "dataset_recentering": lambda ratio, gap: same(*gap.reshape(-1, INPUTS)) and not same(*gap[0, 0]),
    "single_case_rescaling": lambda ratio, gap: same(*one(ratio - 1).flat) and ratio.min() > 0,
    "weight_sign_flip": lambda ratio, gap: same(-1, *ratio.flat),
    "single_case_recentering": lambda ratio, gap: same(*one(gap)) and not same(*one(gap)[0]),
    "single_case_constant_shift": lambda ratio, gap: same(*one(gap).flat),
    "weight_vector_constant_shift": lambda ratio, gap: same(*one(gap).flat),
    "input_rescaling": lambda ratio, gap: (
        same(*ratio.reshape(-1, INPUTS)) and not same(*ratio.flat) and ratio.min() > 0
    ),
    "weight_group_rescaling": lambda ratio, gap: (
        same(*ratio[:HALF].flat) and same(*ratio[HALF:].flat) and not same(*ratio.flat) and ratio.min() > 0
    ),
    "weight_group_recentering": lambda ratio, gap: (
        same(*gap[:HALF]) and same(*gap[HALF:]) and not same(*gap) and not same(*gap[0, 0])
    ),
    "batch_independence": lambda ratio, gap: not gap[0].any() and gap[1:].all() and not same(*gap[1:].flat),
}
"""What a drawn member does, as ratios and differences [rows T D] of what it acts on after and before."""


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_a_column_does_for_all_sizes_what_it_says(column):
    row, expected = ENTRIES[column.name]
    layer = moved(column, LAYER)
    acts, stays = (layer.W, layer.X) if column.acts_on == "weights" else (layer.X, layer.W)
    assert sp.expand(acts(row, d) - expected) == 0
    assert stays(n, d) == (LAYER.X if column.acts_on == "weights" else LAYER.W)(n, d)


def change(column, key, positions):
    """Ratio and difference of what a drawn member acts on."""
    params = lg.GLMParameters(1 + jax.random.uniform(key, (UNITS, INPUTS)), jnp.zeros(UNITS), jnp.ones(UNITS))
    inputs = 1 + jax.random.uniform(key, (SAMPLES, *positions, INPUTS))
    after, moved_inputs = column.draw(jax.random.fold_in(key, 1), params, inputs)(params, inputs)
    weights = column.acts_on == "weights"
    before, after = (params.weights, after.weights) if weights else (inputs, moved_inputs)
    before, after = (np.asarray(value).reshape(len(value), -1, INPUTS) for value in (before, after))
    return after / before, after - before


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
@pytest.mark.parametrize("positions", [(), (2,)], ids=["", "positions"])
def test_a_column_draws_what_it_says(column, positions):
    for seed in range(5):
        assert CHANGES[column.name](*change(column, jax.random.key(seed), positions))


FAULTS = {
    "a factor that is negative": ("ln", dataclasses.replace(WEIGHT_MATRIX_RESCALING, scale=-1)),
    "a shift that differs from unit to unit": ("ln", dataclasses.replace(WEIGHT_MATRIX_RECENTERING, shift="i")),
    "a factor of one unit for that of all": ("ln", dataclasses.replace(WEIGHT_MATRIX_RESCALING, scale="i")),
    "a shift that differs from case to case": ("bn", dataclasses.replace(DATASET_RECENTERING, shift="nd")),
    "weights for inputs": ("bn", dataclasses.replace(DATASET_RECENTERING, acts_on="weights")),
}


@pytest.mark.parametrize(("method", "wrong"), FAULTS.values(), ids=FAULTS)
def test_a_fault_in_a_transformation_turns_its_cell(method, wrong):
    """Both in numbers and in algebra, since both read the one definition."""
    (right,) = [column for column in COLUMNS if column.name == wrong.name]
    problem = Problem(jax.random.normal(jax.random.key(9), SHAPE), seed=1)
    assert EXTENDED[method][right.name] is Cell.INVARIANT
    for column, holds in ((right, True), (wrong, False)):
        verdict = decide(list(cell_check(METHODS[method], column, Cell.INVARIANT)(problem)))
        assert (verdict is Verdict.HOLDS) == holds
        made = METHODS[method].make(jnp.ones((4, 4)), jnp.ones((4, 4)))
        assert (settled(prove(made, column)) is Cell.INVARIANT) == holds

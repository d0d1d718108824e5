"""The extended table: every cell by numbers, its exceptions, and cells recorded wrongly, which turn."""

import dataclasses

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom.claims import Problem, Verdict, all_claims, decide, run
from lngeom.claims.proofs import provable
from lngeom.methods import METHODS, RMSNorm, Statistics
from lngeom.methods.batch import PowerNormEvaluation
from lngeom.methods.layer import BiasedLayerNorm, ScaleNorm
from lngeom.methods.pointwise import DynamicTanh
from lngeom.methods.table import COLUMNS, EQUIVARIANCE, EXTENDED, MATRIX_GROUPS, Cell
from lngeom.methods.transformations import matrices
from lngeom.methods.transformations.columns import extended
from lngeom.methods.transformations.matrices import BASIS_CHANGES, EQUIVARIANCES, group_permutations
from lngeom.methods.weight import SpectralNorm, WeightStandardization
from lngeom.papers import extended as claims
from lngeom.papers.extended import cell, cell_check, data, defined, matrix_check, point
from lngeom.symbolic.proof import ProofError


def test_the_record_names_every_method_column_and_group():
    assert set(EXTENDED) == set(EQUIVARIANCE) == set(METHODS)
    assert tuple(c.name for c in lg.transformations.EXTENDED) == COLUMNS
    assert tuple(g.name for g in (*EQUIVARIANCES, *BASIS_CHANGES)) == MATRIX_GROUPS
    cells = {c.id for c in all_claims("extended")}
    assert cells >= {f"extended.{m}.{name}" for t in (EXTENDED, EQUIVARIANCE) for m, row in t.items() for name in row}


def test_every_cell_is_proved_or_says_why_not():
    proved = set(provable())
    for c in all_claims("extended"):
        assert (c.id in proved) != bool(c.why_numeric), c.id


def turned(wrong):
    """A difference refutes a recorded invariance; that none is seen refutes nothing, and supports nothing."""
    return Verdict.UNDECIDED if wrong is Cell.CHANGED else Verdict.CLASH


@pytest.mark.parametrize(
    ("method", "column", "wrong"),
    [
        ("ln", "weight_matrix_rescaling", Cell.CHANGED),
        ("ln", "weight_vector_rescaling", Cell.INVARIANT),
        ("rms", "weight_sign_flip", Cell.INVARIANT),
        ("ln_biased", "weight_sign_flip", Cell.SIGN),
        ("bn", "batch_independence", Cell.INVARIANT),
        ("gn", "weight_group_recentering", Cell.CHANGED),
    ],
)
def test_a_wrong_cell_turns(problem, method, column, wrong):
    drawn = next(c for c in extended(METHODS[method].groups) if c.name == column)
    assert decide(list(cell_check(METHODS[method], drawn, wrong)(problem))) is turned(wrong)
    right = EXTENDED[method][column]
    assert decide(list(cell_check(METHODS[method], drawn, right)(problem))) is Verdict.HOLDS
    with pytest.raises(ProofError, match=f"recorded as {wrong.value!r}"):
        cell(METHODS[method], drawn, wrong)


@pytest.mark.parametrize(("method", "group"), [("ln", 3), ("rms", 3), ("bn", 2), ("gn", 1), ("gn", 0), ("pcc", 5)])
def test_a_wrong_equivariance_turns(problem, method, group):
    group = (*EQUIVARIANCES, *BASIS_CHANGES)[group]
    right = EQUIVARIANCE[method][group.name]
    wrong = Cell.CHANGED if right is Cell.INVARIANT else Cell.INVARIANT
    assert decide(list(matrix_check(METHODS[method], group, right)(problem))) is Verdict.HOLDS
    assert decide(list(matrix_check(METHODS[method], group, wrong)(problem))) is turned(wrong)


def test_narrow_data_is_replaced_and_constant_inputs_are_left_out():
    wide = jnp.concatenate([jnp.ones((9, 2)), jax.random.normal(jax.random.key(0), (9, 5))], 1)
    assert data(Problem(wide)).shape == (9, 5)
    assert data(Problem(wide[:, :4])).shape == (48, 16)
    assert data(Problem(wide), multiple=2).shape == (9, 4)


def test_rows_that_are_zero_in_the_chosen_inputs_are_left_out():
    found = data(Problem(jnp.eye(40)[jnp.arange(120) * 7 % 40]))
    assert found.shape == (24, 16)  # the first 48 rows hold 8 of these inputs twice, and 8 once
    assert bool(jnp.all(jnp.any(found != 0, 1)))


def test_matrices_are_of_their_groups():
    key, ones = jax.random.key(3), np.ones(6)
    drawn = {g.name: np.asarray(g.draw(key, 6, jnp.float64)) for g in (*EQUIVARIANCES, *BASIS_CHANGES)}
    for name, A in drawn.items():
        orthogonal = np.allclose(A.T @ A, np.eye(6), atol=1e-12)
        assert orthogonal == (name != "input_basis_changes")
        fixes_one = np.allclose(A @ ones, ones, atol=1e-12)
        assert fixes_one == (name.endswith(("permutations", "fixing_one"))), name
        assert not np.allclose(A, np.eye(6))
        assert np.isin(A, (0, 1)).all() == name.endswith("permutations")
    blocks = drawn["group_permutations"].reshape(2, 3, 2, 3).sum((1, 3))
    assert set(blocks.ravel()) == {0, 3}


def test_columns_say_what_they_act_on():
    params = lg.GLMParameters(jnp.arange(8.0).reshape(4, 2) + 1, jnp.zeros(4), jnp.ones(4))
    inputs = jax.random.normal(jax.random.key(0), (5, 3, 2))
    for column in extended(2):
        moved, X = column.draw(jax.random.key(1), params, inputs)(params, inputs)
        assert np.allclose(moved.weights, params.weights) == (column.acts_on == "inputs"), column.name
        assert np.allclose(X, inputs) == (column.acts_on == "weights"), column.name
        assert bool(jnp.all(X[0] == inputs[0])) or not column.compares_first
        assert column.heading


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda W, X: METHODS["in"].kind()(W, X), r"InstanceNorm runs over positions.*\[N T D\]"),
        (lambda W, X: METHODS["qk_l2"].kind()(W, X), r"QueryKeyNorm runs over positions"),
        (lambda W, X: METHODS["qk_l2"].kind()(W, X[:, None]), r"rows must be even in number; got 3"),
        (lambda W, X: METHODS["gn_spatial"].make(W, X)(W, X[:, None]), r"multiple of groups = 2; got H = 3"),
        (lambda W, X: METHODS["residual_ln"].kind()(W, X), r"H = D; got weights \(3, 2\)"),
        (lambda W, X: BiasedLayerNorm(bias=X[0])(W, X), r"shape \[H\] = \(3,\); got \(2,\)"),
        (lambda W, X: PowerNormEvaluation(mean_square=X[0])(W, X), r"shape \[H\] = \(3,\)"),
        (lambda W, X: group_permutations(2).draw(jax.random.key(0), 3, W.dtype), r"multiple of groups = 2; got H = 3"),
    ],
)
def test_bad_shapes_get_one_clear_error(make, message):
    with pytest.raises(ValueError, match=message):
        make(jnp.ones((3, 2)), jnp.ones((4, 2)))


def frobenius(self, weights, inputs):
    return Statistics(jnp.zeros(()), jnp.sqrt(jnp.sum(jnp.square(weights))))


def sums_for_means(self, weights):
    rows = weights - weights.mean(1, keepdims=True)
    return rows / jnp.sqrt(jnp.sum(jnp.square(rows), 1, keepdims=True))


def identity(key, size, dtype):
    return jnp.eye(size, dtype=dtype)


def cycle(key, size, dtype):
    return jnp.roll(jnp.eye(size, dtype=dtype), 1, 0)


FAULTS = {
    "spectral norm by the Frobenius norm": ("sn.weight_matrix_rescaling", (SpectralNorm, "statistics", frobenius)),
    "weight standardization by sums": (
        "ws.single_case_rescaling",
        (WeightStandardization, "standardized", sums_for_means),
    ),
    "dynamic tanh without its slope": (
        "dyt.weight_sign_flip",
        (DynamicTanh, "__call__", lambda self, W, X: jnp.tanh(X @ W.T)),
    ),
    "RMS norm by the sum": ("rms.weight_matrix_rescaling", (RMSNorm, "statistics", ScaleNorm.statistics)),
    "permutations that never permute": ("gn.group_permutations", (matrices, "_permutation", identity)),
    "permutations that only exchange groups": (
        "ws_gn.group_permutations",
        (matrices, "_permutation", lambda key, size, dtype: (cycle if size == 2 else identity)(key, size, dtype)),
    ),
    "permutations that only stay in their groups": (
        "gn.group_permutations",
        (matrices, "_permutation", lambda key, size, dtype: (identity if size == 2 else cycle)(key, size, dtype)),
    ),
    "permutations that keep groups together": (
        "ln.unit_permutations",
        (matrices.UNIT_PERMUTATIONS, "draw", group_permutations().draw),
    ),
    "rotations that are permutations": ("rms.unit_rotations", (matrices.UNIT_ROTATIONS, "draw", cycle)),
    "changes of basis that are rotations": (
        "ln.input_basis_changes",
        (matrices.INPUT_BASIS_CHANGES, "draw", matrices.INPUT_ROTATIONS.draw),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_turns_a_cell(problem, monkeypatch, name):
    id, (owner, attribute, wrong) = FAULTS[name]
    if dataclasses.is_dataclass(owner) and not isinstance(owner, type):
        monkeypatch.setitem(vars(owner), attribute, wrong)
    else:
        monkeypatch.setattr(owner, attribute, wrong)
    monkeypatch.setattr(claims, "normalized", lambda normalizer, W, X: normalizer(W, X))  # compiled, it stays sound
    found = run(all_claims(id=f"extended.{id}")[0], problem)
    assert not found.as_recorded
    assert not found.error


@pytest.mark.parametrize("name", METHODS)
def test_outputs_that_are_a_little_too_large_turn_the_cells_of_every_method(problem, monkeypatch, name):
    found = defined(METHODS[name], point(problem, METHODS[name]))
    assert found.passed
    right = claims.normalized
    monkeypatch.setattr(claims, "normalized", lambda normalizer, W, X: 1.003 * right(normalizer, W, X))
    assert defined(METHODS[name], point(problem, METHODS[name])).contradicts

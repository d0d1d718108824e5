"""The same result on both sides of each size from which another route is taken."""

from contextlib import ExitStack

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, strategies as st
from lngeom.information import _coupled, _planner, _sharding, _solve, _spectrum

from tests.relations.models import MODELS, ROWS, N, cases, plain
from tests.relations.relation import assert_close, assert_same_matrix, fails, relation

SMOOTH = [model for model in ROWS if model.name not in {"layer_norm", "rms_gated"}]
"""Models without symmetries that only an ε breaks."""

DAMPING = st.sampled_from([1e-3, 0.1, 10.0])


def at(module, name, value):
    """Another value of a threshold."""

    class Changed:
        def __enter__(self):
            self.before = getattr(module, name)
            setattr(module, name, value)

        def __exit__(self, *_):
            setattr(module, name, self.before)

    return Changed()


def with_unused(case):
    """Null directions: a leaf that no output depends on, and a copy of another."""
    apply = lambda p, x: case.model.apply(p["net"], x)  # noqa: E731
    return apply, {"net": case.params, "unused": jnp.arange(1.0, 4.0)}


@relation(case=cases(SMOOTH), damping=DAMPING, thorough=60)
def test_a_damped_solution_is_one_at_every_size(case, damping):
    apply, params = with_unused(case)
    F = case.fisher(apply, params)
    g = np.random.default_rng(1).normal(size=F.in_size())
    expected = np.linalg.solve(np.asarray(F.as_matrix()) + damping * np.eye(len(g)), g)
    small = F.solve(jnp.asarray(g), damping)
    with at(_spectrum, "SMALL", F.in_size() - 1):
        large = F.solve(jnp.asarray(g), damping, tolerance=1e-12)
    assert small.iterations == 0 < large.iterations
    assert_close(small.value, expected, 1e-7)
    assert_close(large.value, expected, 1e-7)


@relation(case=cases(SMOOTH), damping=DAMPING, thorough=40)
def test_null_directions_are_dropped_by_name_alone(case, damping):
    apply, params = with_unused(case)
    F = case.fisher(apply, params)
    g = np.random.default_rng(1).normal(size=F.in_size())
    values, vectors = np.linalg.eigh(np.asarray(F.as_matrix()))
    rank = int(F.rank())
    null, kept = vectors[:, :-rank], vectors[:, -rank:]
    assume(values[-rank] > 1e-9 * values[-1])  # else rounding mixes both parts by 1e-16 over their distance
    dropped = F.solve(jnp.asarray(g), damping, null="drop")
    expected = kept @ ((kept.T @ g) / (values[-rank:] + damping))
    assert_close(dropped.value, expected, 1e-6)
    products = F.solve(jnp.asarray(g), damping, null="drop", method="cg", nullspace=jnp.asarray(null), tolerance=1e-9)
    assert_close(products.value, expected, 1e-6)


@relation(case=cases(), chunk=st.integers(1, N + 1), thorough=60)
def test_chunks_of_any_size_add_up(case, chunk):
    F = case.fisher(chunk=chunk)
    v = np.random.default_rng(2).normal(size=F.in_size())
    assert_same_matrix(F.as_matrix(), plain(case))
    assert_close(F @ jnp.asarray(v), plain(case) @ v)


@relation(case=cases(), stored=st.booleans(), bytes_=st.sampled_from([1, 2**9, 2**12]), thorough=60, quick=0)
def test_plans_of_any_size_add_up(case, stored, bytes_):
    with ExitStack() as changed:
        names = "CHUNK_BYTES", "ROW_BYTES", "VECTOR_BYTES"
        for name, value in {"STORED_BYTES": 2**30 * stored, **dict.fromkeys(names, bytes_)}.items():
            changed.enter_context(at(_planner, name, value))
        F = case.fisher()
    assert F.plan.store == stored
    V = np.random.default_rng(2).normal(size=(F.in_size(), 3))
    assert_same_matrix(F.as_matrix(), plain(case))
    assert_close(F.mm(jnp.asarray(V)), plain(case) @ V)
    assert_close(F.diagonal(), np.diagonal(plain(case)))


@relation(case=cases(MODELS[:4]), k=st.integers(1, 4), thorough=40, quick=0)
def test_leading_eigenvalues_are_those_of_the_matrix(case, k):
    F = case.fisher()
    expected = np.linalg.eigvalsh(plain(case))[::-1][:k]
    assert_close(F.eigenvalues(k), expected)
    with at(_spectrum, "SMALL", 0):
        assert_close(F.eigenvalues(k), expected, 1e-6)
    assert_close(F.eigenpairs(k, tolerance=1e-9).values, expected, 1e-6)


@relation(case=cases(), rows=st.sampled_from([2, 3, 8]), thorough=30)
def test_the_probe_of_any_number_of_samples_lets_a_function_pass(case, rows):
    with at(_coupled, "PROBE", rows):
        assert_same_matrix(case.fisher().as_matrix(), plain(case))


@pytest.mark.thorough
class TestEachRelationNoticesAFault:
    @pytest.mark.parametrize("kept", [True, False])
    def test_null_directions(self, kept, monkeypatch):
        original = _solve.solve_by_decomposition
        wrong = lambda F, d, g, damping, keep, gauge: original(F, d, g, damping, kept, gauge)  # noqa: E731
        monkeypatch.setattr(_solve, "solve_by_decomposition", wrong)
        fails(test_null_directions_are_dropped_by_name_alone if kept else test_a_damped_solution_is_one_at_every_size)

    def test_the_last_chunk(self, monkeypatch):
        original = _sharding.fold_chunks

        def cut(step, carry, rows, chunk):
            whole = len(jax.tree.leaves(rows)[0]) // chunk * chunk
            return original(step, carry, jax.tree.map(lambda a: a[:whole], rows), chunk)

        monkeypatch.setattr(_sharding, "fold_chunks", cut)
        fails(test_chunks_of_any_size_add_up, chunk=st.just(5))
        fails(test_plans_of_any_size_add_up, stored=st.just(False))

    def test_eigenvalues(self, monkeypatch):
        original = _spectrum.leading_eigenvalues
        monkeypatch.setattr(_spectrum, "leading_eigenvalues", lambda *a: 1.01 * original(*a))
        fails(test_leading_eigenvalues_are_those_of_the_matrix)

    def test_a_probe_too_strict(self, monkeypatch):
        monkeypatch.setattr(_coupled, "COARSEST", 1e-30)
        fails(test_the_probe_of_any_number_of_samples_lets_a_function_pass)

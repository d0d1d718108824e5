"""Fewer bits change a matrix by the rounding of its numbers, and no more."""

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from hypothesis import assume, strategies as st
from lngeom._core.lifting import widened
from lngeom._core.numerics import tolerance
from lngeom._core.trees import leaf_paths
from lngeom.information import _matrix, _parameters, _problem, _sharding

from tests.relations.models import FAMILIES, MODELS, ROWS, cases, plain
from tests.relations.relation import assert_close, assert_same_matrix, fails, relation, wide

DTYPES = {"float16": jnp.float16, "bfloat16": jnp.bfloat16, "float32": jnp.float32}
ROUNDINGS = 8
"""Roundings to 16 bits in a row: of parameters, inputs, operations with a derivative rule of their own, and results."""


def bound(dtype):
    """What 16 bits lose is the rounding of few numbers, since all else has 32 bits; those lose `MARGIN` in the end."""
    return ROUNDINGS * float(jnp.finfo(dtype).eps) if jnp.finfo(dtype).bits < 32 else tolerance(dtype)


def cast(tree, dtype):
    return jax.tree.map(lambda a: a.astype(dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a, tree)


def rounded(case, dtype):
    """The case at the numbers that the dtype has, in float64."""
    params, X = (cast(cast(tree, dtype), jnp.float64) for tree in (case.params, case.X))
    return type(case)(case.model, params, X, case.family)


@relation(case=cases(families=FAMILIES[:3]), dtype=st.sampled_from(sorted(DTYPES)), thorough=120)
def test_fewer_bits_round_the_matrix(case, dtype):
    dtype = DTYPES[dtype]
    expected = plain(rounded(case, dtype))
    assume(np.abs(expected).sum() < float(jnp.finfo(dtype).max))  # a larger one is refused: tests/information
    F = case.fisher(params=cast(case.params, dtype), X=cast(case.X, dtype))
    assert F.as_matrix().dtype == dtype
    assert_same_matrix(F.as_matrix(), expected, bound(dtype))
    v = np.ones(len(expected))
    scale = np.sqrt(np.diagonal(expected)).sum() * np.sqrt(np.diagonal(expected).max())
    assert np.max(np.abs(wide(F @ jnp.ones(len(v), dtype)) - expected @ v)) <= bound(dtype) * scale
    assert_close(F.trace(), np.trace(expected), bound(dtype))


@relation(case=cases(families=FAMILIES[:3]), dtype=st.sampled_from(["float16", "bfloat16"]), thorough=80)
def test_computing_in_16_bits_rounds_the_matrix(case, dtype):
    """Parameters in float32, casts inside of the function, outputs in float32: mixed precision."""
    dtype = DTYPES[dtype]
    apply = lambda p, x: case.model.apply(cast(p, dtype), cast(x, dtype)).astype(jnp.float32)  # noqa: E731
    F = case.fisher(apply, cast(case.params, jnp.float32), cast(case.X, jnp.float32))
    assert F.as_matrix().dtype == jnp.float32
    assert_same_matrix(F.as_matrix(), plain(case), bound(dtype))


@relation(case=cases(ROWS, FAMILIES[:3]), dtypes=st.permutations(sorted(DTYPES)), thorough=60)
def test_leaves_of_different_dtypes_round_the_matrix(case, dtypes):
    """Each leaf in a dtype of its own, as after a partial cast of a model."""
    names = sorted(case.params)
    params = {k: case.params[k].astype(DTYPES[dtypes[n % 3]]) for n, k in enumerate(names)}
    F = case.fisher(params=params, X=cast(case.X, DTYPES[dtypes[-1]]))
    assert_same_matrix(F.as_matrix(), plain(case), bound(jnp.bfloat16))


@relation(
    seed=st.integers(0, 99),
    dtype=st.sampled_from(["float16", "bfloat16"]),
    chunk=st.sampled_from([None, 97]),
    thorough=30,
)
def test_sums_over_many_samples_are_not_lost_in_16_bits(seed, dtype, chunk):
    """A sum of ones in bfloat16 ends at 256, in float16 at 2048, if it is taken as it is written."""
    rng, dtype = np.random.default_rng(seed), DTYPES[dtype]
    X = jnp.asarray(rng.normal(size=(100_000, 3)), dtype)
    params = {"w": jnp.asarray(rng.normal(size=(3, 3)), dtype), "b": jnp.zeros(3, dtype), "e": jnp.zeros((2, 3), dtype)}
    F = lg.fisher(many, params, X, family=lg.families.Gaussian(), chunk=chunk)
    exact = lg.fisher(many, cast(params, jnp.float64), cast(X, jnp.float64), family=lg.families.Gaussian())
    assert_same_matrix(F.as_matrix(), exact.as_matrix(), bound(dtype))
    v = jnp.ones(F.in_size(), dtype)
    assert_close(F @ v, exact @ jnp.ones(F.in_size()), bound(dtype))


def many(p, x):
    return jnp.tanh(x @ p["w"] + p["b"]) + p["e"][(x[:, 0] > 0).astype(int)]


@relation(case=cases(MODELS[1:4], FAMILIES[:1]), thorough=30, quick=0)
def test_mixed_precision_has_the_rank_of_the_model(case):
    apply = lambda p, x: case.model.apply(cast(p, jnp.bfloat16), cast(x, jnp.bfloat16)).astype(jnp.float32)  # noqa: E731
    narrow = case.fisher(apply, cast(case.params, jnp.float32), cast(case.X, jnp.float32)).singular_values()
    wider = case.fisher(params=cast(case.params, jnp.float32), X=cast(case.X, jnp.float32)).singular_values()
    assert_close(narrow, wider, bound(jnp.bfloat16))


@pytest.mark.thorough
class TestEachRelationNoticesAFault:
    def test_summed_as_written(self, monkeypatch):
        monkeypatch.setattr(_problem, "in_32_bits", lambda function: function)
        jax.clear_caches()
        fails(test_sums_over_many_samples_are_not_lost_in_16_bits, chunk=st.none())
        jax.clear_caches()

    def test_computed_as_written(self, monkeypatch):
        monkeypatch.setattr(_problem, "in_32_bits", lambda function: function)
        jax.clear_caches()
        fails(
            test_computing_in_16_bits_rounds_the_matrix, case=cases(MODELS[2:3], FAMILIES[:3])
        )  # relu shows it soonest
        jax.clear_caches()

    def test_a_matrix_in_32_bits(self, monkeypatch):
        original = _matrix.dense
        monkeypatch.setattr(_matrix, "dense", lambda problem, at: widened(original(problem, at)))
        fails(test_fewer_bits_round_the_matrix, dtype=st.just("float16"))

    def test_leaves_of_the_widest_dtype_alone(self, monkeypatch):
        original = _parameters.buffers

        def narrower(params):
            leaves = dict(zip(leaf_paths(params), jax.tree.leaves(params), strict=True))
            most = max(jnp.finfo(leaf.dtype).bits for leaf in leaves.values())
            return {path for path, leaf in leaves.items() if jnp.finfo(leaf.dtype).bits < most} | original(params)

        monkeypatch.setattr(_parameters, "buffers", narrower)
        fails(test_leaves_of_different_dtypes_round_the_matrix)

    def test_chunks_in_16_bits(self, monkeypatch):
        monkeypatch.setattr(_sharding, "widened", lambda tree: tree)
        jax.clear_caches()
        fails(test_sums_over_many_samples_are_not_lost_in_16_bits, chunk=st.just(97))
        jax.clear_caches()

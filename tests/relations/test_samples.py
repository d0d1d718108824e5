"""F is a mean over samples of a sum over positions, whatever their order, their number and where they lie."""

import functools

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from hypothesis import strategies as st
from lngeom.information import _given, _problem

from tests.relations.models import FAMILIES, MODELS, ROWS, C, Case, D, H, Model, N, cases, plain
from tests.relations.relation import assert_close, assert_same_matrix, fails, relation

SEEDS = st.integers(0, 999)


@relation(case=cases(), seed=SEEDS, thorough=60)
def test_the_order_of_samples_does_not_matter(case, seed):
    order = np.random.default_rng(seed).permutation(N)
    assert_same_matrix(case.fisher(X=case.X[order]).as_matrix(), plain(case))


@relation(case=cases(), times=st.integers(2, 3), thorough=60)
def test_repeated_samples_have_the_same_mean(case, times):
    assert_same_matrix(case.fisher(X=jnp.concatenate([case.X] * times)).as_matrix(), plain(case))


@relation(case=cases(), cut=st.integers(1, N - 1), thorough=60)
def test_the_mean_of_parts_is_the_mean_of_all(case, cut):
    first, second = (np.asarray(case.fisher(X=part).as_matrix()) for part in (case.X[:cut], case.X[cut:]))
    assert_same_matrix((cut * first + (N - cut) * second) / N, plain(case))


@relation(case=cases(ROWS), seed=SEEDS, kind=st.sampled_from([int, float, np.float32]), thorough=60)
def test_a_weight_of_two_is_a_sample_twice(case, seed, kind):
    weights = np.random.default_rng(seed).integers(0, 4, N)
    weights[0] = 1
    F = case.fisher(mask=weights.astype(kind))
    repeated = case.fisher(X=jnp.asarray(np.repeat(np.asarray(case.X), weights, 0)))
    assert_same_matrix(N * np.asarray(F.as_matrix()), weights.sum() * np.asarray(repeated.as_matrix()))


def positions(p, x):
    """Outputs at each position, of that position alone."""
    return jnp.tanh(x @ p["w"]) @ p["v"]


SEQUENCES = Model("positions", positions, {"w": (D, H), "v": (H, C)}, "sequences")


@relation(case=cases([SEQUENCES]), seed=SEEDS, logical=st.booleans(), thorough=60)
def test_masked_positions_are_removed(case, seed, logical):
    mask = np.random.default_rng(seed).random((N, 4)) < 0.6
    mask[0, 0] = True
    found = case.fisher(mask=mask if logical else mask.astype(float))
    flat = Case(case.model, case.params, case.X.reshape(-1, D)[mask.reshape(-1)], case.family)
    assert_same_matrix(N * np.asarray(found.as_matrix()), mask.sum() * plain(flat))


@relation(case=cases([SEQUENCES]), seed=SEEDS, thorough=40)
def test_a_weight_of_a_sample_is_that_of_its_positions(case, seed):
    weights = np.random.default_rng(seed).random(N)
    one = case.fisher(mask=weights)
    assert_same_matrix(one.as_matrix(), case.fisher(mask=np.repeat(weights[:, None], 4, 1)).as_matrix())


@relation(case=cases([SEQUENCES]), bad=st.sampled_from([np.nan, np.inf]), thorough=30)
def test_what_lies_at_masked_positions_does_not_matter(case, bad):
    mask = np.ones((N, 4), bool)
    mask[1, 2:] = mask[5] = False
    X = np.array(case.X)
    X[~mask] = bad
    assert_same_matrix(case.fisher(X=X, mask=mask).as_matrix(), case.fisher(mask=mask).as_matrix())


@relation(case=cases(ROWS, FAMILIES[:3]), seed=SEEDS, thorough=60)
def test_observed_responses_give_outer_products_of_gradients(case, seed):
    rng = np.random.default_rng(seed)
    labels = isinstance(case.family, lg.families.Categorical)
    y = rng.integers(0, C, N) if labels else rng.integers(0, 2, (N, C)).astype(float)
    F = case.fisher(method="empirical", y=y)
    rows = _scores(case.model.apply, repr(case.family), case.family)(case.params, case.X, jnp.asarray(y))
    assert_same_matrix(F.as_matrix(), np.asarray(rows).T @ np.asarray(rows) / N)
    listed = case.fisher(method="empirical", y=y.tolist())
    assert_same_matrix(listed.as_matrix(), F.as_matrix())


@functools.cache
def _scores(apply, _, family):
    def one(params, x, y):
        z = apply(params, x[None])
        return jnp.sum(family.log_prob(z, y[None]))

    def rows(params, X, Y):
        tree = jax.vmap(jax.grad(one), (None, 0, 0))(params, X, Y)
        return jnp.concatenate([leaf.reshape(len(X), -1) for leaf in jax.tree.leaves(tree)], 1)

    return jax.jit(rows)


@relation(case=cases(MODELS[:3], FAMILIES[1:3]), seed=SEEDS, thorough=20)
def test_drawn_responses_have_the_matrix_as_their_mean(case, seed):
    F = case.fisher(method="monte_carlo", key=jax.random.key(seed), samples=400)
    trace = lambda F: F.trace()  # noqa: E731
    error = float(F.standard_error(trace))
    assert abs(float(F.trace()) - np.trace(plain(case))) <= 6 * error + 1e-12


@relation(case=cases(ROWS, FAMILIES[:3]), thorough=20)
def test_weights_times_a_constant_scale_the_matrix(case):
    for factor in (1e-3, 7.0):
        assert_same_matrix(case.fisher(mask=np.full(N, factor)).as_matrix(), factor * plain(case))
        v = np.random.default_rng(0).normal(size=len(plain(case)))  # ones are a null direction of a softmax
        assert_close(case.fisher(mask=np.full(N, factor)) @ jnp.asarray(v), factor * plain(case) @ v)


@pytest.mark.thorough
class TestEachRelationNoticesAFault:
    def test_weights_as_a_mask(self, monkeypatch):
        from lngeom.information import _fisher

        original = _given.read_mask
        monkeypatch.setattr(_fisher, "read_mask", lambda mask, z: jnp.minimum(original(mask, z), 1))
        fails(test_a_weight_of_two_is_a_sample_twice)

    def test_weights_of_samples_divided_among_positions(self, monkeypatch):
        from lngeom.information import _fisher

        original = _given.read_mask

        def divided(mask, z):
            return original(mask, z) / (z.shape[1] if np.ndim(mask) == 1 and len(z.shape) > 2 else 1)

        monkeypatch.setattr(_fisher, "read_mask", divided)
        fails(test_a_weight_of_a_sample_is_that_of_its_positions)

    def test_no_mask(self, monkeypatch):
        from lngeom.information import _fisher

        original = _given.read_mask
        monkeypatch.setattr(_fisher, "read_mask", lambda mask, z: jnp.ones_like(original(mask, z)))
        fails(test_masked_positions_are_removed)
        fails(test_weights_times_a_constant_scale_the_matrix)

    def test_mean_over_something_else(self, monkeypatch):
        from lngeom.information import _fisher

        original = _fisher.read_inputs
        monkeypatch.setattr(_fisher, "read_inputs", lambda X: (X, min(original(X)[1], N)))
        fails(test_repeated_samples_have_the_same_mean)

    def test_a_sum_in_place_of_a_mean(self, monkeypatch):
        from lngeom.information import _fisher

        monkeypatch.setattr(_fisher, "read_inputs", lambda X: (X, 1))
        fails(test_the_mean_of_parts_is_the_mean_of_all)

    def test_bad_inputs_that_reach_the_model(self, monkeypatch):
        monkeypatch.setattr(_problem, "_clean", lambda leaf, weights: (leaf, jnp.asarray(False)))
        fails(test_what_lies_at_masked_positions_does_not_matter)

    def test_scores_of_other_responses(self, monkeypatch):
        from lngeom.information import _fisher

        original = _fisher.read_responses
        monkeypatch.setattr(_fisher, "read_responses", lambda y, family: jnp.roll(original(y, family), 1, 0))
        fails(test_observed_responses_give_outer_products_of_gradients)

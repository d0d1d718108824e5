import jax.numpy as jnp
import numpy as np
import pytest
from lngeom._core.numerics import agreement, decide_rank, tolerance


def test_equal_arrays_agree_and_different_ones_differ():
    a = np.linspace(1, 2, 5)
    assert agreement(a, a * (1 + 1e-15)).agrees
    wrong = agreement(a, a + 0.1)
    assert wrong.differs
    assert not wrong.agrees


def test_the_residual_is_the_largest_difference_over_the_largest_entry():
    a = np.array([0.0, 0.0, 0.0, 100.0])
    assert np.isclose(agreement(a, a + np.array([0.0, 3.0, 0.0, 0.0])).residual, 0.03)


def test_between_rounding_and_witness_is_neither():
    a = np.ones(3)
    middling = agreement(a, a + 1e-8)
    assert not middling.agrees
    assert not middling.differs


def test_what_is_not_finite_neither_agrees_nor_differs():
    a = np.array([1.0, np.nan, np.inf, 2.0])
    for other in (a, np.ones(4), np.array([1.0, 1.0, -np.inf, 2.0])):
        found = agreement(a, other)
        assert found.undefined == 2
        assert found.residual == np.inf
        assert not found.agrees
        assert not found.differs
        assert not found.lost_to_rounding


def test_a_difference_must_exceed_what_rounding_may_cause():
    found = agreement(np.ones(3), 1.01 * np.ones(3))
    assert found.differs
    assert not found._replace(rounding=0.01).differs
    assert found._replace(rounding=0.01).lost_to_rounding
    assert not found._replace(rounding=1e-6).lost_to_rounding


def test_nothing_compared_is_no_agreement():
    assert not agreement(np.zeros((0, 2)), np.zeros((0, 2))).agrees


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_never_agree(bad):
    a = np.array([1.0, bad])
    assert not agreement(a, a).agrees


def test_shapes_must_be_the_same():
    with pytest.raises(ValueError, match=r"one shape; got \(2,\) and \(3,\)"):
        agreement(np.ones(2), np.ones(3))


def test_the_less_precise_dtype_sets_the_tolerance():
    assert agreement(jnp.ones(2, jnp.float32), jnp.ones(2)).tolerance == tolerance(jnp.float32)


def test_rank_of_a_factor_with_a_known_null_direction():
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(50, 4)) @ rng.normal(size=(4, 6))
    found = decide_rank(np.linalg.svd(factor, compute_uv=False), *factor.shape)
    assert found.rank == 4
    assert found.gap > 1e10
    assert decide_rank(np.zeros(3), 5, 3).rank == 0


def test_rounding_left_by_cancellation_is_not_rank():
    values = np.array([1.0, 1e-12])
    assert decide_rank(values, 10, 2).rank == 2
    assert decide_rank(values, 10, 2, scale=1e4).rank == 1


def test_values_just_above_the_threshold_are_cut_at_the_widest_gap():
    noisy = np.array([1.0, 0.9, 5e-14, 4e-14, 1e-16])  # the threshold is 1.1e-14
    assert decide_rank(noisy, 5, 5).rank == 2
    assert decide_rank(np.array([1.0, 1e-3, 1e-6, 1e-9, 1e-16]), 5, 5).rank == 4
    assert decide_rank(np.array([1.0, 1e-2, 1e-3, 1e-8], np.float32), 5, 5).rank == 3
    assert decide_rank(np.array([1.0, 0.5, 0.2]), 5, 3).rank == 3
    steps = np.array([1.0, 2e-3, 1e-3, 5e-4, 1e-4, 2e-5, 4e-6, 8e-7, 2e-7], np.float32)
    assert decide_rank(steps, 100, 9).rank >= 4  # above the ceiling, √eps = 3.5e-4, all is signal: 500 is no gap

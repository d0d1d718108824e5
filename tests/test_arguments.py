"""Numbers that callers give are checked in one place."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lngeom._core.arguments import check_count, check_nonnegative


@pytest.mark.parametrize("value", [3, np.int8(3), np.array(3), jnp.array(3)])
def test_integers_of_every_library_are_counts(value):
    found = check_count("k", value, 1, 3)
    assert type(found) is int
    assert found == 3


@pytest.mark.parametrize("value", [True, 2.0, "2", None, np.array([2]), 0, 4])
def test_what_is_no_count_is_refused(value):
    with pytest.raises(ValueError, match="k must be a whole number of things between 1 and P = 3; got"):
        check_count("k", value, 1, 3, what="a whole number of things", bound="P")


def test_a_count_under_jit_has_no_value():
    with pytest.raises(ValueError, match="k must have a value when jit traces the function"):
        jax.jit(lambda k: check_count("k", k, 1))(2)


@pytest.mark.parametrize("value", [0, 0.5, np.float32(1), jnp.bfloat16(2)])
def test_numbers_of_every_library_are_accepted(value):
    check_nonnegative("damping", value)
    jax.jit(lambda v: check_nonnegative("damping", v))(-value)  # no value yet


@pytest.mark.parametrize("value", [-1, jnp.nan, jnp.inf, "1", None, np.ones(2), jnp.ones(1), 1j])
def test_what_is_no_number_of_at_least_0_is_refused(value):
    with pytest.raises(ValueError, match="damping must be a finite number, at least 0; got"):
        check_nonnegative("damping", value)

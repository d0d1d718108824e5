"""Numbers of small arrays are those that JAX draws, with one program for many shapes."""

import jax
import numpy as np
import pytest
from lngeom._core.draws import draw_small

KEY = jax.random.key(3)


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (7, 5, 2), (40, 50), (60, 100)])
def test_drawn_numbers_are_those_of_jax(shape):
    normal = draw_small(jax.random.normal, KEY, shape, float)
    np.testing.assert_array_equal(normal, jax.random.normal(KEY, shape))
    uniform = draw_small(jax.random.uniform, KEY, shape, float, -2.0, 3.0)
    np.testing.assert_allclose(uniform, jax.random.uniform(KEY, shape, float, -2.0, 3.0), rtol=1e-15)


def test_numbers_lie_where_the_key_was_put():
    for key in (KEY, jax.device_put(KEY, jax.devices()[0])):
        found, expected = draw_small(jax.random.normal, key, (3,), float), jax.random.normal(key, (3,))
        np.testing.assert_array_equal(found, expected)
        assert found.committed == expected.committed == key.committed

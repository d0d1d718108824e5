"""The norms of the forward pass of transformers are the index formulas of the methods."""

import jax.numpy as jnp
import numpy as np
import pytest
from lngeom.methods import LayerNorm, RMSNorm, readings
from lngeom.stacks import Norm
from lngeom.transformers.forward import norm

from tests.cases import drawn

EPS = 0.3
X = drawn(3, 6, 8)


def indexed(normalizer, weights, inputs):
    return readings.normalized(normalizer, np.asarray(weights), np.asarray(inputs))


ROWS = {
    "layer": (LayerNorm(EPS), lambda x: norm(Norm("layer", "g", eps=EPS), {"g": jnp.ones(8)}, x)),
    "rms": (RMSNorm(EPS), lambda x: norm(Norm("rms", "g", eps=EPS), {"g": jnp.ones(8)}, x)),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_norm_of_the_stream_is_the_index_formula(name):
    normalizer, kernel = ROWS[name]
    expected = indexed(normalizer, np.eye(8), X)
    np.testing.assert_allclose(kernel(X), expected, atol=1e-13)
    assert np.abs(kernel(2 * X) - expected).max() > 1e-3  # ε is seen

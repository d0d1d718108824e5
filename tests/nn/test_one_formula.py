"""Fast kernels and the forward pass of transformers compute what the index formulas of the methods say."""

import jax.numpy as jnp
import numpy as np
import pytest
from lngeom import nn
from lngeom.methods import BatchNorm, GroupNorm, LayerNorm, RMSNorm, WeightNorm, readings
from lngeom.nn.fused import fused_layer_norm
from lngeom.stacks import Norm
from lngeom.transformers.forward import norm

from tests.cases import drawn

EPS = 0.3
X = drawn(3, 6, 8)
W = drawn(4, 5, 8)


def indexed(normalizer, weights, inputs):
    return readings.normalized(normalizer, np.asarray(weights), np.asarray(inputs))


ROWS = {
    "layer_norm": (LayerNorm(EPS), lambda x: nn.layer_norm(x, eps=EPS)),
    "rms_norm": (RMSNorm(EPS), lambda x: nn.rms_norm(x, eps=EPS)),
    "group_norm": (GroupNorm(2, EPS), lambda x: nn.group_norm(x, groups=2, eps=EPS)),
    "batch_norm": (BatchNorm(EPS), lambda x: nn.batch_norm(x, eps=EPS)[0]),
    "fused": (LayerNorm(EPS), lambda x: fused_layer_norm(x, eps=EPS)),
    "forward, layer": (LayerNorm(EPS), lambda x: norm(Norm("layer", "g", eps=EPS), {"g": jnp.ones(8)}, x)),
    "forward, rms": (RMSNorm(EPS), lambda x: norm(Norm("rms", "g", eps=EPS), {"g": jnp.ones(8)}, x)),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_kernel_is_the_index_formula(name):
    normalizer, kernel = ROWS[name]
    expected = indexed(normalizer, np.eye(8), X)
    np.testing.assert_allclose(kernel(X), expected, atol=1e-13)
    assert np.abs(kernel(2 * X) - expected).max() > 1e-3  # ε is seen


def test_normalized_weights_are_those_of_the_index_formula():
    np.testing.assert_allclose(nn.weight_norm(X, W), indexed(WeightNorm(), W, X), atol=1e-13)

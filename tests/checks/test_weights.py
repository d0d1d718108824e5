"""Norms of weights: digits of the computation are measured, not taken from the dtype in which a layer can be called."""

import lngeom as lg
import pytest

from tests.checks.test_places import normal


@pytest.mark.peers
@pytest.mark.parametrize("seed", [0, 1])
def test_a_spectral_norm_that_iterates_in_float32_is_invariant_under_rescaling(seed):
    import keras

    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((6,)), keras.layers.SpectralNormalization(keras.layers.Dense(8))])
    (norm,) = lg.check_model(model, normal(9, 6)).norms
    assert norm.differences == (), norm.results
    assert "weight_matrix_rescaling" in norm.holds
    assert "weight_vector_rescaling" not in norm.holds

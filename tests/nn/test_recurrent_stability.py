"""The measurements of recurrent dynamics, on systems whose answer is known and on the paper's."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from analysis.measurements import recurrent_stability as rs
from lngeom.nn import dynamics


@pytest.fixture(scope="module")
def small():
    return rs.recurrent_stability((0.5, 1.5, 3.0), steps=300, hidden=64)


@pytest.mark.parametrize("gain", [0.5, 1.0, 1.1])
def test_lyapunov_exponent_of_a_scaled_rotation_is_the_log_of_its_scale(gain):
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    cell = rs.make_cell("standard", 1.0, hidden=6, inputs=2, seed=0, activation=lambda a: a)
    cell = eqx.tree_at(lambda c: c.recurrent_weights, cell, jnp.asarray(gain * rotation))
    measured = rs.dynamics(cell, gain, jnp.ones((50, 2)), discard=5)
    np.testing.assert_allclose(measured.lyapunov, np.log(gain), atol=1e-12)
    np.testing.assert_allclose(measured.gradient_rate, np.log(gain), atol=1e-12)
    np.testing.assert_allclose(measured.log_gradient_norm, np.log(gain) * np.arange(49, -1, -1), atol=1e-10)


def test_both_arms_have_the_same_weights():
    standard, normalized = (rs.make_cell(arm, 2.0, hidden=5, inputs=2, seed=3) for arm in rs.ARMS)
    np.testing.assert_array_equal(standard.recurrent_weights, normalized.recurrent_weights)


def test_layer_norm_makes_the_dynamics_insensitive_to_the_recurrent_gain(small):
    for name in ("hidden_norm", "lyapunov", "gradient_rate"):
        assert small.spread("layer norm", name) < 0.2 * small.spread("standard", name)


def test_the_standard_network_vanishes_at_small_and_explodes_at_large_gain(small):
    exponents = [d.lyapunov for d in small.dynamics["standard"]]
    assert exponents[0] < -0.3
    assert exponents[-1] > 0.1
    assert small.dynamics["standard"][0].log_gradient_norm[0] < -100


def test_scaling_all_summed_inputs_changes_the_standard_network_alone():
    assert rs.scale_response("layer norm", steps=50) == 0
    assert rs.scale_response("standard", steps=50) > 0.1


def test_recurrent_batch_norm_has_no_statistics_beyond_training():
    contrast = rs.length_contrast(sequences=64)
    assert contrast.steps_without_statistics == 30
    assert contrast.error_beyond > 3 * max(contrast.error_within, contrast.error_trained_longer)
    assert contrast.layer_norm_error <= 1e-13
    cell = rs.make_cell("standard", 1.0, hidden=8, inputs=2, seed=0)
    _, stored = dynamics.unroll_batch_norm(cell, jnp.ones((3, 4, 2)))
    with pytest.raises(ValueError, match="none for steps 4 to 5"):
        dynamics.unroll_batch_norm(cell, jnp.ones((5, 4, 2)), stored)


def test_an_unknown_arm_is_refused():
    with pytest.raises(ValueError, match="arm must be one of"):
        rs.make_cell("batch norm", 1.0, hidden=4, inputs=2, seed=0)

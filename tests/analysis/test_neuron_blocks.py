"""The measurement of neuron blocks: what it must be for one GLM, and what it is for a small network."""

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from analysis.measurements import neuron_blocks
from analysis.measurements.neuron_blocks import block_diagonal
from lngeom._core.numerics import agreement

from tests.information import zoo


def test_blocks_of_neurons_miss_most_of_a_layer_normalized_network():
    found = neuron_blocks.measure(("layer",), samples=48, hidden=4, steps=0)["layer"]["start"]
    assert 0.5 < found.frobenius < 1  # the blocks are far from the matrix
    assert 0 < found.spectral < 1
    assert found.cosine[0] < 0.8  # without damping the natural gradient is another one
    assert found.cosine[-1] > 0.9  # with much of it, both are the gradient


def test_quality_is_perfect_where_the_matrix_is_its_blocks():
    X = jax.random.normal(jax.random.key(0), (30, 3))
    params = neuron_blocks.initial(jax.random.key(1), 3, 3, classes=2)
    readout = lambda p, x: jnp.tanh(x) @ p["readout"]["weights"].T + p["readout"]["bias"][None, :]  # noqa: E731
    gradient = jnp.cos(jnp.arange(8.0))
    F = lg.fisher(readout, params, X, family=lg.families.Bernoulli(), wrt="readout")
    found = neuron_blocks.quality(F, gradient, 0.0, neuron_blocks.LAYERS[-1:])
    assert found.frobenius < 1e-14
    assert np.all(found.cosine > 1 - 1e-12)


LAYERS = [{"first.kernel": 1, "norm.gain": 0, "norm.bias": 0}, {"last.kernel": 1, "last.bias": 0}]


def test_neuron_blocks_are_parts_of_the_matrix():
    F = zoo.layer_norm_network().fisher()
    M = F.as_matrix()
    approximate = block_diagonal(F, LAYERS)
    kept = approximate != 0
    assert int(jnp.sum(kept)) == 6 * 36 + 3 * 49
    unit = jax.tree.map(jnp.zeros_like, F.problem.params)
    unit["last"]["kernel"], unit["last"]["bias"] = (
        unit["last"]["kernel"].at[:, 2].set(1),
        unit["last"]["bias"].at[2].set(1),
    )
    neuron = np.flatnonzero(F.problem.ravel(unit))
    assert agreement(approximate[np.ix_(neuron, neuron)], M[np.ix_(neuron, neuron)], 1e-13).agrees
    assert not jnp.any(approximate[neuron][:, np.setdiff1d(np.arange(len(M)), neuron)])
    assert agreement(jnp.trace(approximate), jnp.trace(M), 1e-13).agrees
    with pytest.raises(ValueError, match="each layer must name leaves once"):
        block_diagonal(F, [{"first": 1}])


def test_normalization_couples_the_neurons_of_a_layer():
    """Without it the blocks between neurons of one GLM vanish; with layer norm they do not."""
    error = {}
    inputs = jax.random.normal(jax.random.key(1), (60, 2))
    for normalizer in (lg.normalizers.Identity(), lg.normalizers.BatchNorm(), lg.normalizers.LayerNorm()):
        model = lg.NormalizedGLM(normalizer, lg.families.Bernoulli())
        F = lg.fisher(model, model.init(jax.random.key(0), inputs=2, outputs=4), inputs)
        M = F.as_matrix()
        approximate = block_diagonal(F, [{"weights": 0, "bias": 0, "gain": 0}], M)
        error[type(normalizer).__name__] = float(jnp.linalg.norm(M - approximate) / jnp.linalg.norm(M))
    assert error["Identity"] < 1e-14
    assert error["BatchNorm"] < 1e-14
    assert error["LayerNorm"] > 0.05
    assert np.isfinite(list(error.values())).all()

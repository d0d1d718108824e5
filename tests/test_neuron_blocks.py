"""The measurement of neuron blocks: what it must be for one GLM, and what it is for a small network."""

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
from analysis import neuron_blocks


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

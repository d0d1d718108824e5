"""Pathological sharpness: Gram matrices against automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lngeom.papers.gallery import karakida2019


def standardized(a, axis):
    u = a - a.mean(axis, keepdims=True)
    return u / jnp.sqrt((u**2).mean(axis, keepdims=True))


HIDDEN = {
    "no_norm": lambda a: a,
    "layer_norm": lambda a: standardized(a, 1),
    "batch_norm": lambda a: standardized(a, 0),
}
LAST = {
    "as_it_is": lambda f: f,
    "centred": lambda f: f - f.mean(0, keepdims=True),
    "divided": lambda f: f / f.std(0, keepdims=True),
    "batch_normalized": lambda f: standardized(f, 0),
    "layer_normalized": lambda f: standardized(f, 1),
}


def by_automatic_differentiation(hidden):
    """The Gram matrices after each operation on the outputs, of the network with N = 5, D = 4, M = 7 and C = 3."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(5, 4))
    matrices = [karakida2019.weights(generator, *shape) for shape in ((7, 4), (7, 7), (3, 7))]

    def outputs(matrices):
        h = jnp.asarray(inputs)
        for W in matrices[:-1]:
            h = jax.nn.relu(HIDDEN[hidden](h @ W.T))
        return h @ matrices[-1].T

    def every(matrices):
        return jnp.stack([last(outputs(matrices)) for last in LAST.values()])

    flat = [J.reshape(len(LAST), 15, -1) for J in jax.jit(jax.jacrev(every))(matrices)]
    J = np.concatenate(flat, 2)
    return dict(zip(LAST, J @ J.transpose(0, 2, 1), strict=True))


@pytest.mark.parametrize("hidden", HIDDEN)
def test_the_gram_matrix_by_layers_is_that_of_automatic_differentiation(hidden):
    norm = getattr(karakida2019, hidden)
    network = karakida2019.network(np.random.default_rng(0), 5, 4, 7, hidden=norm, outputs=3)
    for name, expected in by_automatic_differentiation(hidden).items():
        np.testing.assert_allclose(getattr(karakida2019, name)(network), expected, atol=1e-11 * np.abs(expected).max())

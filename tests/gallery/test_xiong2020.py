"""Transformers at initialization: gradients against automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lngeom.claims import Problem
from lngeom.papers.gallery import xiong2020


def norm(x):
    u = x - x.mean(2, keepdims=True)
    return u / jnp.sqrt(jnp.mean(u**2, 2, keepdims=True))


@pytest.mark.parametrize("arrangement", ["post", "pre", "pre, scaled"])
def test_backpropagation_is_that_of_automatic_differentiation(monkeypatch, arrangement):
    monkeypatch.setattr(xiong2020, "NETS", 2)
    monkeypatch.setattr(xiong2020, "WIDTH", 6)
    depth, tokens, pre = 3, 4, arrangement != "post"
    found = xiong2020.gradients(Problem(np.zeros((1, 1))), arrangement, depth, tokens)
    generator = np.random.default_rng([0, 2002, 5])
    embedding = xiong2020.weights(generator, 2, 6, 6)
    labels = np.eye(6)[generator.integers(0, 6, (2, tokens))]
    x = xiong2020.normalized(generator.normal(size=(2, tokens, 6)))
    matrices = [xiong2020.weights(generator, 3, 2, 6, 6) for _ in range(depth)]
    size = depth**-0.5 if arrangement == "pre, scaled" else 1.0

    def loss(seconds):
        state = jnp.asarray(x)
        for (value, first, _), second in zip(matrices, seconds, strict=True):
            read = norm(state) if pre else state
            state = state + size * read.mean(1, keepdims=True) @ value
            state = state if pre else norm(state)
            read = norm(state) if pre else state
            state = state + size * jax.nn.relu(read @ first) @ second
            state = state if pre else norm(state)
        state = norm(state) if pre else state
        return -jnp.sum(jax.nn.log_softmax(state @ embedding, axis=2) * labels) / tokens

    slopes = jax.jit(jax.grad(loss))([m[2] for m in matrices])
    expected = [float(jnp.sqrt(jnp.mean(jnp.sum(g**2, (1, 2))))) for g in slopes]
    np.testing.assert_allclose(found, expected, rtol=1e-10)

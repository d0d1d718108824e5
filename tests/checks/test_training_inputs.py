"""Shares of ε are those on the inputs of the mode that is examined, not on those with early running statistics."""

import lngeom as lg
import numpy as np
import pytest

from tests.checks.test_places import normal

EPS = 1e-3


@pytest.mark.peers
def test_torch():
    import torch
    from torch import nn

    torch.manual_seed(0)
    block = lambda: [nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8, eps=EPS), nn.ReLU()]  # noqa: E731
    model = nn.Sequential(*block(), *block(), *block(), nn.Linear(8, 8), nn.LayerNorm(8, eps=EPS))
    for part in model[:-2]:
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, 0, 0.05)
    X, stored = normal(16, 8), {k: v.clone() for k, v in model.state_dict().items()}
    for training in (True, False):
        report, found = lg.check_model(model, X, training=training), lg.lint(model, X, training=training)
        true = {}

        def before(path, part, inputs):
            x = inputs[0]
            batch = isinstance(part, nn.BatchNorm1d)
            variance = part.running_var if batch and not training else x.var(0 if batch else 1, unbiased=False)
            true[path] = float((EPS / (variance + EPS)).detach().median())

        norms = {k: v for k, v in model.named_modules() if hasattr(v, "eps")}
        handles = [v.register_forward_pre_hook(lambda p, i, k=k: before(k, p, i)) for k, v in norms.items()]
        model.train(training)(torch.tensor(X, dtype=torch.float32))
        for handle in handles:
            handle.remove()
        model.load_state_dict(stored)
        model.train()
        for path in norms:
            share = report[path].eps_share
            if training or path == "10":
                assert share == pytest.approx(true[path], rel=0.15), (path, training)  # medians of even counts
                assert found.eps_shares[path] == share
        assert ("epsilon-large" in {f.rule for f in found.findings}) == (max(true.values()) > 0.1)
    assert all(np.array_equal(stored[k], v) for k, v in model.state_dict().items())


@pytest.mark.parametrize("kind", ["linen", "nnx"])
def test_flax(kind):
    import jax.numpy as jnp
    from flax import linen, nnx

    class Linen(linen.Module):
        @linen.compact
        def __call__(self, x, train=False):
            for _ in range(3):
                x = linen.Dense(8, use_bias=False, kernel_init=linen.initializers.normal(0.05))(x)
                x = linen.BatchNorm(use_running_average=not train, epsilon=EPS)(x)
            return x

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.mix = nnx.Linear(8, 8, use_bias=False, kernel_init=nnx.initializers.normal(0.05), rngs=rngs)
            self.norm = nnx.BatchNorm(8, epsilon=EPS, rngs=rngs)

        def __call__(self, x):
            return self.norm(self.mix(x))

    model = Linen() if kind == "linen" else nnx.Sequential(*(Block(nnx.Rngs(i)) for i in range(3)))
    shares = lg.lint(model, jnp.asarray(normal(16, 8), jnp.float32), rules=[]).eps_shares
    # each norm gives the next a variance of (1 − share) 0.05² · 8 = 0.02 and less: 0.05, 0.05, 0.05, not 0.05, 0.7, 1
    assert len(shares) == 3
    assert all(0.01 < share < 0.2 for share in shares.values()), shares


@pytest.mark.peers
def test_keras():
    import keras

    layers = []
    for _ in range(3):
        layers += [keras.layers.Dense(8, use_bias=False, kernel_initializer=keras.initializers.RandomNormal(0, 0.05))]
        layers += [keras.layers.BatchNormalization(epsilon=EPS)]
    shares = lg.lint(keras.Sequential(layers), normal(16, 8), rules=[]).eps_shares
    assert len(shares) == 3
    assert all(0.01 < share < 0.2 for share in shares.values()), shares

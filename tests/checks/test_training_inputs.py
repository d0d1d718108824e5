"""Shares of ε are those on the inputs of the mode that is examined, not on those with early running statistics."""

import copy
from typing import Any

import lngeom as lg
import numpy as np
import pytest

from tests.checks.test_places import normal

EPS = 1e-3


def in_torch(model: Any, X: np.ndarray, training: bool) -> dict[str, float]:
    """Median shares of ε by norm, from the inputs in one call of a copy; batch norms in evaluation aside."""
    import torch

    found = {}
    copied = copy.deepcopy(model).train(training)
    for path, part in copied.named_modules():
        if hasattr(part, "eps"):
            axis = 0 if isinstance(part, torch.nn.BatchNorm1d) else 1

            def before(part, inputs, path=path, axis=axis):
                variance = inputs[0].var(axis, unbiased=False) if training or axis else part.running_var
                found[path] = float((EPS / (variance + EPS)).detach().median())

            part.register_forward_pre_hook(before)
    copied(torch.tensor(X, dtype=torch.float32))
    return found


@pytest.mark.peers
def test_torch():
    import torch
    from torch import nn

    torch.manual_seed(0)
    block = lambda: [nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8, eps=EPS), nn.ReLU()]  # noqa: E731
    model = nn.Sequential(*block(), *block(), *block(), nn.Linear(8, 8), nn.LayerNorm(8, eps=EPS))
    for part in list(model.children())[:-2]:
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, 0, 0.05)
    X, stored = normal(16, 8), {k: v.clone() for k, v in model.state_dict().items()}
    for training in (True, False):
        report, found = lg.check_model(model, X, training=training), lg.lint(model, X, training=training)
        true = in_torch(model, X, training)
        for path, share in true.items():
            if training or path == "10":
                assert report[path].eps_share == pytest.approx(share, rel=0.15), (
                    path,
                    training,
                )  # medians, even counts
                assert found.eps_shares[path] == report[path].eps_share
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
        layers += [keras.layers.Dense(8, use_bias=False, kernel_initializer="random_normal")]
        layers += [keras.layers.BatchNormalization(epsilon=EPS)]
    shares = lg.lint(keras.Sequential(layers), normal(16, 8), rules=[]).eps_shares
    assert len(shares) == 3
    assert all(0.01 < share < 0.2 for share in shares.values()), shares

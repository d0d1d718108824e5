"""Planted faults in the claims about RMSNorm."""

import jax.numpy as jnp
import numpy as np
import pytest
from lngeom.methods import RMSNorm

from tests.gallery.faults import assert_turns


def unbiased():
    """RMSNorm with H − 1 for H."""
    return lambda W, X: (W.shape[0] - 1) ** 0.5 / W.shape[0] ** 0.5 * RMSNorm()(W, X)


def with_epsilon(W, X):
    """RMSNorm with a large ε."""
    a = X @ W.T
    return a / jnp.sqrt(jnp.mean(a**2, 1, keepdims=True) + 1e-2)


def shifted(share):
    """A partial rms to which a constant is added."""
    return lambda W, X: X @ W.T / (1 + jnp.sqrt(jnp.mean((X @ W.T)[:, :2] ** 2, 1, keepdims=True)))


def detached(W, X, cotangent):
    """The gradient of a/rms with rms held constant."""
    a = X @ W.T
    return (cotangent / jnp.sqrt(jnp.mean(a**2, 1, keepdims=True))).T @ X


def constant_gradient(steps, rate):
    """Growth without the factor 1/‖W‖."""
    return 1 + rate**2 * np.arange(steps + 1.0)


@pytest.mark.parametrize(
    ("id", "patches"),
    [
        ("equals_ln", {"RMSNorm": unbiased}),
        ("table_row", {"RMSNorm": lambda: with_epsilon}),
        ("prms_row", {"partial_rms": shifted}),
        ("prms_estimate", {"estimate": lambda a, k: np.mean(a[:, : 2 * k] ** 2, 1)}),
        ("eq8", {"RMSNorm": lambda: with_epsilon}),
        ("eq9", {"weight_gradient": detached}),
        ("eq10", {"RMSNorm": lambda: with_epsilon}),
        ("adaptor", {"growth": constant_gradient}),
    ],
)
def test_a_planted_fault_turns_the_verdict(monkeypatch, id, patches):
    assert_turns(monkeypatch, f"zhang2019.{id}", **patches)

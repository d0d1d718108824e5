"""Planted faults in the claims about weight normalization."""

import jax.numpy as jnp
import numpy as np
import pytest
from lngeom.papers.gallery import salimans2016

from tests.gallery.faults import assert_turns

WHITENED = salimans2016.whitened


def added(v, g, at_w):
    """Eq. 3 with the sign of its second term changed."""
    norm = jnp.linalg.norm(v)
    return g / norm * at_w + g * (at_w @ v / norm) / norm**2 * v, at_w @ v / norm


def beside(w):
    """The projection away from another vector."""
    other = w[::-1]
    return jnp.eye(len(w)) - jnp.outer(other, other) / (other @ other)


def with_null(C, w):
    """The condition number with the direction of w, regularized."""
    M = np.eye(len(w)) - np.outer(w, w) / (w @ w)
    return np.linalg.cond(M @ C @ M + 1e-9 * np.eye(len(w)))


def unbiased(t):
    """The initialization with the unbiased variance."""
    return 1 / jnp.std(t, 0, ddof=1), -jnp.mean(t, 0) / jnp.std(t, 0, ddof=1)


@pytest.mark.parametrize(
    ("id", "patches"),
    [
        ("eq3", {"eq3_gradients": added}),
        ("eq4", {"projection": beside}),
        ("growth", {"growth": lambda ratio: 1 + ratio}),
        ("monotone", {"falls": lambda norms: int(jnp.sum(norms[:, 1:] > norms[:, :-1]))}),
        ("whitened", {"whitened": lambda inputs: WHITENED(inputs).at[:, 0].multiply(2)}),
        ("covariance", {"condition": with_null}),
        ("data_init", {"initial": unbiased}),
    ],
)
def test_a_planted_fault_turns_the_verdict(monkeypatch, id, patches):
    assert_turns(monkeypatch, f"salimans2016.{id}", **patches)

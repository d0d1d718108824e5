"""Planted faults in the claims about Pre-LN, Pre-RMSNorm and Pre-CRMSNorm transformers."""

import numpy as np
import pytest
from lngeom.claims import Problem
from lngeom.papers.gallery import jiang2023
from lngeom.papers.gallery.jiang2023 import EPS, WAYS, centred, dropout_masks, with_constant_gain

from tests.gallery.faults import assert_turns


def rows_centred(values, axis):
    """The mean over the last axis, whichever was asked for."""
    return values - values.mean(-1, keepdims=True)


def epsilon_outside(h):
    """Layer norm with ε added to the root instead of under it."""
    u = centred(h, 1)
    return u / ((u**2).mean(1, keepdims=True) ** 0.5 + EPS)


def one_entry_less(h):
    """CRMSNorm with d − 1 for d."""
    square = ((h**2).sum(1, keepdims=True) + h.sum(1, keepdims=True) ** 2) / h.shape[1]
    return h / (square + EPS) ** 0.5


def whole_vectors(problem):
    """Masks of whole vectors, which commute with centring."""
    return np.broadcast_to(dropout_masks(problem)[:, :, :1], dropout_masks(problem).shape)


def with_gains(params):
    """The condition on gains dropped."""
    return with_constant_gain(params) | {"gain": params["gain"]}


RECENTRED_WEIGHTS_UPDATED = {**WAYS, "gradient of the weights before recentring": (0.0, 0.0, 0.0)}


@pytest.mark.parametrize(
    ("id", "patches"),
    [
        ("lemma_3_1", {"centred": rows_centred}),
        ("inference", {"layer_norm": epsilon_outside}),
        ("compressed", {"compressed_norm": one_entry_less}),
        ("training", {"WAYS": RECENTRED_WEIGHTS_UPDATED}),
        ("dropout", {"dropout_masks": whole_vectors}),
        ("post_ln", {"with_constant_gain": with_gains}),
    ],
)
def test_a_planted_fault_turns_the_verdict(monkeypatch, id, patches):
    assert_turns(monkeypatch, f"jiang2023.{id}", **patches)


def test_projected_gradients_do_not_repair_adam():
    paths = jiang2023.trajectories(Problem(np.zeros((1, 1))))
    gaps = {name: np.abs(path[:, 3] - path[:, 0]).max() for name, path in paths.items()}
    assert gaps["SGD"] < 1e-12 < 1e-3 < gaps["Adam"]

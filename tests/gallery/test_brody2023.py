"""Planted faults in the claims about the expressivity of layer norm in attention."""

import jax.numpy as jnp
import pytest
from lngeom.methods import RMSNorm
from lngeom.papers.gallery.brody2023 import WIDE, WIDTH, gains, keys, layer_norm

from tests.gallery.faults import assert_turns


def two_zeros(width):
    """Gains of which two are zero, so that keys are no longer on an ellipsoid."""
    found = gains(width)
    found[3] = found[2]
    return found


def not_projected(problem, head, width=WIDE):
    """Keys before W_K."""
    return layer_norm(keys(problem, 4, width))


@pytest.mark.parametrize(
    ("id", "patches"),
    [
        ("decomposition", {"projection": jnp.eye}),
        ("uniform", {"LayerNorm": RMSNorm}),
        ("selectable", {"gains": two_zeros}),
        ("without", {"COUNT": WIDTH}),
        ("heads", {"projected": not_projected}),
    ],
)
def test_a_planted_fault_turns_the_verdict(monkeypatch, id, patches):
    assert_turns(monkeypatch, f"brody2023.{id}", **patches)

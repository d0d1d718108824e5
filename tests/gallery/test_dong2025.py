"""Planted faults in the claims about blocks of curvature."""

import numpy as np
import pytest
from lngeom.papers.gallery import dong2025
from lngeom.papers.gallery.dong2025 import block_norms, outside, two_blocks

from tests.gallery.faults import assert_turns


@pytest.mark.parametrize(
    ("id", "patches"),
    [
        ("classes", {"SCALE": 3.0}),
        ("hidden", {"spread": lambda classes: 30.0}),  # probabilities of 0 and 1, and few classes that matter
        ("layer_norm", {"centred": lambda a: a}),
        ("layers", {"layers_of": lambda params: np.zeros_like(dong2025_layers(params))}),
    ],
)
def test_a_planted_fault_turns_the_verdict(monkeypatch, id, patches):
    assert_turns(monkeypatch, f"dong2025.{id}", **patches)


dong2025_layers = dong2025.layers_of


def test_blocks_of_a_written_out_matrix():
    F = np.array([[3.0, 4.0, 1.0], [4.0, 0.0, 2.0], [1.0, 2.0, 5.0]])
    norms = block_norms(F, np.array([0, 0, 1]))
    np.testing.assert_allclose(norms, [[41**0.5, 5**0.5], [5**0.5, 5.0]])
    assert outside(norms) == pytest.approx((10 / 66) ** 0.5)
    assert two_blocks(norms) == pytest.approx(2 * 5**0.5 / (41**0.5 + 5))

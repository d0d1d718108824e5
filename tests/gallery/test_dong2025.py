"""Blocks of curvature: norms of a matrix that is written out."""

import numpy as np
import pytest
from lngeom.papers.gallery.dong2025 import block_norms, outside, two_blocks


def test_blocks_of_a_written_out_matrix():
    F = np.array([[3.0, 4.0, 1.0], [4.0, 0.0, 2.0], [1.0, 2.0, 5.0]])
    norms = block_norms(F, np.array([0, 0, 1]))
    np.testing.assert_allclose(norms, [[41**0.5, 5**0.5], [5**0.5, 5.0]])
    assert outside(norms) == pytest.approx((10 / 66) ** 0.5)
    assert two_blocks(norms) == pytest.approx(2 * 5**0.5 / (41**0.5 + 5))

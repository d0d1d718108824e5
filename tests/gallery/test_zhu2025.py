"""Dynamic tanh: slopes at equal scales."""

import pytest
from lngeom.papers.gallery import zhu2025


def test_equal_scales_have_the_slope_of_a_line():
    assert zhu2025.expected_slope(0.0, *zhu2025.CENTRE) == pytest.approx(1, rel=1e-9)
    assert zhu2025.expected_slope(0.0, *zhu2025.TAIL) == pytest.approx(1, rel=1e-9)

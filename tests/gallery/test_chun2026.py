"""The geometric cost of normalization: what its claims compute."""

import numpy as np
import pytest
from lngeom.papers.gallery import chun2026


def test_the_slope_counts_half_the_rank_of_the_design(problem):
    points = chun2026.layer_norm(chun2026.draw_inputs(problem))
    rank = np.linalg.matrix_rank(points)
    assert rank == chun2026.WIDTH - 1
    assert chun2026.coefficient(points) == pytest.approx(chun2026.OUTPUTS * rank / 2, rel=1e-6)

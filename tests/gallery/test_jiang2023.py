"""Pre-LN, Pre-RMSNorm and Pre-CRMSNorm transformers: what its claims compute."""

import numpy as np
from lngeom.claims import Problem
from lngeom.papers.gallery import jiang2023


def test_projected_gradients_do_not_repair_adam():
    paths = jiang2023.trajectories(Problem(np.zeros((1, 1))))
    gaps = {name: np.abs(path[:, 3] - path[:, 0]).max() for name, path in paths.items()}
    assert gaps["SGD"] < 1e-12 < 1e-3 < gaps["Adam"]

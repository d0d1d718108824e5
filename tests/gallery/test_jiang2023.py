"""Pre-LN, Pre-RMSNorm and Pre-CRMSNorm transformers: what its claims compute."""

import numpy as np
import pytest
from lngeom.claims import Problem
from lngeom.papers.gallery import jiang2023


def test_projected_gradients_do_not_repair_adam():
    paths = jiang2023.trajectories(Problem(np.zeros((1, 1))))
    assert {len(path) for path in paths.values()} == {jiang2023.STEPS}
    gaps = {name: np.abs(path[:, 3] - path[:, 0]).max() for name, path in paths.items()}
    assert gaps["SGD"] < 1e-12 < 1e-3 < gaps["Adam"]


@pytest.mark.parametrize("post", [False, True])
def test_the_stack_is_a_loop_over_its_blocks(problem, post):
    params, inputs = jiang2023.stack(problem)

    def norm(h):
        return (h - h.mean(1, keepdims=True)) / h.std(1, keepdims=True)

    h = inputs @ params["embedding"].T + params["embedding bias"]
    for k in range(jiang2023.BLOCKS):
        p = {name: params[name][k] for name in jiang2023.BLOCK}
        read = h if post else norm(h) * p["gain"] + p["bias"]
        h = h + np.maximum(read @ p["in"].T + p["in bias"], 0) @ p["out"].T + p["out bias"]
        h = norm(h) * p["gain"] + p["bias"] if post else h
    expected = norm(h) @ params["readout"].T
    np.testing.assert_allclose(jiang2023.forward(params, inputs, norm, post=post), expected, atol=1e-12)

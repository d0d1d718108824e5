"""Auto-tuning of rates: gradient descent of its claims."""

import numpy as np
from lngeom.papers.gallery.arora2018 import descend
from lngeom.papers.gallery.scale_invariant import loss, start


def test_descent_lowers_the_loss_until_the_goal(problem):
    w, inputs = start(problem)
    found = descend(problem, np.array([0.1, 1.0]), decay=0.0, steps=500, goal=1e-3)
    assert np.all(found.size < 1e-3)
    assert np.all(found.steps < 500)
    for reached in found.w:
        assert loss(reached, inputs) < loss(w, inputs) - 0.01

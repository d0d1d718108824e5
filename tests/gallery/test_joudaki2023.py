"""Isometry: the kernel against quadrature."""

import numpy as np
import pytest
from lngeom.papers.gallery import joudaki2023


def test_the_arc_cosine_kernel_is_that_of_quadrature():
    rho = np.array([-0.9, 0.1, 0.5])
    by_quadrature = joudaki2023.kernel(lambda x: joudaki2023.relu(x), rho)
    assert joudaki2023.kernel(joudaki2023.relu, rho) == pytest.approx(by_quadrature, abs=1e-2)

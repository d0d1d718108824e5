"""Subspaces given by columns."""

import numpy as np
import pytest
from lngeom._core.subspaces import orthonormal


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_the_basis_of_a_span_does_not_depend_on_its_scale(scale):
    columns = np.random.default_rng(0).normal(size=(5, 2))
    found = orthonormal(scale * np.column_stack([columns, columns @ [1.0, 2.0]]), 1e-8)
    np.testing.assert_allclose(found.T @ found, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(found @ (found.T @ columns), columns, atol=1e-12)

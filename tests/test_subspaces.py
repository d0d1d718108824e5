"""Subspaces given by columns."""

import numpy as np
import pytest
from lngeom._core.subspaces import Account


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_the_basis_of_a_span_does_not_depend_on_its_scale(scale):
    columns = np.random.default_rng(0).normal(size=(5, 2))
    account = Account(np.linalg.qr(columns)[0], 1e-6)
    given = scale * np.column_stack([columns, columns @ [1.0, 2.0]])
    found = account.part(np.arange(5), given)
    basis = account.null @ found.coordinates
    np.testing.assert_allclose(basis.T @ basis, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(basis @ (basis.T @ columns), columns, atol=1e-12)
    unit = given / np.linalg.norm(given, axis=0)
    np.testing.assert_allclose(unit @ found.coefficients, basis, atol=1e-12)

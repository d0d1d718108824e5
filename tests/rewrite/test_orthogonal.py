"""Fast orthogonal matrices: orthogonal, as their factors say, and of entries of one size where they are Hadamard's."""

import numpy as np
import pytest
from lngeom.transformers.rewrite.orthogonal import Orthogonal, hadamard_factors


@pytest.mark.parametrize("fix_ones", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 12, 20, 28, 36, 48, 88, 92])
def test_it_is_orthogonal_and_applied_as_its_matrix(size, fix_ones):
    Q = Orthogonal(size, seed=3, fix_ones=fix_ones)
    matrix = Q.matrix()
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(size), atol=1e-13)
    x = np.random.default_rng(0).normal(size=(2, 3, size))
    np.testing.assert_allclose(Q.apply(x), x @ matrix.T, atol=1e-13)
    if fix_ones:
        np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-13)


@pytest.mark.parametrize("size", [2, 12, 64, 768])
def test_hadamard_entries_have_one_size(size):
    Q = Orthogonal(size, seed=1)
    assert "Hadamard" in Q.kind
    np.testing.assert_allclose(np.abs(Q.matrix()), size**-0.5, rtol=1e-12)


def test_other_seeds_give_other_matrices():
    assert np.abs(Orthogonal(16, 1).matrix() - Orthogonal(16, 2).matrix()).max() > 0.1


@pytest.mark.parametrize("width", [768, 1024, 1600, 2048, 2560, 3072, 3584, 4096, 5120, 6656, 7168, 8192])
def test_widths_of_published_models_have_a_hadamard_matrix(width):
    factors = hadamard_factors(width)
    assert factors
    assert np.prod([len(f) for f in factors]) == width
    for f in factors:
        np.testing.assert_array_equal(f @ f.T, len(f) * np.eye(len(f)))


def test_no_hadamard_matrix_is_claimed_where_there_is_none():
    for size in (3, 6, 10, 14, 22):
        assert hadamard_factors(size) is None

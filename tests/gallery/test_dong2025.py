"""Blocks of curvature: norms of a matrix that is written out, the residual network as a loop."""

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from lngeom.papers.gallery.dong2025 import BLOCKS, block_norms, inputs, outside, residual, residual_params, two_blocks


def test_blocks_of_a_written_out_matrix():
    F = np.array([[3.0, 4.0, 1.0], [4.0, 0.0, 2.0], [1.0, 2.0, 5.0]])
    norms = block_norms(F, np.array([0, 0, 1]))
    np.testing.assert_allclose(norms, [[41**0.5, 5**0.5], [5**0.5, 5.0]])
    assert outside(norms) == pytest.approx((10 / 66) ** 0.5)
    assert two_blocks(norms) == pytest.approx(2 * 5**0.5 / (41**0.5 + 5))


def test_the_residual_network_is_a_loop_over_its_blocks(problem):
    flat, unravel = ravel_pytree(residual_params(problem, 3, 1.0))
    params = unravel(flat + 0.1 * jax.random.normal(jax.random.key(0), flat.shape))
    p = jax.tree.map(np.asarray, params)

    def affine(norm, s):
        return (s - s.mean(1, keepdims=True)) / s.std(1, keepdims=True) * norm["gain"] + norm["bias"]

    x = np.asarray(inputs(problem, len(p["norm"]["gain"])))
    stream = x
    for b in range(BLOCKS):
        hidden = np.maximum(affine(p[f"norm {b}"], stream) @ p[f"read {b}"]["kernel"] + p[f"read {b}"]["bias"], 0)
        stream = stream + hidden @ p[f"write {b}"]["kernel"] + p[f"write {b}"]["bias"]
    expected = affine(p["norm"], stream) @ p["head"]["kernel"]
    np.testing.assert_allclose(jax.jit(residual)(params, x), expected, rtol=1e-10, atol=1e-12)

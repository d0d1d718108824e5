"""How batch norm helps optimization: what its claims compute."""

import jax.numpy as jnp
import pytest
from lngeom.papers.gallery.santurkar2018 import normalized


def test_the_normalized_batch_has_mean_square_one():
    assert float(jnp.mean(normalized(jnp.arange(5.0)) ** 2)) == pytest.approx(1)

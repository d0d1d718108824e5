"""Weight decay against normalization: the Hessian against automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
from lngeom.papers.gallery import vanlaarhoven2017

OPTIMIZERS, HESSIAN = vanlaarhoven2017.OPTIMIZERS, vanlaarhoven2017.hessian


def test_the_hessian_is_that_of_the_loss():
    w, inputs = jnp.arange(1.0, 4.0), jax.random.normal(jax.random.key(0), (8, 3), float)
    found = jax.jit(jax.jacobian(jax.grad(vanlaarhoven2017.loss)))(w, inputs)
    np.testing.assert_allclose(jax.jit(HESSIAN)(w, inputs), found, rtol=1e-9, atol=1e-12)

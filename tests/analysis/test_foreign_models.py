"""Models of other libraries go through checks, lint and Fisher matrices; the rank is that of a dense reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from analysis.measurements import foreign_models
from analysis.models.architectures import ARCHITECTURES, gpt, mlp
from jax.flatten_util import ravel_pytree

SMALL = [
    pytest.param(gpt, {"width": 4, "blocks": 1, "samples": 30}, 3, id="gpt"),
    pytest.param(mlp, {"width": 5, "samples": 40}, 4, id="mlp", marks=pytest.mark.peers),
]


@pytest.fixture(autouse=True)
def _promotes():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def reference_rank(foreign):
    """Rank of the rows √p_c (J_c − Σ p J), whose Gram matrix is the Fisher matrix of categorical outputs."""
    flat, unravel = ravel_pytree(foreign.params)

    @jax.jit
    def factor(theta):
        p = jax.nn.softmax(foreign.apply(foreign.params, foreign.X))[..., None]
        J = jax.jacfwd(lambda theta: foreign.apply(unravel(theta), foreign.X))(theta)
        return jnp.sqrt(p) * (J - jnp.sum(p * J, -2, keepdims=True))

    return int(np.linalg.matrix_rank(np.asarray(factor(flat)).reshape(-1, flat.size)))


@pytest.mark.thorough
@pytest.mark.parametrize(("make", "sizes", "norms"), SMALL)
def test_a_foreign_model_is_checked_linted_and_has_the_rank_of_a_dense_reference(make, sizes, norms):
    found = foreign_models.run(make, **sizes)
    assert found["norms"] == norms
    assert (found["unchecked"], found["differing"], found["findings"], found["not linted"]) == ([], [], [], [])
    F = found["fisher"]
    assert F["rank"] == reference_rank(make("float64", **sizes))
    assert F["rank"] + F["nullity"] == F["parameters"]
    assert 0 < F["named"] <= F["nullity"]
    assert F["named"] == sum(dimension for _, dimension in F["directions"])
    page = foreign_models.page({"a model": found})
    assert f"| a model | {F['parameters']} | {norms} of {norms} | 0 | 0 |" in page


def test_there_are_ten_models_and_one_without_jax_is_refused():
    assert len(ARCHITECTURES) == 10
    with pytest.raises(ValueError, match="needs a model in JAX"):
        foreign_models.measured(foreign_models.Foreign(None, None))

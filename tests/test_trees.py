"""Leaves have one path, whoever asks for it."""

import jax.numpy as jnp
import lngeom as lg
import optax
import pytest
from flax import nnx
from lngeom.information.groups import resolve_groups

PARAMS = {"layers": [{"kernel": jnp.eye(2), "bias": jnp.ones(2)}]}


def test_the_fisher_matrix_and_the_tracker_use_one_syntax():
    apply = lambda p, x: x @ p["layers"][0]["kernel"] + p["layers"][0]["bias"][None]  # noqa: E731
    F = lg.fisher(apply, PARAMS, jnp.ones((3, 2)), family=lg.families.Gaussian())
    assert F.leaves == ("layers.0.bias", "layers.0.kernel")
    assert resolve_groups(PARAMS, "*.kernel") == (("layers.0.kernel", (1,)),)
    assert tuple(lg.training.scale_invariant_groups(apply, PARAMS, jnp.ones((3, 2)))) == ()
    with pytest.raises(ValueError, match=r"no parameter matches .*layers\.0\.bias, layers\.0\.kernel"):
        lg.training.track_geometry(optax.sgd(0.1), groups="layers/0/kernel").init(PARAMS)


def test_variables_of_flax_go_by_their_own_names():
    graph, state = nnx.split(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    X = jnp.ones((4, 2), jnp.float32)
    F = lg.fisher(lambda p, x: nnx.merge(graph, p)(x), state, X, family=lg.families.Gaussian())
    assert set(F.leaves) == {"bias", "kernel"}
    assert {name for name, _ in resolve_groups(state, "*")} == {"bias", "kernel"}

"""Null directions of small models of five libraries have names, at initial and at moved weights."""

import jax
import lngeom as lg
import pytest
from analysis.models.small_models import MODELS, trained

SIZES = {"transformer, nnx": {"width": 4, "samples": 40}, "CNN, nnx": {"samples": 120}, "LN MLP, nnx": {"samples": 60}}


@pytest.fixture(autouse=True)
def _promotes():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.thorough
@pytest.mark.peers
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("moved", [False, True], ids=["initial", "moved"])
def test_at_most_one_null_direction_in_fifty_has_no_name(name, moved):
    foreign = MODELS[name](**SIZES.get(name, {}))
    assert foreign.apply is not None
    params = trained(foreign.params) if moved else foreign.params
    null = lg.fisher(foreign.apply, params, foreign.X, family=foreign.family).nullspace()
    found = null.describe()
    assert sum(d.dimension for d in found.directions) + found.unexplained == null.dimension > 0
    assert found.unexplained <= null.dimension / 50
    named = {leaf for d in found.directions for leaf in d.leaves}
    assert named <= set(null.operator.leaves)

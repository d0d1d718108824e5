"""Null directions of small models of five libraries have names, at initial and at moved weights."""

import functools

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from analysis.benchmarks import bench_fisher, first_answer, first_answer_peers, fisher_peers
from analysis.measurements import null_names
from analysis.models.architectures import Foreign
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


@pytest.mark.thorough
def test_the_page_of_names_has_a_row_a_model_and_describes_what_has_no_name():
    mixing = jnp.asarray([[1.0, 2.0, 3.0], [0.5, -1.0, 0.2]])
    p, X = jnp.asarray([1.0, -2.0, 0.7]), np.random.default_rng(0).normal(size=(20, 2))

    def odd(dtype):
        return Foreign(None, X.astype(dtype), lambda p, x: x @ (mixing @ p), p.astype(dtype), lg.families.Gaussian())

    results = {"odd": null_names.run(odd), "parts": null_names.run(MODELS["data in parts"])}
    assert {kind: results["odd"][kind]["unexplained"] for kind in null_names.WEIGHTS} == {"initial": 1, "moved": 1}
    text = null_names.page(results)
    assert "| odd | 3 | 1 | 0 | 1 (100.0 %) |" in text
    assert "| parts | 84 | 66 | 59 | 0 |" in text
    assert "## odd, moved" in text
    assert "## parts" not in text


@pytest.mark.thorough
@pytest.mark.peers
def test_first_answers_are_timed_in_a_process_without_compiled_programs():
    found = first_answer.alone("LN MLP, nnx")
    assert found["unexplained"] == 0 < found["nullity"] < found["parameters"] == 1085
    assert list(found["stages"]) == list(first_answer.STAGES)
    assert all(found["stages"][stage][2] for stage in ("fisher", "first product", "rank"))  # programs are compiled


@pytest.mark.thorough
@pytest.mark.peers
def test_first_answers_of_other_libraries_are_of_the_same_matrix():
    found = {name: first_answer_peers.alone(name) for name in ("lngeom, a function in JAX", "nngeometry")}
    assert all(list(one["stages"]) == list(first_answer_peers.STAGES) for one in found.values())
    first_answer_peers.require_same(found)
    found["nngeometry"]["trace"] *= 1.01
    with pytest.raises(ValueError, match="nngeometry gives another matrix"):
        first_answer_peers.require_same(found)


@pytest.mark.thorough
@pytest.mark.peers
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch, by what they do
def test_diagonals_and_kronecker_factors_of_peers_are_ours():
    """Entry by entry: the benchmark compares sums."""
    model = fisher_peers.convolutional(12, jnp.float32)
    F = bench_fisher.fisher(model)
    ones = jnp.ones(F.in_size(), jnp.float32)
    ours = {"diagonal": F.diagonal(), "kfac": F.approximate("kfac") @ ones}
    peers = {"diagonal": fisher_peers.diagonals(model), "kfac": fisher_peers.kronecker(model)}
    assert set(peers["diagonal"]) >= {"nngeometry", "BackPACK"}
    names = list(F.leaves)
    order = [name for k in range(3) for name in (f"{k}.w", f"{k}.b")]  # of torch
    sizes = {name: leaf.size for name, leaf in zip(names, jax.tree.leaves(model.params), strict=True)}
    for kind, contenders in peers.items():
        found = np.asarray(ours[kind])
        edges = np.cumsum([sizes[n] for n in names])[:-1]
        parts = dict(zip(names, np.split(found, edges), strict=True))
        in_order = np.concatenate([parts[name] for name in order])
        for name, run in contenders.items():
            expected = found if name.startswith("a loop") else in_order
            np.testing.assert_allclose(run(), expected, rtol=1e-3, atol=1e-5 * np.max(np.abs(expected)), err_msg=name)
        with pytest.raises(AssertionError, match=r"gives .*, lngeom"):
            bench_fisher.same_sums({"lngeom": functools.partial(np.multiply, 1.01, found)} | contenders)

"""The measurements of the large transformer, at toy size."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
from analysis.measurements import large_transformer as measured
from jax.flatten_util import ravel_pytree


def test_predicted_directions_are_null_and_a_random_one_is_not():
    found = measured.measure_null("toy", jnp.float64, 8, count=24)
    assert found["directions"] == 24
    assert found["worst"] < 1e-10
    assert found["a random direction, for comparison"] > 1e-6
    assert len(found["by family"]) == 5


def test_the_directions_are_those_that_the_library_predicts():
    stack, params, _, _ = measured.problem("toy", jnp.float64, 8)
    basis = lg.predicted_nullspace(stack, params).basis
    for name, v in measured.directions("toy", params, 20):
        flat = ravel_pytree(v)[0]
        assert np.linalg.norm(flat - basis @ (basis.T @ flat)) < 1e-9, name


def test_a_direction_that_is_no_symmetry_is_seen(monkeypatch):
    genuine = measured.directions

    def planted(size, params, count):
        for name, v in genuine(size, params, count):
            yield name, {n: jnp.roll(x, 1) for n, x in v.items()}

    monkeypatch.setattr(measured, "directions", planted)
    assert measured.measure_null("toy", jnp.float64, 8, count=6)["worst"] > 1e-6


def test_leading_eigenvalues_are_those_of_the_matrix():
    found = measured.measure_eigenvalues("toy", jnp.float64, 4, count=3)
    _, params, apply, data = measured.problem("toy", jnp.float64, 4)
    matrix = lg.fisher(apply, params, data, family=lg.families.Categorical())
    assert np.allclose(found["eigenvalues"], matrix.eigenvalues(3), rtol=1e-9)
    assert max(found["residuals over the largest"]) < 1e-7
    assert len(jax.tree.leaves(params)) > 10


def test_a_product_in_blocks_is_the_plain_one():
    found = measured.measure_product("toy", jnp.float64, 8, block=8)
    assert 0 < found["gap"] < 1e-12
    assert found["peak over parameters"] > 0


def test_products_beside_those_of_other_libraries_have_the_error_of_float32(tmp_path):
    out = tmp_path / "peers.json"
    command = [
        sys.executable,
        *["-m", "analysis", "transformer_peers", "--size", "toy", "--tokens", "8", "--repeats", "1", "--out"],
        str(out),
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    for name, found in json.loads(out.read_text())["contenders"].items():
        assert found["error"] < (0.1 if "differences" in name else 1e-4), name

"""Parameters divided over devices: products, eigenpairs and solutions on pytrees, each device with its part alone."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import pytest
from lngeom._core.numerics import ConvergenceError
from lngeom.information import _krylov

from tests.devices import environment_with

PROGRAM = """
import json, jax, jax.flatten_util, jax.numpy as jnp, numpy as np, lngeom as lg
from lngeom.information._products import at_problem
from jax.sharding import NamedSharding, PartitionSpec as P
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "allow")
mesh = jax.make_mesh((4,), ("data",))
D, C, L = 16, 8, 3
rng = np.random.default_rng(0)
params = {"w": rng.normal(size=(L, D, D)) / D**0.5, "g": np.ones(D), "h": rng.normal(size=(D, C))}
X = jnp.asarray(rng.normal(size=(10, D)))
norm = lambda h: h / jnp.sqrt(jnp.mean(h * h, -1, keepdims=True))

def apply(p, x):
    block = jax.checkpoint(lambda h, w: (h + jnp.tanh(norm(h) * p["g"]) @ w, None))
    return norm(jax.lax.scan(block, x, p["w"])[0]) @ p["h"]

specs = {"w": P(None, "data"), "g": P(), "h": P("data")}
put = lambda tree: {k: jax.device_put(v, NamedSharding(mesh, specs[k])) for k, v in tree.items()}
distance = lambda a, b: max(float(np.max(np.abs(np.asarray(a[k]) - np.asarray(b[k])))) for k in a)
v = {k: rng.normal(size=a.shape) for k, a in params.items()}
family = lg.families.Categorical()
whole = lg.fisher(apply, params, X, family=family, check=False)
expected, top = whole.mv(v), whole.eigenvalues(3)
flat, restore = jax.flatten_util.ravel_pytree(v)
solved = restore(np.linalg.solve(np.asarray(whole.as_matrix()) + 0.1 * np.eye(len(flat)), flat))
found = {}
for name, options in {"chunks": {"chunk": 1, "mesh": mesh}, "alone": {"chunk": 3}}.items():
    F = lg.fisher(apply, put(params), X, family=family, **options)
    image = F.mv(put(v))
    pairs = F.eigenpairs(3)
    cg = F.solve(put(v), damping=0.1, method="cg").value
    held = jax.jit(lambda F, v: F.mv(v)).lower(at_problem(F, F.problem), F.problem.params).compile().memory_analysis()
    found[name] = {
        "gap": distance(image, expected), "solved": distance(cg, solved),
        "eigenvalues": float(np.max(np.abs(np.stack([pairs.values, F.eigenvalues(3)]) - top))),
        "residual": float(pairs.residuals.max()),
        "specs": all(image[k].sharding.spec == specs[k] and not image[k].is_fully_replicated for k in "wh"),
        "vectors": not pairs.vectors["w"].is_fully_replicated,
        "arguments": held.argument_size_in_bytes, "outputs": held.output_size_in_bytes, "axes": F._placement.axes,
    }
found["bytes"] = sum(a.nbytes for a in params.values())
try:
    other = jax.make_mesh((2,), ("other",), devices=jax.devices()[:2])
    lg.fisher(apply, put(params), jax.device_put(X, NamedSharding(other, P("other"))), family=family)
except ValueError as error:
    found["refused"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    command, environment = [sys.executable, "-c", PROGRAM], environment_with(devices=4)
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)


@pytest.mark.parametrize("name", ["chunks", "alone"])
def test_everything_is_that_of_whole_parameters_and_stays_divided(found, name):
    one = found[name]
    assert one["gap"] < 1e-12
    assert one["eigenvalues"] < 1e-7
    assert one["residual"] < 1e-6
    assert one["solved"] < 1e-7
    assert one["specs"]
    assert one["vectors"]
    assert one["axes"] == (["data"] if name == "chunks" else [])
    assert one["outputs"] < 1.1 * found["bytes"] / 4 + 1000
    assert one["arguments"] < 1.1 * found["bytes"] / 2 + 10 * 16 * 8 + 2000  # a quarter of parameters and of a tangent


def test_samples_and_parameters_on_two_meshes_are_refused(found):
    assert "must be on one mesh" in found["refused"]


def _problem(values):
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(len(values), len(values))))[0]
    matrix = jnp.asarray(basis * np.array(values) @ basis.T)
    half = len(values) // 4 * 2

    def product(v):
        image = matrix @ jnp.concatenate([v["a"].reshape(-1), v["b"]])
        return {"a": image[:half].reshape(2, -1), "b": image[half:]}

    like = {"a": jnp.zeros((2, half // 2)), "b": jnp.zeros(len(values) - half)}
    return matrix, product, _krylov.normal_like(jax.random.key(0), like)


def test_small_eigenvalues_beside_a_large_one_are_right():
    """Residuals are judged by their own eigenvalue: by the largest one, these would be 1 % off."""
    values = np.array([1.0, *1e-3 * np.linspace(1, 0.5, 399)])
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(400, 400)))[0]
    matrix = jnp.asarray(basis * values @ basis.T, jnp.float32)
    start = jax.random.normal(jax.random.key(0), (400,), jnp.float32)
    tolerance = float(jnp.finfo(jnp.float32).eps) ** 0.5
    found = _krylov.leading(lambda v: matrix @ v, start, 6, key=jax.random.key(1), tolerance=tolerance)
    assert np.allclose(found.values, values[:6], rtol=2e-3)


@pytest.mark.thorough
def test_small_ranks_and_dimensions_end():
    for values in ([3.0, 0.0, 0.0, 0.0], [0.0] * 40, [2.0, 1.0, *[0.0] * 60]):
        _, product, start = _problem(values)
        found = _krylov.leading(product, start, 3, key=jax.random.key(1), tolerance=1e-8)
        assert np.allclose(found.values, values[:3], atol=1e-9)


def test_iterations_that_do_not_converge_say_so():
    _, product, start = _problem(np.linspace(1, 0.9, 200))
    with pytest.raises(ConvergenceError, match="of 2 eigenvalues converged"):
        _krylov.leading(product, start, 2, key=jax.random.key(1), tolerance=1e-12, width=4, restarts=2)


def test_the_estimated_diagonal_and_what_is_refused():
    X = jnp.asarray(np.random.default_rng(1).normal(size=(40, 4)))
    F = lg.fisher(lambda p, x: jnp.tanh(x @ p["w"]), {"w": jnp.ones((4, 3)) / 3}, X, family=lg.families.Bernoulli())
    found = F.estimate_diagonal(jax.random.key(0), 300)
    assert abs(found.trace - float(F.trace())) < 4 * found.trace_error
    assert np.allclose(found.diagonal["w"].reshape(-1), F.diagonal(), atol=0.2 * float(jnp.max(F.diagonal())))
    for call, message in (
        (lambda: F.estimate_diagonal(jax.random.key(0), 1), "probes must be a whole number, at least 2; got 1"),
        (lambda: F.eigenpairs(13), "between 1 and P = 12; got 13"),
        (lambda: F.eigenpairs(3, width=4), r"width must be a whole number, at least min\(k \+ 2, P\) = 5; got 4"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert np.allclose(F.eigenpairs(5).values, F.eigenvalues(5))

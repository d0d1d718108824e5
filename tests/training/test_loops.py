"""The tracker inside the loops that people have: several optimizers, accumulation, clipping, shards, checkpoints."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from lngeom.training import decay_mask, plan, read_geometry, track_geometry

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(8, 4)))
PARAMS = {"w": jnp.asarray(RNG.normal(size=(4, 6))), "out": jnp.asarray(RNG.normal(size=(6, 2)))}


@pytest.fixture(autouse=True)
def _optax_promotes():
    with jax.numpy_dtype_promotion("standard"):
        yield


def apply(p, x):
    a = x @ p["w"]
    return a / jnp.linalg.norm(a, axis=1, keepdims=True) @ p["out"]


def loss(p, shift=0.0):
    return jnp.mean(jnp.square(apply(p, X) - jnp.sin(X[:, :2] + shift)))


def run(optimizer, steps, params=PARAMS):
    state, path = optimizer.init(params), [params]
    update = jax.jit(optimizer.update)
    for k in range(steps):
        updates, state = update(jax.grad(loss)(params, 0.1 * k), state, params)
        params = optax.apply_updates(params, updates)
        path.append(params)
    return state, path


def angle(a, b):
    a, b = (np.ravel(v) / np.linalg.norm(v) for v in (a, b))
    return 2 * np.arcsin(np.linalg.norm(a - b) / 2)


def test_inside_a_multi_transform_it_records_its_part():
    decayed = optax.chain(optax.add_decayed_weights(0.01), optax.sgd(0.1))
    tracked = track_geometry(decayed, learning_rate=0.1, weight_decay=0.01, groups="w", every=1)
    optimizer = optax.multi_transform({"w": tracked, "out": optax.adam(0.01)}, {"w": "w", "out": "out"})
    state, path = run(optimizer, 3)
    record = read_geometry(state)
    assert np.allclose(record.angle[0], angle(path[-2]["w"], path[-1]["w"]))
    assert np.allclose(record.effective_learning_rate[0], 0.1 / np.linalg.norm(path[-2]["w"]) ** 2)


def test_around_a_multi_transform_it_needs_the_law():
    inner = optax.multi_transform({"w": optax.sgd(0.1), "out": optax.adam(0.01)}, {"w": "w", "out": "out"})
    tracked = track_geometry(inner, learning_rate=0.1, groups="w", kind="sgd", every=1)
    state, path = run(tracked, 2)
    assert np.allclose(read_geometry(state).angle[0], angle(path[-2]["w"], path[-1]["w"]))


def test_with_accumulated_gradients_inside_it_counts_the_steps_that_are_taken():
    tracked = track_geometry(optax.sgd(0.1), learning_rate=0.1, groups="w", every=1, history=5)
    state, path = run(optax.MultiSteps(tracked, 2), 6)
    record = read_geometry(state)
    assert int(record.step) == 3
    taken = [angle(path[k]["w"], path[k + 1]["w"]) for k in (1, 3, 5)]
    assert np.allclose(record.curves()[1]["angle"][:, 0], taken)


def test_with_accumulated_gradients_it_records_the_steps_that_move():
    tracked = track_geometry(
        optax.MultiSteps(optax.sgd(0.1), 2), learning_rate=0.1, groups="w", every=1, history=4, kind="sgd"
    )
    state, path = run(tracked, 4)
    record = read_geometry(state)
    assert record.history_steps.tolist() == [-1, -1, 1, 3]
    assert np.allclose(
        record.history["angle"][2:, 0], [angle(path[1]["w"], path[2]["w"]), angle(path[3]["w"], path[4]["w"])]
    )
    found = track_geometry(optax.MultiSteps(optax.sgd(0.1), 2), learning_rate=0.1, groups="w").init(PARAMS)
    assert found.optimizer == "sgd"


def test_clipped_gradients_keep_the_residual_and_the_law():
    clipped = optax.chain(optax.clip_by_global_norm(1e-2), optax.sgd(0.1))
    tracked = track_geometry(clipped, learning_rate=0.1, groups="w", every=1)
    state, path = run(tracked, 2)
    record = read_geometry(state)
    assert np.allclose(record.angle[0], angle(path[-2]["w"], path[-1]["w"]))
    assert abs(float(record.radial_residual[0])) < 1e-12


def test_sharded_parameters_stay_sharded_and_give_the_same_record():
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("rows"))
    sharded = jax.tree.map(lambda v: jax.device_put(v, sharding), PARAMS)
    tracked = track_geometry(optax.sgd(0.1), learning_rate=0.1, groups="w", every=1)
    one, two = (run(tracked, 2, params) for params in (PARAMS, sharded))
    assert two[1][-1]["w"].sharding.is_equivalent_to(sharding, 2)
    assert np.allclose(read_geometry(one[0]).norm, read_geometry(two[0]).norm, rtol=1e-12)
    assert decay_mask(apply, sharded, X) == {"out": False, "w": True}
    found = plan(apply, sharded, X, optimizer=optax.sgd(0.1), learning_rate=0.1)
    assert found.parameters[0].norm == pytest.approx(np.linalg.norm(PARAMS["w"]))


@pytest.mark.thorough
def test_an_orbax_checkpoint_resumes_the_record(tmp_path):
    checkpoint = pytest.importorskip("orbax.checkpoint")
    tracked = track_geometry(optax.sgd(0.1, momentum=0.9), learning_rate=0.1, groups="w", every=1, history=3)
    state, path = run(tracked, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # orbax's own
        with checkpoint.StandardCheckpointer() as saver:
            leaves, structure = jax.tree.flatten(state)
            saver.save(tmp_path / "state", leaves)
            saver.wait_until_finished()
            restored = jax.tree.unflatten(structure, saver.restore(tmp_path / "state", leaves))
    again, before = read_geometry(restored), read_geometry(state)
    assert np.array_equal(again.history["norm"], before.history["norm"])
    following = [tracked.update(jax.grad(loss)(path[-1]), s, path[-1])[1] for s in (state, restored)]
    assert np.array_equal(read_geometry(following[0]).angle, read_geometry(following[1]).angle)

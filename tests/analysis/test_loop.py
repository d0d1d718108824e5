"""The training loop: resuming gives the same bits, a diverged run harms none of the others."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from analysis.experiments import loop
from analysis.experiments.checkpoint import load_checkpoint, read_header, save_checkpoint

from tests.devices import environment_with

SETTINGS = {"seeds": (3, 1), "steps": 12, "every": 3, "configuration": {"shape": (2, 3)}}


@pytest.fixture(scope="module", autouse=True)
def _promotion_as_optax_needs_it():
    with jax.numpy_dtype_promotion("standard"):
        yield


@functools.cache
def quadratic(rate=0.1, slow=False):
    """Noisy least squares; with `slow`, every evaluation waits, so that there is time to be killed."""

    def init(key):
        return jax.random.normal(key, (4,)), jnp.zeros(())

    def loss(w, count, key, batch):
        x = jax.random.normal(key, (8, 4)) if batch is None else batch
        return jnp.mean(jnp.square(x @ (w - 1))), count + 1

    def evaluate(w, count, data):
        if slow:
            jax.debug.callback(lambda: time.sleep(0.02))
        return {"distance": jnp.sum(jnp.square(w - 1)), "count": count}

    return loop.gradient_task(init, loss, optax.adam(rate), evaluate)


def same(a, b):
    assert jax.tree.structure(a.state) == jax.tree.structure(b.state)
    leaves = zip(jax.tree.leaves((a.curves, a.state)), jax.tree.leaves((b.curves, b.state)), strict=True)
    return all(np.array_equal(x, y, equal_nan=True) for x, y in leaves)


@pytest.fixture(scope="module")
def whole():
    return loop.train(quadratic(), **SETTINGS)


def test_a_run_learns_and_counts_its_steps(whole):
    assert list(whole.steps) == [0, 3, 6, 9, 12]
    assert (whole.curves["count"] == whole.steps[None]).all()
    assert (whole.curves["distance"][:, -1] < whole.curves["distance"][:, 0]).all()
    assert np.isnan(whole.curves["loss"][:, 0]).all()
    assert (whole.diverged_at == -1).all()


class Interrupted(Exception):
    pass


def stop_at(step):
    def progress(taken, steps, metrics):
        if taken == step:
            raise Interrupted

    return progress


def test_an_interrupted_run_resumes_to_the_same_bits(whole, tmp_path):
    path = tmp_path / "run.checkpoint"
    options = {**SETTINGS, "checkpoint": path, "checkpoint_seconds": 0.0, "resume": True}
    with pytest.raises(Interrupted):
        loop.train(quadratic(), **options, progress=stop_at(6))
    assert read_header(path)["step"] == 6
    seen = []
    resumed = loop.train(quadratic(), **options, progress=lambda taken, *_: seen.append(taken))
    assert seen == [9, 12]
    assert same(whole, resumed)
    again = loop.train(quadratic(), **options, progress=stop_at(12))
    assert same(whole, again), "a finished run is read, not repeated"
    other = loop.train(quadratic(), **{**SETTINGS, "seeds": (3, 2)})
    assert not same(whole, other)
    assert np.array_equal(whole.curves["loss"][0], other.curves["loss"][0], equal_nan=True)


def test_steps_of_python_give_the_same_as_steps_of_scan(whole):
    stepped = loop.train(quadratic(), **SETTINGS, scan=False)
    for name, curve in whole.curves.items():
        np.testing.assert_allclose(curve, stepped.curves[name], rtol=1e-12)


def test_seeds_one_by_one_give_the_same_as_seeds_in_a_batch(whole):
    single = loop.train(quadratic(), **SETTINGS, batched=False)
    for name, curve in whole.curves.items():
        np.testing.assert_allclose(single.curves[name], curve, rtol=1e-12)
    alone = loop.train(quadratic(), **(SETTINGS | {"seeds": (1,)}), batched=False)
    np.testing.assert_array_equal(alone.curves["distance"][0], single.curves["distance"][1])


def test_a_checkpoint_of_another_configuration_or_a_damaged_one_is_refused(tmp_path):
    path = tmp_path / "run.checkpoint"
    options = {**SETTINGS, "checkpoint": path, "resume": True}
    loop.train(quadratic(), **options)
    with pytest.raises(ValueError, match="another configuration, which differs in configuration"):
        loop.train(quadratic(), **{**options, "configuration": {"shape": (2, 4)}})
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - 40])
    with pytest.raises(ValueError, match="damaged"):
        loop.train(quadratic(), **options)
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match="not a checkpoint of this version"):
        loop.train(quadratic(), **options)
    with pytest.raises(ValueError, match="positive multiple"):
        loop.train(quadratic(), seeds=(0,), steps=10, every=3)
    with pytest.raises(ValueError, match="all different"):
        loop.train(quadratic(), seeds=(0, 0), steps=2, every=1)


def test_a_diverged_seed_is_reported_and_the_others_go_on():
    def init(key):
        return jnp.where(jax.random.key_data(key)[1] == jax.random.key_data(bad)[1], 1.0, 0.0)

    bad = jax.random.fold_in(jax.random.key(7), 0)
    task = loop.Task(init, lambda s, key, batch: (2e60 * s * s, 2e60 * s * s), lambda s, data: {"value": s})
    run = loop.train(task, seeds=(5, 7), steps=12, every=2)
    assert run.diverged_at[0] == -1
    assert 0 < run.diverged_at[1] < 12
    assert np.isfinite(run.curves["value"][0]).all()
    first = run.diverged_at[1] // 2 + 1
    assert np.isnan(run.curves["value"][1, first:]).all()
    assert np.isfinite(run.curves["value"][1, :first]).all()


def joined(asked):
    """Steps whose batches were asked for, after the first look at their shapes."""
    assert asked[0] == (0, 1)
    return [t for first, count in asked[1:] for t in range(first, first + count)]


def test_a_stream_gives_every_seed_the_same_batches_wherever_chunks_begin():
    asked = []

    def stream(first, count):
        asked.append((first, count))
        return np.stack([np.random.default_rng(t).normal(size=(8, 4)) for t in range(first, first + count)])

    once = loop.train(quadratic(), **{**SETTINGS, "every": 6}, stream=stream)
    assert joined(asked) == list(range(12))
    often = loop.train(quadratic(), **SETTINGS, stream=stream)
    np.testing.assert_allclose(once.curves["distance"][:, -1], often.curves["distance"][:, -1], rtol=1e-12)


def test_where_chunks_end_changes_no_bit(whole, tmp_path):
    seen = []
    options = {**SETTINGS, "every": 6, "progress": lambda taken, *_: seen.append(taken)}
    short, long = (loop.train(quadratic(), **options, chunk_seconds=seconds) for seconds in (0.0, 100.0))
    assert same(short, long)
    assert seen == [4, 5, 6, 7, 8, 9, 10, 11, 12, 4, 6, 12]
    path = tmp_path / "run.checkpoint"
    options = {**SETTINGS, "every": 6, "checkpoint": path, "checkpoint_seconds": 0.0, "resume": True}
    with pytest.raises(Interrupted):
        loop.train(quadratic(), **options, chunk_seconds=0.0, progress=stop_at(8))
    assert read_header(path)["step"] == 8, "between two evaluations"
    assert same(loop.train(quadratic(), **options), long)


def test_a_longer_run_goes_on_where_a_shorter_one_has_ended(whole, tmp_path):
    path = tmp_path / "run.checkpoint"
    loop.train(quadratic(), **{**SETTINGS, "steps": 6}, checkpoint=path)
    seen = []
    options = {**SETTINGS, "checkpoint": path, "resume": True}
    assert same(whole, loop.train(quadratic(), **options, progress=lambda taken, *_: seen.append(taken)))
    assert seen[0] > 6
    with pytest.raises(ValueError, match="another configuration, which differs in steps"):
        loop.train(quadratic(), **{**options, "steps": 6})


def test_seeds_with_data_of_their_own_are_trained_on_them():
    data = np.random.default_rng(0).normal(size=(2, 8, 4))
    both = loop.train(quadratic(), **SETTINGS, data=data, data_of_each=True)
    for k, seed in enumerate(SETTINGS["seeds"]):
        alone = loop.train(quadratic(), **(SETTINGS | {"seeds": (seed,)}), data=data[k])
        np.testing.assert_allclose(both.curves["distance"][k], alone.curves["distance"][0], rtol=1e-12)
    assert abs(both.curves["loss"][0, 1] - loop.train(quadratic(), **SETTINGS, data=data[1]).curves["loss"][0, 1]) > 0.1


def test_the_best_states_are_kept_beside_the_last(whole, tmp_path):
    rough = {**SETTINGS, "steps": 60, "checkpoint": tmp_path / "run.checkpoint", "checkpoint_seconds": 0.0}
    best = loop.Best("distance", True)
    run = loop.train(quadratic(rate=1.5), **rough, best=best)
    _, state = load_checkpoint(tmp_path / "run.best", run.state)
    distances = np.sum(np.square(np.asarray(state.model) - 1), 1)
    np.testing.assert_allclose(distances, run.curves["distance"].min(1), rtol=1e-12)
    assert (run.curves["distance"].min(1) < run.curves["distance"][:, -1]).any()
    kept = (tmp_path / "run.best").read_bytes()
    (tmp_path / "run.best").unlink()
    (tmp_path / "run.checkpoint").unlink()
    with pytest.raises(Interrupted):
        loop.train(quadratic(rate=1.5), **rough, best=best, progress=stop_at(30))
    loop.train(quadratic(rate=1.5), **rough, best=best, resume=True)
    assert (tmp_path / "run.best").read_bytes() == kept
    with pytest.raises(ValueError, match="no curve 'nll' to keep the best state by; there are loss, count, distance"):
        loop.train(quadratic(), **rough, best=loop.Best("nll", True))


def test_a_checkpoint_goes_where_text_or_a_path_says(tmp_path):
    tree = (jnp.arange(3.0), np.ones(2))
    save_checkpoint(str(tmp_path / "new" / "state"), {"step": 3}, tree)
    for path in (str(tmp_path / "new" / "state"), tmp_path / "new" / "state"):
        assert read_header(path)["step"] == 3
        header, found = load_checkpoint(path, tree)
        assert header["step"] == 3
        assert all(np.array_equal(a, b) for a, b in zip(found, tree, strict=True))
    run = loop.train(quadratic(), **SETTINGS, checkpoint=str(tmp_path / "run"))
    resumed = loop.train(quadratic(), **SETTINGS, checkpoint=str(tmp_path / "run"), resume=True)
    assert same(run, resumed)


def test_a_checkpoint_that_cannot_be_written_or_read_is_one_clear_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"the checkpoint .*state cannot be written: .*(directory|exists)"):
        save_checkpoint(str(tmp_path / "file" / "state"), {}, jnp.zeros(1))
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=r"the checkpoint .*folder cannot be written: "):
        save_checkpoint(tmp_path / "folder", {}, jnp.zeros(1))
    with pytest.raises(FileNotFoundError, match=r"the checkpoint .*none cannot be read: No such file"):
        read_header(str(tmp_path / "none"))
    with pytest.raises(NotADirectoryError, match="file is not a folder"):
        loop.train(quadratic(), **SETTINGS, checkpoint=tmp_path / "file" / "state", progress=pytest.fail)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]
    save_checkpoint(tmp_path / "old", {"step": 1}, jnp.zeros(1))
    with pytest.raises(TypeError, match="JSON"):
        save_checkpoint(tmp_path / "old", {"step": object()}, jnp.zeros(1))
    assert read_header(tmp_path / "old")["step"] == 1


LONG = {"seeds": (3, 1), "steps": 60, "every": 3}
KILLED = """
import sys
from pathlib import Path
import jax
jax.config.update("jax_enable_x64", True)
from analysis.experiments import loop
from tests.analysis.test_loop import LONG, quadratic
run = loop.train(quadratic(slow=True), **LONG, checkpoint=Path(sys.argv[1]), checkpoint_seconds=0.0, resume=True,
                 progress=lambda *a: print(a[0], flush=True))
print("end", run.curves["distance"].tobytes().hex())
"""


def test_a_killed_process_resumes_to_the_same_bits(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path / "run")]
    environment = os.environ | {"PYTHONPATH": "."}
    killed = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    for line in killed.stdout:
        if int(line) >= 9:
            killed.send_signal(signal.SIGKILL)
            break
    killed.communicate()
    assert 9 <= json.loads((tmp_path / "run").read_bytes().split(b"\n")[0])["step"] < 60
    resumed = subprocess.run(command, stdout=subprocess.PIPE, env=environment, text=True, check=True)
    *steps, end, curve = resumed.stdout.split()
    seen = []
    whole = loop.train(quadratic(slow=True), **LONG, progress=lambda taken, *_: seen.append(taken))
    assert len(steps) < len(seen), "the resumed run repeats nothing"
    assert (end, curve) == ("end", whole.curves["distance"].tobytes().hex())
    assert not [p for p in Path(tmp_path).iterdir() if p.name.startswith(".") and p.stat().st_size == 0]


SHARDED = """
import jax, numpy as np
from analysis.experiments import loop
from tests.analysis.test_loop import quadratic
def stream(first, count):
    draws = [np.random.default_rng(t).normal(size=(8, 4)) for t in range(first, first + count)]
    return np.stack(draws).astype("float32")
options = dict(seeds=(0, 1, 2, 3), steps=4, every=2, stream=stream)
mesh = jax.make_mesh((2, 2), ("seeds", "batch"))
one, many = loop.train(quadratic(), **options), loop.train(quadratic(), **options, mesh=mesh)
assert len(many.state.model.sharding.device_set) == 4, many.state.model.sharding
np.testing.assert_allclose(one.curves["distance"], many.curves["distance"], rtol=1e-5)
"""


def test_seeds_and_batches_spread_over_devices():
    subprocess.run([sys.executable, "-c", SHARDED], check=True, env=environment_with(devices=4))

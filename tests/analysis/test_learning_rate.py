"""The experiments about the learning rate resume to the bit, keep what is done, and say when a run diverges."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from analysis.experiments.loop import Task
from analysis.measurements.learning_rate import __main__ as learning_rate, networks, parts
from lngeom.training import track_geometry

TINY = networks.Sizes(steps=6, every=2, seeds=2, hidden=4, batch=8)


@functools.cache
def task_of(sizes):
    """One task of these sizes, so that a run that is resumed finds its compiled programs."""
    tracked = track_geometry(optax.sgd(0.3), learning_rate=0.3, groups=("w1", "w2"))
    return networks.make_task(sizes, lambda key: networks.mlp(sizes.hidden, 5, key), networks.mlp_logits, tracked)


def one_network(sizes, folder, progress):
    data = {"x": jnp.asarray(np.random.default_rng(0).normal(size=(30, 5))), "y": jnp.arange(30) % 10}
    return {"MLP": networks.train_network("MLP", task_of(sizes), sizes, data, folder, progress)}


def stopping(name):
    def progress(step, steps, metrics):
        if step == 4:
            raise KeyboardInterrupt

    return progress


def test_a_killed_part_resumes_to_the_bit(tmp_path, monkeypatch):
    monkeypatch.setitem(parts.PARTS, "one", one_network)
    monkeypatch.setattr(networks, "CHECKPOINT_SECONDS", 0.0)
    whole = learning_rate.compute("one", TINY, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        learning_rate.compute("one", TINY, tmp_path / "killed", stopping)
    assert list((tmp_path / "killed").glob("*.checkpoint"))
    resumed = learning_rate.compute("one", TINY, tmp_path / "killed")
    assert jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a, b, equal_nan=True), whole, resumed))
    assert (tmp_path / "whole" / "one.json").read_bytes() == (tmp_path / "killed" / "one.json").read_bytes()

    monkeypatch.setitem(parts.PARTS, "one", lambda *_: pytest.fail("what was kept is not computed again"))
    learning_rate.compute("one", TINY, tmp_path / "whole")
    monkeypatch.setitem(parts.PARTS, "one", lambda *_: {"other": np.ones(1)})
    assert set(learning_rate.compute("one", dataclasses.replace(TINY, seeds=3), tmp_path / "whole")) == {"other"}


def test_a_diverged_run_is_an_error_that_says_when():
    task = Task(
        lambda key: jnp.ones(()), lambda state, key, data: (state, jnp.log(-state)), lambda state, data: {"a": state}
    )
    with pytest.raises(ValueError, match="'broken' diverged: its loss was NaN or infinite first at step 0"):
        networks.train_network("broken", task, TINY, {"x": jnp.ones(1)}, None, None)

"""The measurements of an accelerator run at toy size, stop in time, and do not pass a layer that is wrong."""

import functools
import json
import math
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from analysis.benchmarks.gpu import __main__ as command, layers, run as running
from analysis.benchmarks.gpu.fisher import precision
from analysis.benchmarks.gpu.results import draw
from analysis.benchmarks.gpu.run import MARGIN, Run, measure, tasks
from analysis.benchmarks.gpu.sizes import TOY
from analysis.benchmarks.gpu.timing import relative_error
from analysis.models import gpt2 as transformer


@pytest.fixture(autouse=True)
def _as_users_run_it():
    """The command runs in float32, with JAX's own settings."""
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def run(tmp_path, seconds=600.0, name="gpu_toy.json"):
    return Run(TOY, tmp_path / name, time.monotonic() + seconds)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the other libraries
def test_every_task_runs_at_toy_size_and_is_right(tmp_path):
    found = measure(run(tmp_path), lambda _: None)
    assert found.complete
    assert not found.failed
    written = json.loads(found.path.read_text(encoding="utf-8"))
    assert len(written["rows"]) == len(found.rows)
    measured = {r["implementation"] for r in written["rows"] if r["task"] == "layer norm"}
    assert {"copy", *layers.JAX_LAYERS} <= measured
    for task in ("Fisher product", "Fisher matrix", "transformer product"):
        errors = {(r["implementation"], r["precision"]): r["error"] for r in written["rows"] if r["task"] == task}
        assert {(n, p) for n in ("jvp–vjp", "lngeom") for p in ("default", "highest")} <= set(errors)
        assert max(errors.values()) < 1e-5, task
    assert "| 8 × 128 | float32 | forward | lngeom fused |" in found.path.with_suffix(".md").read_text(encoding="utf-8")
    paths = draw(written["rows"], tmp_path / "gpu_toy_rates", written["device"])
    assert [p.name for p in paths] == ["gpu_toy_rates.svg", "gpu_toy_rates.png", "gpu_toy_rates.json"]


def test_a_wrong_layer_is_named_and_the_other_tasks_run(tmp_path, monkeypatch):
    planted = lambda x, gain, bias: layers.plain(x, gain, bias) * (1 + 1e-4)  # noqa: E731
    monkeypatch.setitem(layers.JAX_LAYERS, "planted", planted)
    monkeypatch.setitem(layers.JAX_LAYERS, "undefined", lambda x, gain, bias: layers.plain(x, gain, bias) * jnp.nan)
    at = (8, 128, "float32", 1e-4)
    few = [(n, functools.partial(layers.jax_layer, n, *at)) for n in ("planted", "undefined", "XLA")]
    monkeypatch.setattr(running, "tasks", lambda sizes: iter(few))
    found = measure(run(tmp_path), lambda _: None)
    assert [task["task"] for task in found.failed] == ["planted", "undefined"]
    assert "differs from float64" in found.failed[0]["reason"]
    assert "not finite" in found.failed[1]["reason"]
    assert {row["implementation"] for row in found.rows} == {"XLA"}


def test_when_the_time_is_spent_the_file_says_what_is_missing(tmp_path):
    found = measure(run(tmp_path, MARGIN / 2), lambda _: None)
    written = json.loads(found.path.read_text(encoding="utf-8"))
    assert not written["complete"]
    assert not written["rows"]
    assert len(written["skipped"]) == len(list(tasks(TOY)))
    assert not found.failed


def test_a_run_on_a_cpu_does_not_replace_a_measurement(tmp_path, monkeypatch, capsys):
    (tmp_path / "gpu.json").write_text("measured", encoding="utf-8")
    monkeypatch.setattr(running, "tasks", lambda sizes: iter([("precision", precision)]))
    monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(tmp_path)])
    command.main()
    assert (tmp_path / "gpu.json").read_text(encoding="utf-8") == "measured"
    assert "| precision |" in capsys.readouterr().out
    rows = json.loads((tmp_path / "gpu_toy.json").read_text(encoding="utf-8"))["rows"]
    assert {"jax, default", "jax, highest"} <= {row["implementation"] for row in rows}


def test_the_errors_tell_tf32_from_float32():
    """Operands rounded to TF32's 10 bits have the error that the page would show."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 64, 64))
    rounded = [np.asarray(jax.lax.reduce_precision(jnp.asarray(m, jnp.float32), 8, 10), float) for m in (a, b)]
    assert 1e-4 < relative_error(rounded[0] @ rounded[1], a @ b) < 1e-3
    assert relative_error((a.astype(np.float32) @ b.astype(np.float32)), a @ b) < 1e-6


def test_gpt_2_has_124_million_parameters():
    shapes = jax.eval_shape(lambda key: transformer.parameters(transformer.GPT2, key), jax.random.key(0))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == 124_439_808


@pytest.mark.parametrize("placing", ["pre", "post"])
def test_the_transformer_is_causal(placing):
    shape = transformer.Shape(vocabulary=9, length=5, width=8, depth=1, heads=2, norm="RMS norm", placing=placing)
    params = transformer.parameters(shape, jax.random.key(0))
    tokens = jnp.array([[1, 2, 3, 4, 5]])
    z = transformer.apply(shape, params, tokens)
    changed = transformer.apply(shape, params, tokens.at[0, 3].set(7))
    assert jnp.array_equal(z[:, :3], changed[:, :3])
    assert not jnp.allclose(z[:, 3:], changed[:, 3:], atol=1e-8)

"""Records reach files and clients whole, and what is missing is named."""

import csv
import importlib
import json
import sys
import types

import jax
import jax.numpy as jnp
import lngeom as lg
import numpy as np
import optax
import pytest
from lngeom.training import plan, read_geometry, track_geometry, write_record, writers

X = jnp.asarray(np.random.default_rng(0).normal(size=(8, 3)))


def apply(p, x):
    a = x @ p["w"]
    return a / jnp.sqrt(jnp.mean(a**2, 1, keepdims=True) + 1e-8) @ p["out"]


PARAMS = {"w": jnp.asarray(np.random.default_rng(1).normal(size=(3, 5))), "out": jnp.ones((5, 2))}


def recorded(steps=4, history=3, params=PARAMS):
    decayed = optax.chain(optax.add_decayed_weights(0.01), optax.sgd(0.1))
    tracker = track_geometry(decayed, learning_rate=0.1, weight_decay=0.01, groups="w", every=1, history=history)
    state = tracker.init(params)
    for _ in range(steps):
        gradient = jax.grad(lambda p: jnp.sum(jnp.sin(apply(p, X))))(params)
        updates, state = tracker.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return read_geometry(state)


class Writer:
    """As TensorBoard's and its clones'."""

    def __init__(self, folder=None):
        self.folder, self.values, self.closed = folder, [], False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True

    def add_scalar(self, tag, value, step):
        self.values.append((tag, value, step))


class Run:
    """As one of Weights & Biases."""

    def __init__(self):
        self.logged = []

    def log(self, values, step):
        self.logged.append((step, values))


@pytest.mark.thorough
def test_a_csv_has_a_row_for_each_step_and_group(tmp_path):
    record = recorded()
    assert write_record(record, tmp_path / "new" / "run.csv") == 3
    with open(tmp_path / "new" / "run.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["1", "2", "3"]
    assert [float(row["norm"]) for row in rows] == record.history["norm"][:, 0].tolist()
    assert {row["group"] for row in rows} == {"w"}
    write_record(record, str(tmp_path / "run.csv"), since=2, extra={"epsilon_share": 0.25})
    with open(tmp_path / "run.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["epsilon_share"] for row in rows] == ["", "", "0.25"]


def test_rows_fit_pandas_and_those_of_a_batch_are_refused():
    record = recorded()
    assert [row["step"] for row in recorded(steps=2, history=0).rows()] == [1]
    stacked = jax.tree.map(lambda *v: jnp.stack(v), recorded(steps=1, history=0), recorded(steps=2, history=0))
    assert [row["step"] for row in stacked.rows()] == [0, 1]
    batch = jax.tree.map(lambda v: jnp.stack([v, v]), stacked)
    with pytest.raises(ValueError, match="take one run of the batch"):
        batch.rows()
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(record.rows())
    assert list(frame["angle"]) == record.history["angle"][:, 0].tolist()


def test_event_files_and_runs_get_what_is_new():
    record, writer, run = recorded(), Writer(), Run()
    last = write_record(record, writer, since=1)
    assert last == 3
    assert [(tag, step) for tag, _, step in writer.values if tag.endswith("/norm")] == [
        ("geometry/w/norm", 2),
        ("geometry/w/norm", 3),
    ]
    assert write_record(record, writer, since=last) == 3
    assert len([tag for tag, *_ in writer.values if tag.endswith("/norm")]) == 2
    write_record(record, run, prefix="mine")
    assert [step for step, _ in run.logged] == [1, 2, 3]
    assert run.logged[-1][1]["mine/w/norm"] == float(record.history["norm"][-1, 0])


def test_values_that_are_unknown_are_left_out():
    tracker = optax.chain(optax.sgd(0.1), track_geometry(groups="w", every=1))
    _, state = tracker.update(PARAMS, tracker.init(PARAMS), PARAMS)
    writer = Writer()
    write_record(read_geometry(state), writer)
    assert {tag for tag, *_ in writer.values} == {"geometry/w/norm", "geometry/w/angle"}


def without(monkeypatch, *names):
    real = importlib.import_module

    def missing(name, *rest):
        if name in names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    monkeypatch.setattr(writers.importlib, "import_module", missing)


def test_clients_that_are_installed_are_used_and_others_named(monkeypatch, tmp_path):
    record, made = recorded(), []

    def summary(folder):
        made.append(Writer(folder))
        return made[-1]

    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=summary))
    write_record(record, tmp_path / "events")
    assert made[0].folder == str(tmp_path / "events")
    assert made[0].closed
    assert made[0].values
    run = Run()
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=run))
    write_record(record, "wandb")
    assert len(run.logged) == 3
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=None))
    with pytest.raises(ValueError, match=r"call wandb.init"):
        write_record(record, "wandb")
    without(monkeypatch, "wandb", "pyarrow", *writers.CLIENTS)
    with pytest.raises(ImportError, match="client is not installed: pip install wandb"):
        write_record(record, "wandb")
    with pytest.raises(ImportError, match=r"need one of tensorboardX, torch.utils.tensorboard"):
        write_record(record, tmp_path / "other")
    with pytest.raises(ImportError, match="pyarrow is not installed"):
        write_record(record, tmp_path / "run.parquet")
    assert not (tmp_path / "run.parquet").exists()


def test_parquet_holds_what_the_csv_holds(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    record = recorded()
    write_record(record, tmp_path / "run.parquet")
    frame = pandas.read_parquet(tmp_path / "run.parquet")
    assert list(frame["norm"]) == record.history["norm"][:, 0].tolist()


def test_bad_targets_say_what_there_is(tmp_path):
    record = recorded()
    with pytest.raises(ValueError, match=r"a path must end in .csv or .parquet, or have no suffix"):
        write_record(record, tmp_path / "run.txt")
    with pytest.raises(ValueError, match="to must be a path, 'wandb', or an object"):
        write_record(record, 3)
    with pytest.raises(ValueError, match="record must be what read_geometry"):
        write_record({"norm": 1.0}, tmp_path / "run.csv")
    tracker = track_geometry(optax.sgd(0.1), learning_rate=0.1, groups="w", history=2)
    with pytest.raises(ValueError, match="no step is recorded yet"):
        write_record(read_geometry(tracker.init(PARAMS)), tmp_path / "run.csv")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is not a folder"):
        write_record(record, tmp_path / "file" / "run.csv")


def test_a_line_says_where_the_weights_are_and_go():
    record = recorded()
    line = record.line()
    assert line.startswith(
        f"step 4  w  ‖w‖ {float(record.norm[0]):.3g} → {float(record.equilibrium_norm[0]):.3g}  angle "
    )
    assert record.line("w") == line
    with pytest.raises(ValueError, match="no group 'v'; the groups are w"):
        record.line("v")


@pytest.mark.thorough
def test_a_figure_shows_predictions_and_shares_of_epsilon(tmp_path):
    found = plan(apply, PARAMS, X, optimizer="sgd", learning_rate=0.1, weight_decay=0.01, gradient_scale=0.5)
    record = recorded()
    lg.plots.training(record, tmp_path / "run", plan=found)
    data = json.loads((tmp_path / "run.json").read_text())["data"]
    assert data["epsilon_share"] == {
        "norm": [1],
        "mean": [found.norms[0].share],
        "largest": [found.norms[0].largest_share],
    }
    assert data["equilibrium_norm"]["w"] == [float(record.equilibrium_norm[0])] * 3
    lg.plots.training(record, tmp_path / "plain")
    assert "epsilon_share" not in json.loads((tmp_path / "plain.json").read_text())["data"]

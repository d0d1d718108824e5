"""The measurements of the plan for training: half-lives, errors, and twins that are scaled with their states."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from analysis.measurements import training_plan as experiment
from analysis.measurements.planned_networks import mlp


@pytest.fixture(autouse=True)
def _as_it_is_run():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def test_a_half_life_is_that_of_the_exponential_and_noise_below_a_third_is_not_read():
    t = np.arange(200)
    curve = 0.5 * 0.5 ** (t / 40)
    assert experiment._half_life(curve) == pytest.approx(40)
    assert experiment._half_life(np.where(curve < 0.16, -1.0, curve)) == pytest.approx(40)
    assert math.isnan(experiment._half_life(np.full(50, 0.5)))
    assert math.isnan(experiment._half_life(np.array([0.5, -0.1, 0.2])))


def test_what_could_not_be_measured_counts_as_an_error_of_one():
    row = {"norm": 1.0, "predicted norm": 1.1, "angle": 0.1, "predicted angle": math.nan}
    row |= {"half-life": math.nan, "predicted half-life": 40.0}
    found = experiment.errors({"one": {"groups": [row]}})
    assert found == {"norm": pytest.approx(0.1), "angle": 1.0, "half-life": 1.0}


@pytest.mark.parametrize("name", experiment.SETTINGS)
def test_a_twin_with_larger_weights_and_its_state_takes_the_same_step_as_an_equivalent_run(name):
    """From cw with states scaled by their powers, the first update is that from w, times the law's power of 1/c."""
    rate, decay, c = 0.1, 0.0, 2.0
    optimizer = experiment.SETTINGS[name].make(rate, decay, None)
    w = {"w": jnp.array([1.0, -2.0, 0.5])}
    g = {"w": jnp.array([0.3, 0.1, -0.2])}
    _, state = optimizer.update(g, optimizer.init(w), w)
    plain, _ = optimizer.update(g, state, w)
    larger = experiment._rescaled(state, [c], experiment._STATES)
    scaled, _ = optimizer.update(jax.tree.map(lambda v: v / c, g), larger, jax.tree.map(lambda v: c * v, w))
    power = -1 if name in {"sgd", "momentum"} else 0
    assert np.allclose(scaled["w"], plain["w"] * c**power, rtol=1e-9)


def test_an_mlp_is_measured_in_all_quantities(monkeypatch):
    for name, value in (("SETTLE", 1), ("WINDOW", 1), ("WINDOWS", 2), ("REPEATS", {"sgd": 1}), ("CHUNK", 10)):
        monkeypatch.setattr(experiment, name, value)
    monkeypatch.setitem(
        experiment.SETTINGS,
        "sgd",
        experiment.SETTINGS["sgd"]._replace(rate=0.2),
    )
    with jax.enable_x64(False):
        found = experiment.Runner(mlp(16, 8), "sgd", lambda text: None).measure()
    assert [row["group"] for row in found["groups"]] == ["w1", "w2"]
    assert all(np.isfinite(row[q]) and row[q] > 0 for row in found["groups"] for q in ("norm", "angle"))
    assert all(abs(row["angle"] / row["predicted angle"] - 1) < 0.5 for row in found["groups"])
    assert found["drift"] <= experiment.REST or found["windows"] == experiment.WINDOWS
    for rest, windows in ((np.inf, 1), (0.0, 2)):
        monkeypatch.setattr(experiment, "REST", rest)
        with jax.enable_x64(False):
            again = experiment.Runner(mlp(16, 8), "sgd", lambda text: None).measure()
        assert again["windows"] == windows
    assert found["excess"][0] == pytest.approx(np.full(2, 0.5), rel=1e-4)
    for row in found["groups"]:
        size, growth, drift = (row[key] for key in ("size of updates", "growth for each squared update", "drift"))
        error = (1 + size) ** 2 * (1 + growth) / (1 + drift)
        assert (row["norm"] / row["predicted norm"]) ** 4 == pytest.approx(error, rel=0.02)
        assert max(abs(size), abs(growth)) < 0.01  # plain descent has no memory, and steps of the size of the gradient

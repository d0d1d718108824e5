"""Tutorials run, and arrive where they say."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import analysis.tutorials
import jax
import pytest
from lngeom.claims import registry


@pytest.fixture(autouse=True)
def _as_a_reader_runs_them():
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def run(name):
    return importlib.import_module(f"analysis.tutorials.{name}").main()


def test_every_tutorial_is_run_here():
    names = {p.stem for p in Path(analysis.tutorials.__file__).parent.glob("[a-z]*.py")}
    assert names == {name.removeprefix("test_") for name in globals() if name.startswith("test_")} - {
        "every_tutorial_is_run_here",
        "fisher_of_a_flax_model_without_flax",
    }


def test_fisher_of_a_flax_model():
    pytest.importorskip("flax")
    found = run("fisher_of_a_flax_model")
    assert found["rank"] < found["size"] == 57
    assert abs(found["along"]) < 1e-15 * found["total"]
    assert found["overlap"] < 1e-10


def test_fisher_of_a_flax_model_without_flax(tmp_path):
    """One sentence, where flax is missing."""
    (tmp_path / "flax").mkdir()
    (tmp_path / "flax/__init__.py").write_text("raise ModuleNotFoundError('flax')")
    path = os.pathsep.join([str(tmp_path), str(Path(analysis.tutorials.__file__).parents[2])])
    command = [sys.executable, "-m", "analysis.tutorials.fisher_of_a_flax_model"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: this tutorial needs flax: pip install flax\n"


def test_audit_your_own_layer(capsys):
    assert run("audit_your_own_layer") == {"right": "invariant, lost to rounding", "slip": "not invariant"}
    assert "\nAs layer norm, in " in capsys.readouterr().out


def test_derivative_of_layer_norm(capsys):
    found = run("derivative_of_layer_norm")
    words = {
        "statistics as constants": "mean and variance of a row are treated as constants",
        "mean forgotten": "the derivative of the mean of a row is missing",
        "gain forgotten": "as if gain were 1",
        "inputs for n": "multiplied by the inputs, not by the normalized inputs",
        "cut off": "what a derivative depends on is cut off",
    }
    assert found.pop("right") == ""
    assert set(found) == set(words)
    assert all(words[name] in found[name] for name in words)
    assert "Derivatives of Norm in inputs, gain: all " in capsys.readouterr().out


def test_effective_learning_rate():
    found = run("effective_learning_rate")
    assert found["last"] < found["first"] / 2
    assert 10 < found["halved"] < 60
    assert found["radial"] < 1e-4
    assert found["last"] == pytest.approx(found["rate"] / found["norm"] ** 2, rel=1e-5)


def test_plan_a_training(capsys):
    found = run("plan_a_training")
    assert found["norm"] == pytest.approx(found["planned norm"], rel=0.1)
    assert found["angle"] == pytest.approx(found["planned angle"], rel=0.1)
    assert found["decay"] == 2
    assert "decay acts as a rate on: hidden" in capsys.readouterr().out


def test_add_a_claim(monkeypatch):
    registry.load()
    monkeypatch.setattr(registry, "_CLAIMS", dict(registry._CLAIMS))  # its claims are no part of an audit
    monkeypatch.setattr(registry, "_PROVERS", dict(registry._PROVERS))
    assert run("add_a_claim") == {"tutorial.bound": "holds", "tutorial.too_tight": "refuted"}


def test_audit_a_paper(monkeypatch):
    monkeypatch.setattr(registry, "_CLAIMS", dict(registry._CLAIMS))
    assert run("audit_a_paper") == {"tutorial_sphere.projection": "conditional"}


def test_rotate_a_transformer(capsys):
    found = run("rotate_a_transformer")
    assert found["passed"] == 1
    assert found["exact"] < 1e-13
    assert found["least refused"] > 0.1
    assert found["original"] > 10 > 5 > found["rotated"]
    assert "certificate: passed" in capsys.readouterr().out


def test_exactly_the_same_model(capsys):
    found = run("exactly_the_same_model")
    assert [verdict for verdict, _, _ in found.values()] == ["rounding"] * 2 + ["different"] * 6
    places = ["tables", "blocks.1.attention", "blocks.2.feed_forward", "blocks.0.attention"]
    assert [place for _, place, _ in found.values()] == ["", "", *places, "blocks.0.attention", "blocks.1.feed_forward"]
    words = ["are centred", "is left out", "γ − 1 stands for γ", "rotary pairs", "eps is 1e-05", "not rotated"]
    assert all(word in cause for word, (_, _, cause) in zip(words, list(found.values())[2:], strict=True))
    assert "8 parts compared" in capsys.readouterr().out

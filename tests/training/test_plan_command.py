"""`lngeom plan` as a user meets it."""

import json

import lngeom as lg
import numpy as np
import pytest
from lngeom.cli import programs
from lngeom.cli.commands import app
from typer.testing import CliRunner

MODULE = """
import jax, jax.numpy as jnp, optax

X = jax.random.normal(jax.random.key(1), (20, 3))

def apply(p, x):
    a = x @ p["hidden"]
    a = a - jnp.mean(a, 1, keepdims=True)
    return (a / jnp.sqrt(jnp.mean(a**2, 1, keepdims=True) + 1e-5)) @ p["out"]

def problem():
    return apply, {"hidden": jax.random.normal(jax.random.key(0), (3, 4)), "out": jnp.eye(4)[:, 1:]}, X

def with_optimizer():
    optimizer = optax.adamw(1e-3, weight_decay=0.1)
    return *problem(), {"optimizer": optimizer, "learning_rate": 1e-3, "weight_decay": 0.1}

def strange():
    return *problem(), {"rate": 1e-3}
"""


@pytest.fixture(autouse=True)
def _folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(programs, "compile_sparingly", lambda: None)
    (tmp_path / "models_of_plans.py").write_text(MODULE)


def run(*args):
    args = [a.replace("m:", "models_of_plans:") if a.startswith("m:") else a for a in args]
    return CliRunner().invoke(app, ["plan", *args])


def test_it_prints_what_lg_training_plan_finds():
    given = ("m:problem", "--learning-rate", "1e-3", "--weight-decay", "0.1")
    result = run(*given)
    assert result.exit_code == 0, result.output
    import models_of_plans as models

    settings = {"optimizer": "adamw", "learning_rate": 1e-3, "weight_decay": 0.1}
    found = lg.training.plan(*models.problem(), **settings)
    assert result.output == found.to_text(80) + "\n"
    rows = json.loads(run(*given, "--json").output)
    assert [row["name"] for row in rows] == ["hidden", "out"]
    assert rows[1]["equilibrium_norm"] is None


def test_a_model_may_bring_its_optimizer():
    result = run("m:with_optimizer")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("adamw, learning rate 0.001, weight decay 0.1")


def test_apply_itself_takes_files(tmp_path):
    import models_of_plans as models

    _, params, X = models.problem()
    np.savez("params.npz", **{name: np.asarray(value) for name, value in params.items()})
    np.save("X.npy", X)
    result = run("m:apply", "--params", "params.npz", "--data", "X.npy", "--learning-rate", "1e-3")
    assert result.exit_code == 0, result.output
    assert "hidden" in result.output


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("m:problem",), "--learning-rate must say η"),
        (("m:X", "--learning-rate", "1"), "m:X must give (apply, params, X)"),
        (("m:none", "--learning-rate", "1"), "has no none"),
        (("m:problem", "--learning-rate", "1", "--optimizer", "adamv"), "did you mean 'adam'?"),
        (("m:strange", "--learning-rate", "1"), "unexpected keyword argument 'rate'"),
    ],
)
def test_what_does_not_fit_is_refused(given, said):
    result = run(*given)
    assert result.exit_code == 2
    assert said.replace("m:", "models_of_plans:") in " ".join(result.output.split())

"""The stored curves begin as they do when their seeds are trained again, and a change of one bit is seen."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from analysis.checks import reproduce
from analysis.experiments import draw
from analysis.store import curves_bytes, read_curves
from lngeom.claims.results import digest

pytestmark = pytest.mark.thorough
ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "figures"


def plain_environment():
    """That of a user: tests have flags of the compiler with which sums are rounded otherwise."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))} | {"PYTHONPATH": str(ROOT)}


def test_stored_curves_begin_as_their_seeds_do_and_one_bit_of_one_seed_is_seen(tmp_path):
    described = json.loads((FIGURES / "convnet" / "config.json").read_text(encoding="utf-8"))
    if described["versions"] != {"jax": jax.__version__, "numpy": np.__version__}:
        pytest.skip(f"the curves were computed with {described['versions']}")
    folder = tmp_path / "convnet"
    shutil.copytree(FIGURES / "convnet", folder)
    curves, _ = read_curves(folder / "curves.npz")
    changed = curves["none"].values["test NLL"]
    changed[3, 2] = np.nextafter(changed[3, 2], np.float32(9))
    content = curves_bytes(curves)
    (folder / "curves.npz").write_bytes(content)
    statements = json.loads((folder / "statements.json").read_text(encoding="utf-8"))
    statements["sha256"]["curves.npz"] = digest(content)
    (folder / "statements.json").write_text(json.dumps(statements), encoding="utf-8")
    command = [sys.executable, "-W", "ignore", "-m", "analysis", "reproduce", "convnet", "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=plain_environment(), check=False)
    rows = dict(line.rsplit(", 2 steps: ", 1) for line in done.stdout.splitlines() if line.startswith("convnet"))
    first = rows.pop("convnet: none")
    assert first.startswith("test NLL differs by")
    assert ";" not in first
    assert rows == {"convnet: layer norm": "equal", "convnet: batch norm": "equal"}, done.stderr
    assert done.returncode == 1


def test_curves_of_other_sizes_are_refused():
    other = dataclasses.replace(draw.EXPERIMENT, small=dataclasses.replace(draw.EXPERIMENT.small, hidden=3))
    with pytest.raises(ValueError, match=r"curves of draw in .* are of other sizes"):
        next(reproduce.experiment_curves(other, FIGURES))


def test_differences_are_of_what_both_have_and_say_what_one_has_alone():
    stored = {"a": np.array([[1.0, np.nan, 3.0, 4.0]]), "b": np.zeros((1, 4)), "c": np.float64(2)}
    assert reproduce.differences(stored, {"a": stored["a"][:, :3], "b": np.zeros((1, 2)), "c": np.float64(2)}) == {}
    found = reproduce.differences(stored, {"a": stored["a"] + 0.5, "c": np.float64(2), "d": np.zeros((1, 4))})
    assert found.pop("a") == 0.5
    assert set(found) == {"b", "d"}
    assert np.isnan(list(found.values())).all()


def test_the_command_ends_with_status_1_where_a_curve_differs(monkeypatch, capsys):
    rows = [reproduce.Checked("draw: LN", 48, {"loss": 0.25}), reproduce.Checked("draw: baseline", 48, {})]
    monkeypatch.setattr(sys, "argv", ["reproduce", "draw"])
    for kept, code in ((rows, 1), (rows[1:], 0)):
        monkeypatch.setattr(reproduce, "experiment_curves", lambda *_, kept=kept: iter(kept))
        with pytest.raises(SystemExit) as ended:
            reproduce.main()
        assert ended.value.code == code
    shown = capsys.readouterr().out
    assert "draw: LN, 48 steps: loss differs by 0.25" in shown
    assert "1 of 2 arms equal to the bit" in shown

"""The stored curves begin as they do when their seeds are trained again, and a change of one bit is seen."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from analysis.checks import reproduce
from analysis.experiments import convnet, draw
from analysis.store import curves_bytes, read_curves
from lngeom.claims.results import digest

pytestmark = pytest.mark.thorough
FIGURES = Path(__file__).parents[2] / "figures"
VERSIONS = json.loads((FIGURES / "convnet" / "config.json").read_text(encoding="utf-8"))["versions"]
here = {"jax": jax.__version__, "numpy": np.__version__}
same = pytest.mark.skipif(here != VERSIONS, reason=f"the curves were computed with {VERSIONS}")


def only(experiment, *arms):
    """The experiment with these arms alone."""
    return dataclasses.replace(
        experiment,
        arms={arm: experiment.arms[arm] for arm in arms},
        statements=tuple(s for s in experiment.statements if set(s.arms) <= set(arms)),
    )


@pytest.fixture
def copied(tmp_path):
    """A function that copies results of an experiment, with curves changed by a function."""

    def copy(experiment, arms, change=lambda curves: curves):
        folder = tmp_path / experiment.name
        shutil.copytree(FIGURES / experiment.name, folder)
        curves, _ = read_curves(folder / "curves.npz")
        content = curves_bytes({arm: change(curves[arm]) for arm in arms})
        (folder / "curves.npz").write_bytes(content)
        statements = json.loads((folder / "statements.json").read_text(encoding="utf-8"))
        statements["sha256"]["curves.npz"] = digest(content)
        (folder / "statements.json").write_text(json.dumps(statements), encoding="utf-8")
        return tmp_path

    return copy


@same
def test_stored_curves_begin_as_their_seeds_do(copied):
    arms = ("none", "layer norm")
    found = list(reproduce.experiment_curves(only(convnet.EXPERIMENT, *arms), copied(convnet.EXPERIMENT, arms)))
    assert [(c.name, c.differing) for c in found] == [(f"convnet: {arm}", {}) for arm in arms]


@same
def test_one_bit_of_one_seed_is_seen(copied):
    def change(curves):
        curves.values["test NLL"][3, 2] = np.nextafter(curves.values["test NLL"][3, 2], np.float32(9))
        return curves

    folder = copied(convnet.EXPERIMENT, ["none"], change)
    (found,) = reproduce.experiment_curves(only(convnet.EXPERIMENT, "none"), folder)
    assert list(found.differing) == ["test NLL"]
    assert 0 < found.differing["test NLL"] < 1e-6


def test_curves_of_other_sizes_are_refused(copied):
    other = dataclasses.replace(draw.EXPERIMENT, small=dataclasses.replace(draw.EXPERIMENT.small, hidden=3))
    with pytest.raises(ValueError, match="curves of draw in .* are of other sizes"):
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
    monkeypatch.setattr(reproduce, "experiment_curves", lambda *_: iter(rows))
    for kept, code in ((rows, 1), (rows[1:], 0)):
        monkeypatch.setattr(reproduce, "experiment_curves", lambda *_, kept=kept: iter(kept))
        monkeypatch.setattr(sys, "argv", ["reproduce", "draw"])
        with pytest.raises(SystemExit) as ended:
            reproduce.main()
        assert ended.value.code == code
    shown = capsys.readouterr().out
    assert "draw: LN, 48 steps: loss differs by 0.25" in shown
    assert "1 of 2 arms equal to the bit" in shown

"""Figures carry their data and leave nothing half-written."""

import json

import matplotlib
import numpy as np
import pytest
from lngeom import plots


def test_a_saved_figure_carries_its_data_and_leaves_global_settings_alone(tmp_path):
    before = dict(matplotlib.rcParams)
    with plots.figure(1, 2) as (fig, axes):
        axes[0, 0].plot([1, 2], [3, 4])
        paths = plots.save(fig, tmp_path / "new" / "f", {"a": np.array([1.0, np.nan])}, caption="A line.")
    assert dict(matplotlib.rcParams) == before
    assert (
        sorted(p.name for p in (tmp_path / "new").iterdir())
        == ["f.json", "f.png", "f.svg"]
        == sorted(p.name for p in paths)
    )
    document = json.loads((tmp_path / "new" / "f.json").read_text())
    assert document["data"] == {"a": [1.0, None]}
    assert document["caption"] == "A line."


def test_a_saved_figure_is_the_same_to_the_byte(tmp_path):
    for name in ("a", "b"):
        with plots.figure() as (fig, axes):
            axes[0, 0].plot([1, 2], [3, 4], label="x")
            axes[0, 0].legend()
            plots.save(fig, tmp_path / name / "f", {}, caption="A line.")
    for suffix in ("svg", "png", "json"):
        assert (tmp_path / "a" / f"f.{suffix}").read_bytes() == (tmp_path / "b" / f"f.{suffix}").read_bytes()


def test_a_failed_save_leaves_nothing_half_written(tmp_path):
    with plots.figure() as (fig, _), pytest.raises(TypeError):
        plots.save(fig, tmp_path / "f", {"a": object()}, caption="A line.")
    assert not list(tmp_path.iterdir())


def test_an_unknown_width_is_refused():
    with pytest.raises(ValueError, match="no width 'wide'"), plots.figure(width="wide"):
        pass

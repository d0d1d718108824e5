"""What programs leave on disk is whole, and of one form; a folder is for one run at a time."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from analysis.store import curves_bytes, json_bytes, only_run, read_curves, write_results
from lngeom.claims.results import Curves

HOLDER = """
import sys, time
from pathlib import Path
from analysis.store import only_run
with only_run(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_is_for_one_run_until_that_has_ended_however_it_ended(tmp_path):
    pytest.importorskip("fcntl")
    command = [sys.executable, "-W", "ignore", "-c", HOLDER, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": "."}) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ValueError, match=r"another run is writing to .*run: wait .* --out"):
            only_run(tmp_path / "run").__enter__()
        holder.kill()
    with only_run(tmp_path / "run"):
        pass
    assert not list((tmp_path / "run").iterdir())


def test_results_are_json_without_numbers_that_are_not_finite(tmp_path):
    write_results(tmp_path / "r.json", {"é": (1.5, float("nan")), "n": {"inf": float("inf"), "no": None}}, "# Page\n")
    assert json.loads((tmp_path / "r.json").read_text("utf-8")) == {"é": [1.5, None], "n": {"inf": None, "no": None}}
    assert (tmp_path / "r.md").read_text() == "# Page\n"
    with pytest.raises(TypeError):
        write_results(tmp_path / "r.json", {"of no form": object()})
    assert json_bytes(json.loads((tmp_path / "r.json").read_text("utf-8"))) == (tmp_path / "r.json").read_bytes()


def test_curves_are_read_as_they_were_written_and_damage_is_seen(tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "curves.npz"
    values = {"a/b": rng.normal(size=(2, 3)).astype(np.float32), "c": np.full((2, 3), np.nan, np.float32)}
    written = {"one, 4": Curves(np.arange(3), values), "choosing/two/0.1": Curves(np.arange(3) * 5, values)}
    path.write_bytes(curves_bytes(written, identity=np.array("x")))
    found, more = read_curves(path)
    assert list(found) == list(written)
    assert set(more) == {"identity"}
    for name, (steps, of_metric) in written.items():
        np.testing.assert_array_equal(found[name].steps, steps)
        assert list(found[name].values) == list(of_metric)
        for metric, curve in of_metric.items():
            np.testing.assert_array_equal(found[name].values[metric], curve)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"no archive"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"curves\.npz is damaged"):
            read_curves(path)

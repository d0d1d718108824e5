"""A folder is for one run at a time."""

import os
import subprocess
import sys

import pytest
from analysis.experiments.locking import only_run

HOLDER = """
import sys, time
from pathlib import Path
from analysis.experiments.locking import only_run
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

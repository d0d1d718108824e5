"""A command whose output nobody reads any longer, or cannot be written, ends with a status and no trace."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = (["version"], ["--help"], ["where", "fold"])


def run(command, **options):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "lngeom", *command],
        text=True,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        check=False,
        **options,
    )


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_closed_pipe_ends_a_command_with_status_141_and_no_word(command):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        found = run(command, stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    assert found.returncode == 141
    assert found.stderr == ""


def test_a_closed_pipe_of_both_streams_too():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        found = run(["where", "no-such-name"], stdout=writer, stderr=writer)
    finally:
        os.close(writer)
    assert found.returncode == 141


def test_a_reader_that_stays_gets_everything_and_the_command_s_own_status():
    found = run(["where", "no-such-name"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert found.returncode == 2
    assert found.stderr.startswith("error: ")
    assert run(["version"], stdout=subprocess.PIPE).stdout.count("\n") == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_output_that_cannot_be_written_is_one_line_and_status_2():
    with open("/dev/full", "w") as full:
        found = run(["version"], stdout=full, stderr=subprocess.PIPE)
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    assert "No space left on device" in found.stderr

"""Several devices or processes give the matrix of one device, and no process waits forever."""

import socket
import subprocess
import sys

import pytest

from tests.devices import environment_with

EXACT = 1e-12
LIMIT = 600
"""Seconds after which a process counts as hung; on a slow machine eight devices on two cores take half of it."""


def start(*arguments, devices=1):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.information.sharded", *map(str, arguments)],
        env=environment_with(devices),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(processes):
    try:
        return [(*p.communicate(timeout=LIMIT), p.returncode) for p in processes]
    finally:
        for p in processes:
            p.kill()
            p.communicate()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module", autouse=True)
def survivor_and_victim():
    """Two processes, one of which dies: the other waits for its heartbeat while the other tests run."""
    port = free_port()
    processes = [start("dies", port, index, devices=2) for index in range(2)]
    yield processes
    finish(processes)


def largest(output):
    return float(output.splitlines()[-1].removeprefix("largest "))


@pytest.mark.thorough
def test_eight_devices_give_the_result_of_one():
    ((output, errors, code),) = finish([start("devices", devices=8)])
    assert code == 0, errors
    assert largest(output) < EXACT, output


@pytest.mark.thorough
def test_two_processes_give_the_result_of_one():
    port = free_port()
    results = finish([start("process", port, index, devices=2) for index in range(2)])
    for output, errors, code in results:
        assert code == 0, errors
        assert largest(output) < EXACT


@pytest.mark.thorough
def test_when_a_process_dies_the_other_ends(survivor_and_victim):
    survivor, victim = finish(survivor_and_victim)
    assert victim[2] == 7
    assert survivor[2] not in {0, None}
    assert "one sum" in survivor[0]

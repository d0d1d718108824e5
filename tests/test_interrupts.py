"""Commands end soon after a signal, with one message, no process left and nothing half-written: real signals."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from lngeom.cli import commands as cli, programs, workers

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")

ROOT = Path(__file__).parent.parent
SOON = 5.0  # 2 s and the wait for a core that other tests use

STUCK = """
import hashlib
from pathlib import Path
from lngeom._core import files as _files
from lngeom.cli.interrupts import stoppable

def for_ever():  # one call, which neither returns to Python nor holds its lock
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)

with stoppable("the work"), _files.temporary_folder(Path()) as folder:
    (folder / "part").touch()
    with _files.replacing(Path("first")) as file:
        file.write(b"whole")
    with _files.replacing(Path("second")) as file:
        file.write(b"half")
        file.flush()
        print("ready", flush=True)
        for_ever()
"""

SWALLOWS = """
import time
from lngeom.cli.interrupts import on_stop, stoppable

with stoppable("the work"):
    on_stop(lambda: "All is kept.")
    print("ready", flush=True)
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
"""

WORKERS = """
import hashlib
from lngeom.cli.interrupts import stoppable
from lngeom.cli.workers import Workers

with stoppable("the work"), Workers(2) as pool:
    jobs = [pool.submit(hashlib.pbkdf2_hmac, "sha256", b"", b"", 2**31 - 1) for _ in range(2)]
    while not all(job.running() for job in jobs):
        pass
    print("ready", flush=True)
    jobs[0].result()
"""


AFRESH = """
import os, signal, sys
for name in ("SIGINT", "SIGTERM", "SIGHUP"):
    signal.signal(getattr(signal, name), signal.SIG_IGN if name == sys.argv[1] else signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def start(command, folder, ignored=""):
    """Starts a command to which every signal comes but the ignored one, whatever those who started the tests ignore."""
    cache = {"JAX_COMPILATION_CACHE_DIR": "", "XDG_CACHE_HOME": str(folder / "cache")}
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | cache
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    arguments = [sys.executable, "-c", AFRESH, ignored, *command]
    return subprocess.Popen(arguments, cwd=folder, env=environment, start_new_session=True, **pipes)


def end(process, signals, group=True, patience=10):
    """Sends signals; gives the time to the end, and what was printed once no process of the command is left."""
    began = time.monotonic()
    try:
        for number in signals:
            (os.killpg if group else os.kill)(process.pid, number)
            time.sleep(0.2)
        process.wait(60)
        took = time.monotonic() - began
        return took, *process.communicate(
            timeout=patience
        )  # every process that the command starts holds its output open
    finally:
        process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)  # which lets the tracker of semaphores do its work
        process.stdout.close()
        process.stderr.close()


CASES = {
    "interrupted": ([signal.SIGINT], 130),
    "interrupted twice": ([signal.SIGINT, signal.SIGINT], 130),
    "terminated": ([signal.SIGTERM], 143),
    "interrupted and terminated": ([signal.SIGINT, signal.SIGTERM, signal.SIGINT], 130),
    "hung up": ([signal.SIGHUP], 129),
}


@pytest.mark.parametrize(("signals", "code"), CASES.values(), ids=list(CASES))
def test_a_call_that_never_returns_is_ended_and_leaves_whole_files_alone(tmp_path, signals, code):
    (tmp_path / "second").write_text("old")
    process = start(["-c", STUCK], tmp_path)
    assert process.stdout.readline() == "ready\n"
    took, _, error = end(process, signals)
    assert took < SOON
    assert process.returncode == code
    verb = {130: "was interrupted", 143: "was terminated", 129: "ended with its terminal"}[code]
    assert error == f"the work {verb}. Written before that: first. Start it again for the rest.\n"
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"first": "whole", "second": "old"}


def test_code_that_swallows_the_interrupt_is_ended_too(tmp_path):
    process = start(["-c", SWALLOWS], tmp_path)
    process.stdout.readline()
    took, _, error = end(process, [signal.SIGINT])
    assert took < SOON
    assert (process.returncode, error) == (130, "the work was interrupted. All is kept.\n")


def test_a_signal_that_is_set_to_be_ignored_stays_ignored(tmp_path):
    process = start(["-c", SWALLOWS], tmp_path, ignored="SIGINT")
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(1.5)
    assert process.poll() is None
    assert end(process, [signal.SIGTERM])[2] == "the work was terminated. All is kept.\n"


@pytest.mark.parametrize(
    ("number", "group"),
    [(signal.SIGINT, True), (signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGKILL, False)],
)
def test_no_worker_outlives_the_command(tmp_path, number, group):
    process = start(["-c", WORKERS], tmp_path)
    process.stdout.readline()
    took, _, error = end(process, [number], group)
    assert took < SOON
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    assert len(error.splitlines()) == (0 if number == signal.SIGKILL else 1), error


def test_workers_that_do_not_follow_their_parent_are_seen_to_outlive_it(tmp_path):
    process = start(["-c", WORKERS.replace("as pool:", "as pool:\n    pool._initializer = None", 1)], tmp_path)
    process.stdout.readline()
    with pytest.raises(subprocess.TimeoutExpired):
        end(process, [signal.SIGKILL], group=False, patience=4)


def working(folder):
    """Whether the command has begun to compile, or to train."""
    return any((folder / "cache" / "lngeom" / "jax").glob("*")) or (folder / "out" / "mnist").exists()


def test_without_a_signal_the_handlers_are_as_before(monkeypatch, capfd):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setattr(sys, "argv", ["lngeom", "version"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_what_the_system_refuses_is_one_error(monkeypatch, capfd):
    def refused():
        raise OSError(28, "No space left", "out/a.svg")

    monkeypatch.setattr(cli, "app", refused)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capfd.readouterr().err == "error: [Errno 28] No space left: 'out/a.svg'\n"


class Dying(workers.Workers):
    """Workers that are killed at their first proof."""

    def submit(self, fn, /, *args, **kwargs):
        return super().submit(os._exit, 9)


def test_a_command_that_is_still_importing_ends_with_one_message(tmp_path):
    (tmp_path / "typer.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    process = subprocess.Popen(
        [sys.executable, "-m", "lngeom", "verify"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.startswith("lngeom verify was interrupted. ")
    assert "Traceback" not in error


@pytest.mark.thorough
def test_a_killed_worker_is_one_error_and_no_verdict(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    np.save("small.npy", np.random.default_rng(0).normal(size=(40, 4)))
    monkeypatch.setattr(programs, "compile_sparingly", lambda: None)
    monkeypatch.setattr(workers, "Workers", Dying)
    monkeypatch.setattr(sys, "argv", ["lngeom", "verify", "--claim", "equation.33", "--data", "small.npy"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capfd.readouterr().err.strip().startswith("error: a worker process was killed")
    assert not (tmp_path / "report").exists()


COMMANDS = {
    "lngeom verify": ["-m", "lngeom", "verify", "--out", "out"],
    "lngeom fisher": ["-m", "lngeom", "fisher", "--glm", "--outputs", "60", "--save", "out/matrix.npz"],
    "lngeom figures": ["-m", "lngeom", "figures", "--out", "out"],
    "python -m analysis mnist": ["-m", "analysis", "mnist", "--out", "out"],
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "verb", "number"),
    [*((name, "interrupted", signal.SIGINT) for name in COMMANDS), ("lngeom verify", "terminated", signal.SIGTERM)],
)
def test_a_command_ends_soon_with_one_message_and_leaves_no_rubbish(tmp_path, name, verb, number):
    process = start(COMMANDS[name], tmp_path)
    while not working(tmp_path):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)
    time.sleep(0.5)
    took, _, error = end(process, [number, number], group=number == signal.SIGINT)
    assert took < SOON
    assert process.returncode == 128 + number
    assert "Traceback" not in error
    last = error.strip().splitlines()[-1]
    assert last.startswith(f"{name} was {verb}. ")
    assert "again" in last
    assert not [p for p in tmp_path.rglob("*") if p.name.startswith(".") or p.suffix in {".npz", ".checkpoint"}]

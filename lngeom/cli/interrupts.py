"""Handling of Ctrl-C and of requests to terminate: a command ends soon, with one message and no leftover files.

Python runs the handler of a signal between two instructions of the main thread. A compiled program, or the compiler,
may not reach the next instruction for a minute. A second thread therefore also receives the signal
(`signal.set_wakeup_fd`). The main thread has `GRACE` seconds to leave its blocks as after any error. Then the second
thread ends the process.
"""

import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import active_children, get_context, parent_process
from typing import Any, NoReturn

from lngeom._core import files as _files

GRACE = 0.7
"""Seconds that the main thread has to leave its blocks."""

WORDS = {"SIGINT": "was interrupted", "SIGTERM": "was terminated", "SIGHUP": "ended with its terminal"}

_started: list[subprocess.Popen] = []
_ending = threading.Lock()


def _written() -> str:
    files = ", ".join(map(str, _files.written()))
    if files:
        return f"Written before that: {files}. Start it again for the rest."
    return "No file is left half-written. Start it again from the beginning."


_describe: Callable[[], str] = _written


def on_stop(describe: Callable[[], str]) -> None:
    """Sets the part of the message of `stoppable` that describes the results kept so far.

    Args:
        describe: returns a sentence or two on the results kept and how to continue; called once, in any thread.
    """
    global _describe
    _describe = describe


@contextmanager
def stoppable(command: str) -> Iterator[None]:
    """Ends the process within about a second of SIGINT, SIGTERM or SIGHUP, with exit code 128 + the signal's number.

    Child processes are killed, unfinished files of `_files.replacing` are removed, and one message is printed. Further
    signals have no effect. A signal that the parent process ignores stays ignored. Use it in the main thread, at the
    entry point of a command line.

    Args:
        command: name of the command, for the message.

    Yields:
        Nothing.
    """
    known = {int(getattr(signal, name)): words for name, words in WORDS.items() if hasattr(signal, name)}
    verbs = {number: words for number, words in known.items() if signal.getsignal(number) not in (signal.SIG_IGN, None)}
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    received: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        if not received:
            received.append(number)
            _silence()
            raise KeyboardInterrupt

    def watch() -> None:
        while byte := reader.recv(1):
            if byte[0] in verbs:
                _silence()
                _kill_children()
                time.sleep(GRACE)
                _end(f"{command} {verbs[byte[0]]}.", 128 + byte[0])

    before = {number: signal.signal(number, interrupt) for number in verbs}
    woken = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        if received:
            with suppress(Exception):
                sys.stdout.flush()
            _end(f"{command} {verbs[received[0]]}.", 128 + received[0])
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        writer.close()
        watcher.join()
        reader.close()


def _silence() -> None:
    """Drops tracebacks of interrupted destructors and callbacks, and of threads that waited for killed children."""
    sys.unraisablehook = threading.excepthook = lambda _: None


def _end(what: str, code: int) -> NoReturn:
    """Cleans up, tells and exits; the first of two threads does so."""
    if _ending.acquire(timeout=GRACE):
        _kill_children()
        _files.abandon()
        with suppress(Exception):
            _tell(f"{what} {_describe()}\n")
    os._exit(code)


def _tell(message: str) -> None:
    """Writes to standard error, unless that would block. On a terminal it shows the cursor again."""
    error = sys.__stderr__.fileno()  # pyright: ignore[reportOptionalMemberAccess]
    if os.name != "nt" and not select.select([], [error], [], GRACE)[1]:
        return
    os.write(error, (("\r\x1b[K\x1b[?25h" if os.isatty(error) else "") + message).encode())


def _kill_children() -> None:
    with suppress(Exception):
        for child in (*active_children(), *_started):
            child.kill()


@contextmanager
def _deaf() -> Iterator[None]:
    """Blocks Ctrl-C for children that are started here; their parent kills them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start(*args: Any, **options: Any) -> subprocess.Popen:
    """Starts a program that is killed when this process is stopped.

    Args:
        *args: arguments of `subprocess.Popen`.
        **options: options of `subprocess.Popen`.

    Returns:
        The process.
    """
    with _deaf():
        process = subprocess.Popen(*args, **options)
    _started.append(process)
    return process


def _follow_parent() -> None:
    """Ends this worker when its parent has ended, even if that was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _import(module: str) -> None:
    importlib.import_module(module)


class Workers(ProcessPoolExecutor):
    """A pool of new processes, which end with this process for any reason.

    Args:
        count: number of processes.
    """

    def __init__(self, count: int):
        self._count = count
        # The resource tracker removes semaphores of a killed process. Its warning does not help a user.
        filters = os.environ.get("PYTHONWARNINGS")
        quiet = "ignore::UserWarning:multiprocessing.resource_tracker"
        os.environ["PYTHONWARNINGS"] = quiet if filters is None else f"{filters},{quiet}"
        try:
            super().__init__(count, mp_context=get_context("spawn"), initializer=_follow_parent)
        finally:
            if filters is None:
                del os.environ["PYTHONWARNINGS"]
            else:
                os.environ["PYTHONWARNINGS"] = filters

    def prepare(self, module: str) -> None:
        """Starts all processes, which import a module while this process does other work.

        Args:
            module: its name.
        """
        for _ in range(self._count):
            self.submit(_import, module)

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        """As the base class; a process that it starts does not receive Ctrl-C."""
        with _deaf():
            return super().submit(fn, *args, **kwargs)

"""Ctrl-C and requests to terminate: a command ends at once, with one message and no leftover files.

Python runs the handler of a signal between two instructions of the main thread. A compiled program, or the compiler,
may not reach the next instruction for a minute. So a second thread waits for the signal (`signal.set_wakeup_fd`), and
ends the process. Blocks of the main thread are not left: what must not survive is a file of `lngeom._core.files`, a
process of `start`, or a worker of `lngeom.cli.workers`.
"""

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from lngeom._core import files as _files

WORDS = {"SIGINT": "was interrupted", "SIGTERM": "was terminated", "SIGHUP": "ended with its terminal"}

_started: list[subprocess.Popen] = []


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
    """Ends the process at SIGINT, SIGTERM or SIGHUP, with exit code 128 + the signal's number.

    Unfinished files of `lngeom._core.files` are removed, one message is printed, and child processes are killed. A
    signal that the parent process ignores stays ignored. Use it in the main thread, at the entry point of a command
    line.

    Args:
        command: name of the command, for the message.

    Yields:
        Nothing.
    """
    known = {int(getattr(signal, name)): words for name, words in WORDS.items() if hasattr(signal, name)}
    verbs = {number: words for number, words in known.items() if signal.getsignal(number) not in (signal.SIG_IGN, None)}
    reader, writer = socket.socketpair()
    writer.setblocking(False)

    def watch() -> None:
        while byte := reader.recv(1):
            if byte[0] in verbs:
                _end(f"{command} {verbs[byte[0]]}.", 128 + byte[0])

    before = {number: signal.signal(number, lambda *_: None) for number in verbs}
    woken = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        writer.close()
        watcher.join()
        reader.close()


def _end(what: str, code: int) -> NoReturn:
    """Removes unfinished files, writes the message, kills child processes and exits."""
    _files.abandon()
    with suppress(Exception):
        cursor = "\r\x1b[K\x1b[?25h" if os.isatty(2) else ""  # a progress bar hides it
        os.write(2, f"{cursor}{what} {_describe()}\n".encode())
    for process in _started:
        process.kill()
    os._exit(code)


def start(*args: Any, **options: Any) -> subprocess.Popen:
    """Starts a program that is killed when this process is stopped.

    Args:
        *args: arguments of `subprocess.Popen`.
        **options: options of `subprocess.Popen`.

    Returns:
        The process.
    """
    process = subprocess.Popen(*args, **options)
    _started.append(process)
    return process

"""Stages of a long computation on standard error, once it has taken two seconds."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

QUIET = 2.0
"""Seconds before anything is shown."""

EVERY = 0.5
"""Seconds between two lines on a terminal."""

_watching = threading.local()


@contextmanager
def shown_elsewhere() -> Iterator[None]:
    """In its block `watched` shows nothing: something else shows what is done."""
    before = getattr(_watching, "on", False)
    _watching.on = True
    try:
        yield
    finally:
        _watching.on = before


@contextmanager
def watched() -> Iterator[Callable[[str], None]]:
    """Yields a function that sets the stage; after `QUIET` seconds stages and the time are shown on a terminal.

    Where standard error is no terminal, or a block outside of this one shows stages, nothing is written.
    """
    if getattr(_watching, "on", False) or not sys.stderr.isatty():
        yield lambda stage: None
        return
    stages, start, ended = [""], time.monotonic(), threading.Event()

    def show() -> None:
        if ended.wait(QUIET):
            return
        while True:
            text = f"{time.monotonic() - start:4.0f} s  {stages[0]}"
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()
            if ended.wait(EVERY):
                break
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        with shown_elsewhere():
            yield lambda stage: stages.__setitem__(0, stage)
    finally:
        ended.set()
        thread.join()

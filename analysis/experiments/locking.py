"""Folders that one run at a time may use."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Keeps a folder for one run: the system lifts the lock when the process ends, however it ends.

    Args:
        folder: made where it does not exist.

    Yields:
        Nothing; on Windows nothing is locked.

    Raises:
        ValueError: if another run has the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another run is writing to {folder}: wait until it has ended, or give this one another --out"
            ) from None
        yield
    finally:
        os.close(handle)

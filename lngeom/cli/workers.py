"""Processes that work for a command, and end with it."""

import gc
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from typing import Any


def collect_seldom() -> None:
    """Collects garbage less often, and passes over what is imported. JAX makes many objects while it traces a function.

    By Python's own setting a sixth of that time goes into collection.
    """
    gc.freeze()
    gc.set_threshold(5000, 10, 10)


def _begin() -> None:
    collect_seldom()
    _follow_parent()


def _follow_parent() -> None:
    """Ends this worker when its parent has ended, even if that was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class Workers(ProcessPoolExecutor):
    """A pool of new processes, which end with this process for any reason.

    Args:
        count: number of processes.
    """

    def __init__(self, count: int):
        self._count = count
        # The resource tracker removes semaphores of a killed process. Its warning does not help a user.
        quiet = "ignore::UserWarning:multiprocessing.resource_tracker"
        os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (os.environ.get("PYTHONWARNINGS"), quiet)))
        super().__init__(count, mp_context=get_context("spawn"), initializer=_begin)

    def prepare(self, module: str) -> None:
        """Starts all processes, which import a module while this process does other work.

        Args:
            module: its name.
        """
        for _ in range(self._count):
            self.submit(exec, f"import {module}")

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        """As the base class. A process that it starts does not receive Ctrl-C, not even while it imports."""
        if not hasattr(signal, "pthread_sigmask"):
            return super().submit(fn, *args, **kwargs)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

"""Progress of long work: how much is done, and how long the rest will take."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def timed_columns() -> tuple[ProgressColumn, ...]:
    """Columns of a `rich.progress.Progress`: description, bar, count, time taken, time left."""
    return (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )


def duration(seconds: float) -> str:
    """Seconds in words.

    Args:
        seconds: how many.

    Returns:
        Text.

    Example:
        >>> duration(42), duration(600), duration(9000)
        ('42 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class Watch:
    """Rows of long work: bars on a terminal; in a log, one line on all unfinished rows every few seconds.

    The time left is that of all rows, at the pace since the start.

    Attributes:
        console: where to.
        every: seconds between two lines of a log.
    """

    def __init__(self, console: Console, every: float = 8.0):
        self.console = console
        self.every = every
        self._bars = Progress(*timed_columns(), console=console) if console.is_terminal else None
        self._rows: dict[str, tuple[float, float, float]] = {}  # done when first heard of, done, all
        self._tasks: dict[str, TaskID] = {}
        self._start = time.monotonic()
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        if self._bars:
            self._bars.start()
        else:
            threading.Thread(target=self._lines, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._ended.set()
        if self._bars:
            self._bars.stop()

    def add(self, name: str, total: float | None = None) -> Callable[[float, float], None]:
        """A row.

        Args:
            name: its name.
            total: units of work, where they are known already.

        Returns:
            What tells units done, and units in all.
        """
        if self._bars:
            self._tasks[name] = self._bars.add_task(name, total=total)
        self._rows[name] = (0.0, 0.0, total or 0.0)
        first = []

        def update(done: float, whole: float) -> None:
            if not first:
                first.append(done)
            self._rows[name] = (first[0], done, whole)
            if self._bars:
                self._bars.update(self._tasks[name], completed=done, total=whole)

        return update

    def line(self) -> str:
        """All unfinished rows in one line."""
        rows = dict(self._rows)
        at_work = [f"{name} {done:.0f} of {whole:.0f}" for name, (_, done, whole) in rows.items() if 0 < done < whole]
        waiting = sum(done == 0 for _, done, _ in rows.values())
        taken = time.monotonic() - self._start
        gained = sum(done - before for before, done, _ in rows.values())
        left = sum(whole - done for _, done, whole in rows.values())
        parts = [*at_work, f"{waiting} not begun" if waiting else "", f"{duration(taken)} taken"]
        if gained > 0 and not any(whole == 0 for _, _, whole in rows.values()):
            parts.append(f"about {duration(taken * left / gained)} left")
        return ", ".join(p for p in parts if p)

    def _lines(self) -> None:
        while not self._ended.wait(self.every):
            self.console.print(self.line(), highlight=False, markup=False, soft_wrap=True)

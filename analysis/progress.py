"""Progress of long work on a terminal: how much is done, and how long the rest will take."""

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
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

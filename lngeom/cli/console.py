"""What commands print beside their results: errors, where a file was written, the stage of a long computation."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console
from rich.text import Text

from lngeom._core import files as _files
from lngeom._core.progress import shown_elsewhere
from lngeom._core.text import terminal_width


def tell(message: str) -> None:
    """Prints an error on standard error."""
    Console(stderr=True).print(Text.assemble(("error: ", "red"), message), soft_wrap=True)


def fail(message: str) -> NoReturn:
    """Prints an error, and exits with 2.

    Raises:
        Exit: always.
    """
    tell(message)
    raise typer.Exit(2)


@contextmanager
def refusing(*kinds: type[Exception]) -> Iterator[None]:
    """Turns errors of these kinds in its block into the command's error."""
    try:
        yield
    except kinds as error:
        fail(str(error))


@contextmanager
def writing(path: Path, option: str = "--out") -> Iterator[None]:
    """Turns what the system refuses in its block into an error that names the option."""
    try:
        yield
    except OSError as error:
        fail(f"cannot write to {option} {path}: {error}")


def check_writable(folder: Path, option: str = "--out") -> None:
    """Exits before the computation if its results could not be written."""
    with writing(folder, option):
        _files.check_writable(folder)


def written(paths: Iterable[Path]) -> None:
    """Prints the paths that were written, on one line."""
    Console().print("Written: " + ", ".join(map(str, paths)), highlight=False, soft_wrap=True)


def width() -> int:
    """Columns of the terminal, 40 at least; 100 where there is none."""
    return terminal_width(100)


@contextmanager
def stages() -> Iterator[Callable[[str], None]]:
    """Shows the current stage of a long computation and its time; yields a function that sets the stage's name."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with shown_elsewhere(), shown as progress:
        task = progress.add_task("")
        yield lambda stage: progress.reset(task, description=stage)


def conclude(outcomes, dataset) -> None:
    """Prints problems on standard error, and exits with 1 if there are any.

    Raises:
        Exit: if there are problems.
    """
    from lngeom.report import terminal

    console = Console(stderr=True)
    for text in terminal.notices(outcomes, dataset):
        console.print(text, style="yellow", soft_wrap=True)
    if wrong := terminal.problems(outcomes, dataset):
        console.print("\n".join(wrong), style="red", soft_wrap=True)
        raise typer.Exit(1)

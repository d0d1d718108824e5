"""Files that are whole or not there."""

import os
import secrets
import shutil
import struct
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tokenize import TokenError
from typing import BinaryIO

CORRUPT = (ValueError, EOFError, LookupError, AttributeError, TypeError, SyntaxError, RuntimeError, MemoryError)
CORRUPT += (ArithmeticError, zipfile.BadZipFile, zlib.error, struct.error, TokenError)
"""Exceptions that NumPy's readers raise on files of another format."""

_lock = threading.Lock()
_unfinished: set[Path] = set()
_written: dict[Path, None] = {}


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Opens a temporary file in the folder of `path`, and renames it to `path` when the block ends without an error.

    A kill or an interrupt leaves the old file or the new one. An error, and an interrupt that `stoppable` handles,
    leave no temporary file behind.

    Args:
        path: the file to make or replace; its folder exists.

    Yields:
        The open temporary file.

    Raises:
        OSError: if the file cannot be written; nothing is then left behind.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with _lock:
        _unfinished.add(temporary)
        try:
            handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)
        except OSError:
            _unfinished.discard(temporary)
            raise
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with _lock:
            temporary.replace(path)
            _written[path] = None
    finally:
        with _lock:
            temporary.unlink(missing_ok=True)
            _unfinished.discard(temporary)


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Makes a temporary folder beside `folder`, and renames it to `folder` when the block ends without an error.

    A kill leaves no folder of that name. An error, and an interrupt that `stoppable` handles, leave nothing behind.

    Args:
        folder: the folder to make; it does not exist, or is empty.

    Yields:
        The temporary folder.

    Raises:
        OSError: if the folder exists with files in it, or cannot be made.
    """
    folder = behind_links(folder)
    check_new_folder(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    with _lock:
        _unfinished.add(temporary)
        temporary.mkdir()
    try:
        yield temporary
        with _lock:
            temporary.replace(folder)
            _written[folder] = None
    finally:
        with _lock:
            shutil.rmtree(temporary, ignore_errors=True)
            _unfinished.discard(temporary)


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """Makes a folder that is removed when the block ends, and when `stoppable` ends the process.

    Args:
        parent: where; the system's folder for temporary files by default.

    Yields:
        The folder.
    """
    with _lock:
        folder = Path(tempfile.mkdtemp(dir=parent))
        _unfinished.add(folder)
    try:
        yield folder
    finally:
        with _lock:
            shutil.rmtree(folder, ignore_errors=True)
            _unfinished.discard(folder)


def behind_links(folder: Path) -> Path:
    """The folder that a link, or a name such as `.`, leads to. A folder cannot be renamed to either.

    Raises:
        OSError: if links lead to each other.
    """
    if not folder.is_symlink() and folder.name not in {"", ".."}:
        return folder
    try:
        return folder.resolve()
    except RuntimeError as error:
        raise OSError(f"{folder} is a link that leads back to itself") from error


def check_new_folder(folder: Path) -> None:
    """Checks that a folder can be made without replacing anything.

    Raises:
        FileExistsError: if it exists and is not an empty folder.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists: name a folder that does not")


def written() -> tuple[Path, ...]:
    """The files and folders put in place in this process, each once, in order."""
    return tuple(_written)


def unfinished() -> frozenset[Path]:
    """Temporary files and folders that are being written."""
    return frozenset(_unfinished)


def abandon() -> None:
    """Removes the temporary files of every thread; `replacing` waits for ever afterwards. The process must then end."""
    _lock.acquire(timeout=0.5)  # held for a rename at most
    for path in tuple(_unfinished):
        with suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Checks before a long computation that its results can be written.

    Args:
        folder: where to; it need not exist.

    Raises:
        OSError: if the folder, or the first folder above it that exists, cannot be written to.
    """
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not existing.is_dir():
        raise NotADirectoryError(f"{existing} is not a folder")
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise type(error)(f"no file can be made in {existing}: {error.strerror}") from error

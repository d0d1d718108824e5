"""The one way into a data set's folder: nothing outside is read, nothing unpickled, nothing grows without bound."""

import gzip
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from lngeom.claims.data import CORRUPT, DataError

MAX_LINE = 1 << 20
"""Characters of one line of text; longer ones are refused."""


def find(folder: Path | str, *names: str, what: str) -> Path:
    """The first of several files that is there, inside the folder.

    Args:
        folder: of the data set.
        *names: paths inside it, by preference.
        what: what the file is, for the error.

    Returns:
        Its path.

    Raises:
        DataError: if there is no such folder or file, or the file is a link that leads out of the folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    path = next((folder / n for n in names if (folder / n).is_file()), None)
    if path is None:
        raise DataError(f"{folder}: expected {what}: {' or '.join(names)}; found none of these")
    return inside(folder, path)


def inside(folder: Path, path: Path) -> Path:
    """The path, if it stays inside the folder when links are followed.

    Args:
        folder: of the data set.
        path: of a file.

    Returns:
        The same path.

    Raises:
        DataError: if it leads out.
    """
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{path}: leads out of {folder}; copy the file into the folder")
    return path


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file's bytes, unpacked as they are read where its name ends in .gz.

    Args:
        path: of the file.

    Yields:
        A readable file.

    Raises:
        DataError: if it cannot be read, or is no gzip file although its name says so.
    """
    try:
        with path.open("rb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile(fileobj=raw) as unpacked:
                    yield unpacked  # type: ignore[misc]
            else:
                yield raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: truncated or not gzip ({error}); fetch it again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Lines of a text file, without their ends, read one by one.

    Args:
        path: of the file.
        encoding: of the text.

    Yields:
        Lines.

    Raises:
        DataError: if it is not text in this encoding, holds NUL, or has a line of more than a million bytes.
    """
    with opened(path) as file:
        number = 0
        while line := file.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE:
                raise DataError(f"{path}, line {number}: more than {MAX_LINE} bytes; not a text file of this format")
            try:
                text = line.decode(encoding)
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}, line {number}: not {encoding} text ({error.reason}, byte {error.start})"
                ) from error
            if "\0" in text:
                raise DataError(f"{path}, line {number}: holds a NUL byte; not a text file")
            yield text.rstrip("\r\n")


def arrays(path: Path, limit: int = 1 << 34) -> dict[str, np.ndarray]:
    """All arrays of a .npz, if they are numbers.

    Args:
        path: of the file.
        limit: bytes that its arrays may take when unpacked.

    Returns:
        Arrays by name.

    Raises:
        DataError: if it is no such archive, an array is pickled or a member's name is a path, or it is too large.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            bad = next((m.filename for m in members if "/" in m.filename or "\\" in m.filename), None)
            if bad is not None:
                raise DataError(f"{path}: the member {bad!r} is a path; expected plain names of arrays")
            if (size := sum(m.file_size for m in members)) > limit:
                raise DataError(
                    f"{path}: its arrays would take {size / 2**30:.1f} GiB; the limit is {limit / 2**30:.1f}"
                )
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except DataError:
        raise
    except (*CORRUPT, OSError) as error:
        raise DataError(
            f"{path}: not an archive of NumPy arrays ({error}); pickled objects are never loaded"
        ) from error


def array(path: Path) -> np.ndarray:
    """A .npy, mapped rather than read, so that it may be larger than memory.

    Args:
        path: of the file.

    Returns:
        A read-only array.

    Raises:
        DataError: if it is not a NumPy array of numbers, or shorter than its header says.
    """
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (*CORRUPT, OSError) as error:
        raise DataError(f"{path}: not a NumPy array of numbers ({error}); pickled objects are never loaded") from error

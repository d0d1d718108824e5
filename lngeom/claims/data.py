"""Data sets for an audit: scikit-learn's digits or a user's file, checked before the computation."""

import csv
import gzip
import hashlib
import importlib.util
import io
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from jaxtyping import Float

from lngeom._core.files import CORRUPT
from lngeom._core.memory import available_memory, format_bytes
from lngeom._core.named import near
from lngeom._core.text import counted

BUNDLED = "digits"
MAX_SAMPLES = 2048
MAX_FEATURES = 96
MIN_SAMPLES = 3
MIN_FEATURES = 2
MOST_FEATURES = 2**20
"""Columns above which data are refused: their rotation onto 96 would not fit in memory."""

WHOLE = 2**26
"""Numbers up to which a file is read whole. Of a larger one only the rows that are drawn are read."""

MOST_TEXT = 2**30
"""Bytes up to which a text file is read: its numbers take about twenty times as many."""

LARGE_OFFSET = 1e3
"""Ratio of a column's mean to its spread from which the notes warn of cancellation."""


class DataError(ValueError):
    """The data cannot be used. The message gives the expected and the actual form, and a remedy."""


@dataclass(frozen=True)
class Dataset:
    """Inputs of an audit.

    Attributes:
        name: "digits" or the file's name.
        inputs: X, scaled so that its entries have a mean square of one.
        shape: shape before anything was dropped.
        fingerprint: SHA-256 of the original numbers.
        rank: dimension of the span of the rows.
        notes: changes to the data, and their special properties.
    """

    name: str
    inputs: Float[np.ndarray, "N D"]
    shape: tuple[int, int]
    fingerprint: str
    rank: int
    notes: tuple[str, ...]

    @property
    def bundled(self) -> bool:
        """Whether the data set is the default one. A file has a suffix, and so another name."""
        return self.name == BUNDLED


def load(source: str = BUNDLED, seed: int = 0) -> Dataset:
    """Loads a data set and prepares it for an audit.

    Rows of zeros are dropped, since layer norm is undefined there. At most 2048 rows are drawn. More than 96 columns
    are rotated onto 96 random directions. The notes list these changes. A `.npy` file is mapped: of one with more than
    2²⁶ numbers the drawn rows alone are read, and the fingerprint is theirs.

    Args:
        source: "digits" for scikit-learn's digits (1797 images, 64 pixels), or the path of a file (see `read`).
        seed: seed of the drawn rows and directions.

    Returns:
        The data set.

    Raises:
        DataError: if the file cannot be read as a numeric matrix with at least 3 rows and 2 columns, all finite; or is
            too large and no `.npy`.
    """
    if source == BUNDLED:
        name, raw = BUNDLED, _digits()
    else:
        name, raw = Path(source).name, read(Path(source))
    rng = np.random.default_rng(seed)
    _check_shape(raw, name)
    shape, rows = raw.shape, None
    if raw.size > WHOLE:
        count = min(len(raw), MAX_SAMPLES, max(MIN_SAMPLES, WHOLE // raw.shape[1]))
        rows = np.sort(rng.choice(len(raw), count, replace=False))
        raw = raw[rows]
    return _prepared(name, _finite(raw, name, rows), (shape[0], shape[1]), rng)


def _digits() -> np.ndarray:
    """The images of scikit-learn's digits: from the file in its package, since importing it takes a second."""
    package = importlib.util.find_spec("sklearn")
    path = package and package.origin and Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if path and path.is_file():
        return np.loadtxt(path, delimiter=",")[:, :-1]
    from sklearn.datasets import load_digits

    return np.asarray(load_digits(return_X_y=True)[0])


def read(path: Path) -> np.ndarray:
    """The array in a file, unchanged; that of a large `.npy` is mapped, and read where it is used.

    Args:
        path: path of a .npy, of a .npz with one array or one named X, or of a .csv or .tsv, with commas, semicolons or
            tabs between the columns and maybe a header; each may be compressed (.csv.gz).

    Returns:
        The array.

    Raises:
        DataError: if the file is missing, has another format, or is too large to be read whole.
    """
    readers = {".npz": _read_npz, ".npy": _read_npy, ".csv": _read_text, ".tsv": _read_text}
    packed = path.suffix.lower() == ".gz"
    suffix = (path.with_suffix("") if packed else path).suffix.lower()
    if suffix not in readers:
        what = "".join(path.suffixes[-1 - packed :]) or "a file without a suffix"
        if not path.exists() and (close := near(path.name, _at_hand(path), 1, 0.6)):
            raise DataError(f"no data {str(path)!r}; did you mean {close[0]!r}?")
        raise DataError(f"{path}: cannot read {what}; expected .npz, .npy, .csv or .tsv, or one of these with .gz")
    if not path.is_file():
        close = near(path.name, _at_hand(path), 1, 0.6)
        raise DataError(f"{path}: no such file" + (f"; did you mean {close[0]!r}?" if close else ""))
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty")
    try:
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            return readers[suffix](path, cast(BinaryIO, file))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def _at_hand(path: Path) -> list[str]:
    """Names of data: the bundled set, and files beside a path."""
    files = path.parent.iterdir() if path.parent.is_dir() else ()
    return [BUNDLED, *(file.name for file in files if file.is_file())]


def _read_npy(path: Path, file: BinaryIO) -> np.ndarray:
    try:
        if isinstance(file, gzip.GzipFile):
            _check_size(path, file)
            return np.load(file, allow_pickle=False)
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        return mapped if mapped.size > WHOLE else np.array(mapped)
    except CORRUPT as error:
        raise DataError(f"{path}: not a NumPy array of numbers{reason(error)}") from error


def reason(error: BaseException) -> str:
    """NumPy's reason, unless it is about pickled objects, which NumPy advises to load."""
    words = str(error)
    if any(word in words for word in ("pickle", "Object arrays", "Python objects")):
        return ": it is damaged, or holds pickled objects, which are never loaded"
    return f": it is damaged ({words})" if words else ": it is damaged"


def _check_size(path: Path, file: BinaryIO) -> None:
    """Refuses an array that does not fit in memory, by its header.

    Raises:
        DataError: if it takes more than half of what is free.
    """
    version = np.lib.format.read_magic(file)
    read_header = {1: np.lib.format.read_array_header_1_0}.get(version[0], np.lib.format.read_array_header_2_0)
    shape, _, dtype = read_header(file)
    needed, free = math.prod(shape) * dtype.itemsize, available_memory()
    file.seek(0)
    if needed > free // 2:
        raise DataError(
            f"{path}: its array takes {format_bytes(needed)}, more than half of the free {format_bytes(free)}: save it "
            "as .npy, of which only the rows that are used are read"
        )


def _read_npz(path: Path, file: BinaryIO) -> np.ndarray:
    try:
        with np.load(file, allow_pickle=False) as archive:
            names = list(archive.files)
            chosen = next((k for k in ("X", "x", "inputs", "data", "x_train") if k in names), None)
            if chosen is None and len(names) == 1:
                chosen = names[0]
            if chosen is None:
                raise DataError(f"{path}: holds the arrays {names}; name the one to use X (or leave only one)")
            with archive.zip.open(chosen if chosen in archive.zip.namelist() else f"{chosen}.npy") as member:
                _check_size(path, cast(BinaryIO, member))
            return archive[chosen]
    except CORRUPT as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: not an archive of NumPy arrays{reason(error)}") from error


def _read_text(path: Path, file: BinaryIO) -> np.ndarray:
    """Numbers in columns; a first row of names is left out."""
    try:
        found = file.read(MOST_TEXT + 1)
        if len(found) > MOST_TEXT:
            raise DataError(f"{path}: more than {format_bytes(MOST_TEXT)} of text: save it as .npy, which is mapped")
        text = found.decode("utf-8-sig")
        first = next((line for line in text.splitlines() if line.strip()), "")
        delimiter = next((mark for mark in (";", "\t") if mark in first), ",")
        found = list(enumerate(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), 1))
    except (UnicodeDecodeError, csv.Error, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not a text file of numbers in columns ({error})") from error
    rows = [(line, [field.strip() for field in fields]) for line, fields in found if any(map(str.strip, fields))]
    text_columns = _text_columns([fields for _, fields in rows[1:]])
    names = rows[0][1] if rows and _are_names(rows[0][1], text_columns) else None
    rows = rows if names is None else rows[1:]
    if not rows:
        raise DataError(f"{path}: no rows of numbers")
    width = len(rows[0][1])
    for line, fields in rows:
        if len(fields) != width:
            raise DataError(f"{path}, line {line}: {len(fields)} columns, where the first row has {width}")
    if text_columns and len(text_columns) < width:
        column = min(text_columns)
        called = f"column {column + 1}" + (f" ({names[column]!r})" if names and column < len(names) else "")
        raise DataError(
            f"{path}: {called} holds text in every row, such as {rows[0][1][column]!r}: a label is no input; leave the "
            "column out"
        )
    for line, fields in rows:
        for column, value in enumerate(fields, 1):
            if not _is_number(value):
                what = f"{value!r} is not a number" if value else "the cell is empty"
                decimal = ": write decimals with a point" if _is_number(value.replace(",", ".", 1)) else ""
                raise DataError(f"{path}, line {line}, column {column}: {what}{decimal}")
    return np.array([[float(value) for value in fields] for _, fields in rows])


def _text_columns(rows: list[list[str]]) -> set[int]:
    """Columns in which no row has a number."""
    width = min(map(len, rows), default=0)
    return {k for k in range(width) if not any(_is_number(fields[k]) for fields in rows) and any(f[k] for f in rows)}


def _are_names(fields: list[str], text_columns: set[int]) -> bool:
    """Whether the first row holds the names of the columns, not numbers beside the text of labels."""
    texts = [k for k, value in enumerate(fields) if not _is_number(value.replace(",", ".", 1))]
    return len(texts) == len(fields) or any(k not in text_columns for k in texts)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_shape(raw: np.ndarray, name: str) -> None:
    """Checks dtype and shape.

    Raises:
        DataError: if it is no matrix of numbers of a size that an audit takes.
    """
    if raw.dtype.kind not in "fiub":
        raise DataError(f"{name}: expected real numbers; got dtype {raw.dtype}")
    if raw.ndim != 2:
        raise DataError(
            f"{name}: expected a matrix, one sample a row; got {counted(raw.ndim, 'axis', 'axes')}, shape "
            f"{raw.shape}: reshape it"
        )
    if raw.shape[0] < MIN_SAMPLES or raw.shape[1] < MIN_FEATURES:
        raise DataError(
            f"{name}: expected at least {MIN_SAMPLES} rows and {MIN_FEATURES} columns; got {raw.shape[0]} and "
            f"{raw.shape[1]}"
        )
    if raw.shape[1] > MOST_FEATURES:
        raise DataError(f"{name}: expected at most {MOST_FEATURES:,} columns; got {raw.shape[1]:,}: choose some")


def _finite(raw: np.ndarray, name: str, rows: np.ndarray | None) -> Float[np.ndarray, "N D"]:
    """The numbers in float64; `rows` are their places in the file, where some were drawn.

    Raises:
        DataError: if one is not finite.
    """
    matrix = raw.astype(np.float64)
    bad = int(np.sum(~np.isfinite(matrix)))
    if bad:
        row, column = np.argwhere(~np.isfinite(matrix))[0]
        row = row if rows is None else rows[row]
        are = "entry is" if bad == 1 else "entries are"
        raise DataError(
            f"{name}: {bad} {are} NaN or infinite, the first in row {row + 1}, column {column + 1}; drop or fill them"
        )
    return matrix


def _prepared(name: str, matrix: np.ndarray, shape: tuple[int, int], rng: np.random.Generator) -> Dataset:
    """The data set of a file of some shape, from its numbers or those of the rows that were drawn."""
    fingerprint = hashlib.sha256(np.ascontiguousarray(matrix).tobytes() + repr(shape).encode()).hexdigest()
    notes = []
    if len(matrix) < shape[0]:
        notes.append(f"{len(matrix)} of {shape[0]:,} rows drawn at random; the others were not read")
    constant = int(np.sum(np.ptp(matrix, axis=0) == 0))
    zero = int(np.sum(np.all(matrix == 0, axis=0)))
    if constant:
        notes.append(
            f"{constant} of {shape[1]} columns {'is' if constant == 1 else 'are'} constant ({zero} of them zero)"
        )
    largest = np.abs(matrix).max()
    matrix = matrix / largest if largest > 0 else matrix
    spread = matrix.std(0)
    offset = float(np.max(np.abs(matrix.mean(0)[spread > 0]) / spread[spread > 0], initial=0.0))
    if offset > LARGE_OFFSET:
        notes.append(
            f"a column's mean is {offset:.0e} times its spread: subtracting it loses as many digits; "
            "standardize the columns for stronger evidence"
        )
    empty = ~np.any(matrix, axis=1)
    if empty.any():
        are = "row of zeros is" if empty.sum() == 1 else "rows of zeros are"
        notes.append(f"{int(empty.sum())} {are} left out: layer norm is undefined there")
        matrix = matrix[~empty]
    if len(matrix) > MAX_SAMPLES:
        matrix = matrix[np.sort(rng.choice(len(matrix), MAX_SAMPLES, replace=False))]
        notes.append(f"{MAX_SAMPLES} of {shape[0]} rows drawn at random")
    if shape[1] > MAX_FEATURES:
        rotation, _ = np.linalg.qr(rng.normal(size=(shape[1], MAX_FEATURES)))
        matrix = matrix @ rotation
        notes.append(f"{shape[1]} columns rotated onto {MAX_FEATURES} random directions")
    if len(matrix) < MIN_SAMPLES or np.all(np.ptp(matrix, axis=0) <= 1e-12 * np.abs(matrix).max(initial=0.0)):
        raise DataError(f"{name}: all rows are alike or zero; batch norm is undefined on such data")
    matrix = matrix / np.sqrt(np.mean(matrix**2))
    rank = int(np.linalg.matrix_rank(matrix))
    if rank < matrix.shape[1]:
        notes.append(f"the rows span {rank} of {matrix.shape[1]} dimensions: weights in the rest are null directions")
    return Dataset(name, matrix, shape, fingerprint, rank, tuple(notes))

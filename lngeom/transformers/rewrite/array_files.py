"""Files of arrays: the format .safetensors, and JSON beside it.

A .safetensors file is the length of a header (8 bytes, little endian), the header as JSON (names, dtypes, shapes and
byte ranges), and the raw arrays. The library `safetensors` holds all arrays of a file in memory when it writes one, and
its NumPy interface knows no bfloat16; therefore both are read and written here. What the library refuses is refused:
arrays that overlap, bytes that belong to no array, metadata that are no texts.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
"""Dtypes by their names in headers."""

FLOATS = {dtype.name: dtype for dtype in DTYPES.values() if dtype.name in {"float64", "float32", "float16", "bfloat16"}}
"""Dtypes that weights may have, by name."""

PIECE = 1 << 24
"""Entries that are compared at a time."""


def check_floats(names: Iterable[str], weights: Mapping[str, Any]) -> None:
    """Refuses arrays of other dtypes than those of weights.

    Raises:
        ValueError: naming the first.
    """
    for name in names:
        if not weights[name].dtype.isnative:
            raise ValueError(f"{name!r} has bytes in another order than this machine: convert it with astype")
        if weights[name].dtype.name not in FLOATS:
            raise ValueError(
                f"{name!r} holds {weights[name].dtype.name}, and weights are {', '.join(FLOATS)}: a quantized model "
                "cannot be rewritten; rewrite first, quantize afterwards"
            )


class FileArray:
    """An array in a file, read when it is indexed or converted.

    Attributes:
        shape: its shape.
        dtype: its dtype.
    """

    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...], offset: int) -> None:
        self.shape, self.dtype = shape, dtype
        self._path, self._offset = path, offset

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        found = self._read(0, math.prod(self.shape)).reshape(self.shape)
        return found if dtype is None else found.astype(dtype, copy=False)

    def __getitem__(self, index: Any) -> np.ndarray:
        """Rows along the first axis: a slice of consecutive ones, or an array of positions; else of the whole array."""
        row = math.prod(self.shape[1:])
        if isinstance(index, slice) and index.step in (None, 1) and self.shape:
            start, stop, _ = index.indices(self.shape[0])
            count = max(0, stop - start)
            return self._read(start * row, count * row).reshape(count, *self.shape[1:])
        if isinstance(index, np.ndarray) and index.ndim == 1 and index.dtype.kind in "iu" and self.shape:
            found = np.empty((len(index), *self.shape[1:]), self.dtype)
            for place, position in enumerate(index):
                found[place] = self._read(int(position) * row, row).reshape(self.shape[1:])
            return found
        return np.asarray(self)[index]

    def raw(self) -> Iterator[bytes]:
        """The stored bytes, some at a time."""
        size = math.prod(self.shape)
        for start in range(0, size, PIECE):
            yield self._read(start, min(PIECE, size - start)).tobytes()

    def _read(self, start: int, count: int) -> np.ndarray:
        with self._path.open("rb") as file:
            found = np.fromfile(file, self.dtype, count, offset=self._offset + start * self.dtype.itemsize)
        if found.size != count:
            raise ValueError(f"{self._path} ends before its arrays do: copy or download it again")
        return found


def read_json(path: Path) -> dict[str, Any]:
    """An object in a JSON file.

    Raises:
        ValueError: if there is no such file, or no object in it.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): give the folder of a checkpoint") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a JSON object; it holds {type(found).__name__}")
    return found


LONGEST = 100_000_000
"""Bytes of a header, at most."""


def read_header(path: Path) -> tuple[dict[str, FileArray], dict[str, str]]:
    """The arrays of a .safetensors file, unread, and its metadata.

    Raises:
        ValueError: if the file is not of this format, or its arrays do not fill it one after the other.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(size - 8, LONGEST):
                raise ValueError(f"{path} is no .safetensors file: its header would have {length} bytes")
            text = file.read(length)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_number)
    except _HeaderError as error:
        raise ValueError(f"{path} is no .safetensors file: its header has {error}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no .safetensors file: its header is not JSON") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path} is no .safetensors file: its header is no object")
    metadata = header.pop("__metadata__", None)
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError(f"{path} is no .safetensors file: its metadata is no object of texts")
    arrays, ranges = {}, []
    for name, entry in header.items():
        word, shape, (start, stop) = _entry(path, name, entry)
        if word not in DTYPES:
            raise ValueError(f"{name!r} of {path} has dtype {word}, which is not covered")
        dtype = DTYPES[word]
        if 8 + length + stop > size:
            raise ValueError(
                f"{path} is cut off: {name!r} ends at byte {8 + length + stop}, and the file has {size} bytes; copy it "
                "again"
            )
        needed = dtype.itemsize * math.prod(shape)
        if stop - start != needed:
            raise ValueError(
                f"{path} contradicts itself: {name!r} has {stop - start} bytes, and {shape} of {dtype} needs {needed}"
            )
        arrays[name] = FileArray(path, dtype, shape, 8 + length + start)
        ranges.append((start, stop, name))
    position = 0
    for start, stop, name in sorted(ranges):
        if start != position:
            raise ValueError(
                f"{path} is no .safetensors file: {name!r} begins at byte {start} of the data, and what stands before "
                f"it ends at {position}"
            )
        position = stop
    if position != size - 8 - length:
        raise ValueError(
            f"{path} is no .safetensors file: it has {size - 8 - length - position} bytes after its last array"
        )
    return arrays, metadata


class _HeaderError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _HeaderError(f"{name!r} twice")
        found[name] = value
    return found


def _no_number(word: str) -> NoReturn:
    raise _HeaderError(f"{word}, which is no number of JSON")


def _entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    """Dtype, shape and byte range of an array.

    Raises:
        ValueError: if the entry does not have them.
    """
    found = entry if isinstance(entry, dict) else {}
    word, shape, where = found.get("dtype"), found.get("shape"), found.get("data_offsets")

    def sizes(value: Any) -> bool:
        whole = isinstance(value, list) and all(isinstance(v, int) and not isinstance(v, bool) for v in value)
        return whole and all(v >= 0 for v in value) and math.prod(max(1, v) for v in value) < 1 << 63

    if not isinstance(word, str) or not sizes(shape) or not sizes(where) or len(where or ()) != 2:
        raise ValueError(f"{path} is no .safetensors file: the entry of {name!r} lacks dtype, shape or data_offsets")
    assert isinstance(shape, list)
    assert isinstance(where, list)
    return word, tuple(shape), (where[0], where[1])

"""Checkpoint folders: config.json and .safetensors files, read and written array by array.

A .safetensors file is the length of a header (8 bytes, little endian), the header as JSON (names, dtypes, shapes and
byte ranges), and the raw arrays. The library `safetensors` holds all arrays of a file in memory when it writes one, and
its NumPy interface knows no bfloat16; therefore both are read and written here.
"""

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from lngeom import _files
from lngeom.rewrite.draft import Draft
from lngeom.rewrite.layouts import IRRELEVANT, RMS_MARK, copies, describe, matches
from lngeom.rewrite.rewriting import Rewritten
from lngeom.stacks.description import Stack

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

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

OTHER_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.gguf", "*.onnx", "*.index.json")
"""Files that hold the old arrays, and are not copied."""


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

    def _read(self, start: int, count: int) -> np.ndarray:
        with self._path.open("rb") as file:
            found = np.fromfile(file, self.dtype, count, offset=self._offset + start * self.dtype.itemsize)
        if found.size != count:
            raise ValueError(f"{self._path} ends before its arrays do: copy or download it again")
        return found


class Checkpoint(Mapping[str, FileArray]):
    """The arrays of a checkpoint folder by name, read when they are used.

    Attributes:
        folder: the folder.
        config: its config.json.
        files: name of the file that holds each array.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: dict[str, Any] = read_json(folder / "config.json")
        self.files: dict[str, str] = {}
        self.metadata: dict[str, dict[str, str]] = {}
        self._arrays: dict[str, FileArray] = {}
        if (folder / INDEX).is_file():
            names = sorted(set(read_json(folder / INDEX)["weight_map"].values()))
        elif (folder / SINGLE).is_file():
            names = [SINGLE]
        else:
            raise ValueError(f"{folder} must hold {SINGLE} or {INDEX}; other formats must be converted first")
        for name in names:
            arrays, self.metadata[name] = read_header(folder / name)
            for array in arrays:
                if array in self.files:
                    raise ValueError(f"array {array!r} is in {self.files[array]} and in {name} of {folder}")
                self.files[array] = name
            self._arrays |= arrays

    def __getitem__(self, name: str) -> FileArray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def read_json(path: Path) -> dict[str, Any]:
    """An object in a JSON file.

    Raises:
        ValueError: if there is no such file, or no object in it.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): give the folder of a checkpoint") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a JSON object; it holds {type(found).__name__}")
    return found


def read_header(path: Path) -> tuple[dict[str, FileArray], dict[str, str]]:
    """The arrays of a .safetensors file, unread, and its metadata.

    Raises:
        ValueError: if the file is not of this format, or shorter than its header says.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(size - 8, 100 << 20):
                raise ValueError(f"{path} is no .safetensors file: its header would have {length} bytes")
            header = json.loads(file.read(length))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no .safetensors file: its header is not JSON") from error
    arrays = {}
    metadata = header.pop("__metadata__", {})
    for name, entry in header.items():
        if entry["dtype"] not in DTYPES:
            raise ValueError(f"{name!r} of {path} has dtype {entry['dtype']}, which is not covered")
        dtype, shape, (start, stop) = DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
        if stop - start != dtype.itemsize * math.prod(shape) or 8 + length + stop > size:
            raise ValueError(
                f"{name!r} of {path} has {stop - start} bytes where {shape} of {dtype} and the file differ"
            )
        arrays[name] = FileArray(path, dtype, shape, 8 + length + start)
    return arrays, metadata


def load(folder: str | Path) -> tuple[Stack, Checkpoint]:
    """The description of a checkpoint folder, and its arrays.

    Args:
        folder: holds config.json and model.safetensors, or several files with their index.

    Returns:
        The stack, and the arrays by their names on disk. They are read when they are used: `np.asarray` of one reads it
        whole, and an index reads rows.

    Raises:
        ValueError: naming an architecture, an option or an array that is not covered, or what is wrong with a file.
    """
    weights = Checkpoint(Path(folder))
    stack = describe(weights.config, weights)
    stack.check(weights)
    known = {*stack.arrays, *copies(stack)}
    extra = [name for name in weights if name not in known and not matches(name, IRRELEVANT)]
    if extra:
        raise ValueError(
            f"{folder} holds {extra[0]!r} ({len(extra)} in all), which the layout of "
            f"{weights.config['model_type']!r} does not know: it may read or write the stream. "
            "Describe it by hand (lg.Stack)"
        )
    return stack, weights


def save(rewritten: Rewritten, folder: str | Path) -> None:
    """Writes a rewritten checkpoint to a new folder, array by array.

    The folder gets the arrays in as many files as before, a config that fits, and copies of the other files (tokenizer
    and so on). It is written under a temporary name and renamed at the end: if writing stops, there is no folder.

    Args:
        rewritten: what `apply` made of a loaded checkpoint.
        folder: a folder that does not exist, or is empty.

    Raises:
        ValueError: if the certificate failed, the model was not loaded from a folder, or no config of its family
            describes it.
        OSError: if the folder exists with files in it, or cannot be written.
    """
    if not rewritten.certificate.passed:
        raise ValueError(f"nothing was written: the certificate failed\n{rewritten.certificate}")
    write(rewritten.stack, rewritten.draft, Path(folder))


def write(stack: Stack, draft: Draft, folder: Path) -> None:
    """As `save`, without a certificate.

    Args:
        stack: description of the rewritten model.
        draft: its arrays.
        folder: where to.

    Raises:
        ValueError: if the arrays are not those of a checkpoint, or no config describes the model.
    """
    source, config = check_saved(stack, draft)
    dropped = set(copies(describe(source.config, source))) - set(stack.arrays)
    files = {name: file for name, file in source.files.items() if name not in dropped}
    last = source.files[draft_home(stack, source)]
    files |= {name: last for name in draft if name not in source and name in stack.arrays}
    with _files.replacing_folder(folder) as target:
        for file in dict.fromkeys(files.values()):
            names = [name for name, home in files.items() if home == file]
            write_arrays(target / file, draft, names, source.metadata[file])
        if (source.folder / INDEX).is_file():
            total = sum(math.prod(draft.shape(n)) * draft.dtype(n).itemsize for n in files)
            index = read_json(source.folder / INDEX)
            index |= {
                "metadata": index.get("metadata", {}) | {"total_size": total},
                "weight_map": dict(sorted(files.items())),
            }
            write_json(target / INDEX, index)
        write_json(target / "config.json", config)
        for path in sorted(source.folder.iterdir()):
            if path.is_file() and path.name != "config.json" and not matches(path.name, OTHER_WEIGHTS):
                shutil.copyfile(path, target / path.name)


def check_target(folder: Path) -> None:
    """Checks before a long computation that a folder can be made.

    Raises:
        OSError: if it exists with files in it, or cannot be written.
    """
    _files.check_new_folder(folder)
    _files.check_writable(folder.absolute().parent)


def check_saved(stack: Stack, draft: Draft) -> tuple[Checkpoint, dict[str, Any]]:
    """The checkpoint that a model came from, and the config that describes it now.

    Raises:
        ValueError: if the arrays are not those of a checkpoint, or no config describes the model.
    """
    if not isinstance(draft.source, Checkpoint):
        raise ValueError("only a model that came from lg.rewrite.load can be saved: its config says how")
    return draft.source, new_config(stack, draft.source.config, draft)


def draft_home(stack: Stack, source: Checkpoint) -> str:
    """An array beside which a new head is written."""
    final = None if stack.final is None else stack.final.gain
    return final if final is not None and final in source else stack.tables[0].weight


def new_config(stack: Stack, old: Mapping[str, Any], draft: Draft) -> dict[str, Any]:
    """The config that describes a rewritten model.

    Args:
        stack: the description.
        old: config of the original.
        draft: arrays of the rewritten model.

    Returns:
        The config: tying, ε, and the family's mark where RMSNorms stand for LayerNorms.

    Raises:
        ValueError: if no config of the family has this description.
    """
    names = {*draft.source, *draft}
    config = dict(old) | {"tie_word_embeddings": stack.tied}
    candidates = [config]
    if len(epsilons := {site.part.eps for site in stack.norms}) == 1:
        eps = epsilons.pop()
        candidates += [config | {option: eps} for option in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")]
    marked = {"model_type": f"{RMS_MARK}{str(old['model_type']).removeprefix(RMS_MARK)}", "architectures": []}
    for candidate in [*candidates, *(candidate | marked for candidate in candidates)]:
        try:
            if describe(candidate, names) == stack:
                return candidate
        except ValueError:
            continue
    raise ValueError(
        f"no config of model_type {old['model_type']!r} describes the rewritten model: leave out the steps that change "
        "norms or ε of single layers"
    )


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes an object as JSON."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_arrays(path: Path, draft: Draft, names: list[str], metadata: Mapping[str, str]) -> None:
    """Writes arrays to a .safetensors file, one after the other."""
    words = {dtype: word for word, dtype in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name in names:
        size = draft.dtype(name).itemsize * math.prod(draft.shape(name))
        entry = {"dtype": words[draft.dtype(name)], "shape": list(draft.shape(name))}
        header[name] = {**entry, "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            for piece in draft.rounded(name):
                np.ascontiguousarray(piece).tofile(file)
        file.flush()

"""What the `transformers` package loads from a checkpoint folder: which files, which arrays, which of them are one.

The rules are those of its `from_pretrained` (version 5.23, `modeling_utils.py`):

- `model.safetensors` comes before shards with an index. Of an index all arrays of all its files are read.
- A config that ties the head means one matrix if one is stored or both are equal. Two different ones stay two.
- Arrays that are not stored are drawn at random. Here they are refused.
- An adapter in the folder is applied. Here it is refused.

A .safetensors file is the length of a header (8 bytes, little endian), the header as JSON (names, dtypes, shapes and
byte ranges), and the raw arrays. The library `safetensors` holds all arrays of a file in memory when it writes one, and
its NumPy interface knows no bfloat16; therefore both are read and written here.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from lngeom.transformers.description import Linear, Stack, walk
from lngeom.transformers.forward import head, hidden, side
from lngeom.transformers.rewrite.configs import matches
from lngeom.transformers.rewrite.layouts import RMS_MARK, behind, check_sizes, options_and_stack, second_names, sides

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

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

PIECE = 1 << 24
"""Entries that are compared at a time."""


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


class Checkpoint(Mapping[str, FileArray]):
    """The arrays of a checkpoint folder by name, read when they are used.

    Attributes:
        folder: the folder.
        config: its config.json.
        files: name of the file that holds each array, by the names in files.
        metadata: metadata of each file.
        ignore: options of the config that the user says have no effect.
        second: names in files of arrays that have another name here.
        index_dtype: the dtype that the index of several files names, or None.

    Raises:
        ValueError: naming what is wrong with the folder or a file, or an adapter.
    """

    def __init__(self, folder: Path, ignore: Iterable[str] = ()) -> None:
        check_folder(folder)
        self.folder, self.ignore = folder, tuple(ignore)
        self.config: dict[str, Any] = read_json(folder / "config.json")
        self.files: dict[str, str] = {}
        self.metadata: dict[str, dict[str, str]] = {}
        self.second: dict[str, str] = {}
        self.stored: dict[str, FileArray] = {}
        self.index_dtype = _index_dtype(folder)
        for name in _weight_files(folder):
            arrays, self.metadata[name] = read_header(folder / name)
            for array in arrays:
                if array in self.files:
                    raise ValueError(f"array {array!r} is in {self.files[array]} and in {name} of {folder}")
                self.files[array] = name
            self.stored |= arrays

    def __getitem__(self, name: str) -> FileArray:
        if name not in self.stored and name in self.second.values():
            return self.stored[next(stored for stored, first in self.second.items() if first == name)]
        return self.stored[name]

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self.stored if name not in self.second)
        yield from (first for first in self.second.values() if first not in self.stored)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return (name in self.stored and name not in self.second) or name in self.second.values()

    @property
    def dtype(self) -> np.dtype | None:
        """The dtype that the package gives to all arrays: of the config, of the index, or of the first array."""
        named = self.config.get("dtype") or self.config.get("torch_dtype") or self.index_dtype
        if isinstance(named, str) and named.removeprefix("torch.") in FLOATS:
            return FLOATS[named.removeprefix("torch.")]
        return next((a.dtype for a in self.stored.values() if a.dtype.name in FLOATS), None)

    @property
    def paddings(self) -> frozenset[int]:
        """Ids of padding tokens."""
        found = self.config.get("pad_token_id")
        return frozenset([found] if isinstance(found, int) and not isinstance(found, bool) else [])


def check_folder(folder: Path) -> None:
    """Checks that a path is a folder with a model in it, and nothing that changes the model when it is loaded.

    Raises:
        ValueError: naming what it is instead, or an adapter.
    """
    if not folder.is_dir():
        if folder.is_file():
            raise ValueError(f"{folder} is a file: give the folder of a checkpoint, with config.json")
        if re.fullmatch(r"(https?:/huggingface\.co/|hf:/)?[\w.-]+(/[\w.-]+)?", str(folder)):
            raise ValueError(
                f"there is no folder {str(folder)!r}. If it is the id of a model on the Hugging Face hub, download it "
                f"first (hf download {folder} --local-dir FOLDER) and give that folder"
            )
        raise ValueError(f"there is no folder {str(folder)!r}: give the folder of a checkpoint")
    for name in sorted(path.name for path in folder.iterdir()):
        if re.fullmatch(r"adapter_(config\.json|model\..*)", name):
            raise ValueError(
                f"{folder} holds an adapter ({name}), which is applied when the folder is loaded: merge the adapter "
                "first (PeftModel.merge_and_unload), or move it away"
            )
        if re.fullmatch(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors", name):
            raise ValueError(
                f"{folder} holds a distributed checkpoint ({name}), which comes before other files: load and save it "
                "as one model first"
            )
        if re.fullmatch(r"(value_head|medusa\w*)\.(safetensors|bin|pt)", name):
            raise ValueError(
                f"{folder} holds {name}, a second head that reads the hidden states: it is no part of the model's "
                "files, and would no longer fit. Move it away if nothing reads it"
            )
        if name == "modules.json":
            raise ValueError(
                f"{folder} holds modules.json: sentence-transformers reads the hidden states of this model, and "
                "rewrites keep its logits only"
            )


def _weight_files(folder: Path) -> list[str]:
    """Names of the files that are loaded.

    Raises:
        ValueError: if there are none, or the index does not name them.
    """
    if (folder / SINGLE).is_file():
        return [SINGLE]
    if not (folder / INDEX).is_file():
        raise ValueError(f"{folder} must hold {SINGLE} or {INDEX}; other formats must be converted first")
    where = read_json(folder / INDEX).get("weight_map")
    if not isinstance(where, dict) or not where or not all(isinstance(file, str) for file in where.values()):
        raise ValueError(f"{folder / INDEX} must have a 'weight_map', from names of arrays to names of files")
    files = sorted(set(where.values()))
    if outside := [file for file in files if Path(file).name != file]:
        raise ValueError(f"{folder / INDEX} names {outside[0]!r}, which is not in its folder")
    if absent := [file for file in files if not (folder / file).is_file()]:
        raise ValueError(
            f"{folder} lacks {absent[0]} ({len(absent)} of {len(files)} files): the checkpoint is partial; download it "
            "again"
        )
    return files


def _index_dtype(folder: Path) -> Any:
    """The dtype in the metadata of the index, where there is one."""
    if (folder / SINGLE).is_file() or not (folder / INDEX).is_file():
        return None
    metadata = read_json(folder / INDEX).get("metadata")
    return metadata.get("dtype") if isinstance(metadata, dict) else None


def read_json(path: Path) -> dict[str, Any]:
    """An object in a JSON file.

    Raises:
        ValueError: if there is no such file, or no object in it.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): give the folder of a checkpoint") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
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
            header = json.loads(file.read(length), object_pairs_hook=_unique)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is no .safetensors file: its header is not JSON") from error
    except _TwiceError as error:
        raise ValueError(f"{path} is no .safetensors file: its header has {error} twice") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path} is no .safetensors file: its header is no object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise ValueError(f"{path} is no .safetensors file: its metadata is no object")
    arrays = {}
    for name, entry in header.items():
        word, shape, (start, stop) = _entry(path, name, entry)
        if word not in DTYPES:
            raise ValueError(f"{name!r} of {path} has dtype {word}, which is not covered")
        dtype = DTYPES[word]
        if stop - start != dtype.itemsize * math.prod(shape) or 8 + length + stop > size:
            raise ValueError(
                f"{name!r} of {path} has {stop - start} bytes where {shape} of {dtype} and the file differ"
            )
        arrays[name] = FileArray(path, dtype, shape, 8 + length + start)
    return arrays, metadata


class _TwiceError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _TwiceError(repr(name))
        found[name] = value
    return found


def _entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    """Dtype, shape and byte range of an array.

    Raises:
        ValueError: if the entry does not have them.
    """
    found = entry if isinstance(entry, dict) else {}
    word, shape, where = found.get("dtype"), found.get("shape"), found.get("data_offsets")

    def sizes(value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in value)

    if not isinstance(word, str) or not sizes(shape) or not sizes(where) or len(where or ()) != 2:
        raise ValueError(f"{path} is no .safetensors file: the entry of {name!r} lacks dtype, shape or data_offsets")
    assert isinstance(shape, list)
    assert isinstance(where, list)
    return word, tuple(shape), (where[0], where[1])


def load(folder: str | Path, stack: Stack | None = None, *, ignore: Iterable[str] = ()) -> tuple[Stack, Checkpoint]:
    """The description of a checkpoint folder, and its arrays.

    Args:
        folder: holds config.json and model.safetensors, or several files with their index.
        stack: a description by hand, with the names in the files; None: that of the family which the config names.
        ignore: options of the config that no code reads, beside those that are known.

    Returns:
        The stack, and the arrays by their names on disk. They are read when they are used: `np.asarray` of one reads it
        whole, and an index reads rows.

    Raises:
        ValueError: naming an architecture, an option or an array that is not covered, or what is wrong with a file.
    """
    weights = Checkpoint(Path(folder), ignore)
    if stack is not None:
        stack.check(weights)
    else:
        stack = described(weights)
    _check_floats(stack, weights)
    return stack, weights


def described(weights: Checkpoint) -> Stack:
    """The description of a checkpoint of a known family.

    Raises:
        ValueError: naming an architecture, an option or an array that is not covered.
    """
    _check_architecture(weights)
    try:
        options, stack = options_and_stack(weights.config, weights, weights.ignore)
        for stored, first in second_names(stack).items():
            if stored in weights.stored and (options.get("tie_word_embeddings") or first in weights.stored):
                weights.second[stored] = first
        if stack.tied and stack.tables[0].weight not in weights.stored and stack.head.untied in weights.stored:
            weights.second[stack.head.untied] = stack.tables[0].weight
        stack = replace(_as_tied(stack, weights), side=sides(options.kind, weights))
        stack.check(weights)
        check_sizes(options, stack, weights)
        _check_shapes(stack, weights)
    except (TypeError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
        raise ValueError(
            f"{weights.folder} has a config.json that does not describe its arrays ({type(error).__name__}: {error})"
        ) from error
    known = {*stack.arrays, stack.head.untied}
    extra = [name for name in weights if name not in known and not matches(name, behind(options.kind))]
    if extra:
        raise ValueError(
            f"{weights.folder} holds {extra[0]!r} ({len(extra)} in all), which the layout of "
            f"{weights.config['model_type']!r} does not know: it may read or write the stream. "
            "Describe it by hand (lg.Stack)"
        )
    return stack


def _as_tied(stack: Stack, weights: Checkpoint) -> Stack:
    """The stack, with a head of its own where the config ties it and the folder holds another matrix for it."""
    table, head = stack.tables[0].weight, stack.head.untied
    if not stack.tied or head not in weights or table not in weights or _equal(weights[table], weights[head], weights):
        return stack
    return replace(stack, head=replace(stack.head, linear=replace(stack.head.linear, weight=head)))


def _equal(a: FileArray, b: FileArray, weights: Checkpoint) -> bool:
    """Whether two arrays are equal once they have the dtype that is loaded."""
    if a.shape != b.shape:
        return False
    dtype = weights.dtype
    step = max(1, PIECE // max(1, math.prod(a.shape[1:])))
    rows = (slice(start, start + step) for start in range(0, a.shape[0], step))
    with np.errstate(all="ignore"):
        return all(np.array_equal(a[i].astype(dtype), b[i].astype(dtype)) for i in rows)


def _check_architecture(weights: Checkpoint) -> None:
    """Refuses classes whose outputs are hidden states.

    Raises:
        ValueError: naming the class.
    """
    named = weights.config.get("architectures")
    for name in named if isinstance(named, list) and "architectures" not in weights.ignore else ():
        if isinstance(name, str) and re.fullmatch(r"\w+(?<!LMHead)(?<!DoubleHeads)Model", name):
            raise ValueError(
                f"config.json says architectures [{name!r}], whose outputs are hidden states; rewrites keep logits "
                "only (if the model is used for its logits: --ignore architectures)"
            )


def _check_shapes(stack: Stack, weights: Checkpoint) -> None:
    """Runs the model on shapes alone.

    Raises:
        ValueError: if the shapes of the arrays do not fit together.
    """
    for _, part in walk(stack):
        if isinstance(part, Linear) and part.bias is not None and weights[part.weight].ndim == 2:
            rows = weights[part.weight].shape[0 if part.layout == "oi" else 1]
            if weights[part.bias].shape != (rows,):
                raise ValueError(
                    f"the arrays of {weights.folder} do not fit together: {part.weight!r} has {rows} outputs, and "
                    f"{part.bias!r} has shape {weights[part.bias].shape}"
                )
    shapes = {name: jax.ShapeDtypeStruct(weights[name].shape, jnp.float32) for name in stack.arrays}

    def run(arrays: dict[str, Any]) -> list[Any]:
        x = hidden(stack, arrays, jnp.zeros((1, 1), int))
        return [head(stack, arrays, x), *side(stack, arrays, x)]

    try:
        with jax.numpy_dtype_promotion("standard"):
            jax.eval_shape(run, shapes)
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f"the arrays of {weights.folder} do not fit together: {str(error).splitlines()[0]}. A weight or bias has "
            "another shape than the config says"
        ) from error


def _check_floats(stack: Stack, weights: Checkpoint) -> None:
    """Refuses arrays of other dtypes than those of weights.

    Raises:
        ValueError: naming the first.
    """
    for name in stack.arrays:
        if weights[name].dtype.name not in FLOATS:
            raise ValueError(
                f"{name!r} of {weights.folder} holds {weights[name].dtype.name}: a quantized checkpoint cannot be "
                "rewritten; rewrite first, quantize afterwards"
            )


def uncovered(stack: Stack, weights: Checkpoint, untouched: Iterable[str] = ()) -> list[str]:
    """Stored arrays that a description by hand does not name, and nobody says that they have no part in it."""
    known = {*stack.arrays, *weights.second}
    allowed = (*behind(str(weights.config.get("model_type")).removeprefix(RMS_MARK)), *untouched)
    return [name for name in weights.stored if name not in known and not matches(name, allowed)]

"""What the `transformers` package loads from a checkpoint folder: which files, which arrays, which of them are one.

The rules are those of its `from_pretrained` (version 5.23, `modeling_utils.py`):

- `model.safetensors` comes before shards with an index. Of an index all arrays of all its files are read.
- A config that ties the head means one matrix if one is stored or both are equal. Two different ones stay two.
- Arrays that are not stored are drawn at random. Here they are refused.
- An adapter in the folder is applied. Here it is refused.
"""

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lngeom.transformers.description import Linear, Stack, walk
from lngeom.transformers.forward import head, hidden, side
from lngeom.transformers.parts import shown
from lngeom.transformers.rewrite.array_files import FLOATS, PIECE, FileArray, check_floats, read_header, read_json
from lngeom.transformers.rewrite.configs import matches
from lngeom.transformers.rewrite.defaults import DEFAULTS
from lngeom.transformers.rewrite.layouts import (
    FLASH_NORM,
    LABELS,
    NEOX_HEADS,
    REMEDIES,
    T5_TABLES,
    behind,
    check_sizes,
    family_of,
    folded,
    options_and_stack,
    second_names,
    sides,
)

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


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
        for named in (self.config.get("dtype"), self.config.get("torch_dtype"), self.index_dtype):
            if named is not None and (not isinstance(named, str) or named not in FLOATS):
                raise ValueError(f"{folder} says dtype {named!r}, which is not covered (covered: {', '.join(FLOATS)})")
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
        named = self.config.get("dtype", self.config.get("torch_dtype")) or self.index_dtype
        if named is not None:
            return FLOATS[named]
        return next((a.dtype for a in self.stored.values() if a.dtype.name in FLOATS), None)

    @property
    def paddings(self) -> frozenset[int]:
        """Ids of padding tokens."""
        kind = self.config.get("model_type")
        options = DEFAULTS.get(kind, {}) if isinstance(kind, str) else {}
        found = self.config.get("pad_token_id", options.get("pad_token_id"))
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
    index = read_json(folder / INDEX)
    where = index.get("weight_map")
    if not isinstance(where, dict) or not where or not all(isinstance(file, str) for file in where.values()):
        raise ValueError(f"{folder / INDEX} must have a 'weight_map', from names of arrays to names of files")
    if not isinstance(index.get("metadata"), dict):
        raise ValueError(
            f"{folder / INDEX} must have an object 'metadata', which may be empty: the transformers package loads no "
            "index without it"
        )
    files = sorted(set(where.values()))
    if outside := [file for file in files if Path(file).name != file]:
        raise ValueError(f"{folder / INDEX} names {outside[0]!r}: files must be named as they stand beside the index")
    if others := [file for file in files if not file.endswith(".safetensors")]:
        raise ValueError(f"{folder / INDEX} names {others[0]!r}: convert it to .safetensors first")
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


def as_folder(given: Any) -> Path:
    """The path of a folder.

    Raises:
        TypeError: if it is no path.
        ValueError: if the path is empty, or holds a character that no path has.
    """
    if isinstance(given, str | os.PathLike) and isinstance(text := os.fspath(given), str):
        if not text or "\0" in text:
            raise ValueError(f"a folder must be a path, with a character at least and none that is 0; got {text!r}")
        return Path(given)
    raise TypeError(f"a folder must be a path as text or Path; got {shown(given)}")


def as_texts(name: str, given: Any) -> tuple[str, ...]:
    """An argument that is a list of texts, and not one text.

    Raises:
        TypeError: naming the argument.
    """
    if isinstance(given, str):
        raise TypeError(f"{name} must be a list of texts; got the text {given!r} (did you mean [{given!r}]?)")
    found = tuple(given) if isinstance(given, Iterable) else (given,)
    if wrong := [each for each in found if not isinstance(each, str)]:
        raise TypeError(f"{name} must be a list of texts; got {shown(wrong[0])}")
    return found


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
        TypeError: if an argument has another type.
        ValueError: naming an architecture, an option or an array that is not covered, or what is wrong with a file.
    """
    if stack is not None and not isinstance(stack, Stack):
        raise TypeError(f"a description must be a Stack (lg.Stack); got {shown(stack)}")
    weights = Checkpoint(as_folder(folder), as_texts("ignore", ignore))
    if stack is not None:
        stack.check(weights)
    else:
        stack = described(weights)
    check_floats(stack.arrays, weights)
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
            tied = options.first("tie_word_embeddings") in {True, None}  # T5, which has no such option, always ties
            if stored in weights.stored and (tied or first in weights.stored):
                _check_second(weights, stored, first)
                weights.second[stored] = first
        if stack.tied and stack.tables[0].weight not in weights.stored and stack.head.untied in weights.stored:
            weights.second[stack.head.untied] = stack.tables[0].weight
        stack = replace(_as_tied(stack, weights), side=sides(options.kind, weights))
        if stack.side and stack.head.linear is not None and stack.head.linear.weight not in weights:
            other = stack.side[0].weight
            raise ValueError(
                f"{weights.folder} holds {other!r} and no {stack.head.linear.weight!r}: it is a model without logits "
                f"of tokens. Describe it by hand (lg.Stack), with Head(Linear({other!r}))"
            )
        stack.check(weights)
        check_sizes(options, stack, weights)
        _check_shapes(stack, weights)
        _check_folded(stack, weights)
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


def _check_folded(stack: Stack, weights: Checkpoint) -> None:
    """Checks that gains are 1 where the config says that they are folded.

    Raises:
        ValueError: naming one that is not: loaders that know the option ignore it, and others do not.
    """
    for option in (option for option in FLASH_NORM if weights.config.get(option)):
        for site in folded(stack, option):
            if site.part.gain is not None and np.any(
                site.part.offset + np.asarray(weights[site.part.gain], float) != 1
            ):
                raise ValueError(
                    f"config.json says {option}, and {site.part.gain!r} of {weights.folder} holds a gain other than 1: "
                    "loaders that know the option ignore it, and others do not. Take the option out, or fold the gain"
                )


def _check_second(weights: Checkpoint, stored: str, first: str) -> None:
    """Checks that two names may hold one array.

    BERT's biases may differ: the package then leaves the second alone.

    Raises:
        ValueError: if they cannot.
    """
    if first not in weights.stored:
        return
    one, other = weights.stored[first], weights.stored[stored]
    one_array = stored in NEOX_HEADS or stored.endswith(T5_TABLES[1])
    if one.shape != other.shape or (one_array and not _equal(one, other, weights)):
        raise ValueError(
            f"{weights.folder} holds {first!r} and {stored!r}, two names of one array, which differ: keep the one that "
            "was meant"
        )


def _as_tied(stack: Stack, weights: Checkpoint) -> Stack:
    """The stack, with a head of its own where the config ties it and the folder holds another matrix for it."""
    table, head = stack.tables[0].weight, stack.head.untied
    if not stack.tied or head not in weights or table not in weights or _equal(weights[table], weights[head], weights):
        return stack
    return replace(stack, head=replace(stack.head, linear=replace(stack.head.map, weight=head)))


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
    known = LABELS.get(family_of(weights.config)[1])
    for name in named if isinstance(named, list) and "architectures" not in weights.ignore else ():
        if known is not None:
            if isinstance(name, str) and name not in known:
                raise ValueError(
                    f"config.json says architectures [{name!r}], which is not covered ({', '.join(known)})"
                    f"{REMEDIES.get(family_of(weights.config)[1], '')}"
                )
            has_head = "classifier.weight" in weights.stored
            if isinstance(name, str) and has_head != name.endswith("Classification"):
                raise ValueError(
                    f"config.json says architectures [{name!r}], and {weights.folder} holds "
                    f"{'a' if has_head else 'no'} 'classifier.weight': it is the folder of another class"
                )
            continue
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


def uncovered(stack: Stack, weights: Checkpoint, untouched: Iterable[str] = ()) -> list[str]:
    """Stored arrays that a description by hand does not name, and nobody says that they have no part in it."""
    known = {*stack.arrays, *weights.second}
    allowed = (*behind(family_of(weights.config)[1]), *untouched)
    return [name for name in weights.stored if name not in known and not matches(name, allowed)]

"""Writing rewritten checkpoints, and checking what was written.

A folder is written array by array under a temporary name. Then it is read again by the rules of `folders`, run, and
compared with the original, read again in the same way. Only then it gets its name.
"""

import json
import math
import shutil
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lngeom._core import files as _files
from lngeom.transformers.description import Norm, Stack
from lngeom.transformers.parts import shown
from lngeom.transformers.rewrite.array_files import DTYPES, FLOATS, read_json
from lngeom.transformers.rewrite.certificate import Certificate, Rounded, compare, everything, not_finite, running_dtype
from lngeom.transformers.rewrite.configs import matches, unknown
from lngeom.transformers.rewrite.defaults import DEFAULTS
from lngeom.transformers.rewrite.draft import Draft
from lngeom.transformers.rewrite.folders import (
    INDEX,
    SINGLE,
    Checkpoint as Checkpoint,
    as_folder,
    as_texts,
    load as load,
    uncovered,
)
from lngeom.transformers.rewrite.layouts import (
    BUFFERS,
    FAMILIES,
    FLASH_NORM,
    HEAD_BIASES,
    ONLINE_MARK,
    RMS_MARK,
    describe,
    family_of,
    folded,
    second_names,
)
from lngeom.transformers.rewrite.online import online
from lngeom.transformers.rewrite.rewriting import Rewritten

OTHER_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.gguf", "*.onnx", "*.index.json")
"""Files that hold the old arrays, and are not copied."""

TOOLS = (".git", ".cache")
"""Folders that belong to the place of a checkpoint, and are not copied."""


def save(
    rewritten: Rewritten,
    folder: str | Path,
    *,
    source: str | Path | Checkpoint | None = None,
    untouched: Iterable[str] = (),
) -> Certificate:
    """Writes a rewritten checkpoint to a new folder, array by array, and checks what was written.

    The folder gets the arrays in as many files as before, a config that fits, and copies of the other files (tokenizer
    and so on). It is written under a temporary name, read again, run and compared with the original, and renamed at the
    end: if anything stops or fails, there is no folder.

    A model described by hand is saved with the config of its source, in which only `tie_word_embeddings` may change.

    Args:
        rewritten: what `apply` made of a checkpoint.
        folder: a folder that does not exist, or is empty.
        source: the folder that the arrays came from, or what `load` read from it, if the arrays are in memory. Their
            names are those in its files.
        untouched: patterns of stored arrays that a description by hand does not name, and that neither read nor write
            the stream. They are copied.

    Returns:
        The certificate, with the difference of the folder.

    Raises:
        TypeError: if an argument has another type.
        ValueError: if the certificate failed, arrays are not those of a folder or not covered, no config describes the
            model, or what was written is not what was certified.
        OSError: if the folder exists with files in it, or cannot be written.
    """
    if not isinstance(rewritten, Rewritten):
        raise TypeError(f"what is saved must come from lg.rewrite.apply; got {shown(rewritten)}")
    untouched = as_texts("untouched", untouched)
    target_folder = as_folder(folder)
    if not rewritten.certificate.passed:
        raise ValueError(f"nothing was written: the certificate failed\n{rewritten.certificate}")
    if source is not None:
        rewritten = replace(rewritten, draft=rewritten.draft.on(_source(rewritten, source)))
    with _files.replacing_folder(target_folder) as target:
        sums = _write(rewritten.stack, rewritten.draft, rewritten.before, target, untouched)
        return _check(rewritten, target, sums)


def write(stack: Stack, draft: Draft, folder: Path) -> None:
    """As `save`, without a certificate and without reading again.

    Args:
        stack: description of the rewritten model.
        draft: its arrays.
        folder: where to.

    Raises:
        ValueError: if the arrays are not those of a checkpoint, or no config describes the model.
    """
    with _files.replacing_folder(folder) as target:
        _write(stack, draft, None, target, ())


def check_target(folder: Path) -> None:
    """Checks before a long computation that a folder can be made.

    Raises:
        OSError: if it exists with files in it, or cannot be written.
    """
    folder = _files.behind_links(folder)
    _files.check_new_folder(folder)
    _files.check_writable(folder.absolute().parent)


def check_saved(
    stack: Stack, draft: Draft, before: Stack | None = None, untouched: Iterable[str] = ()
) -> tuple[Checkpoint, dict[str, Any]]:
    """The checkpoint that a model came from, and the config that describes it now.

    Args:
        stack: the description.
        draft: the arrays.
        before: description of the original; None: it is that of its family.
        untouched: see `save`.

    Raises:
        ValueError: if the arrays are not those of a checkpoint, stored ones are not covered, or no config describes the
            model.
    """
    if not isinstance(draft.source, Checkpoint):
        raise ValueError(
            "only a model that came from lg.rewrite.load can be saved: its config says how. For arrays in memory, give "
            "source=, the folder that they came from"
        )
    source = draft.source
    if before is None or before == _family(source):
        return source, new_config(stack, source.config, draft)
    if left := uncovered(before, source, untouched):
        raise ValueError(
            f"{source.folder} holds {left[0]!r} ({len(left)} in all), which the description does not name: it may read "
            f"or write the stream. Describe it, or say that it does neither (untouched=[{left[0]!r}])"
        )
    if replace(stack, head=before.head) != before or replace(stack.head, linear=before.head.linear) != before.head:
        raise ValueError(
            f"a model described by hand is saved with its config (model_type {source.config.get('model_type')!r}), "
            "which still has the old norms and ε: leave out steps that change more than arrays, such as rms, scale, "
            "flash-norm and turn-units"
        )
    return source, dict(source.config) | {"tie_word_embeddings": stack.tied}


def _family(source: Checkpoint) -> Stack | None:
    """The description that the family of the config has; None if there is none.

    Options that are not known make no difference: they cannot free a description by hand from its family.
    """
    try:
        return load(source.folder, ignore=_ignoring(source))[0]
    except ValueError:
        return None


def _ignoring(source: Checkpoint) -> tuple[str, ...]:
    kind = family_of(source.config)[1]
    return (*source.ignore, *(name for name in unknown(source.config, kind) if name not in source.ignore))


def _source(rewritten: Rewritten, given: str | Path | Checkpoint) -> Checkpoint:
    """The checkpoint that arrays in memory came from.

    Raises:
        ValueError: naming an array that differs.
    """
    source = given if isinstance(given, Checkpoint) else _opened(as_folder(given))
    rewritten.before.check(source)
    for name in rewritten.before.arrays:
        stored, held = np.asarray(source[name]), np.asarray(rewritten.draft.source[name])
        if stored.shape != held.shape or not np.array_equal(stored.astype(np.float64), held.astype(np.float64)):
            raise ValueError(f"{name!r} in memory is not the array of {source.folder}: read the arrays from there")
    return source


def _opened(folder: Path) -> Checkpoint:
    """The arrays of a folder, by the names of its family where that is known."""
    try:
        return load(folder)[1]
    except ValueError:
        return Checkpoint(folder)


def draft_home(stack: Stack, source: Checkpoint) -> str:
    """An array beside which a new head is written."""
    final = None if stack.final is None else stack.final.gain
    return final if final is not None and final in source.files else next(n for n in stack.arrays if n in source.files)


def _write(
    stack: Stack, draft: Draft, before: Stack | None, target: Path, untouched: tuple[str, ...]
) -> dict[str, int]:
    """Writes arrays, config and other files, and returns a checksum of each array."""
    source, config = check_saved(stack, draft, before, untouched)
    contents = {name: name for name in source.files} | source.second | {name: name for name in stack.arrays}
    contents = {name: content for name, content in contents.items() if content not in draft.dropped}
    bias = None if stack.head.linear is None else stack.head.linear.bias
    for second, first in second_names(stack).items():
        if second in contents or (first == bias and not stack.tied):
            contents[second] = first
    if stack.tied:
        spare = stack.head.untied
        contents = {name: content for name, content in contents.items() if spare not in {name, content}}
    files = {name: file for name, file in source.files.items() if name in contents}
    files |= dict.fromkeys((name for name in contents if name not in files), source.files[draft_home(stack, source)])
    sums: dict[str, int] = {}
    for file in dict.fromkeys(files.values()):
        here = {name: contents[name] for name, home in files.items() if home == file}
        sums |= write_arrays(target / file, draft, here, source)
    if SINGLE not in files.values():
        index = read_json(source.folder / INDEX)
        index |= {"metadata": _totals(index["metadata"], stack, draft, contents)}
        write_json(target / INDEX, index | {"weight_map": dict(sorted(files.items()))})
    several = len({array.dtype for array in source.stored.values() if array.dtype.name in FLOATS}) > 1
    if several and source.config.get("dtype", source.config.get("torch_dtype")) is None and source.dtype is not None:
        config |= {"dtype": source.dtype.name}  # else that of the first array, which may be another one now
    write_json(target / "config.json", config)
    left = left_out(source)
    for path in sorted(source.folder.iterdir()):
        if path.name in left or path.name in {"config.json", INDEX, *source.metadata}:
            continue
        if path.is_dir():
            shutil.copytree(path, target / path.name)
        else:
            shutil.copyfile(path, target / path.name)
    return sums


def _totals(old: Mapping[str, Any], stack: Stack, draft: Draft, contents: Mapping[str, str]) -> dict[str, Any]:
    """The metadata of an index, with what they say of all arrays together: bytes, and parameters if they say so.

    Args:
        old: the metadata of the original.
        stack: the description.
        draft: the arrays.
        contents: by the name in the files, the name of the array. The `transformers` package counts two names as one
            parameter, but the biases of an untied encoder.
    """
    sizes = {name: math.prod(draft.shape(content)) for name, content in contents.items()}
    new = dict(old) | {"total_size": sum(sizes[name] * draft.dtype(array).itemsize for name, array in contents.items())}
    if "total_parameters" in old:
        apart = () if stack.tied else {*HEAD_BIASES, *HEAD_BIASES.values()}
        counted = {array if name not in apart else name: sizes[name] for name, array in contents.items()}
        new["total_parameters"] = sum(size for name, size in counted.items() if not matches(name, BUFFERS))
    return new


def left_out(source: Checkpoint) -> tuple[str, ...]:
    """Files and folders of a checkpoint that are not copied: other weights, links to nothing, what a tool keeps."""
    read = {"config.json", INDEX, *source.metadata}
    return tuple(
        path.name
        for path in sorted(source.folder.iterdir())
        if path.name not in read
        and (matches(path.name, OTHER_WEIGHTS) or path.name in TOOLS or not (path.is_file() or path.is_dir()))
    )


def _check(rewritten: Rewritten, target: Path, sums: Mapping[str, int]) -> Certificate:
    """Reads a written folder again, runs it, and compares it with the original, read again in the same way.

    A folder of a known family is read as that family, a description by hand notwithstanding.

    Returns:
        The certificate with the difference.

    Raises:
        ValueError: if what is read is not what was certified.
    """
    source: Any = rewritten.draft.source
    family = _family(source)
    ignore = source.ignore if family is None else _ignoring(source)
    before = load(source.folder, rewritten.before if family is None else None, ignore=ignore)
    after = load(target, rewritten.stack if family is None else None, ignore=ignore)
    if family == rewritten.before and _without_spare_name(after[0]) != _without_spare_name(rewritten.stack):
        raise ValueError("nothing was written: the new folder was read as another model when it was read again")
    for name, found in sums.items():
        if _sum(after[1].stored[name].raw()) != found:
            raise ValueError(f"nothing was written: {name!r} was not read from the disk as it was written")
    drafts = [(stack, Draft(weights)) for stack, weights in (before, after)]
    dtype = running_dtype(*drafts[1])
    reference = everything(before[0], drafts[0][1].copy(), rewritten.tokens)  # a copy keeps no array
    original, found = (
        compare(reference, everything(stack, Rounded(draft.copy(), dtype), rewritten.tokens)) for stack, draft in drafts
    )
    faults = tuple(not_finite(after[0].arrays, Rounded(drafts[1][1].copy(), dtype)))
    if dtype == np.float64:
        faults += _faults_in_32_bits(rewritten, drafts, reference)
    certificate = replace(rewritten.certificate, original=original, folder=found, faults=faults)
    if not certificate.passed:
        raise ValueError(f"nothing was written: the written folder is not the original model\n{certificate}")
    return certificate


def _without_spare_name(stack: Stack) -> Stack:
    """The stack without the name that a tied head would get: which of two it is, an unused array may have said."""
    return replace(stack, head=replace(stack.head, untied="")) if stack.tied else stack


def _faults_in_32_bits(
    rewritten: Rewritten, drafts: list[tuple[Stack, Draft]], reference: tuple[np.ndarray, ...]
) -> tuple[str, ...]:
    """What is wrong in float32: the package computes norms, rotary positions and softmaxes of float64 models in it."""
    single = np.dtype(np.float32)
    apart = [
        compare(reference, everything(stack, Rounded(draft.copy(), single), rewritten.tokens)).residual(
            rewritten.certificate.moves_logits
        )
        for stack, draft in drafts
    ]
    if apart[1] <= 10 * apart[0]:
        return ()
    return (
        f"run in float32, in which the transformers package computes norms of float64 models too, the folder differs "
        f"by {apart[1]:.1e}, the original by {apart[0]:.1e}",
    )


def new_config(stack: Stack, old: Mapping[str, Any], draft: Draft) -> dict[str, Any]:
    """The config that describes a rewritten model of a known family.

    Args:
        stack: the description.
        old: config of the original.
        draft: arrays of the rewritten model.

    Returns:
        The config: tying, ε, flags of gains that are left out, and the family's marks where RMSNorms stand for
        LayerNorms or matrices act at run time.

    Raises:
        ValueError: if no config of the family has this description.
    """
    names, kind = {*draft.source, *draft} - draft.dropped, family_of(old)[1]
    ignore = getattr(draft.source, "ignore", ())
    config = dict(old) | (
        {"tie_word_embeddings": stack.tied} if "tie_word_embeddings" in DEFAULTS.get(kind, ()) else {}
    )
    absent = [n.path for n in stack.norms if n.part.kind == "rms" and n.part.gain is None]
    if absent or any(old.get(option) for option in FLASH_NORM):
        config = {name: value for name, value in config.items() if name not in FLASH_NORM}
        config |= {option: True for option in FLASH_NORM if all(_is_one(n.part, draft) for n in folded(stack, option))}
        if absent and FLASH_NORM[0] not in config:
            raise ValueError(
                f"the gain of {absent[0]} is left out, and other norms of blocks have gains other than 1: the option "
                f"{FLASH_NORM[0]} of a config is about all of them. Leave out all that only linear maps read "
                "(flash-norm); where others write to the stream, fold (fold)"
            )
    if turned := online(stack):
        config["lngeom_online"] = turned
    candidates = [config]
    epsilons = {site.part.eps for site in stack.norms}
    for eps in epsilons if len(epsilons) < 3 else ():  # two: norms of latents have their own
        candidates += [config | {option: eps} for option in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")]
    mark = ONLINE_MARK if turned else ""
    plain = {"model_type": f"{mark}{kind}"} | ({"architectures": []} if turned else {})
    rms = {"model_type": f"{mark}{RMS_MARK}{kind}", "architectures": []}
    marked = [candidate | marks for marks in (plain, rms) for candidate in candidates]
    for candidate in marked if kind in FAMILIES else ():
        try:
            if describe(candidate, names, ignore) == replace(stack, side=()):
                return candidate
        except ValueError:
            continue
    raise ValueError(
        f"no config of model_type {old.get('model_type')!r} describes the rewritten model: leave out the steps that "
        "change norms, ε or rotations at run time of single layers"
    )


def _is_one(norm: Norm, draft: Draft) -> bool:
    return norm.gain is None or not np.any(norm.offset + draft[norm.gain] != 1)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes an object as JSON."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_arrays(path: Path, draft: Draft, contents: Mapping[str, str], source: Checkpoint) -> dict[str, int]:
    """Writes arrays to a .safetensors file, one after the other.

    Args:
        path: the file.
        draft: the arrays.
        contents: by the name in the file, the name of the array.
        source: the checkpoint, for arrays that are not part of the description, and the metadata of its files.

    Returns:
        A checksum of each array.
    """
    words = {dtype: word for word, dtype in DTYPES.items()}
    metadata = source.metadata.get(path.name)
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    position = 0
    for name, content in contents.items():
        kept = _kept(content, draft, source)
        dtype, shape = (kept.dtype, kept.shape) if kept is not None else (draft.dtype(content), draft.shape(content))
        size = dtype.itemsize * math.prod(shape)
        header[name] = {"dtype": words[dtype], "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    sums = {}
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, content in contents.items():
            kept = _kept(content, draft, source)
            pieces = draft.rounded(content) if kept is None else kept.raw()
            sums[name] = 0
            for piece in pieces:
                raw = piece if isinstance(piece, bytes) else np.ascontiguousarray(piece).tobytes()
                file.write(raw)
                sums[name] = zlib.crc32(raw, sums[name])
        file.flush()
    return sums


def _kept(name: str, draft: Draft, source: Checkpoint) -> Any:
    """The stored array where no step knows it; None elsewhere."""
    return None if name in draft else source.stored[name]


def _sum(pieces: Iterable[bytes]) -> int:
    found = 0
    for piece in pieces:
        found = zlib.crc32(piece, found)
    return found

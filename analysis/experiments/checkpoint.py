"""Checkpoints: one file, a JSON header in its first line and the leaves of a pytree after it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import equinox as eqx
import jax
import numpy as np
from lngeom._core.files import replacing

FORMAT = "lngeom.checkpoint/1"

Tree = TypeVar("Tree")


def save_checkpoint(path: Path | str, header: Mapping[str, Any], tree: Any) -> None:
    """Writes a checkpoint under a temporary name and renames it, so that a kill leaves the old one or the new.

    Args:
        path: where to; its folder is made where it does not exist.
        header: what JSON can hold.
        tree: a pytree of arrays.

    Raises:
        OSError: if the file or its folder cannot be written; an older checkpoint is then as it was.
    """
    path = Path(path)
    line = json.dumps({"format": FORMAT, **header}, sort_keys=True).encode() + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(line)
            eqx.tree_serialise_leaves(file, tree)
    except OSError as error:
        raise type(error)(f"the checkpoint {path} cannot be written: {error}") from error


def _header(path: Path, line: bytes) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(f"{path} is not a checkpoint of this version ({FORMAT}): remove it, or start without resuming")
    return header


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise type(error)(f"the checkpoint {path} cannot be read: {error.strerror}") from error


def read_header(path: Path | str) -> dict[str, Any]:
    """The header of a checkpoint.

    Args:
        path: the checkpoint.

    Returns:
        Its header.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if the file is not a checkpoint.
    """
    path = Path(path)
    with _open(path) as file:
        return _header(path, file.readline(2**20))


def _leaf(file: BinaryIO, like: Any) -> Any:
    """Reads a leaf; an array is taken as it is, which compiles nothing."""
    if not isinstance(like, (np.ndarray, jax.Array, jax.ShapeDtypeStruct)):
        return eqx.default_deserialise_filter_spec(file, like)
    found = np.load(file)
    found = found.view(like.dtype) if found.dtype.kind == "V" else found  # NumPy does not know bfloat16
    return found if isinstance(like, np.ndarray) else jax.device_put(found)


def load_checkpoint(path: Path | str, like: Tree) -> tuple[dict[str, Any], Tree]:
    """Reads a checkpoint.

    Args:
        path: the checkpoint.
        like: a pytree of arrays of the same structure, shapes and dtypes.

    Returns:
        The header, and the pytree that was saved.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if the file is not a checkpoint, is damaged, or holds another structure.
    """
    path = Path(path)
    with _open(path) as file:
        header = _header(path, file.readline(2**20))
        try:
            return header, eqx.tree_deserialise_leaves(file, like, _leaf)
        except (RuntimeError, ValueError, EOFError, OSError) as error:
            raise ValueError(
                f"{path} is damaged or holds another model: remove it, or start without resuming ({error})"
            ) from error

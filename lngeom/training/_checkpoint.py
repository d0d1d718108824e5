"""Checkpoints: one file, a JSON header in its first line and the leaves of a pytree after it."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx

FORMAT = "lngeom.checkpoint/1"

Tree = TypeVar("Tree")


def save_checkpoint(path: Path, header: Mapping[str, Any], tree: Any) -> None:
    """Writes a checkpoint under a temporary name and renames it, so that a kill leaves the old one or the new.

    Args:
        path: where to; its folder is made where it does not exist.
        header: what JSON can hold.
        tree: a pytree of arrays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(json.dumps({"format": FORMAT, **header}, sort_keys=True).encode() + b"\n")
            eqx.tree_serialise_leaves(file, tree)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _header(path: Path, line: bytes) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(f"{path} is not a checkpoint of this version ({FORMAT}): remove it, or start without resuming")
    return header


def read_header(path: Path) -> dict[str, Any]:
    """The header of a checkpoint.

    Args:
        path: the checkpoint.

    Returns:
        Its header.

    Raises:
        ValueError: if the file is not a checkpoint.
    """
    with path.open("rb") as file:
        return _header(path, file.readline(2**20))


def load_checkpoint(path: Path, like: Tree) -> tuple[dict[str, Any], Tree]:
    """Reads a checkpoint.

    Args:
        path: the checkpoint.
        like: a pytree of arrays of the same structure, shapes and dtypes.

    Returns:
        The header, and the pytree that was saved.

    Raises:
        ValueError: if the file is not a checkpoint, is damaged, or holds another structure.
    """
    with path.open("rb") as file:
        header = _header(path, file.readline(2**20))
        try:
            return header, eqx.tree_deserialise_leaves(file, like)
        except (RuntimeError, ValueError, EOFError, OSError) as error:
            raise ValueError(
                f"{path} is damaged or holds another model: remove it, or start without resuming ({error})"
            ) from error

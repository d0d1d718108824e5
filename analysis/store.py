"""What programs leave on disk: whole files, JSON in one form, curves, and folders for one run at a time."""

import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from lngeom._core.files import replacing
from lngeom.claims.results import Curves


def json_bytes(value: Any) -> bytes:
    """A file of JSON; numbers that are not finite become null."""
    return (json.dumps(_finite(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(v) for name, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def write(path: Path, content: bytes | str) -> Path:
    """Writes a file in a folder that exists, whole or not at all."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return path


def write_all(folder: Path, files: Mapping[str, bytes | str]) -> list[Path]:
    """Writes files of a folder, each whole or not at all; makes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return [write(folder / name, content) for name, content in files.items()]


def write_results(path: Path, value: Any, page: str | None = None) -> None:
    """Writes results as JSON, and beside it, as `.md`, a page of them."""
    write(path, json_bytes(value))
    if page is not None:
        write(path.with_suffix(".md"), page)


def curves_bytes(curves: Mapping[str, Curves], **more: Any) -> bytes:
    """A NumPy archive of curves in float32.

    Args:
        curves: name → curves, [S E] for each metric.
        **more: further arrays.

    Returns:
        The file: for each name its steps [E], the names of metrics [M], and their values [M S E].
    """
    arrays: dict[str, Any] = dict(more)
    for name, (steps, values) in curves.items():
        arrays[f"{name}/steps"] = steps
        arrays[f"{name}/metrics"] = np.array(list(values))
        arrays[f"{name}/curves"] = np.stack(list(values.values())).astype(np.float32, order="C")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def read_curves(path: Path) -> tuple[dict[str, Curves], dict[str, np.ndarray]]:
    """What `curves_bytes` wrote.

    Args:
        path: of the file.

    Returns:
        The curves by name, and the further arrays.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is no such file, or damaged.
    """
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        names = [name.removesuffix("/curves") for name in arrays if name.endswith("/curves")]
        curves = {
            name: Curves(
                arrays.pop(f"{name}/steps"),
                dict(zip(arrays.pop(f"{name}/metrics").tolist(), arrays.pop(f"{name}/curves"), strict=True)),
            )
            for name in names
        }
    except (ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error
    return curves, arrays


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Keeps a folder for one run: the system lifts the lock when the process ends, however it ends.

    Args:
        folder: made where it does not exist.

    Yields:
        Nothing; on Windows nothing is locked.

    Raises:
        ValueError: if another run has the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another run is writing to {folder}: wait until it has ended, or give this one another --out"
            ) from None
        yield
    finally:
        os.close(handle)

"""MNIST in its own IDX format or as Keras packs it, and its binarized version as text."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from lngeom.claims.data import DataError

from analysis.experiments.datasets import Digits
from analysis.experiments.loaders._files import arrays, find, lines, opened

Progress = Callable[[int], None]
CHUNK = 1 << 24


def read_idx(path: Path) -> UInt8[np.ndarray, "..."]:
    """An array in IDX format: bytes 00 00 08 ndim, ndim sizes as big-endian unsigned 32-bit, then bytes.

    Args:
        path: of the file, packed by gzip if its name ends in .gz.

    Returns:
        The array.

    Raises:
        DataError: if its header is not of unsigned bytes with 1 to 4 axes, or it is shorter or longer than that says.
    """
    with opened(path) as file:
        magic = file.read(4)
        if len(magic) < 4 or magic[:3] != b"\x00\x00\x08" or not 1 <= magic[3] <= 4:
            raise DataError(f"{path}: expected an IDX file of bytes (00 00 08 ndim); it begins with {magic.hex(' ')}")
        sizes = file.read(4 * magic[3])
        if len(sizes) < 4 * magic[3]:
            raise DataError(f"{path}: truncated in its header; fetch it again")
        shape = struct.unpack(f">{magic[3]}I", sizes)
        expected, parts, got = int(np.prod(shape, dtype=object)), [], 0
        while got <= expected and (part := file.read(min(CHUNK, expected + 1 - got))):
            parts.append(part)
            got += len(part)
        if got != expected:
            more = "more than " if got > expected else ""
            raise DataError(f"{path}: {more}{min(got, expected)} bytes of data, where its header says {expected}")
        return np.frombuffer(b"".join(parts), np.uint8).reshape(shape)


def read_mnist(folder: Path, train: int = 55000) -> Digits:
    """MNIST from a folder: the four IDX files, gzipped or not, or `mnist.npz`.

    Args:
        folder: where they lie.
        train: how many of the 60,000 to train on, the paper's 55,000 by default.

    Returns:
        Images as rows of pixels in [0, 1], and labels.

    Raises:
        DataError: if files are missing, damaged, or not of one set.
    """
    if (Path(folder) / "mnist.npz").is_file():
        path = find(folder, "mnist.npz", what="MNIST as Keras packs it")
        found = arrays(path)
        names = ("x_train", "y_train", "x_test", "y_test")
        if missing := [n for n in names if n not in found]:
            raise DataError(f"{path}: expected the arrays {', '.join(names)}; {', '.join(missing)} are not there")
        parts = [found[n] for n in names]
    else:
        path, parts = Path(folder), []
        for split in ("train", "t10k"):
            for kind, axes in (("images", 3), ("labels", 1)):
                stems = (f"{split}-{kind}-idx{axes}-ubyte", f"{split}-{kind}.idx{axes}-ubyte")
                names = [stem + end for stem in stems for end in ("", ".gz")]
                parts.append(read_idx(find(folder, *names, what=f"MNIST's {kind} ({split}) in IDX format")))
    for images, labels in (parts[:2], parts[2:]):
        if images.dtype != np.uint8 or images.ndim != 3:
            raise DataError(f"{path}: expected images as bytes [N 28 28]; got {images.dtype} {images.shape}")
        if labels.shape != (len(images),) or labels.dtype.kind not in "ui" or (labels.size and labels.max() > 9):
            raise DataError(f"{path}: expected one label from 0 to 9 an image; got {labels.dtype} {labels.shape}")
    if parts[0].shape[1:] != parts[2].shape[1:] or not len(parts[2]):
        raise DataError(f"{path}: training images {parts[0].shape} and test images {parts[2].shape} do not go together")
    if len(parts[0]) < train:
        raise DataError(f"{path}: expected at least {train} training images; got {len(parts[0])}")
    rows = [p.reshape(len(p), -1).astype(np.float32) / 255 for p in (parts[0][:train], parts[2])]
    return Digits(rows[0], parts[1][:train].astype(np.int32), rows[1], parts[3].astype(np.int32))


def read_binarized(path: Path, progress: Progress = lambda rows: None) -> UInt8[np.ndarray, "N D"]:
    """Binarized MNIST: a line of 784 zeros and ones an image, read line by line.

    Args:
        path: of an .amat file.
        progress: called with the number of rows read, every thousand.

    Returns:
        Images.

    Raises:
        DataError: if an entry is not 0 or 1, a line has another length than the first, or there is none.
    """
    rows: list[np.ndarray] = []
    for number, line in enumerate(lines(path, "ascii"), 1):
        entries = np.array(line.split(), dtype="U8")
        if not entries.size:
            continue
        ones = entries == "1"
        if not np.all(ones | (entries == "0")):
            bad = entries[~ones & (entries != "0")][0]
            raise DataError(f"{path}, line {number}: expected 0s and 1s; got {str(bad)!r}")
        if rows and len(ones) != len(rows[0]):
            raise DataError(f"{path}, line {number}: {len(ones)} entries, where the first line has {len(rows[0])}")
        rows.append(ones.astype(np.uint8))
        if not len(rows) % 1000:
            progress(len(rows))
    if not rows:
        raise DataError(f"{path}: no images")
    return np.stack(rows)


def read_binarized_mnist(folder: Path, progress: Progress = lambda rows: None) -> dict[str, UInt8[np.ndarray, "N D"]]:
    """The three files of binarized MNIST.

    Args:
        folder: with binarized_mnist_train.amat, …_valid.amat and …_test.amat.
        progress: called with the number of rows read of each.

    Returns:
        Images by split: "train", "valid", "test".

    Raises:
        DataError: if one is missing or damaged, or their images differ in size.
    """
    paths = {s: find(folder, f"binarized_mnist_{s}.amat", what=f"the {s} images") for s in ("train", "valid", "test")}
    found = {split: read_binarized(path, progress) for split, path in paths.items()}
    if len({images.shape[1] for images in found.values()}) > 1:
        raise DataError(f"{folder}: images of different sizes: { {s: i.shape[1] for s, i in found.items()} }")
    return found

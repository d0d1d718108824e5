"""Word vectors in both formats of word2vec: a line "count size", then each word with its numbers, as text or bytes."""

from collections.abc import Container, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import Float
from lngeom.claims.data import DataError

from analysis.experiments.loaders._files import opened

MAX_WORD = 1 << 12
MAX_SIZE = 1 << 13


def read_vectors(path: Path, wanted: Container[str]) -> dict[str, Float[np.ndarray, " D"]]:
    """The vectors of some words, read one by one, so that the file may be larger than memory.

    Args:
        path: of the file: of bytes if its name ends in .bin or .bin.gz, else of text.
        wanted: the words that are kept; of a word that comes twice the first vector.

    Returns:
        Word → vector.

    Raises:
        DataError: if the file is missing or damaged, or has other rows than its first line says.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: expected word vectors in the format of word2vec, .bin or text; there is no such file")
    found: dict[str, np.ndarray] = {}
    with opened(path) as file:
        header = file.readline(64).split()
        if len(header) != 2 or not all(h.isdigit() for h in header) or not 1 <= int(header[1]) <= MAX_SIZE:
            raise DataError(
                f"{path}: expected the number of words and the size of a vector (1 to {MAX_SIZE}) in the first line; "
                f"got {b' '.join(header)[:60]!r}"
            )
        count, size = map(int, header)
        binary = path.name.removesuffix(".gz").endswith(".bin")
        number = 0
        for number, (word, vector) in enumerate((_rows_of_bytes if binary else _rows_of_text)(path, file, size), 1):
            if number > count:
                raise DataError(f"{path}: more than the {count} words that its first line says")
            if word in wanted and word not in found:
                if not np.isfinite(vector).all():
                    raise DataError(f"{path}, word {number}: {word!r} has numbers that are not finite")
                found[word] = vector
        if number < count:
            raise DataError(f"{path}: {number} words, where its first line says {count}; fetch it again")
    return found


def _rows_of_text(path: Path, file: BinaryIO, size: int) -> Iterator[tuple[str, np.ndarray]]:
    limit = MAX_WORD + 32 * size
    number = 1
    while line := file.readline(limit + 1):
        number += 1
        word, *numbers = line.rstrip().rsplit(b" ", size)
        try:
            vector = np.array([float(v) for v in numbers], np.float32)
        except ValueError:
            vector = np.empty(0)
        if len(line) > limit or len(vector) != size:
            raise DataError(f"{path}, line {number}: expected a word and {size} numbers; got {line[:60]!r}")
        yield word.decode(errors="replace"), vector


def _rows_of_bytes(path: Path, file: BinaryIO, size: int) -> Iterator[tuple[str, np.ndarray]]:
    number = 0
    while True:
        number += 1
        word = bytearray()
        while (byte := file.read(1)) not in {b" ", b""} and len(word) <= MAX_WORD:
            word += byte
        name = bytes(word).lstrip(b"\n")
        if not name and not byte:
            return
        values = file.read(4 * size)
        if len(word) > MAX_WORD or not name or len(values) < 4 * size:
            raise DataError(f"{path}, word {number}: truncated, or not words with {size} numbers of 4 bytes each")
        yield name.decode(errors="replace"), np.frombuffer(values, "<f4").astype(np.float32)

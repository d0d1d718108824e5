"""A corpus of any size as symbols on disk: written once, mapped afterwards, never held in memory."""

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int
from lngeom._core.files import check_writable, replacing
from lngeom.claims.data import DataError

from analysis.experiments.loaders._files import lines

CHUNK = 1 << 16
"""Sentences that are encoded before they are written."""


class Corpus(NamedTuple):
    """Sentences one after the other, in stories.

    Attributes:
        symbols: of all sentences, mapped from disk.
        starts: where each sentence begins, and the end of the last, mapped from disk, [S+1].
        stories: sentences before each story, and all of them at the end, [B+1].
    """

    symbols: Int[np.ndarray, " W"]
    starts: Int[np.ndarray, " S+1"]
    stories: Int[np.ndarray, " B+1"]

    def triples(self) -> int:
        """How many times three sentences of a story follow each other."""
        return int(np.maximum(np.diff(self.stories) - 2, 0).sum())

    def take(self, which: Int[np.ndarray, " N"], longest: int) -> tuple[np.ndarray, np.ndarray]:
        """Triples as symbols, filled with zeros, and their lengths.

        Args:
            which: numbers of triples, from 0.
            longest: symbols of a sentence, at which the longer ones were cut.

        Returns:
            Symbols [N 3 T] and lengths [N 3].
        """
        before = np.concatenate([[0], np.cumsum(np.maximum(np.diff(self.stories) - 2, 0))])
        story = np.searchsorted(before, which, side="right") - 1
        first = self.stories[story] + which - before[story]
        sentence = first[:, None] + np.arange(3)
        begin, end = self.starts[sentence], self.starts[sentence + 1]
        place = begin[..., None] + np.arange(longest)
        inside = place < end[..., None]
        found = self.symbols[np.minimum(place, len(self.symbols) - 1)]
        return np.where(inside, found, 0).astype(np.int32), (end - begin).astype(np.int32)


def sentences_of(paths: Iterable[Path]) -> Iterator[list[str] | None]:
    """The words of every sentence, a sentence a line; None at the end of a story."""
    for path in paths:
        for line in lines(path):
            if words := line.lower().split():
                yield words
        yield None


def counted(stories: Iterable[list[str] | None]) -> Counter[str]:
    """How often each word comes."""
    found: Counter[str] = Counter()
    for words in stories:
        found.update(words or ())
    return found


def _place(folder: Path, key: str) -> Path:
    """A folder for encoded files: in the data set's, or where that cannot be written, in the system's temporary one."""
    try:
        check_writable(folder)
        return folder / "encoded" / key
    except OSError:
        return Path(tempfile.gettempdir()) / f"lngeom-{key}"


def encoded(
    folder: Path,
    sources: Sequence[Path],
    read: Callable[[], Iterator[list[str] | None]],
    symbols: Callable[[Iterable[list[str] | None]], Callable[[Sequence[str]], list[int]]],
    identity: Mapping[str, Any],
) -> tuple[Corpus, Callable[[Sequence[str]], list[int]]]:
    """The corpus of a folder, encoded when it is first asked for and mapped afterwards.

    Args:
        folder: of the data set.
        sources: the files it comes from.
        read: gives all sentences, as words, and None after each story; called twice.
        symbols: from all sentences, gives what turns words into numbers.
        identity: what else the numbers depend on, as JSON can hold it.

    Returns:
        The corpus, and what turns words into numbers.

    Raises:
        DataError: if no story has three sentences.
    """
    known = dict(identity) | {"sources": [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in sources]}
    key = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]
    place = _place(folder, key)
    place.mkdir(parents=True, exist_ok=True)
    number = symbols(read())
    if not (place / "stories.npy").is_file():
        total, starts, stories = 0, 0, [0]
        with replacing(place / "symbols.bin") as said, replacing(place / "starts.bin") as begun:
            waiting: list[list[int]] = []

            def write() -> None:
                nonlocal total, starts
                lengths = np.array([len(s) for s in waiting], np.int64)
                begun.write((total + np.cumsum(lengths) - lengths).tobytes())
                said.write(np.array([c for s in waiting for c in s], np.int32).tobytes())
                total, starts = total + int(lengths.sum()), starts + len(waiting)
                waiting.clear()

            for words in read():
                if words is None:
                    stories.append(starts + len(waiting))
                else:
                    waiting.append(number(words))
                if len(waiting) >= CHUNK:
                    write()
            write()
            begun.write(np.array([total], np.int64).tobytes())
        if not total:
            raise DataError(f"{folder}: no three sentences in a row in {sources[0].parent.name}/{sources[0].name}")
        with replacing(place / "stories.npy") as file:
            np.save(file, np.array(stories, np.int64))
    stories_at = np.load(place / "stories.npy", allow_pickle=False)
    said, begun = (np.memmap(place / name, kind, "r") for name, kind in (("symbols.bin", "i4"), ("starts.bin", "i8")))
    corpus = Corpus(said, begun, stories_at)
    if corpus.triples() < 2:
        raise DataError(f"{folder}: no three sentences in a row in {sources[0].parent.name}/{sources[0].name}")
    return corpus, number

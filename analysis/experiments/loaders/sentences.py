"""Sentences with scores or classes, on which sentence encoders are judged: SICK, MR, CR, SUBJ, MPQA."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lngeom.data import DataError

from analysis.experiments.loaders._files import find, lines

CLASSES = {
    "MR": ("rt-polarity.pos", "rt-polarity.neg"),
    "CR": ("custrev.pos", "custrev.neg"),
    "SUBJ": ("quote.tok.gt9.5000", "plot.tok.gt9.5000"),
    "MPQA": ("mpqa.pos", "mpqa.neg"),
}
"""Files of the sentences of class 1 and class 0."""

SICK_COLUMNS = ("pair_ID", "sentence_A", "sentence_B", "relatedness_score", "entailment_judgment")


class Pair(NamedTuple):
    """Two sentences and how related people found them, from 1 to 5."""

    first: str
    second: str
    score: float


def read_sick(path: Path) -> Iterator[Pair]:
    """Pairs of a SICK file: tab-separated, with a header.

    Args:
        path: of the file.

    Yields:
        Pairs.

    Raises:
        DataError: if the header or a row has other columns, a score is not a number from 1 to 5, or there is no row.
    """
    number, source = 1, lines(path)
    header = next(source, "").split("\t")
    if tuple(header[: len(SICK_COLUMNS)]) != SICK_COLUMNS:
        raise DataError(f"{path}: expected the columns {', '.join(SICK_COLUMNS)}; the first line has {header[:5]}")
    for number, line in enumerate(source, 2):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != len(header):
            raise DataError(f"{path}, line {number}: {len(fields)} columns; expected {len(header)}")
        try:
            score = float(fields[3])
        except ValueError:
            score = float("nan")
        if not 1 <= score <= 5:
            raise DataError(f"{path}, line {number}: expected a score from 1 to 5; got {fields[3][:40]!r}")
        if not fields[1].strip() or not fields[2].strip():
            raise DataError(f"{path}, line {number}: an empty sentence")
        yield Pair(fields[1], fields[2], score)
    if number == 1:
        raise DataError(f"{path}: a header and no pairs")


def read_classes(folder: Path, task: str) -> tuple[list[str], list[int]]:
    """Sentences of two classes.

    Args:
        folder: with the files of `CLASSES`.
        task: "MR", "CR", "SUBJ" or "MPQA".

    Returns:
        Sentences, and 1 or 0 for each.

    Raises:
        DataError: if there is no such task, or a file is missing or has no sentences.
    """
    if task not in CLASSES:
        raise DataError(f"no task {task!r}; the tasks are {', '.join(CLASSES)}")
    sentences, labels = [], []
    for label, name in zip((1, 0), CLASSES[task], strict=True):
        path = find(folder, name, f"{task.lower()}/{name}", what=f"sentences of {task}")
        found = [line.strip() for line in lines(path, "latin-1") if line.strip()]
        if not found:
            raise DataError(f"{path}: no sentences")
        sentences += found
        labels += [label] * len(found)
    return sentences, labels

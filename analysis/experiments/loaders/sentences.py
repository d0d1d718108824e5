"""Sentences with scores or classes, on which sentence encoders are judged: SICK, MR, CR, SUBJ, MPQA."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lngeom.claims.data import DataError

from analysis.experiments.loaders._files import find, lines

CLASSES = {
    "MR": ("rt-polarity.pos", "rt-polarity.neg"),
    "CR": ("custrev.pos", "custrev.neg"),
    "SUBJ": ("quote.tok.gt9.5000", "plot.tok.gt9.5000"),
    "MPQA": ("mpqa.pos", "mpqa.neg"),
}
"""Files of the sentences of class 1 and class 0."""

SICK_COLUMNS = ("pair_ID", "sentence_A", "sentence_B", "relatedness_score")
"""Columns that every form of SICK has, in any order."""

SICK_SPLIT = "SemEval_set"
"""Column of the form of 12 columns that names the split: TRAIN, TRIAL or TEST."""

SICK_FILES = {"TRAIN": "SICK_train.txt", "TRIAL": "SICK_trial.txt", "TEST": "SICK_test_annotated.txt"}


class Pair(NamedTuple):
    """Two sentences, how related people found them, from 1 to 5, and their split, where it is known."""

    first: str
    second: str
    score: float
    split: str = ""


def read_sick(path: Path) -> Iterator[Pair]:
    """Pairs of a SICK file: tab-separated, with a header, of 5 columns or of 12.

    Args:
        path: of the file.

    Yields:
        Pairs.

    Raises:
        DataError: if the header lacks a column, a row has another number of them, a score is not a number from 1 to 5,
            a split has another name, or there is no row.
    """
    number, source = 1, lines(path)
    header = next(source, "").split("\t")
    if missing := [c for c in SICK_COLUMNS if c not in header]:
        raise DataError(f"{path}: expected the columns {', '.join(SICK_COLUMNS)}; {', '.join(missing)} are not there")
    first, second, score_at = (header.index(c) for c in SICK_COLUMNS[1:])
    split_at = header.index(SICK_SPLIT) if SICK_SPLIT in header else None
    for number, line in enumerate(source, 2):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != len(header):
            raise DataError(f"{path}, line {number}: {len(fields)} columns; expected {len(header)}")
        try:
            score = float(fields[score_at])
        except ValueError:
            score = float("nan")
        if not 1 <= score <= 5:
            raise DataError(f"{path}, line {number}: expected a score from 1 to 5; got {fields[score_at][:40]!r}")
        if not fields[first].strip() or not fields[second].strip():
            raise DataError(f"{path}, line {number}: an empty sentence")
        split = "" if split_at is None else fields[split_at].strip()
        if split_at is not None and split not in SICK_FILES:
            raise DataError(f"{path}, line {number}: expected {' or '.join(SICK_FILES)}; got {split[:40]!r}")
        yield Pair(fields[first], fields[second], score, split)
    if number == 1:
        raise DataError(f"{path}: a header and no pairs")


def read_sick_splits(folder: Path) -> tuple[list[Pair], list[Pair]] | None:
    """Pairs to train on and pairs to test on, from the three files of SemEval 2014 or from `SICK.txt`.

    Training pairs are those of the splits TRAIN and TRIAL, in this order. A file without splits is divided in half.

    Args:
        folder: of the data set.

    Returns:
        Both; None if none of the files is there.

    Raises:
        DataError: if a file is damaged, only some of the three are there, or one side is empty.
    """
    here = {split: name for split, name in SICK_FILES.items() if (Path(folder) / name).is_file()}
    if here:
        if "TRAIN" not in here or "TEST" not in here:
            raise DataError(f"{folder}: expected {SICK_FILES['TRAIN']} and {SICK_FILES['TEST']}; got {here}")
        paths = {split: find(folder, name, what="pairs of SICK") for split, name in here.items()}
        every = [pair._replace(split=split) for split, path in paths.items() for pair in read_sick(path)]
    elif (Path(folder) / "SICK.txt").is_file():
        every = list(read_sick(find(folder, "SICK.txt", what="pairs of SICK")))
    else:
        return None
    if every[0].split:
        sides = (
            sorted((p for p in every if p.split != "TEST"), key=lambda p: p.split == "TRIAL"),
            [p for p in every if p.split == "TEST"],
        )
    else:
        sides = every[: len(every) // 2], every[len(every) // 2 :]
    if not all(sides):
        raise DataError(f"{folder}: SICK has {len(sides[0])} pairs to train on and {len(sides[1])} to test on")
    return sides


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

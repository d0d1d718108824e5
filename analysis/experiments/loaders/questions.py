"""CNN's questions for the attentive reader: a story, a sentence with a gap, and the entity that fills it."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lngeom.claims.data import DataError

from analysis.experiments.loaders._files import inside, lines

PLACEHOLDER = "@placeholder"


class Question(NamedTuple):
    """One question.

    Attributes:
        context: words of the story.
        question: words of the sentence, one of which is @placeholder.
        answer: the entity in the gap.
        entities: what each entity stands for.
    """

    context: list[str]
    question: list[str]
    answer: str
    entities: dict[str, str]


def read_question(path: Path) -> Question:
    """A .question file: url, context, question, answer and the entities, separated by blank lines.

    Args:
        path: of the file.

    Returns:
        The question.

    Raises:
        DataError: if a part is missing, there is no gap, or the answer is not an entity of the story.
    """
    blocks: list[list[str]] = [[]]
    for line in lines(path):
        if line.strip():
            blocks[-1].append(line.strip())
        elif blocks[-1]:
            blocks.append([])
    blocks = [b for b in blocks if b]
    if len(blocks) != 5:
        raise DataError(f"{path}: expected url, context, question, answer, entities; got {len(blocks)} blocks of text")
    _, context, question, answer, mapping = (" ".join(b) if k < 4 else b for k, b in enumerate(blocks))
    found = Question(str(context).split(), str(question).split(), str(answer), dict(_entity(path, m) for m in mapping))
    if PLACEHOLDER not in found.question:
        raise DataError(f"{path}: the question has no {PLACEHOLDER}")
    if not found.answer.startswith("@entity") or found.answer not in found.context:
        raise DataError(f"{path}: the answer {found.answer!r} is not an @entity of the context")
    return found


def _entity(path: Path, line: str) -> tuple[str, str]:
    name, colon, meaning = line.partition(":")
    if not colon or not name.startswith("@entity"):
        raise DataError(f"{path}: expected lines '@entityK:name' at the end; got {line[:80]!r}")
    return name, meaning


def first_sentences(words: list[str], count: int) -> list[str]:
    """The first sentences of a story; each ends with a full stop, a question mark or an exclamation mark.

    Args:
        words: of the story.
        count: sentences.

    Returns:
        Their words.

    Example:
        >>> first_sentences("he saw . who ? she".split(), 2)
        ['he', 'saw', '.', 'who', '?']
    """
    ends = [k + 1 for k, word in enumerate(words) if word in {".", "?", "!"}]
    return words[: ends[count - 1]] if len(ends) >= count else words


def read_questions(folder: Path, split: str, limit: int | None = None) -> Iterator[Question]:
    """The questions of one split, one by one, in the order of their names.

    Args:
        folder: that has `questions/training`, `validation` and `test`.
        split: one of these.
        limit: at most so many.

    Yields:
        Questions.

    Raises:
        DataError: if the folder is missing or empty, or a file is damaged.
    """
    folder = Path(folder)
    place = next((p for p in (folder / "questions" / split, folder / split) if p.is_dir()), None)
    if place is None:
        raise DataError(f"{folder}: expected a folder questions/{split}")
    paths = sorted(inside(folder, place).glob("*.question"))[:limit]
    if not paths:
        raise DataError(f"{place}: no .question files")
    for path in paths:
        yield read_question(inside(folder, path))
